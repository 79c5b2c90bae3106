//! From a process's mappings to its list of device allocators.
//!
//! ```text
//! maps ─► libc10_cuda.so ─► symbol c10::cuda::CUDACachingAllocator::allocator ─► object ─► class by RTTI
//!                                                                    NativeCachingAllocator: search 64 KiB of it for
//!         std::vector<std::unique_ptr<DeviceCachingAllocator>> {begin, end, end of storage} ─► device 0, device 1, …
//! ```
//!
//! The symbol is absent in 1.13, and a program linked without -fPIC owns a copy of it (copy relocation) while the
//! library's stays 0. The native allocator is a static object in the library in every version, so its .data and .bss
//! are searched where the symbol leads nowhere.

use super::failure::Failure;
use super::layout::{Layout, LayoutMatch};
use crate::collect::memory::elf::Image;
use crate::collect::memory::maps::{Mapping, images};
use crate::collect::memory::view::View;
use crate::collect::memory::{Memory, MemoryError, Range, exact, is_pointer, pointer, rtti, up_to};

const SYMBOL: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// Exported by every libc10_cuda: without it, something else has that name.
const ANY_SYMBOL: &str = "_ZN3c104cuda12device_countEv";
const LIBRARIES: &[&str] = &["libc10_cuda.so", "libc10_hip.so"];
/// Two torches in one process are rare, more a mistake.
const MAX_IMAGES: usize = 4;
/// The interpreter, and what else is mapped with code and is no library.
const MAX_EXECUTABLES: usize = 8;
/// How far into the allocator object its vector may be: 35648 on aarch64 so far.
const OBJECT: usize = 64 << 10;
/// libc10_cuda has 0.2 MiB.
const MAX_STATIC: usize = 4 << 20;
/// No machine has more GPUs.
const MAX_DEVICES: u64 = 128;
/// Of the vector's storage.
const MAX_CAPACITY: u64 = 4_096;

/// The list of device allocators, found and recognised.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// Of the std::vector.
    pub vector: u64,
    /// Of its elements.
    pub elements: u64,
    pub devices: Vec<u64>,
    pub layout: Layout,
}

/// # Errors
/// With what is there instead.
pub fn locate(memory: &impl Memory) -> Result<Located, Failure> {
    let maps = memory.maps()?;
    let bases = images(&maps, |map| LIBRARIES.contains(&map.file_name()));
    let mut best = Failure::NotTorch;
    let mut idle = None;
    for base in bases.into_iter().take(MAX_IMAGES) {
        match locate_in(memory, &maps, base) {
            Ok(located) if is_in_use(memory, &located)? => return Ok(located),
            Ok(located) => idle = idle.or(Some(located)),
            Err(error @ Failure::Memory(MemoryError::Denied(_) | MemoryError::Gone)) => {
                return Err(error);
            }
            Err(failure) if failure.weight() >= best.weight() => best = failure,
            Err(_) => {}
        }
    }
    idle.ok_or(best)
}

/// Of two torches the one that something was asked of.
fn is_in_use(memory: &impl Memory, located: &Located) -> Result<bool, MemoryError> {
    for (ordinal, &device) in (0..).zip(&located.devices) {
        let bytes = up_to(memory, device, located.layout.stats_end())?;
        let stats = located.layout.parse(View(&bytes), ordinal);
        if stats.is_some_and(|stats| stats.is_touched()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn locate_in(memory: &impl Memory, maps: &[Mapping], base: u64) -> Result<Located, Failure> {
    let image = match Image::read(memory, base) {
        Err(MemoryError::Unreadable { .. }) => return Err(Failure::NotTorch),
        image => image?,
    };
    let object = allocator(memory, maps, &image)?;
    let class = match object {
        Some(object) => readable(rtti::class_name(memory, object))?.flatten(),
        None => None,
    };
    let mut search = Search {
        memory,
        machine: image.machine,
        is_unknown: false,
        is_busy: false,
    };
    match class.as_deref() {
        Some(name) if name.contains("CudaMallocAsyncAllocator") => {
            return Err(Failure::CudaMallocAsync);
        }
        Some(name) if name.contains("CUDAPluggableAllocator") => return Err(Failure::Pluggable),
        _ => {}
    }
    let is_native = class
        .as_deref()
        .is_some_and(|name| name.contains("NativeCachingAllocator"));
    let object = object.filter(|_| is_native).map(|address| Range {
        address,
        len: OBJECT,
    });
    for range in object.iter().chain(&image.writable) {
        if let Some(located) = search.vector(*range)? {
            return Ok(located);
        }
    }
    let any = readable(image.symbol(memory, ANY_SYMBOL))?.flatten();
    Err(search.failure(class, is_native, any))
}

/// What the variable `allocator` points to; `None` in 1.13, which has none, and before the library's start-up code
/// ran.
fn allocator(
    memory: &impl Memory,
    maps: &[Mapping],
    image: &Image,
) -> Result<Option<u64>, MemoryError> {
    let Some(symbol) = readable(image.symbol(memory, SYMBOL))?.flatten() else {
        return Ok(None);
    };
    if let Some(object) = object_at(memory, symbol)? {
        return Ok(Some(object));
    }
    let is_program = |map: &Mapping| !map.file_name().contains(".so");
    for base in images(maps, is_program).into_iter().take(MAX_EXECUTABLES) {
        let Some(program) = readable(Image::read(memory, base))? else {
            continue;
        };
        if let Some(symbol) = readable(program.symbol(memory, SYMBOL))?.flatten()
            && let Some(object) = object_at(memory, symbol)?
        {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

fn object_at(memory: &impl Memory, symbol: u64) -> Result<Option<u64>, MemoryError> {
    let object = readable(pointer(memory, symbol, "the pointer to the allocator"))?;
    Ok(object.filter(|&object| is_pointer(object)))
}

/// What is not mapped is not there; any other error ends the search.
fn readable<T>(result: Result<T, MemoryError>) -> Result<Option<T>, MemoryError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MemoryError::Unreadable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

struct Search<'a, M> {
    memory: &'a M,
    machine: u16,
    /// Something with the statistics of an allocator, in another shape, was seen.
    is_unknown: bool,
    /// Something with a held mutex was seen.
    is_busy: bool,
}

impl<M: Memory> Search<'_, M> {
    /// The vector in a range, as far as the range is mapped.
    fn vector(&mut self, range: Range) -> Result<Option<Located>, MemoryError> {
        let bytes = up_to(self.memory, range.address, range.len.min(MAX_STATIC))?;
        let words: Vec<u64> = View(&bytes).words().collect();
        for (index, window) in words.windows(3).enumerate() {
            let [begin, end, storage] = window else {
                continue;
            };
            if !is_vector(*begin, *end, *storage) {
                continue;
            }
            let address = range.address + 8 * index as u64;
            if let Some(located) = self.candidate(address, *begin, *end)? {
                return Ok(Some(located));
            }
        }
        Ok(None)
    }

    fn candidate(
        &mut self,
        vector: u64,
        begin: u64,
        end: u64,
    ) -> Result<Option<Located>, MemoryError> {
        let len = usize::try_from(end - begin).unwrap_or_default();
        let what = "the list of devices";
        let Some(bytes) = readable(exact(self.memory, begin, len, what))? else {
            return Ok(None);
        };
        let devices: Vec<u64> = View(&bytes).words().collect();
        if !devices.iter().all(|&device| is_pointer(device)) {
            return Ok(None);
        }
        let mut layouts = Vec::new();
        for &device in &devices {
            match Layout::calibrate(self.memory, device, self.machine)? {
                LayoutMatch::Device(layout) => layouts.push(layout),
                LayoutMatch::Unknown => self.is_unknown = true,
                LayoutMatch::Busy => self.is_busy = true,
                LayoutMatch::No => {}
            }
            // The first decides whether this is the list at all.
            if layouts.is_empty() {
                return Ok(None);
            }
        }
        let layout = layouts.swap_remove(0);
        // Every device has the same class; one that looks otherwise is being changed right now.
        let is_same = layouts.iter().all(|other| *other == layout);
        if !is_same || layouts.len() + 1 != devices.len() {
            self.is_busy = true;
            return Ok(None);
        }
        Ok(Some(Located {
            vector,
            elements: begin,
            devices,
            layout,
        }))
    }

    fn failure(&self, class: Option<String>, is_native: bool, any: Option<u64>) -> Failure {
        match class {
            _ if self.is_busy => Failure::Busy,
            _ if self.is_unknown => Failure::UnknownBuild,
            Some(class) if !is_native => Failure::OtherBackend(class.into()),
            None if any.is_none() => Failure::NotTorch,
            _ => Failure::NotInitialised,
        }
    }
}

fn is_vector(begin: u64, end: u64, storage: u64) -> bool {
    is_pointer(begin)
        && begin < end
        && end <= storage
        && end.is_multiple_of(8)
        && storage.is_multiple_of(8)
        && storage - begin <= MAX_CAPACITY
        && end - begin <= MAX_DEVICES * 8
}

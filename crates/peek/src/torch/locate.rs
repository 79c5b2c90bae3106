//! Finds the list of device allocators from a process's mappings.
//!
//! ```text
//! maps ─► libc10_cuda.so ─► symbol c10::cuda::CUDACachingAllocator::allocator ─► object ─► class by RTTI
//!                                                                    NativeCachingAllocator: search 64 KiB of it for
//!         std::vector<std::unique_ptr<DeviceCachingAllocator>> {begin, end, end of storage} ─► device 0, device 1, …
//! ```
//!
//! torch 1.13 does not have this symbol. A program linked without -fPIC has its own copy (copy relocation), while the
//! symbol in the library stays 0. In every version, the native allocator is a static object in the library. If the
//! symbol does not lead to that object, the library's .data and .bss are therefore searched.

use super::failure::Failure;
use super::layout::{Layout, LayoutMatch};
use crate::memory::elf::Image;
use crate::memory::maps::{Mapping, images};
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, Range, exact, is_pointer, pointer, rtti, up_to};

const SYMBOL: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// A symbol exported by every libc10_cuda. A file without it is a different library with the same name.
const MARKER_SYMBOL: &str = "_ZN3c104cuda12device_countEv";
const LIBRARIES: &[&str] = &["libc10_cuda.so", "libc10_hip.so"];
/// Maximum number of PyTorch libraries per process. Two are rare, and more indicate an error.
const MAX_IMAGES: usize = 4;
/// Maximum number of mapped executables, such as the Python interpreter, to search for the symbol.
const MAX_EXECUTABLES: usize = 8;
/// Number of bytes of the allocator object to search for the vector of devices. Its largest known offset is 35648, on
/// aarch64.
const OBJECT_BYTES: usize = 64 << 10;
/// Maximum number of bytes of a library's static data to search. libc10_cuda has 0.2 MiB.
const MAX_STATIC_BYTES: usize = 4 << 20;
/// Maximum number of device allocators in a process. No machine has more GPUs.
const MAX_DEVICES: u64 = 128;
/// Maximum size of the storage of the vector of devices in bytes.
const MAX_CAPACITY_BYTES: u64 = 4_096;

#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// Address of the std::vector of device allocators.
    pub vector: u64,
    pub elements: u64,
    pub devices: Vec<u64>,
    pub layout: Layout,
}

pub fn locate(memory: &dyn Memory) -> Result<Located, Failure> {
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
            Err(failure) if failure.priority() >= best.priority() => best = failure,
            Err(_) => {}
        }
    }
    idle.ok_or(best)
}

/// Returns true if any device is in use. Used to choose between two PyTorch libraries in one process.
fn is_in_use(memory: &dyn Memory, located: &Located) -> Result<bool, MemoryError> {
    for (ordinal, &device) in (0..).zip(&located.devices) {
        let bytes = up_to(memory, device, located.layout.stats_end())?;
        let stats = located.layout.parse(View(&bytes), ordinal);
        if stats.is_some_and(|stats| stats.is_used()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn locate_in(memory: &dyn Memory, maps: &[Mapping], base: u64) -> Result<Located, Failure> {
    let image = match Image::read(memory, base) {
        Err(MemoryError::Unreadable { .. }) => return Err(Failure::NotTorch),
        image => image?,
    };
    let object = allocator(memory, maps, &image)?;
    let class = match object {
        Some(object) => readable(rtti::class_name(memory, object))?.flatten(),
        None => None,
    };
    let mut search =
        LayoutSearch { memory, machine: image.machine, is_unknown: false, is_busy: false };
    match class.as_deref() {
        Some(name) if name.contains("CudaMallocAsyncAllocator") => {
            return Err(Failure::CudaMallocAsync);
        }
        Some(name) if name.contains("CUDAPluggableAllocator") => return Err(Failure::Pluggable),
        _ => {}
    }
    let is_native = class.as_deref().is_some_and(|name| name.contains("NativeCachingAllocator"));
    let object = object.filter(|_| is_native).map(|address| Range { address, len: OBJECT_BYTES });
    for range in object.iter().chain(&image.writable) {
        if let Some(located) = search.vector(*range)? {
            return Ok(located);
        }
    }
    let marker = readable(image.symbol(memory, MARKER_SYMBOL))?.flatten();
    Err(search.failure(class, is_native, marker))
}

/// Returns the object that the variable `allocator` points to. Returns `None` for torch 1.13, which does not have the
/// variable, or if the library's initializers have not run yet.
fn allocator(
    memory: &dyn Memory,
    maps: &[Mapping],
    image: &Image,
) -> Result<Option<u64>, MemoryError> {
    let Some(symbol) = readable(image.symbol(memory, SYMBOL))?.flatten() else { return Ok(None) };
    if let Some(object) = object_at(memory, symbol)? {
        return Ok(Some(object));
    }
    let is_program = |map: &Mapping| !map.file_name().contains(".so");
    for base in images(maps, is_program).into_iter().take(MAX_EXECUTABLES) {
        let Some(program) = readable(Image::read(memory, base))? else { continue };
        if let Some(symbol) = readable(program.symbol(memory, SYMBOL))?.flatten()
            && let Some(object) = object_at(memory, symbol)?
        {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

fn object_at(memory: &dyn Memory, symbol: u64) -> Result<Option<u64>, MemoryError> {
    let object = readable(pointer(memory, symbol, "the pointer to the allocator"))?;
    Ok(object.filter(|&object| is_pointer(object)))
}

/// Converts an unmapped-memory error to `None`. Any other error stops the search.
fn readable<T>(result: Result<T, MemoryError>) -> Result<Option<T>, MemoryError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MemoryError::Unreadable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

struct LayoutSearch<'a> {
    memory: &'a dyn Memory,
    machine: u16,
    /// True if a struct was found that contains an allocator's statistics but has an unknown layout.
    is_unknown: bool,
    /// True if the mutex of a candidate struct was locked.
    is_busy: bool,
}

impl LayoutSearch<'_> {
    /// Searches the mapped part of a memory range for the vector of device allocators.
    fn vector(&mut self, range: Range) -> Result<Option<Located>, MemoryError> {
        let bytes = up_to(self.memory, range.address, range.len.min(MAX_STATIC_BYTES))?;
        for (index, window) in View(&bytes).words().collect::<Vec<u64>>().windows(3).enumerate() {
            let [begin, end, storage] = window else { continue };
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
        let Some(bytes) = readable(exact(self.memory, begin, len, what))? else { return Ok(None) };
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
            // Decide from the first device whether this vector is the list of device allocators.
            if layouts.is_empty() {
                return Ok(None);
            }
        }
        let layout = layouts.swap_remove(0);
        // Report a busy allocator if the devices' layouts differ. All devices have the same layout, so one of them
        // must be changing.
        let is_same = layouts.iter().all(|other| *other == layout);
        if !is_same || layouts.len() + 1 != devices.len() {
            self.is_busy = true;
            return Ok(None);
        }
        Ok(Some(Located { vector, elements: begin, devices, layout }))
    }

    fn failure(&self, class: Option<String>, is_native: bool, marker: Option<u64>) -> Failure {
        match class {
            _ if self.is_busy => Failure::Busy,
            _ if self.is_unknown => Failure::UnknownBuild,
            Some(class) if !is_native => Failure::OtherBackend(class.into()),
            None if marker.is_none() => Failure::NotTorch,
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
        && storage - begin <= MAX_CAPACITY_BYTES
        && end - begin <= MAX_DEVICES * 8
}

//! Search for the allocators of one process, in steps that take about a millisecond each.

use std::collections::VecDeque;
use std::time::Instant;

use gputop_model::reported_pool::Framework;

use super::allocator::{Allocator, Place};
use super::async_pool::AsyncPool;
use super::chunks::Region;
use super::cupy::{self, CupyPool, TypeObject};
use super::failure::Failure;
use super::layout::{Layout, LayoutMatch, MAX_CALIBRATION_BYTES};
use super::library::{self, ASYNC_CLASS, Library};
use super::other_pools::OtherPools;
use super::scan::ObjectScan;
use super::vtable::{VtableCache, VtableSearch};
use crate::memory::maps::Mapping;
use crate::memory::{Memory, MemoryError};

/// Minimum size of a table of handles that is left out of the search, and maximum number of such tables in a pool.
const MIN_EXCLUDED_BYTES: usize = 1 << 20;
const MAX_EXCLUDED: usize = 64;
/// Maximum number of attempts to recognize an allocator that is changing.
const MAX_TRIES: u32 = 20;

#[derive(Debug)]
pub struct Search {
    maps: Vec<Mapping>,
    /// Libraries whose vtables are not known yet.
    libraries: VecDeque<VtableSearch>,
    framework: &'static str,
    vtables: Vec<(u64, &'static Library)>,
    async_vtables: Vec<(u64, &'static Library)>,
    /// Type objects of CuPy's pools.
    cupy_types: Vec<u64>,
    scan: Option<ObjectScan>,
    found: Found,
    /// True if an allocator was found whose structure is unknown.
    is_unknown: bool,
    /// Bytes of chunks that may still be read to recognize allocators.
    budget: usize,
}

impl Search {
    pub fn start(memory: &dyn Memory, cache: &VtableCache) -> Result<Self, Failure> {
        let maps = memory.maps()?;
        let loaded = library::loaded(&maps);
        let (mut cupy_types, mut is_other_cupy) = (Vec::new(), false);
        for module in cupy::modules(&maps) {
            match cupy::type_object(memory, &module)? {
                TypeObject::Found(address) => cupy_types.push(address),
                TypeObject::OtherVersion => is_other_cupy = true,
                TypeObject::Missing => {}
            }
        }
        let framework = match loaded.first() {
            Some((_, first)) => first.framework,
            None if !cupy_types.is_empty() => Framework::Cupy,
            None if is_other_cupy => return Err(Failure::UnknownCupy),
            None => return Err(Failure::NotLoaded),
        };
        let mut libraries = VecDeque::new();
        for (base, library) in loaded {
            libraries.extend(VtableSearch::start(memory, &maps, base, library, cache)?);
        }
        Ok(Self {
            maps,
            libraries,
            framework: framework.words(),
            vtables: Vec::new(),
            async_vtables: Vec::new(),
            cupy_types,
            scan: None,
            found: Found::default(),
            is_unknown: false,
            budget: MAX_CALIBRATION_BYTES,
        })
    }

    /// Continues the search until it ends or `until`. Returns true once it has ended.
    pub fn advance(
        &mut self,
        memory: &dyn Memory,
        cache: &mut VtableCache,
        until: Option<Instant>,
    ) -> Result<bool, MemoryError> {
        while !self.step(memory, cache)? {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn step(&mut self, memory: &dyn Memory, cache: &mut VtableCache) -> Result<bool, MemoryError> {
        let Some(mut library) = self.libraries.pop_front() else { return self.scan(memory) };
        let is_done = library.advance(memory, cache)?;
        let has_vtable = library.vtables().next().is_some();
        if !is_done || (!has_vtable && library.ignore_file(memory)?) {
            self.libraries.push_front(library);
        } else {
            let of = library.library();
            for (class, vtable) in library.classes() {
                let is_async = class == ASYNC_CLASS;
                let list = if is_async { &mut self.async_vtables } else { &mut self.vtables };
                list.push((vtable, of));
            }
        }
        Ok(false)
    }

    fn scan(&mut self, memory: &dyn Memory) -> Result<bool, MemoryError> {
        let types = self.cupy_types.iter().copied();
        let all = self.vtables.iter().chain(&self.async_vtables);
        let vtables = || all.map(|(vtable, _)| *vtable).chain(types).collect();
        let scan = self.scan.get_or_insert_with(|| ObjectScan::new(&self.maps, vtables()));
        let is_done = scan.advance(memory)?;
        for (address, vtable) in std::mem::take(&mut scan.found) {
            if self.cupy_types.contains(&vtable) {
                let pool = CupyPool::recognize(memory, address, vtable)?;
                self.found.others.cupy.extend(pool);
                continue;
            }
            let library = self.async_vtables.iter().find(|(known, _)| *known == vtable);
            if let Some((_, library)) = library {
                let pool = AsyncPool::recognize(memory, address, vtable, library)?;
                self.found.others.cuda_async.extend(pool);
                continue;
            }
            let library = self.vtables.iter().find(|(known, _)| *known == vtable);
            let Some((_, library)) = library else { continue };
            let candidate = Candidate { address, vtable, library };
            match candidate.recognize(memory, &mut self.budget)? {
                LayoutMatch::Pool { name, layout, regions } => {
                    let tables = regions.iter().map(Region::handle_table);
                    let large = tables.filter(|table| table.len >= MIN_EXCLUDED_BYTES);
                    large.take(MAX_EXCLUDED).for_each(|table| scan.exclude(table));
                    self.found.allocators.extend(candidate.allocator(name, layout));
                }
                LayoutMatch::Empty => self.found.empty.push(candidate),
                LayoutMatch::Unknown => self.is_unknown = true,
                LayoutMatch::No => {}
            }
        }
        Ok(is_done)
    }

    /// Returns what was found, or why there is nothing.
    pub fn finish(self) -> Result<Found, Failure> {
        let is_found = !self.found.allocators.is_empty() || !self.found.others.is_empty();
        if is_found || !self.found.empty.is_empty() {
            Ok(self.found)
        } else if self.is_unknown || (self.vtables.is_empty() && self.cupy_types.is_empty()) {
            Err(Failure::UnknownBuild)
        } else {
            Err(Failure::NotInitialised(self.framework))
        }
    }
}

#[derive(Debug, Default)]
pub struct Found {
    pub allocators: Vec<Allocator>,
    /// Allocators that have not reserved memory yet, so their structure is not known completely.
    pub(super) empty: Vec<Candidate>,
    pub others: OtherPools,
}

/// An object that has the vtable of an allocator.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub address: u64,
    vtable: u64,
    library: &'static Library,
}

impl Candidate {
    /// Recognizes the structure of the object. Tries again while the allocator is changing.
    pub fn recognize(
        self,
        memory: &dyn Memory,
        budget: &mut usize,
    ) -> Result<LayoutMatch, MemoryError> {
        let mut found = Layout::calibrate(memory, self.address, self.vtable, budget)?;
        for _ in 1..MAX_TRIES {
            if found != LayoutMatch::Unknown {
                break;
            }
            found = Layout::calibrate(memory, self.address, self.vtable, budget)?;
        }
        Ok(found)
    }

    /// Returns the allocator, or `None` if its name does not say which memory it distributes.
    pub fn allocator(self, name: String, layout: Layout) -> Option<Allocator> {
        let place = Place::of(&name)?;
        Some(Allocator::new(name, place, (self.address, self.vtable), layout, self.library))
    }

    /// Returns why there is no pool, if the allocator is empty.
    pub fn not_initialised(&self) -> Failure {
        Failure::NotInitialised(self.library.framework.words())
    }
}

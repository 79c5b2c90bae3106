//! Search for the allocators of one process, in steps that take about a millisecond each.

use std::collections::VecDeque;
use std::time::Instant;

use super::allocator::{Allocator, Place};
use super::failure::Failure;
use super::layout::{Layout, LayoutMatch, MAX_CALIBRATION_BYTES};
use super::library::{self, Library};
use super::scan::ObjectScan;
use super::vtable::{VtableCache, VtableSearch};
use crate::memory::maps::Mapping;
use crate::memory::{Memory, MemoryError};

/// Maximum number of attempts to recognize an allocator that is changing.
const MAX_TRIES: u32 = 20;

#[derive(Debug)]
pub struct Search {
    maps: Vec<Mapping>,
    /// Libraries whose vtables are not known yet.
    libraries: VecDeque<VtableSearch>,
    framework: &'static str,
    vtables: Vec<(u64, &'static Library)>,
    scan: Option<ObjectScan>,
    found: Vec<Allocator>,
    /// True if an allocator was found whose structure is unknown.
    is_unknown: bool,
    /// Bytes of chunks that may still be read to recognize allocators.
    budget: usize,
}

impl Search {
    pub fn start(memory: &dyn Memory, cache: &VtableCache) -> Result<Self, Failure> {
        let maps = memory.maps()?;
        let loaded = library::loaded(&maps);
        let (_, first) = loaded.first().ok_or(Failure::NotLoaded)?;
        let framework = first.framework.words();
        let mut libraries = VecDeque::new();
        for (base, library) in loaded {
            libraries.extend(VtableSearch::start(memory, &maps, base, library, cache)?);
        }
        Ok(Self {
            maps,
            libraries,
            framework,
            vtables: Vec::new(),
            scan: None,
            found: Vec::new(),
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
            self.vtables.extend(library.vtables().map(|vtable| (vtable, of)));
        }
        Ok(false)
    }

    fn scan(&mut self, memory: &dyn Memory) -> Result<bool, MemoryError> {
        let vtables = || self.vtables.iter().map(|(vtable, _)| *vtable).collect();
        let scan = self.scan.get_or_insert_with(|| ObjectScan::new(&self.maps, vtables()));
        let is_done = scan.advance(memory)?;
        for (address, vtable) in std::mem::take(&mut scan.found) {
            match recognize(memory, (address, vtable), &mut self.budget)? {
                LayoutMatch::Pool { name, layout, regions } => {
                    regions.iter().for_each(|region| scan.exclude(region.handles));
                    let library = self.vtables.iter().find(|(known, _)| *known == vtable);
                    self.found.extend(library.zip(Place::of(&name)).map(
                        |((_, library), place)| {
                            Allocator::new(name, place, (address, vtable), layout, library)
                        },
                    ));
                }
                LayoutMatch::Unknown => self.is_unknown = true,
                LayoutMatch::Empty | LayoutMatch::No => {}
            }
        }
        Ok(is_done)
    }

    /// Returns the allocators that were found, or why there are none.
    pub fn finish(self) -> Result<Vec<Allocator>, Failure> {
        if !self.found.is_empty() {
            Ok(self.found)
        } else if self.is_unknown || self.vtables.is_empty() {
            Err(Failure::UnknownBuild)
        } else {
            Err(Failure::NotInitialised(self.framework))
        }
    }
}

/// Recognizes the structure of an object. Tries again while the allocator is changing.
fn recognize(
    memory: &dyn Memory,
    (address, vtable): (u64, u64),
    budget: &mut usize,
) -> Result<LayoutMatch, MemoryError> {
    let mut found = Layout::calibrate(memory, address, vtable, budget)?;
    for _ in 1..MAX_TRIES {
        if found != LayoutMatch::Unknown {
            break;
        }
        found = Layout::calibrate(memory, address, vtable, budget)?;
    }
    Ok(found)
}

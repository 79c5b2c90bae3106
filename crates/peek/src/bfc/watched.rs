//! One process whose pools are read for each frame. The search for pools runs in the background, in small steps, and is
//! repeated because a program may create pools later.

use std::path::Path;
use std::time::Instant;

use gputop_model::{Millis, Missing, Mono, ProcessKey};

use super::allocator::{Allocator, Place};
use super::failure::Failure;
use super::is_forked_copy;
use super::pools::FoundPools;
use super::search::Search;
use super::vtable::VtableCache;
use crate::memory::MemoryError;
use crate::memory::live::Live;
use crate::process::stat::is_running;
use crate::process::statm::mapped_pages;

/// Time to the second search. The interval doubles with each search that finds nothing new.
const SEARCH_INTERVAL: Millis = Millis(2_000);
const MAX_SEARCH_INTERVAL: Millis = Millis(120_000);
const WAKE_INTERVAL: Millis = Millis(500);
const MAX_DOUBLINGS: u32 = 6;
/// Interval of the checks whether the library is loaded, after the first ones. A check only reads the mappings.
const MAX_LIBRARY_INTERVAL: Millis = Millis(30_000);
const MAX_QUICK_CHECKS: u32 = 15;

/// Conditions for one step of the searches.
pub struct SearchStep<'a> {
    pub proc_root: &'a Path,
    pub now: Mono,
    pub until: Instant,
    /// True if forked copies must be detected, because the processes are not those that the driver lists.
    pub detects_copies: bool,
}

#[derive(Debug)]
pub struct WatchedPools {
    key: ProcessKey,
    allocators: Vec<Allocator>,
    search: Option<Box<Search>>,
    next_search: Mono,
    last_search: Mono,
    /// Number of searches in a row that found nothing new.
    tries: u32,
    /// Mapped pages before the last search.
    pages: Option<u64>,
    failure: Option<Failure>,
    last_turn: Mono,
}

impl WatchedPools {
    pub fn new(key: ProcessKey) -> Self {
        Self {
            key,
            allocators: Vec::new(),
            search: None,
            next_search: Mono(0),
            last_search: Mono(0),
            tries: 0,
            pages: None,
            failure: None,
            last_turn: Mono(0),
        }
    }

    /// Returns the time at which the search has to continue.
    pub fn wake(&self) -> Mono {
        if self.search.is_some() { Mono(0) } else { self.next_search }
    }

    /// Returns the time of the last step. The process that waited longest is next.
    pub fn last_turn(&self) -> Mono {
        self.last_turn
    }

    /// Starts or continues the search, if it is due.
    pub fn advance(&mut self, step: &SearchStep<'_>, cache: &mut VtableCache) {
        self.last_turn = step.now;
        if self.wake() > step.now {
            return;
        }
        let memory = Live::new(step.proc_root, self.key.pid);
        let search = match self.search.take() {
            Some(search) => Ok(search),
            None if self.is_unchanged(step) => return,
            None => Search::start(&memory, cache).map(Box::new),
        };
        let result = search.and_then(|mut search| {
            if search.advance(&memory, cache, Some(step.until))? {
                self.check_process(step.proc_root)?;
                search.finish().map(Some)
            } else {
                self.search = Some(search);
                Ok(None)
            }
        });
        match result {
            Ok(None) => {}
            Ok(Some(found)) => self.take(found, step),
            Err(failure) => self.wait(failure, step.now),
        }
    }

    /// Returns true if no memory was mapped since the last search, so another one would find the same. Postpones the
    /// search in that case.
    fn is_unchanged(&mut self, step: &SearchStep<'_>) -> bool {
        let pages = mapped_pages(step.proc_root, self.key.pid).ok().map(|pages| pages.total);
        let is_recent = step.now.since(self.last_search) < MAX_SEARCH_INTERVAL;
        if self.tries > 0 && is_recent && pages.is_some() && pages == self.pages {
            self.next_search = due(step.now, SEARCH_INTERVAL);
            return true;
        }
        self.pages = pages;
        self.last_search = step.now;
        false
    }

    /// Rules out another process with the same PID.
    fn check_process(&self, proc_root: &Path) -> Result<(), MemoryError> {
        if is_running(proc_root, self.key) { Ok(()) } else { Err(MemoryError::Gone) }
    }

    fn take(&mut self, found: Vec<Allocator>, step: &SearchStep<'_>) {
        if step.detects_copies && is_forked_copy(step.proc_root, self.key.pid, &found) {
            self.allocators.clear();
            self.wait(Failure::Forked, step.now);
            return;
        }
        let known = |new: &Allocator| self.allocators.iter().any(|old| old.address == new.address);
        let new: Vec<Allocator> = found.into_iter().filter(|new| !known(new)).collect();
        self.tries = if new.is_empty() { self.tries.saturating_add(1) } else { 0 };
        self.allocators.extend(new);
        self.failure = None;
        self.next_search = due(step.now, search_interval(self.tries));
    }

    fn wait(&mut self, failure: Failure, now: Mono) {
        let interval = match failure {
            Failure::NotLoaded if self.tries < MAX_QUICK_CHECKS => SEARCH_INTERVAL,
            Failure::NotLoaded => MAX_LIBRARY_INTERVAL,
            _ => search_interval(self.tries),
        };
        self.tries = self.tries.saturating_add(1);
        self.next_search = due(now, interval);
        self.failure = Some(failure);
    }

    /// Reads the pools that were found so far.
    pub fn read(&mut self, proc_root: &Path, now: Mono) -> FoundPools {
        let known = self.allocators.len();
        if known == 0 {
            return FoundPools::default();
        }
        let memory = Live::new(proc_root, self.key.pid);
        let pools = FoundPools::read(self.key, &mut self.allocators, &memory);
        if self.allocators.len() < known {
            self.tries = 0;
            self.next_search = now;
        }
        self.failure = pools.as_ref().err().cloned();
        pools.unwrap_or_default()
    }

    /// Returns why no pool could be read, or `None` if the process does not use the frameworks.
    pub fn why_missing(&self) -> Option<Missing> {
        match &self.failure {
            _ if self.search.is_some() && self.allocators.is_empty() => {
                Some(Failure::Searching.missing())
            }
            Some(Failure::NotLoaded) => None,
            Some(failure) => Some(failure.missing()),
            None => {
                let is_gpu = |one: &&Allocator| one.place != Place::PinnedHost;
                let busy = self.allocators.iter().find(is_gpu).map(|_| Failure::Busy);
                let host = self.allocators.first().map(Allocator::not_initialised);
                busy.or(host).map(|failure| failure.missing())
            }
        }
    }
}

/// Returns the time after an interval, rounded down so that one wake-up of the thread serves many processes.
fn due(now: Mono, interval: Millis) -> Mono {
    let at = now.0.saturating_add(interval.0);
    Mono((at - at % WAKE_INTERVAL.0).max(now.0))
}

fn search_interval(tries: u32) -> Millis {
    Millis((SEARCH_INTERVAL.0 << tries.min(MAX_DOUBLINGS)).min(MAX_SEARCH_INTERVAL.0))
}

//! One process whose pools are read for each frame. The search for pools runs in the background, in small steps, and is
//! repeated because a program may create pools later.

use std::path::Path;
use std::time::{Duration, Instant};

use gputop_model::reported_pool::Framework;
use gputop_model::{Millis, Missing, Mono, PoolMap, ProcessKey};

use super::allocator::{Allocator, Place};
use super::failure::Failure;
use super::is_forked_copy;
use super::layout::{LayoutMatch, MAX_CALIBRATION_BYTES};
use super::other_pools::OtherPools;
use super::pools::{self, FoundPools};
use super::search::{Candidate, Found, Search};
use super::vtable::VtableCache;
use crate::memory::MemoryError;
use crate::memory::live::Live;
use crate::process::stat::is_running;
use crate::process::statm::mapped_pages;

/// Time to the second search. The interval doubles with each search that finds nothing new.
const SEARCH_INTERVAL: Millis = Millis(2_000);
const MAX_SEARCH_INTERVAL: Millis = Millis(120_000);
const WAKE_INTERVAL: Millis = Millis(500);
/// Pause after a search, as a multiple of its time: later searches take at most 0.5 % of a CPU core. The first ones follow
/// sooner, because a program creates all its pools in its first seconds.
const PAUSE_PER_SEARCH: u64 = 200;
const FIRST_PAUSE_PER_SEARCH: u64 = 10;
const FIRST_SEARCHES: u32 = 3;
/// Age from which on a process is expected to have created its pools before it was first searched.
const MIN_SETTLED_AGE: Millis = Millis(60_000);
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
    others: OtherPools,
    /// Allocators that have not reserved memory yet.
    empty: Vec<Candidate>,
    search: Option<Box<Search>>,
    next_search: Mono,
    last_search: Mono,
    /// Number of searches in a row that found nothing new.
    tries: u32,
    /// True until the first search has ended.
    is_first: bool,
    /// Mapped pages before the last search.
    pages: Option<u64>,
    failure: Option<Failure>,
    last_turn: Mono,
    /// Time that the current search has taken so far.
    spent: Duration,
}

impl WatchedPools {
    pub fn new(key: ProcessKey) -> Self {
        Self {
            key,
            allocators: Vec::new(),
            others: OtherPools::default(),
            empty: Vec::new(),
            search: None,
            next_search: Mono(0),
            last_search: Mono(0),
            tries: 0,
            is_first: true,
            pages: None,
            failure: None,
            last_turn: Mono(0),
            spent: Duration::ZERO,
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
        let start = Instant::now();
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
        self.spent += start.elapsed();
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

    fn take(&mut self, found: Found, step: &SearchStep<'_>) {
        if step.detects_copies && is_forked_copy(step.proc_root, self.key.pid, &found) {
            self.allocators.clear();
            self.others = OtherPools::default();
            self.wait(Failure::Forked, step.now);
            return;
        }
        let known = self.allocators.len() + self.others.len();
        found.allocators.into_iter().for_each(|allocator| self.add(allocator));
        self.others.add(found.others);
        self.failure = found.empty.first().map(Candidate::not_initialised);
        self.empty = found.empty;
        let is_new = self.allocators.len() + self.others.len() > known;
        let is_first = std::mem::take(&mut self.is_first);
        self.tries = match is_new {
            true if is_first => first_tries(step.now.since(self.key.start.since_boot())),
            true => 0,
            false => self.tries.saturating_add(1),
        };
        self.next_search = due(step.now, self.search_interval());
    }

    fn add(&mut self, new: Allocator) {
        if self.allocators.iter().all(|known| known.address != new.address) {
            self.allocators.push(new);
        }
    }

    fn wait(&mut self, failure: Failure, now: Mono) {
        let interval = match failure {
            Failure::NotLoaded if self.tries < MAX_QUICK_CHECKS => SEARCH_INTERVAL,
            Failure::NotLoaded => MAX_LIBRARY_INTERVAL,
            _ => self.search_interval(),
        };
        self.is_first = false;
        self.tries = self.tries.saturating_add(1);
        self.next_search = due(now, interval);
        self.failure = Some(failure);
    }

    /// Returns the time to the next search, and starts counting the time of that one.
    fn search_interval(&mut self) -> Millis {
        search_interval(self.tries, std::mem::take(&mut self.spent))
    }

    /// Adds allocators that were empty when they were found and have reserved memory since.
    fn recognize_empty(&mut self, memory: &Live) {
        let mut budget = MAX_CALIBRATION_BYTES;
        for candidate in std::mem::take(&mut self.empty) {
            match candidate.recognize(memory, &mut budget) {
                Ok(LayoutMatch::Pool { name, layout, .. }) => {
                    candidate.allocator(name, layout).into_iter().for_each(|new| self.add(new));
                }
                Ok(LayoutMatch::Empty | LayoutMatch::Unknown) => self.empty.push(candidate),
                Ok(LayoutMatch::No) | Err(_) => {}
            }
        }
    }

    /// Reads the pools that were found so far.
    pub fn read(&mut self, proc_root: &Path, now: Mono) -> FoundPools {
        if self.allocators.is_empty() && self.empty.is_empty() && self.others.is_empty() {
            return FoundPools::default();
        }
        let memory = Live::new(proc_root, self.key.pid);
        self.recognize_empty(&memory);
        let known = self.allocators.len();
        let count = known + self.others.len();
        let pools = FoundPools::read(self.key, &mut self.allocators, &memory);
        let pools = pools.and_then(|mut pools| {
            pools.add_others(self.key, &mut self.others, &memory)?;
            Ok(pools)
        });
        if self.allocators.len() + self.others.len() < count {
            self.tries = 0;
            self.next_search = now;
        }
        let empty = self.empty.first().filter(|_| known == 0).map(Candidate::not_initialised);
        self.failure = pools.as_ref().err().cloned().or(empty);
        pools.unwrap_or_default()
    }

    /// Returns true if a pool on the GPU with this ordinal was found.
    pub fn is_on(&self, ordinal: u32) -> bool {
        self.allocators.iter().any(|allocator| allocator.place == Place::Gpu(ordinal))
    }

    /// Reads the chunks of the pools on the GPU with this ordinal.
    pub fn map(&mut self, proc_root: &Path, ordinal: u32) -> Result<PoolMap, Failure> {
        let memory = Live::new(proc_root, self.key.pid);
        pools::map(self.key, ordinal, &mut self.allocators, &memory)
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
                let cupy = || Failure::NotInitialised(Framework::Cupy.words());
                let cupy = self.others.cupy.first().map(|_| cupy());
                busy.or(host).or(cupy).map(|failure| failure.missing())
            }
        }
    }
}

/// Returns the time after an interval, rounded down so that one wake-up of the thread serves many processes.
fn due(now: Mono, interval: Millis) -> Mono {
    let at = now.0.saturating_add(interval.0);
    Mono((at - at % WAKE_INTERVAL.0).max(now.0))
}

/// Returns the number of tries to continue with after a first search that found pools. The quick searches are left out for a
/// process that had time to create all of them.
fn first_tries(age: Millis) -> u32 {
    if age >= MIN_SETTLED_AGE { FIRST_SEARCHES } else { 0 }
}

/// Returns the time to the next search, after a number of searches that found nothing new. It is longer if the last one
/// was expensive, because the process has much memory.
fn search_interval(tries: u32, spent: Duration) -> Millis {
    let doubled = (SEARCH_INTERVAL.0 << tries.min(MAX_DOUBLINGS)).min(MAX_SEARCH_INTERVAL.0);
    let pause = if tries < FIRST_SEARCHES { FIRST_PAUSE_PER_SEARCH } else { PAUSE_PER_SEARCH };
    let spent = u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
    Millis(doubled.max(spent.saturating_mul(pause)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_become_rarer_and_cost_little_on_average() {
        let interval = |tries, spent| search_interval(tries, Duration::from_millis(spent)).0;
        assert_eq!([0, 1, 2, 9].map(|tries| interval(tries, 0)), [2_000, 4_000, 8_000, 120_000]);
        // A search that took 3 s is repeated after 30 s and, later, ten minutes.
        assert_eq!([0, 3].map(|tries| interval(tries, 3_000)), [30_000, 600_000]);
        // A program that already runs for a minute is searched once.
        let first_pause = |age| interval(first_tries(Millis(age)), 400);
        assert_eq!([5_000, 60_000].map(first_pause), [4_000, 80_000]);
        assert_eq!(due(Mono(1_200), Millis(2_000)), Mono(3_000));
        assert_eq!(due(Mono(1_200), Millis(0)), Mono(1_200));
    }
}

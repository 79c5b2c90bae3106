//! Schedules retries for processes without a readable allocator.
//!
//! A check for an allocator reads all mappings, which takes 1 ms for a large process. Most processes that wait for a
//! check do not use PyTorch and never will. A process that starts to use PyTorch must map the library first. A waiting
//! process is therefore checked when the size of its address space has changed since the last check, and periodically
//! in case two sizes are equal by chance. Failures that rarely go away (no permission, a different allocator) are
//! retried at increasing intervals.

use gputop_model::{Millis, Mono};

use super::Failure;
use crate::memory::MemoryError;

/// Due times are rounded to a multiple of this interval, so that one wake-up of the sampler thread serves many waiting
/// processes.
const WAKE_INTERVAL: Millis = Millis(500);
/// Retry interval for a temporary failure, such as a program that has not initialized CUDA yet.
const RETRY_INTERVAL: Millis = Millis(2_000);
const MAX_RETRY_INTERVAL: Millis = Millis(30_000);
/// Number of checks after which a temporary failure is retried at the maximum interval.
const MAX_QUICK_TRIES: u32 = 15;

pub struct WaitingProcess {
    pub failure: Failure,
    next_check: Mono,
    /// Number of failed checks before the last one.
    tries: u32,
    checked: Mono,
    /// Number of mapped pages just before the last check.
    pages: Option<u64>,
}

impl WaitingProcess {
    /// Schedules the next check of a process after a failure. No failure is permanent: during an `exec`, a process
    /// briefly has no memory and looks as if it had exited.
    pub fn new(failure: Failure, before: Option<&Self>, pages: Option<u64>, now: Mono) -> Self {
        let tries = before.map_or(0, |before| before.tries + 1);
        Self {
            next_check: due(now, retry_interval(&failure, tries)),
            failure,
            tries,
            checked: now,
            pages,
        }
    }

    pub fn next_check(&self) -> Mono {
        self.next_check
    }

    /// Returns true if a check would probably fail as before, because the number of mapped pages is unchanged.
    pub fn is_unchanged(&self, pages: Option<u64>, now: Mono) -> bool {
        self.failure == Failure::NotTorch
            && self.pages.is_some()
            && self.pages == pages
            && now.since(self.checked) < MAX_RETRY_INTERVAL
    }

    pub fn postpone(&mut self, now: Mono) {
        self.next_check = due(now, RETRY_INTERVAL);
    }
}

/// Returns the time at which a check is due, rounded down to a multiple of the wake interval.
fn due(now: Mono, retry_interval: Millis) -> Mono {
    let at = now.0 + retry_interval.0;
    Mono((at - at % WAKE_INTERVAL.0).max(now.0))
}

fn retry_interval(failure: &Failure, tries: u32) -> Millis {
    match failure {
        // Check immediately, because the new program may already have an allocator.
        Failure::Changed => Millis(0),
        Failure::CachingOff
        | Failure::CudaMallocAsync
        | Failure::Pluggable
        | Failure::OtherBackend(_)
        | Failure::Memory(MemoryError::Denied(_) | MemoryError::Refused(_)) => {
            Millis((RETRY_INTERVAL.0 << tries.min(8)).min(MAX_RETRY_INTERVAL.0))
        }
        _ if tries < MAX_QUICK_TRIES => RETRY_INTERVAL,
        _ => MAX_RETRY_INTERVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(failure: &Failure, times: u32) -> Vec<u64> {
        let mut now = Mono(1_200);
        let mut waiting: Option<WaitingProcess> = None;
        let pauses = (0..times).map(|_| {
            let next = WaitingProcess::new(failure.clone(), waiting.as_ref(), None, now);
            let retry_interval = next.next_check().since(now).0;
            now = next.next_check();
            waiting = Some(next);
            retry_interval
        });
        pauses.collect()
    }

    #[test]
    fn retries_temporary_failures_soon_and_others_at_increasing_intervals() {
        let temporary = fail(&Failure::NotInitialised, 17);
        assert_eq!(temporary[0], 1_800);
        assert!(temporary[1..15].iter().all(|&retry_interval| retry_interval == 2_000));
        assert_eq!(temporary[15..], [30_000, 30_000]);
        let denied = Failure::Memory(MemoryError::Denied("no".into()));
        assert_eq!(fail(&denied, 6)[1..], [4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!(fail(&Failure::Changed, 2), [0, 0]);
    }

    #[test]
    fn skips_checks_for_30_seconds_while_no_memory_is_mapped() {
        let waiting = |failure, pages| WaitingProcess::new(failure, None, pages, Mono(0));
        let unchanged = waiting(Failure::NotTorch, Some(7));
        assert!(unchanged.is_unchanged(Some(7), Mono(29_999)));
        assert!(!unchanged.is_unchanged(Some(8), Mono(2_000)));
        assert!(!unchanged.is_unchanged(Some(7), Mono(30_000)));
        // A check is not skipped if the size is unknown, or if libc10_cuda is already loaded, because CUDA can be
        // initialized without mapping more memory.
        assert!(!waiting(Failure::NotTorch, None).is_unchanged(None, Mono(2_000)));
        assert!(!waiting(Failure::NotInitialised, Some(7)).is_unchanged(Some(7), Mono(2_000)));
    }
}

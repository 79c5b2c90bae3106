//! A process in which nothing could be read, until it is looked at again.
//!
//! A look reads all mappings: a millisecond of a large process. Most processes that wait are no PyTorch and never
//! will be, and what could make them one is a library that is mapped. So such a process is only looked at when the
//! size of its address space is another than at the last look, and once in a while in case that two sizes are equal
//! by chance. What a process will hardly get over (no permission, another allocator) is looked at ever more seldom.

use super::Failure;
use crate::collect::memory::MemoryError;
use crate::model::units::{Millis, Mono};

/// Due times are multiples of this, so that many waiting processes wake the thread together.
const STEP: Millis = Millis(500);
/// How soon after a failure that may pass at any moment: PyTorch whose CUDA is not initialised yet.
const RETRY: Millis = Millis(2_000);
const RETRY_LATER: Millis = Millis(30_000);
/// After so many looks no failure is expected to pass soon.
const EAGER_TRIES: u32 = 15;

pub struct Waiting {
    pub failure: Failure,
    again: Mono,
    /// Looks that failed before the last.
    tries: u32,
    looked: Mono,
    /// Pages that were mapped just before the last look.
    pages: Option<u64>,
}

impl Waiting {
    /// No failure is for ever: a process whose thread calls `exec` has no memory for a moment and looks as if it had
    /// ended.
    pub fn new(failure: Failure, before: Option<&Self>, pages: Option<u64>, now: Mono) -> Self {
        let tries = before.map_or(0, |before| before.tries + 1);
        Self {
            again: due(now, pause(&failure, tries)),
            failure,
            tries,
            looked: now,
            pages,
        }
    }

    pub fn again(&self) -> Mono {
        self.again
    }

    /// Whether a look would find what the last one found, by what is mapped now.
    pub fn is_unchanged(&self, pages: Option<u64>, now: Mono) -> bool {
        self.failure == Failure::NotTorch
            && self.pages.is_some()
            && self.pages == pages
            && now.since(self.looked) < RETRY_LATER
    }

    pub fn postpone(&mut self, now: Mono) {
        self.again = due(now, RETRY);
    }
}

/// Rather a little early than late.
fn due(now: Mono, pause: Millis) -> Mono {
    let at = now.0 + pause.0;
    Mono((at - at % STEP.0).max(now.0))
}

fn pause(failure: &Failure, tries: u32) -> Millis {
    match failure {
        // What runs there now may have its allocator already.
        Failure::Changed => Millis(0),
        Failure::CachingOff
        | Failure::CudaMallocAsync
        | Failure::Pluggable
        | Failure::OtherBackend(_)
        | Failure::Memory(MemoryError::Denied(_) | MemoryError::Refused(_)) => {
            Millis((RETRY.0 << tries.min(8)).min(RETRY_LATER.0))
        }
        _ if tries < EAGER_TRIES => RETRY,
        _ => RETRY_LATER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(failure: &Failure, times: u32) -> Vec<u64> {
        let mut now = Mono(1_200);
        let mut waiting: Option<Waiting> = None;
        let pauses = (0..times).map(|_| {
            let next = Waiting::new(failure.clone(), waiting.as_ref(), None, now);
            let pause = next.again().since(now).0;
            now = next.again();
            waiting = Some(next);
            pause
        });
        pauses.collect()
    }

    #[test]
    fn what_may_pass_is_looked_at_soon_and_what_will_not_ever_more_seldom() {
        let eager = fail(&Failure::NotInitialised, 17);
        assert_eq!(eager[0], 1_800);
        assert!(eager[1..15].iter().all(|&pause| pause == 2_000));
        assert_eq!(eager[15..], [30_000, 30_000]);
        let denied = Failure::Memory(MemoryError::Denied("no".into()));
        assert_eq!(
            fail(&denied, 6)[1..],
            [4_000, 8_000, 16_000, 30_000, 30_000]
        );
        assert_eq!(fail(&Failure::Changed, 2), [0, 0]);
    }

    #[test]
    fn a_program_that_maps_nothing_new_is_not_looked_at_for_half_a_minute() {
        let waiting = |failure, pages| Waiting::new(failure, None, pages, Mono(0));
        let still = waiting(Failure::NotTorch, Some(7));
        assert!(still.is_unchanged(Some(7), Mono(29_999)));
        assert!(!still.is_unchanged(Some(8), Mono(2_000)));
        assert!(!still.is_unchanged(Some(7), Mono(30_000)));
        // What is unknown is not unchanged, and libc10_cuda comes to life without mapping anything.
        assert!(!waiting(Failure::NotTorch, None).is_unchanged(None, Mono(2_000)));
        assert!(!waiting(Failure::NotInitialised, Some(7)).is_unchanged(Some(7), Mono(2_000)));
    }
}

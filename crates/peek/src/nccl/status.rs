//! `c10d::ProcessGroupStatus` of torch 2.4 and later: the newest works that were enqueued and completed.
//!
//! ```text
//! 0  number enqueued, started, completed     -1: none yet. `started` needs TORCH_NCCL_ENABLE_TIMING.
//! 24 name enqueued, started, completed       std::string
//! …  elements in and out, enqueued; then in and out, completed
//! ```

use gputop_model::process_group::Work;

use super::copies::{Copies, Parsed, Stop};
use super::strings::StringLayout;
use super::works::is_operation;
use crate::memory::view::View;

/// Maximum number of operations of a group.
pub const MAX_SEQ: i64 = 1 << 40;
const NAMES: usize = 24;
const REFUSED: Stop = Stop::Refused("the process group has impossible numbers of works");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusPlace {
    pub address: u64,
    pub strings: StringLayout,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub enqueued: Option<Work>,
    pub completed: Option<Work>,
}

impl StatusPlace {
    pub fn len(self) -> usize {
        NAMES + 3 * self.strings.size() + 4 * 8
    }

    pub fn read(self, copies: &Copies) -> Parsed<Status> {
        let view = copies.get(self.address, self.len())?;
        let names = [0, 1, 2].map(|index| self.name(copies, view, index));
        let [enqueued, started, completed] = names;
        // Nothing else depends on the started work, which few programs record.
        self.work(view, 8, 0, started?)?;
        Ok(Status {
            enqueued: self.work(view, 0, 0, enqueued?)?,
            completed: self.work(view, 16, 2, completed?)?,
        })
    }

    fn name(self, copies: &Copies, view: View<'_>, index: usize) -> Parsed<String> {
        self.strings.read(copies, view, self.address, NAMES + index * self.strings.size())
    }

    /// Returns the work whose number is at `offset`, and its elements at the given index.
    fn work(
        self,
        view: View<'_>,
        offset: usize,
        elements: usize,
        operation: String,
    ) -> Parsed<Option<Work>> {
        if !is_operation(&operation) {
            return Err(Stop::Refused(
                "the process group has an operation with an impossible name",
            ));
        }
        let seq = view.signed(offset).filter(|seq| (-1..=MAX_SEQ).contains(seq)).ok_or(REFUSED)?;
        // The number is -1 or 0 before the first work. Up to torch 2.5, a point-to-point operation before the first
        // collective also has 0.
        let seq = u64::try_from(seq).ok().filter(|seq| *seq > 0 || !operation.is_empty());
        let at = NAMES + 3 * self.strings.size() + elements * 8;
        let elements = view.word(at).zip(view.word(at + 8));
        Ok(seq.map(|seq| Work { seq, operation, elements, dtype: None }))
    }
}

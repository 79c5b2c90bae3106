//! The stacks of a snapshot. Many events share a stack, and many stacks share frames.

use gputop_model::stack::StackFrame;

use super::record::StackId;

/// Maximum number of user-code frames in a one-line description.
const MAX_NAMED: usize = 8;

#[derive(Debug, Default)]
pub struct Stacks {
    /// Distinct frames. Their text is escaped for display and limited in length.
    pub(super) frames: Vec<StackFrame>,
    /// Frame indices of each stack, innermost first.
    pub(super) stacks: Vec<Box<[u32]>>,
}

impl Stacks {
    /// Returns the frames of a stack, innermost first. Empty if no stack was recorded.
    pub fn frames(&self, stack: StackId) -> impl DoubleEndedIterator<Item = &StackFrame> {
        let frames = self.stacks.get(stack as usize);
        let frames = frames.map_or(&[][..], |frames| frames).iter();
        frames.filter_map(|&frame| self.frames.get(frame as usize))
    }

    /// Returns the frames of a stack: user-code frames first, then all others, each group innermost first.
    pub fn users_first(&self, stack: StackId) -> Vec<&StackFrame> {
        let (mut users, others): (Vec<_>, Vec<_>) =
            self.frames(stack).partition(|frame| frame.is_users());
        users.extend(others);
        users
    }

    /// Returns the most informative frame, which is the innermost one in user code. A stack without user code yields
    /// its innermost Python frame, and a stack without Python frames its innermost frame.
    pub fn place(&self, stack: StackId) -> Option<&StackFrame> {
        let frames = || self.frames(stack);
        let users = frames().find(|frame| frame.is_users());
        let python = || frames().find(|frame| frame.file.ends_with(".py"));
        users.or_else(python).or_else(|| frames().next())
    }

    /// Returns the user-code frames, innermost first: `model.py:41 attention < train.py:57 step`. If there are none,
    /// returns the most informative frame. If no stack was recorded, returns an empty string.
    pub fn words(&self, stack: StackId) -> String {
        let users = self.frames(stack).filter(|frame| frame.is_users());
        let users: Vec<String> = users.take(MAX_NAMED).map(ToString::to_string).collect();
        if users.is_empty() {
            return self.place(stack).map_or_else(String::new, ToString::to_string);
        }
        users.join(" < ")
    }

    /// Returns the number of stacks, excluding the empty one.
    pub fn count(&self) -> usize {
        self.stacks.len().saturating_sub(1)
    }
}

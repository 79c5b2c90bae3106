//! The stacks of a snapshot. Many events share one, and many stacks share frames.

use super::record::StackId;
use crate::model::stack::StackFrame;

/// Frames of one's own that are named in a line.
const MAX_NAMED: usize = 8;

#[derive(Debug, Default)]
pub struct Stacks {
    /// Text in them is harmless and bounded.
    pub(super) frames: Vec<StackFrame>,
    /// The innermost first.
    pub(super) stacks: Vec<Box<[u32]>>,
}

impl Stacks {
    /// The innermost first; nothing where no stack was recorded.
    pub fn frames(&self, stack: StackId) -> impl DoubleEndedIterator<Item = &StackFrame> {
        let frames = self.stacks.get(stack as usize);
        let frames = frames.map_or(&[][..], |frames| frames).iter();
        frames.filter_map(|&frame| self.frames.get(frame as usize))
    }

    /// The user's own frames first, then all others; the innermost first in both.
    pub fn users_first(&self, stack: StackId) -> Vec<&StackFrame> {
        let (mut users, others): (Vec<_>, Vec<_>) =
            self.frames(stack).partition(|frame| frame.is_users());
        users.extend(others);
        users
    }

    /// The frame that tells most: the innermost of the user's own, else the innermost that is Python's, else the
    /// innermost of all.
    pub fn place(&self, stack: StackId) -> Option<&StackFrame> {
        let frames = || self.frames(stack);
        let users = frames().find(|frame| frame.is_users());
        let python = || frames().find(|frame| frame.file.ends_with(".py"));
        users.or_else(python).or_else(|| frames().next())
    }

    /// `model.py:41 attention < train.py:57 step`: the user's own frames, the innermost first, else the frame that tells
    /// most; nothing where no stack was recorded.
    pub fn words(&self, stack: StackId) -> String {
        let users = self.frames(stack).filter(|frame| frame.is_users());
        let users: Vec<String> = users.take(MAX_NAMED).map(ToString::to_string).collect();
        if users.is_empty() {
            return self
                .place(stack)
                .map_or_else(String::new, ToString::to_string);
        }
        users.join(" < ")
    }

    /// How many there are, beside that of no frames.
    pub fn count(&self) -> usize {
        self.stacks.len().saturating_sub(1)
    }
}

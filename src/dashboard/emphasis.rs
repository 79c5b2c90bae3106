//! How much a text stands out, and why. Screens choose a style for each emphasis; plain text ignores it.

use gputop_model::incident::Severity;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emphasis {
    Normal,
    /// Secondary or outdated text.
    Dim,
    /// The name of a row or a group, and its sums.
    Title,
    /// A mark for something new.
    Mark,
    /// A good state that is shown explicitly.
    Good,
    /// A warning, for example about an unusually high value.
    Warn,
    /// An error that needs attention.
    Bad,
}

impl Emphasis {
    /// Returns the emphasis of an incident's text.
    #[must_use]
    pub fn of_severity(severity: Severity) -> Self {
        match severity {
            Severity::Fatal | Severity::Unknown => Self::Bad,
            Severity::Caught => Self::Warn,
            Severity::Note => Self::Normal,
        }
    }
}

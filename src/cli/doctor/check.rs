//! One check of the report, with its fixes.

use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub(super) struct Check {
    /// Name of the capability as a noun phrase: `NVIDIA driver`.
    pub(super) name: &'static str,
    pub(super) works: bool,
    /// Details of the check's result, as a phrase or a sentence.
    pub(super) found: String,
    /// Commands or advice that fix the problem, best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) fix: Vec<String>,
}

impl Check {
    /// Creates a check with one fix, or none if `fix` is empty.
    pub(super) fn new(
        name: &'static str,
        works: bool,
        found: impl Into<String>,
        fix: &str,
    ) -> Self {
        Self {
            name,
            works,
            found: found.into(),
            fix: if fix.is_empty() { Vec::new() } else { vec![fix.to_owned()] },
        }
    }
}

pub(super) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

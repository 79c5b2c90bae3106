//! The filter of the process table: free text and terms such as `user:me vram>10g -state:dead`.
//!
//! `parse` converts text to filter terms without access to processes. `fields` evaluates the terms. This module
//! combines the two.

mod fields;
mod parse;

use std::fmt;

pub use self::fields::{FIELDS, STATES};
pub use self::parse::FilterError;

use self::fields::accepts;
use self::parse::{Term, Test};
use super::rows::ProcessRow;

/// Filter syntax for the help: examples with their descriptions.
pub const SYNTAX: &[(&str, &str)] = &[
    (
        "train",
        "Part of the PID, user, command, job, container or exit cause, or exactly gpu0 or rank3; quote text that contains spaces.",
    ),
    (
        "user:me sm>50",
        "Terms are combined with AND. Size units: k, m, g (default), t; time units: s, m, h, d.",
    ),
    ("gpu:0,2", "Processes that match any of the values."),
    ("-user:ana !eval", "Processes that do not match the term."),
];

/// A parsed, valid filter.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    text: String,
    terms: Vec<Term>,
}

impl Filter {
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let text = text.to_lowercase();
        Ok(Self { terms: parse::parse(&text)?, text })
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Removes free text that has become the field name of an incomplete term. After `vram>` is typed, `vram` must no
    /// longer match as text.
    pub fn without(mut self, error: &FilterError) -> Self {
        let is_prefix =
            |term: &Term| matches!(&term.test, Test::Text(text) if Some(&**text) == error.name());
        self.terms.retain(|term| !is_prefix(term));
        self
    }

    /// Returns true if a row matches all terms. `me` is the user ID for `user:me`.
    pub fn matches(&self, row: &ProcessRow, me: Option<u32>) -> bool {
        self.terms.iter().all(|term| {
            let matches = match &term.test {
                Test::Text(text) => row.matches(text),
                Test::Field(field, compare) => accepts(field, compare, row, me),
            };
            matches != term.negated
        })
    }
}

/// Formats the filter as typed, but in lower case.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim())
    }
}

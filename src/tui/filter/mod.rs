//! The filter of the process table: free text and terms such as `user:me vram>10g -state:dead`.
//!
//! `parse` turns text into terms and knows no process; `fields` says what a term looks at; here both are held
//! together with the text they came from.

mod fields;
mod parse;

use std::fmt;

pub use self::fields::{FIELDS, STATES};
pub use self::parse::FilterError;

use self::fields::accepts;
use self::parse::{Term, Test};
use super::rows::ProcessRow;

/// How terms are written, for the help: what is typed, and what it does.
pub const SYNTAX: &[(&str, &str)] = &[
    (
        "train",
        "Text: in the PID, user, command, job or container, or a whole gpu0 or rank3; quotes hold blanks together.",
    ),
    (
        "user:me sm>50",
        "Several terms: all of them hold. Sizes end in k, m, g or t, without are GiB; times in s, m, h or d.",
    ),
    ("gpu:0,2", "Either value."),
    ("-user:ana !eval", "Only what the term does not hold for."),
];

/// A filter that was understood.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    text: String,
    terms: Vec<Term>,
}

impl Filter {
    /// # Errors
    /// With the first term that is wrong.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let text = text.to_lowercase();
        Ok(Self {
            terms: parse::parse(&text)?,
            text,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Leaves out the free text that a wrong term was one letter before: nobody looked for `vram` who typed `vram>`.
    pub fn without(mut self, wrong: &FilterError) -> Self {
        let was =
            |term: &Term| matches!(&term.test, Test::Text(text) if Some(&**text) == wrong.name());
        self.terms.retain(|term| !was(term));
        self
    }

    /// True when every term holds for the row; `me` is the user id that the word stands for.
    pub fn matches(&self, row: &ProcessRow, me: Option<u32>) -> bool {
        self.terms.iter().all(|term| {
            let holds = match &term.test {
                Test::Text(text) => row.matches(text),
                Test::Field(field, compare) => accepts(field, compare, row, me),
            };
            holds != term.negated
        })
    }
}

/// As it was typed, in small letters.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim())
    }
}

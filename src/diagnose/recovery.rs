//! Survives a defect in the diagnosis: a panic while a log is judged becomes a sentence, and the program goes on.
//!
//! A log is written by anybody, and explaining it must never cost the user more than the explanation. Panics of the
//! diagnosis are caught here and nowhere else; callers pass the sentences of [`take_failures`] on to the user. Panic
//! hooks ask [`is_recovered`] first, so that such a panic neither restores the terminal nor prints a report.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

use crate::model::text::visible;

/// Different reasons retained until someone asks for them.
const MAX_FAILURES: usize = 16;
const MAX_REASON_CHARS: usize = 200;

thread_local! {
    /// How many calls of [`recover`] are running on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Where the panic that is being caught happened.
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
    static FAILURES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work`. Returns `None` if it panicked; [`take_failures`] then has the reason. What `work` changed before it
/// panicked stays changed.
pub fn recover<T>(work: impl FnOnce() -> T) -> Option<T> {
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    match result {
        Ok(value) => Some(value),
        Err(payload) => {
            let location = LOCATION.take();
            add_failures([sentence(&*payload, location.as_deref())]);
            None
        }
    }
}

/// Returns true if the panic will be caught by [`recover`], and remembers where it happened. For panic hooks.
pub fn is_recovered(panic: &PanicHookInfo<'_>) -> bool {
    let is_recovered = DEPTH.get() > 0;
    if is_recovered {
        LOCATION.set(panic.location().map(ToString::to_string));
    }
    is_recovered
}

/// Returns what was caught on this thread since the last call, a sentence for each different reason.
pub fn take_failures() -> Vec<String> {
    FAILURES.take()
}

/// Adds what was caught on another thread.
pub fn add_failures(failures: impl IntoIterator<Item = String>) {
    FAILURES.with_borrow_mut(|known| {
        for failure in failures {
            if known.len() < MAX_FAILURES && !known.contains(&failure) {
                known.push(failure);
            }
        }
    });
}

/// Returns "diagnosis restarted: " with the reason. The standard library quotes the text that it could not slice
/// between backticks: that is the user's log, and may hold secrets.
fn sentence(payload: &(dyn Any + Send), location: Option<&str>) -> String {
    let said = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic");
    let said = said.split('`').next().unwrap_or_default();
    let said = said.trim_end().trim_end_matches(" of");
    let said = visible(said.as_bytes(), MAX_REASON_CHARS);
    match location {
        Some(location) => format!("diagnosis restarted: {said} ({location})"),
        None => format!("diagnosis restarted: {said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_becomes_a_sentence_without_the_log() {
        let text = "Xid é, token=secret".to_owned();
        assert_eq!(recover(|| text.len()), Some(20));
        assert_eq!(recover(|| text[..5].len()), None);
        let failures = take_failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("diagnosis restarted: "));
        assert!(failures[0].contains("not a char boundary"), "{failures:?}");
        assert!(!failures[0].contains("secret"), "{failures:?}");
        assert!(take_failures().is_empty());
    }

    #[test]
    fn the_same_reason_is_told_once_and_the_number_of_reasons_is_limited() {
        for n in 0..100 {
            recover(|| panic!("reason {}", n / 2));
        }
        assert_eq!(take_failures().len(), MAX_FAILURES);
    }
}

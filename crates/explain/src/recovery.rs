//! Recovers from bugs in the diagnosis: a panic during log analysis becomes an error message, and the program
//! continues.
//!
//! Logs are untrusted input, and a bug in the diagnosis must not terminate the program. Only this module catches panics
//! in the diagnosis. Callers show the messages of [`take_failures`] to the user. Panic hooks call [`is_recovered`]
//! first, so that a caught panic neither restores the terminal nor prints a report.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

use gputop_model::text::visible;

/// Maximum number of failure messages to store until [`take_failures`] is called.
const MAX_FAILURES: usize = 16;
const MAX_REASON_CHARS: usize = 200;

thread_local! {
    /// Number of active calls to [`recover`] on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Source location of the panic that is being caught.
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
    static FAILURES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work`. If it panics, returns `None` and stores the reason for [`take_failures`]. Changes that `work` made
/// before the panic are not undone.
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

/// Returns true if [`recover`] will catch the panic, and stores the panic's location. For panic hooks.
pub fn is_recovered(panic: &PanicHookInfo<'_>) -> bool {
    let is_recovered = DEPTH.get() > 0;
    if is_recovered {
        LOCATION.set(panic.location().map(ToString::to_string));
    }
    is_recovered
}

/// Returns one sentence for each distinct panic caught since the last call on this thread.
pub fn take_failures() -> Vec<String> {
    FAILURES.take()
}

/// Adds messages about panics caught on this thread or another one. Only the first message for each code location is
/// stored.
pub(crate) fn add_failures(failures: impl IntoIterator<Item = String>) {
    FAILURES.with_borrow_mut(|known| {
        for failure in failures {
            let is_known = |other: &String| match (location_of(other), location_of(&failure)) {
                (Some(one), Some(other)) => one == other,
                _ => *other == failure,
            };
            if known.len() < MAX_FAILURES && !known.iter().any(is_known) {
                known.push(failure);
            }
        }
    });
}

/// Returns the code location at the end of a failure message from [`sentence`]: `src/diagnose/log.rs:53:10`.
fn location_of(sentence: &str) -> Option<&str> {
    let (_, location) = sentence.strip_suffix(')')?.rsplit_once(" (src/")?;
    Some(location)
}

/// Returns "diagnosis restarted: " with the reason for a panic. Truncates the reason at the first backtick: if slicing
/// a string caused the panic, the message quotes that string, which may contain secrets from the user's log.
fn sentence(payload: &(dyn Any + Send), location: Option<&str>) -> String {
    let reason = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic");
    let reason = reason.split('`').next().unwrap_or_default().trim_end().trim_end_matches(" of");
    let reason = visible(reason.as_bytes(), MAX_REASON_CHARS);
    match location {
        Some(location) => format!("diagnosis restarted: {reason} ({location})"),
        None => format!("diagnosis restarted: {reason}"),
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
    fn stores_each_reason_once_and_limits_their_number() {
        add_failures((0..100).map(|n| format!("reason {}", n / 2)));
        assert_eq!(take_failures().len(), MAX_FAILURES);
    }

    #[test]
    fn stores_one_reason_per_location() {
        add_failures((0..9).map(|n| format!("byte {n} (src/a.rs:{}:1)", n / 5)));
        assert_eq!(take_failures().len(), 2);
    }
}

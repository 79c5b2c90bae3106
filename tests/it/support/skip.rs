//! Tests that cannot run everywhere.

use std::io::{self, Write};
use std::thread;

/// Returns `is_possible`. If it is false because of the machine, says that a test or a part of it is skipped.
pub fn possible(is_possible: bool, why_not: &str) -> bool {
    if !is_possible {
        let thread = thread::current();
        let test = thread.name().unwrap_or("a test");
        // Not with a macro, because the output of tests that pass is not shown.
        let _ = writeln!(io::stderr(), "{test}: skipped, at least in part: {why_not}");
    }
    is_possible
}

/// Returns `is_here`. If it is false, the test is skipped, or fails if nothing may be skipped.
pub fn available(is_here: bool, why_not: &str) -> bool {
    let may_miss = std::env::var_os("GPUTOP_TEST_REQUIRE").is_none();
    assert!(is_here || may_miss, "{why_not}, and nothing may be skipped");
    possible(is_here, why_not)
}

//! A network that a test may cut.

use std::process::Command;

use crate::namespace;

/// Whether this process has a network of its own; else the test of this name is run again in one.
pub fn is_own(test: &str) -> bool {
    let up = ["ip", "link", "set", "lo", "up"];
    let is_own = namespace::is_own("-n", &up, test);
    if is_own {
        mend();
    }
    is_own
}

/// From now on no packet arrives.
pub fn cut() {
    set("down");
}

pub fn mend() {
    set("up");
}

fn set(state: &str) {
    let mut ip = Command::new("ip");
    let status = ip.args(["link", "set", "lo", state]).status().unwrap();
    assert!(status.success());
}

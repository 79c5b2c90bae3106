//! A network that a test can cut.

use std::process::Command;

use super::namespace;

/// Returns true if this process has its own network. Otherwise runs the test of this name again in one.
pub fn is_own(test: &str) -> bool {
    let up = ["ip", "link", "set", "lo", "up"];
    let is_own = namespace::is_own("-n", &up, test);
    if is_own {
        mend();
    }
    is_own
}

/// Drops every packet from now on.
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

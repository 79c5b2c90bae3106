//! A network that a test may cut: a namespace of its own, in which it runs again.
#![allow(clippy::print_stdout)]

use std::process::Command;

/// Says that this process is the one in there.
const OWN: &str = "GPUTOP_TEST_NETWORK";

/// Whether this process has a network of its own. Else runs the test of this name again in one, and fails if that does;
/// who may make none does without.
pub fn is_own(test: &str) -> bool {
    if std::env::var_os(OWN).is_some() {
        mend();
        return true;
    }
    let up = ["-n", "ip", "link", "set", "lo", "up"];
    let can = Command::new("unshare").args(up).output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("skipped: no network namespace can be made here; root may");
        return false;
    }
    let mut again = Command::new("unshare");
    again.arg("-n").arg(std::env::current_exe().unwrap());
    again.args([test, "--exact", "--nocapture"]).env(OWN, "1");
    let output = again.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "there is no test {test}");
    false
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

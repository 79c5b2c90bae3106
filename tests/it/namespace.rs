//! What only some may have, and a test may ruin: a network or mounts of its own, in which it runs again.
#![allow(clippy::print_stdout)]

use std::process::Command;

/// Says that this process is the one in there.
const OWN: &str = "GPUTOP_TEST_NAMESPACE";

/// Whether this process has what `flag` of unshare stands for. Else runs the test of this name again so, and fails if that
/// does; where `probe` cannot be run so, it is done without.
pub fn is_own(flag: &str, probe: &[&str], test: &str) -> bool {
    if std::env::var_os(OWN).is_some() {
        return true;
    }
    let can = Command::new("unshare").arg(flag).args(probe).output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("skipped: `unshare {flag}` cannot be run here; root may");
        return false;
    }
    let mut again = Command::new("unshare");
    again.arg(flag).arg(std::env::current_exe().unwrap());
    again.args([test, "--exact", "--nocapture"]).env(OWN, "1");
    let output = again.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "there is no test {test}");
    false
}

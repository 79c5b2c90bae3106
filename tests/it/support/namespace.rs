//! Runs a test again in its own network or mount namespace, which the test may break. Not every user may create one.

use std::process::Command;

use super::skip::possible;

/// Set for the process inside the namespace.
const IN_NAMESPACE_VARIABLE: &str = "GPUTOP_TEST_NAMESPACE";

/// Returns true inside a namespace created by `unshare` with `flag`. Otherwise runs the test `test` again in one, and
/// fails if it fails there. The test is skipped if `probe` cannot run that way.
pub fn is_own(flag: &str, probe: &[&str], test: &str) -> bool {
    if std::env::var_os(IN_NAMESPACE_VARIABLE).is_some() {
        return true;
    }
    let can = Command::new("unshare").arg(flag).args(probe).output();
    let can = can.is_ok_and(|output| output.status.success());
    if !possible(can, &format!("`unshare {flag}` cannot be run here; root may")) {
        return false;
    }
    let mut again = Command::new("unshare");
    again.arg(flag).arg(std::env::current_exe().unwrap());
    again.args([test, "--exact", "--nocapture"]).env(IN_NAMESPACE_VARIABLE, "1");
    let output = again.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "there is no test {test}");
    false
}

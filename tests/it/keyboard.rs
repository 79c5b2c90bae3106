//! Hurried or incomplete terminal input: Ctrl-C ends the dashboard whatever came before it.

use std::time::{Duration, Instant};

use crate::support::fake_machine::dashboard;
use crate::support::fake_nvml::FakeNvml;

const CTRL_C: &str = "\x03";
/// Generous for a debug build on a busy machine. Earlier versions first handled every key of the paste.
const MAX_DELAY: Duration = Duration::from_secs(2);

#[test]
fn ctrl_c_ends_the_dashboard_after_any_unfinished_sequence() {
    let fake = FakeNvml::h200s(1, "");
    for before in [
        "\x1b",
        "\x1b[",
        "\x1b[200~a paste without an end",
        "\x1b[<0;1",
        "\x1b[M",
        "?\x1b[<0;",
        "/\x1b[200~",
    ] {
        let terminal = dashboard(&fake).start();
        terminal.wait_text("1xH200");
        // One write, so that gputop gets it in one read.
        terminal.send(&format!("{before}{CTRL_C}"));
        let status = terminal.wait_exit();
        assert_eq!(status.exit_code(), 0, "{before:?}");
        terminal.assert_restored();
    }
}

#[test]
fn a_long_paste_into_the_filter_is_cut_and_delays_nothing() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_text("1xH200");
    terminal.send("/");
    terminal.send(&"x".repeat(200_000));
    let pasted = Instant::now();
    terminal.send(CTRL_C);
    terminal.wait_exit();
    assert!(pasted.elapsed() < MAX_DELAY, "{:?}", pasted.elapsed());
    terminal.assert_restored();
}

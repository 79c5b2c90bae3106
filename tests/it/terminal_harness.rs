//! Tests the test terminal itself, with programs that every machine has.

use nix::sys::signal::Signal;

use crate::support::terminal::Launch;

#[test]
fn output_and_exit_are_seen() {
    let terminal = Launch::shell("printf 'hello\\n'; exit 3").start();
    terminal.wait_text("hello");
    assert_eq!(terminal.wait_exit().exit_code(), 3);
    assert_eq!(terminal.raw(), b"hello\r\n");
    assert_eq!(terminal.bytes_written(), 7);
    terminal.assert_restored();
}

#[test]
fn what_is_typed_arrives() {
    let terminal = Launch::program("cat").start();
    terminal.send("to the cat\n");
    // Echoed once by the kernel and once by cat.
    terminal.wait_text("to the cat\nto the cat");
    terminal.send("\x04");
    assert!(terminal.wait_exit().success());
}

#[test]
fn the_size_is_known_and_changes() {
    let script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.01; done";
    let terminal = Launch::shell(script).size(11, 55).start();
    terminal.wait_text("11 55");
    terminal.resize(12, 66);
    terminal.wait_text("12 66");
    assert_eq!(terminal.screen().size(), (12.try_into().unwrap(), 66.try_into().unwrap()));
}

#[test]
fn a_signal_arrives() {
    let script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.01; done";
    let terminal = Launch::shell(script).start();
    terminal.wait_text("ready");
    terminal.signal(Signal::SIGTERM);
    assert_eq!(terminal.wait_exit().exit_code(), 9);
    assert!(terminal.text().contains("caught"));
}

#[test]
fn death_by_signal_is_told_from_an_exit() {
    let terminal = Launch::program("cat").start();
    terminal.send("x\n");
    terminal.wait_text("x");
    terminal.signal(Signal::SIGKILL);
    assert!(terminal.wait_exit().signal().is_some());
}

#[test]
fn environment_and_home_are_its_own() {
    let terminal = Launch::shell("echo $TERM $LANG $ANSWER; ls -A $HOME; echo done")
        .env("ANSWER", "42")
        .start();
    terminal.wait_text("xterm-256color C.UTF-8 42\ndone");
}

#[test]
fn a_screen_left_in_disorder_is_noticed() {
    let raw = "stty raw -echo; printf '\\033[?1049h\\033[?25l\\033[?1000h'";
    let back = "stty sane; printf '\\033[?1000l\\033[?25h\\033[?1049l'";
    let terminal = Launch::shell(raw).start();
    terminal.wait_exit();
    assert!(!terminal.is_cooked());
    let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        terminal.assert_restored();
    }));
    let message = *wrong.unwrap_err().downcast::<String>().unwrap();
    for part in ["alternate screen", "hidden cursor", "mouse reports", "raw mode"] {
        assert!(message.contains(part), "{message}");
    }
    let terminal = Launch::shell(&format!("{raw}; {back}")).start();
    terminal.wait_exit();
    terminal.assert_restored();
}

#[test]
fn failed_wait_shows_the_screen() {
    let terminal = Launch::shell("echo something else").start();
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        terminal.wait_text("never");
    }));
    let message = *failed.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("waited for the text \"never\""), "{message}");
    assert!(message.contains("something else"), "{message}");
}

#[test]
fn gputop_starts_in_the_harness() {
    let terminal = Launch::gputop().args(["--version"]).start();
    terminal.wait_exit();
}

//! `gputop snapshot` on a terminal.

use crate::support::terminal::Launch;

#[test]
fn on_a_terminal_it_opens_and_gives_the_terminal_back() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crates/allocator/tests/data/snapshots/torch-2.15/native.pickle"
    );
    let terminal = Launch::gputop().args(["snapshot", file]).size(24, 100).start();
    terminal.wait_text("[summary]");
    terminal.send("\t\t\t");
    terminal.wait_text("REQUESTED at snapshot time");
    // Shift-Tab goes back by one pane.
    terminal.send("\x1b[Z");
    terminal.wait_text("[time]");
    terminal.send("\t");
    terminal.wait_text("[stacks]");
    terminal.send("?");
    terminal.wait_text("Help: Snapshot");
    assert!(!terminal.text().contains("Send a signal"));
    terminal.send("\x1b");
    terminal.wait_for(|screen| !screen.contents().contains("Help"), "no help");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

//! `gputop whatif` on a terminal.

use crate::support::terminal::Launch;

#[test]
fn on_a_terminal_it_opens_and_gives_the_terminal_back() {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crates/allocator/tests/data/snapshots/torch-2.15/native.pickle"
    );
    let terminal = Launch::gputop().args(["whatif", file]).size(24, 100).start();
    terminal.wait_text("a default");
    terminal.send("?");
    terminal.wait_text("Help: What if");
    assert!(!terminal.text().contains("Send a signal"));
    terminal.send("\x1b");
    terminal.wait_for(|screen| !screen.contents().contains("Help"), "no help");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

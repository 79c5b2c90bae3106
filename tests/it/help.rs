//! The help: it lists everything, and finds it.

use crate::fake_machine::dashboard;
use crate::fake_nvml::FakeNvml;

#[test]
fn help_search_finds_keys_and_terms() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_text("No process uses a GPU");
    terminal.send("?");
    terminal.wait_text("Help: Overview");
    terminal.wait_text("/ search");
    // Letters that are keys elsewhere are typed here.
    terminal.send("/quiet");
    terminal.wait_text("search: quiet");
    terminal.wait_text("No key or term matches");
    terminal.send("\x15STUCK");
    let found = |screen: &vt100::Screen| {
        let text = screen.contents();
        let has = |words: &str| text.contains(words);
        has("PROCESS TABLE") && has("The part of IDLE in segments") && !has("KEYS")
    };
    terminal.wait_for(found, "the column STUCK alone");
    terminal.send("\r");
    terminal.wait_text("/STUCK");
    // First what was looked for goes, then the help.
    terminal.send("\x1b");
    terminal.wait_text("KEYS");
    terminal.send("\x1b");
    terminal.wait_for(|s| !s.contents().contains("Help: Overview"), "the overview");
    // At 40x6 there is room for it too.
    terminal.resize(6, 40);
    terminal.send("?/clipb");
    terminal.wait_text("search: clipb");
    terminal.send("\r");
    terminal.wait_text("Copy the selected item");
    // Nothing may be typed right behind an Esc: that would be Alt.
    terminal.send("qq");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

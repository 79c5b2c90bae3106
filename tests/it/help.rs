//! The help can be searched, and messages disappear, on a terminal.

use crate::support::fake_machine::dashboard;
use crate::support::fake_nvml::FakeNvml;

#[test]
fn help_search_finds_keys_and_terms() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_text("No process uses a GPU");
    terminal.send("?");
    terminal.wait_text("Help: Overview");
    terminal.wait_text("/ search");
    // Letters that are keys elsewhere are text in the search.
    terminal.send("/quiet");
    terminal.wait_text("search: quiet");
    terminal.wait_text("No key or term matches");
    terminal.send("\x15FRAG");
    let found = |screen: &vt100::Screen| {
        let text = screen.contents();
        let has = |words: &str| text.contains(words);
        has("PROCESS TABLE") && has("Part of the cache in segments") && !has("KEYS")
    };
    terminal.wait_for(found, "the column FRAG alone");
    terminal.send("\r");
    terminal.wait_text("/FRAG");
    // The first Esc clears the search, the second closes the help.
    terminal.send("\x1b");
    terminal.wait_text("KEYS");
    terminal.send("\x1b");
    terminal.wait_for(|s| !s.contents().contains("Help: Overview"), "the overview");
    // The help also fits into 40x6.
    terminal.resize(6, 40);
    terminal.send("?/clipb");
    terminal.wait_text("search: clipb");
    terminal.send("\r");
    terminal.wait_text("Copy the selected item");
    // Not Esc: a key that directly follows it would be read as Alt.
    terminal.send("qq");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn a_message_disappears_by_itself() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_text("No process uses a GPU");
    terminal.send("H");
    terminal.wait_text("no other hosts");
    terminal.wait_for(|s| !s.contents().contains("no other hosts"), "the footer without it");
    terminal.send("q");
    terminal.wait_exit();
}

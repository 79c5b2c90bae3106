//! The help lists everything and can be searched.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gputop::tui::app::App;
use gputop::tui::picture::text_of;
use gputop::tui::theme::Palette;
use gputop::tui::view::View;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::support::fake_machine::dashboard;
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_fixture::{DEMO, app_at, openable, screen};

/// Draws a screen with its help.
fn help_of(app: &mut App, id: &str, (width, height): (u16, u16)) -> String {
    let mut view = View::on_top(screen(app, id));
    view.follow(app);
    view.key(KeyEvent::new(KeyCode::Char('?'), KeyModifiers::NONE), app);
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view.draw(app, area, &mut buffer);
    text_of(&buffer)
}

#[test]
fn the_keys_of_every_screen_fit_on_one_page() {
    let mut app = app_at(DEMO, 140, Palette::None, false, false);
    let ids: Vec<_> = openable(&app).iter().map(|def| def.id).collect();
    assert!(ids.len() > 5, "{ids:?}");
    for id in ids {
        for size in [(80, 24), (120, 40), (200, 50)] {
            let text = help_of(&mut app, id, size);
            assert!(text.contains("KEYS") && text.contains("Esc close"), "{id} {size:?}\n{text}");
            assert!(!text.contains("more below"), "{id} {size:?}\n{text}");
        }
    }
    for (width, height) in [(40, 6), (80, 24), (120, 40), (200, 50)] {
        let text = help_of(&mut app, "overview", (width, height));
        insta::assert_snapshot!(format!("help-{width}x{height}"), text);
    }
}

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
    terminal.send("\x15STUCK");
    let found = |screen: &vt100::Screen| {
        let text = screen.contents();
        let has = |words: &str| text.contains(words);
        has("PROCESS TABLE") && has("Part of IDLE in segments") && !has("KEYS")
    };
    terminal.wait_for(found, "the column STUCK alone");
    terminal.send("\r");
    terminal.wait_text("/STUCK");
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

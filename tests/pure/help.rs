//! The help of every screen.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gputop::tui::app::App;
use gputop::tui::picture::text_of;
use gputop::tui::theme::Palette;
use gputop::tui::view::View;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::support::screen_fixture::{FOUR_GPUS, app_at, openable, screen};

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
    let mut app = app_at(FOUR_GPUS, 140, Palette::None, false, false);
    let ids: Vec<_> = openable(&app).iter().map(|def| def.id).collect();
    assert!(ids.len() > 5, "{ids:?}");
    for id in ids {
        for size in [(80, 24), (120, 40), (200, 50)] {
            let text = help_of(&mut app, id, size);
            assert!(text.contains("KEYS") && text.contains("Esc close"), "{id} {size:?}\n{text}");
            // The columns and terms below the keys may need a second page.
            assert!(text.contains("back or quit"), "{id} {size:?}\n{text}");
        }
    }
    for (width, height) in [(40, 6), (80, 24), (120, 40), (200, 50)] {
        let text = help_of(&mut app, "overview", (width, height));
        insta::assert_snapshot!(format!("help-{width}x{height}"), text);
    }
}

//! The tables that `gputop once` prints.

use gputop::export::glyphs::{ASCII, UNICODE};
use gputop::export::tables::overview;
use gputop::export::text_width::columns;
use gputop::tui::theme::Palette;
use jiff::tz::TimeZone;

use crate::support::many_processes::{Member, TestApp};
use crate::support::screen_fixture::{FOUR_GPUS, app_at};

#[test]
fn the_tables_use_the_width() {
    let app = app_at(FOUR_GPUS, 117, Palette::None, false, true);
    for width in [60, 80, 160] {
        let text = overview(&app.host, width, &UNICODE, &TimeZone::UTC);
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{text}");
        insta::assert_snapshot!(format!("printed-tables-{width}"), text);
    }
    let text = overview(&app.host, 80, &ASCII, &TimeZone::UTC);
    assert!(text.is_ascii(), "{text}");
}

#[test]
fn wide_characters_do_not_shift_the_next_column() {
    let members =
        [Member::new(401, "数据", "a.py", &[(0, 4)]), Member::new(402, "ana", "b.py", &[(0, 2)])];
    let host = TestApp::new(1, &members).app.host;
    let text = overview(&host, 160, &UNICODE, &TimeZone::UTC);
    let before = |command: &str| {
        let line = text.lines().find_map(|line| Some(line.split_once(command)?.0));
        columns(line.unwrap_or_else(|| panic!("{text}")))
    };
    assert_eq!(before("a.py"), before("b.py"), "{text}");
}

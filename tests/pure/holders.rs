//! The screens that show who holds the GPU memory, from readings of a made-up training run.

use std::sync::Arc;

use gputop::tui::app::App;
use gputop::tui::picture::text_of;
use gputop::tui::view::View;
use gputop_model::holders::{HolderGroup, Holders};
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Request, Update};
use gputop_model::reading::{Missing, Reason};
use gputop_model::units::Bytes;
use ratatui::crossterm::event::KeyCode;

use crate::memory_screen::{app, drawn, frame, key, press, view_after_keys};

const TRANSFORMER: &str = include_str!("../data/holders/transformer.json");
const HISTORY: &str = "trainer.history[*]";

/// Returns a reading of a frame. The history has grown by 60 MiB in each half minute before it.
pub fn reading(app: &App, half_minutes: u64) -> Holders {
    let mut holders: Holders = serde_json::from_str(TRANSFORMER).unwrap();
    holders.at = app.host.frame.mono;
    let grown = Bytes::mib(60).0 * half_minutes;
    let is_history = |group: &&mut HolderGroup| group.name == HISTORY;
    let history = holders.groups.iter_mut().find(is_history).unwrap();
    history.bytes.0 += grown;
    history.count += 4 * half_minutes;
    holders.allocated.0 += grown;
    holders
}

fn take(app: &mut App, holders: Holders) {
    app.update(Update::Holders(holders.process, Arc::new(Ok(holders))));
}

/// Returns the app of the memory screen after this many readings, one every half minute.
fn app_after_readings(readings: u64) -> App {
    let mut app = app(false, true);
    for i in 0..readings {
        app.update(Update::Frame(Arc::new(frame(600 + i * 30))));
        let holders = reading(&app, i);
        take(&mut app, holders);
    }
    app
}

fn text(app: &mut App, keys: &str, width: u16, height: u16) -> String {
    let view = view_after_keys(app, keys);
    text_of(&drawn(&view, app, width, height))
}

#[test]
fn groups_of_the_fixture_add_up_to_the_allocated_bytes() {
    let holders = reading(&app_after_readings(1), 7);
    let sum: u64 = holders.groups.iter().map(|group| group.bytes.0).sum();
    assert_eq!(Bytes(sum), holders.allocated);
    assert_eq!(holders.process, key(418));
}

#[test]
fn the_holders_at_every_size() {
    for (width, height) in [(120, 40), (80, 24), (40, 6), (200, 50)] {
        let mut app = app_after_readings(4);
        let name = format!("holders-{width}x{height}");
        insta::assert_snapshot!(name, text(&mut app, "Mo", width, height));
        let name = format!("holder-group-{width}x{height}");
        insta::assert_snapshot!(name, text(&mut app, "Mojjjjj\n", width, height));
    }
}

fn requests(view: &mut View, app: &mut App, code: KeyCode) -> Vec<Option<ProcessKey>> {
    let requests = press(view, app, code).into_iter();
    let wanted = requests.filter_map(|request| match request {
        Request::Holders(wanted) => Some(wanted),
        _ => None,
    });
    wanted.collect()
}

#[test]
fn a_reading_is_requested_while_the_screen_is_open_and_cancelled_when_it_closes() {
    let mut app = app(false, true);
    let mut view = view_after_keys(&mut app, "M");
    let open = KeyCode::Char('o');
    assert_eq!(requests(&mut view, &mut app, open), [Some(key(418))]);
    assert!(text_of(&drawn(&view, &app, 80, 24)).contains("Reading tensor names"));
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down), []);
    // The same key requests another reading.
    assert_eq!(requests(&mut view, &mut app, open), [Some(key(418))]);
    let holders = reading(&app, 0);
    take(&mut app, holders);
    view.follow(&app);
    assert_eq!(requests(&mut view, &mut app, KeyCode::Enter), [], "the tensors of a group");
    app.update(Update::Frame(Arc::new(frame(628))));
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down), []);
    app.update(Update::Frame(Arc::new(frame(630))));
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down), [Some(key(418))], "30 s later");
    assert_eq!(requests(&mut view, &mut app, KeyCode::Esc), [], "back to the groups");
    assert_eq!(requests(&mut view, &mut app, KeyCode::Esc), [None], "back to the memory");
    // Another host comes on the screen.
    assert_eq!(requests(&mut view, &mut app, open), [Some(key(418))]);
    assert!(view.leave().contains(&Request::Holders(None)));
}

#[test]
fn growth_is_shown_from_the_third_reading_on() {
    for (readings, expected) in [(1, false), (2, false), (3, true)] {
        let mut app = app_after_readings(readings);
        let text = text(&mut app, "Mo", 120, 40);
        assert_eq!(text.contains("growing 120 MiB a minute"), expected, "{readings}\n{text}");
        assert_eq!(text.contains("MiB/min"), expected, "{readings}\n{text}");
        assert_eq!(text.contains(".detach()"), expected, "{readings}\n{text}");
        assert_eq!(text.contains("CHANGE"), readings > 1, "{readings}\n{text}");
    }
}

#[test]
fn overview_names_what_grows_while_the_readings_are_current() {
    let mut app = app_after_readings(3);
    let shown = text(&mut app, "", 200, 50);
    assert!(shown.contains("grows: trainer.h"), "{shown}");
    app.update(Update::Frame(Arc::new(frame(800))));
    let later = text(&mut app, "", 200, 50);
    assert!(!later.contains("grows: "), "{later}");
}

#[test]
fn a_failed_reading_keeps_the_previous_one_and_shows_the_reason() {
    let why = || Missing::new(Reason::Denied, "permission denied (ptrace_scope is 1)");
    let fail = |app: &mut App| app.update(Update::Holders(key(418), Arc::new(Err(why()))));
    let mut failed = app(false, true);
    fail(&mut failed);
    let shown = text(&mut failed, "Mo", 80, 24);
    assert!(shown.contains("Holders not available: permission denied"), "{shown}");
    let mut app = app_after_readings(1);
    fail(&mut app);
    let shown = text(&mut app, "Mo", 120, 40);
    assert!(shown.contains("Holders not available: permission denied"), "{shown}");
    assert!(shown.contains(HISTORY), "{shown}");
    // The reading of another process does not appear.
    let mut other = reading(&app, 0);
    other.process = key(421);
    let mut app = self::app(false, true);
    take(&mut app, other);
    let shown = text(&mut app, "Mo", 80, 24);
    assert!(shown.contains("Reading tensor names"), "{shown}");
}

#[test]
fn the_map_names_the_owner_of_the_block_under_the_cursor() {
    let mut app = app(false, true);
    let mut view = view_after_keys(&mut app, "M");
    let before = text_of(&drawn(&view, &app, 120, 40));
    assert!(!before.contains("held by"), "{before}");
    let holders = reading(&app, 0);
    take(&mut app, holders);
    let shown = |view: &View, app: &App| text_of(&drawn(view, app, 120, 40));
    for _ in 0..8 {
        if shown(&view, &app).contains("held by") {
            break;
        }
        press(&mut view, &mut app, KeyCode::Right);
    }
    let text = shown(&view, &app);
    assert!(
        text.contains("held by trainer.opt.state[trainer.model.layers.0.mlp.up.weight]['exp_avg']"),
        "{text}"
    );
}

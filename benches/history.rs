//! Measures a day of 8 GPUs and 64 processes with their pools: memory, the cost of a frame, and the time to draw a
//! screen at any scroll position of its charts. Limits: 40 MiB, 16 ms.
//!
//! Run `cargo bench --bench history`. Append `-- 3600` for a shorter day, in seconds.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::screens::SCREENS;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_model::history::{DAY, History};
use gputop_model::protocol::Update;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

#[path = "../tests/it/support/training_day.rs"]
mod training_day;

const MIN_SECONDS: usize = 60;

fn main() {
    let seconds = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(86_400);
    let theme = Theme::new(Palette::Dark, false, TimeZone::UTC);
    let mut app = App::new(theme, Keymap::default(), None);
    app.update(Update::Hello(Arc::new(training_day::hello())));
    let mut day = training_day::Day::new().with_pools();
    let before = resident();
    let mut history = History::default();
    let mut spent = Vec::new();
    for _ in 0..seconds {
        let frame = day.next();
        let start = Instant::now();
        history.push(frame);
        spent.push(start.elapsed());
    }
    row("a frame into the history", spread(&mut spent));
    row("history", mib(history.bytes()));
    row("resident, more than before", mib(resident() - before));
    let start = Instant::now();
    let held = history.clone();
    row("a copy, to hold the display", format!("{:.0?}", start.elapsed()));
    row("resident with it, more than before", mib(resident() - before));
    drop(held);
    app.update(Update::Frame(Arc::new(day.next().clone())));
    app.host.history = history;
    app.host.time_window.extend(gputop_model::units::Mono(5_400_000));
    app.host.time_window.extend(app.host.frame.mono);
    for def in SCREENS {
        let Some(screen) = (def.sample)(&app) else {
            continue;
        };
        draw(&mut app, View::on_top(screen), def.id);
    }
}

/// At every zoom level, measures the time from a key press to the drawn screen: near the present, and at the oldest
/// point.
fn draw(app: &mut App, mut view: View, id: &str) {
    let mut spent = Vec::new();
    let mut farthest = Duration::ZERO;
    for _ in 0..10 {
        press(&mut view, app, '}');
    }
    for _ in 0..7 {
        press(&mut view, app, '0');
        for _ in 0..MIN_SECONDS {
            spent.push(press(&mut view, app, '('));
        }
        farthest = farthest.max(far_end(&mut view, app));
        press(&mut view, app, '{');
    }
    press(&mut view, app, '0');
    row(&format!("{id}, scrolled"), spread(&mut spent));
    row(&format!("{id}, at the far end, worst"), format!("{farthest:.0?}"));
}

fn far_end(view: &mut View, app: &mut App) -> Duration {
    let now = app.host.frame.mono;
    let oldest = app.host.oldest();
    while app.host.time_window.scroll(
        gputop::dashboard::time_window::ScrollDirection::Back,
        None,
        now,
        oldest,
    ) {}
    assert!(app.host.time_window.length(now) == DAY || app.host.time_window.end().is_some());
    (0..10).map(|_| press(view, app, '(')).max().unwrap_or_default()
}

fn press(view: &mut View, app: &mut App, key: char) -> Duration {
    let area = Rect::new(0, 0, 200, 60);
    let start = Instant::now();
    view.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE), app);
    let mut buffer = Buffer::empty(area);
    view.draw(app, area, &mut buffer);
    black_box(&buffer);
    start.elapsed()
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Formats median, 99th percentile and worst. On a shared machine, the worst is often caused by other programs.
fn spread(spent: &mut [Duration]) -> String {
    spent.sort();
    let at = |share: usize| spent[(spent.len() - 1) * share / 100];
    format!("{:.2?}  {:.2?}  {:.2?}", at(50), at(99), at(100))
}

fn row(what: &str, value: String) {
    println!("{what:<38} {value}");
}

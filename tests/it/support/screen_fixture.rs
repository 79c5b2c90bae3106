//! Builds an `App` at a given time of a recording, for screen snapshots and for the documentation's pictures.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gputop::dashboard::recording::Recording;
use gputop::dashboard::return_point::ReturnPoint;
use gputop::incident::Watcher;
use gputop::source::replay::Recording as File;
use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::screen::{Screen, ScreenDef};
use gputop::tui::screens::SCREENS;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_explain::ranks::JoinedJobs;
use gputop_model::pool::PoolMap;
use gputop_model::protocol::{Line, Position, Update};
use gputop_model::units::Mono;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// The built-in recording, of which the documentation shows pictures.
#[allow(dead_code)]
pub const DEMO: &[u8] = include_bytes!("../../../assets/demo.gpt.zst");
/// Training, a failure for fragmentation, a failed assertion and a leak on four H200s, recorded by an earlier version.
#[allow(dead_code)]
pub const FOUR_GPUS: &[u8] = include_bytes!("../../data/recordings/four_gpus.gpt.zst");

/// Returns the app at `seconds` after the start of a recording, as if it had watched from the start. `live` hides that
/// it is a recording.
pub fn app_at(
    bytes: &'static [u8],
    seconds: u64,
    palette: Palette,
    ascii: bool,
    live: bool,
) -> App {
    let file = File::from_bytes(Cow::Borrowed(bytes)).expect("a recording");
    let (start, end) = file.span();
    let target = Mono(start.0 + seconds * 1_000);
    let position = Position {
        start,
        end,
        now: target.min(end),
        speed: 1.0,
        paused: true,
        at_end: target >= end,
        has_holders: false,
    };
    let recording = (!live).then(|| Recording {
        name: "demo".into(),
        reason: None,
        repeats: false,
        is_jumping: false,
        is_reason_new: false,
        return_point: ReturnPoint::default(),
        position,
    });
    let keymap = Keymap::default();
    let mut app = App::new(Theme::new(palette, ascii, TimeZone::UTC), keymap, recording);
    app.update(Update::Hello(Arc::new(file.hello().clone())));
    let mut maps = Vec::new();
    for line in lines_until(bytes, target) {
        match line {
            Line::Update(update @ (Update::Frame(_) | Update::Event(_))) => {
                app.update(update.clone());
            }
            Line::Map(map) => maps.push(map),
            _ => {}
        }
    }
    // Like a source, provide the newest map of the pool that the memory screen would request.
    let wanted = SCREENS
        .iter()
        .filter_map(|def| (def.sample)(&app)?.map(&app, Rect::new(0, 0, 120, 40)))
        .next();
    let is_it = |map: &PoolMap| Some((map.process, map.ordinal)) == wanted;
    let mut newest = maps.iter().rev().filter_map(|map| map.read().ok());
    if let Some(map) = newest.find(is_it) {
        app.update(Update::Map(Arc::new(map)));
    }
    app
}

/// Returns the lines of a recording up to a time.
pub fn lines_until(bytes: &'static [u8], target: Mono) -> impl Iterator<Item = &'static Line> {
    lines(bytes).iter().take_while(move |line| match line {
        Line::Update(Update::Frame(frame)) => frame.mono <= target,
        Line::Update(Update::Event(event)) => event.mono <= target,
        _ => true,
    })
}

/// Returns all lines of a recording. Each recording is parsed once, because a debug build takes a second for it and
/// some tests show dozens of times of the same recording.
fn lines(bytes: &'static [u8]) -> &'static [Line] {
    static PARSED: Mutex<Vec<(&[u8], &[Line])>> = Mutex::new(Vec::new());
    let mut parsed = PARSED.lock().expect("a readable recording");
    if let Some((_, lines)) = parsed.iter().find(|(known, _)| std::ptr::eq(*known, bytes)) {
        return lines;
    }
    let text = zstd::stream::decode_all(bytes).expect("whole");
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let lines: Vec<Line> = lines.map(|line| Line::read(line).expect("a line")).collect();
    parsed.push((bytes, lines.leak()));
    parsed.last().expect("just added").1
}

/// Adds the incidents up to `seconds` after the start of a recording to its app.
#[allow(dead_code)]
pub fn diagnose(app: &mut App, bytes: &'static [u8], seconds: u64) {
    let file = File::from_bytes(Cow::Borrowed(bytes)).expect("a recording");
    let target = Mono(file.span().0.0 + seconds * 1_000);
    let watcher = Watcher::start_with(None, usize::MAX, JoinedJobs::default()).expect("a thread");
    watcher.see(&Update::Hello(Arc::new(file.hello().clone())));
    for line in lines_until(bytes, target) {
        if let Line::Update(update) = line {
            watcher.see(update);
        }
    }
    for result in watcher.finish(Duration::from_secs(60)) {
        app.take_watch_result(result);
    }
}

/// Returns the screens that can be opened with the app's data.
#[allow(dead_code)]
pub fn openable(app: &App) -> Vec<&'static ScreenDef> {
    let all = SCREENS.iter().copied();
    all.filter(|def| (def.sample)(app).is_some()).collect()
}

/// Returns the screen with this ID, opened on the app's data.
pub fn screen(app: &App, id: &str) -> Box<dyn Screen> {
    let def = SCREENS.iter().find(|def| def.id == id).expect("a screen of this id");
    (def.sample)(app).expect("something to open the screen on")
}

/// Draws a screen as the program would in a terminal of this size.
pub fn draw(app: &App, id: &str, width: u16, height: u16) -> Buffer {
    let mut view = View::default();
    if id != "overview" {
        view = View::on_top(screen(app, id));
    }
    view.follow(app);
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view.draw(app, area, &mut buffer);
    buffer
}

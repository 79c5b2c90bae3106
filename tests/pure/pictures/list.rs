//! Every picture that the documentation shows, in one place.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gputop::tui::app::App;
use gputop::tui::picture::{BACKGROUND, draw_cells, opening, svg};
use gputop::tui::screen::Effect;
use gputop::tui::theme::Palette;
use gputop::tui::view::View;
use gputop_model::holders::Holders;
use gputop_model::protocol::Update;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::screen_fixture;

struct Picture {
    name: &'static str,
    screen: &'static str,
    /// Seconds into the built-in recording.
    at: u64,
    size: (u16, u16),
}

const PICTURES: &[Picture] = &[
    Picture { name: "memory", screen: "memory", at: 105, size: (120, 40) },
    Picture { name: "overview", screen: "overview", at: 200, size: (120, 36) },
    Picture { name: "gpu", screen: "gpu", at: 140, size: (120, 40) },
    Picture { name: "ranks", screen: "ranks", at: 200, size: (120, 14) },
];

impl Picture {
    fn path(&self) -> PathBuf {
        path(self.name)
    }

    fn draw(&self) -> String {
        let app = demo_at(self.at);
        svg(&screen_fixture::draw(&app, self.screen, self.size.0, self.size.1))
    }
}

/// Returns the app at `seconds` of the built-in recording, with its incidents.
fn demo_at(seconds: u64) -> App {
    let recording = screen_fixture::DEMO;
    let mut app = screen_fixture::app_at(recording, seconds, Palette::Dark, false, true);
    screen_fixture::diagnose(&mut app, recording, seconds);
    app
}

fn path(name: &str) -> PathBuf {
    let screens = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/screens");
    screens.join(format!("{name}.svg"))
}

/// Returns the path and the content of every picture.
pub fn all() -> Vec<(PathBuf, String)> {
    let pictures = PICTURES.iter().map(|picture| (picture.path(), picture.draw()));
    let others = [("fix", fix()), ("holders", holders())];
    pictures.chain(others.map(|(name, drawn)| (path(name), drawn))).collect()
}

/// The start of a training run that keeps the graphs of some losses, recorded on an H200, and four readings of what holds
/// its memory, the last of them `LEAK_SECONDS` into the recording.
const LEAK: &[u8] = include_bytes!("../../data/pictures/leak.gpt.zst");
const LEAK_READINGS: &[u8] = include_bytes!("../../data/pictures/leak.json.zst");
const LEAK_SECONDS: u64 = 28;

fn holders() -> String {
    let mut app = screen_fixture::app_at(LEAK, LEAK_SECONDS, Palette::Dark, false, true);
    let text = zstd::decode_all(LEAK_READINGS).expect("whole");
    for reading in serde_json::Deserializer::from_slice(&text).into_iter::<Holders>() {
        let reading = reading.expect("a reading");
        app.update(Update::Holders(reading.process, Arc::new(Ok(reading))));
    }
    svg(&screen_fixture::draw(&app, "holders", 120, 28))
}

/// Draws the way from a failure to its fix in the demo: the overview, the explanation, and the first fix copied.
fn fix() -> String {
    let mut app = demo_at(121);
    let mut view = View::default();
    view.follow(&app);
    let mut frames = Vec::new();
    for (key, seconds) in [(None, 3), (Some('d'), 4), (Some('1'), 3)] {
        if let Some(key) = key {
            let event = KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE);
            if let (Effect::Copy(copied), _) = view.key(event, &mut app) {
                app.ui.message = Some(copied.sent_words());
            }
        }
        let area = Rect::new(0, 0, 100, 30);
        let mut buffer = Buffer::empty(area);
        view.draw(&app, area, &mut buffer);
        frames.push((buffer, seconds));
    }
    animated_svg(&frames)
}

/// Renders buffers of equal size as a looping animated SVG. Each buffer is shown for the number of seconds given with
/// it.
fn animated_svg(frames: &[(Buffer, u32)]) -> String {
    let area = frames.first().map_or(Rect::ZERO, |(buffer, _)| buffer.area);
    let total: u32 = frames.iter().map(|(_, seconds)| seconds).sum();
    let percent = |seconds: u32| seconds * 100 / total.max(1);
    let mut out = opening(area);
    let mut begin = 0;
    for (at, (buffer, seconds)) in frames.iter().enumerate() {
        let (from, to) = (percent(begin), percent(begin + seconds));
        // Without support for animations, a viewer shows the last frame.
        let _ = writeln!(
            out,
            "<style>#f{at}{{animation:f{at} {total}s step-end infinite}}@keyframes f{at}{{0%{{visibility:hidden}}\
             {from}%{{visibility:visible}}{to}%{{visibility:hidden}}}}</style>\n<g id=\"f{at}\">\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>"
        );
        draw_cells(&mut out, buffer);
        out.push_str("</g>\n");
        begin += seconds;
    }
    out.push_str("</svg>\n");
    out
}

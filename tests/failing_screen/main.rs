//! A program with a screen that fails after it was drawn: `main` panics on the drawing thread, `thread` on another one,
//! `overflow` overflows the stack. Tests check that the terminal is restored.

use std::cell::Cell;
use std::thread;

use gputop::tui::action::Action;
use gputop::tui::app::App;
use gputop::tui::clipboard::Clipboard;
use gputop::tui::colours::Colours;
use gputop::tui::keymap::Keymap;
use gputop::tui::screen::{Effect, Screen, ScreenDef};
use gputop::tui::terminal::restore_on_panic;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::{Environment, show};
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

const MESSAGE: &str = "a test asked for this panic";

struct FailingScreen {
    failure: String,
    has_failed: Cell<bool>,
}

impl Screen for FailingScreen {
    fn draw(&self, _: &App, area: Rect, buffer: &mut Buffer) {
        if !self.has_failed.replace(true) {
            match self.failure.as_str() {
                "main" => panic!("{MESSAGE}"),
                "thread" => drop(thread::spawn(|| panic!("{MESSAGE}")).join()),
                "overflow" => overflow(0),
                other => panic!("unknown failure `{other}`"),
            }
        }
        buffer.set_string(area.x, area.y, "still here", Style::default());
    }

    fn act(&mut self, _: Action, _: &App, _: Rect) -> Effect {
        Effect::Ignored
    }

    fn footer(&self) -> &'static [Action] {
        &[]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

const DEF: ScreenDef =
    ScreenDef { id: "failing", title: "Failing", glossary: &[], sample: |_| None };

fn overflow(depth: usize) {
    if depth == usize::MAX {
        return;
    }
    let room = std::hint::black_box([depth; 4_096]);
    overflow(room[0] + 1);
    std::hint::black_box(room);
}

#[allow(clippy::unwrap_used)]
fn main() {
    restore_on_panic();
    let screen = FailingScreen {
        failure: std::env::args().nth(1).unwrap_or_default(),
        has_failed: Cell::new(false),
    };
    let theme = Theme::with(Colours::built_in(Palette::Dark), false, TimeZone::UTC);
    let app = App::new(theme, Keymap::with(&[]).unwrap(), None);
    let environment =
        Environment { clipboard: Clipboard::Terminal, directory: ".".into(), config: None };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    let left = runtime.block_on(show(Box::new(screen), app, environment));
    // The thread that reads the keyboard may still wait for a key.
    std::process::exit(i32::from(left.is_err()))
}

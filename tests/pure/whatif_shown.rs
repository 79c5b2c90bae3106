//! The screen of `gputop whatif`: curves and numbers at three sizes, and its keys.

use gputop::export::whatif::{Device, Document, Played, Recording};
use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::picture::text_of;
use gputop::tui::screen::Effect;
use gputop::tui::screens::whatif::WhatifScreen;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_allocator::config::Config;
use gputop_allocator::rules::NEWEST;
use gputop_allocator::trace::{Op, PoolId, Trace};
use gputop_allocator::whatif::{Room, largest_fit, replay};
use gputop_model::units::Bytes;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;

const SETTINGS: [(&str, &str); 4] = [
    ("default", ""),
    ("", "expandable_segments:True"),
    ("", "max_split_size_mb:128"),
    ("", "roundup_power2_divisions:4"),
];

/// Each long-lived block is placed in a larger freed block, and the remainder is too small for any request. The last
/// request is large.
fn pinned() -> Trace {
    let alloc = |block, mib| Op::Alloc {
        block,
        requested: Bytes::mib(mib),
        stream: 0,
        pool: PoolId::SHARED,
    };
    let mut ops = Vec::new();
    for step in 0..40 {
        let block = 2 * step;
        ops.push(alloc(block, 100));
        ops.extend([Op::Free { block }, Op::FreeCompleted { block }]);
        ops.push(alloc(block + 1, 60));
    }
    ops.push(alloc(100, 400));
    Trace { ops, ..Trace::default() }
}

fn device(ordinal: u32, trace: &Trace, room: Room) -> Device {
    let played = SETTINGS.map(|(name, conf)| {
        let rules = Config::read(conf, NEWEST).expect("a setting").rules(NEWEST);
        let outlook = replay(trace, &rules, room);
        Played {
            name,
            conf: conf.into(),
            fits: Some(largest_fit(&outlook.end)),
            wanted: None,
            no_effect: None,
            outlook,
        }
    });
    Device {
        ordinal,
        recording: Recording {
            operations: trace.ops.len(),
            blocks_before: trace.start.len(),
            begins_late: false,
            peak_reserved: None,
        },
        torch: Some((2, 8)),
        card: room.card.into(),
        outside: room.outside.into(),
        want: None,
        settings: played.into(),
    }
}

struct Shown {
    app: App,
    view: View,
}

impl Shown {
    fn open(devices: Vec<Device>) -> Self {
        let document = Document { schema: 1, source: "train.pickle".into(), devices };
        let keymap = Keymap::default();
        let theme = Theme::new(Palette::None, false, TimeZone::UTC);
        Self {
            app: App::new(theme, keymap, None),
            view: View::alone(Box::new(WhatifScreen::new(document))),
        }
    }

    fn key(&mut self, code: KeyCode) -> Effect {
        let key = KeyEvent::new(code, KeyModifiers::NONE);
        self.view.key(key, &mut self.app).0
    }

    fn draw(&self, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        self.view.draw(&self.app, area, &mut buffer);
        text_of(&buffer)
    }
}

/// Returns two devices: the default fails on one, and the other has room for everything.
fn two() -> Vec<Device> {
    let room = |mib| Room { card: Bytes::mib(mib), outside: Bytes::mib(400) };
    vec![device(0, &pinned(), room(4600)), device(1, &pinned(), room(9000))]
}

#[test]
fn curves_and_figures_at_every_size() {
    for (width, height) in [(120, 40), (80, 24), (40, 6)] {
        let shown = Shown::open(two());
        let name = format!("whatif-{width}x{height}");
        insta::assert_snapshot!(name, shown.draw(width, height));
    }
}

#[test]
fn the_cursor_chooses_whose_columns_are_drawn_and_brackets_the_device() {
    let mut shown = Shown::open(two());
    let legend = |shown: &Shown, what: &str| {
        let screen = shown.draw(120, 30);
        assert!(screen.contains(what), "{screen}");
    };
    legend(&shown, "a default  █ allocated");
    shown.key(KeyCode::Down);
    legend(&shown, "b expandable_segments:True  █ allocated");
    for _ in 0..9 {
        shown.key(KeyCode::Down);
    }
    legend(&shown, "d roundup_power2_divisions:4  █ allocated");
    shown.key(KeyCode::Char(']'));
    legend(&shown, "device 1 (2 of 2)");
    legend(&shown, "GPU memory 8.79 GiB, 400.00 MiB of it outside the allocator");
    shown.key(KeyCode::Char('['));
    legend(&shown, "device 0 (1 of 2)");
    for letter in "xTKLMSdiwtCsIpW!/ ".chars() {
        let before = shown.draw(120, 30);
        assert!(matches!(shown.key(KeyCode::Char(letter)), Effect::Done));
        assert_eq!(shown.draw(120, 30), before, "{letter}");
    }
    let copied = shown.key(KeyCode::Char('y'));
    let Effect::Copy(copied) = copied else {
        panic!("nothing was copied");
    };
    assert_eq!(copied.text, "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4");
    // Copied text covers the screen until the next key.
    shown.key(KeyCode::Esc);
    let left = shown.key(KeyCode::Char('q'));
    assert!(matches!(left, Effect::Leave), "q leaves");
}

#[test]
fn it_can_be_drawn_at_any_size_with_whatever_it_holds() {
    // A running process has no history.
    let present = device(0, &Trace::default(), Room::UNLIMITED);
    let mut one = pinned();
    one.ops.truncate(1);
    let short = device(0, &one, Room::UNLIMITED);
    for devices in [two(), vec![present], vec![short], Vec::new()] {
        let mut shown = Shown::open(devices);
        for width in [1, 2, 9, 17, 26, 40, 60, 80, 130, 900] {
            for height in [0, 1, 2, 3, 4, 5, 6, 10, 13, 14, 15, 24, 50] {
                shown.draw(width, height);
            }
        }
        for code in [KeyCode::End, KeyCode::Up, KeyCode::Enter, KeyCode::Esc] {
            shown.key(code);
            shown.draw(80, 24);
        }
    }
}

//! The memory snapshot screen: each part at three sizes, and its keys.

use gputop::export::snapshot::AnalysedSnapshot;
use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::picture::text_of;
use gputop::tui::screen::Effect;
use gputop::tui::screens::snapshot::SnapshotScreen;
use gputop::tui::screens::snapshot_comparison::SnapshotComparisonScreen;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_allocator::snapshot;
use gputop_allocator::snapshot::compare::{SnapshotMemory, compare};
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;

const NATIVE: &[u8] =
    include_bytes!("../../crates/allocator/tests/data/snapshots/torch-2.15/native.pickle");
const HOOK: &[u8] =
    include_bytes!("../../crates/allocator/tests/data/snapshots/torch-2.15/hook.pickle");
const LIST: &[u8] =
    include_bytes!("../../crates/allocator/tests/data/snapshots/torch-2.15/list.pickle");
const OLD: &[u8] =
    include_bytes!("../../crates/allocator/tests/data/snapshots/torch-2.0/native.pickle");

struct Shown {
    app: App,
    view: View,
}

impl Shown {
    fn open(file: &[u8]) -> Self {
        let snapshot = snapshot::read(file, file.len() as u64).expect("a snapshot");
        let opened = AnalysedSnapshot::of("train.pickle".into(), snapshot);
        let keymap = Keymap::default();
        let theme = Theme::new(Palette::None, false, TimeZone::UTC);
        Self {
            app: App::new(theme, keymap, None),
            view: View::alone(Box::new(SnapshotScreen::new(opened))),
        }
    }

    fn key(&mut self, code: KeyCode) -> Effect {
        let key = KeyEvent::new(code, KeyModifiers::NONE);
        self.view.key(key, &mut self.app).0
    }

    fn type_in(&mut self, text: &str) {
        for letter in text.chars() {
            self.key(KeyCode::Char(letter));
        }
    }

    fn draw(&mut self, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        self.view.resize(area);
        let mut buffer = Buffer::empty(area);
        self.view.draw(&self.app, area, &mut buffer);
        text_of(&buffer)
    }
}

const PARTS: [&str; 5] = ["summary", "map", "time", "stacks", "growth"];

#[test]
fn every_part_at_every_size() {
    for (width, height) in [(120, 40), (80, 24), (40, 6)] {
        let mut shown = Shown::open(NATIVE);
        for part in PARTS {
            let name = format!("{part}-{width}x{height}");
            insta::assert_snapshot!(name, shown.draw(width, height));
            shown.key(KeyCode::Tab);
        }
    }
}

#[test]
fn it_can_be_drawn_at_any_size_with_whatever_it_holds() {
    // Snapshots without any memory, without a history, without times, and a complete one.
    for file in [&b"\x80\x04}\x8c\x08segments]s."[..], LIST, OLD, NATIVE] {
        let mut shown = Shown::open(file);
        for _ in PARTS {
            for width in [1, 2, 9, 17, 40, 60, 80, 130] {
                for height in [0, 1, 2, 3, 4, 5, 6, 10, 13, 24, 50] {
                    shown.draw(width, height);
                }
            }
            for code in [KeyCode::Down, KeyCode::Right, KeyCode::End, KeyCode::Enter, KeyCode::Esc]
            {
                shown.key(code);
                shown.draw(80, 24);
            }
            shown.key(KeyCode::Tab);
        }
    }
}

#[test]
fn snapshot_without_history_says_how_to_record_one() {
    let mut shown = Shown::open(LIST);
    assert!(shown.draw(120, 30).contains("_record_memory_history"));
    shown.key(KeyCode::Tab);
    shown.key(KeyCode::Tab);
    assert!(shown.draw(120, 30).contains("no history recorded"));
}

#[test]
fn enter_shows_holders_at_a_time_and_esc_returns() {
    let mut shown = Shown::open(NATIVE);
    shown.draw(100, 26);
    shown.key(KeyCode::Tab);
    shown.key(KeyCode::Tab);
    // The history opens at the peak.
    assert!(shown.draw(100, 26).contains("after event 68"));
    shown.key(KeyCode::Enter);
    let at_peak = shown.draw(100, 26);
    assert!(at_peak.contains("REQUESTED after event 68"), "{at_peak}");
    assert!(at_peak.contains("model.py:13 logits"), "{at_peak}");
    shown.key(KeyCode::Esc);
    let at_end = shown.draw(100, 26);
    assert!(at_end.contains("REQUESTED at snapshot time: 59.47 MiB"), "{at_end}");
    assert!(!at_end.contains("logits"), "{at_end}");
    shown.key(KeyCode::Enter);
    let stack = shown.draw(100, 26);
    assert!(stack.contains("live blocks: 1 of 10.00 MiB, 1 of 9.00 MiB, "), "{stack}");
    assert!(stack.contains("model.py:6 __init__") && stack.contains("q back"), "{stack}");
    shown.key(KeyCode::Esc);
    assert!(matches!(shown.key(KeyCode::Char('q')), Effect::Leave));
}

#[test]
fn two_marks_show_what_grew() {
    let mut shown = Shown::open(NATIVE);
    shown.draw(100, 26);
    shown.key(KeyCode::Tab);
    shown.key(KeyCode::Tab);
    shown.key(KeyCode::Char(' '));
    shown.key(KeyCode::Home);
    shown.key(KeyCode::Char(' '));
    let marked = shown.draw(100, 26);
    assert!(marked.contains("marks: event 0 and event 68"), "{marked}");
    shown.key(KeyCode::Tab);
    shown.key(KeyCode::Tab);
    let growth = shown.draw(100, 26);
    assert!(growth.contains("GROWTH from event 0 to event 68"), "{growth}");
    assert!(growth.contains("216.86 MiB"), "{growth}");
    // The next failure, starting from the beginning.
    let mut shown = Shown::open(NATIVE);
    shown.draw(100, 26);
    shown.key(KeyCode::Tab);
    shown.key(KeyCode::Tab);
    shown.key(KeyCode::Char('n'));
    let oom = shown.draw(100, 26);
    assert!(oom.contains("OUT OF MEMORY: 200.00 GiB requested"), "{oom}");
    assert!(oom.contains("train.py:44 main"), "{oom}");
}

#[test]
fn stacks_are_searched_and_read_whole() {
    let mut shown = Shown::open(NATIVE);
    shown.key(KeyCode::Char('/'));
    shown.type_in("REMEmb");
    let typed = shown.draw(100, 26);
    assert!(typed.contains("search: REMEmb"), "{typed}");
    assert!(typed.contains("in 1 stack, 3 hidden"), "{typed}");
    shown.key(KeyCode::Enter);
    shown.key(KeyCode::Enter);
    let whole = shown.draw(100, 26);
    assert!(whole.contains("/home/ana/job/train.py:13 remember"), "{whole}");
    // Esc closes the stack, then the search. Only q closes the screen.
    shown.key(KeyCode::Esc);
    shown.key(KeyCode::Esc);
    assert!(shown.draw(100, 26).contains("in 4 stacks"));
    assert!(matches!(shown.key(KeyCode::Esc), Effect::Done));
}

#[test]
fn keys_of_a_dashboard_do_nothing_here() {
    let mut shown = Shown::open(NATIVE);
    let before = shown.draw(100, 26);
    for letter in "xTKLMSdiwtCsIpW!".chars() {
        assert!(matches!(shown.key(KeyCode::Char(letter)), Effect::Done));
        assert_eq!(shown.draw(100, 26), before, "{letter}");
    }
    shown.key(KeyCode::Char(']'));
    assert!(shown.draw(100, 26).contains("device 1 (2 of 2)"));
}

fn open_comparison(a: &[u8], b: &[u8]) -> Shown {
    let read = |file: &[u8]| snapshot::read(file, file.len() as u64).expect("a snapshot");
    let [a, b] = [a, b].map(|file| SnapshotMemory::of(read(file)));
    let names = ["before.pickle".into(), "after.pickle".into()];
    let screen = SnapshotComparisonScreen::new(names, compare(a, b));
    let theme = Theme::new(Palette::None, false, TimeZone::UTC);
    Shown { app: App::new(theme, Keymap::default(), None), view: View::alone(Box::new(screen)) }
}

#[test]
fn a_comparison_at_every_size() {
    for (width, height) in [(200, 50), (120, 40), (80, 24), (40, 6)] {
        let mut shown = open_comparison(NATIVE, HOOK);
        let name = format!("comparison-{width}x{height}");
        insta::assert_snapshot!(name, shown.draw(width, height));
    }
}

#[test]
fn a_comparison_opens_stacks_and_shows_other_devices() {
    let mut shown = open_comparison(NATIVE, HOOK);
    assert!(shown.draw(120, 40).contains("device 0"));
    // The first row is memory without a stack.
    shown.key(KeyCode::Enter);
    assert!(!shown.draw(120, 40).contains("STACK"));
    shown.key(KeyCode::Down);
    shown.key(KeyCode::Enter);
    assert!(shown.draw(120, 40).contains("STACK"));
    shown.key(KeyCode::Esc);
    let list = shown.draw(120, 40);
    assert!(list.contains("CHANGE"), "{list}");
    shown.type_in("]");
    assert!(shown.draw(120, 40).contains("device 1"));
    // Two empty snapshots.
    let empty = &b"\x80\x04}\x8c\x08segments]s."[..];
    let mut shown = open_comparison(empty, empty);
    for (width, height) in [(1, 1), (9, 3), (80, 24)] {
        shown.draw(width, height);
        shown.key(KeyCode::Enter);
    }
    assert!(shown.draw(80, 24).contains("Nothing was allocated"));
}

//! Nothing on the overview moves: the same window has the same layout before, during and after an incident, an exit, a tag,
//! a tree, a filter or a lost GPU.

use std::sync::Arc;

use gputop::tui::picture::text_of;
use gputop::tui::theme::Palette;
use gputop_model::gpu::{Health, HealthState};
use gputop_model::protocol::Update;

use crate::support::many_processes::{Member, TestApp, frame};
use crate::support::screen_fixture::{FOUR_GPUS, app_at, diagnose, draw};

const SIZES: [(u16, u16); 4] = [(60, 15), (80, 24), (120, 40), (200, 50)];

/// Returns the place and the text of each fixed line: the headings of the tables and of the timeline, the axis, and the
/// line above the footer.
fn layout(text: &str) -> Vec<(usize, String)> {
    let is_fixed = |line: &str| {
        ["VRAM GiB", " PID ", "TIMELINE", "VRAM used"].iter().any(|title| line.contains(title))
            || line.ends_with("now")
    };
    // Values in titles of charts change, and marks on an axis come and go.
    let words = |line: &str| {
        let line = line.split(['■', '▲', '□']).next().unwrap_or_default();
        let words = line.split_whitespace().filter(|word| word.chars().all(char::is_uppercase));
        words.collect::<Vec<_>>().join(" ")
    };
    let lines = text.lines().enumerate();
    lines.filter(|(_, line)| is_fixed(line)).map(|(at, line)| (at, words(line))).collect()
}

#[test]
fn the_demo_does_not_move() {
    let mut first = None;
    for seconds in [0, 60, 100, 140, 200, 500] {
        let mut app = app_at(FOUR_GPUS, seconds, Palette::None, false, false);
        for with_incidents in [false, true] {
            if with_incidents {
                diagnose(&mut app, FOUR_GPUS, seconds);
            }
            let texts =
                SIZES.map(|(width, height)| text_of(&draw(&app, "overview", width, height)));
            let layouts = texts.each_ref().map(|text| layout(text));
            let first = first.get_or_insert_with(|| layouts.clone());
            for ((text, layout), first) in texts.iter().zip(&layouts).zip(first) {
                assert!(layout.len() >= 2, "{text}");
                assert_eq!(first, layout, "{seconds} s:\n{text}");
            }
        }
    }
}

#[test]
fn keys_and_lost_gpus_move_nothing() {
    let members: Vec<Member> =
        (0..8).map(|n| Member::new(418 + n, "ana", "python train.py", &[(n, 20)])).collect();
    for gpus in [1, 2, 4, 8, 16] {
        for (width, height) in SIZES {
            let mut desk = TestApp::new(gpus, &members);
            let before = layout(&desk.text(width, height));
            let check = |desk: &TestApp, what: &str| {
                let text = desk.text(width, height);
                assert_eq!(layout(&text), before, "{what}, {gpus} at {width}x{height}:\n{text}");
            };
            // A tag, groups, a tree, a filter that hides everything, and each of them undone.
            for keys in [" ", "t", "t", "t", "\x1b", "/absent\n", "\x1b", "jjj"] {
                desk.send(keys);
                check(&desk, keys);
            }
            let mut lost = frame(gpus, &members[..1]);
            lost.gpus[0].health =
                Health { state: HealthState::Lost, since: Some(lost.mono), detail: None };
            lost.seq = 2;
            desk.update(Update::Frame(Arc::new(lost)));
            check(&desk, "a lost GPU and seven exits");
        }
    }
}

#[test]
fn a_low_window_has_tables_if_they_fit_and_one_title() {
    let members: Vec<Member> =
        (0..2).map(|n| Member::new(418 + n, "ana", "python train.py", &[(0, 20)])).collect();
    for (gpus, height, has_tables) in
        [(1, 11, true), (1, 13, true), (2, 12, true), (8, 12, false), (8, 18, true), (1, 9, false)]
    {
        let text = TestApp::new(gpus, &members).text(80, height);
        assert_eq!(text.contains(" PID "), has_tables, "{gpus} GPUs, {height} rows:\n{text}");
        assert_eq!(text.matches("22:15:00").count(), 1, "{gpus} GPUs, {height} rows:\n{text}");
    }
}

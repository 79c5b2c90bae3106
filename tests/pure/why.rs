//! Why a process is slow: on its screen, in the notes of its GPU, and in print.

use std::sync::Arc;

use gputop::dashboard::why::report;
use gputop::export::why::{bars, text};
use gputop::tui::app::App;
use gputop::tui::picture::text_of;
use gputop::tui::view::View;
use gputop_model::phases::{Phase, PhaseCount, PhasePlace, PhaseRequest, PhaseWindow, WorkerLoad};
use gputop_model::protocol::{Request, Update};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::units::{Millis, Mono, Percent};
use ratatui::crossterm::event::KeyCode;

use crate::memory_screen::{app, drawn, frame, key, press, view_after_keys};

/// Second of the first frame.
const FIRST: u64 = 600;

/// Returns a window of 10 s that ends with the frame on the screen.
fn window(app: &App, phase: Phase) -> PhaseWindow {
    let count = |phase, count| PhaseCount { phase, count };
    let mut window = PhaseWindow {
        process: key(418),
        at: app.host.frame.mono,
        length: Millis(10_000),
        age: Millis(600_000),
        phases: vec![count(phase, 82), count(Phase::Backward, 18)],
        places: vec![PhasePlace {
            phase,
            count: 82,
            function: "train".into(),
            file: "/home/ana/train.py".into(),
            line: 57,
            text: Some("next(batches)".into()),
        }],
        workers: WorkerLoad {
            count: 2,
            cpu: Reading::Value(Percent(97.0)),
            run_delay: Reading::Value(Percent(1.0)),
            ..WorkerLoad::default()
        },
        ..PhaseWindow::default()
    };
    window.thread.is_main = true;
    window.thread.cpu = Reading::Value(Percent(3.0));
    window
}

fn take(app: &mut App, window: PhaseWindow) {
    app.update(Update::Phases(window.process, Arc::new(Ok(window))));
}

/// Shows a frame with a GPU that is used this much.
fn show(app: &mut App, second: u64, used: f64) {
    let mut frame = frame(second);
    for gpu in &mut frame.gpus {
        gpu.sm = Reading::Value(Percent(used));
        gpu.traffic = None;
    }
    app.update(Update::Frame(Arc::new(frame)));
}

fn requests(view: &mut View, app: &mut App, code: KeyCode) -> Vec<Option<PhaseRequest>> {
    let requests = press(view, app, code).into_iter();
    let wanted = requests.filter_map(|request| match request {
        Request::Phases(wanted) => Some(wanted),
        _ => None,
    });
    wanted.collect()
}

#[test]
fn the_process_is_sampled_while_its_screen_asks() {
    let mut app = app(false, true);
    let mut view = view_after_keys(&mut app, "");
    let wanted = Some(PhaseRequest { process: key(418), window: Millis(10_000) });
    assert_eq!(requests(&mut view, &mut app, KeyCode::Char('b')), [wanted]);
    assert!(text_of(&drawn(&view, &app, 120, 40)).contains("Why slow"));
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down), []);
    let sampled = window(&app, Phase::LoaderWait);
    take(&mut app, sampled);
    let shown = text_of(&drawn(&view, &app, 120, 60));
    for part in [
        "Waits for the data loader: 82 % (±11)",
        "2 workers at 97 % CPU each",
        "82 % (±11)  waits for loader workers  ▇▇▇▇",
        "next(batches)",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert_eq!(requests(&mut view, &mut app, KeyCode::Char('b')), [None]);
    assert!(!text_of(&drawn(&view, &app, 120, 60)).contains("Why slow"));
    assert_eq!(requests(&mut view, &mut app, KeyCode::Char('b')), [wanted]);
    assert_eq!(requests(&mut view, &mut app, KeyCode::Esc), [None]);
}

#[test]
fn the_reason_takes_the_whole_width_at_every_size() {
    let mut app = app(false, true);
    let view = view_after_keys(&mut app, "b");
    let sampled = window(&app, Phase::LoaderWait);
    take(&mut app, sampled);
    for (width, height) in [(120, 40), (80, 24), (40, 6), (200, 50)] {
        let shown = text_of(&drawn(&view, &app, width, height));
        assert!(shown.contains("\n Waits for the data loader"), "{width}x{height}\n{shown}");
        let bar = shown.lines().find(|line| line.contains("waits for loader workers"));
        assert!(height < 10 || bar.is_some_and(|bar| bar.starts_with("  82 % ")), "{shown}");
    }
}

#[test]
fn bars_give_way_to_the_names_of_the_phases() {
    let app = app(false, true);
    let sampled = window(&app, Phase::QueueWait);
    let first = |width| bars(&sampled, width, "#").swap_remove(0);
    assert_eq!(
        first(100),
        format!(" 82 % (±11)  waits for a thread or process  {}", "#".repeat(20))
    );
    assert_eq!(first(54), " 82 % (±11)  waits for a thread or process  ########");
    assert_eq!(first(42), " 82 % (±11)  waits for a thread or process");
    assert_eq!(first(38), " 82 %  waits for a thread or process");
}

#[test]
fn samples_are_requested_again_if_the_source_lost_the_request() {
    let mut app = app(false, true);
    let mut view = view_after_keys(&mut app, "b");
    show(&mut app, FIRST + 3, 10.0);
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down), []);
    show(&mut app, FIRST + 7, 10.0);
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down).len(), 1);
}

#[test]
fn a_process_that_cannot_be_sampled_says_why() {
    let mut app = app(false, true);
    let view = view_after_keys(&mut app, "b");
    let why = Missing::new(Reason::Gone, "the process has exited");
    app.update(Update::Phases(key(418), Arc::new(Err(why))));
    assert!(text_of(&drawn(&view, &app, 120, 40)).contains("the process has exited"));
}

/// Feeds windows ten seconds apart, and returns the overview.
fn overview_after(phases: &[Phase], used: f64) -> String {
    let mut app = app(false, true);
    for (i, phase) in phases.iter().enumerate() {
        show(&mut app, FIRST + 10 * (i as u64 + 1), used);
        let sampled = window(&app, *phase);
        take(&mut app, sampled);
    }
    show(&mut app, FIRST + 10 * phases.len() as u64 + 1, used);
    let view = view_after_keys(&mut app, "");
    text_of(&drawn(&view, &app, 200, 50))
}

#[test]
fn overview_notes_a_cause_that_was_the_same_in_three_windows() {
    use Phase::{Disk, LoaderWait};
    let note = "waits for data loader 82 %";
    let cases = [
        (&[LoaderWait, LoaderWait, LoaderWait][..], 10.0, true),
        (&[LoaderWait, LoaderWait], 10.0, false),
        (&[LoaderWait, Disk, LoaderWait], 10.0, false),
        (&[Disk, LoaderWait, LoaderWait, LoaderWait], 10.0, true),
        (&[LoaderWait, LoaderWait, LoaderWait], 61.0, false),
    ];
    for (phases, used, expected) in cases {
        let shown = overview_after(phases, used);
        assert_eq!(shown.contains(note), expected, "{phases:?} at {used}\n{shown}");
    }
}

#[test]
fn status_line_names_what_needs_a_person() {
    let mut app = app(false, true);
    for i in 1..=3 {
        show(&mut app, FIRST + 10 * i, 10.0);
        let mut sampled = window(&app, Phase::Python);
        sampled.quota_stopped = Reading::Value(Percent(35.0));
        sampled.quota = Reading::Value(Percent(200.0));
        take(&mut app, sampled);
    }
    let view = view_after_keys(&mut app, "");
    let shown = text_of(&drawn(&view, &app, 200, 50));
    let sentence = "The CPU quota of 2.0 cores of its container stops the process 35 % of the time";
    assert!(shown.contains(sentence), "{shown}");
}

#[test]
fn the_printed_answer() {
    let mut app = app(false, true);
    let sampled = window(&app, Phase::LoaderWait);
    take(&mut app, PhaseWindow { at: Mono(sampled.at.0), ..sampled });
    let report = report(&app.host, key(418)).unwrap().unwrap();
    insta::assert_snapshot!(text(&report, 100));
}

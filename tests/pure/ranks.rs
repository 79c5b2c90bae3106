//! The ranks of a job in a recording: four ranks on the fake CUDA, of which rank 3 waits for its data loader from the
//! 53rd second on.

use std::sync::Arc;

use crossterm::event::KeyCode;
use gputop::dashboard::dangers::dangers;
use gputop::export::glyphs::UNICODE;
use gputop::export::ranks::{RankDocument, slow_lines, text};
use gputop::tui::app::App;
use gputop::tui::picture::text_of;
use gputop::tui::theme::Palette;
use gputop::tui::view::View;
use gputop_model::frame::Frame;
use gputop_model::process_group::{GroupArrivals, LastArrivals, RankReading};
use gputop_model::protocol::{Request, Update};
use gputop_model::ras::{RasDifference, RasDifferenceKind, RasRank, RasReport};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::units::{Millis, Percent};
use jiff::tz::TimeZone;

use crate::memory_screen::{drawn, press, view_after_keys};
use crate::support::many_processes::{Member, TestApp};
use crate::support::screen_fixture::{app_at, draw};
use crate::support::training_day::Day;

const RANKS: &[u8] = include_bytes!("../data/recordings/ranks.gpt.zst");
const SENTENCE: &str =
    "rank 3 holds up 3 ranks for 20 s: it waits for its data loader (train.py:37)";

fn app(seconds: u64) -> App {
    app_at(RANKS, seconds, Palette::None, false, false)
}

fn said(app: &App) -> Vec<String> {
    dangers(&app.host).into_iter().map(|danger| danger.text).collect()
}

#[test]
fn the_rank_that_holds_up_the_others_is_named_with_what_it_does() {
    assert_eq!(said(&app(74)), [SENTENCE]);
    let text = text_of(&draw(&app(74), "overview", 120, 40));
    assert!(text.contains(SENTENCE) && text.contains("r ranks"), "{text}");
    assert_eq!(text.matches("waits for rank 3").count(), 3, "{text}");
}

#[test]
fn nothing_is_said_of_a_job_that_goes_on_or_has_just_begun_to_wait() {
    for seconds in [5, 30, 50, 58] {
        assert_eq!(said(&app(seconds)), [""; 0], "at {seconds} s");
    }
    let text = text_of(&draw(&app(30), "ranks", 120, 40));
    assert_eq!(text.matches(" runs ").count(), 4, "{text}");
}

#[test]
fn the_gpu_of_a_rank_with_little_to_do_is_noted_while_the_others_are_busy() {
    let note = |quiet: &[usize]| {
        let mut app = TestApp::new(8, &[] as &[Member]);
        let mut day = Day::new();
        for _ in 0..90 {
            let mut frame = day.next().clone();
            for (index, gpu) in frame.gpus.iter_mut().enumerate() {
                let sm = if quiet.contains(&index) { 2.0 } else { 97.0 };
                gpu.sm = Percent(sm).into();
            }
            app.update(Update::Frame(Arc::new(frame)));
        }
        let text = app.text(120, 40);
        text.matches("SM 2 %, other ranks 97 %").count()
    };
    assert_eq!(note(&[2]), 1);
    assert_eq!(note(&[]), 0);
    // With two of them, nobody knows which one the others wait for.
    assert_eq!(note(&[2, 5]), 0);
}

#[test]
fn ranks_at_every_size() {
    let app = app(74);
    for (width, height) in [(40, 6), (80, 24), (120, 40), (200, 50)] {
        for screen in ["overview", "ranks"] {
            let name = format!("{screen}-{width}x{height}");
            insta::assert_snapshot!(name, text_of(&draw(&app, screen, width, height)));
        }
    }
}

#[test]
fn ranks_are_printed_as_text_and_json() {
    let app = app(74);
    insta::assert_snapshot!("printed", text(&app.host, 120, &UNICODE, &TimeZone::UTC));
    let json = serde_json::to_value(RankDocument::of(&app.host)).unwrap();
    let job = &json["jobs"][0];
    assert_eq!(job["world_size"], 4);
    let verdict = &job["verdicts"][0];
    assert_eq!(verdict["text"], SENTENCE);
    assert_eq!((&verdict["culprits"], &verdict["waiting"]), (&[3].into(), &[0, 1, 2].into()));
    assert_eq!(verdict["work"]["seq"], 900);
    assert_eq!(job["ranks"][3]["place"], "train.py:37");
    assert_eq!(json["ranks"].as_array().map(Vec::len), Some(4));
}

/// Returns the arrivals of these ranks at this many collectives. Rank 1 came last to most, 52 ms after the first.
fn group(app: &App, collectives: u32, ranks: &[u32]) -> GroupArrivals {
    GroupArrivals {
        store: app.host.jobs.reports()[0].job.store.as_deref().map(Into::into),
        group: "default_pg".into(),
        size: 4,
        ranks: ranks.to_vec(),
        collectives,
        last: vec![
            LastArrivals { rank: 1, count: collectives * 24 / 25, lateness: Millis(52) },
            LastArrivals { rank: 2, count: collectives / 25, lateness: Millis(21) },
        ],
    }
}

/// Takes such a count, and returns the lines about it.
fn count(app: &mut App, collectives: u32, ranks: &[u32]) -> Vec<(String, bool)> {
    app.update(Update::Arrivals(Arc::new(vec![group(app, collectives, ranks)])));
    slow_lines(&app.host.jobs)
}

/// Presses a key, and returns the requests about arrivals.
fn requests(view: &mut View, app: &mut App, code: KeyCode) -> Vec<bool> {
    let requests = press(view, app, code).into_iter();
    let wanted = requests.filter_map(|request| match request {
        Request::Arrivals(is_wanted) => Some(is_wanted),
        _ => None,
    });
    wanted.collect()
}

#[test]
fn a_slow_rank_is_searched_only_while_the_screen_of_ranks_asks() {
    let mut app = app_at(RANKS, 30, Palette::None, false, true);
    let mut view = view_after_keys(&mut app, "r");
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down), [false; 0]);
    assert_eq!(requests(&mut view, &mut app, KeyCode::Char('B')), [true]);
    assert!(text_of(&drawn(&view, &app, 120, 40)).contains("counting collectives"));
    assert_eq!(requests(&mut view, &mut app, KeyCode::Down), [false; 0]);
    count(&mut app, 60, &[0, 1, 2, 3]);
    let text = text_of(&drawn(&view, &app, 120, 40));
    assert!(text.contains("group default_pg: 60 of 100 collectives seen"), "{text}");
    count(&mut app, 200, &[0, 1, 2, 3]);
    for (width, height) in [(40, 6), (80, 24), (120, 40), (200, 50)] {
        let text = text_of(&drawn(&view, &app, width, height));
        insta::assert_snapshot!(format!("slow-rank-{width}x{height}"), text);
    }
    // A count needs the screen: it stops while another one is on top, and for good with the key.
    assert_eq!(requests(&mut view, &mut app, KeyCode::Char('i')), [false]);
    assert_eq!(requests(&mut view, &mut app, KeyCode::Esc), [true]);
    assert_eq!(requests(&mut view, &mut app, KeyCode::Char('B')), [false]);
    assert!(!text_of(&drawn(&view, &app, 120, 40)).contains("comes last"));
}

#[test]
fn ranks_of_other_hosts_are_not_compared() {
    let mut app = app_at(RANKS, 30, Palette::None, false, true);
    let text = "group default_pg: rank 1 comes last to 96 % of the collectives, 52 ms after the first rank (of its 2 ranks on this host)";
    assert_eq!(count(&mut app, 200, &[0, 1]), [(text.to_owned(), true)]);
    // Groups of the same name are told apart by their ranks.
    let mut two = [group(&app, 60, &[0, 2]), group(&app, 60, &[1, 3])];
    two.iter_mut().for_each(|group| group.size = 2);
    app.update(Update::Arrivals(Arc::new(two.to_vec())));
    let lines = slow_lines(&app.host.jobs);
    assert_eq!(lines[1].0, "group default_pg of ranks 1 and 3: 60 of 100 collectives seen");
    let text = "no group has two ranks on this host, and ranks of other hosts are not compared";
    assert_eq!(count(&mut app, 200, &[1]), [(text.to_owned(), false)]);
    assert_eq!(count(&mut app, 0, &[0, 1]), [("no collectives seen yet".to_owned(), false)]);
}

#[test]
fn a_slow_rank_is_in_the_json_once_arrivals_were_counted() {
    let mut app = app_at(RANKS, 30, Palette::None, false, true);
    let json = |app: &App| serde_json::to_value(RankDocument::of(&app.host)).unwrap();
    assert!(json(&app).get("slow").is_none());
    count(&mut app, 200, &[0, 1, 2, 3]);
    let slow = &json(&app)["slow"][0];
    assert_eq!((&slow["group"], &slow["collectives"]), (&"default_pg".into(), &200.into()));
    assert_eq!((&slow["slow"]["rank"], &slow["slow"]["lateness_ms"]), (&1.into(), &52.into()));
}

#[test]
fn nccl_is_asked_only_after_a_yes_and_its_answer_stays_on_the_screen() {
    let mut app = app_at(RANKS, 30, Palette::None, false, true);
    let mut view = view_after_keys(&mut app, "r");
    let asked = |requests: Vec<Request>| {
        requests.into_iter().filter(|request| matches!(request, Request::Ras(_))).count()
    };
    assert_eq!(asked(press(&mut view, &mut app, KeyCode::Char('R'))), 0);
    for (width, height) in [(40, 6), (80, 24), (120, 40), (200, 50)] {
        let text = text_of(&drawn(&view, &app, width, height));
        insta::assert_snapshot!(format!("ras-question-{width}x{height}"), text);
    }
    assert_eq!(asked(press(&mut view, &mut app, KeyCode::Char('n'))), 0);
    press(&mut view, &mut app, KeyCode::Char('R'));
    assert_eq!(asked(press(&mut view, &mut app, KeyCode::Char('y'))), 1);
    assert!(text_of(&drawn(&view, &app, 120, 40)).contains("asking NCCL about all ranks"));
    let ranks = vec![RasRank { rank: 5, host: "10.0.0.2".into(), pid: 412 }];
    let launched =
        RasDifferenceKind::Launched { operation: "AllReduce".into(), count: 29, usual: Some(30) };
    let report = RasReport {
        nccl_version: "2.28.9".into(),
        processes: 8,
        hosts: 2,
        communicators: 2,
        moving: 1,
        apart: Millis(5_004),
        differences: vec![RasDifference { size: 8, ranks, kind: launched }],
    };
    let process = app.host.jobs.lines[0].rank.process;
    app.update(Update::Ras(process, Arc::new(Ok(report))));
    for (width, height) in [(40, 6), (80, 24), (120, 40), (200, 50)] {
        let text = text_of(&drawn(&view, &app, width, height));
        insta::assert_snapshot!(format!("ras-{width}x{height}"), text);
    }
    let json = serde_json::to_value(RankDocument::of(&app.host)).unwrap();
    assert_eq!(json["ras"]["differences"][0]["ranks"][0]["pid"], 412);
}

#[test]
fn a_job_without_other_ranks_is_not_taken_for_none() {
    let app = app(74);
    let with = |change: &dyn Fn(&mut RankReading)| {
        let mut reading = app.host.frame.ranks[0].clone();
        reading.world_size = Some(1);
        change(&mut reading);
        let ranks = Arc::new(vec![reading]);
        app.host.jobs.why_none(&Frame { ranks, ..Frame::default() })
    };
    assert_eq!(
        app.host.jobs.why_none(&Frame::default()),
        "no process on this host has NCCL process groups"
    );
    let text = "every job on this host has a single rank, which waits for no other";
    assert_eq!(with(&|_| {}), text);
    let why = Missing::new(Reason::Denied, "not allowed to read the memory of the process");
    let missing = Reading::Missing(why.clone());
    let text = format!("no process group can be read: {why}");
    assert_eq!(with(&|reading| reading.groups = missing.clone()), text);
}

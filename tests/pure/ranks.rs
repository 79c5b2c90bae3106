//! The ranks of a job in a recording: four ranks on the fake CUDA, of which rank 3 waits for its data loader from the
//! 53rd second on.

use gputop::dashboard::dangers::dangers;
use gputop::export::glyphs::UNICODE;
use gputop::export::ranks::{RankDocument, text};
use gputop::tui::app::App;
use gputop::tui::picture::text_of;
use gputop::tui::theme::Palette;
use jiff::tz::TimeZone;

use crate::support::screen_fixture::{app_at, draw};

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

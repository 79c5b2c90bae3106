//! Every row of the table of GPU figures is read from NVML, and appears in JSON, CSV and doctor.

use std::time::Instant;

use gputop_model::gpu::{GPU_FIGURES, Gpu, GpuFigure, Period};
use gputop_model::reading::Reason;

use crate::support::deadline::DEADLINE;
use crate::support::fake_machine::run;
use crate::support::fake_nvml::FakeNvml;

/// Returns the figures of `gpu` that no call has read, except those that need an open screen.
fn unread(gpu: &Gpu) -> Vec<&'static str> {
    let is_unread = |figure: &&GpuFigure| {
        let is_missing = figure.field.read(gpu).is_err_and(|why| why.reason == Reason::NotRead);
        figure.period != Period::WhileShown && is_missing
    };
    GPU_FIGURES.iter().filter(is_unread).map(|figure| figure.name).collect()
}

#[test]
fn once_as_json_has_every_figure() {
    let fake = FakeNvml::h200s(1, "");
    let start = Instant::now();
    loop {
        let once = run(&fake, ["once", "--json"]);
        assert_eq!((once.code, once.err.as_str()), (Some(0), ""));
        let mut json: serde_json::Value = serde_json::from_str(&once.out).unwrap();
        let gpu: Gpu = serde_json::from_value(json["gpus"][0].take()).unwrap();
        let unread = unread(&gpu);
        if unread.is_empty() {
            return;
        }
        assert!(start.elapsed() < DEADLINE, "not read: {unread:?}");
    }
}

#[test]
fn once_as_csv_has_a_column_for_every_figure() {
    let fake = FakeNvml::h200s(1, "");
    let once = run(&fake, ["once", "--csv"]);
    let headings: Vec<&str> = once.out.lines().next().unwrap().split(',').collect();
    for figure in GPU_FIGURES {
        let heading = format!("{}{}", figure.name, figure.unit());
        let expected = usize::from(figure.period != Period::WhileShown);
        let count = headings.iter().filter(|name| **name == heading).count();
        assert_eq!(count, expected, "{heading}");
    }
}

#[test]
fn doctor_lists_every_figure_in_the_schedule() {
    let fake = FakeNvml::h200s(1, "");
    let doctor = run(&fake, ["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&doctor.out).unwrap();
    let calls = json["schedule"].as_array().unwrap();
    for figure in GPU_FIGURES {
        let is_listed = |call: &&serde_json::Value| {
            let name = call["name"].as_str().unwrap();
            name.split(", ").any(|label| label == figure.label())
        };
        assert_eq!(calls.iter().filter(is_listed).count(), 1, "{}", figure.name);
    }
}

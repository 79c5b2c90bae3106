//! `gputop summary`: the built-in recording, in every format, compared with itself, and damaged.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use gputop::source::record::Recorder;
use serde_json::Value;

use crate::support::fake_machine::{Guarded, command, gputop, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::replay_client::frame;
use crate::support::training_day::{self, Day};

fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/recordings/four_gpus.gpt.zst")
}

fn summary(args: &[&str]) -> Output {
    let mut command = gputop(["summary"]);
    command.args(args).env("TZ", "UTC").output().unwrap()
}

fn text(args: &[&str]) -> String {
    let output = summary(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn of_recording(args: &[&str]) -> String {
    text(&[args, &[recording().to_str().unwrap()]].concat())
}

#[test]
fn summarises_a_recording() {
    let text = of_recording(&[]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!("four_gpus", text);
}

#[test]
fn json_has_bytes_shares_and_first_fixes() {
    let json: Value = serde_json::from_str(&of_recording(&["--json"])).unwrap();
    assert_eq!((&json["schema"], &json["samples"]), (&1.into(), &236.into()));
    let gpu = &json["gpus"][0];
    assert_eq!(gpu["total_bytes"], 150_754_820_096_u64);
    let (peak, unused) = (&gpu["used"]["peak_bytes"], &gpu["unused_bytes"]);
    assert_eq!(peak.as_u64().unwrap() + unused.as_u64().unwrap(), 150_754_820_096);
    // 27.1 Wh, as integrated by hand from the powers in the recording.
    let joules = json["gpus"][1]["energy"]["joules"].as_f64().unwrap();
    assert!((97_000.0..98_500.0).contains(&joules), "{joules}");
    let fixes: Vec<&str> = json["incidents"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|incident| incident["first_fix"]["title"].as_str())
        .collect();
    assert_eq!(fixes.len(), 3, "{fixes:?}");
}

#[test]
fn html_is_one_file_that_loads_nothing() {
    let html = of_recording(&["--html"]);
    assert_eq!(html.matches("<svg ").count(), 4 + 6, "charts of GPUs and pools");
    assert!(html.contains("An exclamation mark is an incident."));
    let mut rest = html.as_str();
    // The only address is the name of SVG's namespace.
    while let Some(at) = rest.find("http") {
        rest = &rest[at + 4..];
        assert!(
            rest.starts_with("-equiv") || rest.starts_with("://www.w3.org/2000/svg"),
            "{}",
            &rest[..80]
        );
    }
    for tag in ["<script", "<img", "<iframe", "url(", "@import", " src="] {
        assert!(!html.contains(tag), "{tag}");
    }
}

#[test]
fn markdown_has_a_table_for_each_part() {
    let markdown = of_recording(&["--markdown"]);
    for heading in
        ["# four\\_gpus.gpt.zst\n", "\n## GPUs\n", "\n## Processes\n", "\n## Incidents\n"]
    {
        assert!(markdown.contains(heading), "{markdown}");
    }
    assert!(markdown.contains("| 0 | 140G |"), "{markdown}");
}

#[test]
fn compares_two_runs_figure_by_figure() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [60, 120].map(|seconds| {
        let path = folder.path().join(format!("{seconds}.gpt.zst"));
        let mut recorder = Recorder::create(&path, &training_day::hello()).unwrap();
        let mut day = Day::new();
        (0..=seconds).for_each(|_| recorder.frame(day.next()).unwrap());
        recorder.finish().unwrap();
        path.display().to_string()
    });
    let [a, b] = &paths;
    let json: Value = serde_json::from_str(&text(&["--json", a, b])).unwrap();
    let find = |title: &str, name: &str| {
        let mut subjects = json["subjects"].as_array().unwrap().iter();
        let subject = subjects.find(|s| s["title"].as_str().unwrap().starts_with(title));
        let mut figures = subject.unwrap()["figures"].as_array().unwrap().iter();
        figures.find(|figure| figure["name"] == name).unwrap().clone()
    };
    let duration = find("Recording", "duration_ms");
    assert_eq!(duration["difference"], 60_000);
    let energy = find("GPU 0", "joules");
    let difference = energy["b"].as_f64().unwrap() - energy["a"].as_f64().unwrap();
    assert!((energy["difference"].as_f64().unwrap() - difference).abs() < 0.2);
    assert!(text(&[a, b]).lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn an_unfinished_recording_is_summarised_up_to_its_end() {
    let whole = std::fs::read(recording()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.gpt.zst");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let json: Value = serde_json::from_str(&text(&["--json", cut.to_str().unwrap()])).unwrap();
    let samples = json["samples"].as_u64().unwrap();
    assert!((60..236).contains(&samples), "{samples}");
    std::fs::write(&cut, "no recording").unwrap();
    let output = summary(&[cut.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("not a gputop recording"), "{error}");
}

/// Returns a recording of `frames` seconds, and the offsets of its compressed minutes and notes.
fn recorded(frames: u64) -> (Vec<u8>, Vec<usize>) {
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    (0..frames).for_each(|seq| recorder.frame(&frame(seq)).unwrap());
    let bytes = recorder.finish().unwrap();
    let magic = 0xFD2F_B528_u32.to_le_bytes();
    let starts = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&magic));
    let starts = starts.collect();
    (bytes, starts)
}

#[test]
fn a_recording_without_a_readable_sample_is_an_error() {
    let (mut bytes, starts) = recorded(150);
    for start in starts {
        bytes[start + 4..start + 12].fill(0xff);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gpt.zst");
    std::fs::write(&path, &bytes).unwrap();
    let name = path.to_str().unwrap();
    for args in
        [&[name][..], &["--json", name], &["--html", name], &[recording().to_str().unwrap(), name]]
    {
        let output = summary(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "gputop: cannot summarize x.gpt.zst: it is damaged, and no sample in it can be read. \
             Use an intact copy of the recording\n"
        );
    }
}

#[test]
fn damage_is_a_gap_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gpt.zst");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let json = text(&["--json", path.to_str().unwrap()]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let number = |name: &str| json[name].as_u64().unwrap_or_default();
        (number("gaps"), number("damaged_minutes"))
    };
    let (bytes, starts) = recorded(170);
    assert_eq!(read(&bytes), (0, 0));
    // The minutes alternate with their notes. In each minute, the damage is in the middle or at the start.
    let minutes = [starts[0], starts[2], starts[4]];
    for (is_finished, minute, at) in [true, false]
        .iter()
        .flat_map(|f| minutes.map(|m| (f, m)))
        .flat_map(|(f, m)| [(f, m, 400), (f, m, 0)])
    {
        let mut damaged = bytes.clone();
        damaged[minute + at..minute + at + 10].iter_mut().for_each(|byte| *byte ^= 0x55);
        if !is_finished {
            damaged.truncate(bytes.len() - 4);
        }
        // The last minute of an unfinished recording may have been cut off.
        if *is_finished || minute != minutes[2] {
            assert_eq!(read(&damaged), (1, 1), "{minute} + {at}, finished: {is_finished}");
        }
    }
}

#[test]
fn a_trace_of_another_program_proves_nothing() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("crates/allocator/tests/data/snapshots/torch-2.15/expandable.pickle");
    let output = summary(&["--trace", trace.to_str().unwrap(), recording().to_str().unwrap()]);
    assert!(output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("cannot determine whether a smaller GPU would be large enough"),
        "{error}"
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("would have fit on"), "{text}");
}

#[test]
fn run_prints_a_summary_of_the_command_and_keeps_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (pid, stop, file) = (at("pid"), at("stop"), at("run.gpt.zst"));
    let script = format!(
        "echo $$ > {p}.tmp; mv {p}.tmp {p}; while [ ! -e {} ]; do sleep 0.05; done; exit 3",
        stop.display(),
        p = pid.display()
    );
    let fake = FakeNvml::h200s(2, "");
    let option = format!("--summary={}", file.display());
    let mut command = command(&fake, ["run", "--no-hook", &option, "--", "sh", "-c", &script]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Guarded(command.spawn().unwrap());
    wait_until("the command", || pid.exists());
    let number = std::fs::read_to_string(&pid).unwrap();
    fake.replace(&format!(
        "[[gpu]]\nsm = 40\n[[gpu]]\n[[process]]\npid = {}\ngpu = 0\nused = \"3 GiB\"\n",
        number.trim()
    ));
    let path = file.display().to_string();
    wait_until("the process in the recording", || {
        let output = summary(&["--json", &path]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let process = &json["processes"][0];
        process["vram"]["peak_bytes"] == 3_u64 << 30 && process["command"].is_string()
    });
    std::fs::write(&stop, "").unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(3));
    let mut printed = String::new();
    let mut stderr = child.0.stderr.take().unwrap();
    stderr.read_to_string(&mut printed).unwrap();
    assert!(printed.contains(&format!("PID {} sh: ", number.trim())), "{printed}");
    assert!(printed.contains("peak VRAM 3.0G"), "{printed}");
    // Only the GPU of the command is mentioned.
    assert!(printed.contains("GPU 0: ") && !printed.contains("GPU 1: "), "{printed}");
    assert!(printed.ends_with(&format!("Recording: {path}\n")), "{printed}");
    assert!(printed.trim().lines().count() <= 10, "{printed}");
    // The recording was completed.
    let json: Value = serde_json::from_str(&text(&["--json", &path])).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
}

#[test]
fn run_without_a_driver_reports_why_there_is_no_summary() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.gpt.zst");
    let option = format!("--summary={}", file.display());
    let output = gputop(["run", "--no-hook", &option, "--", "sleep", "0.3"])
        .env("GPUTOP_NVML", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("gputop: no summary: "), "{error}");
}

//! Bytes written per frame when only the clock changes: the cost of an idle pane over a slow link.
// The test prints its measurements and what it skipped.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use crate::support::deadline::DEADLINE;
use crate::support::fake_machine::{RealProcess, dashboard, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::shows;

/// Maximum size of a frame at 80x24.
const MAX_FRAME_BYTES: usize = 4 << 10;
/// Maximum median: enough for the clock and a moving chart, but not for a full redraw.
const MEDIAN: usize = 512;
/// Number of frames to count, after the first ones, in which values still arrive.
const FRAMES: usize = 20;
/// Returns the size of each frame so far: the bytes from one start of a synchronized update to the next.
fn frames(raw: &[u8]) -> Vec<usize> {
    let mark = b"\x1b[?2026h";
    let begins: Vec<usize> = raw
        .windows(mark.len())
        .enumerate()
        .filter_map(|(at, window)| (window == mark).then_some(at))
        .collect();
    begins.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn an_unchanged_overview_costs_little() {
    let processes: Vec<RealProcess> =
        (0..8).map(|i| RealProcess::start(&format!("train-{i}.py"))).collect();
    let gpus = "[[gpu]]\nsm = 97\npower = 131400\ntemperature = 44\n".repeat(8);
    let on = |(gpu, process)| on_gpu(gpu, process, "used = \"100 GiB\"\nsm = 93");
    let busy: String = processes.iter().enumerate().map(on).collect();
    let fake = FakeNvml::new(&(gpus + &busy));
    let terminal = dashboard(&fake).size(24, 80).start();
    let last = processes.last().unwrap().pid();
    terminal.wait_for(|s| shows(s, last, &[]), "the last process");
    let before = frames(&terminal.raw()).len();
    let deadline = Instant::now() + DEADLINE;
    while frames(&terminal.raw()).len() < before + FRAMES + 5 {
        assert!(Instant::now() < deadline, "too few frames came");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut counted = frames(&terminal.raw()).split_off(before + 5);
    counted.sort_unstable();
    let (median, most) = (counted[counted.len() / 2], counted[counted.len() - 1]);
    println!("bytes of a frame at 80x24, unchanged: {median} in the median, {most} at most");
    assert!(
        (1..=MEDIAN).contains(&median) && most <= MAX_FRAME_BYTES,
        "{median} in the median, {most} at most"
    );
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

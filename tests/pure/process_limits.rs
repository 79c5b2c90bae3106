//! As many processes as a machine may have: the time for a frame, and a test with ten thousand.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use gputop_model::protocol::Update;
use ratatui::crossterm::event::KeyCode;

use crate::support::many_processes::{Member, TestApp, frame};

fn throng(count: u32) -> Vec<Member> {
    let member = |i: u32| {
        let user = ["ana", "bob", "cleo"][i as usize % 3];
        let command = format!("python train.py --lr 0.{i} --config configs/experiment-{i}.yaml");
        Member::new(1_000 + i, user, &command, &[(i % 8, u64::from(i * 7_919 % 80))])
    };
    (0..count).map(member).collect()
}

/// Returns the time from receiving a frame to drawing it, with a filter and a non-default sort order.
fn shown(desk: &mut TestApp, update: Update) -> Duration {
    let start = Instant::now();
    desk.update(update);
    desk.text(200, 60);
    start.elapsed()
}

fn update(members: &[Member]) -> Update {
    Update::Frame(std::sync::Arc::new(frame(8, members)))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "a figure: run it with --release --nocapture"]
fn how_long_five_hundred_take() {
    for (count, limit) in [(500, 5), (10_000, 100)] {
        let members = throng(count);
        let mut desk = TestApp::new(8, &members);
        desk.send("/user:ana vram>1g\n");
        desk.press(KeyCode::F(6));
        desk.send("\n");
        let times = (0..51).map(|_| {
            let update = update(&members);
            shown(&mut desk, update)
        });
        let median = median(times.collect());
        println!("{count} processes filtered, ordered and drawn: {median:?}");
        assert!(median <= Duration::from_millis(limit), "{count}: {median:?}");
    }
}

#[test]
fn ten_thousand_processes_are_counted_sorted_and_filtered() {
    const COUNT: u32 = 10_000;
    let members = throng(COUNT);
    let mut desk = TestApp::new(8, &members);
    assert_eq!(desk.pids().len(), COUNT as usize);
    desk.send("\tG");
    let last = *desk.pids().last().unwrap();
    let text = desk.text(120, 40);
    let under = text.lines().find(|line| line.starts_with('▸')).unwrap();
    assert!(under.contains(&format!(" {last} ")), "{text}");
    desk.send("/pid:10999\n");
    assert_eq!(desk.pids(), [10_999]);
    desk.send("\x1b");
    // Group, tag all, and draw again and again: retained state does not grow with the number of frames.
    desk.send("ttg");
    assert!(desk.text(120, 40).contains("user cleo (3333)"), "{}", desk.text(120, 40));
    for _ in 0..3 {
        desk.update(update(&members));
    }
    assert_eq!(desk.pids().len(), COUNT as usize);
    // Then all processes but one exit.
    desk.update(update(&members[..1]));
    assert_eq!(desk.pids(), [1_000]);
}

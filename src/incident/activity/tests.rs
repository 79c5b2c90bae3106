use std::time::Duration;

use gputop_model::Event;
use gputop_model::gpu::Health;
use gputop_model::reading::Reading;
use gputop_model::units::Percent;

use super::*;
use crate::incident::results::{ResultReceiver, result_channel};
use crate::incident::store::Store;

const KEY: ProcessKey = ProcessKey::new(418, 7);

fn frame(seconds: u64, sm: impl Into<Reading<Percent>>) -> Frame {
    let listed = GpuProcess {
        pid: KEY.pid,
        process: Some(KEY),
        vram: Bytes::gib(2).into(),
        sm: sm.into(),
        ..GpuProcess::default()
    };
    let gpu = Gpu {
        health: Health { state: HealthState::Answering, ..Health::default() },
        processes: vec![listed].into(),
        ..Gpu::default()
    };
    Frame { mono: Mono(seconds * 1_000), gpus: vec![gpu], ..Frame::default() }
}

/// A watcher that runs `command` for each exit, in a folder of its own.
struct ExitWatcher {
    folder: tempfile::TempDir,
    notifications: Notifications,
    watcher: ActivityWatcher,
    _report: ResultSender,
    results: ResultReceiver,
}

impl ExitWatcher {
    fn start(command: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let notifications = Notifications::default();
        let sink = IncidentSink {
            store: Store::at(&folder.path().join("incidents")),
            on_incident: Some(format!("cd {}; {command}", folder.path().display())),
            on_idle: None,
            on_exit: true,
            record_names: false,
            notifications: notifications.clone(),
        };
        let (report, results) = result_channel();
        let watcher = ActivityWatcher::start(Some(&sink), &report);
        Self { folder, notifications, watcher, _report: report, results }
    }

    fn exit(&mut self, pid: u32) -> Option<String> {
        self.watcher.see(&Update::Event(Event {
            process: Some(ProcessKey::new(pid, 1)),
            observation: Observation::Exit(Box::default()),
            ..Event::default()
        }))
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Waits for a complete line in a file.
    fn line(&self, name: &str) -> String {
        let begun = Instant::now();
        loop {
            let text = self.read(name);
            if let Some(line) = text.strip_suffix('\n') {
                return line.to_owned();
            }
            assert!(begun.elapsed() < TIMEOUT, "no line in {name}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn each_of_many_exits_is_one_line_of_json() {
    let mut exits = ExitWatcher::start("cat >> lines");
    for pid in 0..150 {
        assert_eq!(exits.exit(pid), None);
    }
    assert_eq!(exits.notifications.finish(TIMEOUT), Vec::<String>::new());
    let lines = exits.read("lines");
    let pids: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("one document"))
        .map(|one| one["title"].as_str().expect("a title").to_owned())
        .collect();
    assert_eq!(
        pids,
        (0..150).map(|pid| format!("a process (PID {pid}) exited")).collect::<Vec<_>>()
    );
}

#[test]
fn names_each_exit_that_finds_no_room() {
    let mut exits = ExitWatcher::start("echo $$ > running; sleep 60");
    assert_eq!(exits.exit(1), None);
    exits.line("running");
    let most = u32::try_from(MAX_WAITING).expect("small");
    assert!((2..2 + most).all(|pid| exits.exit(pid).is_none()));
    for pid in [5_001, 5_002] {
        let message = exits.exit(pid).expect("no room");
        assert_eq!(
            message,
            format!(
                "on_incident: {MAX_WAITING} notifications are waiting, so the command is not run for: \
                     a process (PID {pid}) exited"
            )
        );
    }
    // All others are waiting, or are named at exit.
    let lost = exits.notifications.finish(Duration::ZERO);
    assert_eq!(lost.len(), MAX_WAITING + 1);
    assert!(lost.iter().any(|subject| subject.starts_with("a process (PID 1025) exited")));
}

#[test]
fn a_command_does_not_outlive_gputop() {
    let mut exits = ExitWatcher::start("echo $$ > running; sleep 60 & sleep 60");
    assert!((1..=3).all(|pid| exits.exit(pid).is_none()));
    let group = exits.line("running").parse().expect("a PID");
    let mut lost = exits.notifications.finish(Duration::from_millis(50));
    lost.sort_unstable();
    let named =
        |subject: &String, pid: u32| subject.starts_with(&format!("a process (PID {pid}) exited"));
    assert!(lost.len() == 3 && lost.iter().zip(1..).all(|(one, pid)| named(one, pid)), "{lost:?}");
    // On a busy machine, the command may be killed only now.
    lost.extend(exits.notifications.finish(TIMEOUT));
    let is_killed = |subject: &String| subject.contains("interrupted and killed");
    assert!(lost.iter().any(is_killed), "{lost:?}");
    let begun = Instant::now();
    while is_group_running(group) {
        assert!(begun.elapsed() < TIMEOUT, "the command is running");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns true if a process of the group runs. Killed processes remain as zombies until init reaps them.
fn is_group_running(group: i32) -> bool {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let stats = processes.filter_map(|one| std::fs::read_to_string(one.path().join("stat")).ok());
    stats.into_iter().any(|stat| {
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect());
        let fields: Vec<&str> = fields.unwrap_or_default();
        fields.get(2).and_then(|pgrp| pgrp.parse().ok()) == Some(group)
            && !["Z", "X"].contains(&fields[0])
    })
}

#[tokio::test]
async fn a_failed_command_is_reported_also_at_exit() {
    let mut exits = ExitWatcher::start("echo no such channel >&2; exit 4");
    assert_eq!(exits.exit(1), None);
    let why = "the command failed (exit 4): no such channel";
    let reported = exits.results.next().await;
    assert_eq!(reported, Some(WatchResult::Error(format!("on_incident: {why}"))));
    // Nothing reads reports once the watcher has finished.
    exits.results = result_channel().1;
    assert_eq!(exits.exit(2), None);
    let lost = exits.notifications.finish(TIMEOUT);
    assert_eq!(lost, [format!("a process (PID 2) exited ({why})")]);
}

#[test]
fn reports_each_idle_period_once_and_never_an_unknown_share() {
    let (report, _results) = result_channel();
    let mut watcher = ActivityWatcher::start(None, &report);
    watcher.idle_time = Some(Millis(60_000));
    let mut reported = |seconds, sm: f64| watcher.idle(&frame(seconds, Percent(sm))).len();
    assert_eq!((reported(0, 0.0), reported(59, 0.0)), (0, 0));
    assert_eq!((reported(60, 0.0), reported(200, 0.0)), (1, 0));
    assert_eq!((reported(201, 5.0), reported(202, 0.0)), (0, 0));
    assert_eq!((reported(261, 0.0), reported(262, 0.0)), (0, 1));
    for seconds in [300, 400] {
        let unknown = frame(seconds, Reading::default());
        assert!(watcher.idle(&unknown).is_empty());
    }
}

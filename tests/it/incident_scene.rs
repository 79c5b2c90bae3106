//! The scene of an incident, from a real process whose allocator counts a failed allocation to the store and the
//! screen.

use std::fmt::Write as _;
use std::process::Stdio;

use gputop::incident::{WatchResult, Watcher};
use gputop::source::record::Recorder;
use gputop::source::replay::Options;
use gputop_explain::ranks::JoinedJobs;
use gputop_model::event::{Event, Observation, OomCountIncreased};
use gputop_model::holders::summary::HolderSummary;
use gputop_model::holders::{HolderClass, HolderGroup, Holders};
use gputop_model::pool::{FailureMap, PoolMap};
use gputop_model::protocol::{Play, Position, Update};
use gputop_model::scene::Scene;
use gputop_model::stack::{PythonStack, StackFrame, StackThread, StackTrigger};
use gputop_model::units::{Bytes, Millis, Mono, Pid};
use gputop_peek::torch::Attached;
use serde_json::Value;

use crate::support::deadline::DEADLINE;
use crate::support::fake_machine::{RealProcess, command, dashboard, is_host, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::python;
use crate::support::python_target::PythonTarget;
use crate::support::replay_client::{PAUSED, frame, start};
use crate::support::screen_fixture::FOUR_GPUS;
use crate::support::terminal::{Launch, Terminal};
use crate::support::torch_target::Target;
use crate::support::training_day;
use crate::support::training_model::Trainer;
use crate::torch_live::{allocated_bytes, dump_path};

/// Offset from `allocated_bytes` to `num_ooms` in torch 2.6: five arrays and `num_alloc_retries`.
const NUM_OOMS_OFFSET: u64 = 5 * 96 + 8;

/// An unprepared training run and another program on the same GPU, which is throttled.
struct TrainingScene {
    home: tempfile::TempDir,
    trainer: Pid,
    other: RealProcess,
    fake: FakeNvml,
}

fn scenario(trainer: Pid, other: &RealProcess, used: &str) -> String {
    let mut scenario = String::from(
        "[driver]\nversion = \"580.159.03\"\n[[gpu]]\nsm_clock = 1_755\nthrottle = [\"sw_power_cap\"]\n",
    );
    let _ = writeln!(scenario, "[[process]]\npid = {trainer}\ngpu = 0\nused = \"40 GiB\"");
    scenario + &on_gpu(0, other, &format!("used = \"{used}\""))
}

impl TrainingScene {
    fn new(trainer: Pid) -> Self {
        let other = RealProcess::start("bench.py");
        Self {
            home: tempfile::tempdir().unwrap(),
            trainer,
            fake: FakeNvml::new(&scenario(trainer, &other, "12 GiB")),
            other,
        }
    }

    fn dashboard(&self) -> Terminal {
        self.start(dashboard(&self.fake))
    }

    fn start(&self, launch: Launch) -> Terminal {
        let launch = launch.env("XDG_STATE_HOME", self.home.path());
        launch.size(60, 120).start()
    }

    /// Waits until the trainer's allocator is read.
    fn wait_read(&self, terminal: &Terminal) {
        terminal.wait_text("bench.py");
        terminal.send("jM");
        terminal.wait_text("memory_allocated()");
        terminal.send("\x1b");
        terminal.wait_text("COMMAND");
    }

    /// Makes the allocator count a failed allocation that the program catches.
    fn fail(&self, poke: impl FnOnce(u64, u64)) {
        let proc = std::path::Path::new("/proc");
        let mut attached = Attached::open(proc, self.trainer).unwrap();
        let failed = attached.stats().unwrap()[0].num_ooms;
        let failed = u64::try_from(failed).unwrap() + 1;
        poke(allocated_bytes() + NUM_OOMS_OFFSET, failed);
    }

    /// Returns the saved record of the only incident.
    fn stored_incident(&self) -> (String, Scene) {
        let list: Value = serde_json::from_str(&self.incidents(&["list", "--json"])).unwrap();
        assert_eq!(list["incidents"].as_array().unwrap().len(), 1, "{list}");
        let uid = list["incidents"][0]["uid"].as_str().unwrap().to_owned();
        let stored_incident = self.incidents(&["export", &uid, "--json"]);
        let stored_incident: Value = serde_json::from_str(&stored_incident).unwrap();
        let scene = stored_incident["incidents"][0]["scene"].clone();
        (uid, serde_json::from_value(scene).unwrap())
    }

    fn incidents(&self, args: &[&str]) -> String {
        let args = ["incidents"].iter().chain(args);
        let mut command = command(&self.fake, args);
        command.env("XDG_STATE_HOME", self.home.path());
        let out = command.stderr(Stdio::null()).output().unwrap().stdout;
        String::from_utf8(out).unwrap()
    }
}

#[test]
fn map_others_clocks_and_versions_are_kept_with_an_incident_and_shown() {
    if !is_host() {
        return;
    }
    let mut trainer = Target::start(&dump_path());
    let stage = TrainingScene::new(trainer.pid());
    let terminal = stage.dashboard();
    stage.wait_read(&terminal);
    stage.fail(|address, value| trainer.poke(address, value));
    terminal.wait_text("OUT OF MEMORY");
    terminal.send("d");
    for shown in ["ON    GPU 0", "slowed by power cap", "ALSO  PID", "MAP   read at most", "WITH  "]
    {
        terminal.wait_text(shown);
    }
    let (uid, scene) = stage.stored_incident();
    let shown = stage.incidents(&["show", &uid]);
    assert!(shown.contains("bench.py"), "{shown}");
    assert!(shown.contains("driver 580.159.03"), "{shown}");
    // The line wraps where the name of this kernel ends.
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(words.join(" ").contains("torch 2."), "{shown}");
    let exported = stage.incidents(&["export", &uid]);
    assert!(exported.contains("### Scene"), "{exported}");
    assert!(!exported.contains("bench.py"), "it goes to strangers: {exported}");

    let gpu = &scene.frame.gpus[0];
    assert_eq!(gpu.sm_clock.get().map(|clock| clock.0), Some(1_755));
    assert_eq!(gpu.processes.value().map(Vec::len), Some(2));
    let map = scene.map.expect("a map");
    assert!(map.lag.0 < 2_000, "{} ms", map.lag.0);
    let whole = map.whole.as_ref().expect("all of it");
    let blocks: usize = whole.segments.iter().map(|segment| segment.blocks.len()).sum();
    assert_eq!((whole.segments.len() as u64, blocks as u64), (map.segments, map.blocks));
    // The process is not Python, so its stack cannot be read and none is saved.
    assert!(scene.stacks.is_empty());
}

#[test]
fn process_that_took_memory_since_the_last_frame_is_found() {
    if !is_host() {
        return;
    }
    let mut trainer = Target::start(&dump_path());
    let stage = TrainingScene::new(trainer.pid());
    // A long interval, so that hardly a frame arrives in between.
    let launch = Launch::gputop().envs(stage.fake.env());
    let terminal = stage.start(launch.args(["--interval", "2s"]));
    stage.wait_read(&terminal);
    // Start right after a frame. The header shows the time of the frame.
    let header = |screen: &vt100::Screen| screen.contents().lines().next().map(str::to_owned);
    let before = terminal.text().lines().next().map(str::to_owned);
    terminal.wait_for(|screen| header(screen) != before, "the next frame");
    let grown = scenario(stage.trainer, &stage.other, "95 GiB");
    stage.fake.replace(&grown);
    stage.fail(|address, value| trainer.poke(address, value));
    // The status line may show a newer incident of another test's program. The list has all.
    terminal.send("i");
    terminal.wait_text("GPU IN USE BY OTHERS");
}

#[test]
fn the_python_stack_at_a_failed_allocation_is_read_by_itself_and_kept() {
    let Some(python) = python::all().first().filter(|_| is_host()) else { return };
    let mut trainer = PythonTarget::start(python, &dump_path());
    let stage = TrainingScene::new(trainer.pid());
    let terminal = stage.dashboard();
    stage.wait_read(&terminal);
    stage.fail(|address, value| trainer.poke(address, value));
    terminal.wait_text("OUT OF MEMORY");
    terminal.send("d");
    terminal.wait_text("STACK read at most");
    let (uid, scene) = stage.stored_incident();
    let [stack] = &scene.stacks[..] else {
        panic!("{:?}", scene.stacks);
    };
    assert_eq!((stack.process.pid, stack.why), (trainer.pid(), StackTrigger::Oom));
    assert!(scene.map.is_some());
    let shown = stage.incidents(&["show", &uid]);
    assert!(shown.contains(" step\n"), "{shown}");
    assert!(shown.contains(" main\n"), "{shown}");
}

#[test]
fn process_killed_by_oom_is_marked_and_opens_its_incident() {
    if !is_host() {
        return;
    }
    let mut trainer = Target::start(&dump_path());
    let stage = TrainingScene::new(trainer.pid());
    let terminal = stage.dashboard();
    stage.wait_read(&terminal);
    stage.fail(|address, value| trainer.poke(address, value));
    terminal.wait_text("OUT OF MEMORY");
    trainer.kill();
    terminal.wait_text(" (OOM ");
    // The other process has no OOM.
    terminal.send("/state:oom\r");
    terminal
        .wait_for(|screen| !screen.contents().contains("bench.py"), "the other to be filtered out");
    terminal.send("G\r");
    terminal.wait_text("Incident  Enter or d Explain");
    let is_marked = |screen: &vt100::Screen| {
        let shown = screen.contents();
        let mut axes = shown.lines().filter(|line| line.contains("\u{2500}\u{2500}"));
        shown.contains("VRAM on GPU 0") && axes.any(|axis| axis.contains('■'))
    };
    terminal.wait_for(is_marked, "the mark of the incident");
    terminal.send("\r");
    terminal.wait_text("oom-capacity");
}

#[test]
fn recording_restores_stack_and_map_of_a_failure() {
    let process = training_day::key(0);
    let moment = |seq: u64| frame(seq).mono;
    let stack = PythonStack {
        process,
        at: Mono(moment(3).0 + 60),
        why: StackTrigger::Oom,
        lag: Millis(52),
        threads: vec![StackThread {
            is_main: true,
            frames: vec![StackFrame {
                function: "step".into(),
                file: "/home/ana/train.py".into(),
                line: 57,
            }],
            ..StackThread::default()
        }],
        ..PythonStack::default()
    };
    let maximum = PythonStack { at: moment(1), why: StackTrigger::NewMaximum, ..stack.clone() };
    let map = PoolMap { at: Mono(moment(3).0 + 70), ..Trainer::new(0).map(moment(3)) };
    let failed = FailureMap { since: moment(3), map };
    let group = HolderGroup {
        class: HolderClass::Parameter,
        name: "model.*.weight".into(),
        bytes: Bytes::mib(512),
        ..HolderGroup::default()
    };
    let read =
        Holders { process, at: Mono(moment(3).0 + 80), groups: vec![group], ..Holders::default() };
    let holders = HolderSummary::of(&read, 0);
    let rose = OomCountIncreased { after: 1, since: moment(3), ..OomCountIncreased::default() };
    let event = Event {
        mono: Mono(moment(3).0 + 50),
        process: Some(process),
        observation: Observation::Ooms(Box::new(rose)),
        ..Event::default()
    };
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    for seq in 0..6 {
        recorder.frame(&frame(seq)).unwrap();
        if seq == 1 {
            recorder.stack(&maximum).unwrap();
        }
        if seq == 3 {
            recorder.event(&event).unwrap();
            recorder.stack(&stack).unwrap();
            recorder.failure_map(&failed).unwrap();
            recorder.holder_summary(&holders).unwrap();
        }
    }
    let mut seen = start(recorder.finish().unwrap(), PAUSED);
    seen.position(|_| true);
    seen.ask(Play::Step(5));
    seen.position(|position| position.at_end);
    let stacks = seen.updates.iter().filter_map(|update| match update {
        Update::Stacks(_, stack) => Some(stack.as_ref().clone().unwrap()),
        _ => None,
    });
    assert_eq!(stacks.collect::<Vec<_>>(), [maximum, stack.clone()]);
    let watcher = Watcher::start(None).unwrap();
    seen.updates.iter().for_each(|update| watcher.see(update));
    let found = watcher.finish(DEADLINE);
    let Some(WatchResult::Incident(record)) = found.last() else {
        panic!("{found:?}");
    };
    let scene = record.scene.as_ref().unwrap();
    assert_eq!(scene.stacks, [stack]);
    let map = scene.map.as_ref().expect("the map");
    assert_eq!((map.lag, map.whole.is_none()), (Millis(70), true));
    assert!(map.largest_free_block > Bytes(0));
    assert_eq!(scene.holders, Some(holders));
}

/// Ids of the incidents of the built-in recording, sorted.
const DEMO_FAILURES: [&str; 3] = ["assert-loss-labels", "oom-fragmentation", "oom-leak-growth"];

/// Returns the id of each incident's newest revision, sorted.
fn ids_found(watcher: Watcher) -> Vec<String> {
    let mut found = std::collections::BTreeMap::new();
    for result in watcher.finish(DEADLINE) {
        if let WatchResult::Incident(record) = result {
            found.insert(format!("{:?}", record.key), record.incident.id);
        }
    }
    let mut ids: Vec<String> = found.into_values().collect();
    ids.sort();
    ids
}

#[test]
fn a_jump_to_the_end_of_the_demo_explains_its_failures_as_playing_does() {
    let mut seen = start(FOUR_GPUS.to_vec(), Options { start: Millis(117_000), ..PAUSED });
    let watcher = Watcher::start_with(None, usize::MAX, JoinedJobs::default()).unwrap();
    let mut until = |play: Option<Play>, reached: fn(&Position) -> bool| {
        play.into_iter().for_each(|play| seen.ask(play));
        loop {
            let update = seen.next();
            watcher.see(&update);
            if matches!(&update, Update::Position(position) if reached(position)) {
                break;
            }
        }
    };
    until(None, |position| position.now > position.start);
    until(Some(Play::Start), |position| position.now == position.start);
    until(Some(Play::End), |position| position.at_end);
    assert_eq!(ids_found(watcher), DEMO_FAILURES);
}

#[test]
fn explains_the_failures_of_the_demo_after_it_opened_near_its_middle() {
    let opening = Options { speed: 16.0, start: Millis(117_000), ..Options::default() };
    let mut seen = start(FOUR_GPUS.to_vec(), opening);
    let watcher = Watcher::start(None).unwrap();
    loop {
        let update = seen.next();
        watcher.see(&update);
        if matches!(update, Update::Position(position) if position.at_end) {
            break;
        }
    }
    assert_eq!(ids_found(watcher), DEMO_FAILURES);
}

//! What was there around an incident, from a real process whose allocator counts a failed allocation to the store and
//! the screen.

use std::fmt::Write as _;
use std::process::Stdio;

use gputop::collect::torch::Attached;
use gputop::model::scene::Scene;
use serde_json::Value;

use crate::fake_nvml::FakeNvml;
use crate::machine::{RealProcess, command, dashboard, is_host, on_gpu, wait_until};
use crate::terminal::Terminal;
use crate::torch_live::{allocated_bytes, dump_path};
use crate::torch_target::Target;

/// In torch 2.6, from `allocated_bytes` over five arrays and `num_alloc_retries` to `num_ooms`.
const TO_OOMS: u64 = 5 * 96 + 8;

/// A training run that nobody prepared, and another program on its GPU, which is slowed down.
struct Stage {
    home: tempfile::TempDir,
    trainer: Target,
    _other: RealProcess,
    fake: FakeNvml,
}

impl Stage {
    fn new() -> Self {
        let trainer = Target::start(&dump_path());
        let other = RealProcess::start("bench.py");
        let mut scenario = String::from(
            "[driver]\nversion = \"580.159.03\"\n[[gpu]]\nsm_clock = 1_755\nthrottle = [\"sw_power_cap\"]\n",
        );
        let pid = trainer.pid();
        let _ = writeln!(
            scenario,
            "[[process]]\npid = {pid}\ngpu = 0\nused = \"40 GiB\""
        );
        scenario += &on_gpu(0, &other, "used = \"12 GiB\"");
        Self {
            home: tempfile::tempdir().unwrap(),
            trainer,
            _other: other,
            fake: FakeNvml::new(&scenario),
        }
    }

    fn dashboard(&self) -> Terminal {
        let launch = dashboard(&self.fake).size(60, 120);
        launch.env("XDG_STATE_HOME", self.home.path()).start()
    }

    /// An allocation fails and is caught.
    fn fail(&mut self) {
        let proc = std::path::Path::new("/proc");
        let mut attached = Attached::open(proc, self.trainer.pid()).unwrap();
        let failed = attached.stats().unwrap()[0].num_ooms;
        let failed = u64::try_from(failed).unwrap() + 1;
        self.trainer.poke(allocated_bytes() + TO_OOMS, failed);
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
    let mut stage = Stage::new();
    let terminal = stage.dashboard();
    // Its allocator is read: the columns have figures.
    terminal.wait_text("bench.py");
    terminal.send("jM");
    terminal.wait_text("memory_allocated()");
    terminal.send("\x1b");
    terminal.wait_text("COMMAND");
    stage.fail();
    terminal.wait_text("OUT OF MEMORY");
    terminal.send("d");
    for shown in [
        "ON    GPU 0",
        "slowed by power cap",
        "ALSO  PID",
        "MAP   at most",
        "WITH  ",
    ] {
        terminal.wait_text(shown);
    }
    wait_until("its map in the store", || {
        stage.incidents(&["list", "--json"]).contains("\"uid\"")
    });
    let list: Value = serde_json::from_str(&stage.incidents(&["list", "--json"])).unwrap();
    let uid = list["incidents"][0]["uid"].as_str().unwrap().to_owned();
    let shown = stage.incidents(&["show", &uid]);
    assert!(shown.contains("bench.py"), "{shown}");
    assert!(shown.contains("driver 580.159.03"), "{shown}");
    assert!(shown.contains("torch 2."), "{shown}");
    let exported = stage.incidents(&["export", &uid]);
    assert!(exported.contains("### What was there"), "{exported}");
    assert!(
        !exported.contains("bench.py"),
        "it goes to strangers: {exported}"
    );

    let kept: Value = serde_json::from_str(&stage.incidents(&["export", &uid, "--json"])).unwrap();
    let scene = kept["incidents"][0]["scene"].clone();
    let scene: Scene = serde_json::from_value(scene).unwrap();
    let gpu = &scene.frame.gpus[0];
    assert_eq!(gpu.sm_clock.get().map(|clock| clock.0), Some(1_755));
    assert_eq!(gpu.processes.value().map(Vec::len), Some(2));
    let map = scene.map.expect("a map");
    assert!(map.lag.0 < 2_000, "{} ms", map.lag.0);
    let whole = map.whole.as_ref().expect("all of it");
    let blocks: usize = whole
        .segments
        .iter()
        .map(|segment| segment.blocks.len())
        .sum();
    assert_eq!(
        (whole.segments.len() as u64, blocks as u64),
        (map.segments, map.blocks)
    );
    // The process is not Python, so nobody could read its stack: nothing stands for it.
    assert!(scene.stacks.is_empty());
}

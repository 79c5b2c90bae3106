//! Exits and GPU failures, as the real program records them: real processes exit, a fake driver reports Xids, and a
//! FIFO replaces the kernel log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use gputop_model::event::{Event, Exit, Observation, Xid};
use gputop_model::frame::Frame;
use gputop_model::units::Pid;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::commands::{events, frames};
use crate::support::fake_machine::{
    Guarded, RealProcess, command, dashboard, is_host, on_gpu, run, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::shows;

/// An interval so long that no tick detects anything during a test.
const LONG_INTERVAL: &str = "30s";

/// A fake kernel log, and a running recorder.
struct Watch {
    folder: tempfile::TempDir,
    log: Option<File>,
    record: Guarded,
}

/// Returns the same command with the default open-file limit of most systems.
fn with_few_files(command: &Command) -> Command {
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -Hn 8192; ulimit -Sn 1024; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => few.env(name, value),
            None => few.env_remove(name),
        };
    }
    few
}

impl Watch {
    fn start(fake: &FakeNvml, interval: &str, has_log: bool) -> Self {
        Self::with(fake, interval, has_log, |_| {})
    }

    fn with(
        fake: &FakeNvml,
        interval: &str,
        has_log: bool,
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = has_log.then(|| kernel_log(folder.path()));
        let mut record = command(fake, ["record", "-i", interval, "-o"]);
        record
            .arg(folder.path().join("run.gpt.zst"))
            .env("GPUTOP_KERNEL_LOG", folder.path().join("kmsg"))
            .stderr(Stdio::null());
        adjust(&mut record);
        let record = Guarded(record.spawn().unwrap());
        Self { record, folder, log }
    }

    fn recorder(&mut self) -> &mut std::process::Child {
        &mut self.record.0
    }

    fn say(&mut self, line: &str) {
        writeln!(self.log.as_mut().unwrap(), "4,1,1,-;{line}").unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("run.gpt.zst")
    }

    fn frames(&self) -> Vec<Arc<Frame>> {
        frames(&self.file())
    }

    fn events(&self) -> Vec<Event> {
        events(&self.file())
    }

    fn exits(&self) -> Vec<(Event, Exit)> {
        let exit = |event: Event| match event.observation.clone() {
            Observation::Exit(exit) => Some((event, *exit)),
            _ => None,
        };
        self.events().into_iter().filter_map(exit).collect()
    }

    fn xids(&self) -> Vec<(Event, Xid)> {
        let xid = |event: Event| match event.observation.clone() {
            Observation::Xid(xid) => Some((event, xid)),
            _ => None,
        };
        self.events().into_iter().filter_map(xid).collect()
    }

    #[track_caller]
    fn wait_frame(&self, what: &str, wanted: impl Fn(&gputop_model::frame::Frame) -> bool) {
        wait_until(what, || self.frames().iter().any(|frame| wanted(frame)));
    }

    /// Waits until the process's name and start time are known.
    #[track_caller]
    fn wait_process(&self, process: &RealProcess) {
        self.wait_frame("the process in a frame", |frame| {
            let list = frame.processes.iter().flat_map(|p| p.list.iter());
            list.clone().any(|p| p.key.pid == Pid(process.pid()))
        });
    }
}

/// Creates a FIFO and opens both of its ends, so that it exists before gputop reads it and remains afterwards.
fn kernel_log(folder: &Path) -> File {
    let path: PathBuf = folder.join("kmsg");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    File::options().read(true).write(true).open(path).unwrap()
}

fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

fn end(process: &RealProcess, signal: Signal) {
    kill(nix::unistd::Pid::from_raw(process.pid().cast_signed()), signal).unwrap();
}

#[test]
fn exit_is_reported_between_ticks_with_signal_gpus_and_peak() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&format!("[[gpu]]\n{}", on_gpu(0, &process, "used = \"2 GiB\"")));
    // The first frame comes immediately, the second after half a minute.
    let watch = Watch::start(&fake, LONG_INTERVAL, false);
    watch.wait_process(&process);
    let before = now_millis();
    end(&process, Signal::SIGKILL);
    wait_until("the end", || !watch.exits().is_empty());
    let (event, exit) = watch.exits().remove(0);
    let took = event.time.0 - before;
    // About 100 ms, plus the delays of a busy machine. The next tick would be much later.
    assert!((0..5_000).contains(&took), "{took} ms");
    assert!(exit.noticed_after.0 < 5_000, "{exit:?}");
    assert_eq!(event.process.map(|key| key.pid), Some(Pid(process.pid())));
    assert_eq!((exit.status.get(), exit.signal.get()), (Some(137), Some(9)));
    assert_eq!(exit.oom.killed.get(), Some(false), "{exit:?}");
    let name = exit.last.as_ref().unwrap().command.value().cloned();
    assert_eq!(name.as_deref(), Some("train.py"));
    assert_eq!(exit.gpus.len(), 1);
    assert!(exit.peak_vram.get().is_some());
}

#[test]
fn exit_seen_twice_is_one_event() {
    if !is_host() {
        return;
    }
    let mut processes = [RealProcess::start("a.py"), RealProcess::start("b.py")];
    let listed = |process: &RealProcess| on_gpu(0, process, "used = \"2 GiB\"");
    let fake =
        FakeNvml::new(&format!("[[gpu]]\n{}{}", listed(&processes[0]), listed(&processes[1])));
    let watch = Watch::start(&fake, "200ms", false);
    processes.iter().for_each(|process| watch.wait_process(process));
    processes[0].finish();
    // The driver stops listing the second process before it exits, as it does with a dying process.
    fake.replace("[[gpu]]\n");
    let is_gone = |frame: &gputop_model::frame::Frame| {
        let is_some =
            |gpu: &gputop_model::gpu::Gpu| gpu.processes.value().is_some_and(Vec::is_empty);
        frame.gpus.iter().all(is_some)
    };
    watch.wait_frame("a GPU without processes", is_gone);
    processes[1].finish();
    wait_until("both ends", || watch.exits().len() >= 2);
    // The process table is read again every two seconds.
    let frames = watch.frames().len();
    wait_until("three seconds of frames", || watch.frames().len() > frames + 15);
    let exits = watch.exits();
    let seen: Vec<_> = exits
        .iter()
        .map(|(event, exit)| (event.process.unwrap().pid.0, exit.status.get(), exit.last.is_some()))
        .collect();
    assert_eq!(seen, [(processes[0].pid(), Some(0), true), (processes[1].pid(), Some(0), true)]);
}

#[test]
fn oom_kill_victim_is_named_on_screen() {
    if !is_host() {
        return;
    }
    let processes = [RealProcess::start("train.py"), RealProcess::start("eval.py")];
    let listed = |process: &RealProcess| on_gpu(0, process, "used = \"2 GiB\"");
    let fake =
        FakeNvml::new(&format!("[[gpu]]\n{}{}", listed(&processes[0]), listed(&processes[1])));
    let mut watch = Watch::start(&fake, LONG_INTERVAL, true);
    let folder = tempfile::tempdir().unwrap();
    let mut shown_log = kernel_log(folder.path());
    let terminal =
        dashboard(&fake).env("GPUTOP_KERNEL_LOG", folder.path().join("kmsg")).size(40, 160).start();
    for process in &processes {
        watch.wait_process(process);
        terminal.wait_for(|s| shows(s, process.pid(), &[]), "the process");
    }
    let line = format!(
        "Memory cgroup out of memory: Killed process {} (cat) total-vm:9kB, anon-rss:5kB",
        processes[0].pid()
    );
    watch.say(&line);
    writeln!(shown_log, "3,1,1,-;{line}").unwrap();
    processes.iter().for_each(|process| end(process, Signal::SIGKILL));
    wait_until("both ends", || watch.exits().len() == 2);
    for (event, exit) in watch.exits() {
        let is_victim = event.process.unwrap().pid.0 == processes[0].pid();
        assert_eq!(exit.oom.killed.get(), Some(is_victim), "{exit:?}");
        assert_eq!(exit.oom.evidence, is_victim.then(|| line.clone().into()));
    }
    terminal.wait_text("train.py (OOM killer ");
    terminal.wait_text("eval.py (signal 9 ");
    terminal.send("G\r");
    terminal.wait_text("exit code");
    terminal.wait_text(", exit 137, ");
}

/// Processes that exit when their input ends, each with its own log, all children of one shell.
struct LoggingProcesses {
    shell: Guarded,
    folder: tempfile::TempDir,
    pids: Vec<u32>,
}

impl LoggingProcesses {
    fn start(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A shell gives its background processes no input, except through another descriptor.
        let script = "exec 3<&0; cd \"$2\"; i=0; while [ $i -lt $1 ]; do cat <&3 > $i.log 2>&1 & echo $!; \
                      i=$((i+1)); done; exec > /dev/null; wait";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "crowd", &count.to_string()])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut shell = Guarded(command.spawn().unwrap());
        let lines = BufReader::new(shell.0.stdout.take().unwrap()).lines();
        let pids = lines.take(count).map(|line| line.unwrap().parse().unwrap());
        Self { pids: pids.collect(), shell, folder }
    }

    /// Writes an error to each log that names the log's process.
    fn fail(&self) {
        for (i, pid) in self.pids.iter().enumerate() {
            let log = self.folder.path().join(format!("{i}.log"));
            let mut log = File::options().append(true).open(log).unwrap();
            writeln!(log, "CUDA error: of process {pid};").unwrap();
        }
    }

    fn finish(&mut self) {
        drop(self.shell.0.stdin.take());
    }
}

#[test]
fn thousand_simultaneous_exits_are_each_reported_once() {
    if !is_host() {
        return;
    }
    const COUNT: usize = 1_000;
    let mut crowd = LoggingProcesses::start(COUNT);
    let listed = crowd.pids.iter().map(|pid| format!("[[process]]\npid = {pid}\n"));
    let fake = FakeNvml::new(&format!("[[gpu]]\n{}", listed.collect::<String>()));
    let mut watch = Watch::with(&fake, "3s", false, |record| {
        let mut few = with_few_files(record);
        few.stdin(Stdio::null()).stderr(Stdio::null());
        *record = few;
    });
    watch.wait_frame("all of them", |frame| {
        frame.processes.as_ref().is_some_and(|all| all.list.len() == COUNT)
    });
    let excerpts = |watch: &Watch| {
        let events = watch.events().into_iter();
        let excerpts = events.filter_map(|event| match event.observation {
            Observation::Log(excerpt) => Some((event.process, excerpt.text)),
            _ => None,
        });
        excerpts.collect::<Vec<_>>()
    };
    // Text that was written before gputop follows a log is not reported, so write repeatedly.
    wait_until("the errors of many", || {
        crowd.fail();
        let whose: BTreeSet<_> = excerpts(&watch).into_iter().filter_map(|(key, _)| key).collect();
        whose.len() >= 250
    });
    crowd.finish();
    wait_until("all ends", || watch.exits().len() >= COUNT);
    let mut ended: Vec<u32> =
        watch.exits().iter().map(|(event, _)| event.process.unwrap().pid.0).collect();
    ended.sort_unstable();
    crowd.pids.sort_unstable();
    assert_eq!(ended, crowd.pids);
    for (key, text) in excerpts(&watch) {
        let own = format!("of process {};", key.expect("its writer").pid);
        assert!(text.lines().all(|line| line.ends_with(&own)), "{own}: {text}");
    }
    // The recorder is still running.
    let recorder = watch.recorder();
    assert!(recorder.try_wait().unwrap().is_none());
}

/// Returns a scenario with two GPUs and Xids from the driver.
fn scenario(process: &RealProcess, events: &[(usize, u32)]) -> String {
    let event = |(gpu, number): &(usize, u32)| {
        format!("[[event]]\ngpu = {gpu}\nkind = \"xid\"\ndata = {number}\n")
    };
    let events: String = events.iter().map(event).collect();
    format!("[[gpu]]\n[[gpu]]\n{}{events}", on_gpu(1, process, "used = \"2 GiB\""))
}

fn knows_boards(frame: &gputop_model::frame::Frame) -> bool {
    let known = frame.gpus.iter().filter(|gpu| gpu.board.pci_bus.value().is_some());
    known.count() == 2
}

#[test]
fn an_xid_of_driver_and_log_is_one_event_with_text_process_and_gpu() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&scenario(&process, &[]));
    let mut watch = Watch::start(&fake, "200ms", true);
    watch.wait_frame("both boards", knows_boards);
    watch.wait_process(&process);
    let mut buses = Vec::new();
    let mut uuids = Vec::new();
    watch.wait_frame("both boards", knows_boards);
    for frame in watch.frames() {
        if knows_boards(&frame) {
            buses = frame.gpus.iter().map(|g| g.board.pci_bus.value().unwrap().clone()).collect();
            uuids = frame.gpus.iter().map(|g| g.uuid.clone()).collect();
        }
    }
    let pid = process.pid();
    let line = |gpu: usize, number: u32| {
        format!("NVRM: Xid (PCI:{}): {number}, pid={pid}, name=cat, MMU Fault", buses[gpu])
    };
    // One Xid is in the log first, one comes from the driver first, and two have only one source.
    watch.say(&line(1, 31));
    wait_until("the log's Xid", || watch.xids().len() == 1);
    fake.replace(&scenario(&process, &[(1, 31), (0, 79)]));
    watch.say(&line(0, 79));
    watch.say(&line(0, 43));
    fake.replace(&scenario(&process, &[(1, 31), (0, 79), (1, 48)]));
    wait_until("the driver's Xid without a line", || {
        watch.xids().iter().any(|(_, xid)| xid.number == 48)
    });
    let mut xids = watch.xids();
    xids.sort_by_key(|(_, xid)| xid.number);
    let numbers: Vec<u64> = xids.iter().map(|(_, xid)| xid.number).collect();
    assert_eq!(numbers, [31, 43, 48, 79]);
    for (event, xid) in &xids {
        let gpu = usize::from(xid.number == 31 || xid.number == 48);
        assert_eq!(event.gpu.as_ref(), Some(&uuids[gpu]), "{xid:?}");
        if xid.number == 48 {
            assert!(xid.text.why().is_some() && xid.pid.why().is_some());
            continue;
        }
        let number = u32::try_from(xid.number).unwrap();
        assert_eq!(xid.text.value(), Some(&line(gpu, number)));
        assert_eq!(xid.pid.get(), Some(Pid(pid)));
        assert_eq!(event.process.map(|key| key.pid), Some(Pid(pid)));
    }
}

#[test]
fn driver_reports_xids_without_kernel_log_also_after_reload() {
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&scenario(&process, &[]));
    let watch = Watch::start(&fake, "200ms", false);
    watch.wait_frame("both boards", knows_boards);
    let reloaded = |events: &[(usize, u32)]| {
        format!("[driver]\ngeneration = 2\n{}", scenario(&process, events))
    };
    fake.replace(&reloaded(&[]));
    wait_until("a GPU that is lost", || {
        let is_health = |event: &Event| matches!(event.observation, Observation::Health(_));
        watch.events().iter().filter(|event| is_health(event)).count() >= 4
    });
    fake.replace(&reloaded(&[(1, 79)]));
    wait_until("the Xid", || !watch.xids().is_empty());
    let xids = watch.xids();
    assert_eq!((xids.len(), xids[0].1.number), (1, 79));
    let why = xids[0].1.text.why().unwrap().to_string();
    assert!(why.contains("as in most containers"), "{why}");
}

#[test]
fn doctor_lists_exit_sources_and_fixes() {
    let fake = FakeNvml::h200s(2, "");
    let mut doctor = command(&fake, ["doctor", "--json"]);
    doctor.env("GPUTOP_KERNEL_LOG", "/nonexistent");
    let out = doctor.output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let check = |name: &str| {
        let checks = json["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap().clone()
    };
    let ends = check("process exits");
    assert_eq!(ends["works"], true, "{ends}");
    assert_eq!(check("Xid events")["found"], "reported by the driver for 2 of 2 GPUs");
    let log = check("kernel log");
    assert_eq!(log["works"], false);
    assert_eq!(log["found"], "/nonexistent does not exist, as in most containers");
    assert!(!log["fix"].as_array().unwrap().is_empty());
    assert!(check("out-of-memory killer")["found"].is_string());
    assert!(check("process allocators")["found"].is_string());
    let stored = check("incidents");
    assert_eq!(stored["works"], true, "{stored}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut doctor = command(&fake, ["doctor"]);
    doctor.env("XDG_STATE_HOME", file.path()).env("XDG_CACHE_HOME", file.path());
    let out = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    assert!(out.contains("NO   Python hook "), "{out}");
    let doctor = command(&fake, ["doctor"]).env("PATH", "/nonexistent").output();
    let out = String::from_utf8(doctor.unwrap().stdout).unwrap();
    assert!(out.contains("NO   remote hosts "), "{out}");
    let without = FakeNvml::new("[driver]\ninit = \"mismatch\"");
    assert!(run(&without, ["doctor"]).out.contains("NO   Xid events "));
}

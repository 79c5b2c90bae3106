//! Reading live processes: one that holds the memory of a dump ([`torch_target`](crate::support::torch_target)), and others that
//! have no PyTorch, cannot be read, are stopped, run another program, or die.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gputop_model::pool::{Allocator, PoolMap, Pools};
use gputop_model::process::ProcessKey;
use gputop_model::reading::{Missing, Reason};
use gputop_model::units::{Bytes, Pid, StartTicks};
use gputop_peek::memory::MemoryError;
use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::live::Live;
use gputop_peek::torch::sampler::Sampler;
use gputop_peek::torch::{Attached, Failure};
use nix::sys::signal::{Signal, kill};

use crate::support::deadline::{DEADLINE, pause};
use crate::support::executable;
use crate::support::fake_machine::is_root;
use crate::support::skip::possible;
use crate::support::torch_target::Target;

const PROC: &str = "/proc";
const NOBODY: u32 = 65_534;
/// Offset from the mutex to `allocated_bytes` in torch 2.6: 40 and four arrays of 96.
const ALLOCATED_BYTES_OFFSET: u64 = 40 + 4 * 96;

pub fn dump_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/peek/tests/data/torch/2.6.0/mixed.dump.zst")
}

fn open(target: &Target) -> Attached<Live> {
    Attached::open(Path::new(PROC), target.pid()).unwrap()
}

fn from_dump() -> Attached<Dump> {
    Attached::attach(Dump::from_bytes(&std::fs::read(dump_path()).unwrap()).unwrap()).unwrap()
}

/// Returns the address of device 0's `allocated_bytes`, found by their values.
pub fn allocated_bytes() -> u64 {
    let allocated = from_dump().stats().unwrap()[0].allocated_bytes;
    let words = [allocated.all, allocated.small].map(|s| [s.current, s.peak, s.allocated, s.freed]);
    let words: Vec<u8> = words.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut dump = Dump::from_bytes(&std::fs::read(dump_path()).unwrap()).unwrap();
    let mut found = dump.bytes_mut().filter_map(|(address, bytes)| {
        let at = bytes.windows(words.len()).position(|window| window == words)?;
        Some(address + at as u64)
    });
    found.next().unwrap()
}

fn key(pid: Pid) -> ProcessKey {
    let stat = procfs::process::Process::new(pid.0.try_into().unwrap())
        .and_then(|process| process.stat())
        .unwrap();
    ProcessKey { pid, start: StartTicks(stat.starttime) }
}

/// Waits until `condition` returns a value. Fails the test on a timeout.
fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(started.elapsed() < DEADLINE, "never: {what}");
        pause(started);
    }
}

fn request_pools(sampler: &Sampler) -> Pools {
    let (send, answer) = mpsc::channel();
    sampler.pools(move |pools| send.send(pools).unwrap());
    answer.recv().unwrap()
}

fn ask_map(sampler: &Sampler, process: ProcessKey) -> Result<PoolMap, Missing> {
    let (send, answer) = mpsc::channel();
    sampler.map(process, 0, move |map| send.send(map).unwrap());
    answer.recv().unwrap()
}

fn start_sampler() -> Sampler {
    Sampler::start(Path::new(PROC), Duration::from_millis(5)).unwrap()
}

struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn gputop(pid: Pid, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gputop"))
        .args(["allocator", &pid.to_string()])
        .args(arguments)
        .output()
        .unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_live_process_reads_as_its_dump_and_so_does_one_that_is_stopped() {
    let target = Target::start(&dump_path());
    let (mut live, mut dump) = (open(&target), from_dump());
    let pid = nix::unistd::Pid::from_raw(target.pid().0.try_into().unwrap());
    for signal in [Signal::SIGCONT, Signal::SIGSTOP] {
        kill(pid, signal).unwrap();
        assert_eq!(live.stats().unwrap(), dump.stats().unwrap());
        assert_eq!(live.sample().unwrap(), dump.sample().unwrap());
        for ordinal in 0..2 {
            let map = live.map(ordinal).unwrap();
            assert!(map.exact);
            assert_eq!(map, dump.map(ordinal).unwrap());
            let largest = live.largest_free_block(ordinal);
            assert_eq!(largest, dump.largest_free_block(ordinal));
        }
    }
}

#[test]
fn a_half_written_device_is_left_out_until_the_writer_is_done() {
    let mut target = Target::start(&dump_path());
    let mut live = open(&target);
    let whole = live.stats().unwrap();
    let at = allocated_bytes();
    let mutex = at - ALLOCATED_BYTES_OFFSET;
    let current = u64::try_from(whole[0].allocated_bytes.all.current).unwrap();
    target.poke(mutex, 1);
    target.poke(at, current - 512);
    assert_eq!(live.stats().unwrap(), whole[1..], "small and large do not add up to all");
    assert_eq!(live.map(0), Err(Failure::Busy));
    target.poke(at, current);
    // A thread was stopped inside the lock, but the data that the lock guards is consistent.
    assert_eq!(live.stats().unwrap(), whole);
    target.poke(mutex, 0);
    assert!(live.map(0).unwrap().exact);
}

#[test]
fn an_allocator_that_is_being_changed_is_attached_to_later() {
    let mut target = Target::start(&dump_path());
    let current = from_dump().stats().unwrap()[0].allocated_bytes.all.current;
    let current = u64::try_from(current).unwrap();
    let at = allocated_bytes();
    target.poke(at - ALLOCATED_BYTES_OFFSET, 1);
    target.poke(at, current - 512);
    let opened = Attached::open(Path::new(PROC), target.pid());
    assert_eq!(opened.unwrap_err(), Failure::Busy);
    target.poke(at, current);
    target.poke(at - ALLOCATED_BYTES_OFFSET, 0);
    assert!(open(&target).map(0).unwrap().exact);
}

#[test]
fn target_in_a_pid_namespace_is_read_by_its_outer_pid() {
    let probe = Command::new("unshare").args(["--pid", "--fork", "--mount", "true"]).output();
    let can_unshare = probe.is_ok_and(|output| output.status.success());
    if !possible(can_unshare, "only root can make PID namespaces, where the kernel allows it") {
        return;
    }
    let target = Target::start_with(&dump_path(), |command| {
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork", "--mount", "--kill-child"]);
        inside.arg(command.get_program()).args(command.get_args());
        inside.env("GPUTOP_TEST_DUMP", dump_path());
        *command = inside;
    });
    let children = format!("/proc/{0}/task/{0}/children", target.pid());
    let child = std::fs::read_to_string(children).unwrap();
    let child = Pid(child.trim().parse().unwrap());
    let mut live = Attached::open(Path::new(PROC), child).unwrap();
    assert_eq!(live.map(0).unwrap(), from_dump().map(0).unwrap());
}

#[test]
fn a_block_that_does_not_fit_makes_the_map_approximate() {
    let mut target = Target::start(&dump_path());
    let mut live = open(&target);
    let at = allocated_bytes();
    // The statistics as after a reset, with one granule removed from the small pool and from the total.
    let small = at + 32;
    for array in [at, small, at + 64] {
        target.poke(array + 16, 0);
        target.poke(array + 24, 0);
    }
    let stats = live.stats().unwrap()[0].allocated_bytes;
    target.poke(at - ALLOCATED_BYTES_OFFSET, 1);
    target.poke(at, u64::try_from(stats.all.current - 512).unwrap());
    target.poke(small, u64::try_from(stats.small.current - 512).unwrap());
    target.poke(at - ALLOCATED_BYTES_OFFSET, 0);
    let map = live.map(0).unwrap();
    assert!(!map.exact && !map.segments.is_empty());
}

#[test]
fn process_is_detached_after_exec() {
    let mut target = Target::start(&dump_path());
    let mut live = open(&target);
    let sampler = start_sampler();
    let key = key(target.pid());
    sampler.watch(vec![key]);
    wait_until("pools of both devices", || (request_pools(&sampler).list.len() == 2).then_some(()));
    target.exec();
    wait_until("the other program", || {
        let unread = request_pools(&sampler).unread;
        unread.iter().any(|u| u.process == key && u.why.reason == Reason::Unsupported).then_some(())
    });
    assert!(request_pools(&sampler).list.is_empty());
    assert_eq!(live.stats(), Err(Failure::Changed));
    assert_eq!(ask_map(&sampler, key).unwrap_err(), Failure::NotTorch.missing());
}

#[test]
fn sampler_delivers_pools_maps_and_the_exit() {
    let mut target = Target::start(&dump_path());
    let sampler = start_sampler();
    let key = key(target.pid());
    sampler.watch(vec![key]);
    let pools = wait_until("pools", || Some(request_pools(&sampler)).filter(|p| p.list.len() == 2));
    let truth = from_dump().stats().unwrap();
    for (pool, stats) in pools.list.iter().zip(&truth) {
        assert_eq!((pool.process, pool.ordinal), (key, stats.ordinal));
        assert_eq!(pool.allocator, Allocator::Native);
        assert_eq!(pool.library, "torch 2.3 to 2.9");
        assert_eq!(pool.stats.reserved.min(), pool.stats.reserved.max());
        assert!(pool.stats.largest_free_block.get().is_some());
        let current = stats.allocated_bytes.all.current;
        assert_eq!(pool.stats.allocated.last(), Bytes(u64::try_from(current).unwrap()));
    }
    let map = ask_map(&sampler, key).unwrap();
    assert!(map.exact && map.process == key);
    target.kill();
    let pools = wait_until("the end", || {
        let pools = request_pools(&sampler);
        let is_told = pools.unread.iter().any(|u| u.why.reason == Reason::Gone);
        is_told.then_some(pools)
    });
    assert!(pools.list.is_empty());
    sampler.watch(Vec::new());
    wait_until("nothing watched", || request_pools(&sampler).unread.is_empty().then_some(()));
    assert_eq!(ask_map(&sampler, key).unwrap_err(), Failure::NotWatched.missing());
}

#[test]
fn target_that_exits_during_a_read_is_gone() {
    for _ in 0..5 {
        let mut target = Target::start(&dump_path());
        let mut live = open(&target);
        let reader = std::thread::spawn(move || {
            loop {
                let read = live.stats().and_then(|_| live.map(0)).map(drop);
                let _ = live.largest_free_block(0);
                if read.is_err() {
                    return live.stats().unwrap_err();
                }
            }
        });
        target.kill();
        assert_eq!(reader.join().unwrap(), Failure::Memory(MemoryError::Gone));
    }
}

#[test]
fn the_command_prints_what_it_read_in_text_and_json() {
    let target = Target::start(&dump_path());
    let output = gputop(target.pid(), &["--json", "--blocks"]);
    assert_eq!(output.status.code(), Some(0));
    let document = json(&output);
    assert_eq!(document["schema"], 1);
    assert_eq!(document["pid"], target.pid().0);
    assert_eq!(document["allocator"], "native");
    let device = &document["devices"][0];
    let truth = from_dump().stats().unwrap()[0];
    assert_eq!(device["ordinal"], 0);
    assert_eq!(device["exact"], true);
    assert_eq!(device["stats"]["reserved_bytes"]["peak"], truth.reserved_bytes.all.peak);
    assert_eq!(device["stats"]["num_ooms"], truth.num_ooms);
    assert!(device["segments"][0]["blocks"][0]["state"].is_string());
    assert!(
        json(&gputop(target.pid(), &["--json"]))["devices"][0]["segments"][0]["blocks"].is_null()
    );

    let output = gputop(target.pid(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("torch 2.3 to 2.9") && text.contains("device 1"), "{text}");
}

#[test]
fn process_without_pytorch_exits_1() {
    let sleeper = Sleeper::start();
    let output = gputop(sleeper.pid(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("no PyTorch"), "{error}");
    let document = json(&gputop(sleeper.pid(), &["--json"]));
    assert_eq!(document["devices"]["missing"], "unsupported");
}

#[test]
fn exited_process_exits_2() {
    let mut sleeper = Sleeper::start();
    let pid = sleeper.pid();
    sleeper.0.kill().unwrap();
    // A zombie that has not been reaped: there is nothing to read either.
    wait_until("the zombie", || (gputop(pid, &[]).status.code() == Some(2)).then_some(()));
    sleeper.0.wait().unwrap();
    let output = gputop(pid, &["--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(json(&output)["devices"]["missing"], "gone");
}

/// Copies gputop into `directory`, where another user can run it. Returns `None` without root.
fn reachable(directory: &Path) -> Option<PathBuf> {
    if !is_root() {
        return None;
    }
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.join("gputop");
    executable::copy(env!("CARGO_BIN_EXE_gputop"), &copy);
    Some(copy)
}

#[test]
fn other_users_process_is_denied_with_a_fix() {
    let directory = tempfile::tempdir().unwrap();
    // Needs root, to become another user; the next test covers the rest.
    let Some(gputop) = reachable(directory.path()) else { return };
    let target = Target::start(&dump_path());
    let output = Command::new(gputop)
        .args(["allocator", "--json", &target.pid().to_string()])
        .uid(NOBODY)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let devices = &json(&output)["devices"];
    assert_eq!(devices["missing"], "denied");
    let hint = devices["hint"].as_str().unwrap();
    assert!(hint.contains("sudo gputop") && hint.contains("as its user"), "{hint}");
}

#[test]
fn a_process_that_made_itself_unreadable_is_denied_to_its_own_user() {
    let directory = tempfile::tempdir().unwrap();
    let is_root = nix::unistd::geteuid().is_root();
    let gputop = reachable(directory.path());
    let dump = directory.path().join("dump.zst");
    std::fs::copy(dump_path(), &dump).unwrap();
    let binary = directory.path().join("it");
    executable::copy(std::env::current_exe().unwrap(), &binary);
    let target = Target::start_with(&dump, |command| {
        command.env("GPUTOP_TEST_UNDUMPABLE", "1");
        if is_root {
            let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            let mut other = Command::new(&binary);
            other.args(arguments).env("GPUTOP_TEST_UNDUMPABLE", "1");
            other.env("GPUTOP_TEST_DUMP", &dump).env("TMPDIR", "/tmp").uid(NOBODY);
            *command = other;
        }
    });
    let mut command = Command::new(gputop.unwrap_or_else(|| env!("CARGO_BIN_EXE_gputop").into()));
    command.args(["allocator", &target.pid().to_string()]);
    if is_root {
        command.uid(NOBODY);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("sudo gputop"), "{error}");
}

//! Pools of JAX and TensorFlow in live processes, which hold the memory of a dump
//! ([`torch_target`](crate::support::torch_target)): read from outside, without the hook, and shown everywhere.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use gputop_model::Bytes;
use gputop_model::protocol::Update;
use gputop_model::reported_pool::{Framework, PoolSource, ReportedPool};
use gputop_peek::bfc::{self, VtableCache};
use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::live::Live;
use gputop_peek::memory::pointer;
use serde_json::Value;

use crate::commands::{frames, recorded};
use crate::run::text;
use crate::support::deadline::{DEADLINE, pause};
use crate::support::fake_machine::{
    Guarded, INTERVAL, command, dashboard, gputop, is_host, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::torch_target::Target;

fn dump_path(name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/peek/tests/data/bfc");
    data.join(format!("{name}.dump.zst"))
}

/// Returns the statistics of `GPU_0_bfc` in a dump, its largest free chunk, and its address.
fn first_pool(name: &str) -> (bfc::Stats, u64, u64) {
    let dump = Dump::from_bytes(&std::fs::read(dump_path(name)).unwrap()).unwrap();
    let found = bfc::find(&dump, &mut VtableCache::default()).unwrap();
    let mut pool = found.allocators.into_iter().find(|pool| pool.name == "GPU_0_bfc").unwrap();
    let snapshot = pool.read(&dump).unwrap();
    (snapshot.stats, snapshot.map.unwrap().largest_free(), pool.address)
}

fn two_gpus(pid: u32) -> FakeNvml {
    let on = |gpu: u32| format!("[[process]]\npid = {pid}\ngpu = {gpu}\nused = \"20 GiB\"\n");
    FakeNvml::h200s(2, &(on(0) + &on(1)))
}

fn once(fake: &FakeNvml) -> Value {
    let output = command(fake, ["once", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn allocator(pid: u32, arguments: &[&str]) -> Output {
    let pid = pid.to_string();
    gputop(["allocator", &pid].iter().chain(arguments)).output().unwrap()
}

#[test]
fn pools_of_jax_are_read_without_the_hook_and_shown() {
    let (stats, largest, _) = first_pool("jax-0.12.0.1");
    let conf = |command: &mut Command| {
        command.env("XLA_PYTHON_CLIENT_MEM_FRACTION", ".30").env_remove("CUDA_VISIBLE_DEVICES");
    };
    let target = Target::start_with(&dump_path("jax-0.12.0.1"), conf);
    let fake = two_gpus(target.pid().0);
    let frame = once(&fake);
    let pools = &frame["pools"];
    let reported: Vec<ReportedPool> =
        serde_json::from_value(pools["reported_pools"].clone()).unwrap();
    assert_eq!(reported.len(), 2, "{pools}");
    let pool = reported.iter().find(|pool| pool.ordinal == 0).unwrap();
    assert_eq!((pool.framework, pool.source), (Framework::Jax, PoolSource::Memory));
    assert_eq!(pool.allocated.get(), Some(Bytes(stats.in_use)));
    assert_eq!(pool.allocated_peak.get(), Some(Bytes(stats.peak_in_use)));
    assert_eq!(pool.reserved.get(), Some(Bytes(8_000_000_000)));
    assert_eq!(pool.limit.get(), Some(Bytes(8_000_000_000)));
    assert_eq!(pool.largest_free_block.get(), Some(Bytes(largest)));
    assert_eq!(Some(pool.gpu.value().unwrap().0.as_ref()), frame["gpus"][0]["uuid"].as_str());
    // Pinned memory of the host is not part of GPU memory, and the process is not unreadable.
    assert_eq!(pools["pinned_host"].as_array().unwrap().len(), 1);
    assert_eq!(pools["unread"].as_array().unwrap().len(), 0, "{pools}");

    let printed = text(&command(&fake, ["once"]).output().unwrap().stdout);
    let size = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 30));
    let pid = target.pid().to_string();
    let row = printed.lines().find(|line| line.contains(&pid)).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    let wanted = [size(stats.in_use), size(stats.reserved)];
    assert!(cells.windows(2).any(|pair| *pair == wanted), "{wanted:?}: {printed}");

    let printed = allocator(target.pid().0, &[]);
    assert_eq!((printed.status.code(), text(&printed.stderr).as_str()), (Some(0), ""));
    let printed = text(&printed.stdout);
    let fits = format!("  fits in the pool      {:>12}\n", Bytes(largest).to_string());
    for line in [
        fits.as_str(),
        "  GPU_0_bfc: regions 1\n",
        "device 0  JAX, XLA BFC\n",
        "device 1  JAX, XLA BFC\n",
        "pinned memory of the host  JAX, XLA BFC\n",
        "preallocated and not used. Set XLA_PYTHON_CLIENT_PREALLOCATE=false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION=.30 is set",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let json: Value =
        serde_json::from_slice(&allocator(target.pid().0, &["--json", "--blocks"]).stdout).unwrap();
    assert_eq!(json["reported_pools"][0]["source"], "memory");
    let maps = json["chunk_maps"].as_array().unwrap();
    let map = maps.iter().find(|map| map["name"] == "GPU_0_bfc").unwrap();
    let blocks = map["segments"][0]["blocks"].as_array().unwrap();
    let sizes = blocks.iter().map(|block| block["size"].as_u64().unwrap());
    assert_eq!(sizes.sum::<u64>(), 8_000_000_000);
    assert_eq!(json["pinned_host_pools"].as_array().unwrap().len(), 1);
    let requested = |block: &Value| block["requested"].as_u64();
    let waste = blocks.iter().filter_map(|b| Some(b["size"].as_u64()? - requested(b)?));
    assert_eq!(map["rounding_bytes"].as_u64(), Some(waste.sum()));
    assert_eq!(map["fits"], largest);
    let free = map["free_histogram"].as_array().unwrap().iter();
    let free = free.map(|bucket| bucket["bytes"].as_u64().unwrap());
    assert_eq!(free.sum::<u64>(), stats.reserved - stats.in_use);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.gpt.zst");
    let mut record = command(&fake, ["record", "-i", INTERVAL, "-o"]);
    record.arg(&file).stderr(Stdio::null());
    let _record = Guarded(record.spawn().unwrap());
    wait_until("the pools on a recording", || {
        let frames = frames(&file).into_iter();
        frames.filter_map(|frame| frame.pools.clone()).any(|pools| pools.reported.len() == 2)
    });
    // The recorder also asks for the chunks of both pools.
    wait_until("the maps in the recording", || {
        let maps = recorded(&file).into_iter().filter_map(|update| match update {
            Update::Map(map) => Some(map),
            _ => None,
        });
        let maps: Vec<_> = maps.collect();
        let of = |ordinal| maps.iter().any(|map| map.ordinal == ordinal && map.allocator.is_bfc());
        of(0) && of(1)
    });
}

#[test]
fn a_pool_that_appears_later_is_found_and_a_destroyed_one_disappears() {
    let (_, _, object) = first_pool("tensorflow-2.21.0");
    let mut target = Target::start(&dump_path("tensorflow-2.21.0"));
    let found = |target: &Target| {
        let json = allocator(target.pid().0, &["--json"]).stdout;
        let json: Value = serde_json::from_slice(&json).unwrap();
        json["reported_pools"].as_array().map_or(0, Vec::len)
    };
    let fake = two_gpus(target.pid().0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.gpt.zst");
    let memory = Live::new(Path::new("/proc"), target.pid());
    let vtable = pointer(&memory, object, "the allocator").unwrap();
    target.poke(object, 0);
    assert_eq!(found(&target), 1);
    let mut record = command(&fake, ["record", "-i", INTERVAL, "-o"]);
    record.arg(&file).stderr(Stdio::null());
    let _record = Guarded(record.spawn().unwrap());
    let has = |count: usize| {
        let last = frames(&file).pop();
        last.and_then(|frame| frame.pools.clone()).is_some_and(|p| p.reported.len() == count)
    };
    wait_until("the first pool", || has(1));
    target.poke(object, vtable);
    // New memory is what makes another search worthwhile.
    target.threads(1);
    wait_until("the second pool", || has(2));
    target.poke(object, 0);
    wait_until("the end of the second pool", || has(1));
}

/// The map on the memory screen comes from the process, as that of a pool of PyTorch does.
#[test]
fn the_memory_screen_shows_the_chunks() {
    let (target, stats, largest) = with_one_pool(|_| {});
    let listed = format!("[[process]]\npid = {}\ngpu = 0\nused = \"8 GiB\"\n", target.pid());
    let fake = FakeNvml::h200s(1, &listed);
    let terminal = dashboard(&fake).size(50, 200).start();
    terminal.wait_text(" 7.5 ");
    terminal.send("\tM");
    terminal.wait_text("FREE BLOCKS");
    let screen = terminal.text();
    let gib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
    for text in [
        "JAX, XLA BFC",
        "exact, read",
        "FREE BLOCKS",
        "rounding waste",
        "FITS GiB  pool 7.17   new region 0",
        &format!("pool_bytes {}", gib(stats.reserved)),
    ] {
        assert!(screen.contains(text), "{text}: {screen}");
    }
    assert_eq!(gib(largest), "7.17");
}

#[test]
fn a_forked_copy_of_a_pool_is_refused() {
    let mut target = Target::start(&dump_path("jax-0.6.2"));
    let copy = target.fork();
    let output = allocator(copy, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("forked copy"), "{}", text(&output.stderr));
}

/// A process with a pool of 8 GB on its only GPU, the pool's statistics and its largest free chunk.
fn with_one_pool(conf: impl Fn(&mut Command)) -> (Target, bfc::Stats, u64) {
    let path = dump_path("jax-0.12.0.1");
    let dump = Dump::from_bytes(&std::fs::read(&path).unwrap()).unwrap();
    let (stats, largest, _) = first_pool("jax-0.12.0.1");
    let found = bfc::find(&dump, &mut VtableCache::default()).unwrap();
    let mut target = Target::start_with(&path, conf);
    let others = found.allocators.iter().filter(|pool| pool.name == "GPU_1_bfc");
    others.for_each(|other| target.poke(other.address, 0));
    (target, stats, largest)
}

#[test]
fn run_names_the_process_that_preallocated_the_memory() {
    let (target, stats, _) =
        with_one_pool(|command| _ = command.env_remove("XLA_PYTHON_CLIENT_PREALLOCATE"));
    let fails = |held: &str| {
        let message = format!(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of \
             11.69 GiB of which 1.06 GiB is free. Process {} has {held} memory in use. Including non-PyTorch memory, \
             this process has 3.00 GiB memory in use. Of the allocated memory 2.40 GiB is allocated by PyTorch, and \
             100.00 MiB is reserved by PyTorch but unallocated.",
            target.pid()
        );
        let output = gputop(["run", "sh", "-c", &format!("echo '{message}' >&2; exit 1")]).output();
        text(&output.unwrap().stderr).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let explained = fails("7.63 GiB");
    let pool = format!(
        "process {} (JAX) reserves {} and uses {} of it",
        target.pid(),
        Bytes(stats.reserved),
        Bytes(stats.in_use)
    );
    assert!(explained.contains(&pool), "{explained}");
    assert!(explained.contains("export XLA_PYTHON_CLIENT_PREALLOCATE=false"), "{explained}");
    // In another container the number means another process, which cannot hold more than the driver says.
    let explained = fails("7.20 GiB");
    assert!(explained.contains("GPU IN USE BY OTHERS"), "{explained}");
    assert!(!explained.contains("(JAX) reserves"), "{explained}");
}

#[test]
fn an_error_in_the_log_of_jax_is_explained_with_its_pool() {
    if !is_host() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("train.log");
    let mut log = File::options().create(true).append(true).open(path).unwrap();
    let (target, stats, largest) = with_one_pool(|command| {
        command.stderr(log.try_clone().unwrap());
    });
    let listed = format!("[[process]]\npid = {}\ngpu = 0\nused = \"8 GiB\"\n", target.pid());
    let fake = FakeNvml::h200s(1, &listed);
    let terminal = dashboard(&fake).env("XDG_STATE_HOME", home.path()).size(40, 120).start();
    // Reserved memory, so the pool was read.
    terminal.wait_text(" 7.5 ");
    terminal.send("jL");
    // The output of this test is followed too, and may push the lines of the log off the screen.
    terminal.wait_text("train.log");
    writeln!(
        log,
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.00GiB with allocator \
         GPU_0_bfc on device 0. [tf-allocator-allocation-error=''] [executable_name='jit_add']"
    )
    .unwrap();
    let wanted = format!(
        "XLA could not allocate 12.00 GiB on GPU 0. Its pool had {}: {} in use, largest free chunk {} (within ",
        Bytes(stats.reserved),
        Bytes(stats.in_use),
        Bytes(largest)
    );
    let start = Instant::now();
    loop {
        let mut list = command(&fake, ["incidents", "list", "--json"]);
        list.env("XDG_STATE_HOME", home.path());
        let listed = list.stderr(Stdio::null()).output().unwrap().stdout;
        let listed: Value = serde_json::from_slice(&listed).unwrap();
        let title = listed["incidents"][0]["title"].as_str().unwrap_or_default();
        if title.starts_with(&wanted) {
            return;
        }
        let screen = terminal.text();
        assert!(start.elapsed() < DEADLINE, "{wanted}\n{listed:#}\n{screen}");
        pause(start);
    }
}

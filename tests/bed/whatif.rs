//! Tests `gputop whatif PID`, which replays the allocation of a running process's blocks. Also tests predictions from a
//! failure: the settings that save a fragmenting program, compared with the real allocator's behaviour under them.

use std::fmt::Write as _;
use std::process::Command;

use gputop_allocator::config::Config;
use gputop_allocator::rules::torch_of;
use gputop_allocator::trace::{Op, PoolId, Recorded, Trace};
use gputop_allocator::whatif::{Room, available, replay};
use gputop_model::units::Bytes;
use serde_json::Value;

use crate::differential::states;
use crate::harness::{Harness, Launch, Release, releases};
use crate::reader;

fn whatif(harness: &Harness, args: &[&str]) -> Value {
    let out = Command::new(reader::program())
        .args(["whatif", &harness.pid.to_string(), "--json"])
        .args(args)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{error}");
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn the_blocks_of_a_process_are_asked_for_anew_under_each_setting() {
    for release in releases() {
        let mut harness = Launch::new(&release)
            .env("FAKE_CUDA_DEVICES", "1")
            .conf("max_split_size_mb:64")
            .start();
        harness.run_all(&["alloc 300", "free 0.5", "alloc 100", "pool 1 8"]);
        let truth = harness.truth();
        let stats = &truth.devices[0];
        let document = whatif(&harness, &["--card", "80GiB", "--conf", ""]);
        let device = &document["devices"][0];
        let reserved = stats.reserved_bytes[0][0];
        assert_eq!(device["recording"]["peak_reserved_bytes"], reserved);
        let blocks = truth.segments.iter().flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.2 || block.3).count();
        assert_eq!(device["recording"]["blocks_before"], live);
        let settings = device["settings"].as_array().unwrap();
        let confs: Vec<_> = settings.iter().map(|s| s["conf"].as_str().unwrap()).collect();
        assert_eq!(confs, ["max_split_size_mb:64", ""], "{}", release.name);
        for setting in settings {
            let bytes = |name: &str| setting[name].as_i64().unwrap();
            let name = &release.name;
            if let Some(requested) = &stats.requested_bytes {
                assert!(bytes("peak_allocated_bytes") >= requested[0][0], "{name}");
            }
            let (peak, fits) = (bytes("peak_reserved_bytes"), bytes("fits_bytes"));
            assert!(peak >= bytes("peak_allocated_bytes") && peak + fits >= 80 << 30, "{name}");
        }
    }
}

/// Blocks of 2.5 MiB in two pools: one segment of 20 MiB has space for all of them, but two pools never share a
/// segment.
#[test]
fn the_private_pools_of_a_process_are_kept_apart() {
    for release in releases() {
        let mut harness = Launch::new(&release).env("FAKE_CUDA_DEVICES", "1").start();
        harness.run_all(&["pool 1 2 2621440", "pool 2 2 2621440"]);
        let device = &whatif(&harness, &["--card", "80GiB", "--conf", ""])["devices"][0];
        let reserved = |of: &Value| of["peak_reserved_bytes"].as_u64().unwrap();
        let setting = device["settings"].as_array().unwrap();
        let again = reserved(setting.last().unwrap());
        assert_eq!(reserved(&device["recording"]), 40 << 20, "{}", release.name);
        assert_eq!(again, 40 << 20, "{}", release.name);
    }
}

const CARD: Bytes = Bytes::gib(140);
const LIMIT: Bytes = Bytes::gib(12);
const LARGE: Bytes = Bytes::mib(1200);
const PERMANENT: Bytes = Bytes::mib(700);

/// `fragments` of benches/hardware/whatif/scripts.py: permanent blocks are placed in the memory that larger batches
/// freed.
fn fragments() -> Vec<Op> {
    let alloc = |block, requested| Op::Alloc { block, requested, stream: 0, pool: PoolId::SHARED };
    let mut ops = Vec::new();
    for n in 1..=10 {
        ops.push(alloc(n, LARGE));
        ops.push(Op::Free { block: n });
        ops.push(Op::FreeCompleted { block: n });
        ops.push(alloc(100 + n, PERMANENT));
    }
    ops.push(alloc(99, LARGE));
    ops
}

/// Runs the operations on the real allocator with a memory limit. Returns the index of the first one that ran out of
/// memory, and the reserved memory, current and peak.
fn run_on_allocator(release: &Release, conf: &str, ops: &[Op]) -> (Option<usize>, Bytes, Bytes) {
    let (mut lines, mut of) = (String::new(), Vec::new());
    for (at, op) in ops.iter().enumerate() {
        match op {
            Op::Alloc { block, requested, .. } => {
                writeln!(lines, "a {block} {} 0 0", requested.0).unwrap();
            }
            Op::Free { block } => writeln!(lines, "f {block}").unwrap(),
            _ => continue,
        }
        of.push(at);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    std::fs::write(&path, lines).unwrap();
    let mut harness = Launch::new(release)
        .conf(conf)
        .env("FAKE_CUDA_DEVICES", "1")
        .env("FAKE_CUDA_MIB", (CARD.0 >> 20).to_string())
        .start();
    harness.run(&format!("fraction {}", LIMIT.0 as f64 / CARD.0 as f64));
    harness.run(&format!("trace {}", path.display()));
    let states = states(&dir.path().join("trace.states"));
    let failed = states.iter().position(|state| state.answer == 1);
    let reserved = harness.truth().devices[0].reserved_bytes[0];
    let bytes = |n: i64| Bytes(n.try_into().unwrap());
    (failed.map(|line| of[line]), bytes(reserved[0]), bytes(reserved[1]))
}

#[test]
fn predicts_settings_that_prevent_fragmentation_oom() {
    let with_expandable = releases().into_iter().filter(|r| r.at_least(20_100));
    for release in with_expandable {
        let mut ops = fragments();
        let (failed, reserved, _) = run_on_allocator(&release, "", &ops);
        assert_eq!(failed, Some(ops.len() - 1), "the last request");
        let program = ops.clone();
        ops[program.len() - 1] = Op::Refused {
            requested: LARGE,
            stream: 0,
            pool: PoolId::SHARED,
            // The GPU has plenty of free memory. Only this shows that there is a limit.
            driver_free: Some(Bytes(CARD.0 - reserved.0)),
        };
        let trace = Trace {
            ops,
            recorded: Recorded { reserved_end: Some(reserved), ..Recorded::default() },
            ..Trace::default()
        };
        let room = Room { card: CARD, outside: Bytes(CARD.0 - available(&trace).unwrap().0) };
        let torch = torch_of(&release.name).unwrap();
        let mut saved = Vec::new();
        for conf in
            ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]
        {
            let rules = Config::read(conf, torch).unwrap().rules(torch);
            let outlook = replay(&trace, &rules, room);
            let (at, _, peak) = run_on_allocator(&release, conf, &program);
            let name = &release.name;
            assert_eq!(outlook.oom.is_none(), at.is_none(), "torch {name} `{conf}`");
            if at.is_none() {
                assert_eq!(outlook.peak_reserved, peak, "torch {name} `{conf}`");
                saved.push(conf);
            }
        }
        assert_eq!(saved, ["expandable_segments:True", "max_split_size_mb:64"]);
    }
}

//! `gputop whatif PID`: the blocks of a running process, asked for anew.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Harness, Launch, releases};
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
        let confs: Vec<_> = settings
            .iter()
            .map(|s| s["conf"].as_str().unwrap())
            .collect();
        assert_eq!(confs, ["max_split_size_mb:64", ""], "{}", release.name);
        for setting in settings {
            let bytes = |name: &str| setting[name].as_i64().unwrap();
            let name = &release.name;
            if let Some(requested) = &stats.requested_bytes {
                assert!(bytes("peak_allocated_bytes") >= requested[0][0], "{name}");
            }
            let (peak, fits) = (bytes("peak_reserved_bytes"), bytes("fits_bytes"));
            assert!(
                peak >= bytes("peak_allocated_bytes") && peak + fits >= 80 << 30,
                "{name}"
            );
        }
    }
}

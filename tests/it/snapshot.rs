//! `gputop snapshot`: text, JSON and comparisons.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::fake_machine::gputop;

const NATIVE: &[u8] =
    include_bytes!("../../crates/allocator/tests/data/snapshots/torch-2.15/native.pickle");

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/allocator/tests/data/snapshots").join(name)
}

fn run(args: &[&str]) -> Output {
    gputop([&["snapshot"], args].concat()).output().unwrap()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn snapshot_prints_text_without_a_terminal() {
    let file = data("torch-2.15/native.pickle");
    let output = run(&[file.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr_text(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed = printed.replace(file.to_str().unwrap(), "native.pickle");
    insta::assert_snapshot!("printed", printed);
}

/// Fields may be added but not renamed, because scripts read them.
#[test]
fn json_has_the_documented_fields() {
    fn collect(value: &serde_json::Value, prefix: &str, fields: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (name, value) in map {
                    fields.insert(format!("{prefix}{name}"));
                    collect(value, &format!("{prefix}{name}."), fields);
                }
            }
            serde_json::Value::Array(list) => list.iter().for_each(|v| collect(v, prefix, fields)),
            _ => {}
        }
    }
    let file = data("torch-2.15/native.pickle");
    let output = run(&[file.to_str().unwrap(), "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (mut device, mut top) = (BTreeSet::new(), BTreeSet::new());
    collect(&json["devices"], "", &mut device);
    collect(&json, "", &mut top);
    top.retain(|name| !name.contains('.'));
    let joined = |fields: BTreeSet<String>| fields.into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(joined(top), "allocator_settings devices file schema");
    let stacks = |name: &str| {
        format!(
            "{name} {name}.blocks {name}.bytes {name}.frames {name}.frames.file {name}.frames.function {name}.frames.line"
        )
    };
    let (held, peak, growth) =
        (stacks("by_stack"), stacks("trace.by_stack_at_peak"), stacks("trace.growth"));
    assert_eq!(
        joined(device),
        format!(
            "{held} fits free_histogram free_histogram.bytes free_histogram.count free_histogram.up_to_bytes \
             largest_free_block ordinal segments segments.address segments.blocks segments.expandable segments.pool \
             segments.pool_id segments.size segments.stream stats stats.active_bytes stats.allocated_bytes \
             stats.inactive_split_bytes stats.requested_bytes stats.reserved_bytes stats.segments trace {peak} \
             trace.events {growth} trace.length_us trace.ooms trace.ooms.event trace.ooms.frames \
             trace.ooms.frames.file trace.ooms.frames.function trace.ooms.frames.line trace.ooms.free_bytes \
             trace.ooms.requested_bytes trace.ooms.time_us trace.peak_event trace.requested_bytes_peak \
             trace.reserved_bytes_peak"
        )
    );
}

#[test]
fn json_has_the_same_figures_and_reasons() {
    let file = data("torch-2.15/native.pickle");
    let output = run(&[file.to_str().unwrap(), "--json", "--device", "0"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], 1);
    let device = &json["devices"][0];
    assert_eq!(device["stats"]["reserved_bytes"], 94 << 20);
    assert_eq!(device["trace"]["ooms"][0]["requested_bytes"], 200_u64 << 30);
    assert_eq!(device["by_stack"][0]["frames"][0]["function"], "__init__");
    assert_eq!(json["devices"].as_array().unwrap().len(), 1);
    let list = data("torch-2.15/list.pickle");
    let output = run(&[list.to_str().unwrap(), "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let trace = &json["devices"][0]["trace"];
    assert_eq!(trace["missing"], "not_read");
    assert!(trace["hint"].as_str().unwrap().contains("_record_memory_history"));
}

#[test]
fn a_packed_file_is_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot");
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(NATIVE).unwrap();
    let packed = packer.finish().unwrap();
    for bytes in [&packed, &zstd::encode_all(NATIVE, 1).unwrap()] {
        fs::write(&file, bytes).unwrap();
        let output = run(&[file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr_text(&output));
    }
    fs::write(&file, &packed[..packed.len() / 2]).unwrap();
    assert!(stderr_text(&run(&[file.to_str().unwrap()])).contains("truncated at byte"));
}

#[test]
fn missing_file_is_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    nix::unistd::mkfifo(path("fifo").as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(path("evil\x1b[31m"), b"\x80\x04cos\nsystem\n.").unwrap();
    for (name, says) in [
        ("missing.pickle", "no such file"),
        (".", "it is a directory. Name the .pickle file in it"),
        ("fifo", "not a regular file"),
        ("evil\x1b[31m", "evil^[[31m: at byte 2 it asks Python to import an object (GLOBAL)"),
    ] {
        let output = run(&[&path(name)]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        let stderr_text = stderr_text(&output);
        assert!(stderr_text.contains(says), "{name}: {stderr_text}");
        assert_eq!(stderr_text.lines().count(), 1, "{stderr_text}");
    }
    let file = data("torch-2.15/native.pickle");
    let output = run(&[file.to_str().unwrap(), "--device", "7"]);
    assert!(
        stderr_text(&output).contains("--device 7: no such device; the snapshot has devices 0, 1")
    );
}

fn compared(args: &[&str]) -> Output {
    gputop([&["snapshot"], args].concat()).output().unwrap()
}

#[test]
fn two_snapshots_are_compared_by_stack() {
    let path = |name: &str| data(name).display().to_string();
    let (a, b) = (path("torch-2.15/native.pickle"), path("torch-2.15/hook.pickle"));
    let output = compared(&["--json", "--device", "0", &a, &b]);
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let device = &json["devices"][0];
    let size = |side: &str, name: &str| device[side][name].as_i64().unwrap();
    assert_eq!(size("a", "allocated_bytes"), 62_354_432);
    assert_eq!(size("b", "reserved_bytes"), 94 << 20);
    let changes = device["changes"].as_array().unwrap();
    let differences = changes.iter().map(|c| c["difference_bytes"].as_i64().unwrap());
    let differences: Vec<i64> = differences.collect();
    // The differences of all stacks are the difference of the whole.
    let whole = size("b", "requested_bytes") - size("a", "requested_bytes");
    assert_eq!(differences.iter().sum::<i64>(), whole);
    assert!(differences.is_sorted_by(|a, b| a.abs() >= b.abs()));
    let totals = device["totals"].as_array().unwrap();
    let stacks = totals.iter().map(|total| total["stacks"].as_u64().unwrap());
    assert_eq!(stacks.sum::<u64>(), changes.len() as u64);
    // The second file was written without stacks.
    let kinds = changes.iter().map(|change| change["kind"].as_str().unwrap());
    assert_eq!(kinds.collect::<Vec<_>>(), ["new", "vanished", "vanished", "vanished", "vanished"]);
    let innermost = &changes[1]["frames"][0];
    assert_eq!(innermost["function"], "__init__");
    let output = compared(&["--device", "0", &a, &b]);
    insta::assert_snapshot!(
        "comparison",
        String::from_utf8_lossy(&output.stdout).replace(&a, "a.pickle").replace(&b, "b.pickle")
    );
}

#[test]
fn a_snapshot_equals_itself() {
    let path = data("torch-2.15/native.pickle").display().to_string();
    let output = compared(&["--json", &path, &path]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for device in json["devices"].as_array().unwrap() {
        assert_eq!(device["changes"].as_array().unwrap().len(), 0);
        assert_eq!(device["a"], device["b"]);
    }
}

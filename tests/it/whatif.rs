//! `gputop whatif` on real PyTorch snapshots, and with every kind of invalid argument.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::support::fake_machine::{command, gputop};
use crate::support::fake_nvml::FakeNvml;
use crate::support::torch_target::Target;
use crate::torch_live::dump_path;

const NATIVE: &str = "torch-2.15/native.pickle";

fn whatif(args: &[&str]) -> Output {
    gputop([&["whatif"], args].concat()).output().unwrap()
}

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/allocator/tests/data/snapshots");
    path.join(name).display().to_string()
}

fn json(args: &[&str]) -> Value {
    let out = whatif(&[args, &["--json"]].concat());
    assert!(out.status.success(), "{}", stderr_text(&out));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn stderr_text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn under_its_own_settings_a_program_reserves_what_it_reserved() {
    for (name, conf) in [
        (NATIVE, ""),
        ("torch-2.15/expandable.pickle", "expandable_segments:True,max_split_size_mb:512"),
    ] {
        let document = json(&[&data(name), "--torch", "2.15", "--conf", conf, "--device", "0"]);
        let device = &document["devices"][0];
        let played = device["settings"].as_array().unwrap().last().unwrap();
        assert_eq!(played["conf"], conf, "{name}");
        assert_eq!(
            played["peak_reserved_bytes"], device["recording"]["peak_reserved_bytes"],
            "{name}"
        );
        // 200 GiB were requested on an 80 GiB card, as the OOM event reports.
        assert_eq!(device["card_bytes"], 80_u64 << 30);
        assert_eq!(played["oom"]["recorded"], true);
        assert_eq!(played["oom"]["requested_bytes"], 200_u64 << 30);
        let curve = &played["curve"];
        let points = curve["reserved_bytes"].as_array().unwrap();
        let highest = points.iter().map(|p| p.as_u64().unwrap()).max();
        assert_eq!(highest, played["peak_reserved_bytes"].as_u64());
        assert_eq!(curve["operations_each"], 1);
    }
}

#[test]
fn default_remedies_of_the_release_are_tried() {
    let document = json(&[&data(NATIVE), "--torch", "2.0", "--card", "400GiB"]);
    let played = document["devices"][0]["settings"].as_array().unwrap();
    let confs: Vec<&str> = played.iter().map(|p| p["conf"].as_str().unwrap()).collect();
    assert_eq!(
        confs,
        [
            "",
            "max_split_size_mb:128",
            "max_split_size_mb:512",
            "garbage_collection_threshold:0.8",
            "roundup_power2_divisions:4"
        ]
    );
    assert_eq!(played[3]["no_effect"], "no effect without a memory fraction");
    // The card is larger than the failed request in the recording.
    assert!(played.iter().all(|played| played["oom"].is_null()));
    assert!(played[0]["fits_bytes"].as_u64() > Some(190 << 30));
}

#[test]
fn whatif_prints_a_table() {
    let out = whatif(&[
        &data(NATIVE),
        "--torch",
        "2.15",
        "--card",
        "80.5GiB",
        "--want",
        "79GiB",
        "--device",
        "1",
    ]);
    let text = String::from_utf8(out.stdout).unwrap();
    let table = text.split_once('\n').unwrap().1;
    insta::assert_snapshot!("whatif", table);
}

#[test]
fn the_card_of_a_process_is_what_nvml_says_of_it() {
    let target = Target::start(&dump_path());
    let pid = target.pid().to_string();
    let process = format!("[[process]]\npid = {pid}\ngpu = 0\nused = {}\n", 3_u64 << 30);
    let fake = FakeNvml::new(&format!("[[gpu]]\nused = \"4 GiB\"\n{process}"));
    let run = |args: &[&str]| {
        let out = command(&fake, [&["whatif", &pid, "--json"], args].concat()).output().unwrap();
        assert!(out.status.success(), "{}", stderr_text(&out));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()["devices"][0].clone()
    };
    let device = run(&[]);
    let bytes = |name: &str| device[name].as_u64().unwrap_or_else(|| panic!("{device}"));
    let reserved = device["recording"]["peak_reserved_bytes"].as_u64().unwrap();
    // Used memory outside the process's pools belongs to the context and to other processes.
    assert_eq!(bytes("outside_bytes"), (4096 << 20) - reserved);
    let card = bytes("card_bytes");
    assert!(card > 130 << 30, "{device}");
    let fits = device["settings"][0]["fits_bytes"].as_u64().unwrap();
    assert!(fits < card - bytes("outside_bytes") && fits > card / 2, "{device}");
    // The size given by the user takes precedence.
    let with_card_size = run(&["--card", "24GiB"]);
    assert_eq!(with_card_size["card_bytes"], 24_u64 << 30);
    // Without a driver there is no limit, and the reason is reported.
    let none = gputop(["whatif", &pid, "--json"]).output().unwrap();
    let none: Value = serde_json::from_slice(&none.stdout).unwrap();
    let card = &none["devices"][0]["card_bytes"];
    assert_eq!(card["missing"], "unsupported", "{card}");
    assert!(card["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{card}");
}

#[test]
fn mistyped_settings_get_the_nearest_name() {
    let file = data(NATIVE);
    for (args, with_card_size) in [
        (
            &["--conf", "expandable_segmets:True"][..],
            "unknown option `expandable_segmets`: did you mean `expandable_segments`?",
        ),
        (
            &["--conf", "expandable_segments:yes"],
            "`yes` is not a valid value for `expandable_segments`: expected `True` or `False`",
        ),
        (&["--conf", "max_split_size_mb"], "write options as `key:value`"),
        (
            &["--conf", "expandable_segments:True", "--torch", "2.0"],
            "`expandable_segments` requires torch 2.1, but this is 2.0",
        ),
        (&["--conf", "backend:cudaMallocAsync"], "cannot be simulated"),
        (&["--card", "24"], "unit missing; use"),
        (
            &["--conf", "max_split_size_mb:20"],
            "`20` is not a valid value for `max_split_size_mb`: expected a whole number of MiB above 20",
        ),
        (&["--card", "1GiB", "--outside", "2GiB"], "no memory left for the allocator"),
        (&["--torch", "new"], "not a PyTorch release; use 2.8"),
    ] {
        let out = whatif(&[&[file.as_str()], args].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(stderr_text(&out).contains(with_card_size), "{args:?}: {}", stderr_text(&out));
    }
    for (source, with_card_size) in [
        ("no/such.pickle", "no such file"),
        ("4294967295", "process not found"),
        ("Cargo.toml", "Cargo.toml"),
    ] {
        let out = whatif(&[source]);
        assert_eq!(out.status.code(), Some(2), "{source}");
        assert!(stderr_text(&out).contains(with_card_size), "{source}: {}", stderr_text(&out));
    }
    let out = whatif(&[&file, "--device", "7"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr_text(&out).contains("nothing was allocated on device 7"));
}

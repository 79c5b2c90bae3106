//! `gputop probe` on the simulated card of tests/fake_cuda/driver, loaded by the real driver loader.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gputop_explain::catalogue::Catalogue;
use gputop_explain::evidence::Measured;
use gputop_explain::{LogReader, diagnose};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::cuda_program::library;
use crate::support::fake_machine::{Guarded, Outcome, command, wait_until};
use crate::support::fake_nvml::FakeNvml;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A machine with one card of 16 GiB, as NVML and as CUDA see it.
pub struct Card {
    nvml: FakeNvml,
    dir: TempDir,
}

impl Card {
    pub fn new(cuda: &str) -> Self {
        Self::with(cuda, "")
    }

    /// `nvml` is appended to the GPU's part of the scenario.
    pub fn with(cuda: &str, nvml: &str) -> Self {
        let text = format!("[[gpu]]\ntotal = {}\nreserved = 0\n{nvml}", 16 * GIB);
        let card = Self { nvml: FakeNvml::new(&text), dir: tempfile::tempdir().unwrap() };
        fs::write(card.dir.path().join("cuda.toml"), cuda).unwrap();
        fs::create_dir(card.dir.path().join("lib")).unwrap();
        fs::copy(library(), card.library()).unwrap();
        card
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("lib/libcuda.so")
    }

    /// Removes a call, as in an older driver, by renaming its symbol.
    fn without(self, symbol: &str) -> Self {
        let mut bytes = fs::read(self.library()).unwrap();
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let places: Vec<usize> =
            (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(&name)).collect();
        assert!(!places.is_empty(), "no {symbol} in the library");
        for at in places {
            bytes[at + 1] = b'x';
        }
        fs::write(self.library(), bytes).unwrap();
        self
    }

    pub fn envs(&self) -> Vec<(&'static str, PathBuf)> {
        let path = |name: &str| self.dir.path().join(name);
        vec![
            ("LD_LIBRARY_PATH", path("lib")),
            ("FAKE_CUDA_SCENARIO", path("cuda.toml")),
            ("FAKE_CUDA_STATE", path("state.json")),
            ("XDG_RUNTIME_DIR", path("")),
        ]
    }

    pub fn nvml(&self) -> &FakeNvml {
        &self.nvml
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&self.nvml, ["probe"].iter().chain(args));
        command.envs(self.envs()).env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    fn run(&self, args: &[&str]) -> Outcome {
        let output = self.command(args).output().unwrap();
        Outcome {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a probe with JSON output. Fails unless it succeeds.
    fn probe(&self, args: &[&str]) -> Value {
        let outcome = self.run(&[args, &["--json"]].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        serde_json::from_str(&outcome.out).unwrap()
    }

    /// Returns the memory of each process that ever had a context, as last reported.
    fn holders(&self) -> Vec<(u32, u64, u64)> {
        let text = fs::read_to_string(self.dir.path().join("state.json")).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let holders = value.as_object().into_iter().flatten();
        holders
            .map(|(pid, held)| {
                let number = |name: &str| held[name].as_u64().unwrap();
                (pid.parse().unwrap(), number("bytes") + number("context"), number("peak"))
            })
            .collect()
    }

    /// Checks that some process had a context, and that all memory was returned.
    #[track_caller]
    fn assert_all_returned(&self) {
        let holders = self.holders();
        assert!(!holders.is_empty(), "nobody had a context");
        for (pid, held, _) in holders {
            assert_eq!(held, 0, "{pid} still held it when it ended");
        }
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// For slow machines. The limit bounds the time in the driver, which is simulated with a file here.
const LONG_LIMIT: &[&str] = &["--limit", "30s"];

#[test]
fn fill_allocates_all_but_the_headroom_and_returns_it() {
    let card = Card::new("");
    let probe = card.probe(LONG_LIMIT);
    let fill = &probe["driver"];
    assert_eq!(probe["outcome"], "done");
    assert_eq!(bytes(&fill["held_bytes"]), 16 * GIB - 512 * MIB - GIB);
    assert_eq!(bytes(&fill["largest_bytes"]), 8 * GIB);
    assert_eq!(bytes(&probe["headroom_bytes"]), GIB);
    assert_eq!(bytes(&probe["cost"]["context_bytes"]), 512 * MIB);
    assert!(bytes(&probe["cost"]["held_byte_ms"]) > 0);
    let failed = fill["latency"].as_array().unwrap();
    assert!(failed.iter().all(|size| size["failed"] == 0), "{fill}");
    card.assert_all_returned();
    let text = card.run(LONG_LIMIT);
    assert!(text.out.contains("not fragmented"), "{}", text.out);
}

#[test]
fn refused_large_allocations_are_reported_as_fragmentation() {
    let card = Card::new("largest_mib = 1024");
    let probe = card.probe(LONG_LIMIT);
    let fill = &probe["driver"];
    assert_eq!(bytes(&fill["largest_bytes"]), GIB);
    assert_eq!(bytes(&fill["held_bytes"]), 16 * GIB - 512 * MIB - GIB);
    let text = card.run(LONG_LIMIT);
    assert!(
        text.out.contains("8192.00 MiB")
            || text.out.contains("fragmented (a request of 8.00 GiB failed"),
        "{}",
        text.out
    );
    card.assert_all_returned();
}

#[test]
fn every_policy_runs_the_same_pattern_within_its_arena() {
    let card = Card::new("");
    let probe = card.probe(LONG_LIMIT);
    let runs = probe["patterns"].as_array().unwrap();
    let names: Vec<&str> = runs.iter().map(|run| run["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["native", "expandable", "pool", "plain"]);
    for run in runs {
        assert_eq!(run["requests"], run["requests_made"], "{run}");
        assert_eq!(run["failures"], 0, "{run}");
        assert!(bytes(&run["reserved_peak_bytes"]) <= GIB, "{run}");
        let in_bins: u64 =
            run["free_histogram"].as_array().unwrap().iter().map(|bin| bytes(&bin["bytes"])).sum();
        assert_eq!(in_bins, bytes(&run["free_bytes"]), "{run}");
    }
    // The same requests are live at the end of each run.
    let live = |at: usize| bytes(&runs[at]["allocated_bytes"]);
    assert!(live(1) <= live(0) && live(2) == live(3), "{runs:?}");
    // If every request goes to the driver, only the pages shared by small blocks stay free.
    assert!(bytes(&runs[3]["free_bytes"]) < bytes(&runs[0]["free_bytes"]));
}

#[test]
fn one_policy_can_be_chosen() {
    let card = Card::new("");
    let probe = card.probe(&["--policy", "expandable", "--limit", "30s"]);
    let runs = probe["patterns"].as_array().unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0]["policy"], "expandable");
}

#[test]
fn an_arena_never_reaches_into_the_headroom() {
    // 1.5 GiB is free besides the context, and 1 GiB of it is headroom.
    let card = Card::with("used_mib = 14336", "used = 15032385536\n");
    let probe = card.probe(&["--limit", "30s", "--headroom", "1G"]);
    for run in probe["patterns"].as_array().unwrap() {
        assert_eq!(bytes(&run["arena_bytes"]), 512 * MIB, "{run}");
        assert!(bytes(&run["reserved_peak_bytes"]) <= 512 * MIB, "{run}");
    }
    let peak = card.holders().iter().map(|(_, _, peak)| *peak).max();
    assert_eq!(peak, Some(512 * MIB));
    card.assert_all_returned();
}

#[test]
fn a_full_card_is_refused_without_a_context_and_halved_when_forced() {
    let card = Card::with("used_mib = 15360", "used = 16106127360\n");
    let refused = card.run(&[]);
    refused.assert_refused(
        1,
        "not probed: only 1024.00 MiB is free, but the probe needs 1.62 GiB: the headroom plus its own context. \
         Lower the headroom with --headroom, or use half of the free memory with --force",
    );
    assert_eq!(card.holders(), []);
    let probe = card.probe(&["--force", "--limit", "30s"]);
    assert_eq!(bytes(&probe["headroom_bytes"]), 256 * MIB);
    assert_eq!(bytes(&probe["driver"]["held_bytes"]), 256 * MIB);
    card.assert_all_returned();
}

#[test]
fn shared_gpu_keeps_a_tenth_free() {
    let nvml = format!(
        "context = {}\n[[process]]\npid = {}\ngpu = 0\nused = {}\n",
        0,
        std::process::id(),
        GIB
    );
    let card = Card::with("used_mib = 1024", &nvml);
    let probe = card.probe(LONG_LIMIT);
    assert_eq!(bytes(&probe["headroom_bytes"]), 16 * GIB / 10);
}

#[test]
fn a_context_that_is_refused_beside_free_memory_is_a_finding_with_a_card() {
    let card = Card::new("[[call]]\nname = \"cuDevicePrimaryCtxRetain\"\nfails = 2\n");
    let outcome = card.run(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.out.contains("16.00 GiB is free, but too fragmented for a CUDA context"));
    assert!(outcome.out.contains("gputop cards context-refused-scattered"));
    assert_eq!(card.probe(&[])["outcome"], "no_context");
    let mut log = LogReader::new(Catalogue::embedded(), "probe.log");
    log.push(outcome.out.as_bytes());
    let incidents = diagnose(Catalogue::embedded(), &[log.finish()], &Measured::default());
    assert_eq!(incidents[0].id, "context-refused-scattered");
}

#[test]
fn exclusive_mode_is_refused_unless_forced_and_prohibited_always() {
    let card = Card::new("compute_mode = 3");
    let refused = card.run(&[]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("exclusive mode"), "{}", refused.err);
    assert_eq!(card.probe(&["--force", "--limit", "30s"])["outcome"], "done");
    let card = Card::new("compute_mode = 2");
    let refused = card.run(&["--force"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("prohibited"), "{}", refused.err);
}

#[test]
fn missing_or_denied_driver_is_one_sentence() {
    let card = Card::new("");
    fs::remove_file(card.library()).unwrap();
    if !has_driver() {
        let refused = card.run(&[]);
        refused.assert_refused(1, "not probed: no CUDA driver found: libcuda.so.1 is missing");
    }
    let card = Card::new("[[call]]\nname = \"cuInit\"\nfails = 100\n");
    let refused = card.run(&[]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("no permission for /dev/nvidia*"));
}

/// Returns true if a real driver is installed, which the loader would find if the simulated one is missing.
fn has_driver() -> bool {
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
        .iter()
        .any(|folder| Path::new(folder).join("libcuda.so.1").exists())
}

#[test]
fn old_driver_loses_only_unsupported_policies() {
    let card = Card::new("version = 11010").without("cuMemPoolCreate");
    let probe = card.probe(LONG_LIMIT);
    assert_eq!(probe["outcome"], "done");
    for run in probe["patterns"].as_array().unwrap() {
        let why = run["missing"].as_str().unwrap_or_default();
        match run["policy"].as_str() {
            Some("pool") => assert_eq!(
                why,
                "the driver is too old: it supports CUDA 11.1 and has no cuMemPoolCreate"
            ),
            _ => assert_eq!(why, "", "{run}"),
        }
    }
    let card = Card::new("version = 9000").without("cuDevicePrimaryCtxRetain");
    card.run(&[]).assert_refused(
        1,
        "not probed: the driver is too old: it supports CUDA 9.0 and has no cuDevicePrimaryCtxRetain",
    );
}

#[test]
fn a_second_probe_of_the_same_card_is_refused_while_the_first_runs() {
    let card = Card::new("[[call]]\nname = \"cuMemAlloc_v2\"\nhangs = true\n");
    let mut first = card.command(&["--limit", "5s"]);
    let first = Guarded(first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("the first to have a context", || !card.holders().is_empty());
    let second = card.run(&[]);
    second.assert_refused(
        1,
        "not probed: another probe of this GPU is running; wait until it finishes",
    );
    drop(first);
}

#[test]
fn a_killed_probe_leaves_no_process_behind_that_holds_memory() {
    // Allocations are slow, so that the probe is killed in the middle of its work.
    let card = Card::new("[[call]]\nname = \"cuMemAlloc_v2\"\ntakes_ms = 200\n");
    let mut probe = card.command(&["--limit", "60s"]);
    let mut probe = Guarded(probe.stdout(Stdio::null()).spawn().unwrap());
    wait_until("memory to be held", || {
        card.holders().iter().any(|(_, held, peak)| *held > 0 && *peak > 0)
    });
    let holder = card.holders()[0].0;
    assert_ne!(holder, probe.0.id(), "gputop itself had a context");
    assert!(is_alive(holder));
    probe.0.kill().unwrap();
    probe.0.wait().unwrap();
    wait_until("the child to end with its parent", || !is_alive(holder));
    // Its last report shows that it still held memory. The driver reclaims the memory of a process that exits.
    assert!(card.holders()[0].1 > 0);
}

#[test]
fn killed_probe_child_is_reported() {
    let card = Card::new("[[call]]\nname = \"cuMemAlloc_v2\"\nhangs = true\n");
    let mut probe = card.command(&["--limit", "60s"]);
    let probe = probe.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the child to have a context", || !card.holders().is_empty());
    let child = card.holders()[0].0;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.try_into().unwrap()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let output = probe.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "gputop: not probed: the probe process was killed by signal 9; the driver releases its memory\n"
    );
}

#[test]
fn a_driver_that_does_not_come_back_ends_the_child_and_not_the_program() {
    let card = Card::new("[[call]]\nname = \"cuMemAlloc_v2\"\nhangs = true\n");
    let outcome = card.run(&["--limit", "10ms"]);
    outcome.assert_refused(
        1,
        "not probed: a driver call did not return in time, so the probe process stopped; the driver releases its memory",
    );
    assert!(!is_alive(card.holders()[0].0));
}

#[test]
fn probe_reports_what_the_time_limit_cut_off() {
    let card = Card::new("[[call]]\nname = \"cuMemAlloc_v2\"\ntakes_ms = 60\n");
    let probe = card.probe(&["--limit", "100ms", "--policy", "plain"]);
    assert_eq!(probe["driver"]["cut_short"], true);
    assert_eq!(probe["patterns"][0]["missing"], "time limit reached");
    card.assert_all_returned();
}

#[test]
fn mig_mode_names_the_device_to_probe() {
    let mig = "mig = [{ profile = \"3g.71gb\", gi = 1, uuid = \"MIG-fa4e0000-0001-5000-8000-000000000000\" }]\n";
    let card = Card::with("uuid = \"MIG-fa4e0000-0001-5000-8000-000000000000\"", mig);
    let refused = card.run(&["--gpu", "0"]);
    refused.assert_refused(
        1,
        "not probed: the GPU is in MIG mode; probe one of its MIG devices instead: \
         --gpu MIG-fa4e0000-0001-5000-8000-000000000000",
    );
    let mut args = LONG_LIMIT.to_vec();
    args.extend(["--gpu", "MIG-fa4e"]);
    assert_eq!(card.probe(&args)["outcome"], "done");
}

#[test]
fn hidden_gpu_is_refused() {
    let card = Card::new("uuid = \"GPU-11111111-0000-4000-8000-000000000000\"");
    let refused = card.run(&[]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("no permission") || refused.err.contains("does not see"));
}

#[test]
fn bad_input_is_one_sentence_and_exit_2() {
    let card = Card::new("");
    for (args, says) in [
        (&["--gpu", "7"][..], "no GPU `7` on this host"),
        (&["--pid", "4194300"], "no process with PID 4194300"),
        (&["--limit", "1h"], "out of range; use 10ms to 1m"),
        (&["--headroom", "lots"], "`lots` is not a size"),
        (&["--policy", "magic"], "invalid value 'magic'"),
    ] {
        let outcome = card.run(args);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.err.contains(says), "{}", outcome.err);
        assert_eq!(outcome.out, "");
    }
}

/// Returns a dashboard for this card.
fn dashboard_of(card: &Card) -> crate::support::terminal::Launch {
    let envs = card.envs().into_iter();
    crate::support::fake_machine::dashboard(card.nvml())
        .envs(envs.map(|(name, path)| (name, path.into())))
}

#[test]
fn probe_key_asks_and_shows_the_result() {
    let card = Card::new("");
    let terminal = dashboard_of(&card).start();
    terminal.wait_text("No process uses a GPU");
    terminal.send("P");
    terminal.wait_text("Probe GPU 0 NVIDIA H200?");
    terminal.wait_text("Allocates 14.38 GiB for at most 500 ms");
    // Only the letter starts the probe; Enter does not.
    terminal.send("\r");
    terminal.send("\x1b");
    terminal.wait_for(|s| !s.contents().contains("Probe GPU 0"), "no question");
    assert_eq!(card.holders(), [], "nothing was confirmed");
    terminal.send("\r");
    terminal.wait_text("clocks");
    terminal.send("P");
    terminal.wait_text("Probe GPU 0 NVIDIA H200?");
    terminal.send("y");
    terminal.wait_text("PROBE GPU 0 NVIDIA H200");
    terminal.wait_text("PATTERN native");
    // How much depends on the speed of the machine: the time limit may come first.
    terminal.wait_text("cost     held up to ");
    card.assert_all_returned();
    terminal.send("P");
    terminal.wait_text("Probe GPU 0 NVIDIA H200?");
    terminal.send("y");
    terminal.wait_text("HISTORY of 2 probes");
    terminal.send("\x1b");
    terminal.wait_text("clocks");
}

#[test]
fn probe_refusal_is_shown_in_place_of_the_result() {
    let card = Card::new("compute_mode = 3");
    let terminal = dashboard_of(&card).start();
    terminal.wait_text("No process uses a GPU");
    terminal.send("P");
    terminal.wait_text("y probe");
    terminal.send("y");
    terminal.wait_text("The GPU is in exclusive mode");
}

#[test]
fn nothing_is_probed_with_readonly_or_while_a_recording_plays() {
    let card = Card::new("");
    let terminal = dashboard_of(&card).args(["--readonly"]).start();
    terminal.wait_text("No process uses a GPU");
    terminal.send("P");
    terminal.wait_text("cannot probe: gputop was started with --readonly");
    let envs = card.envs().into_iter();
    let terminal = crate::support::terminal::Launch::gputop()
        .args(["demo"])
        .envs(envs.map(|(name, path)| (name, path.into())))
        .start();
    terminal.wait_text("REPLAY");
    terminal.send("P");
    terminal.wait_text("cannot probe a GPU in a recording");
    assert_eq!(card.holders(), []);
}

#[test]
fn a_process_gives_its_sizes_and_shows_its_free_blocks_beside() {
    let target = crate::support::torch_target::Target::start(&crate::torch_live::dump_path());
    let pid = target.pid().to_string();
    let card = Card::with(
        "used_mib = 1024",
        &format!("[[process]]\npid = {pid}\ngpu = 0\nused = {GIB}\n"),
    );
    let mut args = LONG_LIMIT.to_vec();
    args.extend(["--pid", &pid]);
    let probe = card.probe(&args);
    let side = &probe["process"];
    assert_eq!(side["process"]["pid"].to_string(), pid);
    let mut allocator = command(card.nvml(), ["allocator", &pid, "--json"]);
    let allocator: Value = serde_json::from_slice(&allocator.output().unwrap().stdout).unwrap();
    let device = &allocator["devices"][0];
    let bars = |list: &Value, size: &str| -> Vec<(u64, u64)> {
        let list = list.as_array().unwrap().iter();
        list.map(|bin| (bytes(&bin[size]), bytes(&bin["count"]))).collect()
    };
    assert!(bytes(&side["free_bytes"]) > 0, "{side}");
    assert_eq!(
        bars(&side["free_histogram"], "up_to_bytes"),
        bars(&device["free_histogram"], "up_to_bytes")
    );
    for run in probe["patterns"].as_array().unwrap() {
        assert_eq!(run["source"], format!("PID {pid}, current blocks"));
        assert!(bytes(&run["requests_made"]) > 0, "{run}");
    }
    let text = card.run(&args).out;
    assert!(text.contains(&format!("process   PID {pid}: ")), "{text}");
}

#[test]
fn a_process_without_an_allocator_is_said_to_have_none_and_the_pattern_is_synthetic() {
    let process = crate::support::fake_machine::RealProcess::start("train.py");
    let pid = process.pid().to_string();
    let card = Card::new("");
    let mut args = LONG_LIMIT.to_vec();
    args.extend(["--pid", &pid]);
    let probe = card.probe(&args);
    let why = probe["process"]["missing"].as_str().unwrap();
    assert!(!why.is_empty());
    assert_eq!(probe["patterns"][0]["source"], "synthetic");
}

#[test]
fn doctor_says_whether_a_probe_would_work_and_takes_nothing() {
    let reported = |card: &Card| {
        let mut doctor = command(&card.nvml, ["doctor", "--json"]);
        let doctor = doctor.envs(card.envs()).env_remove("CUDA_VISIBLE_DEVICES");
        let json: Value = serde_json::from_slice(&doctor.output().unwrap().stdout).unwrap();
        let checks = json["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "probe (P)");
        let check = check.expect("a line on it");
        assert_eq!(card.holders(), [], "it created a context");
        let found = check["found"].as_str().unwrap().to_owned();
        (check["works"] == true, found)
    };
    assert_eq!(reported(&Card::new("")), (true, "available, leaves 1024.00 MiB free".to_owned()));
    let (works, found) = reported(&Card::new("lacks = [102]"));
    assert!(works);
    assert!(
        found.ends_with(
            "; no expandable segments: driver or GPU does not support virtual memory management"
        ),
        "{found}"
    );
    for (cuda, nvml, why) in [
        ("compute_mode = 3", "", "the GPU is in exclusive mode"),
        ("compute_mode = 2", "", "compute mode is prohibited"),
        ("", "used = 16000000000\n", "is free, but the probe needs"),
        (
            "uuid = \"GPU-00000000-0000-4000-8000-000000000001\"",
            "",
            "not assigned to this container or job",
        ),
    ] {
        let (works, found) = reported(&Card::with(cuda, nvml));
        assert!(!works && found.contains(why), "{found}");
    }
}

//! Runs `gputop explain`: input files, output, exit codes and hostile input.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use gputop::export::explanation::{Detail, Style, text};
use gputop_explain::{Catalogue, explain, recovery};
use gputop_model::incident::{Incident, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

const OOM: &str = "Traceback (most recent call last):\n  \
    File \"/home/ana/train.py\", line 57, in step\n    loss.backward()\n  \
    File \"/opt/venv/lib/python3.11/site-packages/torch/_tensor.py\", line 492, in backward\n\
    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB \
    of which 1.06 GiB is free. Including non-PyTorch memory, this process has 22.60 GiB memory in use. Of the \
    allocated memory 14.10 GiB is allocated by PyTorch, and 8.02 GiB is reserved by PyTorch but unallocated.\n";
const ASSERT: &str = "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1478: indexSelectSmallIndex: block: [0,0,0], \
    thread: [7,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n";
const TIMEOUT: &str = "[rank1]: [E1120 12:10:00.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective \
    operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for \
    600012 milliseconds before timing out.\n";

/// Returns an Xid of a process with a name so long that its excerpt is cut inside a character.
pub fn long_named_xid() -> String {
    let name = "é".repeat(300);
    format!("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a{name}, Ch 00000008, MMU Fault\n")
}

fn gputop(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputop"));
    command.arg("explain").args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    gputop(args).output().unwrap()
}

fn piped(args: &[&str], input: &[u8]) -> Output {
    let mut command = gputop(args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // gputop can exit before it has read everything.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn first(text: &str) -> Value {
    let found = explain(Catalogue::embedded(), "x.log", text.as_bytes());
    found.first().map_or(Value::Null, |incident| serde_json::to_value(incident).unwrap())
}

fn write(folder: &TempDir, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn prints_the_sections_in_order() {
    let output = piped(&["--verbose"], format!("step 1\nstep 2\n{OOM}").as_bytes());
    assert_eq!(output.status.code(), Some(0));
    let text = out(&output);
    let order = [
        "FRAGMENTED",
        "WHERE train.py:57  loss.backward()",
        "FIX   1",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "AVOID ",
        "WHY   likely",
        "LOG   stdin:7",
    ];
    let places: Vec<usize> = order
        .iter()
        .map(|part| text.find(part).unwrap_or_else(|| panic!("{part} is not in\n{text}")))
        .collect();
    assert!(places.is_sorted(), "{text}");
    // Commands to copy start at the beginning of a line.
    assert!(text.lines().any(|line| line.starts_with("PYTORCH_CUDA_ALLOC_CONF=")), "{text}");
    let widest = text
        .lines()
        .filter(|l| l.starts_with(' ') || l.starts_with("WHY"))
        .map(|l| l.chars().count())
        .max();
    assert!(widest <= Some(80), "{widest:?}\n{text}");
    insta::assert_snapshot!("explanation", text);
}

#[test]
fn the_verbose_answer_has_what_the_default_one_leaves_out() {
    let short = out(&piped(&[], OOM.as_bytes()));
    let full = out(&piped(&["--verbose"], OOM.as_bytes()));
    assert!(full.contains("\nAVOID") && full.lines().count() > short.lines().count());
    assert!(short.ends_with("\n-v shows more causes, checks and advice\n"), "{short}");
}

#[test]
fn the_failure_of_the_last_job_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let ids = |logs: &[&str]| -> Vec<String> {
        let incidents = json_of(&run(&[&["--json"], logs].concat()))["incidents"].clone();
        let incidents = incidents.as_array().unwrap().iter();
        incidents.map(|incident| incident["id"].as_str().unwrap().to_owned()).collect()
    };
    let (a, b) = (write(&folder, "a.log", OOM), write(&folder, "b.log", ASSERT));
    let (oom, assert) = ("oom-fragmentation", "assert-embedding-range");
    // Written at the same time, the files may be copies.
    assert_eq!(ids(&[&a, &b]), [oom, assert]);
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3_600);
    fs::File::open(&a).unwrap().set_modified(old).unwrap();
    assert_eq!(ids(&[&a, &b]), [assert, oom]);
    // Times in all logs are more reliable than those of the files.
    let at = |day: u32, log: &str| -> String {
        log.lines().map(|line| format!("2026-11-{day}T10:00:00Z {line}\n")).collect()
    };
    let (c, d) = (write(&folder, "c.log", at(20, OOM)), write(&folder, "d.log", at(12, ASSERT)));
    fs::File::open(&c).unwrap().set_modified(old).unwrap();
    assert_eq!(ids(&[&d, &c]), [oom, assert]);
}

#[test]
fn the_answer_for_many_logs_fits_a_screen() {
    let folder = tempfile::tempdir().unwrap();
    for job in 0..40 {
        let log: String = (0..4)
            .map(|rank| OOM.replace("torch.Out", &format!("[rank{rank}]: torch.Out")))
            .collect();
        write(&folder, &format!("job{job}.log"), log);
    }
    let folder = folder.path().display().to_string();
    // A pipe has no size, so all incidents are listed.
    let text = out(&run(&[&folder]));
    assert!(
        text.contains("\nFIX   1") && text.contains("OTHERS  39 incidents (use --all"),
        "{text}"
    );
    assert_eq!(text.lines().filter(|line| line.contains(".log:5  oom-frag")).count(), 39);
    let incidents = json_of(&run(&["--json", &folder]))["incidents"].clone();
    let incidents: Vec<Incident> = serde_json::from_value(incidents).unwrap();
    for (height, listed) in [(24, "39 incidents, 2 listed (use"), (100, "39 incidents (use")] {
        let style = Style { width: 80, colour: false, height: Some(height) };
        let text =
            gputop::export::explanation::text(&incidents, Detail::Short { more: "-v" }, &style);
        assert!(text.lines().count() < height, "{text}");
        assert!(text.contains(listed), "{text}");
    }
    assert!(out(&run(&["--verbose", &folder])).lines().count() > 60);
}

/// Unrelated failures in one directory are separate incidents.
#[test]
fn logs_of_unrelated_jobs_are_diagnosed_separately() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "runs/101.log", ASSERT);
    write(&folder, "runs/102.log", TIMEOUT.replace("[rank1]: ", ""));
    let runs = folder.path().join("runs").display().to_string();
    let incidents = json_of(&run(&["--json", &runs]))["incidents"].clone();
    assert_eq!(incidents.as_array().map(Vec::len), Some(2), "{incidents}");
    assert_eq!(incidents[0].get("secondary"), None, "{incidents}");
}

#[test]
fn reads_errors_in_tables_json_and_csv() {
    let error = "CUDA error: an illegal memory access was encountered";
    for log in [
        format!("| densenet | 1 | UNAVAILABLE: Internal: {error} |"),
        format!("| pod-0 | Failed | {error} |"),
        format!(r#"{{"ts": 17, "level": "error", "msg": "{error}"}}"#),
        format!(r#"{{"time":"2026-01-01T00:00:00Z","record":{{"message":"{error}"}}}}"#),
        format!("2026-01-01,worker-3,failed,{error}"),
        format!("step 3; RuntimeError: {error}"),
    ] {
        assert_eq!(first(&log)["id"], "cuda-illegal-address-700", "{log}");
    }
}

/// An error in a title, in quoted advice or in a release note did not happen. One in a log below it did.
#[test]
fn quoted_errors_are_not_incidents_but_pasted_logs_are() {
    let error = "RuntimeError: CUDA error: an illegal memory access was encountered";
    let quotes = [
        format!("# {error}\nCan anybody explain it?"),
        format!("> If you see {error}, lower the batch"),
        format!("Version 2 fixes {error} in the sampler"),
        format!("tests/test_cuda.py::test_access[{error}] PASSED"),
    ];
    for text in &quotes {
        assert_eq!(first(text), Value::Null, "{text}");
    }
    let issue = format!("{}\n\n```\n{error}\n```\n", quotes.join("\n"));
    assert_eq!(first(&issue)["id"], "cuda-illegal-address-700");
    let comment = format!("# step 80\n# step 100\n# {error}");
    assert_eq!(first(&comment)["id"], "cuda-illegal-address-700");
    let mail = format!("> {error}\n> Compile with `TORCH_USE_CUDA_DSA`");
    assert_eq!(first(&mail)["id"], "cuda-illegal-address-700");
}

/// Launchers merge the output of ranks, so the order of the lines is not that of the failures.
#[test]
fn the_first_rank_is_the_one_with_the_earliest_time() {
    let later = TIMEOUT.replace("12:10:00", "12:18:06").replace("ank1]", "ank7]");
    let later = later.replace("[Rank 1]", "[Rank 7]");
    let incident = first(&format!("{later}{TIMEOUT}"));
    assert_eq!(incident["fields"]["rank"], 1, "{incident}");
}

/// A destructor that fails later must not hide the exception that ended the program.
#[test]
fn an_ignored_exception_is_not_the_last_exception() {
    let log = "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 5, in <module>\n    main()\n\
        ValueError: no such config\nException ignored in: <function Engine.__del__ at 0x7f30>\n\
        Traceback (most recent call last):\n  File \"/home/ana/engine.py\", line 9, in __del__\n    self.x.close()\n\
        AttributeError: 'Engine' object has no attribute 'x'\n";
    let message = err(&piped(&[], log.as_bytes()));
    assert!(message.contains("ValueError: no such config"), "{message}");
    assert!(!message.contains("AttributeError"), "{message}");
}

/// An exception that only the server's own code raised needs a new version or a report, not a setting.
#[test]
fn an_exception_inside_a_server_is_called_a_bug_of_the_server() {
    let log = "Traceback (most recent call last):\n  File \"/opt/venv/sglang/srt/managers/scheduler.py\", line 203, in step\n    \
        indices.cpu()\nAttributeError: 'NoneType' object has no attribute 'cpu'\n";
    let message = err(&piped(&[], log.as_bytes()));
    assert!(message.contains("This is a bug in SGLang"), "{message}");
    let own = log.replace("/opt/venv/sglang/srt/managers/scheduler.py", "/home/ana/train.py");
    assert!(!err(&piped(&[], own.as_bytes())).contains("software fault"));
}

/// The launcher raises an exception of its own, which says less than that of the program.
#[test]
fn without_an_incident_the_exception_of_the_program_is_printed() {
    let log = "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 31, in <module>\n    model(x)\n\
        RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x9216 and 4096x10)\n\
        Traceback (most recent call last):\n  File \"/usr/local/bin/torchrun\", line 8, in <module>\n    sys.exit(main())\n\
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";
    let output = piped(&[], log.as_bytes());
    let message = err(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty());
    assert!(message.contains("mat1 and mat2 shapes cannot be multiplied"), "{message}");
    assert!(message.contains("/home/ana/train.py:31"), "{message}");
}

/// Slurm prints three messages about one kill.
#[test]
fn one_event_is_counted_once() {
    let log = "slurmstepd: error: Detected 1 oom_kill event in StepId=71.0. Some of the step tasks have been OOM Killed.\nsrun: error: n1: task 0: Out Of Memory\n";
    let found = explain(Catalogue::embedded(), "x.log", log.as_bytes());
    assert_eq!((found.len(), found[0].count), (1, 1));
}

#[test]
fn the_report_of_a_launcher_is_a_consequence() {
    let table = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-01_00:00:00\n  host      : n1\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 811)\n  error_file: <N/A>\n";
    let error = "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"train.py\", line 9, in main\n[rank3]:     x = batch[\"labels\"]\n[rank3]: KeyError: 'labels'\n";
    let found = explain(Catalogue::embedded(), "x.log", table.as_bytes());
    assert_eq!(found[0].id, "torchrun-summary");
    assert_eq!(found[0].fields.exit_code, Some(1));
    // An exception of the program explains the table, and needs no explanation itself.
    let found = explain(Catalogue::embedded(), "x.log", format!("{error}{table}").as_bytes());
    assert_eq!(found, []);
    let found = explain(Catalogue::embedded(), "x.log", format!("{OOM}{table}").as_bytes());
    assert_eq!(found[0].id, "oom-fragmentation");
}

#[test]
fn compares_the_ranks_of_a_collective() {
    let waits = |rank: u32, number: u32, operation: &str| {
        format!(
            "[rank{rank}]:[E101 00:00:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n"
        )
    };
    let log =
        [waits(0, 34, "ALLREDUCE"), waits(1, 34, "ALLREDUCE"), waits(2, 33, "ALLGATHER")].concat();
    let found = explain(Catalogue::embedded(), "x.log", log.as_bytes());
    assert_eq!(found.len(), 1);
    let why = found[0].why_first.as_deref().unwrap_or_default();
    assert!(
        why.starts_with("Rank 2 is at ALLGATHER #33; all others are at ALLREDUCE #34"),
        "{why}"
    );
    assert_eq!(
        (found[0].causes[0].id.as_str(), found[0].causes[0].verdict),
        ("ranks-diverged", Verdict::Likely)
    );
}

/// Ranks may have a file each, however it is named and given.
#[test]
fn compares_the_ranks_of_a_collective_across_files() {
    let folder = tempfile::tempdir().unwrap();
    let waits = |rank: u32| {
        let (number, operation) = if rank == 2 { (33, "ALLGATHER") } else { (34, "ALLREDUCE") };
        format!(
            "[rank{rank}]:[E1120 10:00:0{rank}.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n"
        )
    };
    for (number, name) in
        ["rank#.log", "rank_#.out", "log.#.txt", "#/stderr.log", "worker-#.log"].iter().enumerate()
    {
        let file = |rank: u32| {
            let name = name.replace('#', &rank.to_string());
            write(&folder, &format!("job{number}/{name}"), waits(rank))
        };
        let files: Vec<String> = (0..4).map(file).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let directory = folder.path().join(format!("job{number}")).display().to_string();
        for paths in [files, vec![&directory]] {
            let output = run(&[&["--verbose"], &paths[..]].concat());
            let shown = out(&output);
            assert!(
                shown.contains("Rank 2 is at ALLGATHER #33; all others are at ALLREDUCE #34"),
                "{paths:?} {shown}"
            );
            assert!(!shown.contains("OTHERS") && !shown.contains("logs of all ranks"), "{shown}");
        }
    }
}

#[test]
fn logs_of_different_jobs_and_days_are_diagnosed_separately() {
    let folder = tempfile::tempdir().unwrap();
    let timeout = |rank: u32, day: u32| {
        TIMEOUT.replace("rank1", &format!("rank{rank}")).replace("E1120", &format!("E11{day}"))
    };
    for (name, rank, day) in [
        ("a/job1/rank0.log", 0, 20),
        ("a/job2/rank1.log", 1, 20),
        ("b/slurm-1.out", 0, 20),
        ("b/slurm-2.out", 1, 22),
        ("c/rank0.log", 0, 20),
        ("c/rank1.log", 1, 22),
    ] {
        write(&folder, name, timeout(rank, day));
    }
    for directory in ["a", "b", "c"] {
        let path = folder.path().join(directory).display().to_string();
        let incidents = json_of(&run(&["--json", &path]))["incidents"].clone();
        assert_eq!(incidents.as_array().map(Vec::len), Some(2), "{directory} {incidents}");
    }
}

/// The rank that torchrun's table names is the headline, although another rank printed its error first.
#[test]
fn names_the_first_rank_of_the_table_of_torchrun() {
    let oom = |rank: u32, size: u32| {
        format!(
            "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}.00 GiB. GPU {rank} has a total capacity of 23.69 GiB of which 0.06 GiB is free. Process {} has 23.60 GiB memory in use.\n",
            900 + rank
        )
    };
    let table = |rank: u32| {
        format!(
            "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_10:00:08\n  host      : node7\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : 1 (pid: {})\n",
            900 + rank
        )
    };
    // Equally long lines would be taken for wrapped ones.
    let explained = |log: String| explain(Catalogue::embedded(), "x.log", log.as_bytes()).remove(0);
    let found = explained([oom(0, 2), oom(2, 13), table(2)].concat());
    assert_eq!((found.fields.rank, found.fields.gpu_index), (Some(2), Some(2)));
    assert!(found.title.contains("13.00 GiB"), "{}", found.title);
    let why = found.why_first.unwrap_or_default();
    assert!(why.starts_with("torchrun's table names rank 2 as the first of 2 ranks"), "{why}");
    // The log of the rank in the table is missing.
    let found = explained([oom(0, 2), oom(2, 13), table(5)].concat());
    assert_eq!(found.fields.rank, Some(0));
    let why = found.why_first.unwrap_or_default();
    assert!(
        why.contains("torchrun's table names rank 5, of which this log contains no error"),
        "{why}"
    );
}

#[test]
fn a_killed_dataloader_worker_is_a_guess_at_the_users_line() {
    let log = "Traceback (most recent call last):\n  \
        File \"/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py\", line 66, in handler\n    \
        _error_if_any_worker_fails()\n\
        RuntimeError: DataLoader worker (pid 7001) is killed by signal: Killed.\n\n\
        The above exception was the direct cause of the following exception:\n\n\
        Traceback (most recent call last):\n  \
        File \"/home/ana/train.py\", line 61, in main\n    for batch in loader:\n  \
        File \"/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py\", line 630, in __next__\n    data = self._next_data()\n\
        RuntimeError: DataLoader worker (pid(s) 7001) exited unexpectedly\n";
    let found = explain(Catalogue::embedded(), "x.log", log.as_bytes()).remove(0);
    assert_eq!(found.id, "host-oom-killer");
    assert_eq!(found.at.as_deref(), Some("train.py:61  for batch in loader:"));
    assert!(found.title.contains("this log does not show the reason"), "{}", found.title);
    assert!(found.causes.iter().all(|cause| cause.verdict != Verdict::Likely), "{found:#?}");
    let said = serde_json::to_string(&(&found.title, &found.fixes, &found.not_helpful)).unwrap();
    assert!(!said.contains("the host ran out of memory"), "{said}");
    // A library's line is not the user's.
    let (library, _) = log.split_once("\nThe above").unwrap();
    let found = explain(Catalogue::embedded(), "x.log", library.as_bytes()).remove(0);
    assert_eq!(found.at, None);
}

/// A kernel's error appears where the program waits for the GPU.
#[test]
fn marks_a_line_that_only_waits() {
    let log = "Traceback (most recent call last):\n  File \"train.py\", line 8, in main\n    print(loss.item())\nRuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n";
    let at = first(log)["at"].as_str().unwrap().to_owned();
    assert!(at.starts_with("train.py:8  print(loss.item())") && at.contains("only waits"), "{at}");
    // A library's frame is not the user's line.
    let library = log.replace("train.py", "/opt/venv/lib/python3.11/site-packages/torch/x.py");
    assert_eq!(first(&library).get("at"), None);
}

/// The user's file on this machine shows what the failing line keeps.
#[test]
fn reads_the_function_around_the_failing_line() {
    let folder = tempfile::tempdir().unwrap();
    let code = "import torch\n\ndef collect(net, data):\n    net.eval()\n    outs = []\n    for x in data:\n        outs.append(net(x))\n    return outs\n";
    let script = write(&folder, "score.py", code);
    let message = OOM.lines().last().unwrap();
    let log = format!(
        "Traceback (most recent call last):\n  File \"{script}\", line 7, in collect\n    outs.append(net(x))\n{}\n",
        message.replace("8.02 GiB is reserved", "0.02 GiB is reserved")
    );
    let path = write(&folder, "out.log", &log);
    let incident = json_of(&run(&["--json", &path]))["incidents"][0].clone();
    assert_eq!(incident["id"], "oom-eval-no-grad", "{incident}");
    let causes = incident["causes"].to_string();
    assert!(
        causes.contains("contains no torch.no_grad()") && causes.contains("outs.append(net(x))"),
        "{causes}"
    );
}

/// Growth that the program printed makes it a leak, and the user's file shows what is kept.
#[test]
fn printed_growth_and_the_code_name_the_leak() {
    let folder = tempfile::tempdir().unwrap();
    let code =
        "history = []\nfor step in range(4000):\n    out = net(x)\n    history.append(out)\n";
    let script = write(&folder, "train.py", code);
    let steps: Vec<String> = (1..7).map(|i| format!("step {i} mem_alloc {i}.10 GB")).collect();
    let log = format!(
        "{}\nTraceback (most recent call last):\n  File \"{script}\", line 3, in <module>\n    out = net(x)\n{}\n",
        steps.join("\n"),
        OOM.lines().last().unwrap().replace("8.02 GiB is reserved", "0.02 GiB is reserved")
    );
    let path = write(&folder, "out.log", &log);
    let incident = json_of(&run(&["--json", &path]))["incidents"][0].clone();
    assert_eq!(incident["id"], "oom-leak-growth", "{incident}");
    let fix = incident["fixes"][0]["change"].as_str().unwrap();
    assert_eq!(fix, "outputs.append(out.detach().cpu())", "{incident}");
}

#[test]
fn a_question_lists_cards_to_read() {
    let output = piped(&[], b"why do I get unspecifed launch failure after several epochs?\n");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("cuda-launch-failure-719"), "{}", err(&output));
}

#[test]
fn json_follows_its_contract() {
    let incidents = json_of(&piped(&["--json"], OOM.as_bytes()));
    assert_eq!(incidents["schema"], 1);
    let incident = &incidents["incidents"][0];
    assert_eq!(incident["id"], "oom-fragmentation");
    assert_eq!(incident["family"], "oom");
    assert_eq!(incident["severity"], "fatal");
    assert_eq!(incident["detected_by"], "log");
    assert_eq!(incident["log"], json!({"file": "-", "first_line": 5, "last_line": 5}));
    let fields = &incident["fields"];
    assert_eq!(fields["requested_bytes"], 2_u64 << 30);
    assert_eq!(fields["gpu_index"], 0);
    assert_eq!(fields["python_file"], "train.py");
    assert_eq!(fields["python_line"], 57);
    assert_eq!(fields.get("rank"), None, "only fields that the text contains");
    assert_eq!(incident["causes"][0]["verdict"], "likely");
    assert!(incident["causes"][0]["for"][0].as_str().unwrap().contains("8.02 GiB"));
    assert!(incident["fixes"][0]["change"].as_str().unwrap().contains("expandable_segments:True"));
}

#[test]
fn without_incidents_exits_1_and_shows_the_last_exception() {
    let quiet = piped(&[], b"step 1\nstep 2\n");
    assert_eq!((quiet.status.code(), out(&quiet).as_str()), (Some(1), ""));
    let plain = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    x[\"a\"]\nKeyError: 'a'\n";
    let output = piped(&[], plain.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("KeyError: 'a'") && err(&output).contains("train.py:3"),
        "{}",
        err(&output)
    );
    assert_eq!(json_of(&piped(&["--json"], plain.as_bytes()))["incidents"], json!([]));
    assert!(err(&piped(&[], b"")).contains("empty"));
}

#[test]
fn lists_consequences_below_their_cause() {
    // The assertion caused the later cuBLAS error.
    let log = format!(
        "{ASSERT}RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`\n"
    );
    let incident = first(&log);
    assert_eq!(incident["id"], "assert-embedding-range");
    assert_eq!(incident["secondary"][0]["id"], "cublas-call-failed");
    assert_eq!(incident["fields"]["thread"], json!([7, 0, 0]));
    let text = out(&piped(&["--verbose"], log.as_bytes()));
    let headline = incident["secondary"][0]["headline"].as_str().unwrap();
    assert!(text.contains(&format!("\nTHEN  {headline}: ")), "{text}");
    // The out-of-memory error of one rank caused the timeout of the other.
    let log =
        format!("{}{TIMEOUT}", OOM.lines().map(|l| format!("[rank0]: {l}\n")).collect::<String>());
    let incident = first(&log);
    assert_eq!(incident["id"], "oom-fragmentation");
    assert_eq!(incident["fields"]["rank"], 0);
    assert_eq!(incident["secondary"][0]["id"], "nccl-watchdog-timeout");
    assert!(incident["why_first"].as_str().unwrap().contains("Rank 0"));
}

#[test]
fn a_plain_exception_is_named_as_the_cause() {
    let log = format!(
        "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"train.py\", line 9, in main\n[rank3]:     x = batch[\"labels\"]\n[rank3]: KeyError: 'labels'\n{TIMEOUT}"
    );
    let incident = first(&log);
    assert_eq!(incident["id"], "program-exception");
    assert_eq!(incident["fields"]["rank"], 3);
    assert!(incident["title"].as_str().unwrap().contains("KeyError"), "{incident}");
    assert_eq!(incident["secondary"][0]["id"], "nccl-watchdog-timeout");
}

#[test]
fn ranks_with_the_same_error_are_one_incident_that_names_the_first() {
    let log: String = (0..8)
        .map(|rank| format!("[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total capacity of 79.10 GiB of which 1.00 GiB is free.\n"))
        .collect();
    let found = explain(Catalogue::embedded(), "x.log", log.as_bytes());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].count, 8);
    assert_eq!(found[0].fields.rank, Some(0));
    assert!(found[0].why_first.as_ref().unwrap().contains("8 ranks"), "{:?}", found[0].why_first);
}

#[test]
fn counts_a_failure_that_repeats_thousands_of_times() {
    let log = OOM.repeat(3000);
    let found = explain(Catalogue::embedded(), "x.log", log.as_bytes());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].count, 3000);
}

#[test]
fn prints_the_last_fatal_incident_in_full_and_earlier_ones_as_lines() {
    let quiet = "step\n".repeat(3000);
    let log =
        format!("{OOM}{quiet}{ASSERT}RuntimeError: CUDA error: device-side assert triggered\n");
    let text = out(&piped(&[], log.as_bytes()));
    assert!(text.contains("assert-embedding-range") && text.contains("EARLIER"), "{text}");
    let line = text.lines().last().unwrap();
    assert!(line.contains("oom-fragmentation") && line.contains("stdin:5"), "{text}");
    let all = out(&piped(&["--all"], log.as_bytes()));
    assert!(
        !all.contains("EARLIER")
            && all.matches("\nFIX ").count() + usize::from(all.starts_with("FIX ")) == 2,
        "{all}"
    );
}

#[test]
fn reads_files_directories_and_compressed_logs() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "run/rank_0.log", TIMEOUT.replace("[rank1]: ", ""));
    write(&folder, "run/rank_10.log", OOM);
    let incident = &json_of(&run(&["--json", &folder.path().join("run").display().to_string()]))["incidents"]
        [0];
    assert_eq!(incident["id"], "oom-fragmentation");
    assert_eq!(incident["log"]["rank"], 10);
    assert!(incident["log"]["file"].as_str().unwrap().ends_with("rank_10.log"));
    assert_eq!(incident["secondary"][0]["id"], "nccl-watchdog-timeout");

    let zst = zstd::encode_all(OOM.as_bytes(), 3).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(OOM.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    // Compressed logs can have any name, and gzip files can have several members.
    for (name, bytes) in
        [("a.log.zst", zst.clone()), ("a.log.gz", gz.clone()), ("a.log", gz.repeat(2))]
    {
        let path = write(&folder, name, bytes);
        assert_eq!(
            json_of(&run(&["--json", &path]))["incidents"][0]["id"],
            "oom-fragmentation",
            "{name}"
        );
    }
    assert_eq!(json_of(&piped(&["--json", "-"], &zst))["incidents"][0]["id"], "oom-fragmentation");
}

#[test]
fn unreadable_input_is_one_error_message() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no.log").display().to_string();
    let output = run(&[&missing]);
    assert_eq!(
        (output.status.code(), err(&output)),
        (Some(2), format!("gputop: cannot read {missing}: no such file\n"))
    );

    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let output = run(&[&empty.display().to_string()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("no file in directory"), "{}", err(&output));

    // A truncated gzip file: the part before the cut is explained.
    let many = format!("{OOM}{}", "step 1 loss 0.5\n".repeat(50_000));
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    gz.write_all(many.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    let path = write(&folder, "cut.gz", &gz[..gz.len() / 2]);
    let output = run(&["--json", &path]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(json_of(&output)["incidents"][0]["id"], "oom-fragmentation");
    assert!(err(&output).contains("truncated"), "{}", err(&output));

    let path = write(&folder, "noise.gz", b"\x1f\x8b not a gzip file");
    let output = run(&[&path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        err(&output).lines().filter(|l| l.contains("damaged")).count(),
        1,
        "{}",
        err(&output)
    );
}

#[test]
fn an_unreadable_file_does_not_affect_others() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(&folder, "good.log", OOM);
    let missing = folder.path().join("gone.log").display().to_string();
    let output = run(&["--json", &missing, &good]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(json_of(&output)["incidents"][0]["id"], "oom-fragmentation");
    assert!(err(&output).contains("gone.log"));
}

#[test]
fn does_not_follow_links_in_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let target = write(&outside, "secret.log", OOM);
    write(&folder, "rank_0.log", "step 1\n");
    std::os::unix::fs::symlink(target, folder.path().join("rank_1.log")).unwrap();
    assert_eq!(run(&[&folder.path().display().to_string()]).status.code(), Some(1));
}

#[test]
fn survives_binary_files_and_invalid_text() {
    let mut bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    bytes.extend_from_slice(b"\0\xff\xfe\n");
    bytes.extend_from_slice(OOM.as_bytes());
    bytes.extend_from_slice(&[0; 4096]);
    let output = piped(&["--json"], &bytes);
    assert_eq!(json_of(&output)["incidents"][0]["id"], "oom-fragmentation");
    // The executable contains every kind of byte and all signatures.
    let itself = run(&[env!("CARGO_BIN_EXE_gputop")]);
    assert!(itself.status.code().is_some());
}

#[test]
fn reads_a_line_of_many_megabytes() {
    let mut log = vec![b'x'; 48 << 20];
    log.extend_from_slice(b" RuntimeError: CUDA error: an illegal memory access was encountered ");
    log.extend(std::iter::repeat_n(b'y', 16 << 20));
    let output = piped(&["--json"], &log);
    assert_eq!(json_of(&output)["incidents"][0]["id"], "cuda-illegal-address-700");
}

#[test]
fn escapes_control_sequences() {
    let log = OOM
        .replace("CUDA out of memory.", "\x1b]0;owned\x07\x1b[2J\u{202e}CUDA out of memory.")
        .replace("train.py", "tr\x1b[31main.py\x07");
    for args in [&[][..], &["--json"], &["--markdown"]] {
        let output = piped(args, log.as_bytes());
        let text = out(&output);
        assert!(text.contains("oom-fragmentation"), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains('\u{202e}') && !text.contains("\\u001b"), "{text:?}");
    }
}

#[test]
fn text_about_errors_is_not_an_error() {
    for quiet in [
        "try:\n    step()\nexcept RuntimeError as e:\n    if \"CUDA out of memory\" in str(e):\n        skip()\n",
        "- Fixed `CUDA error: an illegal memory access was encountered` in the sampler\n",
        "tests/test_oom.py::test_cuda_out_of_memory_is_caught PASSED\n",
        "a1b2c3d4 Handle CUDA out of memory in evaluation\n",
        "If you see CUDA out of memory, lower the batch size.\n",
        "W tensorflow/core/common_runtime/bfc_allocator.cc:239] Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.04GiB with freed_by_count=0. The caller indicates that this is not a failure\n",
        "GPU memory: 71.3 GiB / 79.1 GiB (90%), no OOM so far\n",
    ] {
        assert_eq!(first(quiet), Value::Null, "{quiet}");
    }
}

#[test]
fn prefixes_wrapping_and_json_do_not_change_the_result() {
    let plain = first(OOM);
    let each =
        |prefix: &str| OOM.lines().map(|line| format!("{prefix}{line}\n")).collect::<String>();
    let wrapped: String = OOM
        .lines()
        .map(|line| {
            line.as_bytes()
                .chunks(80)
                .map(|part| String::from_utf8_lossy(part).into_owned() + "\n")
                .collect::<String>()
        })
        .collect();
    let in_json: String = OOM
        .lines()
        .map(|line| json!({"log": format!("{line}\n"), "stream": "stderr"}).to_string() + "\n")
        .collect();
    for (how, log) in [
        ("rank", each("[rank2]: ")),
        ("docker", each("trainer-1  | ")),
        ("journal", each("Nov 20 12:00:00 node17 python3[418]: ")),
        ("kubernetes", each("2026-11-20T12:00:00.123456789Z stderr F ")),
        ("mpirun", each("[1,2]<stderr>:")),
        ("ray", each("\x1b[36m(RayWorker pid=418, ip=10.0.0.4)\x1b[0m ")),
        ("logging", each("2026-11-20 12:00:00,123 - ERROR - train - ")),
        ("mail", each("> ")),
        ("pytest", each("E   ")),
        ("progress", each(" 12%|#2    | 120/1000 [00:10<01:10, 12.1it/s]\r")),
        ("wrapped", wrapped),
        ("json", in_json),
    ] {
        let incident = first(&log);
        assert_eq!(incident["id"], plain["id"], "{how}");
        for field in [
            "requested_bytes",
            "total_bytes",
            "free_bytes",
            "process_bytes",
            "allocated_bytes",
            "reserved_unallocated_bytes",
            "python_line",
        ] {
            assert_eq!(incident["fields"][field], plain["fields"][field], "{how}: {field}");
        }
    }
}

#[test]
fn log_text_cannot_break_the_markdown() {
    let log = OOM.replace("Tried to allocate", "<script>alert(1)</script> ``` Tried to allocate");
    let text = out(&piped(&["--markdown"], log.as_bytes()));
    let fences: Vec<&str> = text.lines().filter(|l| l.trim_start().starts_with("```")).collect();
    assert!(fences.len().is_multiple_of(2), "{text}");
    // Outside code blocks, markup of the log is escaped.
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        assert!(code || !line.contains("<script>"), "{text}");
    }
}

#[test]
fn reads_devices() {
    assert_eq!(run(&["/dev/null"]).status.code(), Some(1));
    assert!(Path::new("/dev/null").exists());
}

/// `UPDATE_DOCS=1 cargo test --test it -- explain::` updates the excerpts.
#[test]
fn the_documents_show_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = gputop(&["train.log"]).current_dir(root.join("tests/data/logs")).output().unwrap();
    let whole = out(&output);
    // The README shows the first two fixes.
    let third = whole.find("\n      3  ").unwrap();
    let documents = [
        ("docs/GUIDE.md", "explanation", whole.as_str()),
        ("README.md", "explanation-start", &whole[..=third]),
    ];
    for (file, mark, printed) in documents {
        let path = root.join(file);
        let begin = format!("<!-- {mark} -->\n```text\n");
        let end = format!("```\n<!-- /{mark} -->");
        let document = fs::read_to_string(&path).unwrap();
        let (before, rest) = document.split_once(&begin).unwrap();
        let (shown, after) = rest.split_once(&end).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, format!("{before}{begin}{printed}{end}{after}")).unwrap();
        } else {
            assert_eq!(shown, printed, "{file}: UPDATE_DOCS=1 writes it anew");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any input is processed, and the output has no control characters.
    #[test]
    fn survives_hostile_text(parts in prop::collection::vec(hostile(), 0..40)) {
        let log = parts.concat();
        for incident in explain(Catalogue::embedded(), "x", &log) {
            let text = text(&[incident], Detail::All, &Style { width: 60, colour: false, height: None });
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
        }
    }

    /// The result does not depend on the size of the pieces.
    #[test]
    fn piece_size_does_not_matter(cut in 1_usize..600) {
        let log = format!("{}{OOM}{}", "step\n".repeat(50), "more\n".repeat(50));
        let mut reader = gputop_explain::LogReader::new(Catalogue::embedded(), "x");
        log.as_bytes().chunks(cut).for_each(|piece| reader.push(piece));
        let found = gputop_explain::diagnose(Catalogue::embedded(), &[reader.finish()], &gputop_explain::evidence::Measured::default());
        prop_assert_eq!(found, explain(Catalogue::embedded(), "x", log.as_bytes()));
    }
}

/// Text inserted into real errors: characters of two to four bytes, combining marks and incomplete characters.
const MULTI_BYTE: [&[u8]; 9] = [
    "é".as_bytes(),
    "漢字".as_bytes(),
    "🦀".as_bytes(),
    "e\u{301}\u{301}".as_bytes(),
    "\u{2028}".as_bytes(),
    "ﬁ".as_bytes(),
    b"\xc3",
    b"\xf0\x9f\xa6",
    b"\xa9",
];

/// Returns a real error with text in other scripts at random positions.
fn foreign() -> impl Strategy<Value = Vec<u8>> {
    let cards = Catalogue::embedded().cards.iter();
    let examples = cards.flat_map(|card| card.examples.iter().map(|example| example.text.clone()));
    let known: Vec<String> = examples.chain([long_named_xid()]).collect();
    let piece = (prop::sample::select(MULTI_BYTE.to_vec()), 1..400_usize);
    let pieces = prop::collection::vec((any::<prop::sample::Index>(), piece), 1..6);
    (prop::sample::select(known), pieces).prop_map(|(text, pieces)| {
        let mut bytes = text.into_bytes();
        for (at, (piece, times)) in pieces {
            let at = at.index(bytes.len());
            bytes.splice(at..at, piece.repeat(times));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn diagnoses_errors_with_other_scripts_without_a_panic(parts in prop::collection::vec(foreign(), 1..3)) {
        let found = explain(Catalogue::embedded(), "x", &parts.concat());
        prop_assert_eq!(recovery::take_failures(), Vec::<String>::new());
        for incident in &found {
            let quote = &incident.quote;
            for label in &quote.labels {
                prop_assert!(quote.text.get(label.start..label.end).is_some(), "{quote:?}");
            }
        }
        let _ = gputop::export::explanation::markdown(&found, true);
        let style = Style { width: 60, colour: true, height: Some(24) };
        let _ = text(&found, Detail::All, &style);
    }
}

#[test]
fn explains_a_log_with_a_long_name_in_another_script() {
    let log = format!("{}{OOM}", long_named_xid());
    let output = piped(&["--json"], log.as_bytes());
    assert_eq!(err(&output), "");
    assert_eq!(output.status.code(), Some(0));
    let found = out(&output);
    assert!(found.contains("oom-fragmentation"), "{found}");
    assert!(found.contains("xid-31-mmu-fault"), "{found}");
}

#[test]
fn diagnoses_thousands_of_different_failures_quickly() {
    let begun = std::time::Instant::now();
    let xids: String = (0..40_000)
        .map(|n| {
            format!(
                "NVRM: Xid (PCI:0000:{:02x}:00): 31, pid={n}, name=python, MMU Fault\n",
                n % 256
            )
        })
        .collect();
    assert!(!explain(Catalogue::embedded(), "x.log", xids.as_bytes()).is_empty());
    let ranks: String = (0..40_000)
        .map(|n| format!("[rank{n}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"))
        .collect();
    assert!(!explain(Catalogue::embedded(), "x.log", ranks.as_bytes()).is_empty());
    // Comparing every pair took many minutes in this build.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

/// Parts of real errors, escapes and noise.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        OOM,
        ASSERT,
        TIMEOUT,
        "\x1b[",
        "\x1b]0;",
        "\r",
        "\n",
        "\0",
        "```",
        "[rank",
        "]: ",
        "Assertion `",
        "block: [",
        "{\"log\":\"",
        "\\n\\\"",
        "File \"",
        ", line 99999999999999999999, in ",
        "Tried to allocate 99999999999999999999.99 GiB",
        "Xid (PCI:",
        "Traceback (most recent call last):\n",
        "CUDA error: ",
        "\u{202e}",
        "Process 99999999999 has 1.00 GiB memory in use. ",
        "((((((((",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    prop_oneof![
        prop::sample::select(known.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..60),
    ]
}

#[test]
fn counts_the_threads_of_a_failing_kernel_quickly() {
    let lines: String = (0..50_000)
        .map(|n| {
            ASSERT
                .replace("[7,0,0]", &format!("[{},0,0]", n % 128))
                .replace("[0,0,0]", &format!("[{},0,0]", n / 128))
        })
        .collect();
    let found = explain(Catalogue::embedded(), "x.log", lines.as_bytes());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].count, 50_000);
    assert_eq!(found[0].log.as_ref().unwrap().last_line, 50_000);
    // Another assertion in the same file is another failure.
    let two = format!(
        "{ASSERT}{}",
        ASSERT
            .replace("1478", "900")
            .replace("srcIndex < srcSelectDimSize", "dstIndex < dstAddDimSize")
    );
    assert_eq!(explain(Catalogue::embedded(), "x.log", two.as_bytes())[0].count, 1);
}

#[test]
fn escapes_the_name_of_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "rank_0\x1b[2J\x07.log", OOM);
    for args in [&[path.as_str()][..], &["--json", &path], &["--markdown", &path]] {
        let text = out(&run(args));
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains("\\u001b"), "{text}");
    }
    let missing = err(&run(&[&format!("{path}.missing")]));
    assert!(!missing.contains('\x1b') && missing.contains("no such file"), "{missing:?}");
}

#[test]
fn fatal_incidents_of_several_jobs_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let note = write(
        &folder,
        "a.log",
        "NVRM: Xid (PCI:0000:3b:00): 43, pid=418, name=python, Ch 00000008\n",
    );
    let fatal = write(&folder, "b.log", OOM);
    let incidents = json_of(&run(&["--json", &note, &fatal]));
    assert_eq!(incidents["incidents"][0]["id"], "oom-fragmentation");
    assert_eq!(incidents["incidents"][1]["fields"]["xid"], 43);
}

#[test]
fn a_tensor_grown_by_concatenation_is_not_blamed_on_the_batch() {
    let catalogue = Catalogue::embedded();
    let card = catalogue.cards.iter().find(|card| card.id == "oom-capacity").unwrap();
    let text = card.examples.iter().find(|example| example.text.contains("torch.cat(")).unwrap();
    let causes_of = |text: &str| explain(catalogue, "generate.log", text.as_bytes()).remove(0);
    let incident = causes_of(&text.text);
    let causes = &incident.causes;
    assert_eq!((causes[0].id.as_str(), causes[0].verdict), ("concatenation", Verdict::Likely));
    // The request would have fitted into free and cached memory, so fragmentation contributed.
    let likely = causes.iter().filter(|cause| cause.verdict == Verdict::Likely);
    let likely: Vec<&str> = likely.map(|cause| cause.id.as_str()).collect();
    assert_eq!(likely, ["concatenation", "fragmentation"]);
    assert!(incident.fixes[0].change.starts_with("cache = torch.empty("), "{:#?}", incident.fixes);
    // A new tensor made of two others does not grow.
    let other = text.text.replace("[cache[layer], new_keys]", "[old_keys, new_keys]");
    assert_ne!(causes_of(&other).causes[0].id, "concatenation");
    // The cache of a library.
    let library = text
        .text
        .replace("/home/ana/generate.py", "/opt/venv/site-packages/transformers/cache_utils.py");
    let library = library.replace("cache[layer] = ", "self.keys = ");
    assert_eq!(causes_of(&library).causes[0].id, "kv-cache", "{library}");
}

#[test]
fn a_setting_that_would_free_enough_is_recommended_and_not_advised_against() {
    let catalogue = Catalogue::embedded();
    let with_cache = |size: &str| {
        let log = OOM.replace("8.02 GiB is reserved", &format!("{size} GiB is reserved"));
        explain(catalogue, "train.log", log.as_bytes()).remove(0)
    };
    let has_setting =
        |texts: &[String]| texts.iter().any(|one| one.contains("expandable_segments"));
    for (cached, helps) in [("1.50", true), ("0.50", false)] {
        let incident = with_cache(cached);
        assert_eq!(incident.id, "oom-capacity");
        let fixes: Vec<String> = incident.fixes.iter().map(|fix| fix.change.clone()).collect();
        assert_eq!(has_setting(&fixes), helps, "{fixes:#?}");
        assert_eq!(has_setting(&incident.not_helpful), !helps, "{:#?}", incident.not_helpful);
    }
}

#[test]
fn a_log_that_reports_no_tpu_is_about_a_gpu() {
    for line in [
        "TPU available: False, using: 0 TPU cores",
        "Unable to initialize backend 'tpu': INTERNAL: none",
    ] {
        let incident =
            explain(Catalogue::embedded(), "train.log", format!("{line}\n{OOM}").as_bytes())
                .remove(0);
        assert!(
            incident.title.contains("GPU 0") || incident.id == "oom-fragmentation",
            "{}",
            incident.title
        );
        let fixes: Vec<&str> = incident.fixes.iter().map(|fix| fix.change.as_str()).collect();
        assert!(fixes.iter().any(|fix| fix.contains("_CUDA_ALLOC_CONF")), "{fixes:#?}");
    }
}

#[test]
fn a_model_that_does_not_fit_is_not_blamed_on_the_batch() {
    let catalogue = Catalogue::embedded();
    let card = catalogue.cards.iter().find(|card| card.id == "oom-capacity").unwrap();
    let text = card.examples.iter().find(|example| example.text.contains("net.to(")).unwrap();
    let incidents = explain(catalogue, "finetune.log", text.text.as_bytes());
    let causes = &incidents[0].causes;
    assert_eq!((causes[0].id.as_str(), causes[0].verdict), ("model", Verdict::Likely));
    assert!(causes[1..].iter().all(|cause| cause.verdict != Verdict::Likely), "{causes:#?}");
    assert!(incidents[0].fixes[0].change.contains("bfloat16"), "{:#?}", incidents[0].fixes);
}

#[test]
fn names_the_tests_that_share_a_gpu_by_pytests_summary() {
    let log = "FAILED tests/test_fit.py::TestFit::test_small - torch.OutOfMemoryError: CUDA out of memory. Tried to \
               allocate 900.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 120.00 MiB is free. Process 7410 \
               has 5.10 GiB memory in use. Process 7413 has 6.20 GiB memory in use. Including non-PyTorch memory, this \
               process has 4.30 GiB memory in use. Of the allocated memory 3.70 GiB is allocated by PyTorch, and \
               90.00 MiB is reserved by PyTorch but unallocated.\n";
    let incident = explain(Catalogue::embedded(), "pytest.log", log.as_bytes()).remove(0);
    assert_eq!(
        (incident.id.as_str(), incident.causes[0].id.as_str()),
        ("oom-other-process", "parallel-tests")
    );
    assert_eq!(incident.fixes[0].change, "pytest -n 1");
}

/// Returns an out-of-memory message of a process beside two others with these PIDs.
fn oom_beside(first: u32, second: u32) -> String {
    format!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 MiB. GPU 0 has a total capacity of 23.69 \
         GiB of which 20.00 MiB is free. Process {first} has 9.10 GiB memory in use. Process {second} has 8.20 GiB \
         memory in use. Including non-PyTorch memory, this process has 1.30 GiB memory in use. Of the allocated memory \
         0.90 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.\n"
    )
}

#[test]
fn processes_started_together_are_ranks_of_the_job() {
    let causes = |log: String| {
        let incident = explain(Catalogue::embedded(), "train.log", log.as_bytes()).remove(0);
        let likely = incident.causes.into_iter().filter(|cause| cause.verdict == Verdict::Likely);
        likely.map(|cause| cause.id).collect::<Vec<_>>()
    };
    assert_eq!(causes(oom_beside(4711, 4712)), ["ranks-on-one-gpu"]);
    assert_eq!(causes(oom_beside(4711, 90_210)), ["other-job"]);
}

#[test]
fn ranks_in_the_table_of_nvidia_smi_are_not_other_jobs() {
    let oom = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 23.69 GiB total capacity; 8.10 \
               GiB already allocated; 1.20 GiB free; 8.30 GiB reserved in total by PyTorch)\n";
    let row = |gpu: u32, pid: u32, name: &str| {
        format!("|    {gpu}   N/A  N/A   {pid}      C   {name}        21840MiB |\n")
    };
    let id = |table: String| {
        let log = format!("{table}{oom}");
        explain(Catalogue::embedded(), "train.log", log.as_bytes()).remove(0).id
    };
    assert_eq!(id(row(0, 510, "python") + &row(1, 511, "python")), "oom-capacity");
    assert_eq!(id(row(0, 510, "python") + &row(1, 511, "render")), "oom-other-process");
    assert_eq!(id(row(1, 510, "python") + &row(1, 511, "python")), "oom-other-process");
}

#[test]
fn reads_the_number_of_beams_from_the_code_of_the_stack() {
    let log = "Traceback (most recent call last):\n  File \"translate.py\", line 40, in <module>\n    \
               out = model.generate(**batch, num_beams=8)\n  \
               File \"/opt/v/lib/python3.11/site-packages/transformers/generation/utils.py\", line 9, in generate\n    \
               result = self._search(\n\
               torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of \
               23.69 GiB of which 300.00 MiB is free. Including non-PyTorch memory, this process has 23.30 GiB memory \
               in use. Of the allocated memory 22.90 GiB is allocated by PyTorch, and 120.00 MiB is reserved by \
               PyTorch but unallocated.\n";
    let incident = explain(Catalogue::embedded(), "translate.log", log.as_bytes()).remove(0);
    assert_eq!(incident.causes[0].id, "beam-search");
    assert_eq!(incident.causes[0].r#for, ["num_beams is 8"]);
    assert!(incident.fixes[0].change.contains("num_beams=1"), "{:#?}", incident.fixes);
}

#[test]
fn causes_with_evidence_precede_usual_causes() {
    let log = "step 40 loss nan\n\
               /pytorch/aten/src/ATen/native/cuda/Loss.cu:92: operator(): block: [3,0,0], thread: [17,0,0] Assertion \
               `input_val >= zero && input_val <= one` failed.\n";
    let incident = explain(Catalogue::embedded(), "train.log", log.as_bytes()).remove(0);
    assert_eq!(incident.causes[0].id, "nan");
}

#[test]
fn an_attention_warning_does_not_hide_the_failure() {
    let warning = "UserWarning: FlashAttention only supports Ampere GPUs or newer; falling back to eager attention.\n";
    let incidents =
        explain(Catalogue::embedded(), "train.log", format!("{warning}{OOM}").as_bytes());
    assert_eq!(incidents.len(), 1);
    assert!(incidents[0].id.starts_with("oom-"), "{}", incidents[0].id);
}

#[test]
fn trainer_options_are_for_programs_that_use_the_trainer() {
    let changes = |frame: &str| {
        let log = OOM.replace("/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", frame);
        let incident = explain(Catalogue::embedded(), "train.log", log.as_bytes()).remove(0);
        incident.fixes.iter().map(|fix| fix.change.as_str()).collect::<Vec<_>>().join("\n")
    };
    let library = "/opt/venv/lib/python3.11/site-packages";
    let own_loop = changes(&format!("{library}/accelerate/accelerator.py"));
    assert!(!own_loop.contains("per_device_train_batch_size"), "{own_loop}");
    let trainer = changes(&format!("{library}/transformers/trainer.py"));
    assert!(!trainer.contains("--per_device"), "{trainer}");
}

#[test]
fn a_kernel_of_an_installed_package_is_not_the_users_to_change() {
    let log = |file: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 9, in <module>\n    \
             trainer.train()\n  File \"{file}\", line 70, in scan_forward\n    _scan_kernel[grid](x)\n  \
             File \"/env/lib/python3.11/site-packages/triton/compiler/compiler.py\", line 381, in _init_handles\n    \
             raise OutOfResources(self.metadata.shared, max_shared, \"shared memory\")\n\
             triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, \
             Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n"
        )
    };
    let explained = |file: &str| {
        let incidents = explain(Catalogue::embedded(), "run.log", log(file).as_bytes());
        let incident = incidents.into_iter().next().expect("an incident");
        let fixes: Vec<String> = incident.fixes.iter().map(|fix| fix.change.clone()).collect();
        (incident.title, fixes)
    };
    let (title, fixes) = explained("/env/lib/python3.11/site-packages/linscan/ops.py");
    assert!(title.starts_with("A kernel of linscan needs"), "{title}");
    assert_eq!(fixes[0], "pip install --upgrade linscan");
    assert!(!fixes.iter().any(|fix| fix.contains("triton.Config")), "{fixes:#?}");
    let (_, fixes) = explained("/home/ana/kernels/scan.py");
    assert!(fixes[0].contains("triton.Config"), "{fixes:#?}");
}

#[test]
fn reports_the_exception_that_stopped_a_server() {
    let log = "\
(Worker_TP0 pid=31) ERROR 03-02 10:00:01 [multiproc_executor.py:700] Traceback (most recent call last):
(Worker_TP0 pid=31) ERROR 03-02 10:00:01 [multiproc_executor.py:700]   File \"/env/lib/python3.12/site-packages/vllm/lora/ops/shrink.py\", line 14, in _shrink
(Worker_TP0 pid=31) ERROR 03-02 10:00:01 [multiproc_executor.py:700]     assert rows == M
(Worker_TP0 pid=31) ERROR 03-02 10:00:01 [multiproc_executor.py:700] AssertionError
(EngineCore_DP0 pid=30) ERROR 03-02 10:00:02 [core.py:710] EngineCore failed to start.
(EngineCore_DP0 pid=30) ERROR 03-02 10:00:02 [core.py:710] Traceback (most recent call last):
(EngineCore_DP0 pid=30) ERROR 03-02 10:00:02 [core.py:710]   File \"/env/lib/python3.12/site-packages/vllm/v1/engine/core.py\", line 70, in run_engine_core
(EngineCore_DP0 pid=30) ERROR 03-02 10:00:02 [core.py:710] Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
";
    let incident = explain(Catalogue::embedded(), "serve.log", log.as_bytes()).remove(0);
    assert_eq!(incident.id, "engine-cause-elsewhere");
    assert!(
        incident.title.contains("AssertionError at shrink.py:14, in _shrink"),
        "{}",
        incident.title
    );
    assert_eq!(incident.causes[0].id, "lora");
    assert_eq!(incident.fixes[0].change, "pip install --upgrade vllm");
    assert!(
        !incident.fixes.iter().any(|fix| fix.change.contains("grep -m1")),
        "{:#?}",
        incident.fixes
    );
}

#[test]
fn windows_gets_no_expandable_segments() {
    let log = OOM.replace("/home/ana/train.py", "D:\\\\work\\\\train.py");
    for (log, helps) in [(OOM.to_owned(), true), (log, false)] {
        let incident = explain(Catalogue::embedded(), "run.log", log.as_bytes()).remove(0);
        let has = incident.fixes.iter().any(|fix| fix.change.contains("expandable_segments:True"));
        assert_eq!(has, helps, "{:#?}", incident.fixes);
    }
}

const SMI: &str = "\
|   2  NVIDIA A30                     Off |   00000000:17:00.0 Off |                    0 |\n\
| N/A   41C    P0             70W /  165W |   20480MiB /  24576MiB |     12%   E. Process |\n\
+-----------------------------------------------------------------------------------------+\n\
| Processes:                                                                              |\n\
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |\n\
|=========================================================================================|\n\
|    2   N/A  N/A     41077      C   /opt/render/bin/worker                      20400MiB |\n\
+-----------------------------------------------------------------------------------------+\n";

#[test]
fn a_table_of_nvidia_smi_names_the_holder_of_the_gpu() {
    let busy = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n";
    let explained = out(&piped(&["-v", "-"], format!("{SMI}{busy}").as_bytes()));
    assert!(explained.contains("ps -o pid,user,etime,cmd -p 41077"), "{explained}");
    assert!(explained.contains("(/opt/render/bin/worker) with 19.92 GiB"), "{explained}");
    assert!(explained.contains("nvidia-smi -i 2 -c DEFAULT"), "{explained}");
    // With another GPU visible, the table says nothing about the failure.
    let masked = format!("CUDA_VISIBLE_DEVICES=0\n{SMI}{busy}");
    assert!(!out(&piped(&["-"], masked.as_bytes())).contains("41077"));
}

#[test]
fn advice_for_a_page_fault_fits_the_program_that_the_kernel_names() {
    let xid = |name: &str| {
        format!(
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name={name}, Ch 00000008, intr 00000000. MMU Fault: \
             ENGINE CE2 HUBCLIENT_CE0 faulted @ 0x7f00_10000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n"
        )
    };
    let native = out(&piped(&["-"], xid("seismic_solve").as_bytes()));
    assert!(native.contains("memcheck ./PROGRAM") && !native.contains("python"), "{native}");
    assert!(!native.contains("NCCL"), "{native}");
    let python = out(&piped(&["-"], xid("python3").as_bytes()));
    assert!(python.contains("memcheck python YOUR_SCRIPT.py"), "{python}");
}

#[test]
fn untagged_lines_belong_to_every_rank() {
    let started = "loading shard\n".repeat(2_000);
    let log = "NVIDIA GeForce RTX 5080 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\n\
         The current PyTorch install supports CUDA capabilities sm_80 sm_86 sm_90.\n\
         [rank0]: RuntimeError: CUDA error: no kernel image is available for execution on the device\n\
         [rank1]: RuntimeError: CUDA error: no kernel image is available for execution on the device\n";
    let incident = first(log);
    assert_eq!(incident["id"], "cuda-no-kernel-image-209");
    assert_eq!(incident["fields"]["capability"], "sm_120", "{incident:#}");
    assert!(incident["title"].as_str().unwrap().contains("sm_120"), "{incident:#}");
    let full = OOM.replace("14.10 GiB", "22.10 GiB").replace("8.02 GiB", "0.02 GiB");
    let oom = full.lines().map(|line| format!("[rank1]: {line}\n")).collect::<String>();
    let log = format!("{started}using Megatron-Core 0.12\n{oom}");
    let fixes = first(&log)["fixes"].to_string();
    assert!(fixes.contains("--micro-batch-size"), "{fixes}");
}

#[test]
fn clues_of_other_programs_in_a_syslog_count_if_they_are_of_the_same_host_and_time() {
    let power_is_likely = |host: &str, time: &str| {
        let log = format!(
            "Nov 20 {time} {host} ipmi-sel[812]: Power Supply 2: failure detected\n\
             Nov 20 12:01:00 node7 kernel: NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.\n"
        );
        let incident = first(&log);
        assert_eq!(incident["id"], "xid-79-off-bus");
        let cause = incident["causes"].as_array().unwrap().iter().find(|c| c["id"] == "power");
        cause.is_some_and(|cause| cause["verdict"] == "likely")
    };
    assert!(power_is_likely("node7", "12:00:40"));
    assert!(!power_is_likely("node8", "12:00:40"));
    assert!(!power_is_likely("node7", "09:15:00"));
}

#[test]
fn a_failed_assertion_has_the_code_and_the_rank_of_the_exception_after_it() {
    let exception = "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 57, in step\n    \
                     total += loss.item()\nRuntimeError: CUDA error: device-side assert triggered\n";
    let watchdog = |rank: u32| {
        format!(
            "[E ProcessGroupNCCL.cpp:916] [Rank {rank}] NCCL watchdog thread terminated with exception: CUDA error: \
             device-side assert triggered\n"
        )
    };
    let incident = first(&format!("{ASSERT}{exception}{}", watchdog(3)));
    assert_eq!(incident["fields"]["python_file"], "train.py", "{incident:#}");
    assert!(incident["at"].as_str().unwrap().contains("train.py:57"), "{incident:#}");
    assert_eq!(incident["fields"]["rank"], 3, "{incident:#}");
    let incident = first(&format!("{ASSERT}{exception}{}{}", watchdog(3), watchdog(1)));
    assert_eq!(incident["fields"]["rank"], Value::Null, "{incident:#}");
}

#[test]
fn further_lines_of_a_message_in_the_journal_belong_to_its_writer() {
    let indent = " ".repeat(30);
    let log = format!(
        "Feb 14 05:03:42 node7 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n{indent}NVRM: (PCI ID: 10de:26b5) installed in \
         this system has\n{indent}NVRM: fallen off the bus and is not responding to commands.\n\
         Feb 14 05:03:42 node7 kernel: NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    );
    let incident = first(&log);
    assert_eq!(incident["id"], "xid-79-off-bus", "{incident:#}");
    assert!(incident["fields"].to_string().contains("b3:00"), "{incident:#}");
}

#[test]
fn reads_the_code_of_a_cuda_error_in_brackets() {
    let log = "CUDA Runtime error cudaSetDevice(0) # forward compatibility was attempted on non supported HW, code = \
               cudaErrorCompatNotSupportedOnDevice [ 804 ] in file src/context.cpp:12\n";
    assert_eq!(first(log)["fields"]["cuda_error_code"], 804);
}

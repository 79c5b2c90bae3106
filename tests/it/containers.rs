//! Containers: the name of a process's container, and gputop in a container, where the driver's PIDs are from another
//! namespace.
#![allow(clippy::print_stdout)]

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use gputop::collect::agent::Options;
use gputop::collect::process::container::Files;
use gputop_model::container::Runtime;
use gputop_model::process::Process;
use gputop_model::protocol::Update;
use gputop_model::reading::{Reading, Reason};
use gputop_model::units::Millis;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::Value;

use crate::support::fake_machine::{RealProcess, dashboard, has, is_host, run, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::many_processes::{Member, TestApp};
use crate::support::screen_tables::shows;
use crate::support::skip::available;
use crate::support::torch_target::Target;

fn in_docker(process: &mut Process) {
    process.container = Reading::Value("5f0a8b7c6d5e".into());
    process.container_runtime = Some(Runtime::Docker);
    process.container_name = Reading::Value("nightly".into());
}

fn in_a_pod_without_a_name(process: &mut Process) {
    process.container = Reading::Value("77aa8b7c6d5e".into());
    process.container_runtime = Some(Runtime::Containerd);
    process.container_name = Reading::missing(Reason::Denied, "root can read the names");
}

fn test_app() -> TestApp {
    TestApp::new(
        1,
        &[
            Member::new(418, "ana", "train.py", &[(0, 20)]).with(in_docker),
            Member::new(421, "bob", "eval.py", &[(0, 10)]).with(in_a_pod_without_a_name),
            Member::new(430, "ana", "plain.py", &[(0, 5)]),
        ],
    )
}

#[test]
fn a_container_is_a_column_a_group_and_a_term() {
    let mut test_app = test_app();
    let text = test_app.text(200, 30);
    assert!(text.contains("CONTAINER"), "{text}");
    assert!(text.contains("docker nightly") && text.contains("containerd 77aa"), "{text}");
    for (term, pids) in [
        ("nightly", vec![418]),
        ("5f0a", vec![418]),
        ("docker", vec![418]),
        ("77aa", vec![421]),
        ("train", vec![]),
    ] {
        test_app.send(&format!("/container:{term}\n"));
        assert_eq!(test_app.pids(), pids, "{term}");
        test_app.send("\x1b");
    }
    test_app.send("ttt");
    let text = test_app.text(120, 30);
    for title in ["docker nightly (1)", "containerd 77aa8b7c6d5e (", "no container (1)"] {
        assert!(text.contains(title), "{title}\n{text}");
    }
}

#[test]
fn container_column_is_hidden_without_containers() {
    let test_app = TestApp::new(1, &[Member::new(430, "ana", "plain.py", &[(0, 5)])]);
    assert!(!test_app.text(400, 30).contains("CONTAINER"));
}

#[test]
fn the_process_screen_says_name_and_id_or_why_there_is_no_name() {
    for (down, lines) in [
        ("", ["docker nightly", "5f0a8b7c6d5e"]),
        ("j", ["containerd 77aa8b7c6d5e", "root can read the names"]),
    ] {
        let mut test_app = test_app();
        test_app.send(&format!("\t{down}\n"));
        let text = test_app.text(120, 60);
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
    }
}

const ID: &str = "5f0a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a";

/// Tests the path of the name from the files of a simulated machine through the agent to a reader.
#[test]
fn the_name_comes_from_the_runtimes_own_file() {
    if !is_host() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let lay = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let stat = "418 (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 6000 9 25 1 1 1\n";
    lay("proc/418/stat", stat);
    lay("proc/418/cgroup", &format!("0::/system.slice/docker-{ID}.scope\n"));
    let config = format!("var/lib/docker/containers/{ID}/config.v2.json");
    lay(&config, r#"{"Name": "/nightly", "Config": {"Env": ["TOKEN=secret"]}}"#);
    let fake = FakeNvml::new("[[gpu]]\n[[process]]\npid = 418\nused = \"2 GiB\"\n");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "containers::read_a_machine", "--ignored", "--nocapture"])
        .env("GPUTOP_TEST_ROOT", root.path())
        .envs(fake.env())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains(
            r#""container":"5f0a8b7c6d5e","container_runtime":"docker","container_name":"nightly""#
        ),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
}

#[test]
#[ignore = "the child of the test above: the scripted NVML reads the environment of its process"]
fn read_a_machine() {
    let Some(root) = std::env::var_os("GPUTOP_TEST_ROOT") else { return };
    let root = Path::new(&root);
    let mut source = gputop::collect::local::start(Options {
        interval: Millis(200),
        library: std::env::var_os("GPUTOP_NVML"),
        keeps_gpus_awake: false,
        idle_limit: gputop::collect::agent::MIN_IDLE,
        proc_root: root.join("proc"),
        sys_root: root.join("sys"),
        container_files: Files { root: root.to_owned(), home: None },
        tmux: None,
        tmux_folder: None,
        cgroup_root: root.join("sys/fs/cgroup"),
        kernel_log: root.join("dev/kmsg"),
        permissions: gputop_model::permissions::Permissions::none(
            "signals are not allowed in this test",
        ),
        is_remote: false,
        finds_candidates: false,
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let process = runtime.block_on(async {
        loop {
            if let Some(Update::Frame(frame)) = source.next().await
                && let Some(process) = frame.processes.iter().flat_map(|list| &*list.list).next()
            {
                break process.clone();
            }
        }
    });
    println!("\n{}", serde_json::to_string(&process).unwrap());
}

/// Options of `unshare` for new namespaces in which this user is root.
const UNSHARE: &[&str] = &["-U", "-r", "-m", "-p", "-f", "--mount-proc"];

/// Runs an ignored test in new namespaces, if they can be created.
pub fn in_a_pid_namespace(test: &str) {
    if !has("unshare") {
        return;
    }
    let unshare = |program: &std::ffi::OsStr, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(UNSHARE).arg(program).args(args);
        command.env("GPUTOP_TEST_INSIDE", "1").output().unwrap()
    };
    let can_unshare = unshare("true".as_ref(), &[]).status.success();
    if !available(can_unshare, "no namespaces can be made here") {
        return;
    }
    let tests = std::env::current_exe().unwrap();
    let output = unshare(tests.as_os_str(), &["--exact", test, "--ignored", "--nocapture"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(FINISHED_MESSAGE), "{text}\n{errors}");
}

const FINISHED_MESSAGE: &str = "all of it was so";

/// Tells the outer test that this one ran to its end.
pub fn report_finished() {
    println!("\n{FINISHED_MESSAGE}");
}

#[test]
fn inside_a_pid_namespace_processes_are_found_by_their_devices_and_copies_dropped() {
    in_a_pid_namespace("containers::inside");
}

#[test]
fn recycled_pid_receives_no_signal() {
    in_a_pid_namespace("containers::recycled");
}

/// Replaces /dev in this mount namespace and creates regular files in place of the NVIDIA devices.
const OWN_DEV: &str = "set -e; d=$(mktemp -d); mount -t tmpfs none $d
for f in null zero full random urandom tty; do : > $d/$f; mount --bind /dev/$f $d/$f; done
mkdir $d/pts; mount -t devpts -o newinstance,ptmxmode=0666 none $d/pts; ln -s pts/ptmx $d/ptmx
: > $d/nvidia0; : > $d/nvidiactl; : > $d/nvidia-uvm; mount --move $d /dev";

/// Opens both devices, so that processes started from now on inherit them until the files are dropped.
fn own_devices() -> [File; 2] {
    assert!(!is_host());
    let dev = Command::new("sh").args(["-c", OWN_DEV]).output().unwrap();
    assert!(dev.status.success(), "{dev:?}");
    ["/dev/nvidia0", "/dev/nvidia-uvm"].map(|path| {
        let device = File::open(path).unwrap();
        fcntl(device.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        device
    })
}

#[test]
#[ignore = "runs in namespaces of its own"]
fn recycled() {
    if std::env::var_os("GPUTOP_TEST_INSIDE").is_none() {
        return;
    }
    let devices = own_devices();
    let first = RealProcess::start("train.py");
    drop(devices);
    let pid = first.pid();
    let fake = FakeNvml::new("[[gpu]]\n");
    let terminal = dashboard(&fake).start();
    terminal.wait_for(|s| shows(s, pid, &[]), "the process");
    terminal.send("\tx\r");
    terminal.wait_text(&format!("Send TERM to {pid} train.py?"));
    drop(first);
    let mut next = (0..1_000).find_map(|_| {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        Some(RealProcess::start("other.py")).filter(|other| other.pid() == pid)
    });
    let next = next.as_mut().expect("another process with that PID");
    terminal.send("y");
    terminal.wait_text(&format!("TERM to {pid} not sent, process exited: "));
    assert_eq!(next.finish().code(), Some(0));
    report_finished();
}

#[test]
#[ignore = "runs in namespaces of its own"]
fn inside() {
    if std::env::var_os("GPUTOP_TEST_INSIDE").is_none() {
        return;
    }
    let dump = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("crates/peek/tests/data/torch/2.6.0/mixed.dump.zst");
    let devices = own_devices();
    let mut target = Target::start(&dump);
    drop(devices);
    let copy = target.fork();
    // The driver's PID 1 is another process; PID 1 in this namespace is this test.
    let fake = FakeNvml::new("[[gpu]]\n[[process]]\npid = 1\nused = \"90 GiB\"\n");
    let mut document = Value::Null;
    wait_until("the copy to be told apart", || {
        let outcome = run(&fake, ["once", "--json"]);
        document = serde_json::from_str(&outcome.out).unwrap();
        let list = document["processes"]["list"].as_array().unwrap();
        list.len() == 1 && document["pools"]["list"].as_array().is_some_and(|list| !list.is_empty())
    });
    let process = &document["processes"]["list"][0];
    let uuid = &document["gpus"][0]["uuid"];
    assert_eq!(process["key"]["pid"], target.pid().0);
    assert_eq!(&process["open_gpus"][0], uuid);
    let pool = &document["pools"]["list"][0];
    assert_eq!(pool["process"]["pid"], target.pid().0);
    assert_eq!(&pool["gpu"], uuid, "{pool}");
    let entry = &document["gpus"][0]["processes"][0];
    assert_eq!((&entry["pid"], &entry["process"]), (&1.into(), &Value::Null));
    let part = &document["gpus"][0]["unattributed"][0];
    assert_eq!(part["cause"], "outside_container");
    let reserved = pool["stats"]["reserved"][2].as_u64().unwrap();
    let outside = part["bytes"].as_u64().unwrap();
    assert!(reserved > 0);
    assert_eq!(outside + reserved, 90 << 30, "{part}");
    assert_ne!(copy, target.pid().0);
    report_finished();
}

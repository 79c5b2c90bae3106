//! Memory that no living process holds, as shown by `once --json` and the GPU's screen, with real zombies.
#![allow(unsafe_code, clippy::print_stdout)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::libc;
use nix::unistd::ForkResult;
use serde_json::Value;

use crate::support::executable;
use crate::support::fake_machine::{
    Guarded, RealProcess, dashboard, is_host, on_gpu, run, wait_until,
};
use crate::support::fake_nvml::FakeNvml;

fn unattributed_parts(fake: &FakeNvml) -> Vec<Value> {
    let outcome = run(fake, ["once", "--json"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let document: Value = serde_json::from_str(&outcome.out).unwrap();
    let parts = &document["gpus"][0]["unattributed"];
    parts.as_array().cloned().unwrap_or_default()
}

/// Returns the only unattributed part: its cause, PIDs and sentence.
#[track_caller]
fn single_part(fake: &FakeNvml) -> (String, Vec<u64>, String) {
    let parts = unattributed_parts(fake);
    let [part] = &parts[..] else {
        panic!("{parts:?}");
    };
    let text = |name: &str| part[name].as_str().unwrap().to_owned();
    let pids = part["pids"].as_array().cloned().unwrap_or_default();
    let pids = pids.iter().filter_map(Value::as_u64).collect();
    (text("cause"), pids, text("sentence"))
}

fn listed(pid: u32) -> FakeNvml {
    FakeNvml::new(&format!("[[gpu]]\n[[process]]\npid = {pid}\ngpu = 0\nused = \"20 GiB\"\n"))
}

#[test]
fn memory_of_living_processes_is_attributed() {
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&("[[gpu]]\n".to_owned() + &on_gpu(0, &process, "used = \"20 GiB\"")));
    if is_host() {
        assert_eq!(unattributed_parts(&fake), Vec::<Value>::new());
    }
}

#[test]
fn unclaimed_memory_says_what_is_known() {
    if !is_host() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\ncontext = \"5 GiB\"\n");
    let (cause, pids, sentence) = single_part(&fake);
    assert_eq!((&*cause, pids), ("unknown", Vec::new()));
    assert!(
        sentence.starts_with("5.00 GiB is not used by any process that the driver lists; "),
        "{sentence}"
    );
    let terminal = dashboard(&fake).size(50, 140).start();
    terminal.wait_text("5.0 GiB unattributed");
    terminal.send("\r");
    terminal.wait_text("5.00 GiB is not used by any process");
    drop(terminal);
    // Part of the same test: in a parallel test, the half above would see the server.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("nvidia-cuda-mps-server");
    executable::copy("/bin/cat", &program);
    let server = RealProcess::program(&program);
    wait_until("its name", || {
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", server.pid()));
        comm.is_ok_and(|comm| comm == "nvidia-cuda-mps\n")
    });
    let (cause, pids, _) = single_part(&FakeNvml::new("[[gpu]]\ncontext = \"5 GiB\"\n"));
    assert_eq!((&*cause, pids), ("mps_server", vec![u64::from(server.pid())]));
}

#[test]
fn a_zombie_that_is_listed_is_named() {
    if !is_host() {
        return;
    }
    let zombie = Guarded(Command::new("true").spawn().unwrap());
    let pid = zombie.0.id();
    wait_until("a zombie", || state(pid) == Some('Z'));
    let (cause, pids, sentence) = single_part(&listed(pid));
    assert_eq!((&*cause, pids), ("zombie", vec![u64::from(pid)]));
    assert_eq!(
        sentence,
        format!(
            "20.00 GiB is held for PID {pid} (true), a zombie: it has exited, but the driver has not freed its \
            memory."
        )
    );
}

fn state(pid: u32) -> Option<char> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    Some(process.stat().ok()?.state)
}

#[test]
fn a_leader_that_left_its_threads_behind_is_counted_with_them() {
    if !is_host() {
        return;
    }
    let mut child = Guarded(
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "unattributed::forks_process_with_exited_leader",
                "--ignored",
                "--nocapture",
            ])
            .env("GPUTOP_TEST_LEADER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let pid =
        lines.map_while(Result::ok).find_map(|line| line.strip_prefix("leader ")?.parse().ok());
    let pid: u32 = pid.expect("its PID");
    wait_until("a leader that has ended", || state(pid) == Some('Z'));
    let (cause, pids, sentence) = single_part(&listed(pid));
    assert_eq!((&*cause, pids), ("zombie", vec![u64::from(pid)]));
    assert!(
        sentence.ends_with("a zombie. 1 thread still runs and has the GPU open."),
        "{sentence}"
    );
}

/// Forks a process whose first thread exits while another lives. Both exit when this process's input ends.
#[test]
#[ignore = "the child of the test above"]
fn forks_process_with_exited_leader() {
    if std::env::var_os("GPUTOP_TEST_LEADER").is_none() {
        return;
    }
    // SAFETY: the child starts a thread and leaves; the C library's locks that another thread might have held at the
    // fork are those of the test harness, which is idle.
    match unsafe { nix::unistd::fork() }.unwrap() {
        ForkResult::Parent { child } => {
            println!("\nleader {child}");
            std::io::stdin().lines().for_each(drop);
            let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
        }
        ForkResult::Child => {
            let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
            // SAFETY: ends this thread alone; nothing it owns is used by the other.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
    }
}

#[test]
fn unknown_pid_is_reported_as_exited() {
    if !is_host() {
        return;
    }
    // Above the kernel's maximum PID.
    let (cause, pids, sentence) = single_part(&listed(4_194_305));
    assert_eq!((&*cause, pids), ("gone", vec![4_194_305]));
    assert!(
        sentence.starts_with("20.00 GiB is listed by the driver for PID 4194305, which has exited")
    );
}

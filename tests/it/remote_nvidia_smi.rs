//! Hosts without gputop, over a real sshd: what their `nvidia-smi` reports, and what it does not.

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::support::executable;
use crate::support::fake_machine::{self, RealProcess, is_host, wait_until};
use crate::support::fake_nvidia_smi::NvidiaSmi;
use crate::support::fake_nvml::FakeNvml;
use crate::support::namespace;
use crate::support::screen_tables::{gpu_shows, shows};
use crate::support::sshd::{self, Sshd};
use crate::support::terminal::Terminal;

/// A host with an `nvidia-smi` and no gputop.
fn host() -> (Sshd, NvidiaSmi) {
    // Anything on that host that looks for a driver library finds this one.
    let sshd = Sshd::start(&FakeNvml::new("[[gpu]]\n"), "");
    let smi = NvidiaSmi::install(sshd.at("bin"));
    (sshd, smi)
}

fn dashboard(sshd: &Sshd) -> Terminal {
    sshd.dashboard().args(["--no-push", "far"]).start()
}

fn wait_sm(terminal: &Terminal, sm: &str) {
    let shown = |screen: &vt100::Screen| gpu_shows(screen, "0", &[("SM%", sm)]);
    terminal.wait_for(shown, &format!("SM% {sm}"));
}

/// Returns the number of processes that the remote shell started, including descendants.
fn remote_processes(sshd: &Sshd) -> usize {
    let home = format!("HOME={}\0", sshd.at("home").display());
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let processes_of_host = pids.filter(|pid| {
        let environment = fs::read(pid.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&home)
    });
    processes_of_host.count()
}

#[test]
fn host_without_gputop_is_shown_through_nvidia_smi() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, smi) = host();
    let process = RealProcess::with_arguments(["train.py", "--api-key", "hunter2secret"], |_| {});
    smi.app(0, process.pid(), "1542", "python3");
    smi.gpu(1, "utilization.gpu=[N/A]\nmemory.used=[Unknown Error]");
    let launch = sshd.dashboard().size(40, 160);
    let terminal = launch.args(["--no-push", "far"]).start();
    wait_sm(&terminal, "31");
    terminal.wait_text("reduced 1s");
    assert!(gpu_shows(&terminal.screen(), "0", &[("USED", "2.1"), ("W", "125"), ("TEMP", "44C")]));
    assert!(gpu_shows(&terminal.screen(), "1", &[("SM%", "–")]));
    let connections = sshd.connections();
    assert_eq!(connections.len(), 1);
    if is_host() {
        let is_there = |screen: &vt100::Screen| shows(screen, process.pid(), &[("VRAM", "1.5")]);
        terminal.wait_for(is_there, "the process");
        terminal.wait_text("train.py --api-key ***");
        assert!(!terminal.text().contains("hunter2secret"));
        terminal.send("M");
        terminal.wait_text("far has only nvidia-smi; `gputop --push far` copies gputop there");
        terminal.send("\x1b");
        terminal.wait_text("COMMAND");
        terminal.send("!");
        terminal.wait_text("not supported here (1)");
        terminal.send("\x1b");
        terminal.wait_text("COMMAND");
    }
    smi.gpu(0, "utilization.gpu=32");
    wait_sm(&terminal, "32");
    assert_eq!(sshd.connections(), connections);
    terminal.resize(6, 40);
    terminal.wait_text("nvidia-smi");
    assert!(remote_processes(&sshd) > 0);
    terminal.signal(Signal::SIGKILL);
    wait_until("the loop's end", || remote_processes(&sshd) == 0);
}

#[test]
fn nvidia_smi_reports_process_shares_and_graphics_processes() {
    if !sshd::is_available() || !is_host() {
        return;
    }
    let (sshd, smi) = host();
    let trains = RealProcess::with_arguments(["train.py"], |_| {});
    let draws = RealProcess::with_arguments(["compositor"], |_| {});
    // It reads four GPUs at a time.
    (1..5).for_each(|index| smi.gpu(index, ""));
    smi.app(4, trains.pid(), "1542", "python3");
    let usage = |sm: u32| {
        smi.usage(&[
            format!(
                "4 {}     C     {sm}     30      -      -      -      -   1542      0    python3",
                trains.pid()
            ),
            format!(
                "0 {}     G      -      -      -      -      -      -    624      0    compositor",
                draws.pid()
            ),
        ]);
    };
    usage(41);
    let terminal = sshd.dashboard().size(40, 160).args(["--no-push", "far"]).start();
    let is_shown = |screen: &vt100::Screen| {
        shows(screen, trains.pid(), &[("VRAM", "1.5"), ("SM%", "41")])
            && shows(screen, draws.pid(), &[("VRAM", "0.6"), ("SM%", "–")])
    };
    terminal.wait_for(is_shown, "both processes");
    // The values are read again.
    usage(73);
    let is_shown = |screen: &vt100::Screen| shows(screen, trains.pid(), &[("SM%", "73")]);
    terminal.wait_for(is_shown, "the next share");
    // The process screen names the source of the values.
    terminal.send("\t\r@");
    terminal.wait_text("nvidia-smi, 5 s");
    assert!(!terminal.text().contains("NVML"), "{}", terminal.text());
}

#[test]
fn the_instances_of_mig_are_rows_with_their_memory() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, smi) = host();
    smi.set_mig(2_048);
    smi.set_old_driver();
    let terminal = sshd.dashboard().size(40, 160).args(["--no-push", "far"]).start();
    terminal.wait_text("3g.71gb");
    let is_shown = |screen: &vt100::Screen| gpu_shows(screen, ":2", &[("USED", "2.0")]);
    terminal.wait_for(is_shown, "the instance's memory");
}

#[test]
fn hanging_nvidia_smi_goes_stale_and_ends_with_the_client() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, smi) = host();
    let terminal = dashboard(&sshd);
    wait_sm(&terminal, "31");
    smi.hang(true);
    // The link stays alive all the while.
    terminal.wait_text("no answer");
    assert!(terminal.text().contains("reduced 1s"), "{}", terminal.text());
    smi.gpu(0, "utilization.gpu=33");
    smi.hang(false);
    wait_sm(&terminal, "33");
    smi.hang(true);
    terminal.wait_text("no answer");
    assert!(remote_processes(&sshd) > 0);
    terminal.signal(Signal::SIGKILL);
    wait_until("the hanging one's end", || remote_processes(&sshd) == 0);
}

#[test]
fn nvidia_smi_that_hangs_at_start_is_awaited() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, smi) = host();
    smi.hang(true);
    let terminal = dashboard(&sshd);
    terminal.wait_text("nvidia-smi has not responded");
    smi.hang(false);
    wait_sm(&terminal, "31");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

#[test]
fn failing_nvidia_smi_is_quoted() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, smi) = host();
    smi.fail("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. \x1b[31mMake sure\n\n");
    let output =
        fake_machine::gputop(["--no-push", "far"]).envs(sshd.local_environment()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.ends_with(
            "nvidia-smi reports: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. ^[[31mMake sure.\n"
        ),
        "{message}"
    );
}

#[test]
fn throttle_reasons_are_read_by_their_old_name_too() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, smi) = host();
    smi.set_old_driver();
    let terminal = dashboard(&sshd);
    terminal.wait_text("too hot");
}

#[test]
fn unusable_remote_gputop_falls_back_to_nvidia_smi() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, _smi) = host();
    let put = |script: &str| executable::write(sshd.at("bin/gputop"), script);
    put("#!/bin/sh\necho 'version GLIBC_2.99 not found' >&2\nexit 1\n");
    let terminal = dashboard(&sshd);
    terminal.wait_text("reduced 1s");
    wait_sm(&terminal, "31");
    drop(terminal);
    put("#!/bin/sh\n[ \"$1\" = agent ] && echo 'gputop-agent protocol=99 version=9.9.9'\nexit 0\n");
    let terminal = dashboard(&sshd);
    terminal.wait_text("reduced 1s");
    wait_sm(&terminal, "31");
}

#[test]
fn fleet_marks_nvidia_smi_hosts_and_recordings_contain_them() {
    if !sshd::is_available() {
        return;
    }
    let (sshd, _smi) = host();
    let other = format!("via:{} agent", env!("CARGO_BIN_EXE_gputop"));
    let fake = FakeNvml::new("[[gpu]]\n");
    let terminal = sshd.dashboard().envs(fake.env()).args(["--no-push", "far", &other]).start();
    let marked = |screen: &vt100::Screen| {
        let mut rows = screen.contents().lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
        rows.any(|row| row.contains("far ") && row.contains("nvidia-smi") && row.contains("1xH200"))
    };
    terminal.wait_for(marked, "the mark");
    terminal.wait_text(" live ");
    let recording = sshd.at("far.gpt.zst");
    let mut record = fake_machine::gputop(["record", "--no-push", "--for", "3s", "-o"]);
    record.arg(&recording).arg("far").envs(sshd.local_environment());
    assert!(record.stderr(Stdio::null()).status().unwrap().success());
    let text = zstd::stream::decode_all(fs::File::open(&recording).unwrap());
    let text = String::from_utf8(text.unwrap()).unwrap();
    assert!(text.contains("\"sm\":31") && text.contains("580.159.04"), "{text}");
}

fn mount(args: &[&str], sshd: &Sshd) {
    let home = sshd.at("home");
    assert!(Command::new("mount").args(args).arg(home).status().unwrap().success());
}

#[test]
fn failed_push_leaves_nothing_and_falls_back_to_nvidia_smi() {
    if !sshd::is_available()
        || !namespace::is_own(
            "-m",
            &["true"],
            "remote_nvidia_smi::failed_push_leaves_nothing_and_falls_back_to_nvidia_smi",
        )
    {
        return;
    }
    let (sshd, _smi) = host();
    // A full disk: the home is smaller than the program.
    mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], &sshd);
    let terminal = sshd.dashboard().args(["--push", "far"]).start();
    terminal.wait_text("reduced 1s");
    wait_sm(&terminal, "31");
    drop(terminal);
    let folder = sshd.at("home/.cache/gputop").join(env!("CARGO_PKG_VERSION"));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    mount(&["-o", "remount,ro"], &sshd);
    let output = fake_machine::gputop(["record", "--push", "--for", "1s", "far", "-o"])
        .arg(sshd.at("x.gpt.zst"))
        .envs(sshd.local_environment())
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(
        message.contains("cannot copy gputop to far, or cannot run it there; see the error above")
            && message.contains("Using nvidia-smi on far instead\n"),
        "{message}"
    );
    let home = sshd.at("home");
    assert!(Command::new("umount").arg(home).status().unwrap().success());
}

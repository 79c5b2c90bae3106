//! Hosts over a real sshd, with the real ssh: found, refused, without gputop, and disconnected.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::executable;
use crate::support::fake_machine::{gputop, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::gpu_shows;
use crate::support::sshd::{self, Sshd};
use crate::support::terminal::Terminal;
use crate::support::test_network;

fn wait_sm(terminal: &Terminal, sm: &str) {
    let shown = |screen: &vt100::Screen| gpu_shows(screen, "0", &[("SM%", sm)]);
    terminal.wait_for(shown, &format!("SM% {sm}"));
}

/// Returns the exit code and the message of `gputop record` for a host that cannot be recorded.
fn refusal(sshd: &Sshd, args: &[&str]) -> (Option<i32>, String) {
    let output =
        gputop([&["record"], args].concat()).envs(sshd.local_environment()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_host_of_the_users_configuration_is_shown_and_survives_a_cut() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 31\n");
    let sshd = Sshd::start(&fake, "");
    sshd.install();
    let terminal = sshd.dashboard().args(["far"]).start();
    wait_sm(&terminal, "31");
    for connection in sshd.connections() {
        kill(Pid::from_raw(connection.cast_signed()), Signal::SIGKILL).unwrap();
    }
    terminal.wait_text("no link");
    fake.replace("[[gpu]]\nsm = 32\n");
    wait_sm(&terminal, "32");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

#[test]
fn lost_packets_are_a_silence_and_the_agent_recovers() {
    if !sshd::is_available()
        || !test_network::is_own("ssh::lost_packets_are_a_silence_and_the_agent_recovers")
    {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 41\n");
    let sshd = Sshd::start(&fake, "");
    sshd.install();
    let terminal = sshd.dashboard().args(["far"]).start();
    wait_sm(&terminal, "41");
    let connections = sshd.connections();
    test_network::cut();
    terminal.wait_text("silent");
    fake.replace("[[gpu]]\nsm = 42\n");
    // The last values stay on the screen, and keys work.
    terminal.send("?");
    terminal.wait_text("Help: ");
    terminal.send("\x1b");
    wait_sm(&terminal, "41");
    test_network::mend();
    wait_sm(&terminal, "42");
    terminal.wait_text("live");
    assert_eq!(sshd.connections(), connections);
}

/// Stops the remote end for half a minute. ssh's keepalive notices, and gputop makes another connection. At the end,
/// one agent is left.
#[test]
fn frozen_connection_is_replaced() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 43\n");
    let sshd = Sshd::start(&fake, "");
    sshd.install();
    let terminal = sshd.dashboard().args(["far"]).start();
    wait_sm(&terminal, "43");
    let frozen = sshd.connections();
    let all = |signal: Signal| {
        for pid in &frozen {
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    };
    // After a short stop, the same connection continues.
    all(Signal::SIGSTOP);
    terminal.wait_text("silent");
    all(Signal::SIGCONT);
    terminal.wait_text("live");
    assert_eq!(sshd.connections(), frozen);

    all(Signal::SIGSTOP);
    terminal.wait_text("silent");
    fake.replace("[[gpu]]\nsm = 44\n");
    // The last values stay on the screen, and keys work.
    terminal.send("?");
    terminal.wait_text("Help: ");
    terminal.send("\x1b");
    wait_sm(&terminal, "43");
    terminal.wait_text("silent 10s");
    wait_sm(&terminal, "44");
    terminal.wait_text("live");
    assert!(sshd.connections().iter().any(|pid| !frozen.contains(pid)));
    all(Signal::SIGCONT);
    wait_until("the end of what had frozen", || {
        sshd.connections().iter().all(|pid| !frozen.contains(pid))
    });
    wait_until("one agent", || agents(&sshd) == 1);
}

/// Returns true if a child of this process is waiting for input from a terminal.
fn reads_a_terminal(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let lists = threads.flatten().map(|thread| thread.path().join("children"));
    let children: String = lists.filter_map(|list| fs::read_to_string(list).ok()).collect();
    children.split_whitespace().any(|child| {
        // `0 0x4 …`: a `read` from descriptor 4, which must be a terminal.
        let call = fs::read_to_string(format!("/proc/{child}/syscall")).unwrap_or_default();
        let file = call.strip_prefix("0 0x").and_then(|rest| rest.split(' ').next());
        let file = file.and_then(|file| u32::from_str_radix(file, 16).ok());
        let link = file.and_then(|file| fs::read_link(format!("/proc/{child}/fd/{file}")).ok());
        link.is_some_and(|link| link.starts_with("/dev/tty") || link.starts_with("/dev/pts"))
    })
}

#[test]
fn a_link_that_wants_a_passphrase_again_asks_for_it_in_the_plain_terminal() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 45\n");
    let sshd = Sshd::start(&fake, "");
    sshd.install();
    sshd.lock_key("open sesame");
    let asked = |terminal: &Terminal, times| {
        let asks = |screen: &vt100::Screen| {
            let text = screen.contents();
            text.matches("Enter passphrase for key").count() == times
        };
        terminal.wait_for(asks, "ssh's question");
    };
    let dashboard = || sshd.dashboard().env("SSH_AUTH_SOCK", "").args(["far"]);
    let terminal = dashboard().start();
    asked(&terminal, 1);
    terminal.send("open sesame\r");
    wait_sm(&terminal, "45");
    for connection in sshd.connections() {
        kill(Pid::from_raw(connection.cast_signed()), Signal::SIGKILL).unwrap();
    }
    terminal.wait_text("ssh needs your input");
    terminal.wait_text("c connect");
    fake.replace("[[gpu]]\nsm = 46\n");
    // After giving up, the user is back on the same screen. Between asking and reading, ssh misses a Ctrl-C.
    terminal.send("c");
    terminal.wait_text("gputop: connecting to far");
    asked(&terminal, 2);
    wait_until("ssh to read the answer", || reads_a_terminal(terminal.pid()));
    terminal.send("\x03");
    terminal.wait_text("ssh needs your input");
    wait_sm(&terminal, "45");
    terminal.send("c");
    asked(&terminal, 3);
    terminal.send("open sesame\r");
    wait_sm(&terminal, "46");
    terminal.wait_text("live");
    // Keys go to the dashboard again.
    terminal.send("?");
    terminal.wait_text("Help: ");
    terminal.send("\x1b");
    let is_closed = |screen: &vt100::Screen| !screen.contents().contains("Help: ");
    terminal.wait_for(is_closed, "the help to close");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn a_host_behind_another_and_one_whose_shell_talks_are_reached() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 33\n");
    let banner = tempfile::NamedTempFile::new().unwrap();
    fs::write(banner.path(), "All use is monitored.\n").unwrap();
    let sshd = Sshd::start(&fake, &format!("Banner {}", banner.path().display()));
    sshd.install();
    let inner = format!(
        "Host inner\n HostName 127.0.0.1\n Port {}\n ProxyCommand /usr/bin/ssh -F {} -W %h:%p far\n",
        sshd.port(),
        sshd.at("ssh.conf").display()
    );
    sshd.write_client(&inner);
    let terminal = sshd.dashboard().args(["inner"]).start();
    wait_sm(&terminal, "33");
}

#[test]
fn a_forced_command_that_is_an_agent_is_all_it_takes() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 34\n");
    let forced = format!("ForceCommand {} agent", env!("CARGO_BIN_EXE_gputop"));
    let sshd = Sshd::start(&fake, &forced);
    let terminal = sshd.dashboard().args(["far"]).start();
    wait_sm(&terminal, "34");
}

#[test]
fn a_host_without_gputop_gets_it_when_asked_for_and_never_else() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 35\n");
    let sshd = Sshd::start(&fake, "");
    let copy = sshd.at("home/.cache/gputop").join(env!("CARGO_PKG_VERSION")).join("gputop");
    let (code, message) = refusal(&sshd, &["--no-push", "far"]);
    assert_eq!((code, copy.exists()), (Some(2), false), "{message}");
    assert!(
        message.ends_with(
            "no gputop found on far. Install this version there, or copy it with `gputop --push far`\n"
        ),
        "{message}"
    );
    // On a terminal, gputop offers to copy itself.
    let terminal = sshd.dashboard().args(["far"]).start();
    terminal.wait_text("no gputop found on far. Copy this program");
    terminal.send("n\n");
    assert_eq!(terminal.wait_exit().exit_code(), 2);
    assert!(!copy.exists());
    let terminal = sshd.dashboard().args(["--push", "far"]).start();
    wait_sm(&terminal, "35");
    drop(terminal);
    let sizes = [copy.as_path(), env!("CARGO_BIN_EXE_gputop").as_ref()]
        .map(|path| fs::metadata(path).unwrap().len());
    assert_eq!(sizes[0], sizes[1]);
    // No partial copy is left beside it.
    assert_eq!(fs::read_dir(copy.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn other_protocol_is_reported_and_push_replaces_it() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 38\n");
    let sshd = Sshd::start(&fake, "");
    let there = sshd.at("home/.local/bin/gputop");
    fs::create_dir_all(there.parent().unwrap()).unwrap();
    let greets = "#!/bin/sh\necho 'gputop-agent protocol=99 version=7.1'\n";
    executable::write(&there, greets);
    let (code, message) = refusal(&sshd, &["--no-push", "far"]);
    assert_eq!(code, Some(2), "{message}");
    assert_eq!(
        message,
        "gputop: gputop 7.1 on far uses a different protocol. Install this version there, or copy it with `gputop --push far`\n"
    );
    let terminal = sshd.dashboard().args(["--push", "far"]).start();
    wait_sm(&terminal, "38");
    assert_eq!(fs::read_to_string(&there).unwrap(), greets);
}

#[test]
fn a_program_from_a_file_is_copied_where_it_fits_and_is_gputop() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 36\n");
    let sshd = Sshd::start(&fake, "");
    let own = fs::read(env!("CARGO_BIN_EXE_gputop")).unwrap();
    let refused = |name: &str, program: &[u8]| {
        let path = sshd.at(name);
        fs::write(&path, program).unwrap();
        let (code, message) = refusal(&sshd, &[&format!("--push={}", path.display()), "far"]);
        assert_eq!(code, Some(2), "{message}");
        message
    };
    let message = refused("mac", b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01 and what else a Mac runs");
    assert!(message.contains("mac`: not a Linux program"), "{message}");
    // The machine byte of an ELF file (elf(5)): here, one that the remote host cannot run.
    let mut other = own.clone();
    let (there, elsewhere) = match std::env::consts::ARCH {
        "aarch64" => ("aarch64", "x86_64"),
        here => (here, "aarch64"),
    };
    other[18] = if elsewhere == "aarch64" { 183 } else { 62 };
    let message = refused("other", &other);
    let expected = format!("it is for Linux {elsewhere}, but far is Linux {there}.");
    assert!(message.contains(&expected), "{message}");
    let message = refused("true", &fs::read("/bin/true").unwrap());
    let expected = format!("that program is not gputop {}", env!("CARGO_PKG_VERSION"));
    assert!(message.contains(&expected), "{message}");
    let folder = sshd.at("home/.cache/gputop").join(env!("CARGO_PKG_VERSION"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let push = format!("--push={}", env!("CARGO_BIN_EXE_gputop"));
    let terminal = sshd.dashboard().args([&push, "far"]).start();
    wait_sm(&terminal, "36");
    assert_eq!(fs::metadata(folder.join("gputop")).unwrap().len(), own.len() as u64);
}

#[test]
fn failed_copy_is_reported_and_leaves_nothing() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\n");
    let sshd = Sshd::start(&fake, "");
    // A home that is a file cannot contain a folder, not even for root.
    fs::remove_dir(sshd.at("home")).unwrap();
    fs::write(sshd.at("home"), "").unwrap();
    let (code, message) = refusal(&sshd, &["--push", "far"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("cannot copy gputop to far"), "{message}");
}

/// A host whose login shell first runs lines from the test, like a startup file, and prints noise.
struct HostileHost {
    sshd: Sshd,
    login: tempfile::TempDir,
}

impl HostileHost {
    fn start(fake: &FakeNvml) -> Self {
        let login = tempfile::tempdir().unwrap();
        let forced = format!("ForceCommand {}", login.path().join("login").display());
        Self { sshd: Sshd::start(fake, &forced), login }
    }

    fn home(&self) -> PathBuf {
        self.sshd.at("home")
    }

    /// Copies gputop to the host and records a second. Returns the exit code and the messages.
    fn push(&self, lines: &str) -> (Option<i32>, String) {
        let script = format!(
            "#!/bin/sh\necho noise\necho 'more noise' >&2\n{lines}\neval \"$SSH_ORIGINAL_COMMAND\"\n"
        );
        let path = self.login.path().join("login");
        executable::write(&path, &script);
        let tape = self.sshd.at("tape.gpt.zst");
        let args = ["--push", "--force", "--for", "1s", "-o", tape.to_str().unwrap(), "far"];
        refusal(&self.sshd, &args)
    }

    /// Pushes gputop, then checks and removes the copy below `home`.
    #[track_caller]
    fn assert_pushed(&self, lines: &str, home: &Path) {
        let (code, message) = self.push(lines);
        assert_eq!(code, Some(0), "{lines}: {message}");
        let cache = home.join(".cache/gputop");
        let folder = cache.join(env!("CARGO_PKG_VERSION"));
        let copy = folder.join("gputop");
        for path in [&cache, &folder, &copy] {
            let mode = fs::symlink_metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{lines}: {}", path.display());
        }
        assert!(fs::symlink_metadata(&copy).unwrap().is_file(), "{lines}");
        let [there, own] = [copy.as_path(), env!("CARGO_BIN_EXE_gputop").as_ref()]
            .map(|path| fs::read(path).unwrap());
        assert!(there == own, "{lines}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "{lines}");
        fs::remove_dir_all(cache).unwrap();
    }
}

#[test]
fn a_pushed_program_is_private_and_whole_on_a_hostile_host() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\n");
    let host = HostileHost::start(&fake);
    let home = host.home();
    let shown = home.display();
    host.assert_pushed("umask 000", &home);
    host.assert_pushed("umask 777", &home);

    // Hostile tools that come first in the PATH, and files in the current directory.
    let evil = "#!/bin/sh\n: > \"$EVIL\"\nexec /usr/bin/false\n";
    for (folder, names) in [("my tools", "sh cat mkdir chmod mv rm cksum"), ("here", "sh gputop")] {
        fs::create_dir(home.join(folder)).unwrap();
        for name in names.split(' ') {
            executable::write(home.join(folder).join(name), evil);
        }
    }
    let lines = format!(
        "EVIL={shown}/evil; PATH=\"{shown}/my tools:.:here\"; export EVIL PATH; cd {shown}/here"
    );
    host.assert_pushed(&lines, &home);
    assert!(!home.join("evil").exists());

    let odd = home.join("it's \"my\" $home");
    fs::create_dir(&odd).unwrap();
    host.assert_pushed(&format!("HOME=\"{shown}/it's \\\"my\\\" \\$home\""), &odd);
    std::os::unix::fs::symlink(&odd, home.join("link")).unwrap();
    host.assert_pushed(&format!("HOME={shown}/link"), &odd);
}

#[test]
fn existing_push_target_is_replaced_or_refused() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\n");
    let host = HostileHost::start(&fake);
    let home = host.home();
    let folder = home.join(".cache/gputop").join(env!("CARGO_PKG_VERSION"));
    let target = folder.join("gputop");
    // A stale file in world-writable directories.
    fs::create_dir_all(&folder).unwrap();
    fs::write(&target, "stale").unwrap();
    for path in [&folder, folder.parent().unwrap()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    host.assert_pushed("", &home);
    // A link to a directory: a plain `mv` would move the file into it.
    let elsewhere = home.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &target).unwrap();
    host.assert_pushed("", &home);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);

    let refused = |lines: &str, why: &str| {
        let (code, message) = host.push(lines);
        assert_eq!(code, Some(2), "{lines}: {message}");
        assert!(message.contains(why), "{lines}: {message}");
        assert!(message.contains("cannot copy gputop to far"), "{lines}: {message}");
    };
    refused("unset HOME", "HOME is not set on that host");
    refused("HOME=here", "HOME is not set on that host");
    refused("HOME=/proc", "/proc/.cache");
    // The same number of bytes, with different content.
    let damage = "case $SSH_ORIGINAL_COMMAND in *cksum*) tr '\\001' '\\002' | eval \"$SSH_ORIGINAL_COMMAND\"; exit;; esac";
    refused(damage, "the copy is damaged or incomplete");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::create_dir(&target).unwrap();
    refused("", "is a directory; remove it");
}

#[test]
fn ssh_login_errors_are_passed_on() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\n");
    let sshd = Sshd::start(&fake, "");
    sshd.install();
    fs::write(sshd.at("authorized"), "").unwrap();
    let (code, message) = refusal(&sshd, &["far"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("Permission denied"), "{message}");
    assert!(message.ends_with("gputop: ssh to far failed with exit code 255\n"), "{message}");
    fs::write(sshd.at("known"), "").unwrap();
    let (_, message) = refusal(&sshd, &["far"]);
    assert!(message.contains("Host key verification failed"), "{message}");
    let (_, message) = refusal(&sshd, &["127.0.0.1:1"]);
    assert!(message.contains("Connection refused"), "{message}");
}

#[test]
fn remote_agent_exits_when_the_client_is_killed() {
    if !sshd::is_available() {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 36\n");
    let sshd = Sshd::start(&fake, "");
    sshd.install();
    let terminal = sshd.dashboard().args(["far"]).start();
    wait_sm(&terminal, "36");
    assert_eq!(agents(&sshd), 1);
    terminal.signal(Signal::SIGKILL);
    wait_until("the agent's end", || agents(&sshd) == 0);
}

/// Returns the number of agents on the remote host.
fn agents(sshd: &Sshd) -> usize {
    let home = format!("HOME={}", sshd.at("home").display());
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter(|pid| {
        let read = |name: &str| fs::read(pid.path().join(name)).unwrap_or_default();
        let is_agent = read("cmdline").split(|byte| *byte == 0).any(|word| word == b"agent");
        is_agent && String::from_utf8_lossy(&read("environ")).contains(&home)
    })
    .count()
}

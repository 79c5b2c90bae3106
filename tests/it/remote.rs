//! A remote host behind a command: what is shown, and what happens if the command exits, hangs or sends wrong data.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::fake_machine::{
    self, Guarded, RealProcess, command, dashboard, gputop, is_host, on_gpu, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::gpu_shows;
use crate::support::terminal::Terminal;

const GPUTOP: &str = env!("CARGO_BIN_EXE_gputop");
const F9: &str = "\x1b[20~";
const ENTER: &str = "\r";

/// Returns a command that writes its PID to this file and then runs an agent.
fn agent_of(file: &tempfile::TempDir, more: &str) -> String {
    let pid = file.path().join("pid");
    format!("via:echo $$ > {}; exec {GPUTOP} agent{more}", pid.display())
}

fn pid(file: &tempfile::TempDir) -> Option<Pid> {
    let text = std::fs::read_to_string(file.path().join("pid")).ok()?;
    Some(Pid::from_raw(text.trim().parse().ok()?))
}

fn wait_sm(terminal: &Terminal, sm: &str) {
    let shown = |screen: &vt100::Screen| gpu_shows(screen, "0", &[("SM%", sm)]);
    terminal.wait_for(shown, &format!("SM% {sm}"));
}

fn is_gone(pid: Pid) -> bool {
    kill(pid, None).is_err()
}

#[test]
fn remote_host_is_shown_like_the_local_host() {
    let process = RealProcess::start("train");
    let fake =
        FakeNvml::new(&format!("[[gpu]]\nsm = 37\n{}", on_gpu(0, &process, "used = \"1 GiB\"")));
    let file = tempfile::tempdir().unwrap();
    let terminal = dashboard(&fake).args([agent_of(&file, "")]).start();
    wait_sm(&terminal, "37");
    fake.replace(&format!("[[gpu]]\nsm = 38\n{}", on_gpu(0, &process, "used = \"1 GiB\"")));
    wait_sm(&terminal, "38");
    if is_host() {
        // Requests are answered by the remote host.
        terminal.wait_text("train");
        terminal.send(&format!("\t{ENTER}"));
        terminal.wait_text(&format!("{}", process.pid()));
        terminal.wait_text("open files");
        terminal.send("q");
    }
    let agent = pid(&file).unwrap();
    assert!(!is_gone(agent));
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    wait_until("the agent's end", || is_gone(agent));
}

#[test]
fn login_shell_noise_is_skipped() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 41\n");
    let via = format!("via:printf 'Welcome to node 7\\n$ '; echo bad >&2; exec {GPUTOP} agent");
    let terminal = dashboard(&fake).args([via]).start();
    wait_sm(&terminal, "41");
}

#[test]
fn lost_link_keeps_data_and_reconnects() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 51\n");
    let file = tempfile::tempdir().unwrap();
    let terminal = dashboard(&fake).args([agent_of(&file, "")]).start();
    wait_sm(&terminal, "51");
    let first = pid(&file).unwrap();
    fake.replace("[[gpu]]\nsm = 52\n");
    wait_sm(&terminal, "52");
    kill(first, Signal::SIGKILL).unwrap();
    terminal.wait_text("no link");
    terminal.wait_text("Stale data: connection lost");
    assert!(gpu_shows(&terminal.screen(), "0", &[("SM%", "52")]));
    terminal.resize(6, 40);
    terminal.wait_text("no link");
    terminal.resize(40, 120);
    fake.replace("[[gpu]]\nsm = 53\n");
    wait_sm(&terminal, "53");
    terminal.wait_text("live");
    assert_ne!(pid(&file).unwrap(), first);
}

#[test]
fn hanging_agent_is_marked_silent_and_recovers() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 61\n");
    let file = tempfile::tempdir().unwrap();
    let terminal = dashboard(&fake).args([agent_of(&file, "")]).start();
    wait_sm(&terminal, "61");
    let agent = pid(&file).unwrap();
    kill(agent, Signal::SIGSTOP).unwrap();
    terminal.wait_text("silent");
    // Keys still work.
    terminal.send("?");
    terminal.wait_text("Help: ");
    terminal.send("\x1b");
    kill(agent, Signal::SIGCONT).unwrap();
    terminal.wait_text("live");
}

#[test]
fn agent_exits_with_its_client() {
    let fake = FakeNvml::new("[[gpu]]\n");
    let file = tempfile::tempdir().unwrap();
    let recording = file.path().join("x.gpt.zst");
    let mut near = command(&fake, ["record", "-o"]);
    near.arg(&recording).arg(agent_of(&file, ""));
    let mut near = Guarded(near.stderr(Stdio::null()).spawn().unwrap());
    wait_until("a recording", || recording.exists());
    let agent = pid(&file).unwrap();
    assert!(!is_gone(agent));
    near.0.kill().unwrap();
    wait_until("the agent's end", || is_gone(agent));
}

#[test]
fn unresponsive_command_ends_with_the_dashboard() {
    let fake = FakeNvml::new("[[gpu]]\n");
    let file = tempfile::tempdir().unwrap();
    let via = format!("via:echo $$ > {}; exec sleep 1000", file.path().join("pid").display());
    let terminal = dashboard(&fake).args([via]).start();
    terminal.wait_text("No GPU data yet");
    let command = pid(&file).unwrap();
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    wait_until("the command's end", || is_gone(command));
}

/// Returns true if a process has exited, even if its new parent has not collected its status.
fn is_dead(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// Both the command and a process that it started ignore all signals that can be ignored, and the end of their input.
#[test]
fn a_command_that_ignores_signals_ends_with_its_client() {
    let fake = FakeNvml::new("[[gpu]]\n");
    let file = tempfile::tempdir().unwrap();
    let path = |name: &str| file.path().join(name).display().to_string();
    let via = format!(
        "via:trap '' TERM HUP INT PIPE; printf 'gputop-agent protocol=1 version=0.1.0\\n'; \
         sh -c 'echo $$ > {}; while :; do sleep 1; done' & echo $$ > {}; while :; do sleep 1; done",
        path("child"),
        path("pid"),
    );
    let number = |name: &str| -> Option<Pid> {
        Some(Pid::from_raw(fs::read_to_string(path(name)).ok()?.trim().parse().ok()?))
    };
    let ends = |what: &str, stop: &dyn Fn()| {
        wait_until("the command", || number("pid").is_some() && number("child").is_some());
        let pids = ["pid", "child"].map(|name| number(name).unwrap());
        stop();
        wait_until(what, || pids.iter().all(|pid| is_dead(*pid)));
        ["pid", "child"].iter().for_each(|name| fs::remove_file(path(name)).unwrap());
    };
    let terminal = dashboard(&fake).args([&via]).start();
    ends("the end with the dashboard", &|| {
        terminal.send("q");
        assert_eq!(terminal.wait_exit().exit_code(), 0);
    });
    let mut serve = gputop(["serve", "--listen", "127.0.0.1:0", &via]);
    let serve = Guarded(serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    ends("the end with serve", &|| {
        kill(Pid::from_raw(serve.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    });
}

#[test]
fn leftover_child_does_not_hide_the_command_exit() {
    let fake = FakeNvml::new("[[gpu]]\n");
    let file = tempfile::tempdir().unwrap();
    let written = file.path().join("pid").display().to_string();
    let left = format!(
        "via:echo the door is shut >&2; setsid sh -c 'echo $$ > {written}; exec sleep 30' >/dev/null & \
         while [ ! -s {written} ]; do sleep 0.01; done; exit 1"
    );
    fake_machine::run(&fake, ["record", &left])
        .assert_refused(2, "cannot record: the door is shut");
    // The exit is reported while the leftover child is still running.
    let what = format!("/proc/{}/cmdline", pid(&file).unwrap());
    assert_eq!(std::fs::read(what).unwrap(), b"sleep\x0030\0");
    kill(pid(&file).unwrap(), Signal::SIGKILL).unwrap();
}

#[test]
fn remote_host_is_recorded_and_replayed() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 71\n");
    let file = tempfile::tempdir().unwrap();
    let recording = file.path().join("x.gpt.zst");
    let mut record = command(&fake, ["record", "--for", "3s", "--interval", "250ms", "-o"]);
    let output = record.arg(&recording).arg(agent_of(&file, "")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    if fake_machine::has("zstd") {
        let text = Command::new("zstd").arg("-dc").arg(&recording).output().unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains("\"sm\":71"), "{text:.200}");
    }
}

#[test]
fn non_agent_is_reported_with_its_last_output() {
    let fake = FakeNvml::new("[[gpu]]\n");
    for (via, sentence) in [
        ("via:echo no such pod >&2; exit 1", "cannot record: no such pod"),
        ("via:exit 3", "cannot record: the remote command exited with code 3"),
        ("via:exit 0", "cannot record: the remote command exited"),
        ("via:echo 'Account \u{1b}[31mdisabled.'", "cannot record: Account ^[[31mdisabled."),
        (
            "via:echo gputop-agent protocol=7 version=9.9",
            "cannot record: gputop 9.9 on the remote host uses a different protocol from 0.1.0 on this host. Update the older one",
        ),
        (
            "via:echo gputop-agent protocol=1 version=0.1.0; echo this is no stream",
            "cannot record: the received data is damaged: invalid zstd data",
        ),
    ] {
        fake_machine::run(&fake, ["record", via]).assert_refused(2, sentence);
    }
    fake_machine::run(&fake, ["record", "via:"]).assert_refused(
        2,
        "`via:` requires a command, such as `via:kubectl exec -i POD -- gputop agent`",
    );
}

#[test]
fn remote_signals_need_permission() {
    if !is_host() {
        return;
    }
    let mut process = RealProcess::start("train");
    let fake = FakeNvml::new(&format!("[[gpu]]\n{}", on_gpu(0, &process, "used = \"1 GiB\"")));
    let file = tempfile::tempdir().unwrap();
    let terminal = dashboard(&fake).args([agent_of(&file, "")]).start();
    terminal.wait_text("train");
    terminal.send(&format!("\t{F9}"));
    terminal.wait_text("--allow-signals");
    drop(terminal);

    // The agent decides by itself: the local option alone cannot permit signals there.
    let dashboard = dashboard(&fake).args(["--allow-signals"]);
    let terminal = dashboard.args([agent_of(&file, " --allow-signals")]).start();
    terminal.wait_text("train");
    terminal.send(&format!("\t{F9}"));
    terminal.wait_text("15 TERM");
    terminal.send(ENTER);
    terminal.wait_text("Send TERM to");
    terminal.send("y");
    terminal.wait_text("TERM delivered to");
    assert_eq!(process.wait().signal(), Some(15));
}

#[test]
fn a_remote_log_is_followed_by_name_only_if_both_sides_allow_it() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train");
    let fake = FakeNvml::new(&format!("[[gpu]]\n{}", on_gpu(0, &process, "used = \"1 GiB\"")));
    let file = tempfile::tempdir().unwrap();
    let named = file.path().join("app.host.log");
    std::fs::write(&named, "").unwrap();
    let ask = |allows: &[&str], agent: &str| {
        let terminal = dashboard(&fake).args(allows).args([agent_of(&file, agent)]).start();
        terminal.wait_text("train");
        terminal.send("\tw");
        terminal
    };
    let type_path = |terminal: &Terminal| {
        terminal.wait_text(&format!("log of {}:", process.pid()));
        terminal.send(&format!("{}\r", named.display()));
    };
    let terminal = ask(&[], " --allow-watch");
    terminal.wait_text("naming a log on a remote host requires --allow-watch");
    drop(terminal);
    let terminal = ask(&["--allow-watch"], "");
    type_path(&terminal);
    terminal.wait_text("cannot follow the log: the remote agent runs without --allow-watch");
    drop(terminal);
    let terminal = ask(&["--allow-watch"], " --allow-watch");
    type_path(&terminal);
    terminal.wait_text("following ");
}

#[test]
fn several_hosts_are_a_list_each_opens_and_one_that_is_down_says_so() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 81\nused = \"70 GiB\"\n");
    let file = tempfile::tempdir().unwrap();
    let list = file.path().join("hosts");
    let up = format!("via:exec {GPUTOP} agent # one");
    std::fs::write(&list, format!("# the cluster\n{up}\n\n")).unwrap();
    let dashboard = dashboard(&fake).args([
        "--hosts",
        list.to_str().unwrap(),
        "via:echo No route to host >&2; exit 255",
        &agent_of(&file, ""),
    ]);
    let terminal = dashboard.start();
    terminal.wait_text("3 hosts");
    let row = |screen: &vt100::Screen, of: &str, words: &[&str]| {
        let text = screen.contents();
        let line = text.lines().find(|line| line.contains(of)).unwrap_or("").to_owned();
        words.iter().all(|word| line.contains(word))
    };
    terminal.wait_for(
        |screen| row(screen, "echo No", &["no link", "No route to host"]),
        "the host that is down",
    );
    terminal.wait_for(|screen| row(screen, "exec ", &["live", "1xH200", "81"]), "a host");
    // Hosts that need attention come first, and the cursor stays on its host.
    terminal.send(&format!("Gk{ENTER}"));
    wait_sm(&terminal, "81");
    terminal.wait_text("q back");
    terminal.send("q");
    terminal.wait_text("3 hosts");
    terminal.send(&format!("G{ENTER}"));
    wait_sm(&terminal, "81");
    terminal.send("H");
    terminal.wait_text("3 hosts");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn a_group_of_the_configuration_is_its_hosts_also_where_a_host_has_its_name() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 82\n");
    let file = tempfile::tempdir().unwrap();
    let configuration = file.path().join("config.toml");
    let agent = format!("via:exec {GPUTOP} agent");
    let text = format!(
        "[hosts]\nlocalhost = [\n  '{agent} # one',\n  '{agent} # two',\n]\nall = ['{agent} # two', '{agent} # 3']\n"
    );
    std::fs::write(&configuration, &text).unwrap();
    let configured = ["--config", configuration.to_str().unwrap()];
    let terminal = dashboard(&fake).args(configured);
    let terminal = terminal.args(["localhost", "all"]).start();
    terminal.wait_text("3 hosts");
    terminal.wait_for(
        |screen| screen.contents().matches(" live ").count() >= 3,
        "three hosts that are live",
    );
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    // The printed configuration can be read back.
    let printed = fake_machine::run(&fake, [&["config", "print"], &configured[..]].concat());
    std::fs::write(&configuration, &printed.out).unwrap();
    let again = fake_machine::run(&fake, [&["config", "print"], &configured[..]].concat());
    let lines = |outcome: &fake_machine::Outcome| {
        let lines = outcome.out.lines().filter(|line| line.contains("agent # "));
        lines.map(|line| line.rsplit_once("  # ").unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((lines(&printed).len(), lines(&printed)), (2, lines(&again)));
}

#[test]
fn invalid_hosts_file_is_reported_with_its_line() {
    let fake = FakeNvml::new("[[gpu]]\n");
    let file = tempfile::tempdir().unwrap();
    let list = file.path().join("hosts");
    let name = list.to_str().unwrap().to_owned();
    let refused = |text: &str, sentence: &str| {
        std::fs::write(&list, text).unwrap();
        fake_machine::run(&fake, ["--hosts", &name]).assert_refused(2, sentence);
    };
    refused(
        "gpu1\ngpu2:x\n",
        &format!("{name}:2: `x` is not a valid port: use a number from 1 to 65535"),
    );
    refused(
        "# none\n",
        &format!(
            "no host in the list of hosts {name}; write one on each line as [user@]host[:port]"
        ),
    );
    refused("gpu1\ngpu1\n", "host `gpu1` is listed twice; remove one");
}

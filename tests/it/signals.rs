//! Signals and tags: which processes the question names, what `y` sends, what is reported, and when nothing may be sent
//! at all.

use std::os::unix::process::ExitStatusExt;

use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Request, Update};
use gputop_model::reading::{Missing, Reason};
use gputop_model::signal::{SIGNALS, Signal, Signalled};
use gputop_model::units::StartTicks;

use crate::support::fake_machine::{RealProcess, dashboard, has, is_host, is_root, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::many_processes::{Member, TestApp, frame, key};
use crate::support::screen_tables::shows;
use crate::support::terminal::Launch;

const F9: &str = "\x1b[20~";

fn on_one_gpu(processes: &[&RealProcess]) -> FakeNvml {
    let entries = processes.iter().zip(0..).map(|(process, i)| {
        let used = format!("used = \"{} GiB\"", 9 - i);
        on_gpu(0, process, &used)
    });
    FakeNvml::new(&entries.fold("[[gpu]]\n".to_owned(), |text, entry| text + &entry))
}

#[test]
fn a_signal_is_chosen_confirmed_and_delivered() {
    if !is_host() {
        return;
    }
    let mut process = RealProcess::start("train.py");
    let other = RealProcess::start("other.py");
    let fake = on_one_gpu(&[&process, &other]);
    let terminal = dashboard(&fake).start();
    let pid = process.pid();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap();
    let user = user.map_or_else(String::new, |user| user.name);
    // The driver lists a process before its command and user are known.
    let facts = [("COMMAND", "train.py"), ("USER", &user)];
    terminal.wait_for(|s| shows(s, pid, &facts), "the process");
    terminal.send("\t");
    terminal.send(F9);
    terminal.wait_text(&format!("Signal to {pid} train.py"));
    terminal.wait_text("▸ 15 TERM");
    terminal.send("\r");
    terminal.wait_text(&format!("Send TERM to {pid} train.py?"));
    let asked = terminal.text();
    let line = asked.lines().find(|line| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "│").collect();
        words.first() == Some(&&*pid.to_string()) && words.contains(&user.as_str())
    });
    assert!(
        line.is_some_and(|line| line.trim_end_matches([' ', '│']).ends_with("train.py")),
        "{asked}"
    );
    // Neither Enter nor another signal's key sends it, and `n` refuses.
    terminal.send("\r");
    terminal.send("K");
    terminal.send("n");
    terminal.wait_for(|s| !s.contents().contains("Send TERM to"), "no question");
    terminal.send("T");
    terminal.wait_text("Send TERM to");
    terminal.send("y");
    terminal.wait_text(&format!("TERM delivered to {pid} train.py"));
    assert_eq!(process.wait().signal(), Some(15));
    // The process next to the cursor was not signalled.
    assert!(terminal.text().contains("other.py"));
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn tagged_processes_are_listed_counted_and_hit_and_no_other() {
    if !is_host() {
        return;
    }
    let mut processes = ["a.py", "b.py", "c.py"].map(RealProcess::start);
    let fake = on_one_gpu(&processes.each_ref());
    let terminal = dashboard(&fake).start();
    terminal.wait_for(|s| shows(s, processes[2].pid(), &[("COMMAND", "c.py")]), "the processes");
    terminal.send("\t ");
    terminal.wait_text("1 tagged");
    // Tagging moved the cursor to b, so `j` moves it to c.
    terminal.send("j ");
    terminal.wait_text("2 tagged");
    let marked: Vec<String> = terminal
        .text()
        .lines()
        .filter(|line| line.starts_with('◆'))
        .map(|line| line.split_whitespace().last().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(marked, ["a.py", "c.py"]);
    terminal.send("K\r");
    terminal.wait_text("Send KILL to 2 processes?");
    let asked = terminal.text();
    assert!(asked.contains("a.py") && asked.contains("c.py"), "{asked}");
    terminal.send("y");
    terminal.wait_text("KILL: 2 delivered");
    assert_eq!(processes[0].wait().signal(), Some(9));
    assert_eq!(processes[2].wait().signal(), Some(9));
    // Exited processes have no tag. The remaining process lives until its input ends.
    terminal.wait_for(|s| !s.contents().contains("tagged"), "no tags");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    assert_eq!(processes[1].finish().code(), Some(0));
}

#[test]
fn process_that_exits_during_confirmation_is_reported() {
    if !is_host() {
        return;
    }
    let process = RealProcess::start("train.py");
    let fake = on_one_gpu(&[&process]);
    let terminal = dashboard(&fake).start();
    let pid = process.pid();
    terminal.wait_for(|s| shows(s, pid, &[("COMMAND", "train.py")]), "the process");
    terminal.send("\tx\r");
    terminal.wait_text("Send TERM to");
    drop(process);
    terminal.send("y");
    terminal.wait_text(&format!("TERM to {pid} not sent, process exited: "));
}

#[test]
fn readonly_sends_nothing() {
    let process = RealProcess::start("train.py");
    let fake = on_one_gpu(&[&process]);
    let terminal = dashboard(&fake).args(["--readonly"]).start();
    terminal.wait_for(|s| shows(s, process.pid(), &[]), "the process");
    terminal.send("\tx");
    terminal.wait_text("cannot send signals: gputop was started with --readonly");
    assert!(!terminal.text().contains("Signal to"));
}

#[test]
fn collectors_refuse_signals_under_readonly() {
    use gputop::collect::agent::Options;
    use gputop::collect::process::container::Files;
    use gputop_model::units::Millis;
    let mut process = RealProcess::start("train.py");
    let options = Options {
        interval: Millis(200),
        library: Some("/nonexistent".into()),
        keeps_gpus_awake: false,
        idle_limit: gputop::collect::agent::MIN_IDLE,
        proc_root: "/proc".into(),
        sys_root: "/sys".into(),
        container_files: Files { root: "/".into(), home: None },
        tmux: None,
        tmux_folder: None,
        cgroup_root: "/sys/fs/cgroup".into(),
        kernel_log: "/nonexistent".into(),
        permissions: gputop_model::permissions::Permissions::none(
            "gputop was started with --readonly",
        ),
        is_remote: false,
        finds_candidates: false,
    };
    let mut source = gputop::collect::local::start(options).unwrap();
    let start = procfs::process::Process::new(i32::try_from(process.pid()).unwrap())
        .and_then(|p| p.stat())
        .unwrap()
        .starttime;
    source.send(Request::Signal {
        signal: Signal::Kill,
        processes: vec![ProcessKey {
            pid: gputop_model::units::Pid(process.pid()),
            start: StartTicks(start),
        }],
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let outcome = runtime.block_on(async {
        loop {
            if let Some(Update::Signalled(signalled)) = source.next().await {
                break signalled.outcomes[0].1.clone();
            }
        }
    });
    assert_eq!(outcome.unwrap_err().reason, Reason::Denied);
    assert_eq!(process.finish().code(), Some(0));
}

/// Runs as another user, who can see the process but not signal it.
#[test]
fn denied_signal_comes_with_a_fix() {
    if !is_host() || !is_root() || !has("setpriv") {
        return;
    }
    let process = RealProcess::start("train.py");
    let fake = on_one_gpu(&[&process]);
    let terminal = Launch::program("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args([env!("CARGO_BIN_EXE_gputop")])
        .envs(fake.env())
        .size(30, 120)
        .start();
    let pid = process.pid();
    terminal.wait_for(|s| shows(s, pid, &[("COMMAND", "train.py")]), "the process");
    terminal.send("\tx\ry");
    terminal.wait_text(&format!(
        "TERM to {pid} denied: it belongs to another user. Run sudo kill -TERM {pid}"
    ));
}

#[test]
fn recordings_offer_no_signals() {
    let terminal = Launch::gputop().args(["demo"]).size(30, 120).start();
    terminal.wait_text("REPLAY");
    terminal.send("x");
    terminal.wait_text("cannot send signals to processes in a recording");
}

fn test_app() -> TestApp {
    TestApp::new(
        2,
        &[
            Member::new(418, "ana", "train.py", &[(0, 20), (1, 30)]),
            Member::new(421, "bob", "eval.py", &[(1, 4)]),
        ],
    )
}

fn signals(test_app: &TestApp) -> Vec<&Request> {
    let asked = test_app.asked.iter();
    asked.filter(|r| matches!(r, Request::Signal { .. })).collect()
}

#[test]
fn only_y_confirms_and_sends_with_the_start_time() {
    let mut test_app = test_app();
    test_app.send("\tx");
    test_app.send("y");
    test_app.send("K\n\n \tKx");
    assert_eq!(signals(&test_app), Vec::<&Request>::new());
    test_app.send("y");
    let sent = Request::Signal { signal: Signal::Kill, processes: vec![key(418)] };
    assert_eq!(signals(&test_app), [&sent]);
    // On a process's screen, that process is signalled. On a GPU's screen, none is selected.
    test_app.send("\t\n");
    test_app.send("\x1bx");
    assert!(test_app.text(100, 30).contains("no process under the cursor"));
    test_app.send("G\n");
    test_app.send("x");
    assert!(test_app.text(100, 30).contains("Signal to 421 eval.py"));
}

#[test]
fn a_process_on_two_gpus_is_tagged_and_signalled_once() {
    let mut test_app = test_app();
    test_app.send("\t ");
    assert_eq!(test_app.app.host.processes.tags.len(), 1);
    let text = test_app.text(100, 30);
    let marked = text.lines().filter(|line| line.starts_with('◆'));
    assert_eq!(marked.count(), 2, "{text}");
    // A filter hides the process, but it stays tagged, and the question names it.
    test_app.send("/user:bob\n");
    test_app.send("T\n");
    assert!(test_app.text(100, 30).contains("Send TERM to 418 train.py?"));
    test_app.send("y");
    let sent = Request::Signal { signal: Signal::Term, processes: vec![key(418)] };
    assert_eq!(signals(&test_app), [&sent]);
    test_app.send("U");
    assert!(test_app.app.host.processes.tags.is_empty());
}

#[test]
fn processes_outside_the_namespace_are_not_signalled() {
    let members = || vec![Member::new(418, "ana", "train.py", &[(0, 20)])];
    let mut unreadable = members();
    unreadable[0].process.key.start = StartTicks(0);
    let mut outside = frame(1, &members());
    outside.processes = None;
    let table = [
        (outside, "process 418 is not visible: it is in another PID namespace"),
        (frame(1, &unreadable), "cannot identify process 418"),
    ];
    for (frame, why) in table {
        let mut test_app = TestApp::of_frame(frame);
        for keys in ["\tx", " "] {
            test_app.send(keys);
            let text = test_app.text(80, 24);
            assert!(text.contains(why), "{text}");
        }
        assert!(test_app.app.host.processes.tags.is_empty());
        assert_eq!(signals(&test_app), Vec::<&Request>::new());
    }
}

#[test]
fn refusal_is_shown_in_the_smallest_pane() {
    let mut test_app = test_app();
    test_app.app.host.permissions = gputop_model::permissions::Permissions::readonly(true);
    test_app.send("\tx");
    for (width, height) in [(40, 6), (80, 24)] {
        let text = test_app.text(width, height);
        let last = text.lines().last().unwrap();
        assert!(last.contains("cannot send signals: gputop was started"), "{text}");
    }
    assert_eq!(signals(&test_app), Vec::<&Request>::new());
}

#[test]
fn each_signal_result_has_a_message() {
    let mut test_app = test_app();
    let missing = |reason, hint: &str| Err(Missing::new(reason, hint));
    let mut reported = |outcomes: Vec<(ProcessKey, Result<(), Missing>)>| {
        test_app.update(Update::Signalled(Signalled { signal: Signal::Int, outcomes }));
        test_app.app.ui.message.clone().unwrap()
    };
    assert_eq!(reported(vec![(key(418), Ok(()))]), "INT delivered to 418 train.py");
    let denied = missing(Reason::Denied, "another's");
    assert_eq!(reported(vec![(key(9), denied.clone())]), "INT to 9 denied: another's");
    let outcomes = vec![
        (key(418), Ok(())),
        (key(9), denied),
        (key(8), missing(Reason::Gone, "it has exited")),
    ];
    assert_eq!(
        reported(outcomes),
        "INT: 1 delivered, 9 denied: another's, 8 not sent, process exited: it has exited"
    );
}

#[test]
fn the_menu_is_whole_at_eighty_columns_and_survives_any_size() {
    let mut test_app = test_app();
    test_app.send("\tx");
    let text = test_app.text(80, 24);
    for def in SIGNALS {
        assert!(text.contains(def.help), "{}\n{text}", def.help);
    }
    for step in ["", "\n"] {
        test_app.send(step);
        for width in [0, 1, 3, 40, 200] {
            for height in [0, 1, 2, 3, 4, 6, 60] {
                test_app.text(width, height);
            }
        }
    }
}

//! `gputop run`: a command behaves as it would without it.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::executable;
use crate::support::fake_machine::{Guarded, STATE, child_of, gputop, has, wait_until};
use crate::support::terminal::{Launch, Terminal};

/// Starts the command as the leader of its terminal, as an interactive shell does.
fn on_terminal<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Launch {
    Launch::gputop().args(["run", "--"]).args(args)
}

pub fn script(text: &str) -> Launch {
    on_terminal(["sh", "-c", text])
}

/// Starts the command in a script's process group, as a shell does that runs a script.
pub fn in_a_script(text: &str) -> Launch {
    let product = concat!(env!("CARGO_BIN_EXE_gputop"), " run --");
    Launch::shell(&text.replace("GPUTOP", product))
}

/// Starts the command without a terminal, in a session that has none.
pub fn piped<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    piped_with(&[], args)
}

/// Same as `piped`, with options for gputop itself.
pub fn piped_with<S: AsRef<OsStr>>(options: &[&str], args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new("setsid");
    command
        .args(["-w", env!("CARGO_BIN_EXE_gputop"), "run"])
        .args(options)
        .arg("--")
        .args(args)
        .env("LC_ALL", "C.UTF-8")
        .env("XDG_CONFIG_HOME", "/dev/null")
        .env("XDG_STATE_HOME", STATE)
        .stdin(Stdio::null());
    for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"] {
        command.env_remove(name);
    }
    command
}

pub fn output<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    piped(args).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that the terminal gets the same bytes with and without gputop, and returns them.
#[track_caller]
fn assert_same_bytes(script_text: &str) -> Vec<u8> {
    let bare = Launch::shell(script_text).start();
    bare.wait_exit();
    let watched = script(script_text).start();
    watched.wait_exit();
    assert_eq!(text(&bare.raw()), text(&watched.raw()), "{script_text}");
    watched.raw()
}

fn wait_file(path: &Path) -> String {
    wait_until("the file", || fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n')));
    fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn exit_code_is_passed_on() {
    for code in [0, 1, 3, 255] {
        let line = format!("exit {code}");
        assert_eq!(output(["sh", "-c", &line]).status.code(), Some(code));
        let terminal = script(&line).start();
        assert_eq!(terminal.wait_exit().exit_code(), code.cast_unsigned());
        assert_eq!(text(&terminal.raw()), "");
    }
}

#[test]
fn signal_death_exits_with_128_plus_n() {
    for (signal, code) in [("TERM", 143), ("SEGV", 139), ("INT", 130), ("RTMIN", 162)] {
        let line = format!("ulimit -c 0; kill -{signal} $$");
        // A test that runs in the background ignores SIGINT, and so would its children.
        let line = ["env", "--default-signal=INT", "bash", "-c", &line];
        assert_eq!(output(line).status.code(), Some(code), "{signal}");
        let terminal = on_terminal(line).start();
        assert_eq!(terminal.wait_exit().exit_code(), code.cast_unsigned());
        terminal.assert_restored();
    }
}

#[test]
fn unrunnable_command_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plain");
    fs::write(&file, "echo\n").unwrap();
    let lost = folder.path().join("lost");
    executable::write(&lost, "#!/no/such/interpreter\n");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let missing = path(&folder.path().join("missing"));
    let table = [
        ("frobnicate-gpus".to_owned(), 127, "command not found"),
        (missing, 127, "no such file"),
        (path(&lost), 127, "the interpreter named in its first line was not found"),
        (path(folder.path()), 126, "is a directory"),
        (path(&file), 126, "permission denied"),
    ];
    for (command, code, why) in table {
        let message = format!("gputop: {command}: {why}");
        let result = output([&command]);
        assert_eq!(result.status.code(), Some(code), "{result:?}");
        assert_eq!(text(&result.stderr), format!("{message}\n"));
        let terminal = on_terminal([&command]).size(24, 200).start();
        assert_eq!(terminal.wait_exit().exit_code(), code.cast_unsigned());
        assert_eq!(terminal.text().trim_end(), message);
        terminal.assert_restored();
    }
}

#[test]
fn a_script_without_a_first_line_is_run_by_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plain");
    executable::write(&file, "echo run; exit 7\n");
    let result = output([&file]);
    assert_eq!((result.status.code(), text(&result.stdout).as_str()), (Some(7), "run\n"));
    let terminal = on_terminal([&file]).start();
    assert_eq!(terminal.wait_exit().exit_code(), 7);
}

#[test]
fn options_after_the_command_belong_to_it() {
    let result = gputop(["run", "echo", "--ascii", "--help", "-x", "--"]).output();
    assert_eq!(text(&result.unwrap().stdout), "--ascii --help -x --\n");
    assert_eq!(gputop(["run"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn each_stream_is_a_terminal_exactly_where_it_was_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seen");
    // The result goes to a file. The script tests a copy of stdout, made before stdout becomes that file.
    let look = "for fd in 0 7 2; do test -t $fd && s=${s}T || s=${s}F; done";
    let look = format!("exec 7>&1; {look}; echo $s > {}", file.display());
    for (redirect, seen) in [
        ("", "TTT"),
        ("< /dev/null", "FTT"),
        ("> /dev/null", "TFT"),
        ("2> /dev/null", "TTF"),
        ("> /dev/null 2>&1", "TFF"),
        ("< /dev/null > /dev/null", "FFT"),
        ("< /dev/null > /dev/null 2>&1", "FFF"),
    ] {
        let line = format!("GPUTOP sh -c '{look}' {redirect}");
        in_a_script(&format!("{line}; true")).start().wait_exit();
        assert_eq!(fs::read_to_string(&file).unwrap().trim(), seen, "in a script: {redirect}");
        // Without a script: gputop replaces the shell.
        in_a_script(&format!("exec {line}")).start().wait_exit();
        assert_eq!(fs::read_to_string(&file).unwrap().trim(), seen, "by itself: {redirect}");
    }
}

/// The output of the same command without gputop, with gputop, and with `--no-capture`.
#[test]
fn a_pipe_stays_a_pipe_and_receives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (bare, watched) = (folder.path().join("bare"), folder.path().join("watched"));
    let line =
        "ls -l /proc/self/fd/1 | sed 's/.*-> //'; head -c 3000000 /dev/zero | tr '\\0' '\\n'";
    let line = format!("exec 7>&1; {{ {line}; }}");
    let to = |path: &Path| format!("| cat > {}", path.display());
    Launch::shell(&format!("{line} {}", to(&bare))).start().wait_exit();
    let line = line.replace('\'', "'\\''");
    let bare = fs::read(bare).unwrap();
    for options in ["", "--no-capture"] {
        let gputop = concat!(env!("CARGO_BIN_EXE_gputop"), " run");
        let line = format!("{gputop} {options} -- sh -c '{line}' {}", to(&watched));
        Launch::shell(&line).start().wait_exit();
        let watched = fs::read(&watched).unwrap();
        assert_eq!(bare.len(), watched.len());
        // The name of the pipe differs; everything after it is the same.
        assert!(bare.starts_with(b"pipe:") && watched.starts_with(b"pipe:"));
        assert!(bare[20..] == watched[20..]);
    }
    // A reader that exits ends the command, not gputop.
    let line = format!(
        "{{ GPUTOP yes; echo $? > {0}; }} | head -n 1",
        folder.path().join("code").display()
    );
    in_a_script(&line).start().wait_exit();
    assert_eq!(wait_file(&folder.path().join("code")), "141");
}

#[test]
fn the_same_bytes_reach_the_terminal() {
    assert_same_bytes("printf 'a\\nb\\r\\n\\tc\\033[31mred\\033[0m\\0\\377x'");
    assert_same_bytes("echo out; echo err >&2; echo out; echo err >&2");
    // Progress bars, the terminal modes for line ends, and output at the very end.
    assert_same_bytes("for i in 1 2 3; do printf '\\r%s%%' $i; done; stty -opost; printf 'x\\ny'");
    let many = assert_same_bytes("seq 1 1400000");
    assert!(many.len() > 10_000_000, "{}", many.len());
}

#[test]
fn same_bytes_reach_the_terminal_in_a_script() {
    let line = "sh -c \"seq 1 200000; printf '\\tx\\n' >&2\"";
    let bare = Launch::shell(&format!("{line}; true")).start();
    bare.wait_exit();
    let watched = in_a_script(&format!("GPUTOP {line}; true")).start();
    watched.wait_exit();
    assert!(bare.raw() == watched.raw());
}

#[test]
fn the_window_has_its_size_and_changes_it() {
    let text = "trap 'stty size' WINCH; stty size; while :; do sleep 0.01; done";
    let terminal = script(text).size(11, 55).start();
    terminal.wait_text("11 55");
    terminal.resize(12, 66);
    terminal.wait_text("12 66");
    // In a script, stdin is the terminal itself, and stdout is gputop's.
    let text = "trap \"stty size <&1\" WINCH; stty size <&1; while :; do sleep 0.01; done";
    let terminal = in_a_script(&format!("GPUTOP sh -c '{text}'; true"));
    let terminal = terminal.size(13, 77).start();
    terminal.wait_text("13 77");
    terminal.resize(14, 88);
    // The first signal may arrive before gputop has resized its own terminal. A later one does not.
    terminal.wait_for(|screen| screen.size().0.get() == 14, "the size");
    wait_until("the new size", || {
        terminal.resize(14, 88);
        kill(child_of(terminal.pid(), &["gputop", "sh"]), Signal::SIGWINCH).unwrap();
        terminal.text().contains("14 88")
    });
}

#[test]
fn keys_arrive_and_are_echoed_once() {
    let terminal = script("echo ready; exec cat").start();
    terminal.wait_text("ready");
    terminal.send("to the cat\n");
    terminal.wait_text("to the cat\nto the cat");
    terminal.send("\x04");
    assert!(terminal.wait_exit().success());
    assert_eq!(text(&terminal.raw()), "ready\r\nto the cat\r\nto the cat\r\n");
    terminal.assert_restored();
}

#[test]
fn a_program_in_raw_mode_gets_each_key() {
    let text = "stty raw -echo; printf ready; dd bs=1 count=3 2>/dev/null | od -c; stty sane; echo; echo over";
    let terminal = script(text).start();
    terminal.wait_text("ready");
    terminal.send("\x03\x1aq");
    terminal.wait_text("003 032   q");
    assert!(terminal.wait_exit().success());
    terminal.assert_restored();
}

#[test]
fn modes_that_the_command_leaves_stay() {
    let terminal = on_terminal(["stty", "-echo", "-icanon"]).start();
    terminal.wait_exit();
    assert!(!terminal.is_cooked());
    // If a command dies in raw mode, gputop restores the shell's modes, since the shell will not learn of the signal.
    let terminal = script("stty raw -echo; kill -9 $$").start();
    assert_eq!(terminal.wait_exit().exit_code(), 137);
    terminal.assert_restored();
}

#[test]
fn a_program_that_draws_a_screen_gets_each_key_also_in_a_script() {
    // Like a screen library: set the modes of stdout, then write to it.
    let text = "exec 3>&1; s=$(stty -g <&3); stty raw -echo <&1; echo ready; dd bs=1 count=3 2>/dev/null | od -c; stty $s <&1; echo over";
    let terminal = in_a_script(&format!("GPUTOP sh -c '{text}'; true")).start();
    terminal.wait_text("ready");
    terminal.send("\x03\x1aq");
    terminal.wait_text("003 032   q");
    assert!(terminal.wait_exit().success());
    terminal.assert_restored();
}

#[test]
fn what_a_process_inherits_is_the_same() {
    let look = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd; ulimit -a; umask; nice; pwd; \
                env | grep -v -e '^_=' -e '^PYTHONPATH=' -e '^GPU.OP_HOOK' | sort";
    let cache = tempfile::tempdir().unwrap();
    let bare = Launch::program("bash")
        .args(["-c", look])
        .env("HOME", "/")
        .env("XDG_CACHE_HOME", cache.path())
        .size(100, 80)
        .start();
    bare.wait_exit();
    let bare = text(&bare.raw());
    let alone = on_terminal(["bash", "-c", look])
        .env("HOME", "/")
        .env("XDG_CACHE_HOME", cache.path())
        .size(100, 80)
        .start();
    alone.wait_exit();
    assert_eq!(bare, text(&alone.raw()));
    let beside = in_a_script(&format!("GPUTOP bash -c \"{look}\"; true"));
    let beside = beside.env("HOME", "/").env("XDG_CACHE_HOME", cache.path()).size(100, 80).start();
    beside.wait_exit();
    let without_pwd = |text: &str| {
        text.lines().filter(|l| !l.starts_with("OLDPWD")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(without_pwd(&bare), without_pwd(&text(&beside.raw())));
}

#[test]
fn closed_streams_stay_closed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seen");
    let look = "for fd in 0 1 2; do test -e /proc/$$/fd/$fd && s=${s}o || s=${s}c; done; \
                echo $s >&7; exec /bin/echo hi";
    let gputop = concat!(env!("CARGO_BIN_EXE_gputop"), " run");
    for closed in 0..8 {
        let redirects: String = ["0<&- ", "1>&- ", "2>&- "]
            .iter()
            .enumerate()
            .filter(|(fd, _)| closed & 1 << fd != 0)
            .map(|(_, redirect)| *redirect)
            .collect();
        let open: String = (0..3).map(|fd| if closed & 1 << fd != 0 { 'c' } else { 'o' }).collect();
        let code = if closed & 2 != 0 { 1 } else { 0 };
        // On a terminal with and without a pty between, and with a pipe.
        for (prefix, rest) in
            [("", ""), (gputop, ""), (gputop, "| cat >&2"), (&format!("{gputop} --no-capture"), "")]
        {
            let separator = if prefix.is_empty() { "" } else { " --" };
            let line = format!(
                "{{ {prefix}{separator} sh -c '{look}' {redirects}; echo $? >&7; }} 7>{} {rest}",
                file.display()
            );
            Launch::shell(&line).start().wait_exit();
            let seen = fs::read_to_string(&file).unwrap();
            assert_eq!(seen, format!("{open}\n{code}\n"), "{line}");
        }
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    // SIGPIPE is ignored by Rust's runtime, and SIGCHLD is needed by gputop.
    for ignored in ["PIPE", "CHLD", "INT QUIT TSTP USR1", "PIPE CHLD HUP TERM"] {
        let seen = |gputop: &str| {
            let line = format!("trap '' {ignored}; exec {gputop} grep SigIgn /proc/self/status");
            let terminal = Launch::program("bash").args(["-c", &line]).start();
            assert_eq!(terminal.wait_exit().exit_code(), 0);
            text(&terminal.raw())
        };
        let bare = seen("");
        assert!(bare.contains("SigIgn"), "{bare}");
        let gputop = concat!(env!("CARGO_BIN_EXE_gputop"), " run --");
        assert_eq!(bare, seen(gputop), "{ignored}");
    }
}

#[test]
fn control_c_reaches_the_command() {
    let terminal = script("echo ready; exec sleep 1000").start();
    terminal.wait_text("ready");
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 130);
    terminal.assert_restored();
    assert_eq!(text(&terminal.raw()), "ready\r\n^C");
    // A command that does not exit on Ctrl-C.
    let terminal =
        script("trap 'echo caught' INT; echo ready; while :; do sleep 0.01; done").start();
    terminal.wait_text("ready");
    terminal.send("\x03");
    terminal.wait_text("caught");
    terminal.send("\x03");
    terminal.signal(Signal::SIGTERM);
    assert_eq!(terminal.wait_exit().exit_code(), 143);
    // In a script, Ctrl-C also ends the script, which is in the same process group.
    let terminal =
        in_a_script("GPUTOP sh -c 'echo ready; exec sleep 1000'; echo the script went on").start();
    terminal.wait_text("ready");
    terminal.send("\x03");
    terminal.wait_exit();
    assert!(!terminal.text().contains("went on"), "{}", terminal.text());
}

#[test]
fn signals_are_passed_on() {
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGQUIT,
    ] {
        let name = signal.as_str().trim_start_matches("SIG");
        let text = format!(
            "trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.01; done"
        );
        let terminal = script(&text).start();
        terminal.wait_text("ready");
        terminal.signal(signal);
        assert_eq!(terminal.wait_exit().exit_code(), 9, "{signal}");
        assert!(terminal.text().contains(&format!("got {name}")));
    }
}

#[test]
fn killed_gputop_run_leaves_no_process() {
    let terminal = script("echo pid $$; exec sleep 1000").start();
    terminal.wait_text("pid ");
    let pid = child_of(terminal.pid(), &["sleep"]);
    terminal.signal(Signal::SIGKILL);
    wait_until("the command's end", || kill(pid, None).is_err());
}

#[test]
fn signals_are_passed_on_without_a_terminal() {
    let mut command = gputop(["run", "--", "sh", "-c"]);
    command.arg("trap 'echo got TERM; exit 9' TERM; echo ready; while :; do sleep 0.01; done");
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut out = child.0.stdout.take().unwrap();
    let mut ready = [0; 6];
    out.read_exact(&mut ready).unwrap();
    kill(Pid::from_raw(child.0.id().cast_signed()), Signal::SIGTERM).unwrap();
    // Do not read stdout to its end first. If the signal had killed gputop instead, the shell would keep stdout open
    // forever.
    assert_eq!(child.0.wait().unwrap().code(), Some(9));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got TERM\n");
}

/// Starts an interactive shell with job control and a known prompt.
fn interactive() -> Terminal {
    let terminal = Launch::program("bash")
        .args(["--norc", "--noprofile", "-i"])
        .env("PS1", "PROMPT> ")
        .env("HISTFILE", "")
        .size(40, 100)
        .start();
    terminal.wait_text("PROMPT>");
    terminal
}

/// Clears the screen and prints a mark, so that earlier text cannot be mistaken for new text.
fn clear(terminal: &Terminal, mark: &str) {
    let mark = mark.len();
    line(terminal, &format!("clear; echo mark $(({mark} + 0))"));
    terminal.wait_text(&format!("mark {mark}\nPROMPT>"));
}

/// Returns true if a job was stopped and the shell shows its prompt, so that it does not lose typed text.
fn is_at_prompt(screen: &vt100::Screen) -> bool {
    let text = screen.contents();
    text.contains("Stopped") && text.trim_end().ends_with("PROMPT>")
}

/// Types a line until `is_done`. On a busy machine, text typed right after a stop can be lost, also without gputop, so the
/// line is typed again.
fn type_until(terminal: &Terminal, text: &str, what: &str, is_done: impl Fn() -> bool) {
    repeat_until(|| line(terminal, text), what, is_done);
}

fn repeat_until(act: impl Fn(), what: &str, is_done: impl Fn() -> bool) {
    let mut last: Option<Instant> = None;
    wait_until(what, || {
        if is_done() {
            return true;
        }
        if last.is_none_or(|at| at.elapsed() > Duration::from_secs(2)) {
            act();
            last = Some(Instant::now());
        }
        false
    });
}

/// Waits until the shell runs commands again.
fn wait_shell(terminal: &Terminal) {
    type_until(terminal, "echo the shell $((40 + 2))", "the shell", || {
        let text = terminal.text();
        text.contains("the shell 42\n") && text.trim_end().ends_with("PROMPT>")
    });
}

/// Types a line, with `GPUTOP` replaced by the real command.
fn line(terminal: &Terminal, line: &str) {
    let product = concat!(env!("CARGO_BIN_EXE_gputop"), " run --");
    terminal.send(&format!("{}\n", line.replace("GPUTOP", product)));
}

#[test]
fn control_z_stops_it_and_fg_brings_it_back() {
    let terminal = interactive();
    for form in [
        "GPUTOP sh -c 'echo rea\"\"dy; cat; echo ov\"\"er'",
        "true && (GPUTOP sh -c 'echo rea\"\"dy; cat; echo ov\"\"er')",
    ] {
        clear(&terminal, form);
        line(&terminal, form);
        terminal.wait_text("ready");
        terminal.send("first\n");
        terminal.wait_text("first\nfirst");
        terminal.send("\x1a");
        terminal.wait_for(is_at_prompt, "the prompt after the stop");
        wait_shell(&terminal);
        // Keys typed while the shell still edits its line are not echoed.
        type_until(&terminal, "fg", "the shell to run fg", || terminal.is_cooked());
        type_until(&terminal, "second", "the second line", || {
            terminal.text().contains("second\nsecond")
        });
        terminal.send("\x04");
        terminal.wait_text("over\nPROMPT>");
        line(&terminal, "echo code $?");
        terminal.wait_text("code 0");
    }
    terminal.send("exit\n");
    terminal.wait_exit();
}

#[test]
fn a_pager_behind_a_pipe_gets_its_keys() {
    if !has("less") {
        return;
    }
    let terminal = interactive();
    line(&terminal, "seq 1000 | GPUTOP less");
    terminal.wait_text("39\n:");
    terminal.send("G");
    terminal.wait_text("1000\n(END)");
    // less misses a Ctrl-Z that arrives immediately before it waits for a key, also without gputop.
    let stop = || terminal.send("\x1a");
    repeat_until(stop, "the prompt after the stop", || is_at_prompt(&terminal.screen()));
    wait_shell(&terminal);
    line(&terminal, "fg");
    // Text from before it was stopped may still be further up on the screen.
    let is_back = |screen: &vt100::Screen| screen.contents().trim_end().ends_with("1000\n(END)");
    terminal.wait_for(is_back, "the pager again");
    terminal.send("g");
    terminal.wait_text("\n38\n39\n");
    terminal.send("q");
    // The prompt above the command returns before the shell reads keys.
    type_until(&terminal, "echo again $((40 + 2))", "the shell after the pager", || {
        terminal.text().contains("again 42\n")
    });
    terminal.send("exit\n");
    terminal.wait_exit();
}

#[test]
fn keys_reach_a_process_that_reads_its_output_terminal() {
    let terminal = interactive();
    let keys = "dd bs=1 count=3 <&3 2>/dev/null | od -c";
    let script = format!(
        "exec 3</dev/fd/2; s=$(stty -g <&2); stty cbreak -echo <&2; echo ready; {keys}; stty $s <&2; echo over"
    );
    line(&terminal, &format!("echo input | GPUTOP sh -c '{script}'"));
    terminal.wait_text("\nready");
    terminal.send("a");
    terminal.send("b");
    terminal.send("q");
    terminal.wait_text("a   b   q");
    terminal.wait_text("over\nPROMPT>");
    terminal.send("exit\n");
    terminal.wait_exit();
}

#[test]
fn unread_input_goes_to_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let terminal = interactive();
    let wait = format!("while ! test -e {}; do sleep 0.01; done", gate.display());
    line(&terminal, &format!("GPUTOP sh -c 'echo rea\"\"dy; {wait}'"));
    terminal.wait_text("ready");
    terminal.send("echo typed $((40 + 2))\necho half $((20 + ");
    terminal.wait_text("echo half $((20 +");
    fs::write(&gate, "").unwrap();
    terminal.wait_text("typed 42");
    terminal.send("2))\n");
    terminal.wait_text("half 22");
    terminal.send("exit\n");
    terminal.wait_exit();
}

#[test]
fn in_the_background_it_works_until_it_wants_the_keyboard() {
    let terminal = interactive();
    // The typed line is echoed, so the text to wait for must not be in it, nor in a path.
    let read = "read a; echo got $a; read b; echo got $b";
    line(&terminal, &format!("GPUTOP sh -c 'echo sum $((40 + 2)); {read}'"));
    terminal.wait_text("sum 42");
    terminal.send("\x1a");
    terminal.wait_text("Stopped");
    line(&terminal, "bg");
    // It stops again by itself when it reads.
    line(&terminal, "while ! jobs | grep -q Stopped; do :; done; echo again $((40 + 3))");
    terminal.wait_text("again 43");
    line(&terminal, "fg");
    terminal.send("x\n");
    terminal.wait_text("got x");
    terminal.send("y\n");
    terminal.wait_text("got y");
    // From the beginning.
    line(&terminal, "GPUTOP sh -c 'echo work $((20 + 2)); exit 5' & wait $!; echo code $?");
    terminal.wait_text("work 22");
    terminal.wait_text("code 5");
    terminal.send("exit\n");
    terminal.wait_exit();
}

/// Ctrl-Z at each step of the start: before gputop blocks the signal, before the fork, before the exec, and after it.
#[test]
fn control_z_in_the_first_milliseconds_stops_it() {
    for delay in 0..40 {
        let terminal = interactive();
        // It prints nothing, because Ctrl-Z discards output that the terminal has not shown yet.
        line(&terminal, "GPUTOP cat");
        let pid = child_of(terminal.pid(), &["gputop"]);
        // Only this wait is for a time: it chooses the step.
        std::thread::sleep(Duration::from_micros(250 * delay));
        // Until then, the shell would receive the signal.
        wait_until("gputop in the foreground", || terminal.foreground() == Some(pid));
        terminal.send("\x1a");
        terminal.wait_for(is_at_prompt, &format!("the stop {delay} steps after the start"));
        wait_shell(&terminal);
        type_until(&terminal, "fg", "the shell to run fg", || terminal.is_cooked());
        type_until(&terminal, "second", "the line", || terminal.text().contains("second\nsecond"));
        terminal.send("\x04");
        wait_shell(&terminal);
        terminal.send("exit\n");
        terminal.wait_exit();
    }
}

#[test]
fn an_interactive_shell_has_job_control() {
    let outer = interactive();
    line(&outer, "PS1='INNER> ' GPUTOP bash --norc --noprofile -i");
    outer.wait_for(|screen| screen.contents().trim_end().ends_with("INNER>"), "the inner prompt");
    assert!(!outer.text().contains("job control"), "{}", outer.text());
    let shell = child_of(outer.pid(), &["gputop", "bash"]);
    line(&outer, "export PS1='PROMPT> '; stty size; cat");
    outer.wait_text("40 100");
    let cat = child_of(shell.as_raw().cast_unsigned(), &["cat"]);
    outer.send("to the cat\n");
    outer.wait_text("to the cat\nto the cat");
    outer.send("\x1a");
    outer.wait_for(is_at_prompt, "the prompt after the stop");
    wait_shell(&outer);
    outer.resize(41, 101);
    type_until(&outer, "stty size", "the new size", || outer.text().contains("41 101"));
    line(&outer, "fg");
    type_until(&outer, "again", "the cat", || outer.text().contains("again\nagain"));
    outer.send("\x03");
    wait_until("the end of the cat", || kill(cat, None).is_err());
    wait_shell(&outer);
    // The shell suspends itself, and the outer shell resumes it.
    line(&outer, "clear; PS1='INNER> '; suspend");
    outer.wait_for(is_at_prompt, "the outer prompt");
    type_until(&outer, "fg", "the inner prompt", || outer.text().trim_end().ends_with("INNER>"));
    line(&outer, "exit 3");
    wait_shell(&outer);
    line(&outer, "echo code $?; exit");
    outer.wait_exit();
    outer.assert_restored();
}

#[test]
fn closed_terminal_is_passed_on_to_the_command() {
    use nix::fcntl::OFlag;
    use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
    use std::os::unix::fs::OpenOptionsExt;
    let folder = tempfile::tempdir().unwrap();
    let result_file = folder.path().join("told");
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let mut master = posix_openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname_r(&master).unwrap();
    let open = || {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true);
        options.custom_flags(OFlag::O_NOCTTY.bits());
        options.open(&name).unwrap()
    };
    let text = format!(
        "trap 'echo HUP > {0}; exit 4' HUP; echo ready; while :; do sleep 0.01; done",
        result_file.display()
    );
    // Tests under nohup ignore SIGHUP, and so would the shell.
    let child = Command::new("env")
        .args(["--default-signal=HUP", "setsid", "-c", env!("CARGO_BIN_EXE_gputop")])
        .args(["run", "sh", "-c", &text])
        .stdin(open())
        .stdout(open())
        .stderr(open())
        .spawn();
    let mut child = Guarded(child.unwrap());
    let mut ready = [0; 7];
    master.read_exact(&mut ready).unwrap();
    drop(master);
    let mut status = None;
    wait_until("the end", || {
        status = child.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(4), "{status:?}");
    assert_eq!(wait_file(&result_file), "HUP");
}

#[test]
fn command_runs_without_a_pty() {
    // No files beyond the standard three: neither a pty nor a socket can be opened.
    let terminal = Launch::program("bash")
        .args([
            "-c",
            &format!(
                "ulimit -n 4; exec {} run -- sh -c 'echo run; exit 6'",
                env!("CARGO_BIN_EXE_gputop")
            ),
        ])
        .start();
    assert_eq!(terminal.wait_exit().exit_code(), 6, "{}", terminal.text());
    assert_eq!(text(&terminal.raw()), "run\r\n");
}

#[test]
fn piped_input_reaches_the_command() {
    let mut child = piped(["cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let result = child.wait_with_output().unwrap();
    assert_eq!(text(&result.stdout), "through\n");
    assert_eq!(result.status.signal(), None);
}

//! External text in command-line output: arguments, file names, the environment and stored incidents contain terminal
//! control sequences, and none reaches standard output or standard error.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use clap::CommandFactory;
use gputop::cli::Cli;
use serde_json::Value;
use tempfile::TempDir;

use crate::run_explained::OOM;
use crate::support::fake_machine::command;
use crate::support::fake_nvml::FakeNvml;
use crate::support::terminal::Launch;

/// Writes the clipboard (OSC 52), resets the terminal (RIS), starts a sequence with a C1 byte, and reorders text.
const HOSTILE: &str = "\x1b]52;c;eA==\x07\x1bc\u{9b}31m\u{202e}\u{2066}\u{7f}";
/// A command that runs longer is killed, and its output is still checked.
const RUN_TIMEOUT: Duration = Duration::from_secs(10);

/// A user whose directories, files, log and stored incident are all hostile.
struct Victim {
    root: TempDir,
    uid: String,
}

impl Victim {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join(HOSTILE);
        fs::create_dir(&home).unwrap();
        fs::write(home.join(HOSTILE), format!("{HOSTILE}\n{OOM}\n{HOSTILE}\n")).unwrap();
        // No call reaches a network or prints a message from ssh.
        let programs = root.path().join("bin");
        fs::create_dir(&programs).unwrap();
        symlink("/bin/false", programs.join("ssh")).unwrap();
        let mut victim = Self { root, uid: String::new() };
        let script = format!("echo '{OOM}' >&2; exit 3");
        let mut run = victim.gputop(&FakeNvml::new(""), &["run", "sh", "-c", &script]);
        // A file, so that gputop reads what the command writes to it.
        let log = tempfile::tempfile().unwrap();
        run.stderr(log).status().unwrap();
        let file = victim.incident_file();
        victim.uid = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        poison(&mut record);
        fs::write(&file, serde_json::to_vec(&record).unwrap()).unwrap();
        victim
    }

    fn home(&self) -> PathBuf {
        self.root.path().join(HOSTILE)
    }

    fn incident_file(&self) -> PathBuf {
        let folder = self.home().join("state/gputop/incidents");
        let entries = fs::read_dir(folder).unwrap();
        let mut files = entries.map(|entry| entry.unwrap().path());
        let is_incident = |file: &PathBuf| {
            file.extension().is_some_and(|kind| kind == "json") && !file.ends_with("state.json")
        };
        files.find(is_incident).expect("one incident")
    }

    fn gputop(&self, fake: &FakeNvml, args: &[&str]) -> Command {
        let mut command = command(fake, args);
        command.current_dir(self.home()).envs(self.environment());
        command
    }

    fn environment(&self) -> [(&'static str, OsString); 5] {
        let place = |name: &str| self.home().join(name).into_os_string();
        let mut path = self.root.path().join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        [
            ("PATH", path),
            ("HOME", self.home().into_os_string()),
            ("XDG_STATE_HOME", place("state")),
            ("XDG_CONFIG_HOME", place("config")),
            ("XDG_RUNTIME_DIR", place("runtime")),
        ]
    }
}

/// Appends the hostile text to every value that a person reads.
fn poison(value: &mut Value) {
    const READ: [&str; 8] =
        ["title", "headline", "text", "command", "host", "why_first", "for", "change"];
    match value {
        Value::Array(items) => items.iter_mut().for_each(poison),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if READ.contains(&name.as_str()) => text.push_str(HOSTILE),
                    field => poison(field),
                }
            }
        }
        _ => {}
    }
}

/// Returns every subcommand with hostile arguments in each place. The list comes from clap, so that a new subcommand is
/// covered.
fn calls(uid: &str) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    let mut root = Cli::command();
    root.build();
    collect(&root, &[], uid, &mut calls);
    calls
}

fn collect(command: &clap::Command, path: &[String], uid: &str, calls: &mut Vec<Vec<String>>) {
    let with = |more: &[&str]| {
        let more = more.iter().map(|&arg| arg.to_owned());
        path.iter().cloned().chain(more).collect::<Vec<String>>()
    };
    let flag = format!("--{HOSTILE}");
    calls.push(with(&[&flag]));
    // A file that exists, a name that does not, and the stored incident.
    let missing = format!("missing{HOSTILE}");
    for word in [HOSTILE, &missing, uid] {
        calls.push(with(&[word]));
        let has = |name| command.get_arguments().any(|arg| arg.get_long() == Some(name));
        for format in ["json", "markdown"] {
            if has(format) {
                calls.push(with(&[&format!("--{format}"), word]));
            }
        }
    }
    for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
        if let Some(long) = arg.get_long() {
            for word in [HOSTILE, uid] {
                calls.push(with(&[&format!("--{long}={HOSTILE}"), word]));
            }
            calls.push(with(&[&format!("--{long}={missing}/")]));
        }
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        collect(sub, &with(&[sub.get_name()]), uid, calls);
    }
}

/// Returns the characters that could affect a terminal or hide text.
fn unsafe_characters(output: &[u8]) -> Vec<char> {
    let text = String::from_utf8_lossy(output);
    let is_bidi = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let found = text.chars().filter(|&c| is_bidi(c) || c.is_control());
    found.filter(|c| !matches!(c, '\n' | '\t')).collect()
}

/// Returns the bytes printed to stdout and stderr.
fn output(mut command: Command) -> [Vec<u8>; 2] {
    let (stdout, stderr) = (Stdio::piped(), Stdio::piped());
    let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let errors = thread::spawn(move || {
        let mut errors = Vec::new();
        stderr.read_to_end(&mut errors).unwrap();
        errors
    });
    let mut stdout = child.stdout.take().unwrap();
    let printed = thread::spawn(move || {
        let mut printed = Vec::new();
        stdout.read_to_end(&mut printed).unwrap();
        printed
    });
    wait(&mut child);
    [printed.join().unwrap(), errors.join().unwrap()]
}

fn wait(child: &mut Child) {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > RUN_TIMEOUT {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn no_subcommand_prints_control_characters_from_outside() {
    let victim = Victim::new();
    let fake = FakeNvml::new("[[gpu]]\n");
    let mut commands: Vec<(Vec<String>, Command)> = Vec::new();
    for call in calls(&victim.uid) {
        let args: Vec<&str> = call.iter().map(String::as_str).collect();
        commands.push((call.clone(), victim.gputop(&fake, &args)));
    }
    let root = Cli::command();
    let variables = root.get_arguments().filter_map(clap::Arg::get_env);
    for variable in variables.map(ToOwned::to_owned) {
        let mut command = victim.gputop(&fake, &["once"]);
        command.env(&variable, HOSTILE);
        commands.push((vec!["once".into(), format!("{variable:?}")], command));
    }
    assert!(commands.len() > 100, "only {} commands", commands.len());
    let commands = Mutex::new(commands);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((call, command)) = commands.lock().unwrap().pop() else { break };
                    let [mut output, errors] = output(command);
                    // An agent's stdout is the compressed wire format.
                    if call.first().is_some_and(|name| name == "agent") {
                        output.clear();
                    }
                    output.extend(errors);
                    let found = unsafe_characters(&output);
                    if !found.is_empty() {
                        let text = String::from_utf8_lossy(&output).into_owned();
                        let line = format!("gputop {call:?}: {found:?} in {text:?}");
                        wrong.lock().unwrap().push(line);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn stored_incidents_print_as_valid_json_and_with_our_own_colors_only() {
    let victim = Victim::new();
    let shown = victim
        .gputop(&FakeNvml::new(""), &["incidents", "show", "--json", &victim.uid])
        .output()
        .unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let title = shown["incidents"][0]["title"].as_str().unwrap();
    assert!(title.contains("^[]52;c;eA==^G"), "{title:?}");
    let terminal = Launch::gputop()
        .envs(victim.environment())
        .args(["incidents", "show", &victim.uid])
        .size(60, 120)
        .start();
    assert!(terminal.wait_exit().success());
    let raw = terminal.raw();
    assert!(has(&raw, b"\x1b[1;31m"), "colors on a terminal");
    assert!(has(&raw, b"^[]52;c;eA==^G"), "the text itself");
    for sequence in [&b"\x1b]52"[..], b"\x1bc", "\u{9b}".as_bytes(), b"\x7f"] {
        assert!(!has(&raw, sequence), "{sequence:?}");
    }
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

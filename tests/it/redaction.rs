//! Redaction: each form in tests/data/redaction.txt, and then real processes through every output.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use gputop::export::explanation::{self, Style};
use gputop_explain::{Catalogue, explain};
use gputop_model::redact;

use crate::incidents::User;
use crate::run::{piped, text};
use crate::run_explained::{EXPLAINED, OOM};
use crate::support::fake_machine::{
    Guarded, RealProcess, command, dashboard, gputop, is_host, on_gpu, wait_until,
};
use crate::support::fake_nvml::FakeNvml;

const TABLE: &str = include_str!("../data/redaction.txt");

/// Every secret in the table contains one of these.
const SECRET_MARKERS: [&str; 2] = ["quokka", "c0ffee42"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    CommandLine,
    ArgumentsOnly,
    Environment,
    Log,
}

/// A line in the table.
struct Form {
    kind: Kind,
    /// Original text.
    raw: String,
    /// Expected redacted text.
    redacted: String,
}

impl Form {
    fn new(kind: Kind, line: &str) -> Self {
        let (mut raw, mut redacted) = (String::new(), String::new());
        for (n, part) in line.split(['«', '»']).enumerate() {
            raw += part;
            redacted += if n % 2 == 0 { part } else { "***" };
        }
        Self { kind, raw: raw.replace("\\n", "\n"), redacted: redacted.replace("\\n", "\n") }
    }

    fn is_secret(&self) -> bool {
        self.raw != self.redacted
    }

    /// Returns true if the form can be a line in a log.
    fn is_text(&self) -> bool {
        matches!(self.kind, Kind::CommandLine | Kind::Log)
    }
}

fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    let mut kind = Kind::Log;
    for line in TABLE.lines() {
        match line {
            "[command lines]" => kind = Kind::CommandLine,
            "[arguments only]" => kind = Kind::ArgumentsOnly,
            "[environment]" => kind = Kind::Environment,
            "[log text]" => kind = Kind::Log,
            line if line.is_empty() || line.starts_with('#') => {}
            line => forms.push(Form::new(kind, line)),
        }
    }
    forms
}

/// Returns a log with every secret in the table.
fn secret_log() -> String {
    let lines = forms().into_iter().filter(|form| form.is_text() && form.is_secret());
    lines.map(|form| form.raw + "\n").collect()
}

/// Splits words as a shell does, without escapes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut open = None;
    for c in line.chars() {
        match c {
            _ if open == Some(c) => open = None,
            '"' | '\'' if open.is_none() => open = Some(c),
            ' ' if open.is_none() => words.push(String::new()),
            _ => words.last_mut().unwrap().push(c),
        }
    }
    words
}

fn marks_in(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    SECRET_MARKERS.iter().map(|mark| text.matches(mark).count()).sum()
}

#[track_caller]
fn assert_no_secret(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let shown: Vec<&str> = text.lines().filter(|line| marks_in(line.as_bytes()) > 0).collect();
    assert!(shown.is_empty(), "{what} shows {shown:#?}");
}

#[track_caller]
fn assert_no_secret_in_files(folder: &Path) -> usize {
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files += assert_no_secret_in_files(&path);
        } else {
            assert_no_secret(&path.display().to_string(), &fs::read(&path).unwrap());
            files += 1;
        }
    }
    files
}

fn as_text(bytes: &[u8]) -> String {
    text(&redact::text(bytes))
}

#[test]
fn redacts_every_form_exactly() {
    let forms = forms();
    assert!(forms.len() >= 200, "{}", forms.len());
    let mut wrong = Vec::new();
    for form in &forms {
        if form.is_secret() != (marks_in(form.raw.as_bytes()) > marks_in(form.redacted.as_bytes()))
        {
            wrong.push(format!("no mark in {:?}", form.raw));
        }
        if matches!(form.kind, Kind::CommandLine | Kind::ArgumentsOnly) {
            let given = words(&form.raw);
            let given = given.iter().map(|word| word.as_bytes());
            let shown: Vec<String> =
                redact::arguments(given).iter().map(|word| text(word)).collect();
            if shown != words(&form.redacted) {
                wrong.push(format!("arguments {:?} become {shown:?}", form.raw));
            }
        }
        if form.is_text() && as_text(form.raw.as_bytes()) != form.redacted {
            wrong.push(format!("text {:?} becomes {:?}", form.raw, as_text(form.raw.as_bytes())));
        }
        if form.kind == Kind::Environment {
            let (name, value) = form.raw.split_once('=').unwrap();
            let shown = redact::variable(name.as_bytes(), value.as_bytes()).value;
            if shown.as_deref() != (!form.is_secret()).then_some(value) {
                wrong.push(format!("variable {:?} has the value {shown:?}", form.raw));
            }
        }
    }
    // All lines together give the same result as each alone.
    let all = || forms.iter().filter(|form| form.is_text());
    let lines = |of: fn(&Form) -> &String| all().map(move |form| format!("{}\n", of(form)));
    // An apostrophe does not open a quote.
    let before = || std::iter::once("it's a log\n".to_owned());
    let raw: String = before().chain(lines(|form| &form.raw)).collect();
    let redacted: String = before().chain(lines(|form| &form.redacted)).collect();
    let shown = as_text(raw.as_bytes());
    let lines = shown.lines().zip(redacted.lines());
    wrong.extend(lines.filter(|(a, b)| a != b).map(|pair| format!("together {pair:?}")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The secret is before the error on the same line, so that the quote contains it.
#[test]
fn explanations_show_no_secrets() {
    let style = Style { width: 200, colour: false, height: None };
    let mut explained = 0;
    for form in forms().iter().filter(|form| form.is_text() && form.is_secret()) {
        // Programs do not write part of a private key on the line of an error.
        let log = match form.raw.contains('\n') {
            true => format!("{0}\n{OOM}\n{0}\n", form.raw),
            false => format!("{0}\n{0} {OOM} {0}\n", form.raw),
        };
        let mut incidents = explain(Catalogue::embedded(), "train.log", log.as_bytes());
        explained += usize::from(!incidents.is_empty());
        incidents.iter_mut().for_each(redact::incident);
        for shown in [
            explanation::text(&incidents, explanation::Detail::All, &style),
            explanation::markdown(&incidents, true),
            serde_json::to_string_pretty(&explanation::Document::of(&incidents)).unwrap(),
        ] {
            assert_no_secret(&form.raw, shown.as_bytes());
        }
    }
    assert!(explained > 80, "{explained}");
}

#[test]
fn explain_redacts_unless_raw_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let log = secret_log();
    // The quote is cut at the secret: the flag before it is missing, or the end of a token.
    let filler = "step 1, ".repeat(40);
    let oom = file(
        "oom-token=quokka901.log",
        &format!("{log}[hf_quokkaABCDEFGHIJKLMNOP --pw quokka902] {OOM} token=quokka903\n{log}"),
    );
    let cut = file("cut.log", &format!("{filler} --token quokka904 {}{OOM}\n", "x ".repeat(98)));
    let plain = file(
        "plain.log",
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nValueError: bad --token quokka905\n",
    );
    for file in [&oom, &cut, &plain] {
        for options in [&[][..], &["--all"], &["--markdown", "--all"], &["--json"]] {
            let mut command = gputop(["explain"]);
            let output = command.args(options).arg(file).output().unwrap();
            let shown = [&output.stdout[..], &output.stderr].concat();
            assert!(!shown.is_empty());
            assert_no_secret(&format!("{options:?}"), &shown);
        }
    }
    for (file, options, secret) in [
        (&oom, &["--raw"][..], "quokka902"),
        (&oom, &["--raw", "--markdown"], "quokka902"),
        (&oom, &["--raw", "--json"], "quokka902"),
        (&plain, &["--raw"], "quokka905"),
    ] {
        let mut command = gputop(["explain"]);
        let output = command.args(options).arg(file).output().unwrap();
        let shown = text(&[&output.stdout[..], &output.stderr].concat());
        assert!(shown.contains(secret), "{options:?}: {shown}");
    }
}

/// Secrets are in the command line, the environment, the log and the error.
#[test]
fn run_prints_and_stores_no_secrets() {
    let user = User::new();
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    fs::write(&lines, secret_log()).unwrap();
    let script = format!(
        "cat {0} >&2; echo 'hf_quokkaABCDEFGHIJKLMNOP --pw quokka911 {OOM} token=quokka912' >&2; cat {0} >&2; exit 3",
        lines.display()
    );
    let log = folder.path().join("log");
    let mut command = piped(["sh", "-c", &script, "sh", "--api-key", "quokka913"]);
    command
        .env("XDG_STATE_HOME", user.0.path())
        .envs(forms().iter().filter(|form| form.kind == Kind::Environment).map(|form| {
            let (name, value) = form.raw.split_once('=').unwrap();
            (
                name.to_owned(),
                if name == "PATH" { std::env::var("PATH").unwrap() } else { value.to_owned() },
            )
        }))
        .stderr(File::create(&log).unwrap());
    assert_eq!(command.output().unwrap().status.code(), Some(3));
    let log = fs::read_to_string(log).unwrap();
    // The program's own output is not changed.
    let (_, explained) = log.rsplit_once(&secret_log()).unwrap();
    assert!(explained.contains(EXPLAINED), "{explained}");
    assert_no_secret("gputop run", explained.as_bytes());
    assert!(assert_no_secret_in_files(user.0.path()) > 0);

    let (_, list, _) = user.incidents(["list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let uid = list["incidents"][0]["uid"].as_str().unwrap();
    let outputs = [
        user.incidents(["list"]),
        user.incidents(["list", "--json"]),
        user.incidents(["show", uid]),
        user.incidents(["show", uid, "--json"]),
        user.incidents(["export", uid, "--markdown"]),
        user.incidents(["export", uid, "--json"]),
        user.incidents(["report", uid]),
    ];
    for (code, out, err) in &outputs {
        assert_eq!(*code, Some(0), "{err}");
        assert_no_secret("gputop incidents", [out.as_str(), err].concat().as_bytes());
    }
    // The outputs do contain the log text.
    for (_, out, _) in &outputs[5..] {
        assert!(out.contains("Using API key ***"), "{out}");
    }
}

/// Returns the decompressed content of `file`, which may still be written.
fn unpacked(file: &Path) -> Vec<u8> {
    const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let bytes = fs::read(file).unwrap_or_default();
    let begin = bytes.windows(4).position(|window| window == ZSTD);
    let mut text = bytes[..begin.unwrap_or(bytes.len())].to_vec();
    if let Some(begin) = begin {
        let mut decoder = zstd::stream::read::Decoder::new(&bytes[begin..]).unwrap();
        let _ = decoder.read_to_end(&mut text);
    }
    text
}

fn contains(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

/// Processes with the command lines in the table. One of them writes the secrets to its log and runs out of memory.
struct Watched {
    folder: tempfile::TempDir,
    fake: FakeNvml,
    trainer: RealProcess,
    _others: Vec<RealProcess>,
}

impl Watched {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("train.log")).unwrap();
        let forms = forms();
        let secret = forms.iter().filter(|form| form.is_secret());
        let lines =
            secret.filter(|form| matches!(form.kind, Kind::CommandLine | Kind::ArgumentsOnly));
        let others: Vec<RealProcess> = lines
            .map(|form| {
                RealProcess::with_arguments(words(&form.raw), |command| {
                    command.stderr(Stdio::null());
                })
            })
            .collect();
        let environment =
            forms.iter().filter(|form| form.kind == Kind::Environment && form.is_secret());
        let environment = environment.filter_map(|form| form.raw.split_once('='));
        let trainer =
            RealProcess::with_arguments(["the-trainer", "--api-key", "quokka921"], |command| {
                // The list of variables must not depend on those of the test, because the screen breaks it anywhere.
                command.stderr(log).env_clear().envs(environment);
            });
        let mut scenario = String::from("[[gpu]]\n") + &on_gpu(0, &trainer, "used = \"40 GiB\"");
        for other in &others {
            scenario += &on_gpu(0, other, "used = \"100 MiB\"");
        }
        Self { folder, fake: FakeNvml::new(&scenario), trainer, _others: others }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fail(&self) {
        let log = secret_log();
        let text =
            format!("{log}hf_quokkaABCDEFGHIJKLMNOP --pw quokka922 {OOM} token=quokka923\n{log}");
        let mut file = File::options().append(true).open(self.at("train.log")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
}

#[test]
fn the_collector_sends_no_secrets() {
    if !is_host() {
        return;
    }
    let watched = Watched::start();
    let [recording, wire, state] = ["r.gpt.zst", "wire", "state"].map(|name| watched.at(name));
    let mut record = command(&watched.fake, ["record", "-i", "200ms", "-o"]);
    record.arg(&recording).stderr(Stdio::null());
    let _record = Guarded(record.spawn().unwrap());
    let agent = format!("via:{} agent | tee {}", env!("CARGO_BIN_EXE_gputop"), wire.display());
    let terminal =
        dashboard(&watched.fake).env("XDG_STATE_HOME", &state).args([agent]).size(170, 250).start();
    // All processes must be visible before the failure, since older log text is not read.
    terminal.wait_text("--api-key ***");
    let name = format!("\"pid\":{}", watched.trainer.pid());
    wait_until("the recorder to see the process", || contains(&unpacked(&recording), &name));
    let mut tries = 0;
    wait_until("the failure to be recorded", || {
        // Text written before the watcher attaches is too old.
        tries += 1;
        if tries % 20 == 1 {
            watched.fail();
        }
        contains(&unpacked(&recording), "Tried to allocate")
            && contains(&unpacked(&wire), "Tried to allocate")
    });
    terminal.wait_text(EXPLAINED);
    terminal.send("d");
    terminal.wait_text("expandable_segments:True");
    terminal.send("\x1b");
    terminal.wait_text("COMMAND");
    // The process screen with arguments and environment, and its log.
    terminal.send("/the-trainer\r");
    terminal.wait_for(|screen| !screen.contents().contains("mysqldump"), "the process alone");
    terminal.send("G\r");
    terminal.wait_text("WANDB_API_KEY");
    terminal.send("L");
    terminal.wait_text("wandb: Using API key ***");
    wait_until("the incident in the store", || {
        state.join("gputop/incidents").read_dir().is_ok_and(|mut files| {
            files.any(|file| file.unwrap().path().extension().is_some_and(|kind| kind == "json"))
        })
    });

    let (recorded, sent) = (unpacked(&recording), unpacked(&wire));
    for bytes in [&recorded, &sent] {
        assert!(contains(bytes, "mysqldump -uroot -p***"));
        assert!(contains(bytes, "wandb: Using API key ***"));
    }
    assert_no_secret("the recording", &recorded);
    assert_no_secret("the agent", &sent);
    assert_no_secret("the screen", &terminal.raw());
    assert!(assert_no_secret_in_files(&state) > 0);
}

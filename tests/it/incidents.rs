//! The incident store: what `gputop run` saves, how it is read, and what happens if it cannot be written.

use std::fs;
use std::io::{Read, Seek};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;

use gputop::incident::Store;
use gputop_model::incident::{Incident, Severity};
use gputop_model::incident_key::IncidentKey;
use gputop_model::incident_record::Record;
use gputop_model::process::ProcessKey;
use gputop_model::units::{Mono, UnixMillis};
use serde_json::Value;
use tempfile::TempDir;

use crate::run::{piped_with, text};
use crate::run_explained::{EXPLAINED, OOM, OOM_KILLED};
use crate::support::fake_machine::{gputop, wait_until};

/// A user with an empty state directory.
pub struct User(pub TempDir);

impl User {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn folder(&self) -> PathBuf {
        self.0.path().join("gputop/incidents")
    }

    pub fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|kind| kind == "json"));
        files.retain(|file| !file.ends_with("state.json"));
        files.sort();
        files
    }

    /// Runs `gputop run` on a script whose stderr is a file, so that gputop reads it.
    pub fn run(&self, script: &str, options: &[&str]) -> Output {
        run_in(self.0.path(), script, options)
    }

    /// Runs `before`, prints an out-of-memory error, and exits with code 3.
    pub fn fail(&self, before: &str, more: &[&str]) -> Output {
        self.run(&format!("{before}; echo '{OOM}' >&2; exit 3"), more)
    }

    pub fn incidents<const N: usize>(&self, args: [&str; N]) -> (Option<i32>, String, String) {
        let output = gputop(["incidents"].into_iter().chain(args))
            .env("XDG_STATE_HOME", self.0.path())
            .env("TZ", "UTC")
            .output()
            .unwrap();
        let message = [text(&output.stdout), text(&output.stderr)];
        let [out, err] = message;
        (output.status.code(), out, err)
    }

    fn stored_incident(&self) -> Value {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        serde_json::from_slice(&fs::read(&files[0]).unwrap()).unwrap()
    }
}

pub fn run_in(state: &Path, script: &str, options: &[&str]) -> Output {
    let mut log = tempfile::tempfile().unwrap();
    let mut output = piped_with(options, ["sh", "-c", script])
        .env("XDG_STATE_HOME", state)
        .stderr(log.try_clone().unwrap())
        .output()
        .unwrap();
    log.rewind().unwrap();
    log.read_to_end(&mut output.stderr).unwrap();
    output
}

#[test]
fn failed_run_is_saved_with_its_evidence() {
    let user = User::new();
    let token = "hf_0123456789abcdefghijkl";
    let result = user.fail(&format!("export SECRET={token}; echo login {token} >&2"), &[]);
    assert_eq!(result.status.code(), Some(3));
    let stored_incident = user.stored_incident();
    assert_eq!(stored_incident["schema"], 1);
    assert_eq!(stored_incident["id"], "oom-fragmentation");
    assert_eq!(stored_incident["severity"], "fatal");
    assert_eq!(stored_incident["fields"]["requested_bytes"], 2_u64 << 30);
    assert_eq!(stored_incident["observed"]["process"]["pid"], stored_incident["fields"]["pid"]);
    assert!(stored_incident["observed"]["process"]["start"].as_u64() > Some(0));
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(stored_incident["observed"]["boot_id"], boot.trim());
    assert!(stored_incident["command"].as_str().unwrap().starts_with("sh -c "));
    let excerpt = stored_incident["excerpt"]["text"].as_str().unwrap();
    assert!(excerpt.contains("Tried to allocate 2.00 GiB"), "{excerpt}");
    assert!(excerpt.contains("login ***"), "{excerpt}");
    assert_eq!(stored_incident["versions"]["gputop"], env!("CARGO_PKG_VERSION"));
    let names: Vec<&str> = stored_incident["environment"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"PATH") && !names.contains(&"HOME"), "{names:?}");
    let whole = serde_json::to_string(&stored_incident).unwrap();
    assert!(!whole.contains(token), "{whole}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&user.folder()), 0o700);
    assert_eq!(mode(&user.files()[0]), 0o600);
}

#[test]
fn failed_run_on_a_terminal_knows_its_process() {
    let user = User::new();
    let script = format!("echo '{OOM}'; exit 3");
    let terminal = crate::run::script(&script).env("XDG_STATE_HOME", user.0.path()).start();
    assert_eq!(terminal.wait_exit().exit_code(), 3);
    let stored_incident = user.stored_incident();
    assert!(
        stored_incident["observed"]["process"]["start"].as_u64() > Some(0),
        "{stored_incident}"
    );
    assert_eq!(stored_incident["observed"]["process"]["pid"], stored_incident["fields"]["pid"]);
}

#[test]
fn a_process_in_the_kernel_log_is_not_the_one_that_ran() {
    let user = User::new();
    let xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.";
    user.run(&format!("echo '{xid}' >&2; exit 1"), &[]);
    let stored = user.stored_incident();
    assert_eq!(stored["id"], "xid-79-off-bus");
    assert_eq!(stored["fields"]["pid"], stored["observed"]["process"]["pid"]);
    assert_eq!(stored["fields"]["xid_pid"], 4711);
}

#[test]
fn a_process_is_listed_by_its_script() {
    let user = User::new();
    let file = user.0.path().join("k.py");
    fs::write(&file, format!("echo '{OOM}' >&2; exit 3\n")).unwrap();
    let mut run = piped_with(&[], ["sh".as_ref(), file.as_os_str()]);
    assert_eq!(run.env("XDG_STATE_HOME", user.0.path()).output().unwrap().status.code(), Some(3));
    let list = user.incidents([]).1;
    assert!(list.contains(" k.py ") && !list.contains(" sh "), "{list}");
    assert_eq!(user.incidents(["show", "latest"]).0, Some(0));
}

#[test]
fn success_and_plain_failures_are_not_saved() {
    let user = User::new();
    user.run(&format!("echo '{OOM}' >&2"), &[]);
    user.run("echo KeyError: labels >&2; exit 1", &[]);
    assert!(user.files().is_empty());
    let (code, out, err) = user.incidents([]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.starts_with("gputop: no saved incidents"), "{err}");
}

#[test]
fn incidents_are_listed_shown_and_exported() {
    let user = User::new();
    user.fail("true", &[]);
    user.run(OOM_KILLED, &[]);
    let (code, out, _) = user.incidents([]);
    assert_eq!(code, Some(0));
    assert_eq!(out, user.incidents(["list"]).1);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[0].starts_with("  TIME"), "{out}");
    assert!(
        lines[1].contains("host-oom-killer") && lines[2].contains("oom-fragmentation"),
        "{out}"
    );
    assert!(lines[1..].iter().all(|line| line.starts_with("* ")), "{out}");
    let uid = lines[2].split_whitespace().nth(3).unwrap();

    let (code, shown, _) = user.incidents(["show", &uid[8..]]);
    assert_eq!(code, Some(0));
    assert!(shown.contains(EXPLAINED) && shown.contains("\nRAN   sh -c "), "{shown}");
    let (_, out, _) = user.incidents(["--json"]);
    let list: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(list["schema"], 1);
    assert_eq!(list["incidents"][1]["uid"], uid);
    assert_eq!(list["incidents"][1]["read"], true);
    assert_eq!(list["incidents"][0]["read"], false);

    let (_, json, _) = user.incidents(["export", uid, "--json"]);
    let whole: Value = serde_json::from_str(&json).unwrap();
    assert!(whole["incidents"][0]["excerpt"]["text"].is_string());
    assert_eq!(json, user.incidents(["show", uid, "--json"]).1);
    let (_, markdown, _) = user.incidents(["export", uid]);
    assert!(markdown.starts_with("## FRAGMENTED MEMORY (`oom-fragmentation`)"), "{markdown}");
    assert_eq!(markdown, user.incidents(["export", uid, "--markdown"]).1);

    for verb in ["show", "export", "report"] {
        let (code, out, err) = user.incidents([verb, "nothing"]);
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert!(
            err.starts_with("gputop: incident nothing not found. `gputop incidents` lists all"),
            "{err}"
        );
        assert_eq!(err.lines().count(), 1);
    }
    // UIDs from the same second start alike.
    let (code, _, err) = user.incidents(["show", &uid[..3]]);
    assert_eq!(code, Some(1));
    assert!(err.contains("matches several incidents"), "{err}");
}

#[test]
fn report_is_previewed_and_anonymous() {
    let user = User::new();
    user.fail("echo File /home/zoe/train.py >&2", &[]);
    let host = nix::unistd::gethostname().unwrap();
    let uid = user.stored_incident()["uid"].as_str().unwrap().to_owned();
    let (code, shown, message) = user.incidents(["report", &uid]);
    assert_eq!(code, Some(0));
    assert!(message.contains("nothing was written or sent"), "{message}");
    for part in
        ["oom-fragmentation", "gputop 0.", "\"requested_bytes\"", "Tried to allocate 2.00 GiB"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("zoe"), "{shown}");
    if host.len() > 2 {
        assert!(!shown.contains(host.to_str().unwrap()), "{shown}");
    }
    let file = user.0.path().join("report.md");
    let path = file.to_str().unwrap();
    let (code, out, _) = user.incidents(["report", &uid, "-o", path]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
    assert_eq!(fs::read_to_string(&file).unwrap(), shown);
    let (code, _, err) = user.incidents(["report", &uid, "-o", path]);
    assert_eq!(code, Some(2));
    assert_eq!(err, format!("gputop: cannot write {path}: the file exists. Name another file\n"));
}

/// Returns a command that appends each notification to a file, and the file's path.
fn logging_command(user: &User) -> (String, PathBuf) {
    let file = user.0.path().join("told");
    (format!("cat >> {}", file.display()), file)
}

#[test]
fn on_incident_runs_once_with_the_incident() {
    let user = User::new();
    let (command, file) = logging_command(&user);
    let result = user.fail("true", &["--on-incident", &command]);
    assert_eq!(result.status.code(), Some(3));
    let message = fs::read_to_string(&file).unwrap();
    assert_eq!(message.lines().count(), 1);
    let incident: Value = serde_json::from_str(&message).unwrap();
    assert_eq!(incident["id"], "oom-fragmentation");
    assert_eq!(incident["uid"], user.stored_incident()["uid"]);
    // A second observer of the same incident does not run the command again.
    use gputop::incident::{NOTICE_LIMIT, Notice, notify};
    let store = Store::at(&user.folder());
    let uid = store.list().unwrap().entries[0].uid.clone();
    assert_eq!(
        notify(&store, &uid, &command, NOTICE_LIMIT, &AtomicBool::new(false)),
        Notice::AlreadySent
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), message);
    // The command can also come from the configuration.
    let config = user.0.path().join("config.toml");
    fs::write(&config, format!("on_incident = \"{command}\"\n")).unwrap();
    user.fail("true", &["--config", config.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 2);
}

#[test]
fn an_on_incident_that_fails_or_hangs_is_one_sentence() {
    let user = User::new();
    let result = user.fail("true", &["--on-incident", "echo no such channel >&2; exit 4"]);
    assert_eq!(result.status.code(), Some(3));
    let message = text(&result.stderr);
    assert_eq!(
        message.lines().last(),
        Some("gputop: on_incident: the command failed (exit 4): no such channel"),
    );
    use gputop::incident::{Notice, notify};
    let store = Store::at(&user.folder());
    let uid = put(&store, 7).unwrap();
    let begun = std::time::Instant::now();
    let limit = std::time::Duration::from_millis(300);
    // The command reads no input, leaves a child that holds its stderr open, and does not exit.
    let pid = user.0.path().join("pid");
    let line = format!("sleep 60 & echo $! > {}; sleep 60", pid.display());
    let notice = notify(&store, &uid, &line, limit, &AtomicBool::new(false));
    assert!(matches!(&notice, Notice::Failed(why) if why.contains("longer than")), "{notice:?}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    // Its child is killed as well.
    let pid: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    wait_until("the end of what it began", || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat"));
        state.map_or(true, |stat| stat.contains(") Z "))
    });
    // A mistake in the configuration only costs the notification.
    let config = user.0.path().join("config.toml");
    fs::write(&config, "on_incident = 3\n").unwrap();
    let result = user.fail("true", &["--config", config.to_str().unwrap()]);
    assert_eq!(result.status.code(), Some(3));
    let message = text(&result.stderr);
    let last = message.lines().last().unwrap();
    assert!(last.starts_with("gputop: on_incident was not run: "), "{message}");
    assert!(message.contains(EXPLAINED), "{message}");
}

#[test]
fn interrupt_ends_a_slow_on_incident() {
    let user = User::new();
    for signal in ["INT", "TERM"] {
        let command = format!("kill -{signal} $PPID; sleep 60");
        let result = user.fail("true", &["--on-incident", &command]);
        // The exit code is still that of the program.
        assert_eq!(result.status.code(), Some(3));
        let message = text(&result.stderr);
        assert_eq!(
            message.lines().last(),
            Some("gputop: on_incident: the command was interrupted and killed"),
            "{message}"
        );
    }
}

/// Checks that a store that cannot be written is reported in one line below the explanation.
#[track_caller]
fn assert_not_saved(result: &Output, why: &str) {
    assert_eq!(result.status.code(), Some(3));
    let message = text(&result.stderr);
    assert!(message.contains(EXPLAINED), "{message}");
    let last = message.lines().last().unwrap();
    assert!(
        last.starts_with("gputop: cannot save the incident: ") && last.contains(why),
        "{message}"
    );
    let lines = message.lines().filter(|line| line.starts_with("gputop:"));
    assert_eq!(lines.count(), 1, "{message}");
}

#[test]
fn unwritable_home_prints_one_line() {
    // Not even root can create a directory there.
    for home in ["/proc", "/dev/null"] {
        let script = format!("echo '{OOM}' >&2; exit 3");
        assert_not_saved(&run_in(Path::new(home), &script, &[]), "cannot use the incident store");
    }
}

#[test]
fn file_size_limit_prints_one_line_and_keeps_the_exit_code() {
    let user = User::new();
    // Runs on a terminal, because no file can be written under this limit, not even a log.
    let terminal = crate::support::terminal::Launch::shell(&format!(
        "ulimit -f 0; {} run -- sh -c \"echo '{OOM}'; exit 3\"; echo code $?",
        env!("CARGO_BIN_EXE_gputop")
    ))
    .env("XDG_STATE_HOME", user.0.path())
    .size(60, 200)
    .start();
    terminal.wait_exit();
    let shown = terminal.text();
    assert!(shown.contains("cannot save the incident: "), "{shown}");
    assert!(shown.contains("code 3"), "{shown}");
    assert!(user.files().is_empty());
    // No partially written file remains.
    let left: Vec<_> = fs::read_dir(user.folder()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the lock: {left:?}");
}

#[test]
fn a_store_of_another_user_or_behind_a_link_is_not_used() {
    let user = User::new();
    fs::create_dir_all(user.folder()).unwrap();
    if nix::unistd::chown(&user.folder(), Some(12345.into()), None).is_ok() {
        assert_not_saved(&user.fail("true", &[]), "another user");
        let (code, _, err) = user.incidents([]);
        assert_eq!(code, Some(2));
        assert!(err.contains("belongs to another user"), "{err}");
    }
    let user = User::new();
    fs::create_dir(user.0.path().join("gputop")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), user.folder()).unwrap();
    assert_not_saved(&user.fail("true", &[]), "cannot use the incident store");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn strange_files_are_named_and_harm_nothing() {
    let user = User::new();
    user.fail("true", &[]);
    fs::write(user.folder().join("01kq3v7-aaaa.json"), "{\x1b[31m").unwrap();
    fs::write(user.folder().join("01kq3v7-bbbb.json"), "{\"schema\": 2}").unwrap();
    nix::unistd::mkfifo(&user.folder().join("01kq3v7-cccc.json"), nix::sys::stat::Mode::S_IRWXU)
        .unwrap();
    let (code, out, err) = user.incidents([]);
    assert_eq!((code, out.lines().count()), (Some(0), 2), "{out}");
    assert_eq!(err.lines().count(), 3, "{err}");
    assert!(err.contains("written by a newer gputop (schema 2)"), "{err}");
    assert!(err.contains("not a regular file"), "{err}");
    assert!(!err.contains('\x1b'), "{err}");
    let (code, _, err) = user.incidents(["show", "bbbb"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("newer gputop"), "{err}");
    // Only the newer version may rewrite its record.
    user.fail("true", &[]);
    let newer = fs::read_to_string(user.folder().join("01kq3v7-bbbb.json")).unwrap();
    assert_eq!(newer, "{\"schema\": 2}");
}

const WRITER: &str = "GPUTOP_TEST_WRITER";
const EACH: u32 = 40;

fn put(store: &Store, number: u32) -> Result<gputop::incident::Uid, String> {
    let key = IncidentKey {
        boot_id: "boot".into(),
        process: Some(ProcessKey::new(number, 1)),
        run: None,
        gpu: None,
        first: Mono(0),
        time: UnixMillis(1_795_177_000_000 + i64::from(number) * 1_000),
    };
    let incident = Incident {
        id: "oom-fragmentation".into(),
        severity: Severity::Fatal,
        ..Incident::default()
    };
    let mut record = Record::new(incident, key);
    record.evidence.measured.insert(format!("by {}", std::process::id()), 1.into());
    let stored = store.write(record).map_err(|error| error.to_string())?;
    Ok(stored.uid)
}

#[test]
#[ignore = "run by the test below, in processes of their own"]
fn a_writer() {
    let Some(folder) = std::env::var_os(WRITER) else { return };
    let store = Store::at(Path::new(&folder));
    let mut claimed = Vec::new();
    for number in 1..=EACH {
        let uid = put(&store, number).unwrap();
        if store.claim_notice(&uid).unwrap() {
            claimed.push(uid.to_string());
        }
    }
    let file = Path::new(&folder).join(format!("claimed-{}", std::process::id()));
    fs::write(file, claimed.join(" ")).unwrap();
}

#[test]
fn concurrent_writers_save_each_incident_once() {
    let user = User::new();
    let writer = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "incidents::a_writer", "--ignored", "--quiet"])
            .env(WRITER, user.folder())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let writers = [writer(), writer(), writer()];
    let mut claimed: Vec<String> = Vec::new();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
        let file = user.folder().join(format!("claimed-{}", writer.id()));
        let line = fs::read_to_string(file).unwrap();
        claimed.extend(line.split_whitespace().map(ToOwned::to_owned));
    }
    let listing = Store::at(&user.folder()).list().unwrap();
    assert_eq!(listing.unreadable, []);
    assert_eq!(listing.entries.len(), EACH as usize);
    for entry in &listing.entries {
        let measured = &entry.record.evidence.measured;
        assert_eq!(measured.len(), 3, "what each of them knew: {measured:?}");
    }
    claimed.sort();
    let mut all: Vec<String> = listing.entries.iter().map(|e| e.uid.to_string()).collect();
    all.sort();
    assert_eq!(claimed, all, "of each one of them was told");
}

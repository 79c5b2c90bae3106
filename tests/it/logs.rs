//! Logs of real processes: found automatically, followed, and reported.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

use gputop::collect::logs::{self, LogSettings, Logs, ProcessExcerpt};
use gputop_model::event::{LogExcerpt, LogOrigin, LogTrigger, Observation};
use gputop_model::log::LogView;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Line, Update};
use gputop_model::reading::Missing;
use gputop_model::units::Bytes;
use tempfile::TempDir;

use crate::containers::{in_a_pid_namespace, report_finished};
use crate::support::deadline::DEADLINE;
use crate::support::executable;
use crate::support::fake_machine::{
    Guarded, RealProcess, command, dashboard, has, is_host, is_root, on_gpu, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::skip::available;

const OOM: &str = "Traceback (most recent call last):\n  File \"train.py\", line 57, in <module>\n    \
    loss.backward()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total \
    capacity of 23.69 GiB of which 1.06 GiB is free.\n";

const NOBODY: u32 = 65_534;

/// The log follower and its reports so far.
struct LogFollower {
    logs: Logs,
    reported: Arc<Mutex<Vec<(Instant, ProcessExcerpt)>>>,
}

impl LogFollower {
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn with(say: impl FnOnce(&mut LogSettings)) -> Self {
        let mut settings = LogSettings::new(Path::new("/proc"), None, None);
        say(&mut settings);
        let reported = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&reported);
        let logs = logs::Logs::start(settings, move |reported| {
            received.lock().unwrap().push((Instant::now(), reported));
        });
        Self { logs: logs.unwrap(), reported }
    }

    fn view(&self, key: ProcessKey) -> LogView {
        let (sender, views) = mpsc::channel();
        self.logs.view(key, move |view| sender.send(view).unwrap());
        views.recv_timeout(DEADLINE).unwrap()
    }

    fn name(&self, key: ProcessKey, path: &Path) -> Result<String, Missing> {
        let (sender, answers) = mpsc::channel();
        let answer = move |answer| sender.send(answer).unwrap();
        self.logs.name(key, path.to_owned(), answer);
        answers.recv_timeout(DEADLINE).unwrap()
    }

    #[track_caller]
    fn wait_attached(&self, key: ProcessKey) {
        wait_until("the process to be attached to", || self.view(key).is_attached);
    }

    fn reported(&self) -> Vec<ProcessExcerpt> {
        let reported = self.reported.lock().unwrap();
        reported.iter().map(|(_, reported)| reported.clone()).collect()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, wanted: impl Fn(&ProcessExcerpt) -> bool) -> ProcessExcerpt {
        wait_until(what, || self.reported().iter().any(&wanted));
        self.reported().into_iter().find(wanted).unwrap()
    }

    #[track_caller]
    fn wait_text(&self, text: &str) -> ProcessExcerpt {
        self.wait_for(text, |reported| reported.excerpt.text.contains(text))
    }
}

fn key_of(pid: u32) -> ProcessKey {
    let stat =
        procfs::process::Process::new(pid.try_into().unwrap()).and_then(|p| p.stat()).unwrap();
    ProcessKey::new(pid, stat.starttime)
}

/// Starts a process that repeats its input. `say` redirects its output.
fn echo_process(say: impl FnOnce(&mut Command)) -> Guarded {
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped());
    say(&mut command);
    Guarded(command.spawn().unwrap())
}

fn say(process: &mut Guarded, text: &str) {
    let mut input = process.0.stdin.as_ref().unwrap();
    input.write_all(text.as_bytes()).unwrap();
}

/// Waits until the file contains the earlier output, so that later output is newer.
fn wait_size(file: &Path, size: usize) {
    let size = size as u64;
    wait_until("the log to grow", || fs::metadata(file).unwrap().len() >= size);
}

/// Waits until the file is older than any process started from now on. Start times have a resolution of 10 ms.
fn wait_old(file: &Path) {
    let born = fs::metadata(file).unwrap().created().unwrap();
    wait_until("the file to be older than a process", || {
        born.elapsed().is_ok_and(|age| age > Duration::from_millis(50))
    });
}

/// Starts a process that writes to this file. The file already contains an error from before attaching.
fn old_log(file: &Path) -> Guarded {
    fs::write(file, format!("{OOM}old\n")).unwrap();
    // Process start times have a resolution of 10 ms.
    let born = fs::metadata(file).unwrap().created().unwrap();
    wait_until("the file to be older than the process", || {
        born.elapsed().is_ok_and(|age| age > Duration::from_millis(50))
    });
    let append = File::options().append(true).open(file).unwrap();
    let both = append.try_clone().unwrap();
    echo_process(|command| {
        command.stdout(append).stderr(both);
    })
}

#[test]
fn new_error_behind_stdout_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.log");
    let mut process = old_log(&file);
    let key = key_of(process.0.id());
    let followed = LogFollower::start();
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    let before = fs::metadata(&file).unwrap().len();

    let message = Instant::now();
    say(&mut process, &format!("step 1\n{OOM}"));
    let reported = followed.wait_text("Tried to allocate");
    assert!(message.elapsed() < Duration::from_millis(1_000), "{:?}", message.elapsed());
    assert_eq!(reported.process, Some(key));
    let excerpt = reported.excerpt;
    assert_eq!(excerpt.text, format!("step 1\n{OOM}"));
    assert_eq!(excerpt.file.value().map(String::as_str), file.to_str());
    assert_eq!(excerpt.offset.get(), Some(Bytes(before)));
    assert_eq!(excerpt.first_line.get(), Some(6));
    assert_eq!((excerpt.origin, excerpt.why), (LogOrigin::Descriptor, LogTrigger::Matched));
    assert!(!excerpt.sampled && !excerpt.continues && excerpt.writers.is_empty());

    // Its last output is reported when it exits, without repeating earlier reports.
    say(&mut process, "its last words\n");
    wait_size(&file, before as usize + OOM.len() + 7 + 15);
    drop(process);
    followed.logs.exited(key);
    followed.wait_text("its last words");
    let all: String = followed.reported().iter().map(|t| t.excerpt.text.clone()).collect();
    assert_eq!(all, format!("step 1\n{OOM}its last words\n"));
}

#[test]
fn a_recording_holds_what_a_process_wrote() {
    if !is_host() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.log");
    let output = File::create(&file).unwrap();
    let process = RealProcess::with("train.py", |command| {
        command.stderr(output.try_clone().unwrap());
    });
    let fake = FakeNvml::h200s(1, &on_gpu(0, &process, ""));
    let recording = dir.path().join("r.gpt.zst");
    let mut recorder = Guarded(
        command(&fake, ["record", "-o", recording.to_str().unwrap(), "--interval", "200ms"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut n = 0;
    wait_until("the event", || {
        // Text written before attaching is too old.
        n += 1;
        if n % 100 == 1 {
            (&output).write_all(OOM.as_bytes()).unwrap();
        }
        !excerpts(&recording).is_empty()
    });
    let (key, excerpt) = excerpts(&recording).remove(0);
    assert_eq!(key, Some(key_of(process.pid())));
    assert!(excerpt.text.contains("Tried to allocate 2.00 GiB"), "{excerpt:?}");
    let _ = recorder.0.kill();
}

/// Returns the excerpts in a recording that is still being written.
fn excerpts(recording: &Path) -> Vec<(Option<ProcessKey>, LogExcerpt)> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(recording) {
        // The file is incomplete at its end.
        let _ = zstd::stream::Decoder::new(file).map(|mut d| d.read_to_end(&mut text));
    }
    let lines = text.split(|b| *b == b'\n');
    let events = lines.filter_map(|line| match Line::read(line).ok()? {
        Line::Update(Update::Event(event)) => Some(event),
        _ => None,
    });
    events
        .filter_map(|event| match event.observation {
            Observation::Log(excerpt) => Some((event.process, *excerpt)),
            _ => None,
        })
        .collect()
}

#[test]
fn piped_output_is_read_from_the_file_of_tee() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.log");
    fs::write(&file, "older\n").unwrap();
    wait_old(&file);
    // Two pipes: `cat | cat | tee -a train.log`.
    let mut tee = Guarded(
        Command::new("tee")
            .arg("-a")
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let into_tee = tee.0.stdin.take().unwrap();
    let mut middle = Guarded(
        Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(into_tee)
            // Its stderr is not a copy of the data that passes through.
            .stderr(File::create(dir.path().join("complaints")).unwrap())
            .spawn()
            .unwrap(),
    );
    let into_middle = middle.0.stdin.take().unwrap();
    // Standard error may be a log of the tests themselves, which would be attached to first.
    let mut process = echo_process(|command| {
        command.stdout(into_middle).stderr(Stdio::null());
    });
    let key = key_of(process.0.id());
    let followed = LogFollower::start();
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    say(&mut process, OOM);
    let reported = followed.wait_text("Tried to allocate");
    assert_eq!(reported.process, Some(key));
    assert_eq!(reported.excerpt.origin, LogOrigin::PipeReader);
    assert_eq!(reported.excerpt.file.value().map(String::as_str), file.to_str());
    assert_eq!(reported.excerpt.text, OOM);
}

#[test]
fn only_a_few_logs_of_a_candidate_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let mut candidate = Command::new("cat");
    candidate.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut candidate = Guarded(candidate.spawn().unwrap());
    // Each of two readers copies its input to four files.
    let reader = |name: &str, input: Stdio| {
        let script = "exec 4>$0.4 5>$0.5 6>$0.6 7>$0.7; echo; read line";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(dir.path().join(name)).stdin(input).stdout(Stdio::piped());
        let mut reader = Guarded(command.spawn().unwrap());
        let opened = reader.0.stdout.as_mut().unwrap().read(&mut [0]).unwrap();
        assert_eq!(opened, 1);
        reader
    };
    let stdout = candidate.0.stdout.take().unwrap().into();
    let stderr = candidate.0.stderr.take().unwrap().into();
    let _readers = [reader("out", stdout), reader("err", stderr)];
    let key = key_of(candidate.0.id());
    let logs_of = |follow: fn(&Logs, ProcessKey)| {
        let followed = LogFollower::start();
        follow(&followed.logs, key);
        followed.wait_attached(key);
        followed.view(key).sources.len()
    };
    assert_eq!(logs_of(|logs, key| logs.watch(&[key])), 8);
    assert_eq!(logs_of(|logs, key| logs.follow(&[key])), 4);
}

#[test]
fn output_to_dev_null_is_reported_as_such() {
    let followed = LogFollower::start();
    let nowhere = echo_process(|command| {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    });
    let closed = Guarded(
        Command::new("sh")
            .args(["-c", "exec >&- 2>&-; read line"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let wired = echo_process(|command| {
        let socket: std::os::fd::OwnedFd = socket.into();
        command.stdout(socket.try_clone().unwrap()).stderr(socket);
    });
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Opened for reading and writing, so that opening does not block. The only reader is the writer.
    let both = File::options().read(true).write(true).open(&fifo).unwrap();
    let unread = echo_process(|command| {
        command.stdout(both.try_clone().unwrap()).stderr(both);
    });
    let zero = echo_process(|command| {
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        command.stdout(zero.try_clone().unwrap()).stderr(zero);
    });
    let expected = [
        (&nowhere, "stdout is /dev/null"),
        (&closed, "stdout is closed"),
        (&wired, "stdout is a socket"),
        (&unread, "stdout is a pipe whose reader gputop cannot see"),
        (&zero, "stdout is /dev/zero"),
    ];
    for (process, why) in expected {
        let key = key_of(process.0.id());
        wait_until("the shell to have closed its output", || {
            !Path::new(&format!("/proc/{}/fd/1", key.pid)).exists() || why != "stdout is closed"
        });
        followed.logs.watch(&[key]);
        followed.wait_attached(key);
        let view = followed.view(key);
        assert_eq!(view.missing.map(|m| m.to_string()).as_deref(), Some(why));
        assert!(view.sources.is_empty() && view.text.value().is_none());
    }
    assert_eq!(followed.reported(), []);
}

/// A growing file of a process, with the follower attached.
struct Growing {
    followed: LogFollower,
    key: ProcessKey,
    file: PathBuf,
    _process: Guarded,
    _dir: TempDir,
}

impl Growing {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("train.log");
        let process = old_log(&file);
        let key = key_of(process.0.id());
        let followed = LogFollower::start();
        followed.logs.watch(&[key]);
        followed.wait_attached(key);
        Self { followed, key, file, _process: process, _dir: dir }
    }

    fn write(&self, text: &str) {
        let mut file = File::options().append(true).open(&self.file).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
}

#[test]
fn a_file_that_the_process_cannot_write_is_not_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    fs::write(&file, OOM).unwrap();
    // O_PATH needs no permission for the file, so that the file may belong to anyone.
    for flags in [nix::libc::O_PATH, nix::libc::O_RDONLY] {
        let open = File::options().read(true).custom_flags(flags).open(&file).unwrap();
        let process = echo_process(|command| {
            command.stdout(open).stderr(Stdio::null());
        });
        let key = key_of(process.0.id());
        let followed = LogFollower::start();
        followed.logs.watch(&[key]);
        followed.wait_attached(key);
        let view = followed.view(key);
        let why = format!("{view:?}");
        assert!(view.sources.is_empty() && why.contains("did not open it for writing"), "{why}");
    }
}

#[test]
fn a_truncated_log_and_a_deleted_one_go_on() {
    let log = Growing::start();
    log.write("CUDA error: first\n");
    log.followed.wait_text("first");
    // copytruncate
    File::options().write(true).truncate(true).open(&log.file).unwrap();
    log.write("CUDA error: second\n");
    let reported = log.followed.wait_text("second").excerpt;
    assert_eq!((reported.offset.get(), reported.first_line.get()), (Some(Bytes(0)), Some(1)));
    assert_eq!(reported.text, "CUDA error: second\n");
    // The process still has it open.
    let mut file = File::options().append(true).open(&log.file).unwrap();
    fs::remove_file(&log.file).unwrap();
    file.write_all(b"CUDA error: third\n").unwrap();
    assert_eq!(log.followed.wait_text("third").excerpt.text, "CUDA error: third\n");
}

#[test]
fn a_log_named_by_hand_is_followed_over_its_rotation() {
    let log = Growing::start();
    let named = log.file.with_file_name("app.host.log");
    fs::write(&named, "CUDA error: too old\n").unwrap();
    assert_eq!(log.followed.name(log.key, &named).unwrap(), named.to_str().unwrap());
    let append = |path: &Path, text: &str| {
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    append(&named, "CUDA error: first\n");
    let reported = log.followed.wait_text("first");
    assert_eq!((reported.process, reported.excerpt.origin), (Some(log.key), LogOrigin::Named));
    // The last text in the old file is not lost, and the new file is read from its beginning.
    let old = named.with_file_name("app.host.log.1");
    fs::rename(&named, &old).unwrap();
    append(&old, "CUDA error: second\n");
    append(&named, "CUDA error: third\n");
    log.followed.wait_text("second");
    let reported = log.followed.wait_text("third").excerpt;
    assert_eq!(reported.offset.get(), Some(Bytes(0)));
    assert!(!log.followed.reported().iter().any(|t| t.excerpt.text.contains("too old")));
}

#[test]
fn only_own_regular_files_are_followed_by_name() {
    let log = Growing::start();
    let dir = log.file.parent().unwrap();
    let link = dir.join("link");
    std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
    let fifo = dir.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = |path: &Path, why: &str| {
        let error = log.followed.name(log.key, path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {why}", path.display()));
    };
    let begun = Instant::now();
    refused(&link, "it is a symbolic link, not a file");
    refused(&fifo, "it is a pipe, not a file");
    refused(Path::new("/dev/zero"), "it is a device, not a file");
    refused(dir, "it is a directory, not a file");
    refused(&dir.join("nothing"), "No such file or directory (os error 2)");
    if is_root() {
        let other = dir.join("other");
        fs::write(&other, "").unwrap();
        std::os::unix::fs::chown(&other, Some(4_711), None).unwrap();
        let why = "it belongs to user 4711; gputop follows only files that belong to you, the owner of the process, or root";
        refused(&other, why);
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    let gone = ProcessKey::default();
    assert!(log.followed.name(gone, &log.file).is_err());
}

/// A client on another host can name files for a root agent, but only files that the owner of the process owns and can
/// read.
#[test]
fn a_remote_client_names_only_files_that_the_owner_of_the_process_can_read() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(dir.path(), 0o755);
    let make = |name: &str, owner: u32, mode: u32| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        open(&path, mode);
        path
    };
    let process = echo_process(|command| {
        command.stdout(Stdio::null()).uid(NOBODY).gid(NOBODY);
    });
    let key = key_of(process.0.id());
    let followed = LogFollower::with(|settings| settings.is_remote = true);
    followed.logs.watch(&[key]);
    let refused = |path: &Path, why: &str| {
        let error = followed.name(key, path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {why}", path.display()));
    };
    let secret = make("secret.log", 0, 0o644);
    refused(&secret, "it belongs to user 0, not to the owner of the process");
    let denied = "Permission denied (os error 13)";
    refused(&make("unreadable.log", NOBODY, 0o000), denied);
    let hidden = make("hidden/app.host.log", NOBODY, 0o644);
    open(hidden.parent().unwrap(), 0o700);
    refused(&hidden, denied);
    // A path through a link to the directory is denied as well.
    let link = dir.path().join("link");
    symlink(hidden.parent().unwrap(), &link).unwrap();
    refused(&link.join("app.host.log"), denied);

    let named = make("app.host.log", NOBODY, 0o600);
    followed.name(key, &named).unwrap();
    let append = |path: &Path, text: &str| {
        let mut file = File::options().append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    append(&named, "CUDA error: first\n");
    followed.wait_text("first");
    // Another user's file in its place is not read. The owner's next file is.
    let beside = make("beside.log", NOBODY, 0o600);
    followed.name(key, &beside).unwrap();
    let secret = make("secret.log", 0, 0o644);
    append(&secret, "CUDA error: secret\n");
    fs::rename(&secret, &named).unwrap();
    // After two replacements of the other log were noticed, this one was checked as well.
    for text in ["rotated once", "rotated twice"] {
        let next = make("next.log", NOBODY, 0o600);
        append(&next, &format!("CUDA error: {text}\n"));
        fs::rename(&next, &beside).unwrap();
        followed.wait_text(text);
    }
    let next = make("next.log", NOBODY, 0o600);
    append(&next, "CUDA error: third\n");
    fs::rename(&next, &named).unwrap();
    append(&named, "CUDA error: fourth\n");
    followed.wait_text("fourth");
    assert!(!followed.reported().iter().any(|reported| reported.excerpt.text.contains("secret")));
}

#[test]
fn what_grows_too_fast_is_sampled_and_says_so() {
    let log = Growing::start();
    let noise = "step 1 loss 0.5 and more of that\n".repeat(32_000);
    let text = format!("{OOM}{}CUDA error: at last\n", noise.repeat(5));
    log.write(&text);
    let reported = log.followed.wait_text("at last").excerpt;
    assert!(
        reported.sampled && reported.text.len() < 70_000,
        "{} {}",
        reported.sampled,
        reported.text.len()
    );
    assert!(log.followed.view(log.key).text.value().unwrap().len() <= 256 << 10);
    // File holes and escape sequences are not treated as text.
    let file = File::options().write(true).open(&log.file).unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len(size + (4 << 30)).unwrap();
    log.write("\u{1b}[31mCUDA error: behind a hole\x07\n");
    let reported = log.followed.wait_text("behind a hole").excerpt;
    assert_eq!(reported.text, "CUDA error: behind a hole^G\n");
    assert!(reported.sampled);
}

#[test]
fn endless_error_is_sent_in_bounded_size() {
    let log = Growing::start();
    for n in 0..60 {
        log.write(&format!("CUDA error: again {n}\n{}", "x".repeat(16 << 10)));
        log.followed.view(log.key);
    }
    log.write("\nCUDA error: the last\n");
    wait_until("the log to be read", || {
        let view = log.followed.view(log.key);
        view.text.value().is_some_and(|text| text.contains("the last"))
    });
    let sent: usize = log.followed.reported().iter().map(|t| t.excerpt.text.len()).sum();
    assert!(sent < 400 << 10, "{sent}");
}

#[test]
fn shared_log_names_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.log");
    fs::write(&file, "").unwrap();
    let rank = || {
        let append = File::options().append(true).open(&file).unwrap();
        echo_process(|command| {
            command.stdout(append);
        })
    };
    let (mut a, b) = (rank(), rank());
    let mut keys = [key_of(a.0.id()), key_of(b.0.id())];
    keys.sort_unstable();
    let followed = LogFollower::start();
    followed.logs.watch(&keys);
    keys.iter().for_each(|key| followed.wait_attached(*key));
    // The output claims to come from the other process.
    say(&mut a, &format!("[rank 7] process {} has ended\n{OOM}", keys[1].pid));
    followed.wait_text("Tried to allocate");
    for reported in followed.reported() {
        assert_eq!((reported.process, reported.excerpt.writers), (None, keys.to_vec()));
    }
    // After one process exits, further text belongs to the other.
    let other = key_of(b.0.id());
    let first = keys[0].min(keys[1]);
    let ended = if first == other { keys[1] } else { first };
    followed.logs.exited(ended);
    wait_until("its end", || {
        fs::OpenOptions::new()
            .append(true)
            .open(&file)
            .unwrap()
            .write_all(b"CUDA error: later\n")
            .unwrap();
        followed.reported().iter().any(|t| t.process == Some(other))
    });
}

#[test]
fn log_text_at_a_failed_allocation_is_sent() {
    let log = Growing::start();
    log.write("epoch 3, batch of 512\n");
    log.followed.logs.ooms_rose(log.key);
    let reported = log.followed.wait_text("batch of 512");
    assert_eq!(reported.excerpt.why, LogTrigger::Ooms);
    assert_eq!(reported.excerpt.text, "epoch 3, batch of 512\n");
    // Once.
    log.followed.logs.ooms_rose(log.key);
    log.write("CUDA error: x\n");
    log.followed.wait_text("error: x");
    let texts: Vec<String> = log.followed.reported().into_iter().map(|t| t.excerpt.text).collect();
    assert_eq!(texts.concat(), "epoch 3, batch of 512\nCUDA error: x\n");
}

#[test]
fn new_process_log_is_read_from_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("new.log");
    let script = format!("exec > {} 2>&1; echo 'CUDA error: at once'; read line", file.display());
    let process =
        Guarded(Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap());
    wait_until("its error", || fs::metadata(&file).is_ok_and(|m| m.len() > 10));
    let followed = LogFollower::start();
    let key = key_of(process.0.id());
    followed.logs.watch(&[key]);
    let reported = followed.wait_text("at once").excerpt;
    assert_eq!((reported.first_line.get(), reported.offset.get()), (Some(1), Some(Bytes(0))));
}

#[test]
fn output_of_a_process_that_exits_during_the_search_is_sent() {
    let log = tempfile::tempdir().unwrap();
    let file = log.path().join("new.log");
    let mut process = echo_process(|command| {
        command.stdout(File::create(&file).unwrap());
    });
    say(&mut process, "no error, but the last words\n");
    wait_size(&file, 20);
    let followed = LogFollower::start();
    let key = key_of(process.0.id());
    followed.logs.watch(&[key]);
    followed.logs.exited(key);
    followed.logs.watch(&[]);
    let reported = followed.wait_text("the last words");
    assert_eq!((reported.process, reported.excerpt.why), (Some(key), LogTrigger::Ended));
}

#[test]
fn a_process_whose_files_never_answer_costs_the_others_nothing() {
    // Opening a FIFO blocks until it has a writer, as a file on an unreachable server blocks forever.
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("train.log");
    let process = old_log(&file);
    let key = key_of(process.0.id());
    let pid = key.pid.to_string();
    std::os::unix::fs::symlink(Path::new("/proc").join(&pid), root.path().join(&pid)).unwrap();
    let stuck = ProcessKey::new(1, 1);
    fs::create_dir_all(root.path().join("1/fd")).unwrap();
    let fifo = root.path().join("1/stat");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let followed = LogFollower::with(|settings| settings.proc_root = root.path().into());
    followed.logs.watch(&[stuck, key]);
    followed.wait_attached(key);
    File::options().append(true).open(&file).unwrap().write_all(b"CUDA error: seen\n").unwrap();
    followed.wait_text("seen");
    assert!(!followed.view(stuck).is_attached);
    // The open returns after all.
    let writer = File::options().write(true).open(&fifo).unwrap();
    drop(writer);
    followed.wait_attached(stuck);
}

/// A tmux server for this test, with one pane.
struct Tmux {
    socket: PathBuf,
    _dir: TempDir,
}

impl Tmux {
    /// Returns `None` if tmux is missing. Fails if the tests require it.
    fn start(script: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let tmux = Self { socket, _dir: dir };
        let args = ["-f", "/dev/null", "new-session", "-d", "-x", "60", "-y", "12", script];
        let is_started = tmux.command(&args).status().is_ok_and(|status| status.success());
        available(is_started, "tmux does not start").then_some(tmux)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(args).env_remove("TMUX");
        command.stderr(Stdio::null());
        command
    }

    fn say(&self, text: &str) {
        self.command(&["send-keys", "-l", text]).status().unwrap();
        self.command(&["send-keys", "Enter"]).status().unwrap();
    }

    fn pid(&self) -> u32 {
        let output = self.command(&["list-panes", "-F", "#{pane_pid}"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }

    fn shows(&self, text: &str) -> bool {
        let output = self.command(&["capture-pane", "-p"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(text)
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).status();
    }
}

/// Waits until the pane is read: text echoed by a process in it has appeared.
fn followed_in(tmux: &Tmux, key: ProcessKey) -> LogFollower {
    let followed = LogFollower::with(|settings| {
        settings.tmux_socket = Some(tmux.socket.clone());
        settings.tmux_folders.clear();
    });
    followed.logs.watch(&[key]);
    wait_until("the pane to be followed", || {
        tmux.say("step");
        let view = followed.view(key);
        view.text.value().is_some_and(|text| text.contains("step"))
    });
    followed
}

#[test]
fn error_in_a_tmux_pane_is_sent_with_wrapped_lines_joined() {
    let Some(tmux) = Tmux::start("stty -echo; echo 'CUDA error: too old'; exec cat") else {
        return;
    };
    wait_until("the pane", || tmux.shows("too old"));
    let key = key_of(tmux.pid());
    let followed = followed_in(&tmux, key);
    // Longer than the pane is wide, and with more lines than it is high.
    let error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of";
    let message = Instant::now();
    tmux.say(error);
    let reported = followed.wait_text("Tried to allocate");
    assert!(message.elapsed() < Duration::from_millis(2_000), "{:?}", message.elapsed());
    assert_eq!((reported.process, reported.excerpt.origin), (Some(key), LogOrigin::Pane));
    assert!(reported.excerpt.text.lines().any(|line| line == error), "{reported:?}");
    assert_eq!(reported.excerpt.file.value().map(String::as_str), Some("tmux pane %0"));
    for n in 0..30 {
        tmux.say(&format!("more {n}"));
    }
    tmux.say("CUDA error: another");
    followed.wait_text("another");
    tmux.say("after it");
    wait_until("the rest", || {
        let view = followed.view(key);
        view.text.value().is_some_and(|text| text.contains("after it"))
    });
    let all: String = followed.reported().iter().map(|t| t.excerpt.text.clone()).collect();
    assert_eq!(all.matches("Tried to allocate").count(), 1, "{all}");
    assert!(!all.contains("too old"));
}

/// The last line is held back until two captures agree on it, and nothing is sent after the answer to the exit. Only
/// captures between the two can send it.
#[test]
fn last_line_of_an_exited_pane_program_is_sent() {
    let fails = r#"{ echo 'Traceback (most recent call last):'; echo 'CUDA error: the last line'; exit 1; }"#;
    let program =
        format!(r#"while read line; do test "$line" = fail && {fails}; echo "$line"; done"#);
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("program");
    fs::write(&script, program).unwrap();
    let pane = format!("stty -echo; sh {}; exec cat", script.display());
    let Some(tmux) = Tmux::start(&pane) else { return };
    // The first child of the shell is `stty`.
    let command_line = format!("sh\0{}\0", script.display());
    let is_program = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline"));
        arguments.is_ok_and(|arguments| arguments == command_line.as_bytes())
    };
    let child = || {
        let shell = tmux.pid();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
        children.ok()?.split_whitespace().next()?.parse().ok().filter(is_program)
    };
    wait_until("the program", || child().is_some());
    let pid: u32 = child().unwrap();
    let key = key_of(pid);
    let followed = followed_in(&tmux, key);
    tmux.say("fail");
    wait_until("the end", || !Path::new(&format!("/proc/{pid}")).exists());
    followed.logs.exited(key);
    followed.wait_text("the last line");
}

#[test]
fn a_tmux_server_that_hangs_costs_nothing_else() {
    let log = tempfile::tempdir().unwrap();
    let folder = log.path().join("tmux-0");
    fs::create_dir(&folder).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.join("default")).unwrap();
    let Some(tmux) = Tmux::start("exec cat") else { return };
    let in_pane = key_of(tmux.pid());
    let file = log.path().join("train.log");
    let process = old_log(&file);
    let key = key_of(process.0.id());
    let followed = LogFollower::with(|settings| {
        // The socket accepts connections but never answers.
        settings.tmux_folders = vec![folder];
        settings.tmux_socket = None;
    });
    followed.logs.watch(&[in_pane, key]);
    followed.wait_attached(key);
    File::options().append(true).open(&file).unwrap().write_all(b"CUDA error: seen\n").unwrap();
    let message = Instant::now();
    followed.wait_text("seen");
    assert!(message.elapsed() < Duration::from_millis(1_000), "{:?}", message.elapsed());
    let why = "the output goes to a terminal, and the tmux server that may own it does not answer";
    wait_until("the reason", || {
        followed.view(in_pane).missing.is_some_and(|m| m.to_string() == why)
    });
}

/// Writes a script that replaces an external program.
fn program(dir: &Path, name: &str, script: &str) -> PathBuf {
    let path = dir.join(name);
    executable::write(&path, &format!("#!/bin/sh\n{script}\n"));
    path
}

/// Starts a process whose output is a socket that its environment names as the journal's.
fn journal_process() -> (Guarded, std::os::unix::net::UnixStream) {
    let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let fd: std::os::fd::OwnedFd = socket.into();
    let file = File::from(fd.try_clone().unwrap());
    let metadata = file.metadata().unwrap();
    let stream = format!("{}:{}", metadata.dev(), metadata.ino());
    let process = echo_process(|command| {
        command.env("JOURNAL_STREAM", stream).stdout(fd.try_clone().unwrap()).stderr(fd);
    });
    (process, other)
}

#[test]
fn the_journal_of_a_new_service_is_followed_from_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let entries = dir.path().join("entries");
    fs::write(&entries, OOM).unwrap();
    let script = format!(
        "echo \"$@\" > {}/args; exec tail -n +1 -f {}",
        dir.path().display(),
        entries.display()
    );
    let (process, _other) = journal_process();
    let environ = || fs::read_to_string(format!("/proc/{}/environ", process.0.id())).unwrap();
    // A process that was just started has no environment yet.
    wait_until("its environment", || environ().contains("JOURNAL_STREAM"));
    let environ = environ();
    let key = in_proc(dir.path(), &process, &environ, "0::/system.slice/train.service\n");
    let followed = LogFollower::with(|settings| {
        settings.proc_root = dir.path().into();
        settings.journalctl = program(dir.path(), "journalctl", &script);
    });
    followed.logs.watch(&[key]);
    let reported = followed.wait_text("Tried to allocate");
    assert_eq!((reported.process, reported.excerpt.origin), (Some(key), LogOrigin::Journal));
    let args = fs::read_to_string(dir.path().join("args")).unwrap();
    let since = args.strip_prefix("-f -n all --since=@").unwrap();
    let (since, options) = since.split_once(' ').unwrap();
    // The entries of a forked child have a PID of their own, but the same service.
    let user = nix::unistd::getuid();
    let service = format!("_SYSTEMD_CGROUP=/system.slice/train.service _UID={user}");
    assert_eq!(options.trim(), format!("-o cat -q --no-pager _PID={} + {service}", key.pid));
    let since = Duration::from_secs(since.parse().unwrap());
    let elapsed = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    assert!(elapsed >= since && elapsed - since < Duration::from_secs(60), "{since:?}");
}

#[test]
fn a_journalctl_that_hangs_or_is_not_there_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (process, _other) = journal_process();
    let key = key_of(process.0.id());
    for program in [program(dir.path(), "journalctl", "exec sleep 1000"), dir.path().join("none")] {
        let is_there = program.exists();
        let followed = LogFollower::with(|settings| settings.journalctl = program);
        followed.logs.watch(&[key]);
        followed.wait_attached(key);
        let view = followed.view(key);
        assert_eq!((view.sources.len() == 1, view.missing.is_none()), (is_there, is_there));
    }
}

/// Starts a process under a fake /proc. Its output is a pipe that nobody reads.
fn process_with_unread_pipe(root: &Path, environ: &str, cgroup: &str) -> (Guarded, ProcessKey) {
    let process = echo_process(|command| {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
    });
    let key = in_proc(root, &process, environ, cgroup);
    (process, key)
}

/// Adds a process to a fake /proc.
fn in_proc(root: &Path, process: &Guarded, environ: &str, cgroup: &str) -> ProcessKey {
    let key = key_of(process.0.id());
    let real = Path::new("/proc").join(key.pid.to_string());
    let dir = root.join(key.pid.to_string());
    fs::create_dir(&dir).unwrap();
    for name in ["fd", "fdinfo", "stat", "status"] {
        std::os::unix::fs::symlink(real.join(name), dir.join(name)).unwrap();
    }
    fs::write(dir.join("environ"), environ).unwrap();
    fs::write(dir.join("cgroup"), cgroup).unwrap();
    key
}

#[test]
fn docker_log_is_read_as_plain_text() {
    let root = tempfile::tempdir().unwrap();
    let id = "5f0a8b7c6d5e4f3a2b1c0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a";
    let docker = root.path().join("containers");
    fs::create_dir_all(docker.join(id)).unwrap();
    let file = docker.join(id).join(format!("{id}-json.log"));
    fs::write(&file, "{\"log\":\"CUDA error: too old\\n\"}\n").unwrap();
    wait_old(&file);
    let (_process, key) =
        process_with_unread_pipe(root.path(), "", &format!("0::/system.slice/docker-{id}.scope\n"));
    let followed = LogFollower::with(|settings| {
        settings.proc_root = root.path().into();
        settings.docker_root = docker;
    });
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    let line = r#"{"log":"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate \"2\"\n","stream":"stderr"}"#;
    let mut log = File::options().append(true).open(&file).unwrap();
    log.write_all(format!("{line}\n").as_bytes()).unwrap();
    let reported = followed.wait_text("Tried to allocate");
    assert_eq!(
        reported.excerpt.text,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate \"2\"\n"
    );
    assert_eq!((reported.process, reported.excerpt.origin), (Some(key), LogOrigin::Docker));
}

#[test]
fn slurms_output_file_is_found_by_the_job() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("slurm-81234_7.out");
    fs::write(&file, "CUDA error: too old\n").unwrap();
    wait_old(&file);
    let environ = format!(
        "SLURM_JOB_ID=81240\0SLURM_ARRAY_JOB_ID=81234\0SLURM_ARRAY_TASK_ID=7\0SLURM_SUBMIT_DIR={}\0",
        root.path().display()
    );
    let (_process, key) = process_with_unread_pipe(root.path(), &environ, "0::/\n");
    let followed = LogFollower::with(|settings| settings.proc_root = root.path().into());
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    let mut log = File::options().append(true).open(&file).unwrap();
    log.write_all(OOM.as_bytes()).unwrap();
    let reported = followed.wait_text("Tried to allocate");
    assert_eq!((reported.process, reported.excerpt.origin), (Some(key), LogOrigin::Slurm));
    assert_eq!(reported.excerpt.text, OOM);
}

#[test]
fn a_job_of_another_user_leads_to_no_file_of_root() {
    if !is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("slurm-1.out"), OOM).unwrap();
    let process = echo_process(|command| {
        command.stdout(Stdio::piped()).stderr(Stdio::null()).uid(NOBODY);
    });
    let environ = format!("SLURM_JOB_ID=1\0SLURM_SUBMIT_DIR={}\0", root.path().display());
    // Root owns the directory in /proc, as for a process that is not dumpable.
    let key = in_proc(root.path(), &process, &environ, "0::/\n");
    let followed = LogFollower::with(|settings| settings.proc_root = root.path().into());
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    assert!(followed.view(key).sources.is_empty());
}

#[test]
fn the_log_that_screen_keeps_is_followed() {
    // A program named `screen` with a terminal and a log, as with `screen -L`. The real screen is not needed.
    let dir = tempfile::tempdir().unwrap();
    let screen = dir.path().join("screen");
    executable::copy("/bin/sh", &screen);
    let file = dir.path().join("screenlog.0");
    fs::write(&file, "CUDA error: too old\n").unwrap();
    wait_old(&file);
    let pty = nix::pty::openpty(None, None).unwrap();
    let script = "exec 5>>\"$1\"; sleep 1000 5>&- & echo $! >&2; wait";
    let mut command = Command::new(&screen);
    command.args(["-c", script, "screen"]).arg(&file).stdout(pty.slave).stderr(Stdio::piped());
    let mut above = Guarded(command.spawn().unwrap());
    let mut message = BufReader::new(above.0.stderr.take().unwrap()).lines();
    let pid: u32 = message.next().unwrap().unwrap().parse().unwrap();
    // `sleep` holds the shell's pipe open, and is killed with it.
    let _below = KillOnDrop(pid);
    // Until the shell's child is `sleep`, it holds the log open itself.
    wait_until("sleep", || {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
    });
    let key = key_of(pid);
    let followed = LogFollower::start();
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    let mut log = File::options().append(true).open(&file).unwrap();
    log.write_all(OOM.as_bytes()).unwrap();
    let reported = followed.wait_text("Tried to allocate");
    assert_eq!((reported.process, reported.excerpt.text.as_str()), (Some(key), OOM));
    assert_eq!(reported.excerpt.file.value().map(String::as_str), file.to_str());
}

/// A process that is not our child, killed when this is dropped.
struct KillOnDrop(u32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
}

#[test]
fn recycled_pid_output_is_not_attributed_to_the_old_process() {
    in_a_pid_namespace("logs::recycled");
}

#[test]
#[ignore = "runs in namespaces of its own"]
fn recycled() {
    if std::env::var_os("GPUTOP_TEST_INSIDE").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [first_log, second_log] = ["first.log", "second.log"].map(|name| dir.path().join(name));
    let into = |file: &Path| {
        let file = File::create(file).unwrap();
        echo_process(|command| {
            command.stdout(file).stderr(Stdio::null());
        })
    };
    let mut first = into(&first_log);
    let pid = first.0.id();
    let key = key_of(pid);
    let followed = LogFollower::start();
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    say(&mut first, "CUDA error: its own\n");
    followed.wait_text("its own");
    drop(first);
    let next = (0..1_000).find_map(|_| {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        Some(into(&second_log)).filter(|next| next.0.id() == pid)
    });
    let mut next = next.expect("another process with that PID");
    let other = key_of(pid);
    assert_ne!(other, key);
    // The first process's exit has not been reported yet.
    followed.logs.watch(&[key, other]);
    followed.wait_attached(other);
    say(&mut next, OOM);
    followed.wait_text("Tried to allocate");
    // Once a second, gputop checks whether another file has replaced a log.
    let begun = Instant::now();
    wait_until("two such looks", || {
        say(&mut next, "CUDA error: again\n");
        begun.elapsed() > Duration::from_millis(2_500)
    });
    followed.logs.exited(key);
    say(&mut next, "its last words\n");
    followed.logs.exited(other);
    followed.wait_text("its last words");
    for reported in followed.reported() {
        let is_own = reported.excerpt.text.contains("its own");
        let whose = (reported.process, reported.excerpt.writers.len());
        let expected = if is_own { key } else { other };
        assert_eq!(whose, (Some(expected), 0), "{:?}", reported.excerpt.why);
    }
    report_finished();
}

#[test]
fn the_log_of_a_process_in_a_container_is_read_from_outside() {
    // Its path does not exist outside the container.
    const INSIDE: &str = "mount -t tmpfs none /mnt; cd /mnt; exec cat > train.log 2>&1";
    if !has("unshare") {
        return;
    }
    let mut command = Command::new("unshare");
    command
        .args(["-U", "-r", "-m", "-p", "-f", "--mount-proc", "sh", "-c", INSIDE])
        .stdin(Stdio::piped())
        .stderr(Stdio::null());
    let mut outer = Guarded(command.spawn().unwrap());
    let children = format!("/proc/{0}/task/{0}/children", outer.0.id());
    let mut pid = None;
    wait_until("the program in it, or that there can be none", || {
        let listed = fs::read_to_string(&children).unwrap_or_default();
        pid = listed.split_whitespace().next().and_then(|pid| pid.parse().ok());
        let is_cat = |pid: u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "cat\n")
        };
        pid.is_some_and(is_cat) || outer.0.try_wait().unwrap().is_some()
    });
    let pid = pid.filter(|_| outer.0.try_wait().unwrap().is_none());
    available(pid.is_some(), "no namespaces can be made here");
    let Some(pid) = pid else { return };
    let _inner = KillOnDrop(pid);
    let key = key_of(pid);
    let followed = LogFollower::start();
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    assert!(!Path::new("/mnt/train.log").exists());
    say(&mut outer, OOM);
    let reported = followed.wait_text("Tried to allocate");
    assert_eq!((reported.process, reported.excerpt.text.as_str()), (Some(key), OOM));
    let name = reported.excerpt.file.value().map(String::as_str);
    assert_eq!(name, Some("/mnt/train.log"));
}

#[test]
fn the_dashboard_shows_the_log_and_takes_the_name_of_another() {
    if !is_host() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.log");
    let output = File::create(&file).unwrap();
    let write = |text: &str| (&output).write_all(text.as_bytes()).unwrap();
    let process = RealProcess::with("train.py", |command| {
        command.stderr(output.try_clone().unwrap());
    });
    let named = dir.path().join("app.host.log");
    fs::write(&named, "").unwrap();
    let fake = FakeNvml::h200s(1, &on_gpu(0, &process, ""));
    let terminal = dashboard(&fake).size(24, 80).start();
    terminal.wait_text("train.py");
    // From the GPU's row to the process's row.
    terminal.send("\t");
    terminal.send("L");
    terminal.wait_text("No output since gputop attached to the process");
    write("step 1\n");
    terminal.wait_text("step 1");
    for n in 2..60 {
        write(&format!("step {n}\n"));
    }
    write("RuntimeError: CUDA error: an illegal memory access was encountered\n");
    for n in 60..90 {
        write(&format!("step {n}\n"));
    }
    terminal.wait_text("step 89");
    assert!(!terminal.text().contains("CUDA error"));
    terminal.send("N");
    terminal.wait_text(">RuntimeError: CUDA error");
    terminal.wait_text("error 1 of 1  paused");
    write("step 90\n");
    terminal.send("G");
    terminal.wait_text("step 90");
    terminal.send("w");
    terminal.wait_text(&format!("log of {}:", process.pid()));
    terminal.send("/dev/zero\r");
    terminal.wait_text("it is a device, not a file");
    terminal.send("w");
    terminal.send(&format!("{}\r", named.display()));
    terminal.wait_text("app.host.log (named)");
    terminal.send("qqq");
    terminal.wait_exit();
}

//! The logs of real processes: found by themselves, followed, and told of.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use gputop::collect::logs::{self, Logs, Settings, Told};
use gputop::model::event::{LogExcerpt, LogOrigin, LogWhy, Observation};
use gputop::model::log::LogView;
use gputop::model::process::ProcessKey;
use gputop::model::units::{Bytes, Pid, StartTicks};
use gputop::source::wire::Line;

use crate::fake_nvml::FakeNvml;
use crate::machine::{Guarded, RealProcess, command, is_host, on_gpu, wait_until};

const OOM: &str = "Traceback (most recent call last):\n  File \"train.py\", line 57, in <module>\n    \
    loss.backward()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total \
    capacity of 23.69 GiB of which 1.06 GiB is free.\n";

/// The follower of logs, and what it told so far.
struct Followed {
    logs: Logs,
    told: Arc<Mutex<Vec<(Instant, Told)>>>,
}

impl Followed {
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn with(say: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::new(Path::new("/proc"));
        say(&mut settings);
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let logs = logs::start(settings, move |told| {
            heard.lock().unwrap().push((Instant::now(), told));
        });
        Self {
            logs: logs.unwrap(),
            told,
        }
    }

    fn view(&self, key: ProcessKey) -> LogView {
        let (sender, views) = mpsc::channel();
        self.logs.view(key, move |view| sender.send(view).unwrap());
        views.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    #[track_caller]
    fn wait_attached(&self, key: ProcessKey) {
        wait_until("the process to be attached to", || {
            self.view(key).is_attached
        });
    }

    fn told(&self) -> Vec<Told> {
        let told = self.told.lock().unwrap();
        told.iter().map(|(_, told)| told.clone()).collect()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, wanted: impl Fn(&Told) -> bool) -> Told {
        wait_until(what, || self.told().iter().any(&wanted));
        self.told().into_iter().find(wanted).unwrap()
    }

    #[track_caller]
    fn wait_text(&self, text: &str) -> Told {
        self.wait_for(text, |told| told.excerpt.text.contains(text))
    }
}

fn key_of(pid: u32) -> ProcessKey {
    let stat = procfs::process::Process::new(pid.try_into().unwrap())
        .and_then(|p| p.stat())
        .unwrap();
    ProcessKey {
        pid: Pid(pid),
        start: StartTicks(stat.starttime),
    }
}

/// A shell that says what it reads from its input, with its output where `say` puts it.
fn parrot(say: impl FnOnce(&mut Command)) -> Guarded {
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped());
    say(&mut command);
    Guarded(command.spawn().unwrap())
}

fn say(process: &mut Guarded, text: &str) {
    let mut input = process.0.stdin.as_ref().unwrap();
    input.write_all(text.as_bytes()).unwrap();
}

/// Waits until what was said before is in the file, so that what comes next is newer.
fn wait_size(file: &Path, size: usize) {
    let size = size as u64;
    wait_until("the log to grow", || {
        fs::metadata(file).unwrap().len() >= size
    });
}

/// A process whose output is this file, with one error in it that is older than the moment of attaching.
fn old_log(file: &Path) -> Guarded {
    fs::write(file, format!("{OOM}old\n")).unwrap();
    // A process's start is told in hundredths of a second.
    let born = fs::metadata(file).unwrap().created().unwrap();
    wait_until("the file to be older than the process", || {
        born.elapsed().is_ok_and(|age| age > Duration::from_millis(50))
    });
    let append = File::options().append(true).open(file).unwrap();
    let both = append.try_clone().unwrap();
    parrot(|command| {
        command.stdout(append).stderr(both);
    })
}

#[test]
fn an_error_in_the_file_behind_stdout_is_told_once_and_nothing_older() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.log");
    let mut process = old_log(&file);
    let key = key_of(process.0.id());
    let followed = Followed::start();
    followed.logs.watch(&[key]);
    followed.wait_attached(key);
    let before = fs::metadata(&file).unwrap().len();

    let said = Instant::now();
    say(&mut process, &format!("step 1\n{OOM}"));
    let told = followed.wait_text("Tried to allocate");
    assert!(
        said.elapsed() < Duration::from_millis(1_000),
        "{:?}",
        said.elapsed()
    );
    assert_eq!(told.process, Some(key));
    let excerpt = told.excerpt;
    assert_eq!(excerpt.text, format!("step 1\n{OOM}"));
    assert_eq!(excerpt.file.value().map(String::as_str), file.to_str());
    assert_eq!(excerpt.offset.get(), Some(Bytes(before)));
    assert_eq!(excerpt.first_line.get(), Some(6));
    assert_eq!(
        (excerpt.origin, excerpt.why),
        (LogOrigin::Descriptor, LogWhy::Matched)
    );
    assert!(!excerpt.sampled && !excerpt.continues && excerpt.writers.is_empty());

    // What it says last is told when it ends, and not what was told.
    say(&mut process, "its last words\n");
    wait_size(&file, before as usize + OOM.len() + 7 + 15);
    drop(process);
    followed.logs.ended(key);
    followed.wait_text("its last words");
    let all: String = followed
        .told()
        .iter()
        .map(|t| t.excerpt.text.clone())
        .collect();
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
        command(
            &fake,
            [
                "record",
                "-o",
                recording.to_str().unwrap(),
                "--interval",
                "200ms",
            ],
        )
        .stderr(Stdio::null())
        .spawn()
        .unwrap(),
    );
    let mut n = 0;
    wait_until("the event", || {
        // Until it is attached to, what is written is too old.
        n += 1;
        if n % 100 == 1 {
            (&output).write_all(OOM.as_bytes()).unwrap();
        }
        !excerpts(&recording).is_empty()
    });
    let (key, excerpt) = excerpts(&recording).remove(0);
    assert_eq!(key, Some(key_of(process.pid())));
    assert!(
        excerpt.text.contains("Tried to allocate 2.00 GiB"),
        "{excerpt:?}"
    );
    let _ = recorder.0.kill();
}

/// The excerpts in a recording that is still being written.
fn excerpts(recording: &Path) -> Vec<(Option<ProcessKey>, LogExcerpt)> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(recording) {
        // It ends in the middle of something.
        let _ = zstd::stream::Decoder::new(file).map(|mut d| d.read_to_end(&mut text));
    }
    let lines = text.split(|b| *b == b'\n');
    let events = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok()?.event);
    events
        .filter_map(|event| match event.observation {
            Observation::Log(excerpt) => Some((event.process, excerpt)),
            _ => None,
        })
        .collect()
}

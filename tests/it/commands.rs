//! Tests the subcommands as a shell or script uses them: output, exit code, and a one-line error message.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use gputop_model::event::Event;
use gputop_model::frame::Frame;
use gputop_model::protocol::{Line, Update};
use gputop_model::units::Bytes;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};

use crate::support::fake_machine::{
    Guarded, INTERVAL, RealProcess, command, is_host, on_gpu, run, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::shows;
use crate::support::terminal::Launch;

fn busy(process: &RealProcess, used: &str) -> String {
    let gpus = "[[gpu]]\nsm = 97\npower = 131400\n\
        [[gpu]]\nsm = 4294967295\nerrors = { power = \"no_permission\", temperature = \"not_supported\" }\n";
    gpus.to_owned() + &on_gpu(0, process, &format!("used = \"{used}\"\nsm = 90"))
}

#[test]
fn once_prints_every_gpu_and_process_as_a_table() {
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&busy(&process, "21.5 GiB"));
    let once = run(&fake, ["once"]);
    assert_eq!((once.code, once.err.as_str()), (Some(0), ""));
    let mut screen = vt100::Parser::new(40.try_into().unwrap(), 200.try_into().unwrap(), 0);
    screen.process(once.out.replace('\n', "\r\n").as_bytes());
    let screen = screen.screen();
    assert!(
        crate::support::screen_tables::gpu_shows(
            screen,
            "0",
            &[("USED", "22.1"), ("SM%", "97"), ("W", "131")]
        ),
        "{}",
        once.out
    );
    assert!(crate::support::screen_tables::gpu_shows(screen, "1", &[("SM%", "–"), ("W", "–")]));
    assert!(shows(screen, process.pid(), &[("VRAM", "21.5"), ("GPU", "0")]));
    // Piped output has no colours and no trailing spaces.
    assert!(!once.out.contains('\x1b'), "{:?}", once.out);
    assert!(once.out.lines().all(|line| line.trim_end() == line));
}

#[test]
fn once_as_json_holds_bytes_and_reasons() {
    let (known, hidden) = (RealProcess::start("a.py"), RealProcess::start("b.py"));
    let scenario = busy(&known, "21.5 GiB") + &on_gpu(1, &hidden, "used = \"unavailable\"");
    let fake = FakeNvml::new(&scenario);
    let once = run(&fake, ["once", "--json"]);
    assert_eq!((once.code, once.err.as_str()), (Some(0), ""));
    let json: Value = serde_json::from_str(&once.out).unwrap();
    assert_eq!(json["schema"], 1);
    for text in ["host_name", "boot_id"] {
        assert!(json[text].as_str().is_some_and(|text| !text.is_empty()));
    }
    let gpus = json["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 2);
    let gib = 1_u64 << 30;
    let total = 143_771_u64 << 20;
    assert_eq!(gpus[0]["memory"]["used_bytes"], 43 * gib / 2);
    assert_eq!(gpus[0]["memory"]["total_bytes"], total);
    assert_eq!(gpus[0]["memory"]["reserved_bytes"], 616_u64 << 20);
    assert_eq!(gpus[0]["power_mw"], 131_400);
    assert_eq!(gpus[0]["sm"].as_f64(), Some(97.0));
    assert_eq!(gpus[0]["processes"][0]["pid"], known.pid());
    assert_eq!(gpus[0]["processes"][0]["vram_bytes"], 43 * gib / 2);
    // A missing value is replaced by the reason, with a hint if there is one.
    assert_eq!(gpus[1]["sm"], json!({"missing": "implausible"}));
    assert_eq!(gpus[1]["temperature_c"], json!({"missing": "unsupported"}));
    assert_eq!(
        gpus[1]["power_mw"],
        json!({"missing": "denied", "hint": "the driver requires root for this value"})
    );
    let vram = &gpus[1]["processes"][0]["vram_bytes"];
    assert_eq!(vram["missing"], "unsupported");
    assert!(vram["hint"].is_string());
    // The output is a frame, so programs that read recordings can read it.
    let frame: Frame = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(frame.gpus[0].memory.used, Bytes(43 * gib / 2).into());
    if is_host() {
        let processes = json["processes"]["list"].as_array().unwrap();
        let commands: Vec<_> = processes.iter().map(|p| &p["command"]).collect();
        assert!(commands.contains(&&json!("a.py")), "{commands:?}");
    }
}

#[test]
fn closed_stdout_is_an_error() {
    let fake = FakeNvml::new("[[gpu]]\n");
    let snapshot = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crates/allocator/tests/data/snapshots/torch-2.15/list.pickle"
    );
    for args in [
        "once",
        "once --json",
        "once --csv",
        "line",
        "doctor",
        "cards",
        "config print",
        "generate man",
        "generate markdown",
        "incidents --json",
        &format!("snapshot {snapshot}"),
        &format!("snapshot --json {snapshot}"),
    ] {
        let mut shell = Command::new("sh");
        let gputop = env!("CARGO_BIN_EXE_gputop");
        shell.args(["-c", &format!("exec {gputop} {args} >&-")]);
        shell.envs(fake.env()).env("XDG_CONFIG_HOME", "/dev/null");
        let output = shell.env("XDG_STATE_HOME", crate::support::fake_machine::STATE).output();
        let output = output.unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {message}");
        let sentence =
            "gputop: cannot print: standard output is closed. Redirect it to a file or /dev/null\n";
        assert!(message.ends_with(sentence), "{args}: {message}");
    }
    // Discarding the output is not an error.
    let discarded = command(&fake, ["once"]).stdout(Stdio::null()).status();
    assert_eq!(discarded.unwrap().code(), Some(0));
}

/// Parses CSV strictly by RFC 4180, and panics on violations.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let mut lines = vec![vec![String::new()]];
    let mut letters = text.chars().peekable();
    let mut quoted = false;
    while let Some(letter) = letters.next() {
        let line = lines.last_mut().unwrap();
        let field = line.last_mut().unwrap();
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' => {
                assert_eq!(field, "", "a quote inside a field without quotes");
                quoted = true;
            }
            ',' if !quoted => line.push(String::new()),
            '\n' if !quoted => lines.push(vec![String::new()]),
            letter => field.push(letter),
        }
    }
    assert!(!quoted);
    assert_eq!(lines.pop(), Some(vec![String::new()]), "no line end");
    lines
}

#[test]
fn once_as_csv_parses_whatever_a_command_line_holds() {
    if !is_host() {
        return;
    }
    let names = ["a,b \"quoted\" c.py", "=HYPERLINK(1)", "two\nlines", "-2+3"];
    let processes = names.map(RealProcess::start);
    let gpus = "[[gpu]]\nsm = 97\n[[gpu]]\nerrors = { power = \"not_supported\" }\n";
    let scenario = processes
        .iter()
        .fold(gpus.to_owned(), |text, process| text + &on_gpu(0, process, "used = \"1 GiB\""));
    let fake = FakeNvml::new(&scenario);
    let once = run(&fake, ["once", "--csv"]);
    assert_eq!((once.code, once.err.as_str()), (Some(0), ""));
    let lines = parse_csv(&once.out);
    let heading = &lines[0];
    assert!(lines.iter().all(|line| line.len() == heading.len()));
    let field = |line: usize, name: &str| {
        let at = heading.iter().position(|title| title == name).unwrap();
        lines[line][at].as_str()
    };
    assert_eq!(lines.len(), 1 + processes.len() + 1);
    let mut pids: Vec<u32> = processes.iter().map(RealProcess::pid).collect();
    pids.sort_unstable();
    for (i, pid) in pids.iter().enumerate() {
        assert_eq!(field(i + 1, "pid"), pid.to_string());
        assert_eq!(field(i + 1, "process_memory_bytes"), "1073741824");
        assert_eq!(field(i + 1, "gpu_index"), "0");
        let which = processes.iter().position(|p| p.pid() == *pid).unwrap();
        // A spreadsheet must not run a process name as a formula.
        let shown = ["a,b \"quoted\" c.py", "'=HYPERLINK(1)", "two^Jlines", "'-2+3"];
        assert_eq!(field(i + 1, "command"), shown[which]);
    }
    // A GPU without processes has its own row, in which missing values are empty.
    let last = lines.len() - 1;
    for (name, value) in
        [("gpu_index", "1"), ("pid", ""), ("power_milliwatts", ""), ("temperature_celsius", "31")]
    {
        assert_eq!(field(last, name), value, "{name}");
    }
}

#[test]
fn once_without_driver_prints_the_reason_and_exits_1() {
    let fake = FakeNvml::new("[driver]\ninit = \"mismatch\"");
    let why = "Driver and library do not match";
    for args in [&["once"][..], &["once", "--csv"]] {
        let once = run(&fake, args);
        assert_eq!((once.code, once.out.as_str()), (Some(1), ""), "{once:?}");
        assert!(once.err.starts_with(&format!("gputop: {why}")), "{once:?}");
        for next in ["`gputop doctor`", "`gputop demo`", "`gputop HOST`"] {
            assert!(once.err.contains(next), "{once:?}");
        }
        assert_eq!(once.err.lines().count(), 1);
    }
    // The JSON output contains the reason too.
    let once = run(&fake, ["once", "--json"]);
    assert_eq!(once.code, Some(1));
    let json: Value = serde_json::from_str(&once.out).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["driver"]["gpus"]["missing"], "unsupported");
    let hint = json["driver"]["gpus"]["hint"].as_str().unwrap();
    assert!(hint.starts_with(why), "{hint}");
}

#[test]
fn broken_pipe_is_success() {
    let fake = FakeNvml::h200s(1, "");
    for args in
        [&["once"][..], &["once", "--json"], &["once", "--csv"], &["doctor"], &["doctor", "--json"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&fake, args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?} {output:?}");
        assert_eq!(output.stderr, b"", "{args:?}");
    }
    let line = format!("{} once --json | head -1", env!("CARGO_BIN_EXE_gputop"));
    let output = Command::new("sh").args(["-c", &line]).envs(fake.env()).output().unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"{\n"[..], &b""[..]));
}

/// Returns the complete lines of a recording, which may be truncated.
pub fn recorded(file: &Path) -> Vec<Update> {
    let bytes = fs::read(file).unwrap_or_default();
    let mut text = Vec::new();
    if let Ok(mut decoder) = zstd::stream::read::Decoder::new(&bytes[..]) {
        let _ = decoder.read_to_end(&mut text);
    }
    let text = String::from_utf8(text).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(|line| Line::read(line.as_bytes()).unwrap());
    lines.filter_map(|line| line.update().unwrap()).collect()
}

/// The frames of a recording.
pub fn frames(file: &Path) -> Vec<Arc<Frame>> {
    let frames = recorded(file).into_iter().filter_map(|update| match update {
        Update::Frame(frame) => Some(frame),
        _ => None,
    });
    frames.collect()
}

/// The events of a recording.
pub fn events(file: &Path) -> Vec<Event> {
    let events = recorded(file).into_iter().filter_map(|update| match update {
        Update::Event(event) => Some(event),
        _ => None,
    });
    events.collect()
}

#[test]
fn record_stops_after_its_time_and_says_what_it_wrote() {
    let fake = FakeNvml::h200s(2, "");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.gpt.zst");
    let args = ["record", "--for", "3s", "-i", INTERVAL, "-o"].map(Into::into);
    let record = run(&fake, args.iter().chain([&file.clone().into_os_string()]));
    assert_eq!((record.code, record.out.as_str()), (Some(0), ""), "{record:?}");
    let frames = frames(&file);
    let begin = format!("gputop: recorded {} frames to {} (", frames.len(), file.display());
    assert!(record.err.starts_with(&begin), "{record:?}");
    assert_eq!(record.err.lines().count(), 1);
    assert!(frames.len() >= 5, "{} frames in 3 s", frames.len());
    assert!(frames.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq));
    // Without -o, the file name contains the host and the time.
    let record =
        command(&fake, ["record", "--for", "1s"]).current_dir(folder.path()).output().unwrap();
    assert!(record.status.success(), "{record:?}");
    let names: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let made = |name: &&String| name.starts_with("gputop-") && name.ends_with(".gpt.zst");
    assert_eq!(names.iter().filter(made).count(), 1, "{names:?}");
}

#[test]
fn interrupted_recording_is_complete() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let file = folder.path().join(format!("{signal}.gpt.zst"));
        let mut record = start_recording(&fake, &file);
        wait_until("three frames", || frames(&file).len() >= 3);
        self::signal(&record, signal);
        let status = record.0.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{signal}");
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.ends_with(b"gputopIX"), "{signal}: no index");
    }
}

fn start_recording(fake: &FakeNvml, file: &Path) -> Guarded {
    let mut record = command(fake, ["record", "-i", INTERVAL, "-o"]);
    record.arg(file).stderr(Stdio::null());
    Guarded(record.spawn().unwrap())
}

#[test]
fn a_recording_that_was_killed_plays_to_its_last_whole_second() {
    let process = RealProcess::start("train.py");
    let scenario = |used: &str| {
        "[[gpu]]\nsm = 10\n".to_owned() + &on_gpu(0, &process, &format!("used = \"{used}\""))
    };
    let fake = FakeNvml::new(&scenario("1 GiB"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("killed.gpt.zst");
    let mut record = start_recording(&fake, &file);
    let newest = || frames(&file).pop();
    let vram = |frame: Arc<Frame>| frame.gpus[0].processes.value()?.first()?.vram.get();
    wait_until("the first size", || newest().and_then(vram) == Some(Bytes::gib(1)));
    fake.replace(&scenario("7 GiB"));
    wait_until("the second size", || newest().and_then(vram) == Some(Bytes::gib(7)));
    record.0.kill().unwrap();
    record.0.wait().unwrap();
    let last = newest().unwrap();
    let clock = jiff::Timestamp::from_millisecond(last.time.0).unwrap();
    let clock = clock.strftime("%H:%M:%S").to_string();

    let terminal = Launch::gputop()
        .args(["replay", "--speed", "64"])
        .args([&file])
        .env("TZ", "UTC")
        .size(40, 120)
        .start();
    terminal.wait_text("REPLAY killed.gpt.zst");
    terminal.wait_text("at end");
    terminal.wait_text(&clock);
    terminal.wait_for(|s| shows(s, process.pid(), &[("VRAM", "7.0")]), "7 GiB");
    // Home jumps to the first second, and 0 returns.
    terminal.send("\x1b[H");
    terminal.wait_for(|s| shows(s, process.pid(), &[("VRAM", "1.0")]), "1 GiB");
    terminal.send("0");
    terminal.wait_for(|s| shows(s, process.pid(), &[("VRAM", "7.0")]), "7 GiB again");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn record_does_not_overwrite_foreign_files() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    let name = file.display();
    let record = |more: &[&str]| {
        let args = ["record", "--for", "1s", "-o", file.to_str().unwrap()];
        run(&fake, args.iter().chain(more))
    };
    fs::write(&file, "dear diary").unwrap();
    let foreign =
        format!("{name} already exists and is not a gputop recording. Choose another name");
    record(&[]).assert_refused(2, &foreign);
    record(&["--force"]).assert_refused(2, &foreign);
    assert_eq!(fs::read(&file).unwrap(), b"dear diary");

    fs::remove_file(&file).unwrap();
    assert_eq!(record(&[]).code, Some(0));
    let before = fs::read(&file).unwrap();
    let again = format!(
        "{name} already exists and is a recording. Choose another name, or use --force to replace it"
    );
    record(&[]).assert_refused(2, &again);
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(record(&["--force"]).code, Some(0));
    assert_ne!(fs::read(&file).unwrap(), before);

    let nowhere = run(&fake, ["record", "-o", "/nowhere/at/all.gpt.zst"]);
    assert_eq!(nowhere.code, Some(2));
    assert!(
        nowhere.err.starts_with("gputop: cannot create the recording /nowhere/at/all.gpt.zst: ")
            && nowhere.err.lines().count() == 1,
        "{nowhere:?}"
    );
}

#[test]
fn a_second_recorder_names_the_process_that_records_the_file() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.gpt.zst");
    let mut first = start_recording(&fake, &file);
    let count = || frames(&file).len();
    wait_until("the first frame", || count() > 0);
    let sentence = format!(
        "cannot record to {}: process {} is recording to it. Stop that process, or choose another name",
        file.display(),
        first.0.id()
    );
    let link = folder.path().join("link.gpt.zst");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let sentence = sentence.replace(file.to_str().unwrap(), path.to_str().unwrap());
        for more in [&[][..], &["--force"]] {
            let args = ["record", "--for", "1s", "-o", path.to_str().unwrap()];
            run(&fake, args.iter().chain(more)).assert_refused(2, &sentence);
        }
    }
    let before = count();
    wait_until("another frame", || count() > before);
    signal(&first, Signal::SIGINT);
    assert_eq!(first.0.wait().unwrap().code(), Some(0));
    assert!(fs::read(&file).unwrap().ends_with(b"gputopIX"));
    // A recorder that was killed holds no lock.
    let mut killed = start_recording(&fake, &folder.path().join("b.gpt.zst"));
    wait_until("its file", || folder.path().join("b.gpt.zst").exists());
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let args = ["record", "--force", "--for", "1s", "-o"].map(Into::into);
    let again = run(&fake, args.into_iter().chain([folder.path().join("b.gpt.zst")]));
    assert_eq!(again.code, Some(0), "{again:?}");
}

#[test]
fn a_recording_changed_by_another_program_is_reported() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    type Change = fn(&Path);
    // The first three are noticed at once.
    let changes: [(&str, bool, Change); 5] = [
        ("deleted", true, |file| fs::remove_file(file).unwrap()),
        ("truncated", true, |file| fs::write(file, "").unwrap()),
        ("overwritten", true, |file| fs::write(file, "x".repeat(1 << 20)).unwrap()),
        ("moved", false, |file| fs::rename(file, file.with_extension("old")).unwrap()),
        ("replaced", false, |file| {
            fs::hard_link(file, file.with_extension("old")).unwrap();
            fs::write(file.with_extension("new"), "mine").unwrap();
            fs::rename(file.with_extension("new"), file).unwrap();
        }),
    ];
    for (name, is_noticed_at_once, change) in changes {
        let file = folder.path().join(format!("{name}.gpt.zst"));
        let mut record = command(&fake, ["record", "-i", INTERVAL, "-o"]);
        let mut record = Guarded(record.arg(&file).stderr(Stdio::piped()).spawn().unwrap());
        wait_until("the first frame", || !frames(&file).is_empty());
        change(&file);
        if !is_noticed_at_once {
            signal(&record, Signal::SIGTERM);
        }
        let mut status = None;
        wait_until("the end of the recording", || {
            status = record.0.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(2), "{name}");
        let mut message = String::new();
        record.0.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        let start = format!("gputop: {} was ", file.display());
        assert!(message.starts_with(&start) && message.contains(name), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        // The file of the other program stays, and the moved recording is complete.
        assert_eq!(file.exists(), !["deleted", "moved"].contains(&name));
        if !is_noticed_at_once {
            let moved = fs::read(file.with_extension("old")).unwrap();
            assert!(moved.ends_with(b"gputopIX"), "{name}");
        }
    }
}

#[test]
fn record_writes_to_pipes_with_a_reader_and_to_no_device() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let record = |path: &Path| {
        let path = path.to_str().unwrap();
        run(&fake, ["record", "--force", "--for", "1s", "-i", INTERVAL, "-o", path])
    };
    let sentence = format!(
        "cannot record to {}: no program reads this pipe. Start its reader first, or choose a file",
        fifo.display()
    );
    record(&fifo).assert_refused(2, &sentence);
    let mut options = fs::File::options();
    let mut reader = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&fifo).unwrap();
    assert_eq!(record(&fifo).code, Some(0));
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert!(bytes.ends_with(b"gputopIX") && fifo.exists());
    let device = "cannot record to /dev/zero: it is a device. Choose a file, or a pipe that another program reads";
    record(Path::new("/dev/zero")).assert_refused(2, device);
    assert_eq!(record(Path::new("/dev/null")).code, Some(0));
    let args = ["record", "--for", "1s", "-i", INTERVAL, "-o", "/dev/stdout"];
    let piped = command(&fake, args).output().unwrap();
    assert!(piped.status.success() && piped.stdout.ends_with(b"gputopIX"), "{piped:?}");
    let file = folder.path().join("stdout.gpt.zst");
    let status = command(&fake, args).stdout(fs::File::create(&file).unwrap()).status().unwrap();
    assert!(status.success() && !frames(&file).is_empty());
}

fn signal(process: &Guarded, signal: Signal) {
    kill(Pid::from_raw(process.0.id().cast_signed()), signal).unwrap();
}

#[test]
fn replay_of_another_file_prints_one_sentence() {
    let fake = FakeNvml::h200s(1, "");
    let folder = tempfile::tempdir().unwrap();
    let zstd = zstd::stream::encode_all(&b"{\"frame\":{}}\n"[..], 3).unwrap();
    let garbage: Vec<u8> = (0..100_000_u32).map(|i| ((i * 7_919) >> 3) as u8 | 0x80).collect();
    let files: [(&str, &[u8], &str); 5] = [
        ("empty", b"", "is empty, so there is nothing to play"),
        (
            "train.log",
            b"Traceback (most recent call last)",
            "is not a gputop recording: it starts with \u{201c}Tracebac\u{201d}. Record one with `gputop record`",
        ),
        (
            "other.zst",
            &zstd,
            "is not a gputop recording: it starts with zstd data without a gputop header. Record one with `gputop record`",
        ),
        ("garbage", &garbage, "is not a gputop recording: it starts with "),
        (
            "header",
            b"\x50\x2a\x4d\x18\xff\xff\xff\xff",
            "is not a gputop recording: it starts with a damaged header",
        ),
    ];
    for (name, bytes, why) in files {
        let file = folder.path().join(name);
        fs::write(&file, bytes).unwrap();
        let replay = run(&fake, ["replay".as_ref(), file.as_os_str()]);
        assert_eq!((replay.code, replay.out.as_str()), (Some(2), ""), "{replay:?}");
        let sentence = format!("gputop: {} {why}", file.display());
        assert!(replay.err.starts_with(&sentence), "{replay:?}");
        assert_eq!(replay.err.lines().count(), 1, "{replay:?}");
    }
    let file = folder.path().join("nothing.gpt.zst");
    let replay = run(&fake, ["replay".as_ref(), file.as_os_str()]);
    assert_eq!(replay.code, Some(2));
    let sentence = format!("gputop: cannot read the recording {}: ", file.display());
    assert!(replay.err.starts_with(&sentence), "{replay:?}");
    assert_eq!(replay.err.lines().count(), 1, "{replay:?}");
}

#[test]
fn replay_refuses_unknown_speeds() {
    let fake = FakeNvml::h200s(1, "");
    for speed in ["0", "0.1", "65", "-1", "NaN", "inf"] {
        let replay = run(&fake, ["replay", "x.gpt.zst", &format!("--speed={speed}")]);
        assert_eq!(replay.code, Some(2), "{replay:?}");
        assert!(replay.err.contains("out of range; use 0.125 to 64"), "{replay:?}");
    }
}

#[test]
fn demo_plays_the_built_in_recording() {
    let terminal = Launch::gputop().args(["demo"]).size(40, 120).start();
    terminal.wait_text("REPLAY demo 2:2");
    // It opens on two busy GPUs and an incident, with the key that explains it.
    terminal.wait_text("FRAGMENTED MEMORY");
    terminal.wait_text("d explain");
    terminal.wait_text("GPU 1 VRAM used");
    terminal.send(" ");
    terminal.wait_text("paused");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
    let fake = FakeNvml::h200s(1, "");
    run(&fake, ["demo"]).assert_refused(
        2,
        "cannot play the built-in recording: stdout is not a terminal. Run `gputop demo` in a terminal",
    );
}

#[test]
fn the_tour_of_the_demo_has_seven_stops() {
    let terminal = Launch::gputop().args(["demo", "--tour"]).size(40, 120).start();
    let keys = ["d", "1", "\x1b", "v", "\t", "M", "?"];
    // The incidents of the recording arrive after the first frame.
    terminal.wait_text("i incidents");
    for (at, key) in (1..).zip(keys) {
        terminal.wait_text(&format!("{at}/7  "));
        if at == 3 {
            const HELP: &str = "Help: ";
            // Esc that only closes the help does not complete the stop.
            terminal.send("?");
            terminal.wait_text(HELP);
            terminal.send("\x1b");
            terminal.wait_for(|screen| !screen.contents().contains(HELP), "help closed");
            terminal.wait_text("3/7  ");
        }
        terminal.send(key);
    }
    terminal.wait_text("End of the tour");
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

#[test]
fn once_watch_prints_a_report_at_each_interval() {
    let fake = FakeNvml::h200s(2, "");
    let mut child = command(&fake, ["once", "--watch", "--interval", "100ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Two reports, each with a line for the time and for both GPUs, and an empty line.
    let lines: Vec<String> = lines.take(8).collect::<Result<_, _>>().unwrap();
    // It ends because nothing reads its reports any more.
    assert!(child.wait().unwrap().success());
    for report in lines.chunks(4) {
        assert!(report[0].ends_with(": 2 GPUs, 0 processes on GPUs."), "{report:?}");
        assert!(report[1].starts_with("GPU 0: "), "{report:?}");
        assert!(report[2].contains(" used, "), "{report:?}");
        assert_eq!(report[3], "");
    }
}

#[test]
fn doctor_says_what_works_and_what_each_call_costs() {
    let fake = FakeNvml::h200s(3, "");
    let doctor = run(&fake, ["doctor", "--json"]);
    assert_eq!((doctor.code, doctor.err.as_str()), (Some(0), ""));
    let json: Value = serde_json::from_str(&doctor.out).unwrap();
    assert_eq!(json["schema"], 1);
    let checks = json["checks"].as_array().unwrap();
    assert_eq!(checks[0]["name"], "NVIDIA driver");
    assert_eq!(checks[0]["works"], true);
    let found = checks[0]["found"].as_str().unwrap();
    assert!(found.starts_with("version 580.159.03, 3 GPUs, answered in "), "{found}");
    // The output is not a terminal, which is no fault.
    assert!(checks.iter().all(|check| check["name"] != "terminal"));
    for name in ["colours", "characters", "clipboard (y)"] {
        let check = checks.iter().find(|check| check["name"] == name);
        assert!(check.is_some_and(|check| check["found"].is_string()), "{name}");
    }
    for call in json["schedule"].as_array().unwrap() {
        assert!(call["name"].is_string() && call["when"].is_string());
        assert!(call["microseconds"].is_u64(), "{call}");
    }

    let text = run(&fake, ["doctor"]);
    assert_eq!((text.code, text.err.as_str()), (Some(0), ""));
    assert!(text.out.contains("\nok   NVIDIA driver "), "{}", text.out);
    assert!(text.out.contains("while the GPU's screen is open"), "{}", text.out);
}

#[test]
fn doctor_without_a_driver_says_what_would_help() {
    let fake = FakeNvml::new("[driver]\ninit = \"mismatch\"");
    let doctor = run(&fake, ["doctor", "--json"]);
    assert_eq!((doctor.code, doctor.err.as_str()), (Some(1), ""));
    let json: Value = serde_json::from_str(&doctor.out).unwrap();
    let driver = &json["checks"][0];
    assert_eq!(driver["works"], false);
    let found = driver["found"].as_str().unwrap();
    assert!(found.starts_with("Driver and library do not match"), "{found}");
    let fix = driver["fix"].as_array().unwrap();
    assert!(!fix.is_empty());
    let text = run(&fake, ["doctor"]);
    assert_eq!(text.code, Some(1));
    let words: Vec<&str> = text.out.split_whitespace().collect();
    assert!(words.join(" ").contains(&format!("NO NVIDIA driver {found}")), "{}", text.out);
    assert!(text.out.lines().all(|line| line.chars().count() <= 100), "{}", text.out);
    for line in fix {
        assert!(text.out.contains(line.as_str().unwrap()), "{}", text.out);
    }
}

#[test]
fn a_failed_recording_leaves_no_file() {
    let fake = FakeNvml::new("[driver]\ninit = \"mismatch\"");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.gpt.zst");
    for _ in 0..2 {
        let record = run(&fake, ["record", "-o", file.to_str().unwrap()]);
        assert_eq!(record.code, Some(2));
        assert!(record.err.contains("cannot record: "), "{}", record.err);
        assert!(!file.exists());
    }
}

#[test]
fn unknown_subcommand_gets_a_helpful_hint() {
    let fake = FakeNvml::h200s(1, "");
    for (typo, meant) in [
        ("recrod", "record"),
        ("reply", "replay"),
        ("ones", "once"),
        ("docter", "doctor"),
        ("dmeo", "demo"),
    ] {
        run(&fake, [typo]).assert_refused(
            2,
            &format!("unknown subcommand `{typo}`; did you mean `{meant}`? For a host of that name: `gputop -- {typo}`"),
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.gpt.zst");
    fs::write(&file, "x").unwrap();
    let name = file.to_str().unwrap();
    let hint =
        format!("`{name}` is a file, not a host. To play a recording: `gputop replay {name}`");
    run(&fake, [name]).assert_refused(2, &hint);
    run(&fake, ["record", name]).assert_refused(2, &hint);
    let log = folder.path().join("crash.log");
    fs::write(&log, "x").unwrap();
    let name = log.to_str().unwrap();
    let hint = format!("`{name}` is a file, not a host. To explain a log: `gputop explain {name}`");
    run(&fake, [name]).assert_refused(2, &hint);
    for (word, sentence) in [
        ("me@", "`me@` is not a valid host: use [user@]host[:port]"),
        ("node7:ssh", "`ssh` is not a valid port: use a number from 1 to 65535"),
    ] {
        run(&fake, [word]).assert_refused(2, sentence);
    }
}

#[test]
fn impossible_interval_is_refused() {
    let fake = FakeNvml::h200s(1, "");
    for interval in ["0s", "5ms", "2h", "soon", "0.05"] {
        for args in [&["-i", interval][..], &["record", "-i", interval]] {
            let refused = run(&fake, args);
            assert_eq!(refused.code, Some(2), "{refused:?}");
            assert!(refused.err.contains(interval), "{refused:?}");
        }
    }
    assert_eq!(run(&fake, ["once", "--json", "--csv"]).code, Some(2));
}

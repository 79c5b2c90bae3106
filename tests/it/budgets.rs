//! Budgets for any input of N bytes: at most 64 MiB + 20 N of memory, and at most 1 s + N / (5 MB/s).
//!
//! N is the size of the file or the number of bytes received; for compressed data it is the compressed size. Memory is `RssAnon`,
//! because the code of a debug build alone is as large as the budget. Times are multiplied by [`SLOWNESS`].
#![allow(clippy::print_stdout)]

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gputop::dashboard::filter::Filter;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Request, RequestLine};
use gputop_model::signal::Signal;
use gputop_peek::memory::dump::Dump;
use zstd::stream::Encoder;
use zstd::stream::raw::CParameter;

use crate::incidents::User;
use crate::support::fake_machine::{Guarded, dashboard, gputop};
use crate::support::fake_nvml::FakeNvml;
use crate::support::replay_client::minute_of;
use crate::support::terminal::{Launch, Terminal};

const MIB: u64 = 1 << 20;
/// Factor for a debug build, and for a busy machine.
const SLOWNESS: u32 = if cfg!(debug_assertions) { 20 } else { 3 };

fn max_memory(size: usize) -> u64 {
    64 * MIB + 20 * size as u64
}

fn max_time(size: usize) -> Duration {
    (Duration::from_secs(1) + Duration::from_secs_f64(size as f64 / 5e6)) * SLOWNESS
}

/// Samples the memory of a process every millisecond and keeps the maximum.
struct Watched {
    peak: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    start: Instant,
}

impl Watched {
    fn start(pid: u32) -> Self {
        let watched = Self { peak: Arc::default(), is_over: Arc::default(), start: Instant::now() };
        let (peak, is_over) = (Arc::clone(&watched.peak), Arc::clone(&watched.is_over));
        thread::spawn(move || {
            // Between fork and exec the child still has the memory of this test.
            let own = fs::read_link("/proc/self/exe").ok();
            while fs::read_link(format!("/proc/{pid}/exe")).ok() == own {
                thread::yield_now();
            }
            while let Some(bytes) = anonymous(pid)
                && !is_over.load(Ordering::Relaxed)
            {
                peak.fetch_max(bytes, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        watched
    }

    /// Asserts only the limit on memory.
    #[track_caller]
    fn assert_below(&self, name: &str, max: u64) {
        self.is_over.store(true, Ordering::Relaxed);
        let (peak, took) = (self.peak.load(Ordering::Relaxed), self.start.elapsed());
        println!("{name}: {} MiB in {took:.1?}", peak / MIB);
        assert!(peak > 0, "{name}: nothing was measured");
        assert!(peak <= max, "{name}: {} MiB", peak / MIB);
    }

    #[track_caller]
    fn assert_within(&self, name: &str, size: usize) {
        self.is_over.store(true, Ordering::Relaxed);
        let (peak, took) = (self.peak.load(Ordering::Relaxed), self.start.elapsed());
        println!("{name}: {size} bytes took {} MiB and {took:.1?}", peak / MIB);
        // A process of a few milliseconds can exit between two samples.
        let is_short = took < Duration::from_millis(20);
        assert!(peak > 0 || is_short, "{name}: nothing was measured");
        assert!(peak <= max_memory(size), "{name}: {size} bytes took {} MiB", peak / MIB);
        assert!(took <= max_time(size), "{name}: {size} bytes took {took:.1?}");
    }
}

/// Returns the anonymous memory of a process, or `None` once it has exited. During its exec, the kernel reports no memory.
fn anonymous(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = |name| status.lines().find_map(|line| line.strip_prefix(name));
    if value("State:").is_none_or(|state| state.trim_start().starts_with(['Z', 'X'])) {
        return None;
    }
    let kib =
        value("RssAnon:").and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Some(kib.unwrap_or(0) << 10)
}

/// Runs a subcommand to its end and returns its standard error.
#[track_caller]
fn assert_command(name: &str, size: usize, command: &mut Command) -> String {
    let message = tempfile::NamedTempFile::new().unwrap();
    command.stdout(Stdio::null()).stderr(message.reopen().unwrap());
    let mut child = Guarded(command.spawn().unwrap());
    let watched = Watched::start(child.0.id());
    let status = child.0.wait().unwrap();
    watched.assert_within(name, size);
    let message = fs::read_to_string(message.path()).unwrap();
    // Not killed by a signal, and no panic.
    assert!(status.code().is_some_and(|code| code <= 2), "{name}: {status}: {message}");
    message
}

fn repeated(piece: &str, count: usize) -> String {
    let mut text = piece.repeat(count);
    text.truncate(text.len().saturating_sub(1));
    text
}

/// Returns named stream lines that are small when compressed.
fn hostile_lines() -> Vec<(&'static str, String)> {
    let frame = |inside: &str| format!("{{\"frame\":{{\"seq\":2,\"mono\":2,{inside}}}}}\n");
    let gpus = |count: usize| {
        let gpu =
            |n| format!("{{\"index\":{n},\"uuid\":\"GPU-{n}\",\"sm\":50,\"power\":4294967295}},");
        repeated(&(0..count).map(gpu).collect::<String>(), 1)
    };
    let process = |n| format!("{{\"key\":{{\"pid\":{n},\"start\":1}},\"command\":\"a\"}},");
    let processes: String = (1..5_000).map(process).collect();
    let many = 5_000_000;
    vec![
        ("GPUs", frame(&format!("\"gpus\":[{}]", repeated("{},", many)))),
        ("processes", frame(&format!("\"processes\":{{\"list\":[{}]}}", repeated("{},", many)))),
        ("pools", frame(&format!("\"pools\":{{\"list\":[{}]}}", repeated("{},", many)))),
        (
            "processes of a GPU",
            frame(&format!("\"gpus\":[{{\"processes\":[{}]}}]", repeated("{},", many))),
        ),
        (
            "an unknown shape in a reading",
            frame(&format!("\"gpus\":[{{\"sm\":{{\"hint\":[{}]}}}}]", repeated("[],", many))),
        ),
        (
            "blocks of a map",
            format!("{{\"map\":{{\"segments\":[{{\"blocks\":[{}]}}]}}}}\n", repeated("{},", many)),
        ),
        (
            "threads of a stack",
            format!("{{\"stack\":{{\"threads\":[{}]}}}}\n", repeated("{},", many)),
        ),
        (
            "groups of a reading of holders",
            format!("{{\"holder_reading\":{{\"groups\":[{}]}}}}\n", repeated("{},", many)),
        ),
        ("readings of many holders of many processes", holder_readings()),
        ("deep nesting", format!("{{\"later\":{}\n", "[".repeat(3 * many))),
        ("deep nesting of objects", frame(&format!("\"gpus\":{}", "[{\"mig\":".repeat(many / 3)))),
        (
            "a name of 15 MB",
            frame(&format!("\"gpus\":[{{\"name\":\"{}\"}}]", "x".repeat(15_000_000))),
        ),
        (
            "a name that is written out",
            frame(&format!("\"gpus\":[{{\"name\":\"{}\"}}]", "\u{ad}".repeat(3_000_000))),
        ),
        ("a line of 100 MB", format!("{}\n", " ".repeat(100_000_000))),
        ("many GPUs in many frames", frame(&format!("\"gpus\":[{}]", gpus(250))).repeat(300)),
        (
            "many processes in many frames",
            frame(&format!("\"processes\":{{\"list\":[{}]}}", repeated(&processes, 1))).repeat(30),
        ),
        ("events", "{\"event\":{}}\n".repeat(5_000)),
        ("hellos", {
            let kernel = "x".repeat(100_000);
            let hello =
                |n| format!("{{\"hello\":{{\"boot_id\":\"{n}\",\"kernel\":\"{kernel}\"}}}}\n");
            (0..1_000).map(hello).collect()
        }),
        ("large log excerpts", events("\"kind\":\"log\",\"text\"", 2_000_000)),
        ("large Xids", events("\"kind\":\"xid\",\"text\"", 2_000_000)),
        ("large exits", events("\"kind\":\"exit\",\"later\"", 2_000_000)),
    ]
}

/// Returns readings of two hundred processes, in which each name has the maximum length.
fn holder_readings() -> String {
    let name = "x".repeat(196);
    let group = |n| format!("{{\"name\":\"{name}{n:04}\",\"bytes\":{n}}},");
    let groups = repeated(&(0..1_000).map(group).collect::<String>(), 1);
    let reading = |n| {
        let process = format!("{{\"pid\":{},\"start\":1}}", n % 200);
        format!(
            "{{\"holder_reading\":{{\"process\":{process},\"at\":{n},\"groups\":[{groups}]}}}}\n"
        )
    };
    (0..600).map(reading).collect()
}

/// Returns a hundred events of as many processes. Their observation ends with a text of this length.
fn events(observation: &str, length: usize) -> String {
    let text = "x".repeat(length);
    let event = |n| {
        format!(
            "{{\"event\":{{\"mono\":2,\"process\":{{\"pid\":{n},\"start\":1}},\"observation\":{{{observation}:\"{text}\"}}}}}}\n"
        )
    };
    (1..100).map(event).collect()
}

/// Returns a frame that is shown only after everything before it was read.
fn last_frame(mono: u64) -> String {
    format!(
        "{{\"frame\":{{\"seq\":9,\"mono\":{mono},\"time\":1,\"interval\":1000,\"gpus\":[{{\"index\":77,\"name\":\"LAST\",\
         \"health\":{{\"state\":\"answering\"}},\"memory\":{{\"total\":1,\"used\":1,\"free\":0}}}}]}}}}\n"
    )
}

/// Waits until the last frame is shown, then quits with a key.
#[track_caller]
fn assert_dashboard(name: &str, size: usize, terminal: &Terminal) {
    let watched = Watched::start(terminal.pid());
    terminal.wait_for(
        |screen| screen.contents().contains("LAST"),
        &format!("the last frame after {name}"),
    );
    watched.assert_within(name, size);
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0, "{name}");
    terminal.assert_restored();
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn recordings_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.gpt.zst");
    for (name, lines) in hostile_lines() {
        let first = "{\"frame\":{\"seq\":1,\"mono\":1}}\n";
        let bytes = minute_of(&format!("{first}{lines}{}", last_frame(3)));
        // The reader stops at a line that is too long and reports the rest as missing.
        let file = [bytes, minute_of(&last_frame(4)).split_off(hello_bytes())].concat();
        fs::write(&path, &file).unwrap();
        let terminal =
            Launch::gputop().args(["replay", "--speed", "64"]).args([&path]).size(40, 160).start();
        assert_dashboard(&format!("recording, {name}"), file.len(), &terminal);
    }
}

/// Offset of the first minute written by [`minute_of`].
fn hello_bytes() -> usize {
    let bytes = minute_of("");
    8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn recordings_whose_lengths_lie_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.gpt.zst");
    let whole = minute_of(&last_frame(1));
    let skippable = |magic: u32, length: u32, payload: &[u8]| {
        [&magic.to_le_bytes()[..], &length.to_le_bytes(), payload].concat()
    };
    let minute = "{\"offset\":18446744073709551615,\"bytes\":18446744073709551615,\"frames\":1},";
    let index = format!("{{\"offset\":0,\"minutes\":[{}]}}", repeated(minute, 100_000));
    let footer = |length: u32| [&length.to_le_bytes()[..], b"gputopIX"].concat();
    let note = zstd::bulk::compress(
        format!("{{\"events\":[{}]}}", repeated("{},", 2_500_000)).as_bytes(),
        3,
    )
    .unwrap();
    let note = [b"{\"frames\":1}\n".to_vec(), note].concat();
    let files = [
        ("a hello of 4 GiB", skippable(0x184D_2A50, u32::MAX, b"{}")),
        ("a note of 4 GiB", [whole.clone(), skippable(0x184D_2A51, u32::MAX, b"{}\n")].concat()),
        (
            "an index of 64 MiB",
            [whole.clone(), skippable(0x184D_2A5E, 64 << 20, index.as_bytes()), footer(64 << 20)]
                .concat(),
        ),
        (
            "an index of lies",
            [
                whole.clone(),
                skippable(0x184D_2A5E, index.len() as u32 + 12, index.as_bytes()),
                footer(index.len() as u32 + 20),
            ]
            .concat(),
        ),
        (
            "a note of millions of events",
            [
                whole.clone(),
                skippable(0x184D_2A51, note.len() as u32, &note),
                whole[hello_bytes()..].to_vec(),
            ]
            .concat(),
        ),
        ("10,000 notes that lie about their minutes", {
            let note = skippable(0x184D_2A51, 13, b"{\"frames\":9}\n");
            [whole.clone(), [&whole[hello_bytes()..], &note].concat().repeat(10_000)].concat()
        }),
    ];
    for (name, file) in files {
        fs::write(&path, &file).unwrap();
        let terminal = Launch::gputop().args(["replay"]).args([&path]).size(40, 160).start();
        let watched = Watched::start(terminal.pid());
        let is_refused =
            |screen: &vt100::Screen| screen.contents().contains("not a gputop recording");
        terminal.wait_for(|screen| screen.contents().contains("LAST") || is_refused(screen), name);
        watched.assert_within(&format!("recording, {name}"), file.len());
        if !is_refused(&terminal.screen()) {
            terminal.send("q");
        }
        terminal.wait_exit();
        terminal.assert_restored();
    }
}

/// A jump to the end reads the notes of an hour.
#[test]
#[ignore = "takes long: .ci/run --full"]
fn notes_of_an_hour_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.gpt.zst");
    let text =
        format!("{{\"observation\":{{\"kind\":\"log\",\"text\":\"{}\"}}}}", "x".repeat(7_000_000));
    for (name, events) in [("many events", repeated("{},", 40_000)), ("a long text", text)] {
        let note = format!("{{\"events\":[{events}]}}");
        let note = zstd::bulk::compress(note.as_bytes(), 3).unwrap();
        let mut file = minute_of("")[..hello_bytes()].to_vec();
        for minute in 0..=60 {
            let mono = minute * 60_000;
            let frame = if minute == 60 {
                last_frame(mono)
            } else {
                format!("{{\"frame\":{{\"mono\":{mono}}}}}\n")
            };
            let line = format!("{{\"start\":{mono},\"end\":{mono},\"frames\":1}}\n");
            let length = u32::try_from(line.len() + note.len()).unwrap();
            file.extend(&minute_of(&frame)[hello_bytes()..]);
            file.extend([0x184D_2A51_u32.to_le_bytes(), length.to_le_bytes()].concat());
            file.extend([line.as_bytes(), &note].concat());
        }
        fs::write(&path, &file).unwrap();
        let terminal =
            Launch::gputop().args(["replay", "--paused"]).args([&path]).size(40, 160).start();
        terminal.wait_text("paused");
        terminal.send("\x1b[F");
        assert_dashboard(&format!("recording, {name} in each note"), file.len(), &terminal);
    }
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn wire_lines_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent");
    let fake = FakeNvml::new("[[gpu]]\n");
    let hello = "{\"hello\":{\"host\":\"far\",\"boot_id\":\"1\"}}\n";
    for (name, lines) in hostile_lines() {
        let text = format!("{hello}{lines}{}", last_frame(3));
        let mut encoder = Encoder::new(Vec::new(), 3).unwrap();
        // The largest window that the reader accepts.
        encoder.set_parameter(CParameter::WindowLog(18)).unwrap();
        encoder.write_all(text.as_bytes()).unwrap();
        let packed = encoder.finish().unwrap();
        let greeting = b"gputop-agent protocol=1 version=0.1.0\n".to_vec();
        let sent = [greeting, packed].concat();
        fs::write(&path, &sent).unwrap();
        let terminal = dashboard(&fake)
            .env("F", &path)
            .args(["via:cat $F; exec sleep 1000"])
            .size(40, 160)
            .start();
        let name = format!("wire, {name}");
        if ["a line of 100 MB", "a name that is written out"].iter().any(|n| name.ends_with(n)) {
            let watched = Watched::start(terminal.pid());
            terminal.wait_text("a received line is longer than 16 MiB");
            watched.assert_within(&name, sent.len());
        } else {
            assert_dashboard(&name, sent.len(), &terminal);
        }
    }
}

/// Maximum memory of a process that receives an endless stream, even if it also compresses a recording.
const MAX_LIVE_MEMORY: u64 = 64 * MIB;
/// Size of the lines that are repeated without end, and how often they are received before a test ends. Without limits,
/// they would take more than the maximum memory.
const ENDLESS_BYTES: usize = 4 << 20;
const MIN_REPEATS: usize = 32;
const ENDLESS_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns named pieces of an endless stream.
fn endless_lines() -> Vec<(&'static str, String)> {
    let text = "a line of a log\\n".repeat(2_000);
    let event = |n: usize, observation: &str| {
        format!(
            "\"event\":{{\"time\":1,\"mono\":{n},\"process\":{{\"pid\":{n},\"start\":1}},\"gpu\":\"GPU-{n}\",\
             \"observation\":{{{observation}}}}}"
        )
    };
    let key = |n: usize| format!("{{\"pid\":{n},\"start\":1}}");
    let line = |kind: &str, n: usize| match kind {
        "hellos" => {
            format!("\"hello\":{{\"host\":\"far\",\"boot_id\":\"{n}\",\"kernel\":\"{text}\"}}")
        }
        "logs" => event(n, &format!("\"kind\":\"log\",\"text\":\"{text}\"")),
        "large logs" => event(n, "\"kind\":\"log\",\"text\":\"NOISE\""),
        "exits" => event(n, &format!("\"kind\":\"exit\",\"last\":{{\"command\":\"{text}\"}}")),
        "Xids" => event(n, &format!("\"kind\":\"xid\",\"number\":{n},\"text\":\"{text}\"")),
        "agents" => event(n, "\"kind\":\"later\"")
            .replace("\"time\"", &format!("\"agent\":\"{n}{text}\",\"time\"")),
        "stacks" => {
            format!("\"stack\":{{\"process\":{},\"threads\":[{{\"name\":\"{text}\"}}]}}", key(n))
        }
        // Its clock stands still.
        _ => format!(
            "\"frame\":{{\"seq\":2,\"mono\":2,\"processes\":{{\"list\":[{{\"key\":{},\"command\":\"{text}\"}}]}}}}",
            key(n)
        ),
    };
    let kinds = ["hellos", "logs", "large logs", "exits", "Xids", "agents", "stacks", "frames"];
    let mut seed = 1_u64;
    // Text that cannot be compressed. Otherwise the pipe from the agent would hold a large part of the stream.
    let mut noise = || {
        let mut text = String::new();
        for _ in 0..64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text += &format!("{seed:016x}");
        }
        text
    };
    let mut lines = |kind: &str| {
        let mut lines = String::new();
        for n in 1.. {
            let mut line = line(kind, n);
            if line.contains("NOISE") {
                let text: String = (0..6_000).map(|_| noise() + "\\n").collect();
                line = line.replace("NOISE", &text);
            }
            lines += &format!("{{\"later\":\"{}\",{line}}}\n", noise());
            if lines.len() >= ENDLESS_BYTES {
                break;
            }
        }
        lines
    };
    kinds.map(|kind| (kind, lines(kind))).into()
}

/// Starts a program with an agent that sends `lines` without end, and checks its memory until it has read them many
/// times. `start` gets the agent's command.
#[track_caller]
fn assert_endless(
    name: &str,
    lines: &str,
    start: impl FnOnce(&str) -> (u32, Box<dyn std::any::Any>),
) {
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file);
    let packed = |text: &str| {
        let mut encoder = Encoder::new(Vec::new(), 1).unwrap();
        encoder.set_parameter(CParameter::WindowLog(18)).unwrap();
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let greeting = b"gputop-agent protocol=1 version=0.1.0\n".to_vec();
    let hello = "{\"hello\":{\"host\":\"far\",\"boot_id\":\"1\"}}\n";
    fs::write(path("head"), [greeting, packed(&[hello, &last_frame(1)].concat())].concat())
        .unwrap();
    fs::write(path("lines"), packed(lines)).unwrap();
    fs::write(path("sent"), "").unwrap();
    let agent = format!(
        "via:cd {}; cat head; while cat lines; do echo >> sent; done",
        folder.path().display()
    );
    let (pid, running) = start(&agent);
    let watched = Watched::start(pid);
    let start = Instant::now();
    while fs::read(path("sent")).unwrap().len() < MIN_REPEATS
        && watched.peak.load(Ordering::Relaxed) <= MAX_LIVE_MEMORY
    {
        assert!(anonymous(pid).is_some(), "{name}: exited");
        assert!(start.elapsed() < ENDLESS_TIMEOUT, "{name}: the stream is not read");
        thread::sleep(Duration::from_millis(2));
    }
    watched.assert_below(&format!("endless {name}"), MAX_LIVE_MEMORY);
    drop(running);
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn endless_streams_stay_within_a_constant() {
    let fake = FakeNvml::new("[[gpu]]\n");
    let folder = tempfile::tempdir().unwrap();
    for (name, lines) in endless_lines() {
        assert_endless(&format!("{name}, dashboard"), &lines, |agent| {
            let terminal = dashboard(&fake).args([agent]).size(40, 160).start();
            (terminal.pid(), Box::new(terminal))
        });
        if !["logs", "large logs", "exits"].contains(&name) {
            continue;
        }
        let path = folder.path().join(format!("{name}.gpt.zst"));
        let programs = [
            ("serve", ["--listen", "127.0.0.1:0"]),
            ("record", ["--output", path.to_str().unwrap()]),
        ];
        for (program, options) in programs {
            assert_endless(&format!("{name}, {program}"), &lines, |agent| {
                let mut child = gputop([program]);
                child.args(options).arg(agent).stdout(Stdio::null()).stderr(Stdio::null());
                let child = Guarded(child.spawn().unwrap());
                (child.0.id(), Box::new(child))
            });
        }
    }
}

/// A client may request more than it reads.
#[test]
#[ignore = "takes long: .ci/run --full"]
fn an_agent_whose_output_is_not_read_stays_within_a_constant() {
    let processes = (1..100).map(|pid| ProcessKey::new(pid, 1)).collect();
    let request = RequestLine::Request(Request::Signal { signal: Signal::Int, processes });
    let requests = format!("{}\n", serde_json::to_string(&request).unwrap()).repeat(10_000);
    let mut agent = gputop(["agent"]);
    agent.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut agent = Guarded(agent.spawn().unwrap());
    let watched = Watched::start(agent.0.id());
    // All but the last requests were read once the pipe has taken them.
    for _ in 0..4 {
        agent.0.stdin.as_ref().unwrap().write_all(requests.as_bytes()).unwrap();
    }
    watched.assert_below("agent without a reader", MAX_LIVE_MEMORY);
    assert!(agent.0.try_wait().unwrap().is_none());
}

/// Returns small pickles that used to need much memory or time.
fn hostile_pickles() -> Vec<(&'static str, Vec<u8>)> {
    let text = |word: &str| [&[0x8c, word.len() as u8], word.as_bytes()].concat();
    let header = || b"\x80\x04".to_vec();
    let get = |n: u32| [b"j".to_vec(), n.to_le_bytes().to_vec()].concat();
    // Two memoized blocks in turn, which cannot be merged into runs, and then the memoized list of them.
    let block = |more: &[u8]| [b"}(", &*text("state"), &*text("inactive"), more, b"u"].concat();
    let many_segments = |blocks: usize, segments: usize| {
        let mut body = header();
        body.extend(b"](");
        body.extend(block(b""));
        body.extend(b"\x94");
        body.extend(block(b""));
        body.extend(b"\x94(e");
        body.truncate(body.len() - 2);
        // Fill the list with both blocks in turn.
        body.extend(b"h\x00h\x01".repeat(blocks));
        body.extend(b"e\x94](");
        for _ in 0..segments {
            body.extend(b"}(");
            body.extend(text("total_size"));
            body.extend(b"K\x01");
            body.extend(text("blocks"));
            body.extend(get(2));
            body.extend(b"u");
        }
        body.extend(b"e.");
        body
    };
    let history = {
        // A dictionary with 100,000 keys, in a list that is the history of 100,000 blocks.
        let mut body = [header(), b"]}(".to_vec()].concat();
        for key in 0..100_000_u32 {
            body.extend([&b"J"[..], &key.to_le_bytes(), b"N"].concat());
        }
        body.extend(b"ua\x940](");
        for _ in 0..100_000 {
            body.extend(block(&[&*text("history"), b"h\x00"].concat()));
        }
        body.extend(b"e.");
        body
    };
    let lists = [header(), b"](".to_vec(), b"]Na".repeat(1_000_000), b"e.".to_vec()].concat();
    let dicts = [header(), b"](".to_vec(), b"}NNsNNs".repeat(500_000), b"e.".to_vec()].concat();
    let texts = {
        let mut body = header();
        for n in 0..500_000_u32 {
            body.extend(b"\x8c\x04");
            body.extend(n.to_le_bytes().map(|byte| byte & 0x7f));
            body.extend(b"0");
        }
        body.extend(b"N.");
        body
    };
    let frames = {
        // The same long text in 200,000 frames of one list, each with another line number.
        let long = "n".repeat(250);
        let mut body = [header(), text(&long), b"\x940](".to_vec()].concat();
        for line in 0..200_000_u32 {
            body.extend([b"}(", &*text("filename"), b"h\x00", &*text("name"), b"h\x00"].concat());
            body.extend([&*text("line"), b"J", &line.to_le_bytes(), b"u"].concat());
        }
        body.extend(b"e\x940](}(");
        body.extend(text("state"));
        body.extend(text("active_allocated"));
        body.extend(text("frames"));
        body.extend(b"h\x01ue.");
        body
    };
    let segments = {
        let mut body = [header(), b"](".to_vec()].concat();
        body.extend([b"}(", &*text("total_size"), b"\x94K\x00u"].concat());
        body.extend(b"}(h\x00K\x00u".repeat(400_000));
        body.extend(b"e.");
        body
    };
    let events = {
        let mut body = [header(), b"}(".to_vec(), text("segments"), b"]".to_vec()].concat();
        body.extend([text("device_traces"), b"](](".to_vec()].concat());
        body.extend([&b"}("[..], &text("action"), b"\x94", &text("alloc"), b"\x94u"].concat());
        body.extend(b"}(h\x00h\x01u".repeat(600_000));
        body.extend(b"eeu.");
        body
    };
    let waste = [header(), b"N0".repeat(50_000_000), b"N.".to_vec()].concat();
    let pack = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).unwrap();
    vec![
        ("runs of blocks", many_segments(30_000, 20_000)),
        ("runs of blocks, packed", pack(&many_segments(300_000, 200_000))),
        ("dictionaries of a history", history),
        ("lists", lists.clone()),
        ("lists, packed", pack(&lists.repeat(1)[..])),
        ("dictionaries, packed", pack(&dicts)),
        ("dictionaries", dicts),
        ("texts", texts.clone()),
        ("texts, packed", pack(&texts)),
        ("frames of one text", frames.clone()),
        ("frames of one text, packed", pack(&frames)),
        ("segments", segments.clone()),
        ("segments, packed", pack(&segments)),
        ("events", events.clone()),
        ("events, packed", pack(&events)),
        ("a text of 60 MiB, packed", {
            let length = (60_u32 << 20).to_le_bytes();
            pack(&[&header(), &b"X"[..], &length, &vec![b'x'; 60 << 20], b"."].concat())
        }),
        ("nothing, for long, packed", pack(&waste)),
    ]
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn snapshots_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.pickle");
    for (name, file) in hostile_pickles() {
        fs::write(&path, &file).unwrap();
        let mut command = gputop(["snapshot", "--json"].map(OsString::from));
        assert_command(&format!("snapshot, {name}"), file.len(), command.arg(&path));
    }
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn logs_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.log");
    let traceback = "Traceback (most recent call last):\n  File \"/a.py\", line 1, in f\n    x\n";
    let oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n";
    let logs = [
        ("one line", "x".repeat(5_000_000).into_bytes()),
        ("bytes that are no text", vec![0xff; 5_000_000]),
        ("line ends", vec![b'\n'; 5_000_000]),
        ("tracebacks without an end", traceback.repeat(50_000).into_bytes()),
        ("the same failure", oom.repeat(20_000).into_bytes()),
        ("frames of one traceback", {
            let frame = "  File \"/a.py\", line 1, in f\n    x\n";
            format!("Traceback (most recent call last):\n{}", frame.repeat(100_000)).into_bytes()
        }),
        (
            "the same failure, packed",
            zstd::bulk::compress(oom.repeat(1_000_000).as_bytes(), 3).unwrap(),
        ),
        ("blanks, packed", zstd::bulk::compress(&vec![b' '; 60_000_000], 3).unwrap()),
    ];
    for (name, log) in logs {
        fs::write(&path, &log).unwrap();
        let mut command = gputop(["explain"].map(OsString::from));
        assert_command(&format!("log, {name}"), log.len(), command.arg(&path));
    }
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn incident_records_stay_within_the_budget() {
    let lists = |field: &str, element: &str| {
        let count = 3_500_000 / element.len();
        format!("{{\"schema\":1,\"{field}\":[{}]}}", repeated(element, count))
    };
    let records = [
        ("causes", lists("causes", "{},")),
        ("an unknown field", lists("later", "[],")),
        ("tracks", lists("history", "{},")),
        ("incidents in incidents", "{\"secondary\":[".repeat(200_000)),
        ("a headline", format!("{{\"schema\":1,\"headline\":\"{}\"}}", "x".repeat(3_500_000))),
    ];
    for (name, record) in records {
        let user = User::new();
        user.fail("true", &[]);
        let file = user.files().remove(0);
        let uid = file.file_stem().unwrap().to_owned();
        fs::write(&file, &record).unwrap();
        for more in [None, Some(["show".into(), uid])] {
            let mut command = gputop(["incidents"]);
            command.args(more.iter().flatten());
            command.env("XDG_STATE_HOME", user.0.path());
            assert_command(&format!("incident, {name}"), record.len(), &mut command);
        }
    }
}

#[test]
#[ignore = "takes long: .ci/run --full"]
fn settings_and_themes_stay_within_the_budget() {
    let texts = [
        ("open lists", format!("a = {}", "[".repeat(1_000_000))),
        ("tables in tables", format!("a = {}", "{a=".repeat(300_000))),
        ("a dotted key", format!("{}a = 1", "a.".repeat(500_000))),
        ("a dotted table", format!("[{}a]", "a.".repeat(500_000))),
        ("keys", (0..80_000).map(|n| format!("k{n} = 1\n")).collect()),
        ("a text", format!("theme = \"{}\"", "x".repeat(1_000_000))),
    ];
    for (name, text) in texts {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("gputop");
        fs::create_dir_all(folder.join("themes")).unwrap();
        let check = || {
            let mut command = gputop(["config", "check"]);
            command.env("XDG_CONFIG_HOME", home.path());
            command
        };
        fs::write(folder.join("config.toml"), &text).unwrap();
        let message = assert_command(&format!("settings, {name}"), text.len(), &mut check());
        assert!(message.len() < 2_000, "{message}");
        fs::write(folder.join("config.toml"), "theme = \"mine\"\n").unwrap();
        fs::write(folder.join("themes/mine.toml"), &text).unwrap();
        let message = assert_command(&format!("theme, {name}"), text.len(), &mut check());
        assert!(message.len() < 2_000, "{message}");
    }
}

#[test]
fn filters_stay_within_the_budget() {
    for text in [
        "x".repeat(1_000_000),
        "a ".repeat(500_000),
        "user:".repeat(200_000),
        "!-".repeat(500_000),
        "\"".repeat(1_000_000),
        format!("gpu:{}", "1,".repeat(500_000)),
        format!("vram>{}g", "9".repeat(1_000_000)),
        format!("vrxm>{}", "9".repeat(1_000_000)),
    ] {
        let start = Instant::now();
        let _ = Filter::parse(&text);
        let name = &text[..20.min(text.len())];
        assert!(start.elapsed() <= max_time(text.len()), "{name}");
    }
}

#[test]
fn allocator_dumps_stay_within_the_budget() {
    let magic = "gputop-dump 1\n";
    let ranges = format!("{magic}{{\"maps\":[],\"ranges\":[{}]}}\n", repeated("[0,0],", 5_000_000));
    let maps = format!("{magic}{{\"maps\":[{}],\"ranges\":[]}}\n", repeated("{},", 5_000_000));
    let zeros =
        format!("{magic}{{\"maps\":[],\"ranges\":[[0,250000000]]}}\n{}", "\0".repeat(250_000_000));
    for text in [ranges, maps, zeros] {
        let file = zstd::bulk::compress(text.as_bytes(), 3).unwrap();
        drop(text);
        let start = Instant::now();
        assert!(Dump::from_bytes(&file).is_err());
        assert!(start.elapsed() <= max_time(file.len()));
    }
}

#[test]
fn measured_memory_matches_known_allocations() {
    let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let child = Guarded(child);
    assert!(anonymous(child.0.id()).is_some_and(|bytes| bytes < 64 * MIB));
}

//! Hostile or excessive input: names that are escape sequences, hundreds of processes, no GPUs or many, and a clock
//! that is set back.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_model::event::{Event, Exit, Observation};
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::gpu::{Gpu, GpuProcess, Health, HealthState, Memory};
use gputop_model::host::Hello;
use gputop_model::process::{Process, ProcessKey};
use gputop_model::protocol::Update;
use gputop_model::units::{Bytes, GpuUuid, Millis, Mono, Percent, Pid, UnixMillis};
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::support::fake_machine::{Guarded, RealProcess, dashboard, is_host, on_gpu, run};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::{self, gpu_shows, shows};

/// Bytes that must never reach a terminal, and how gputop shows them.
const HOSTILE_TEXTS: &[(&[u8], &str)] = &[
    (b"\x1b[31;7;99mred", "^[[31;7;99mred"),
    (b"\x1b]0;owned\x07", "^[]0;owned^G"),
    ("\u{202e}cod.exe\u{202c}".as_bytes(), "\\u{202e}cod.exe\\u{202c}"),
    ("\u{2066}iso\u{2069}".as_bytes(), "\\u{2066}iso\\u{2069}"),
    ("\u{9b}5mc1".as_bytes(), "\\u{9b}5mc1"),
    (b"\xff\xfe\xc3(", "\\xff\\xfe\\xc3("),
    (b"back\x08\x08\x7f", "back^H^H^?"),
    ("zero\u{200b}\u{feff}".as_bytes(), "zero\\u{200b}\\u{feff}"),
    (b"tab\tline\nend\r", "tab^Iline^Jend^M"),
];

/// Sequences that must not occur in the output. A bare ESC is allowed, since gputop itself writes it.
const FORBIDDEN_BYTES: &[&[u8]] = &[
    b"\x1b[31;7;99m",
    b"\x1b]0;",
    b"\x07",
    "\u{202e}".as_bytes(),
    "\u{202c}".as_bytes(),
    "\u{2066}".as_bytes(),
    "\u{2069}".as_bytes(),
    "\u{9b}".as_bytes(),
    "\u{200b}".as_bytes(),
    "\u{feff}".as_bytes(),
    b"\xff",
    b"\xfe",
    b"\x08",
    b"\x7f",
    b"\t",
    b"\x1b[5m",
];

#[track_caller]
fn assert_harmless(bytes: &[u8]) {
    for mark in FORBIDDEN_BYTES {
        let found = bytes.windows(mark.len()).any(|window| window == *mark);
        assert!(!found, "{mark:?} among the bytes");
    }
    assert!(std::str::from_utf8(bytes).is_ok(), "not UTF-8");
}

#[test]
fn hostile_process_name_is_escaped() {
    if !is_host() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The kernel takes its short name for the process from the file name, up to 15 bytes.
    let name = OsStr::from_bytes(b"\x1b[5mx\xe2\x80\xae\xff\x07nam");
    let program = folder.path().join(name);
    let cat =
        ["/bin/cat", "/usr/bin/cat"].into_iter().find(|cat| std::path::Path::new(cat).exists());
    std::os::unix::fs::symlink(cat.unwrap(), &program).unwrap();
    let by_name = RealProcess::program(&program);

    let place = folder.path().join(OsStr::from_bytes(b"\x1b[31;7;99mdir\xff"));
    std::fs::create_dir(&place).unwrap();
    let mut arguments: Vec<&OsStr> =
        HOSTILE_TEXTS.iter().map(|(bytes, _)| OsStr::from_bytes(bytes)).collect();
    let long = "x".repeat(4_096);
    arguments.push(OsStr::new(&long));
    let by_arguments = RealProcess::with_arguments(arguments, |command| {
        command
            .current_dir(&place)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("CUDA_HOSTILE", OsStr::from_bytes(HOSTILE_TEXTS[0].0))
            .env(OsStr::from_bytes(b"OTHER\x1b]0;owned\x07"), "1")
            .env("SLURM_JOB_ID", OsStr::from_bytes(b"7\x1b[31;7;99m\xe2\x80\xae"));
    });
    let scenario = "[[gpu]]\n".to_owned()
        + &on_gpu(0, &by_arguments, "used = \"2 GiB\"")
        + &on_gpu(0, &by_name, "used = \"1 GiB\"");
    let fake = FakeNvml::new(&scenario);
    let terminal = dashboard(&fake).size(60, 200).start();
    terminal.wait_for(|s| shows(s, by_name.pid(), &[]), "the processes");
    terminal.wait_text("job 7^[[31;7;99m\\u{202e}");
    let overview = terminal.text();
    terminal.send("\tj\r");
    terminal.wait_text("On the host");
    terminal.wait_text("^[[5mx\\u{202e}\\xff^Gnam");
    terminal.send("q");
    terminal.wait_for(|s| shows(s, by_name.pid(), &[]), "the overview");
    terminal.send("k\r");
    terminal.wait_text("On the host");
    terminal.wait_text("sh -c 'read line'");
    let mut text = terminal.text();
    terminal.send("G");
    terminal.wait_text("OTHER");
    text += &terminal.text();
    let flat: String = text.split_whitespace().collect();
    for (_, shown) in HOSTILE_TEXTS {
        assert!(flat.contains(shown), "{shown} in\n{text}");
    }
    assert!(flat.contains("CUDA_HOSTILE=^[[31;7;99mred"), "{text}");
    assert!(flat.contains("/^[[31;7;99mdir\\xff"), "{text}");
    // The name takes up one line only.
    assert!(overview.lines().filter(|line| line.contains("read line")).count() == 1);
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
    assert_harmless(&terminal.raw());
    for args in [&["once"][..], &["once", "--json"], &["once", "--csv"]] {
        let once = run(&fake, args);
        assert_eq!(once.code, Some(0));
        assert_harmless(once.out.as_bytes());
    }
}

#[test]
fn a_filter_takes_what_is_pasted_into_it_as_text() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    terminal.wait_for(|s| gpu_shows(s, "0", &[]), "the overview");
    terminal.send("/");
    terminal.wait_text("filter:");
    terminal.send(&"y".repeat(5_000));
    terminal.wait_text("yyyyyyyy");
    terminal.send("\x1b");
    terminal.wait_for(|s| !s.contents().contains("filter:"), "no filter");
    terminal.send("/\u{202e}abc\r");
    terminal.wait_text("abc (0 hidden, Esc clears)");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

#[test]
fn driver_without_gpu_is_reported() {
    let fake = FakeNvml::new("");
    let once = run(&fake, ["once"]);
    assert_eq!((once.code, once.out.as_str()), (Some(1), ""));
    assert!(once.err.starts_with("gputop: ") && once.err.contains("GPU"), "{once:?}");
    assert_eq!(once.err.lines().count(), 1, "{once:?}");
}

#[test]
fn sixteen_gpus_are_all_within_reach() {
    let gpus: String = (0..16).map(|i| format!("[[gpu]]\nsm = {}\n", i + 10)).collect();
    let process = RealProcess::start("last.py");
    let fake = FakeNvml::new(&(gpus + &on_gpu(15, &process, "used = \"99 GiB\"")));
    let terminal = dashboard(&fake).size(24, 80).start();
    terminal.wait_text("16xH200");
    terminal.wait_for(|s| gpu_shows(s, "0", &[("SM%", "10")]), "the first");
    for _ in 0..15 {
        terminal.send("j");
    }
    let cells = [("SM%", "25"), ("USED", "99.6")];
    terminal.wait_for(|s| gpu_shows(s, "15", &cells), "the last");
    terminal.send("\r");
    terminal.wait_text("GPU 15  NVIDIA H200");
    terminal.wait_for(|s| shows(s, process.pid(), &[("GPU", "15")]), "its process");
    // Even in a tiny window, each GPU is listed.
    terminal.send("q");
    terminal.resize(6, 60);
    terminal.wait_for(
        |s| {
            let text = s.contents();
            // The GPU under the cursor is marked.
            let labels: Vec<_> =
                text.split_whitespace().map(|word| word.trim_start_matches('▸')).collect();
            ["0", "7", "15"].iter().all(|gpu| labels.contains(gpu))
        },
        "sixteen cells",
    );
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

/// Processes that exit when their input ends, all children of one shell.
struct ManyProcesses {
    _shell: Guarded,
    pids: Vec<u32>,
}

impl ManyProcesses {
    fn start(count: usize) -> Self {
        // A shell gives background jobs no input, except through another descriptor.
        let script =
            "exec 3<&0; i=0; while [ $i -lt $1 ]; do cat <&3 & echo $!; i=$((i+1)); done; read end";
        let shell = Command::new("sh")
            .args(["-c", script, "crowd", &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut shell = Guarded(shell.unwrap());
        let lines = BufReader::new(shell.0.stdout.take().unwrap()).lines();
        let pids = lines.take(count).map(|line| line.unwrap().parse().unwrap());
        Self { pids: pids.collect(), _shell: shell }
    }
}

#[test]
fn five_hundred_processes_are_counted_scrolled_and_survived() {
    const COUNT: usize = 500;
    let crowd = ManyProcesses::start(COUNT);
    // Each process has its own size, so that the sort order is unambiguous.
    let listed = |pids: &[u32]| {
        let list = pids.iter().enumerate().map(|(i, pid)| {
            let used = (500 - i) << 20;
            format!("[[process]]\npid = {pid}\nused = {used}\n")
        });
        list.fold("[[gpu]]\n".to_owned(), |text, process| text + &process)
    };
    let fake = FakeNvml::new(&listed(&crowd.pids));
    let terminal = dashboard(&fake).size(24, 80).start();
    let mut cells = vec![("VRAM", "0.5")];
    if is_host() {
        // COMMAND shows that the kernel's data was read. gputop reports exits only of processes that it has seen.
        cells.push(("COMMAND", "cat"));
    }
    terminal.wait_for(|s| shows(s, crowd.pids[0], &cells), "the largest");
    let on_screen = screen_tables::processes(&terminal.screen()).len();
    terminal.wait_text(&format!("… {} more", COUNT - on_screen));
    terminal.send("G");
    let last = crowd.pids[COUNT - 1];
    let at_last = |screen: &vt100::Screen| {
        let text = screen.contents();
        text.lines().any(|line| line.starts_with('▸') && line.contains(&last.to_string()))
    };
    terminal.wait_for(at_last, "the cursor on the smallest");
    terminal.wait_for(|s| !s.contents().contains(" more"), "the end of the list");
    assert!(shows(&terminal.screen(), last, &[("VRAM", "<0.1")]));
    // Page by page back to the top.
    for _ in 0..COUNT / 10 + 1 {
        terminal.send("\x1b[5~");
    }
    terminal.wait_for(|s| shows(s, crowd.pids[0], &[]), "the largest again");
    terminal.send(&format!("/{last}"));
    terminal.wait_text(&format!("of {COUNT}"));
    terminal.wait_for(|s| shows(s, last, &[]), "the row that was looked for");
    terminal.send("\x1b");
    terminal.wait_for(|s| !s.contents().contains("filter:"), "no filter");
    if !is_host() {
        return;
    }
    // All exit at once: the newest hundred rows remain.
    drop(crowd);
    fake.replace("[[gpu]]\n");
    let all_ended = |screen: &vt100::Screen| {
        let rows = screen_tables::processes(screen);
        !rows.is_empty() && rows.iter().all(|row| row.cell("GiB/min") == "peak")
    };
    terminal.wait_for(all_ended, "rows of ended processes only");
    terminal.send("/");
    terminal.wait_text("100 of 100");
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

const GPU: &str = "GPU-1";
const KEY: ProcessKey = ProcessKey::new(418, 100_000);

/// Returns a frame of a machine that booted `mono` milliseconds ago and whose wall clock shows `time`.
fn frame(seq: u64, mono: u64, time: i64) -> Frame {
    let process = Process {
        key: KEY,
        started: UnixMillis(1_700_000_000_000),
        name: "python3".into(),
        command: "python3 train.py".to_owned().into(),
        ..Process::default()
    };
    Frame {
        seq,
        mono: Mono(mono),
        time: UnixMillis(time),
        interval: Millis(1_000),
        gpus: vec![Gpu {
            uuid: GpuUuid(GPU.into()),
            name: "NVIDIA H200".into(),
            at: Mono(mono),
            health: Health { state: HealthState::Answering, ..Health::default() },
            sm: Percent(100.0).into(),
            memory: Memory {
                total: Bytes::gib(140).into(),
                free: Bytes::gib(40).into(),
                used: Bytes::gib(100).into(),
                reserved: Bytes(0).into(),
            },
            processes: vec![GpuProcess {
                pid: KEY.pid,
                process: Some(KEY),
                vram: Bytes::gib(100).into(),
                ..GpuProcess::default()
            }]
            .into(),
            ..Gpu::default()
        }],
        processes: Some(ProcessList { at: Mono(mono), list: vec![process].into() }),
        ..Frame::default()
    }
}

fn draw(app: &App) -> String {
    let area = Rect::new(0, 0, 120, 40);
    let mut buffer = Buffer::empty(area);
    View::default().draw(app, area, &mut buffer);
    gputop::tui::picture::text_of(&buffer)
}

#[test]
fn a_wall_clock_that_is_set_back_moves_no_age_and_no_chart() {
    let theme = Theme::new(Palette::None, false, TimeZone::UTC);
    let mut app = App::new(theme, Keymap::default(), None);
    app.update(Update::Hello(Arc::new(Hello {
        boot_id: "one".into(),
        ticks_per_second: 100,
        ..Hello::default()
    })));
    let boot = 1_700_000_000_000_i64 - 1_000_000;
    // The process started 1,000 s after boot. The frames begin 90 s later, and halfway through the clock is set back by
    // a day.
    let day = 86_400_000;
    for seq in 0..60 {
        let mono = 1_090_000 + seq * 1_000;
        let set_back = if seq >= 30 { day } else { 0 };
        let time = boot + i64::try_from(mono).unwrap() - set_back;
        app.update(Update::Frame(Arc::new(frame(seq, mono, time))));
    }
    let text = draw(&app);
    let row = text.lines().find(|line| line.contains("418")).unwrap();
    assert!(row.contains("2m29 "), "{row}");
    // A minute of a chart without a gap, judged by the bottom row of the right one.
    let bottom = text.lines().rfind(|line| line.contains('█')).unwrap();
    let full = bottom.chars().rev().take_while(|c| *c == '█').count();
    assert!(full >= 45, "{text}");
    // Processes that exited before and after the clock change stay in order.
    let end = |seq: u64, pid: u32, mono: u64, time: i64| {
        let key = ProcessKey { pid: Pid(pid), ..KEY };
        Update::Event(Event {
            seq,
            mono: Mono(mono),
            time: UnixMillis(time),
            process: Some(key),
            observation: Observation::Exit(Box::new(Exit {
                gpus: vec![GpuUuid(GPU.into())],
                last: Some(Box::new(Process { key, name: "gone".into(), ..Process::default() })),
                ..Exit::default()
            })),
            ..Event::default()
        })
    };
    app.update(end(1, 501, 1_100_000, boot + 1_100_000));
    app.update(end(2, 502, 1_140_000, boot + 1_140_000 - day));
    let text = draw(&app);
    let line = |pid: &str| text.lines().position(|line| line.contains(pid)).unwrap();
    assert!(line("418") < line("502") && line("502") < line("501"), "{text}");
    assert!(text.contains(" 1m40 [gone] (exited"), "{text}");
}

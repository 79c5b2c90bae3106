//! Screens of processes with a readable allocator, from made-up pools and maps. They are the product's mock-ups.

use std::sync::Arc;

use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::picture::text_of;
use gputop::tui::theme::{Palette, Theme};
use gputop::tui::view::View;
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::gpu::{Gpu, GpuProcess, Health, HealthState, Memory};
use gputop_model::host::Hello;
use gputop_model::pool::{
    Allocator, Block, BlockState, Pool, PoolKind, PoolMap, PoolStats, Pools, Sampled, Segment,
    Unread,
};
use gputop_model::process::{Process, ProcessKey};
use gputop_model::protocol::{Request, Update};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::reported_pool::{Framework, PoolSource, ReportedPool};
use gputop_model::stack::{PythonStack, StackFrame, StackThread, StackTrigger};
use gputop_model::units::{Bytes, GpuUuid, Millis, Mono, Percent, Pid, UnixMillis};
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::layout::Rect;

use crate::screen_sizes::screen_sizes;

const MIB: u64 = 1 << 20;

fn gib(size: f64) -> Bytes {
    Bytes((size * (1_u64 << 30) as f64) as u64)
}

pub fn key(pid: u32) -> ProcessKey {
    ProcessKey::new(pid, u64::from(pid) * 7)
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid(format!("GPU-{index}").into())
}

fn process(pid: u32, name: &str, command: &str) -> Process {
    Process {
        key: key(pid),
        started: UnixMillis(1_700_000_000_000 - 11_520_000),
        name: name.into(),
        command: command.to_owned().into(),
        user: "ana".to_owned().into(),
        cpu: Percent(101.0).into(),
        rss: gib(6.4).into(),
        ..Process::default()
    }
}

fn listed(pid: u32, vram: Bytes) -> GpuProcess {
    GpuProcess {
        pid: Pid(pid),
        process: Some(key(pid)),
        vram: vram.into(),
        sm: Percent(97.0).into(),
        ..GpuProcess::default()
    }
}

fn gpu(index: u32, free: Bytes, processes: Vec<GpuProcess>) -> Gpu {
    Gpu {
        index,
        uuid: uuid(index),
        name: "NVIDIA GeForce RTX 4090".into(),
        health: Health { state: HealthState::Answering, ..Health::default() },
        memory: Memory {
            total: gib(23.99).into(),
            free: free.into(),
            reserved: gib(0.44).into(),
            ..Memory::default()
        },
        sm: Percent(97.0).into(),
        processes: processes.into(),
        ..Gpu::default()
    }
}

/// Returns the pool during a training step, from the parameters up to the peak of the backward pass.
fn pool(second: u64) -> Pool {
    let wave = (second % 40) as f64 / 40.0;
    let allocated =
        Sampled::new(gib(13.50)).and(gib(9.0)).and(gib(14.5 + wave * 5.5)).and(gib(13.50));
    Pool {
        process: key(418),
        allocator: Allocator::Native,
        library: "torch 2.8".into(),
        ordinal: 0,
        gpu: uuid(0).into(),
        at: Mono(1_000_000 + second * 1_000),
        limit: None,
        stats: PoolStats {
            allocated,
            allocated_peak: gib(20.13),
            reserved: Sampled::new(gib(20.48)),
            reserved_peak: gib(21.10),
            active: Sampled::new(gib(13.50)),
            inactive_split: gib(6.03),
            inactive_split_peak: gib(6.1),
            segments: 62,
            num_alloc_retries: if second > 300 { 2 } else { 0 },
            num_ooms: u64::from(second > 420),
            largest_free_block: gib(0.90).into(),
            ..PoolStats::default()
        },
    }
}

pub fn frame(second: u64) -> Frame {
    Frame {
        seq: second,
        time: UnixMillis(1_700_000_000_000 + i64::try_from(second).unwrap() * 1_000),
        mono: Mono(1_000_200 + second * 1_000),
        interval: Millis(1_000),
        gpus: vec![
            gpu(0, gib(2.55), vec![listed(418, gib(21.00))]),
            gpu(1, gib(10.0), vec![listed(421, gib(9.0)), listed(977, gib(4.0))]),
        ],
        processes: Some(ProcessList {
            at: Mono(1_000_000),
            list: Arc::new(vec![
                process(418, "python3", "python3 train.py --lr 1"),
                process(421, "python3", "python3 eval.py"),
                process(977, "python3", "python3 serve.py"),
            ]),
        }),
        pools: Some(Pools {
            at: Mono(1_000_000 + second * 1_000),
            list: Arc::new(vec![pool(second)]),
            unread: Arc::new(vec![
                Unread {
                    process: key(421),
                    allocator: Allocator::Unknown,
                    why: Missing::new(
                        Reason::Denied,
                        "the kernel lets only ancestors read it (kernel.yama.ptrace_scope = 1): start it with \
                         `gputop run`, or run gputop as root",
                    ),
                },
                Unread {
                    process: key(977),
                    allocator: Allocator::CudaMallocAsync,
                    why: Missing::new(
                        Reason::Unsupported,
                        "it uses cudaMallocAsync: the driver keeps its pool, nothing of it is in the process",
                    ),
                },
            ]),
            ..Pools::default()
        }),
        ..Frame::default()
    }
}

fn segment(address: u64, pool: PoolKind, stream: u64, parts: &[(BlockState, u64)]) -> Segment {
    let mut at = address;
    let blocks: Vec<Block> = parts
        .iter()
        .map(|&(state, size)| {
            let block = Block {
                address: at,
                size: Bytes(size),
                requested: (state == BlockState::Allocated).then_some(Bytes(size - 200)),
                state,
            };
            at += size;
            block
        })
        .collect();
    Segment {
        address,
        size: Bytes(at - address),
        pool,
        pool_id: None,
        stream,
        expandable: false,
        blocks,
    }
}

/// Twenty large segments full of free blocks, one free segment, and many small ones: roughly what the statistics say.
fn map(second: u64) -> PoolMap {
    use BlockState::{Active, Allocated, Free};
    let mut segments = Vec::new();
    for i in 0..20_u64 {
        let parts: Vec<(BlockState, u64)> = (0..24_u64)
            .map(|b| match (b + i) % 4 {
                0 => (Free, (11 + (b * 13 + i * 7) % 83) * MIB),
                1 => (Allocated, (22 + (b * 5 + i) % 34) * MIB),
                2 => (Allocated, (36 + (b + i * 3) % 47) * MIB),
                _ => (if i == 3 && b > 10 { Active } else { Allocated }, 18 * MIB),
            })
            .collect();
        let stream = if i == 19 { 0x55d0_a8c3 } else { 0 };
        let address = 0x7f2a_0000_0000 + i * 0x1_0000_0000;
        segments.push(segment(address, PoolKind::Large, stream, &parts));
    }
    segments.push(segment(0x7f40_0000_0000, PoolKind::Large, 0, &[(Free, 922 * MIB)]));
    for i in 0..40_u64 {
        let state = |n: u64| if (n * i) % 3 == 1 { Free } else { Allocated };
        let parts: Vec<_> = (1..17).map(|n| (state(n), MIB / 8)).collect();
        let address = 0x7f50_0000_0000 + i * 2 * MIB;
        segments.push(segment(address, PoolKind::Small, 0, &parts));
    }
    PoolMap {
        process: key(418),
        at: Mono(1_000_000 + second * 1_000),
        exact: true,
        segments,
        ..PoolMap::default()
    }
}

fn app_with(palette: Palette, ascii: bool, frames: u64, with_map: bool) -> App {
    let keymap = Keymap::default();
    let mut app = App::new(Theme::new(palette, ascii, TimeZone::UTC), keymap, None);
    app.update(Update::Hello(Arc::new(Hello { host: "node17".into(), ..Hello::default() })));
    for second in 0..frames {
        app.update(Update::Frame(Arc::new(frame(second))));
    }
    if with_map {
        app.update(Update::Map(Arc::new(map(frames - 1))));
    }
    app
}

pub fn app(ascii: bool, with_map: bool) -> App {
    app_with(Palette::None, ascii, 600, with_map)
}

pub fn press(view: &mut View, app: &mut App, code: KeyCode) -> Vec<Request> {
    view.key(KeyEvent::new(code, KeyModifiers::NONE), app).1
}

/// Returns the view after these keys.
pub fn view_after_keys(app: &mut App, keys: &str) -> View {
    let mut view = View::default();
    view.follow(app);
    for key in keys.chars() {
        let code = match key {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        };
        press(&mut view, app, code);
    }
    view.follow(app);
    view
}

pub fn drawn(view: &View, app: &App, width: u16, height: u16) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view.draw(app, area, &mut buffer);
    buffer
}

fn text(app: &mut App, keys: &str, width: u16, height: u16) -> String {
    let view = view_after_keys(app, keys);
    text_of(&drawn(&view, app, width, height))
}

#[test]
fn the_memory_screen_at_the_size_of_the_mock_up() {
    insta::assert_snapshot!(
        "the_memory_screen_at_the_size_of_the_mock_up",
        text(&mut app(true, true), "M", 100, 30)
    );
}

#[test]
fn the_memory_screen_at_eighty_columns() {
    insta::assert_snapshot!(
        "the_memory_screen_at_eighty_columns",
        text(&mut app(true, true), "M", 80, 24)
    );
}

#[test]
fn the_memory_screen_in_a_small_pane() {
    insta::assert_snapshot!(
        "the_memory_screen_in_a_small_pane",
        text(&mut app(true, true), "M", 40, 6)
    );
}

#[test]
fn the_memory_screen_on_a_large_terminal_has_everything() {
    insta::assert_snapshot!(
        "the_memory_screen_on_a_large_terminal_has_everything",
        text(&mut app(false, true), "M", 200, 60)
    );
}

#[test]
fn memory_screen_says_that_the_map_is_loading() {
    let text = text(&mut app(true, false), "M", 100, 30);
    assert!(text.contains("MAP  reading"), "{text}");
    assert!(text.contains("beside live tensors"), "{text}");
}

#[test]
fn missing_map_shows_the_reason() {
    let mut app = app(true, false);
    let why = Missing::new(Reason::NotRead, "the recording contains no maps");
    app.update(Update::NoMap((key(977), 0), why.clone()));
    assert!(text(&mut app, "M", 100, 30).contains("MAP  reading"));
    app.update(Update::NoMap((key(418), 0), why.clone()));
    let screen = text(&mut app, "M", 100, 30);
    assert!(screen.contains("the recording contains no maps"), "{screen}");
    // A map that was shown stays: a program that changes all the time cannot be read every second.
    app.update(Update::Map(Arc::new(map(599))));
    app.update(Update::NoMap((key(418), 0), why));
    let screen = text(&mut app, "M", 100, 30);
    assert!(screen.contains("MAP  cell"), "{screen}");
    app.update(Update::Jump { from: Mono(0), summaries: Vec::new() });
    app.update(Update::Frame(Arc::new(frame(3))));
    let screen = text(&mut app, "M", 100, 30);
    assert!(screen.contains("MAP  reading"), "{screen}");
}

#[test]
fn unreadable_pool_shows_the_reason() {
    insta::assert_snapshot!(
        "unreadable_pool_shows_the_reason",
        text(&mut app(true, false), "jM", 80, 12)
    );
}

#[test]
fn tab_shows_metrics_on_a_small_screen() {
    insta::assert_snapshot!(
        "tab_shows_metrics_on_a_small_screen",
        text(&mut app(true, true), "M\t", 80, 30)
    );
}

#[test]
fn overview_shows_pool_columns_and_unreadable_processes() {
    insta::assert_snapshot!(
        "overview_shows_pool_columns_and_unreadable_processes",
        text(&mut app(true, false), "", 80, 24)
    );
}

#[test]
fn the_overview_in_a_small_pane_shows_the_one_process_from_inside() {
    let keymap = Keymap::default();
    let theme = Theme::new(Palette::None, true, TimeZone::UTC);
    let mut app = App::new(theme, keymap, None);
    let mut one = frame(599);
    one.gpus.truncate(1);
    app.update(Update::Frame(Arc::new(one)));
    insta::assert_snapshot!(
        "the_overview_in_a_small_pane_shows_the_one_process_from_inside",
        text(&mut app, "", 40, 6)
    );
}

/// A machine with one GPU, after ten minutes of training.
fn one_gpu() -> App {
    let keymap = Keymap::default();
    let theme = Theme::new(Palette::None, true, TimeZone::UTC);
    let mut app = App::new(theme, keymap, None);
    for second in 0..600 {
        let mut one = frame(second);
        one.gpus.truncate(1);
        app.update(Update::Frame(Arc::new(one)));
    }
    app.update(Update::Map(Arc::new(map(599))));
    app
}

#[test]
fn next_gpu_says_that_there_is_no_other() {
    let mut app = one_gpu();
    assert!(text(&mut app, "\n]", 120, 40).contains("This is the only GPU"));
    assert!(text(&mut app, "M]", 120, 40).contains("This is the only GPU of the process"));
    assert!(text(&mut app, "M[", 120, 40).contains("This is the only GPU of the process"));
}

/// Eight ranks, one of which is in trouble.
fn eight_gpus() -> App {
    let keymap = Keymap::default();
    let theme = Theme::new(Palette::None, true, TimeZone::UTC);
    let mut app = App::new(theme, keymap, None);
    app.update(Update::Hello(Arc::new(Hello {
        host: "node17".into(),
        ticks_per_second: 100,
        ..Hello::default()
    })));
    for second in [0, 599] {
        let mut eight = frame(second);
        let mut pools = Vec::new();
        let mut processes = Vec::new();
        eight.gpus = (0..8)
            .map(|index| {
                let pid = 418 + index;
                let mut of = pool(if index == 3 { second } else { 0 });
                (of.process, of.gpu) = (key(pid), uuid(index).into());
                pools.push(of);
                processes.push(Process {
                    rank: index.into(),
                    job: "81234".to_owned().into(),
                    ..process(pid, "python3", "python3 fsdp.py --config large.yaml")
                });
                gpu(index, gib(2.55), vec![listed(pid, gib(21.00))])
            })
            .collect();
        eight.processes = Some(ProcessList { at: eight.mono, list: Arc::new(processes) });
        eight.pools = Some(Pools { list: Arc::new(pools), ..eight.pools.unwrap_or_default() });
        app.update(Update::Frame(Arc::new(eight)));
    }
    app
}

#[test]
fn eight_gpus_and_their_processes_fit_into_eighty_columns() {
    let mut app = eight_gpus();
    let text = text(&mut app, "", 80, 24);
    insta::assert_snapshot!("eight_gpus_and_their_processes_fit_into_eighty_columns", text);
    for pid in 418..426 {
        assert!(text.contains(&pid.to_string()), "{pid}\n{text}");
    }
}

#[test]
fn eight_gpus_in_a_small_pane() {
    insta::assert_snapshot!("eight_gpus_in_a_small_pane", text(&mut eight_gpus(), "", 40, 6));
}

#[test]
fn tab_names_the_process_under_the_cursor_in_a_small_pane() {
    let last_line = |keys| {
        let text = text(&mut eight_gpus(), keys, 40, 6);
        text.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(last_line("\t"), ">fsdp.py 418  26m  peak 20.1 GiB");
    assert_eq!(last_line("\tj"), ">fsdp.py 419  26m  peak 20.1 GiB");
    assert!(last_line("\t\t").starts_with("GPU 3 out of memory"));
}

#[test]
fn the_memory_is_copied_as_figures() {
    let mut app = app(true, true);
    let mut view = view_after_keys(&mut app, "M");
    let copy = KeyEvent::new(KeyCode::Char('y'), KeyModifiers::NONE);
    let (outcome, _) = view.key(copy, &mut app);
    let gputop::tui::screen::Effect::Copy(copied) = outcome else {
        panic!("nothing was copied");
    };
    insta::assert_snapshot!("the_memory_is_copied_as_figures", copied.text);
}

#[test]
fn unreadable_processes_are_listed_by_reason() {
    insta::assert_snapshot!(
        "unreadable_processes_are_listed_by_reason",
        text(&mut app(true, false), "!", 80, 16)
    );
}

#[test]
fn the_map_is_asked_for_while_the_screen_is_open_and_no_longer() {
    let mut app = app(true, false);
    let mut view = View::default();
    view.follow(&app);
    let wanted = Request::Map(Some((key(418), 0)));
    let requests = press(&mut view, &mut app, KeyCode::Char('M'));
    assert!(requests.contains(&wanted), "{requests:?}");
    assert!(!press(&mut view, &mut app, KeyCode::Char('j')).contains(&wanted));
    app.update(Update::Frame(Arc::new(frame(600))));
    assert!(view.follow(&app).contains(&wanted), "again with every frame");
    let requests = press(&mut view, &mut app, KeyCode::Esc);
    assert!(requests.contains(&Request::Map(None)), "{requests:?}");
    app.update(Update::Frame(Arc::new(frame(601))));
    assert!(!view.follow(&app).iter().any(|r| matches!(r, Request::Map(_))));
}

fn stack(why: StackTrigger, at: u64) -> PythonStack {
    let frame = |function: &str, file: &str, line| StackFrame {
        function: function.into(),
        file: file.into(),
        line,
    };
    let thread = |name: &str, is_main, frames| StackThread { name: name.into(), is_main, frames };
    PythonStack {
        process: key(418),
        at: Mono(at),
        why,
        lag: Millis(52),
        allocated: (why != StackTrigger::Request).then_some(Bytes(12_595 * MIB)),
        threads: vec![
            thread(
                "MainThread",
                true,
                vec![
                    frame("forward", "/srv/ana/model.py", 33),
                    frame("step", "/srv/ana/train.py", 57),
                    frame("<module>", "/srv/ana/train.py", 90),
                ],
            ),
            thread("loader", false, vec![frame("get", "/usr/lib/queue.py", 171)]),
        ],
        left_out: 1,
    }
}

#[test]
fn the_python_stack_is_asked_for_by_a_key_and_shown_with_its_lag() {
    let mut app = app(true, false);
    let wanted = Request::Stacks(key(418));
    for open in [KeyCode::Char('M'), KeyCode::Enter] {
        let mut view = view_after_keys(&mut app, "\t");
        assert!(!press(&mut view, &mut app, open).contains(&wanted));
        let asked = press(&mut view, &mut app, KeyCode::Char('S'));
        assert!(asked.contains(&wanted), "{asked:?}");
        assert!(!view.follow(&app).contains(&wanted), "once");
    }
    let now = app.host.frame.mono.0;
    let give = |app: &mut App, stack| app.update(Update::Stacks(key(418), Arc::new(stack)));
    give(&mut app, Ok(stack(StackTrigger::NewMaximum, now - 14_000)));
    assert!(!text(&mut app, "M", 120, 24).contains("Python"), "the chart comes first");
    for height in [30, 40] {
        let memory = text(&mut app, "M", 120, height);
        for words in [
            "Python stack  within 52 ms of reaching 12.30 GiB allocated, 14s ago",
            "model.py:33 forward < train.py:57 step < train.py:90 <module>",
        ] {
            assert!(memory.contains(words), "{memory}");
        }
    }
    let why = Missing::new(Reason::Denied, "only its own user may look");
    give(&mut app, Err(why));
    let memory = text(&mut app, "M", 120, 24);
    assert!(memory.contains("only its own user may look"), "{memory}");
    let process = |app: &mut App| {
        let mut view = view_after_keys(app, "\t");
        press(&mut view, app, KeyCode::Enter);
        text_of(&drawn(&view, app, 120, 60))
    };
    let shown = process(&mut app);
    let maximum = shown.find("of reaching").expect("the older stack stays");
    let reason = shown.find("only its own user may look").expect("the reason");
    assert!(reason < maximum, "the newest first\n{shown}");
    assert!(shown.contains("other threads         1 not readable"), "{shown}");
    assert!(shown.contains("loader: queue.py:171 get"), "{shown}");
    give(&mut app, Ok(stack(StackTrigger::Request, now)));
    let shown = process(&mut app);
    assert!(shown.contains("on request, now"), "{shown}");
    assert!(!shown.contains("only its own user"), "{shown}");
}

#[test]
fn the_map_of_another_process_is_not_shown() {
    let mut app = app(true, false);
    app.update(Update::Map(Arc::new(PoolMap { process: key(977), ..map(599) })));
    assert!(text(&mut app, "M", 100, 30).contains("MAP  reading"));
}

#[test]
fn brackets_switch_the_device_of_a_process_on_several() {
    let mut app = app(true, false);
    let mut two = frame(600);
    let mut other = pool(600);
    (other.ordinal, other.gpu) = (1, uuid(1).into());
    two.pools = Some(Pools { list: Arc::new(vec![pool(600), other]), ..Pools::default() });
    app.update(Update::Frame(Arc::new(two)));
    let first = text(&mut app, "M", 100, 30);
    assert!(first.contains("GPU 0 RTX 4090  cuda:0 of 2"), "{first}");
    let second = text(&mut app, "M]", 100, 30);
    assert!(second.contains("GPU 1 RTX 4090  cuda:1 of 2"), "{second}");
}

/// One process on one GPU, with pools reported by its JAX and its TensorFlow.
fn app_with_reported_pools(reports: Vec<ReportedPool>) -> App {
    let mut app = app(true, false);
    let mut frame = frame(600);
    frame.gpus.truncate(1);
    frame.pools = Some(Pools { reported: Arc::new(reports), ..Pools::default() });
    app.update(Update::Frame(Arc::new(frame)));
    app
}

fn jax() -> ReportedPool {
    ReportedPool {
        process: key(418),
        framework: Framework::Jax,
        allocator: Allocator::XlaBfc,
        gpu: uuid(0).into(),
        allocated: gib(4.25).into(),
        allocated_peak: gib(7.5).into(),
        reserved: gib(18.0).into(),
        largest_free_block: Reading::missing(
            Reason::Unsupported,
            "JAX does not report the largest free block",
        ),
        ..ReportedPool::default()
    }
}

#[test]
fn reported_pool_is_shown_on_every_screen() {
    let mut app = app_with_reported_pools(vec![jax()]);
    let overview = text(&mut app, "", 120, 40);
    let row = overview.lines().find(|line| line.contains("418")).unwrap();
    let figures: Vec<&str> = row.split_whitespace().collect();
    // ALLOC and RESV. Nothing reports the fragmented memory and the largest fit.
    let wanted = ["4.2", "18.0", "-", "-"];
    assert!(figures.windows(4).any(|found| found == wanted), "{overview}");
    assert!(!overview.contains(" RETRY "), "{overview}");

    let process = text(&mut app, "\t\n", 120, 60);
    for line in [
        "JAX, XLA BFC",
        "4.25 GiB  peak 7.50 GiB",
        "13.75 GiB",
        "- JAX does not report the largest free block",
    ] {
        assert!(process.contains(line), "{line}: {process}");
    }
    assert!(!process.contains("no PyTorch allocator"), "{process}");

    let memory = text(&mut app, "M", 80, 24);
    assert!(
        memory.contains("JAX, XLA BFC, device 0: allocated 4.25 GiB, reserved 18.00 GiB"),
        "{memory}"
    );
    let small = text(&mut app, "", 40, 6);
    assert!(small.contains("alloc 4.2 cached 13.8 JAX"), "{small}");
}

#[test]
fn pool_that_was_read_names_the_setting_that_reserves_less() {
    let mut app = app_with_read_pool(Vec::new(), Vec::new(), true);
    let overview = text(&mut app, "", 120, 40);
    let row = overview.lines().find(|line| line.contains("418")).unwrap();
    // ALLOC, RESV without the pinned memory of the host, FRAG, and FITS: the largest free chunk.
    assert!(row.contains("  4.2  18.0     -  12.0 "), "{overview}");
    let process = text(&mut app, "\t\n", 120, 60);
    assert!(process.contains("13.75 GiB is preallocated and not used. Set XLA_"), "{process}");
    let memory = text(&mut app, "M", 120, 40);
    assert!(memory.contains("13.75 GiB is preallocated and not used."), "{memory}");
}

/// One process on one GPU whose pool of JAX gputop reads, with other pools of the process.
fn app_with_read_pool(others: Vec<ReportedPool>, torch: Vec<Pool>, ascii: bool) -> App {
    let mut app = app_with(Palette::None, ascii, 0, false);
    for second in 0..=600 {
        let mut frame = frame(second);
        frame.gpus.truncate(1);
        let pool = ReportedPool {
            at: Mono(1_000_000 + second * 1_000),
            source: PoolSource::Memory,
            limit: gib(18.0).into(),
            largest_free_block: gib(12.0).into(),
            ..jax()
        };
        let pinned = ReportedPool { reserved: gib(0.5).into(), ..pool.clone() };
        frame.pools = Some(Pools {
            at: pool.at,
            list: Arc::new(torch.clone()),
            reported: Arc::new([vec![pool], others.clone()].concat()),
            pinned_host: Arc::new(vec![pinned]),
            ..Pools::default()
        });
        app.update(Update::Frame(Arc::new(frame)));
    }
    app
}

/// The chunks of that pool: some in use, four small free ones, and a large one.
fn jax_map() -> PoolMap {
    use BlockState::{Allocated, Free};
    let mut parts: Vec<(BlockState, u64)> = Vec::new();
    for _ in 0..4 {
        parts.extend([(Allocated, 1_088 * MIB), (Free, 448 * MIB)]);
    }
    parts.push((Free, 12_288 * MIB));
    PoolMap {
        process: key(418),
        allocator: Allocator::XlaBfc,
        at: Mono(1_600_000),
        exact: true,
        segments: vec![segment(0x7f2a_0000_0000, PoolKind::Region, 0, &parts)],
        ..PoolMap::default()
    }
}

#[test]
fn the_memory_screen_of_jax_at_all_sizes() {
    for (width, height) in [(120, 40), (80, 24), (40, 6), (200, 50)] {
        let mut app = app_with_read_pool(Vec::new(), Vec::new(), false);
        app.update(Update::Map(Arc::new(jax_map())));
        let name = format!("the_memory_screen_of_jax_at_{width}x{height}");
        insta::assert_snapshot!(name, text(&mut app, "M", width, height));
    }
}

#[test]
fn every_pool_of_a_process_is_shown_and_they_add_up() {
    let mut torch = pool(600);
    torch.stats.allocated = Sampled::new(gib(0.5));
    torch.stats.reserved = Sampled::new(gib(1.25));
    let cupy = ReportedPool {
        process: key(418),
        framework: Framework::Cupy,
        allocator: Allocator::CupyMemoryPool,
        gpu: uuid(0).into(),
        allocated: gib(0.25).into(),
        reserved: gib(1.0).into(),
        ..ReportedPool::default()
    };
    let mut app = app_with_read_pool(vec![cupy], vec![torch], true);
    let overview = text(&mut app, "", 120, 40);
    let row = overview.lines().find(|line| line.contains("418")).unwrap();
    // 4.25 + 0.25 + 0.5 allocated, and 18 + 1 + 1.25 reserved.
    assert!(row.contains("  5.0  20.2 "), "{overview}");
    let first = text(&mut app, "M", 120, 40);
    assert!(first.contains("torch 2.8") && first.contains("of 2 ([ ])"), "{first}");
    assert!(first.contains("context, libraries, JAX 18.00, CuPy 1.00"), "{first}");
    let second = text(&mut app, "M]", 120, 40);
    assert!(second.contains("JAX, XLA BFC"), "{second}");
    let other = "context, libraries, torch 1.25, CuPy 1.00";
    assert!(second.contains(other), "{second}");
    assert!(second.contains("gputop allocator 418 --blocks"), "{second}");
    // The map of PyTorch's pool is not shown as that of JAX.
    app.update(Update::Map(Arc::new(map(600))));
    let second = text(&mut app, "M]", 120, 40);
    assert!(!second.contains("exact"), "{second}");
}

#[test]
fn partial_framework_figures_are_not_summed() {
    let tensorflow =
        ReportedPool { framework: Framework::Tensorflow, reserved: Reading::default(), ..jax() };
    let overview = text(&mut app_with_reported_pools(vec![jax(), tensorflow]), "", 120, 40);
    let heading = overview.lines().find(|line| line.contains("COMMAND"));
    let columns: Vec<&str> = heading.unwrap().split_whitespace().collect();
    let resv = columns.iter().position(|title| *title == "RESV").unwrap();
    assert_eq!(columns[resv - 1], "ALLOC", "{overview}");
    let row = overview.lines().find(|line| line.contains("418")).unwrap();
    assert!(row.contains("  8.5     - "), "{overview}");
}

#[test]
fn map_cursor_describes_the_cell() {
    let mut app = app(true, true);
    let area = Rect::new(0, 0, 100, 30);
    let mut view = view_after_keys(&mut app, "M");
    let mut seen = Vec::new();
    for keys in ["", "l", "j", "G", "h"] {
        for key in keys.chars() {
            press(&mut view, &mut app, KeyCode::Char(key));
        }
        let text = text_of(&drawn(&view, &app, area.width, area.height));
        seen.push(text.lines().nth(28).unwrap().to_owned());
    }
    insta::assert_snapshot!("map_cursor_describes_the_cell", seen.join("\n"));
}

#[test]
fn click_on_the_map_moves_the_cursor() {
    let mut app = app(true, true);
    let area = Rect::new(0, 0, 100, 30);
    let mut view = view_after_keys(&mut app, "M");
    let under = |view: &View, app: &App| {
        let text = text_of(&drawn(view, app, area.width, area.height));
        let line = |from: &str| text.lines().position(|line| line.starts_with(from));
        let map = line(" MAP").unwrap();
        (map, text.lines().nth(28).unwrap().trim().to_owned())
    };
    let (map, before) = under(&view, &app);
    assert!(before.contains("segment 7f2a00000000"), "{before}");
    let mut press_at = |column, row: usize| {
        let mouse = MouseEvent {
            kind: MouseEventKind::Down(MouseButton::Left),
            column,
            row: row.try_into().unwrap(),
            modifiers: KeyModifiers::NONE,
        };
        view.mouse(mouse, area, &mut app);
        under(&view, &app).1
    };
    // In the third row of the map, click the first cell and then the third, which is 64 MiB further on.
    let first = press_at(8, map + 3);
    assert!(first.contains("segment 7f2c00000000") && first.contains(" +0B"), "{first}");
    let third = press_at(10, map + 3);
    assert!(third.contains("segment 7f2c00000000") && third.contains(" +64M"), "{third}");
    // A click beside the cells changes nothing.
    assert_eq!(press_at(80, map + 3), third);
    assert_eq!(press_at(2, map + 3), third);
}

#[test]
fn memory_screens_draw_in_ascii_and_at_any_size() {
    for (keys, with_map) in [("", true), ("M", true), ("M\t\t", true), ("M", false), ("!", false)] {
        let mut plain = app_with(Palette::None, true, 100, with_map);
        let view = view_after_keys(&mut plain, keys);
        for (width, height) in screen_sizes(0).chain([(400, 100)]) {
            let buffer = drawn(&view, &plain, width, height);
            assert!(text_of(&buffer).is_ascii(), "{keys} {width}x{height}");
            let none = ratatui::style::Color::Reset;
            assert!(buffer.content.iter().all(|c| (c.fg, c.bg) == (none, none)));
        }
        let mut coloured = app_with(Palette::Dark, false, 50, with_map);
        let view = view_after_keys(&mut coloured, keys);
        let _ = drawn(&view, &coloured, 120, 40);
    }
}

#[test]
fn fragmentation_has_a_verdict_that_agrees_with_what_fits() {
    let text = text(&mut app(false, true), "M", 200, 60);
    let line = text.lines().find(|line| line.contains("external fragmentation")).unwrap();
    let fits = text.lines().find(|line| line.contains("no request above")).unwrap();
    let size = fits.split("above ").nth(1).unwrap().split(" GiB").next().unwrap();
    assert!(line.contains(&format!("no request above {size} GiB fits")), "{text}");
}

#[test]
fn the_overview_marks_fits_that_may_be_larger() {
    let row = |is_expandable: bool| {
        let mut frame = frame(600);
        if is_expandable {
            let pools = frame.pools.as_mut().unwrap();
            let mut list = pools.list.to_vec();
            list[0].stats.inactive_split = Bytes(0);
            list[0].stats.inactive_split_peak = Bytes(0);
            pools.list = list.into();
        }
        let mut app = app(true, true);
        app.update(Update::Frame(Arc::new(frame)));
        let text = text(&mut app, "", 120, 40);
        text.lines().find(|line| line.contains("train.py")).unwrap().to_owned()
    };
    assert!(!row(false).contains('+'), "{}", row(false));
    assert!(row(true).contains("+ "), "{}", row(true));
}

//! Incidents on the dashboard: the line that announces one, and the screen that explains it.

use std::borrow::Cow;
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gputop::dashboard::incidents::ListedIncident;
use gputop::export::explanation::markdown;
use gputop::incident::RecordingDiagnosis;
use gputop::source::replay::Recording as File;
use gputop::tui::app::App;
use gputop::tui::guide::Guide;
use gputop::tui::picture::text_of;
use gputop::tui::screen::Effect;
use gputop::tui::theme::Palette;
use gputop::tui::view::View;
use gputop_explain::{Catalogue, explain};
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::gpu::{Gpu, GpuProcess, Memory, Throttle};
use gputop_model::holders::summary::HolderSummary;
use gputop_model::holders::{HolderClass, HolderGroup, Holders};
use gputop_model::incident::{Incident, Severity};
use gputop_model::process::Process;
use gputop_model::protocol::{Line, Update};
use gputop_model::scene::{FreeBlocks, Scene, SceneMap};
use gputop_model::stack::{PythonStack, StackFrame, StackThread, StackTrigger};
use gputop_model::units::{Bytes, MegaHertz, MilliWatts, Millis, Mono, Percent, Pid};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::incidents::User;
use crate::run_explained::{EXPLAINED, OOM, OOM_KILLED};
use crate::support::fake_machine::{dashboard, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::many_processes::key;
use crate::support::screen_fixture::{FOUR_GPUS, app_at, diagnose, draw, lines_until};

/// Returns an app with the recording's GPUs and an incident of that day with this severity.
fn app_with(severity: Severity) -> App {
    app_with_at(severity, 140)
}

/// Returns the app of [`app_with`] at another time of the demo.
fn app_with_at(severity: Severity, seconds: u64) -> App {
    let mut app = app_at(FOUR_GPUS, seconds, Palette::None, false, true);
    let mut incident = explain(Catalogue::embedded(), "train.log", OOM.as_bytes()).remove(0);
    let time = jiff::Timestamp::from_millisecond(app.host.frame.time.0).unwrap();
    incident.time = Some(time.to_string());
    incident.uid = Some("01kq3v7-x2c9".into());
    incident.host = Some("node17".into());
    incident.fields.rank = Some(3);
    incident.severity = severity;
    let earlier = Incident {
        uid: Some("01kq3v0-x2c9".into()),
        time: Some("2026-01-02T03:04:05Z".into()),
        ..incident.clone()
    };
    let scene = Arc::new(scene());
    let known = |incident: Incident| ListedIncident {
        incident: incident.into(),
        is_read: false,
        key: Default::default(),
        processes: Vec::new(),
        gpus: Vec::new(),
        scene: Some(scene.clone()),
    };
    app.host.incidents.take_stored(vec![known(earlier), known(incident)]);
    app
}

/// The scene of an incident: the GPU, another process, free blocks, and a stack.
fn scene() -> Scene {
    let at = Mono(90_000);
    let process = |pid: u32, vram: u64| GpuProcess {
        pid: Pid(pid),
        process: Some(key(pid)),
        vram: Bytes::gib(vram).into(),
        ..GpuProcess::default()
    };
    let gpu = Gpu {
        name: "NVIDIA GeForce RTX 4090".into(),
        at: Mono(at.0 - 320),
        memory: Memory {
            total: Bytes::gib(24).into(),
            free: Bytes::mib(1_085).into(),
            ..Memory::default()
        },
        sm: Percent(97.0).into(),
        sm_clock: MegaHertz(1_755).into(),
        power: MilliWatts(388_000).into(),
        throttle: vec![Throttle::SwPowerCap].into(),
        processes: vec![process(418, 22), process(1_771, 1)].into(),
        ..Gpu::default()
    };
    let other = Process {
        key: key(1_771),
        command: "python bench.py --size 4096".to_owned().into(),
        user: "bob".to_owned().into(),
        ..Process::default()
    };
    let free = |mib: u64, count: u64, bytes: u64| FreeBlocks {
        up_to_bytes: Bytes::mib(mib),
        count,
        bytes: Bytes::mib(bytes),
    };
    let frame = |line: u32, function: &str| StackFrame {
        function: function.into(),
        file: "/home/ana/run/train.py".into(),
        line,
    };
    Scene {
        at,
        processes: vec![key(418)],
        frame: Frame {
            gpus: vec![gpu],
            processes: Some(ProcessList { list: vec![other].into(), ..ProcessList::default() }),
            ..Frame::default()
        },
        map: Some(SceneMap {
            lag: Millis(40),
            exact: true,
            segments: 312,
            blocks: 2_204,
            largest_free_block: Bytes::mib(612),
            fragmented: Bytes::mib(6_042),
            returnable: Bytes::mib(922),
            free_histogram: vec![free(1, 812, 205), free(64, 203, 3_174), free(1_024, 9, 3_585)],
            ..SceneMap::default()
        }),
        stacks: vec![PythonStack {
            process: key(418),
            why: StackTrigger::Oom,
            lag: Millis(52),
            threads: vec![StackThread {
                is_main: true,
                frames: vec![frame(57, "step"), frame(90, "main")],
                ..StackThread::default()
            }],
            ..PythonStack::default()
        }],
        holders: Some(holders(Mono(at.0 + 610))),
        left_out: 0,
    }
}

fn holders(at: Mono) -> HolderSummary {
    let group = |class, name: &str, count, mib| HolderGroup {
        class,
        name: name.into(),
        count,
        bytes: Bytes::mib(mib),
        ..HolderGroup::default()
    };
    let holders = Holders {
        process: key(418),
        at,
        groups: vec![
            group(HolderClass::SavedForBackward, "trainer.losses[*]", 812, 9_216),
            group(HolderClass::OptimizerState, "optimizer.state[*]['exp_avg']", 96, 2_816),
            group(HolderClass::Parameter, "model.layers.*.\u{1b}[31mweight", 96, 1_408),
            group(HolderClass::Workspace, "", 1, 32),
        ],
        ..Holders::default()
    };
    HolderSummary::of(&holders, 0)
}

#[test]
fn an_incident_at_every_size() {
    let app = app_with(Severity::Fatal);
    for (width, height) in [(40, 6), (80, 24), (120, 40)] {
        for screen in ["overview", "incident", "incidents"] {
            let name = format!("incident-{screen}-{width}x{height}");
            insta::assert_snapshot!(name, text_of(&draw(&app, screen, width, height)));
        }
    }
    // The whole incident, including its scene.
    let whole = text_of(&draw(&app, "incident", 80, 80));
    insta::assert_snapshot!("incident-incident-80x80", whole);
    let no_danger = app_with_at(Severity::Caught, 150);
    let caught = text_of(&draw(&no_danger, "overview", 50, 6));
    assert!(caught.contains("(caught)") && caught.contains("d explain"), "{caught}");
}

fn press(view: &mut View, app: &mut App, key: KeyCode) -> Effect {
    view.key(KeyEvent::new(key, KeyModifiers::NONE), app).0
}

/// Returns the text that these keys send to the clipboard, in order.
fn sent(view: &mut View, app: &mut App, keys: &str) -> String {
    let mut outcome = Effect::Done;
    for key in keys.chars() {
        outcome = press(view, app, KeyCode::Char(key));
    }
    match outcome {
        Effect::Copy(copied) => copied.text,
        _ => panic!("{keys}: {:?}", app.ui.message),
    }
}

#[test]
fn incident_is_copied_as_fix_markdown_and_report_command() {
    let mut app = app_with(Severity::Fatal);
    let newest = app.host.incidents.newest().cloned().unwrap();
    let mut view = View::default();
    assert_eq!(
        sent(&mut view, &mut app, "dy"),
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py"
    );
    assert_eq!(sent(&mut view, &mut app, "2"), newest.fixes[1].change);
    assert!(matches!(press(&mut view, &mut app, KeyCode::Char('9')), Effect::Done));
    let refused = app.ui.message.clone().unwrap();
    assert!(refused.starts_with("no fix 9: this incident has"), "{refused}");
    let whole = markdown(std::slice::from_ref(&*newest), false);
    assert_eq!(sent(&mut view, &mut app, "Y"), whole.trim_end());
    assert_eq!(sent(&mut view, &mut app, "X"), "gputop incidents report 01kq3v7-x2c9 -o report.md");
}

#[test]
fn the_list_opens_the_one_under_the_cursor_and_it_is_read_then() {
    let mut app = app_with(Severity::Fatal);
    let mut view = View::default();
    for key in [KeyCode::Char('i'), KeyCode::Down, KeyCode::Enter] {
        press(&mut view, &mut app, key);
    }
    assert_eq!(
        sent(&mut view, &mut app, "X"),
        "gputop incidents report 01kq3v0-x2c9 -o report.md",
        "the earlier one is below"
    );
    let read: Vec<bool> = app.host.incidents.newest_first().map(|k| k.is_read).collect();
    assert_eq!(read, [false, true]);
    // Back in the list the cursor is where it was.
    press(&mut view, &mut app, KeyCode::Esc);
    press(&mut view, &mut app, KeyCode::Enter);
    assert!(sent(&mut view, &mut app, "X").contains("01kq3v0"));
}

#[test]
fn incident_list_names_hosts_only_when_there_are_several() {
    let mut app = app_with(Severity::Fatal);
    let list = |app: &App| text_of(&draw(app, "incidents", 120, 12));
    assert!(!list(&app).contains("node17"), "{}", list(&app));
    let mut all: Vec<ListedIncident> = app.host.incidents.newest_first().cloned().collect();
    all[1].incident =
        Arc::new(Incident { host: Some("node18".into()), ..Incident::clone(&all[1].incident) });
    app.host.incidents.take_stored(all);
    insta::assert_snapshot!("incident-incidents-two-hosts", list(&app));
}

#[test]
fn without_a_change_all_is_copied_and_without_a_store_there_is_no_report() {
    let mut app = app_with(Severity::Fatal);
    let mut incident = Incident::clone(app.host.incidents.newest().unwrap());
    incident.fixes.clear();
    incident.uid = None;
    app.host.incidents = Default::default();
    app.host.incidents.take_stored(vec![ListedIncident {
        incident: incident.into(),
        is_read: false,
        key: Default::default(),
        processes: Vec::new(),
        gpus: Vec::new(),
        scene: None,
    }]);
    let mut view = View::default();
    let whole = sent(&mut view, &mut app, "dy");
    assert!(whole.starts_with(EXPLAINED), "{whole}");
    assert!(whole.contains("\nWHEN  "), "{whole}");
    assert!(matches!(press(&mut view, &mut app, KeyCode::Char('X')), Effect::Done));
    let output = app.ui.message.clone().unwrap();
    assert!(output.contains("Incident not saved"), "{output}");
    // A screen without an explanation has nothing to report.
    press(&mut view, &mut app, KeyCode::Esc);
    press(&mut view, &mut app, KeyCode::Char('Y'));
    let output = app.ui.message.clone().unwrap();
    assert!(output.contains("press d to open the newest"), "{output}");
}

#[test]
fn incident_screen_draws_at_any_size() {
    let app = app_with(Severity::Note);
    for width in (0..=130).step_by(13).chain([40, 59, 60, 61, 200]) {
        for height in (0..=20).chain([24, 31, 60]) {
            for screen in ["overview", "incident", "incidents"] {
                let buffer = draw(&app, screen, width, height);
                assert_eq!(buffer.area.area(), u32::from(width) * u32::from(height));
            }
        }
    }
}

#[test]
fn missed_incident_is_announced_until_opened() {
    let user = User::new();
    user.fail("true", &[]);
    let fake = FakeNvml::h200s(1, "");
    let open = || dashboard(&fake).env("XDG_STATE_HOME", user.0.path()).start();
    let terminal = open();
    terminal.wait_text("d explain");
    let line = format!("{EXPLAINED}: ");
    assert!(terminal.text().contains(&line), "{}", terminal.text());
    terminal.send("d");
    terminal.wait_text("expandable_segments:True");
    // The end may be below the last row.
    terminal.send("\x1b[6~");
    terminal.wait_text("WHEN  ");
    terminal.send("\x1b");
    let is_without = |screen: &vt100::Screen| {
        let shown = screen.contents();
        shown.contains("SM%") && shown.contains("No incidents since")
    };
    terminal.wait_for(is_without, "the overview without it");
    terminal.send("q");
    terminal.wait_exit();
    // Another dashboard knows that the incident was read.
    let terminal = open();
    terminal.wait_text("SM%");
    // Incidents that happen while it is open also appear.
    user.run(OOM_KILLED, &[]);
    terminal.wait_text("KILLED BY SIGNAL 9");
    assert!(!terminal.text().contains(EXPLAINED), "{}", terminal.text());
    terminal.send("d");
    terminal.wait_text("host memory limit");
    terminal.send("d");
    terminal.wait_text("no other unread incidents");
    wait_until("the store's note", || {
        let state = user.0.path().join("gputop/incidents/state.json");
        let state: serde_json::Value =
            serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
        state["read"].as_object().unwrap().len() == 2
    });
}

/// Returns the app of the demo at 118 s, with its incidents. The status line names the GPU that is about to be full.
fn demo() -> App {
    demo_at(118)
}

fn demo_at(seconds: u64) -> App {
    let mut app = app_at(FOUR_GPUS, seconds, Palette::None, false, false);
    diagnose(&mut app, FOUR_GPUS, seconds);
    app
}

fn shown(view: &View, app: &App, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    view.draw(app, area, &mut buffer);
    text_of(&buffer)
}

#[test]
fn the_notice_names_gpu_and_program_before_the_error() {
    let text = text_of(&draw(&demo_at(150), "overview", 120, 40));
    assert!(text.contains("!! 21:44 GPU 3 leak.py 1139 MEMORY GREW UNTIL FULL: Memory"), "{text}");
    let small = text_of(&draw(&demo_at(150), "overview", 46, 6));
    assert!(small.contains("!! 21:44 MEMORY GREW UNTIL FULL "), "{small}");
}

#[test]
fn the_explain_key_prefers_the_process_under_the_cursor() {
    let mut app = demo_at(150);
    let mut view = View::default();
    view.follow(&app);
    assert!(shown(&view, &app, 120, 40).contains("d explain"));
    press(&mut view, &mut app, KeyCode::Char('G'));
    // The notice is about another process, so the key does not belong to it.
    let text = shown(&view, &app, 120, 40);
    let notice = text.lines().find(|line| line.contains("MEMORY GREW UNTIL FULL"));
    assert!(notice.is_some_and(|line| !line.contains("d explain")), "{text}");
    press(&mut view, &mut app, KeyCode::Char('d'));
    let text = shown(&view, &app, 120, 40);
    assert!(text.contains("LABEL OUT OF RANGE  Xid 43  GPU 3  labels.py 877"), "{text}");
    assert!(text.contains(" Also 21:44 GPU 3 leak.py 1139 MEMORY GREW UNTIL FULL"), "{text}");
    press(&mut view, &mut app, KeyCode::Char('d'));
    let text = shown(&view, &app, 120, 40);
    assert!(text.contains("MEMORY GREW UNTIL FULL  GPU 3  leak.py 1139"), "{text}");
}

#[test]
fn the_screen_of_a_process_explains_no_other_process() {
    let mut app = demo();
    let mut view = View::default();
    view.follow(&app);
    for key in [KeyCode::Tab, KeyCode::Char('M'), KeyCode::Char('d')] {
        app.ui.message = None;
        press(&mut view, &mut app, key);
    }
    let text = shown(&view, &app, 120, 40);
    assert!(text.contains("this process has no incident"), "{text}");
    // The sort order of the process table is of no interest here.
    app.ui.message = None;
    press(&mut view, &mut app, KeyCode::Char('v'));
    app.ui.message = None;
    let text = shown(&view, &app, 120, 40);
    assert!(!text.contains("sorted by"), "{text}");
}

#[test]
fn an_incident_of_another_process_is_announced_as_such() {
    let mut app = demo();
    let mut view = View::default();
    view.follow(&app);
    for key in [KeyCode::Tab, KeyCode::Down, KeyCode::Char('d')] {
        press(&mut view, &mut app, key);
    }
    let text = shown(&view, &app, 120, 40);
    assert!(
        text.contains("train.py 1098 has no incident; this is the newest unread one"),
        "{text}"
    );
}

#[test]
fn the_tour_leads_to_the_process_on_top_also_in_a_small_pane() {
    let mut app = demo();
    app.ui.guide = Some(Guide::Tour(0));
    let mut view = View::default();
    view.follow(&app);
    let text = shown(&view, &app, 40, 6);
    assert!(text.contains("1/7 Press d to see why."), "{text}");
    for (key, next) in [
        (KeyCode::Char('d'), "2/7 Press 1-9 to copy"),
        (KeyCode::Char('1'), "3/7 Press Esc to go back"),
        (KeyCode::Esc, "4/7 Press v to sort"),
        (KeyCode::Char('v'), "5/7 Press Tab to go to it"),
        (KeyCode::Tab, "6/7 Press M "),
        (KeyCode::Char('M'), "7/7 Press ? for help"),
    ] {
        press(&mut view, &mut app, key);
        app.ui.message = None;
        let text = shown(&view, &app, 40, 6);
        assert!(text.contains(next), "{text}");
    }
    let text = shown(&view, &app, 120, 40);
    assert!(text.contains("leak.py 1139"), "{text}");
}

/// Headline and GPU of each incident after the recording was played like this: entire parts, or only the events in them.
fn explained_after(parts: &[(u64, u64, bool)]) -> Vec<(String, Option<u32>)> {
    let file = File::from_bytes(Cow::Borrowed(FOUR_GPUS)).unwrap();
    let (start, end) = file.span();
    let mut diagnosis = RecordingDiagnosis::default();
    diagnosis.see(Update::Hello(Arc::new(file.hello().clone())));
    for (from, to, has_frames) in parts {
        let [from, to] = [from, to].map(|seconds| Mono(start.0 + seconds * 1_000));
        diagnosis.see(Update::Jump { from, summaries: Vec::new() });
        for line in lines_until(FOUR_GPUS, to.min(end)) {
            match line {
                Line::Update(Update::Frame(frame)) if *has_frames && frame.mono >= from => {
                    diagnosis.see(Update::Frame(Arc::clone(frame)));
                }
                Line::Update(Update::Event(event)) if event.mono >= from => {
                    diagnosis.see(Update::Event(event.clone()));
                }
                _ => {}
            }
        }
    }
    let (records, errors) = diagnosis.finish();
    assert_eq!(errors, [""; 0]);
    let mut all: Vec<_> = records
        .into_iter()
        .map(|record| (record.incident.headline, record.incident.fields.gpu_index))
        .collect();
    all.sort();
    all
}

#[test]
fn an_incident_keeps_its_explanation_after_seeking() {
    // Playback jumps over the failures, plays them, jumps over them again, and plays the last one again.
    let played = explained_after(&[
        (0, 1, true),
        (0, 240, false),
        (0, 240, true),
        (0, 240, false),
        (120, 160, true),
    ]);
    let expected =
        [("FRAGMENTED MEMORY", 2), ("LABEL OUT OF RANGE", 3), ("MEMORY GREW UNTIL FULL", 3)];
    assert_eq!(played, expected.map(|(headline, gpu)| (headline.to_owned(), Some(gpu))));
    // Without measurements, the kind of failure is less precise, but the GPU is known.
    let skipped = explained_after(&[(0, 1, true), (0, 240, false), (239, 240, true)]);
    let gpus = |all: &[(String, Option<u32>)]| all.iter().map(|one| one.1).collect::<Vec<_>>();
    assert_eq!(gpus(&skipped), [Some(2), Some(3), Some(3)], "{skipped:?}");
}

#[test]
fn the_keys_to_try_first_are_shown_only_on_the_overview() {
    let mut app = demo();
    app.ui.guide = Some(Guide::Keys);
    let mut view = View::default();
    view.follow(&app);
    // Unread incidents, and memory that is full soon, come first.
    let all: Vec<_> = app.host.incidents.newest_first().map(|i| Arc::clone(&i.incident)).collect();
    all.iter().for_each(|incident| app.host.incidents.open(incident));
    app.host.processes.clear_rows();
    let has_guide = |view: &View, app: &App| shown(view, app, 120, 40).contains("Space plays");
    assert!(has_guide(&view, &app));
    press(&mut view, &mut app, KeyCode::Char('i'));
    assert!(!has_guide(&view, &app));
}

#[test]
fn the_tour_waits_until_the_cursor_is_on_the_top_process() {
    let mut app = demo();
    app.ui.guide = Some(Guide::Tour(4));
    let mut view = View::default();
    view.follow(&app);
    press(&mut view, &mut app, KeyCode::Char('v'));
    for (key, stop) in [
        // From the last process, Tab first goes to the GPUs.
        (KeyCode::Char('G'), "5/7"),
        (KeyCode::Tab, "5/7"),
        (KeyCode::Tab, "6/7"),
    ] {
        press(&mut view, &mut app, key);
        app.ui.message = None;
        let text = shown(&view, &app, 40, 6);
        assert!(text.contains(stop), "{text}");
    }
}

#[test]
fn an_explanation_names_both_numbers_of_a_gpu() {
    let text = text_of(&draw(&demo(), "incident", 120, 100));
    assert!(text.contains("GPU 0 in the program is GPU 2 here"), "{text}");
}

#[test]
fn a_wide_explanation_has_two_columns() {
    let app = demo();
    let text = text_of(&draw(&app, "incident", 200, 50));
    let first = text.lines().find(|line| line.contains("FRAGMENTED MEMORY  GPU 2")).unwrap();
    assert!(first.trim_end().chars().count() > 120, "{text}");
    assert!(text.contains("WHEN  ") && !text.contains("more lines"), "{text}");
    // The second column starts with a whole section.
    let second: String = first.chars().skip(102).collect();
    let section = second.split_whitespace().next();
    assert!(section.is_some_and(|word| ["CHECK", "LOG", "ON", "WHY"].contains(&word)), "{text}");
}

#[test]
fn the_stack_of_an_incident_has_no_frames_of_the_hook() {
    let text = text_of(&draw(&demo(), "incident", 120, 100));
    let stack = text.find("STACK ").map(|at| &text[at..]).unwrap_or_default();
    assert!(stack.contains("fragment.py") && !stack.contains("memory_snapshot"), "{text}");
    assert!(!text.contains("gputop_hook.py"), "{text}");
}

#[test]
fn an_incident_that_becomes_fatal_on_its_page_is_not_announced() {
    let mut app = app_with(Severity::Caught);
    // Without processes, no memory is full soon.
    app.host.processes.clear_rows();
    let mut view = View::default();
    press(&mut view, &mut app, KeyCode::Char('d'));
    let mut all: Vec<ListedIncident> = app.host.incidents.newest_first().cloned().collect();
    let newest = all.first_mut().unwrap();
    Arc::make_mut(&mut newest.incident).severity = Severity::Fatal;
    newest.is_read = false;
    app.host.incidents.take_stored(all);
    assert_eq!(app.host.unread_incidents().count(), 2);
    view.follow(&app);
    // Only the earlier one of another day is announced.
    let text = shown(&view, &app, 120, 40);
    assert!(text.contains(" Also Jan 02 03:04 GPU 0 rank 3 "), "{text}");
    press(&mut view, &mut app, KeyCode::Esc);
    assert_eq!(app.host.unread_incidents().count(), 1);
}

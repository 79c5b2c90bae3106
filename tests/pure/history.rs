//! Past data in charts: a day in bounded memory, scrolled back and forth, live and in a recording.

use std::sync::Arc;
use std::time::Duration;

use crossterm::event::KeyCode;
use gputop::dashboard::past_frames::PastFrames;
use gputop::dashboard::recording::Recording;
use gputop::dashboard::return_point::ReturnPoint;
use gputop::incident::WatchResult;
use gputop::source::record::Recorder;
use gputop::source::replay::{Options, Recording as File, play};
use gputop::tui::app::App;
use gputop_model::event::{Event, Exit, Observation};
use gputop_model::frame::Frame;
use gputop_model::history::{DAY, GpuMetric, History, SeriesKey};
use gputop_model::incident::Incident;
use gputop_model::incident_key::IncidentKey;
use gputop_model::incident_record::Record;
use gputop_model::process::RunState;
use gputop_model::protocol::stream::Source;
use gputop_model::protocol::{Play, Position, Request, Update};
use gputop_model::units::{Bytes, Millis, Mono, Percent, UnixMillis};

use crate::support::many_processes::{Member, TestApp, frame};
use crate::support::screen_fixture;
use crate::support::training_day::{self, Day};

const MAX_BYTES: usize = 40 << 20;

/// A day with a frame every ten seconds, except for the last ten minutes: every bucket is filled.
#[test]
fn a_day_of_eight_gpus_and_64_processes_with_their_pools_fits() {
    let mut day = Day::new().with_pools();
    let mut history = History::default();
    day.step = 10;
    (0..8_640).for_each(|_| history.push(day.next()));
    day.step = 1;
    (0..600).for_each(|_| history.push(day.next()));
    let bytes = history.bytes();
    eprint_mib("a day", bytes);
    assert!(bytes <= MAX_BYTES, "{bytes}");
    // Nothing is missing: the chart of a day has no gap.
    let now = day.next().mono;
    let gpu = day.next().gpus[7].uuid.clone();
    let series = history.series(&SeriesKey::Gpu(gpu, GpuMetric::Power)).unwrap();
    let window = series.window(now, Millis(DAY.0 - 600_000), 400);
    assert_eq!(window.iter().position(Option::is_none), None);
}

/// Prints a size for runs with `--nocapture`.
#[allow(clippy::print_stderr)]
fn eprint_mib(what: &str, bytes: usize) {
    eprintln!("{what}: {:.1} MiB", bytes as f64 / f64::from(1 << 20));
}

/// Returns the frame `at` seconds after the first one. Its SM share encodes the time.
fn second(at: u64) -> Frame {
    second_with(at, &[])
}

fn second_with(at: u64, members: &[Member]) -> Frame {
    let mut frame = frame(1, members);
    frame.seq = at;
    frame.mono = Mono(1_000_000 + at * 1_000);
    frame.time = UnixMillis(1_700_000_000_000 + at as i64 * 1_000);
    frame.gpus[0].at = frame.mono;
    frame.gpus[0].sm = Percent((at / 60 % 100) as f64).into();
    if let Some(processes) = &mut frame.processes {
        processes.at = frame.mono;
    }
    frame
}

fn watched(seconds: u64) -> TestApp {
    let mut desk = TestApp::new(1, &[] as &[Member]);
    for at in 0..seconds {
        desk.update(Update::Frame(Arc::new(second(at))));
    }
    desk
}

/// Returns the lines of the charts, without those above them.
fn charts(desk: &TestApp) -> String {
    charts_in(desk, 40)
}

fn charts_in(desk: &TestApp, height: u16) -> String {
    let text = desk.text(120, height);
    let from = text.find("GPU 0 VRAM used").unwrap_or_else(|| panic!("{text}"));
    // Stop before the footer, which differs.
    let lines: Vec<&str> = text[from..].lines().collect();
    lines[..lines.len() - 1].join("\n")
}

#[test]
fn scrolled_charts_stand_still_until_0() {
    let mut desk = watched(7_200);
    assert!(charts(&desk).contains("now"));
    // A chart of an hour, scrolled back by half an hour.
    desk.send("{{((");
    let text = desk.text(120, 40);
    let header = text.lines().next().unwrap();
    // 7,199 seconds after 22:13:20, less 30 minutes.
    assert!(header.contains("charts end 23:43, 30m ago"), "{text}");
    assert!(header.contains("live 1s"), "{text}");
    let before = charts(&desk);
    for words in ["22:43", "23:13", "23:43, 30m ago"] {
        assert!(before.contains(words), "{before}");
    }
    assert!(!before.contains("now"), "{before}");
    for at in 7_200..7_320 {
        desk.update(Update::Frame(Arc::new(second(at))));
    }
    let after = charts(&desk);
    assert_eq!(after, before.replace("30m ago", "32m ago"));
    // The table keeps updating.
    assert!(desk.text(120, 40).contains("00:15:19"));
    desk.send("0");
    let text = desk.text(120, 40);
    assert!(!text.contains("charts end") && charts(&desk).contains("now"), "{text}");
}

#[test]
fn charts_scroll_no_further_than_the_data() {
    let mut desk = watched(1_200);
    for _ in 0..20 {
        desk.send("(");
    }
    let text = desk.text(120, 40);
    // The oldest frame that is retained for the tables.
    assert!(text.contains("as of 22:23:19, 10m ago  0 go to now"), "{text}");
    assert!(text.contains("no data before 22:13:20"), "{text}");
    // Scroll forward again, to now.
    for _ in 0..4 {
        desk.send(")");
    }
    let text = desk.text(120, 40);
    assert!(!text.contains("as of") && !text.contains("nothing is"), "{text}");
}

#[test]
fn tables_show_the_time_at_the_end_of_the_charts() {
    let mut desk = watched(1_200);
    // SM% equals the minute.
    assert!(charts(&desk).contains("GPU 0 SM 19%"), "{}", charts(&desk));
    desk.send("(");
    // A quarter of ten minutes before 1,199 s.
    let end = Mono(1_000_000 + 1_049_000);
    assert_eq!(desk.app.host.frame.mono, end);
    let text = desk.text(120, 40);
    assert!(text.contains("as of 22:30:49, 2m30 ago"), "{text}");
    assert!(charts(&desk).contains("GPU 0 SM 17%"), "{text}");
    (1_200..1_260).for_each(|at| desk.update(Update::Frame(Arc::new(second(at)))));
    assert_eq!(desk.app.host.frame.mono, end);
    // A process of that time may have exited since.
    desk.send("x");
    assert!(desk.text(120, 40).contains("view an earlier time"));
    desk.send("0");
    assert_eq!(desk.app.host.frame.mono, Mono(1_000_000 + 1_259_000));
    assert!(charts(&desk).contains("GPU 0 SM 20%"), "{}", charts(&desk));
}

#[test]
fn ten_minutes_of_frames_fit() {
    let mut day = Day::new().with_pools();
    let mut past = PastFrames::default();
    (0..700).for_each(|_| past.push(day.next()));
    eprint_mib("ten minutes of frames", past.bytes());
    assert!(past.bytes() <= MAX_BYTES, "{}", past.bytes());
    let now = day.next().mono;
    assert!(past.at(Mono(now.0 - 590_000)).is_some());
}

#[test]
fn paused_display_scrolls_and_0_resumes() {
    let mut desk = watched(3_600);
    desk.send("p(");
    let held = charts(&desk);
    assert!(held.contains("ago"), "{held}");
    (3_600..3_700).for_each(|at| desk.update(Update::Frame(Arc::new(second(at)))));
    assert_eq!(charts(&desk), held);
    desk.send("0");
    let text = desk.text(120, 40);
    assert!(text.contains("live 1s") && !text.contains("as of"), "{text}");
}

#[test]
fn the_wheel_over_a_chart_scrolls_in_time_and_elsewhere_moves_the_cursor() {
    use crossterm::event::{KeyModifiers, MouseEvent, MouseEventKind};
    let mut desk = watched(3_600);
    let area = ratatui::layout::Rect::new(0, 0, 120, 40);
    let mut wheel = |kind, row| {
        let event = MouseEvent { kind, column: 30, row, modifiers: KeyModifiers::NONE };
        desk.view.mouse(event, area, &mut desk.app);
        desk.app.host.time_window.end()
    };
    let now = 1_000_000 + 3_599_000;
    assert_eq!(wheel(MouseEventKind::ScrollUp, 3), None);
    let back = Some(Mono(now - 150_000));
    assert_eq!(wheel(MouseEventKind::ScrollUp, 34), back);
    assert_eq!(wheel(MouseEventKind::ScrollUp, 3), back);
    assert_eq!(wheel(MouseEventKind::ScrollDown, 34), None);
}

#[test]
fn exit_is_marked_and_exited_rows_are_kept_by_importance() {
    let mut desk = watched(3_000);
    let end = |pid: u32, at: u64, peak| {
        Update::Event(Event {
            mono: Mono(1_000_000 + at * 1_000),
            process: Some(gputop_model::process::ProcessKey {
                pid: gputop_model::units::Pid(pid),
                ..Default::default()
            }),
            observation: Observation::Exit(Box::new(Exit {
                gpus: vec![desk.app.host.frame.gpus[0].uuid.clone()],
                peak_vram: Bytes::gib(peak).into(),
                ..Exit::default()
            })),
            ..Event::default()
        })
    };
    let ends: Vec<_> = [(1, 10, 80)]
        .into_iter()
        .chain((2..400).map(|i| (i, u64::from(i) * 7, 1)))
        .map(|(pid, at, peak)| end(pid, at, peak))
        .collect();
    ends.into_iter().for_each(|end| desk.update(end));
    let has = |desk: &TestApp, pid| desk.app.host.ended.iter().any(|e| e.key.pid.0 == pid);
    assert!(has(&desk, 1) && has(&desk, 399) && !has(&desk, 5));
    assert_eq!(desk.app.host.ended.iter().len(), 100);
    let axis = |desk: &TestApp| {
        // Tall enough for the hundred rows above the charts.
        let text = charts_in(desk, 150);
        text.lines().find(|line| line.contains("now")).unwrap().to_owned()
    };
    assert!(axis(&desk).contains("□□"), "{}", axis(&desk));
    // A day later the rows are removed.
    let late = late_exit(86_400 + 3_000);
    desk.update(late);
    assert_eq!(desk.app.host.ended.iter().len(), 1);
}

#[test]
fn an_exited_process_that_the_driver_still_lists_holds_memory() {
    let mut desk = TestApp::new(1, &[] as &[Member]);
    let train = |state| {
        [Member::new(418, "ana", "train.py", &[(0, 20)]).with(|process| process.state = state)]
    };
    desk.update(Update::Frame(Arc::new(second_with(0, &train(RunState::Running)))));
    desk.update(Update::Event(Event {
        mono: Mono(1_000_000 + 500),
        process: Some(desk.app.host.processes.all_rows[0].id().key),
        observation: Observation::Exit(Box::default()),
        ..Event::default()
    }));
    // The list of a lost GPU is the last one that was read.
    for (at, read_at, holds_memory) in
        [(1, 1, false), (4, 4, false), (6, 6, true), (60, 60, true), (61, 2, false)]
    {
        let mut frame = second_with(at, &train(RunState::Zombie));
        frame.gpus[0].processes_at = Some(Mono(1_000_000 + read_at * 1_000));
        desk.update(Update::Frame(Arc::new(frame)));
        assert_eq!(desk.app.host.processes.all_rows.len(), 1);
        let text = desk.text(120, 40);
        assert_eq!(text.contains("train.py (zombie)"), holds_memory, "{at} s: {text}");
        assert_eq!(text.contains("(exited"), !holds_memory, "{at} s: {text}");
    }
    desk.update(Update::Frame(Arc::new(second(62))));
    assert!(desk.app.host.processes.all_rows[0].ended().is_some(), "{}", desk.text(120, 40));
}

#[test]
fn only_a_running_process_has_a_growth_rate() {
    let mut desk = TestApp::new(1, &[] as &[Member]);
    let train = |gib| [Member::new(418, "ana", "train.py", &[(0, gib)])];
    (0..60).for_each(|at| desk.update(Update::Frame(Arc::new(second_with(at, &train(at))))));
    assert!(desk.app.host.processes.all_rows[0].growth().is_some());
    desk.update(Update::Event(Event {
        mono: Mono(1_000_000 + 59_500),
        process: Some(desk.app.host.processes.all_rows[0].id().key),
        observation: Observation::Exit(Box::new(Exit {
            gpus: vec![desk.app.host.frame.gpus[0].uuid.clone()],
            ..Exit::default()
        })),
        ..Event::default()
    }));
    desk.update(Update::Frame(Arc::new(second(60))));
    let row = &desk.app.host.processes.all_rows[0];
    assert!(row.ended().is_some());
    assert_eq!(row.growth(), None);
}

#[test]
fn steady_growth_has_the_same_rate_at_every_second() {
    let mut desk = TestApp::new(1, &[] as &[Member]);
    for at in 0..90 {
        let train = [Member::new(418, "ana", "train.py", &[(0, at)])];
        desk.update(Update::Frame(Arc::new(second_with(at, &train))));
        if at >= 60 {
            assert_eq!(
                desk.app.host.processes.all_rows[0].growth_text().unwrap(),
                "+60.0",
                "second {at}"
            );
        }
    }
}

#[test]
fn only_growth_of_the_whole_minute_is_expected_to_go_on() {
    for (largest, expected) in [(90, true), (30, false)] {
        let mut desk = TestApp::new(1, &[] as &[Member]);
        for at in 0..66 {
            let train = [Member::new(418, "ana", "train.py", &[(0, at.min(largest))])];
            desk.update(Update::Frame(Arc::new(second_with(at, &train))));
        }
        let row = &desk.app.host.processes.all_rows[0];
        assert!(row.is_growing());
        assert_eq!(row.expected_growth() > 0.0, expected, "up to {largest} GiB");
    }
}

#[test]
fn the_pool_of_a_process_that_ended_is_seen_up_to_its_end() {
    use gputop_model::pool::{Pool, Pools, Sampled};
    use gputop_model::process::ProcessKey;
    use gputop_model::units::Pid;
    let process = ProcessKey { pid: Pid(418), ..ProcessKey::default() };
    let mut desk = watched(10);
    for at in 10..300 {
        let mut frame = second(at);
        let mut pool = Pool { process, ..Pool::default() };
        pool.stats.allocated = Sampled::new(Bytes::gib(40));
        pool.stats.reserved = Sampled::new(Bytes::gib(70));
        pool.stats.num_ooms = u64::from(at > 200);
        frame.pools = Some(Pools { at: frame.mono, list: vec![pool].into(), ..Pools::default() });
        desk.update(Update::Frame(Arc::new(frame)));
    }
    let gpus = vec![desk.app.host.frame.gpus[0].uuid.clone()];
    desk.update(Update::Event(Event {
        mono: Mono(1_000_000 + 299_500),
        process: Some(process),
        observation: Observation::Exit(Box::new(Exit {
            gpus,
            peak_vram: Bytes::gib(71).into(),
            ..Exit::default()
        })),
        ..Event::default()
    }));
    for at in 300..3_000 {
        desk.update(Update::Frame(Arc::new(second(at))));
    }
    // The current charts no longer contain the process.
    desk.send("\tM");
    let text = desk.text(120, 40);
    for words in
        ["the process has exited", "10m to 22:18:19, 44m ago", "cached", "■-", "22:18:19-□"]
    {
        let text = text.replace('─', "-");
        assert!(text.contains(words), "{words} in\n{text}");
    }
    // Scrolling starts from the process's exit, not from now.
    desk.send("(");
    let text = desk.text(120, 40);
    assert!(text.contains("no data before 22:13:20"), "{text}");
    assert_eq!(desk.app.host.time_window.end(), None);
    desk.send("}}}}(");
    assert_eq!(desk.app.host.time_window.end(), Some(Mono(1_000_000 + 284_500)));
    desk.send("0");
    assert!(desk.text(120, 40).contains("22:18:19, 44m ago"));
}

fn late_exit(at: u64) -> Update {
    Update::Event(Event {
        mono: Mono(1_000_000 + at * 1_000),
        process: Some(gputop_model::process::ProcessKey::default()),
        observation: Observation::Exit(Box::default()),
        ..Event::default()
    })
}

/// Returns a recording of three hours, with a frame every five seconds.
fn recording() -> File {
    let mut recorder = Recorder::new(Vec::new(), &training_day::hello()).unwrap();
    for at in (0..10_800).step_by(5) {
        let mut frame = second(at);
        frame.interval = Millis(5_000);
        recorder.frame(&frame).unwrap();
    }
    File::from_bytes(recorder.finish().unwrap().into()).unwrap()
}

/// A recording played as in the dashboard, without a terminal.
struct ReplayedApp {
    source: Source,
    runtime: tokio::runtime::Runtime,
    desk: TestApp,
}

impl ReplayedApp {
    fn new(file: File) -> Self {
        let (start, end) = file.span();
        let position = Position { start, end, paused: true, ..Position::default() };
        let mut desk = TestApp::new(1, &[] as &[Member]);
        desk.app.host.recording = Some(Recording {
            name: "x".into(),
            reason: None,
            repeats: false,
            is_jumping: false,
            is_reason_new: false,
            return_point: ReturnPoint::default(),
            position,
        });
        let options = Options { paused: true, ..Options::default() };
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let mut played = Self {
            source: play(file, options),
            runtime: builder.enable_time().build().unwrap(),
            desk,
        };
        played.wait("the start", |app| app.host.frame.mono == start);
        played
    }

    #[track_caller]
    fn wait(&mut self, what: &str, wanted: impl Fn(&App) -> bool) {
        while !wanted(&self.desk.app) {
            let source = &mut self.source;
            let next = async { tokio::time::timeout(Duration::from_secs(20), source.next()).await };
            let next = self.runtime.block_on(next);
            let next = next.unwrap_or_else(|_| panic!("waited for {what}"));
            self.desk.update(next.expect("a stream that goes on"));
            self.send_requests();
        }
    }

    fn send_requests(&mut self) {
        for request in std::mem::take(&mut self.desk.asked) {
            self.source.send(request);
        }
    }

    fn press(&mut self, key: KeyCode) {
        self.desk.press(key);
        self.send_requests();
    }

    fn send(&mut self, keys: &str) {
        keys.chars().for_each(|key| self.press(KeyCode::Char(key)));
    }

    fn go(&mut self, to: Mono) {
        self.source.send(Request::Play(Play::To(to)));
        self.wait("the moment", |app| app.host.frame.mono == to);
    }

    /// Waits until the playback position is known, which may arrive after its frame.
    fn wait_position(&mut self, to: Mono) {
        self.wait("the position", |app| {
            app.host.recording.as_ref().is_some_and(|recording| recording.position.now == to)
        });
    }
}

/// Returns how many of 60 columns show data in an SM chart of this length.
fn filled(app: &App, length: Millis) -> usize {
    let gpu = SeriesKey::Gpu(app.host.frame.gpus[0].uuid.clone(), GpuMetric::Sm);
    let series = app.host.history.series(&gpu);
    let spans = series.map(|s| s.window(app.host.time_axis(None).end, length, 60));
    spans.map_or(0, |spans| spans.iter().flatten().count())
}

const HOURS: fn(u64) -> Millis = |hours| Millis(hours * 3_600_000);

#[test]
fn in_a_recording_more_of_the_past_is_fetched_as_charts_reach_further_back() {
    let file = recording();
    let (start, end) = file.span();
    let mut played = ReplayedApp::new(file);
    played.go(end);
    assert_eq!(filled(&played.desk.app, HOURS(1)), 60);
    // Data that no chart shows is not loaded.
    assert!(filled(&played.desk.app, HOURS(2)) < 40);
    // Six hours: the whole recording.
    played.send("{{{");
    played.wait("the whole of it", |app| app.host.time_window.since() == Some(start));
    assert_eq!(filled(&played.desk.app, HOURS(3)), 60);
    // Loaded data survives a jump to a nearby time.
    played.press(KeyCode::Left);
    let before = Mono(end.0 - 10_000);
    played.wait("ten seconds before", |app| app.host.frame.mono == before);
    assert_eq!(filled(&played.desk.app, HOURS(2)), 60);
    // After a jump to a distant time, it is loaded again.
    played.go(start);
    played.go(end);
    played.wait("the whole again", |app| app.host.time_window.since() == Some(start));
    assert_eq!(filled(&played.desk.app, HOURS(3)), 60);
}

#[test]
fn in_a_recording_the_scroll_keys_move_the_playback_position() {
    let file = recording();
    let end = file.span().1;
    let mut played = ReplayedApp::new(file);
    played.go(end);
    played.wait_position(end);
    // A quarter of an hour.
    played.send("{{(");
    let before = Mono(end.0 - 900_000);
    played.wait("a quarter of an hour before", |app| app.host.frame.mono == before);
    assert_eq!(played.desk.app.host.now(), before);
    let text = played.desk.text(120, 40);
    assert!(!text.contains("charts end") && !text.contains("as of"), "{text}");
    played.press(KeyCode::Left);
    let earlier = Mono(before.0 - 10_000);
    played.wait("ten seconds before that", |app| app.host.frame.mono == earlier);
    played.send("}}}}}})");
    let later = Mono(earlier.0 + 15_000);
    played.wait("a quarter of a minute later", |app| app.host.frame.mono == later);
    played.wait_position(later);
    played.send("0");
    played.wait("the time before going back", |app| app.host.frame.mono == end);
}

#[test]
fn home_and_end_go_to_the_ends_of_a_recording_and_0_returns() {
    let file = recording();
    let (start, end) = file.span();
    let middle = Mono(end.0 - 900_000);
    let mut played = ReplayedApp::new(file);
    played.go(middle);
    played.wait_position(middle);
    for (key, to) in [(KeyCode::Home, start), (KeyCode::End, end)] {
        played.press(key);
        played.wait_position(to);
        let text = played.desk.text(120, 40);
        assert!(text.contains("  0 return to "), "{text}");
        played.send("0");
        played.wait_position(middle);
        let text = played.desk.text(120, 40);
        assert!(!text.contains("0 return"), "{text}");
    }
    played.send("0");
    let text = played.desk.text(120, 40);
    assert!(text.contains("nothing to return to; Home goes to the start"), "{text}");
}

#[test]
fn a_recording_does_not_announce_an_incident_after_the_time_on_the_screen() {
    let file = recording();
    let end = file.span().1;
    let mut played = ReplayedApp::new(file);
    played.go(end);
    played.wait_position(end);
    let incident = Incident { headline: "OUT OF MEMORY".into(), ..Incident::default() };
    let boot_id = training_day::hello().boot_id;
    let key = IncidentKey { boot_id, first: Mono(end.0 - 1_000), ..IncidentKey::default() };
    let result = WatchResult::Incident(Record::new(incident, key).into());
    let has_notice = |played: &ReplayedApp| played.desk.text(120, 40).contains("OUT OF MEMORY");
    // The diagnosis of the failure may end after the jump.
    played.press(KeyCode::Left);
    let before = Mono(end.0 - 10_000);
    played.wait("ten seconds before", |app| app.host.frame.mono == before);
    played.desk.app.take_watch_result(result);
    assert!(!has_notice(&played));
    played.send("i");
    assert!(!has_notice(&played));
    played.send("q");
    played.press(KeyCode::Right);
    played.wait("the end", |app| app.host.frame.mono == end);
    assert!(has_notice(&played));
}

#[test]
fn a_rewound_display_does_not_announce_a_later_incident() {
    let mut desk = watched(1_200);
    let incident = Incident { headline: "OUT OF MEMORY".into(), ..Incident::default() };
    let key = IncidentKey { first: Mono(1_000_000 + 1_150_000), ..IncidentKey::default() };
    let record = Record::new(incident, key);
    desk.app.take_watch_result(WatchResult::Incident(record.into()));
    let has_notice = |desk: &TestApp| desk.text(120, 40).contains("OUT OF MEMORY");
    assert!(has_notice(&desk));
    // The tables show 1,049 s.
    desk.send("(");
    assert!(!has_notice(&desk), "{}", desk.text(120, 40));
    desk.send("0");
    assert!(has_notice(&desk));
}

#[test]
fn enter_on_an_incident_goes_to_its_time_and_0_returns() {
    let incident_at = |first: u64, boot_id: &str| {
        let incident = Incident {
            headline: "OUT OF MEMORY".into(),
            time: Some(
                if boot_id == "another boot" {
                    "2026-06-01T12:00:00Z"
                } else {
                    "2026-06-02T12:00:00Z"
                }
                .into(),
            ),
            ..Incident::default()
        };
        let boot_id = boot_id.into();
        let key = IncidentKey { boot_id, first: Mono(first), ..IncidentKey::default() };
        WatchResult::Incident(Record::new(incident, key).into())
    };
    let file = recording();
    let end = file.span().1;
    let mut played = ReplayedApp::new(file);
    played.go(end);
    played.wait_position(end);
    let boot = training_day::hello().boot_id;
    played.desk.app.take_watch_result(incident_at(end.0 - 60_000, &boot));
    played.send("d");
    assert!(played.desk.text(120, 40).contains("Enter go to its time"));
    played.press(KeyCode::Enter);
    let after = Mono(end.0 - 55_000);
    let is_paused = |app: &App| app.host.recording.as_ref().is_some_and(|r| r.position.paused);
    played.wait("five seconds after, paused", |app| app.host.frame.mono == after && is_paused(app));
    let returns = |app: &App| app.host.recording.as_ref()?.return_time();
    played.wait("a time to return to", |app| returns(app) == Some(end));
    played.send("0");
    played.wait("the end", |app| app.host.frame.mono == end);

    // The charts of a live host go there, too.
    let mut desk = watched(1_200);
    desk.app.take_watch_result(incident_at(1_600_000, ""));
    desk.send("d\n");
    assert_eq!(desk.app.host.frame.mono, Mono(1_605_000));
    // An incident before the boot has no time in the charts.
    desk.app.take_watch_result(incident_at(1_600_000, "another boot"));
    desk.send("0d");
    assert!(!desk.text(120, 40).contains("go to its time"));
}

#[test]
fn the_screen_is_the_same_after_going_back_and_forth() {
    let file = File::from_bytes(screen_fixture::FOUR_GPUS.into()).unwrap();
    let start = file.span().0;
    let mut played = ReplayedApp::new(file);
    let mut screen_at = |seconds: u64| {
        let to = Mono(start.0 + seconds * 1_000);
        played.source.send(Request::Play(Play::To(to)));
        let is_there = |app: &App| {
            let position = app.host.recording.as_ref().map(|recording| recording.position.now);
            position.is_some_and(|now| now <= to && to.since(now) < Millis(1_500))
        };
        played.wait("the position", is_there);
        played.desk.text(120, 40)
    };
    // The jump sends all frames before that time.
    screen_at(117);
    let before = screen_at(121);
    assert_ne!(screen_at(111), before);
    assert_eq!(screen_at(121), before);
}

#[test]
fn charts_do_not_become_shorter_when_a_recording_goes_back() {
    let file = File::from_bytes(screen_fixture::FOUR_GPUS.into()).unwrap();
    let start = file.span().0;
    let mut played = ReplayedApp::new(file);
    let length = |app: &App| app.host.time_axis(None).length;
    played.source.send(Request::Play(Play::To(Mono(start.0 + 65_000))));
    played.wait("more than a minute", |app| app.host.now() >= Mono(start.0 + 64_000));
    let before = length(&played.desk.app);
    assert_eq!(before, Millis(120_000));
    played.press(KeyCode::Left);
    played.wait("less than a minute", |app| app.host.now() < Mono(start.0 + 58_000));
    assert_eq!(length(&played.desk.app), before);
}

//! Many hosts at once: their cost for the watching gputop, and what closed links leave behind.

use std::fs;
use std::time::Duration;

use gputop::incident::WatchResult;
use gputop::tui::app::App;
use gputop::tui::keymap::Keymap;
use gputop::tui::theme::{Palette, Theme};
use gputop_explain::live::Observer;
use gputop_model::history::{GpuMetric, History, Reach, SeriesKey};
use gputop_model::protocol::Update;
use gputop_model::units::Millis;
use jiff::tz::TimeZone;

use crate::support::disconnect_day::Telling;
use crate::support::fake_hosts::Hosts;
use crate::support::fake_machine::wait_until;
use crate::support::heap_bytes::allocated_bytes;
use crate::support::terminal::{Launch, Terminal};
use crate::support::training_day::Day;

fn dashboard(hosts: &Hosts) -> Terminal {
    let launch = Launch::gputop().args(hosts.targets());
    let (name, folder) = hosts.env();
    launch.env(name, folder).size(40, 160).start()
}

fn live(screen: &vt100::Screen) -> usize {
    screen.contents().matches(" live          8xH200 ").count()
}

/// Returns the numbers of open files, threads and children of a process.
fn held(pid: u32) -> [usize; 3] {
    let count = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
    let children = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let children = children.map(|task| fs::read_to_string(task.path().join("children")));
    let children = children.map(|list| list.unwrap_or_default().split_whitespace().count());
    [count("fd"), count("task"), children.sum()]
}

fn remote_threads(pid: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let names = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    names.filter(|name| name.starts_with("remote")).count()
}

#[test]
fn unopened_hosts_cost_little() {
    const HOSTS: usize = 24;
    let hosts = Hosts::start(HOSTS, 600, Duration::from_secs(1));
    let terminal = dashboard(&hosts);
    terminal.wait_text(&format!("{HOSTS} hosts"));
    terminal.wait_for(|screen| live(screen) == HOSTS, "all hosts live");
    for to in ["", "j", "G", "k", "g", "jjj"] {
        terminal.send(&format!("{to}\r"));
        terminal.wait_text("q back");
        terminal.wait_for(|screen| screen.contents().contains(" RANK "), "the processes of a host");
        terminal.send("H");
        terminal.wait_text(&format!("{HOSTS} hosts"));
    }
    let rows = |screen: &vt100::Screen| -> Vec<String> {
        let text = screen.contents();
        let names = text.lines().filter_map(|line| Some(line.split_once("$F/")?.1[..4].to_owned()));
        names.collect()
    };
    // Reverse the sort order of a column, then search. Every search term must occur in the row.
    terminal.send("sI");
    terminal.wait_for(|screen| rows(screen)[0] == "h023", "the last name first");
    terminal.send("/H01 live\r");
    terminal.wait_text("10 of 24 hosts match \"H01 live\"");
    terminal.wait_for(
        |screen| rows(screen) == (10..20).rev().map(|n| format!("h0{n}")).collect::<Vec<_>>(),
        "those",
    );
    terminal.send("\x1b");
    terminal.wait_for(|screen| rows(screen).len() == HOSTS, "all again");
    terminal.send("<");
    terminal.wait_for(|screen| rows(screen)[0] == "h000", "their own order");
    let status = fs::read_to_string(format!("/proc/{}/status", terminal.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let resident: usize = line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    // A debug build alone takes 60 MiB.
    let most = (60 << 10) + HOSTS * (3 << 9);
    assert!(resident < most, "{resident} KiB, more than {most}");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

#[test]
fn hundred_closed_links_leave_nothing_behind() {
    const HOSTS: usize = 25;
    let hosts = Hosts::start(HOSTS, 2, Duration::from_millis(100));
    hosts.hold(true);
    let terminal = dashboard(&hosts);
    terminal.wait_text(&format!("{HOSTS} hosts"));
    // Each host has a waiting command and three threads: for its stdout, its stderr, and requests to it.
    wait_until("all to wait", || remote_threads(terminal.pid()) == 3 * HOSTS);
    let before = held(terminal.pid());
    hosts.hold(false);
    wait_until("a hundred links", || hosts.opened() >= 4 * HOSTS);
    hosts.hold(true);
    let after = || held(terminal.pid());
    wait_until(&format!("{before:?} again"), || after() == before);
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
}

#[test]
fn background_host_keeps_an_hour_of_gpu_history() {
    let mut history = History::default();
    history.keep(Reach::Outline);
    let mut day = Day::new().with_pools();
    day.step = 10;
    (0..3 * 360).for_each(|_| history.push(day.next()));
    let frame = day.next();
    history.push(frame);
    let used = SeriesKey::Gpu(frame.gpus[0].uuid.clone(), GpuMetric::Sm);
    let hours = |hours: u64| {
        history.series(&used).unwrap().window(frame.mono, Millis(hours * 3_600_000), 60)
    };
    assert!(hours(1).iter().all(Option::is_some));
    assert!(hours(3)[..30].iter().all(Option::is_none));
    let process = frame.pools.as_ref().unwrap().list[0].process;
    assert!(history.pools_of(process).is_empty());
    let bytes = history.bytes();
    assert!(bytes < 256 << 10, "{bytes}");
    // Once the host is opened, everything is retained.
    history.keep(Reach::Whole);
    history.push(frame);
    assert!(!history.pools_of(process).is_empty());
}

/// Data retained for a host that is not on the screen, allocated by the measuring thread.
struct BackgroundHost {
    app: App,
    observer: Observer,
    update_generator: Telling,
}

impl BackgroundHost {
    fn new() -> Self {
        let keymap = Keymap::default();
        let theme = Theme::new(Palette::None, false, TimeZone::UTC);
        let mut app = App::new(theme, keymap, None);
        app.host.set_shown(false);
        app.host.set_reach(Reach::Outline);
        Self { app, observer: Observer::default(), update_generator: Telling::of(0) }
    }

    fn see(&mut self, reported: Vec<Update>) {
        for update in reported {
            let found = match &update {
                Update::Hello(hello) => {
                    self.observer.hello(hello.clone());
                    Vec::new()
                }
                Update::Frame(frame) => self.observer.frame(frame),
                Update::Event(event) => self.observer.event(event),
                _ => Vec::new(),
            };
            self.app.update(update);
            for revision in found {
                self.app.take_watch_result(WatchResult::Incident(Box::new(revision)));
            }
        }
    }
}

/// Memory of an incident that is still listed, including its scene.
const INCIDENT: usize = 20 << 10;

#[test]
fn background_host_grows_only_with_incidents() {
    let mut stored = BackgroundHost::new();
    let mut hourly_bytes = Vec::new();
    for _ in 0..24 {
        let reported = stored.update_generator.hour();
        stored.see(reported);
        hourly_bytes.push(allocated_bytes());
    }
    assert_eq!(stored.app.host.unread_incidents().count(), 24);
    let grew = hourly_bytes[23].saturating_sub(hourly_bytes[1]);
    assert!(grew < 22 * INCIDENT, "{grew} bytes in 22 hours");
    // At one frame per second, early warnings retain the last ten minutes of each pool.
    let reported = stored.update_generator.ten_minutes();
    stored.see(reported);
    let grew = allocated_bytes().saturating_sub(hourly_bytes[23]);
    assert!(grew < 192 << 10, "{grew} bytes in ten minutes");
    let BackgroundHost { app, observer, .. } = stored;
    let before = allocated_bytes();
    drop(observer);
    let observer_bytes = before - allocated_bytes();
    assert!(observer_bytes < 256 << 10, "{observer_bytes} bytes for who judges");
    let before = allocated_bytes();
    drop(app);
    let app_bytes = before - allocated_bytes();
    let most = 24 * INCIDENT + (256 << 10);
    assert!(app_bytes < most, "{app_bytes} bytes for who shows it");
}

//! The lines around every screen: the header with the host and data status, the totals, the status line, and the footer
//! with the available keys.

use std::ops::Range;
use std::sync::Arc;

use gputop_model::frame::Frame;
use gputop_model::incident::{Incident, Severity};
use gputop_model::link::Link;
use gputop_model::units::{Bytes, MilliWatts, Millis};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::{Clear, Widget};

use super::action::Action;
use super::app::App;
use super::guide::Guide;
use super::screen::Screen;
use super::screens::memory::MemoryScreen;
use super::screens::{incidents, ranks};
use super::theme::Role;
use super::widgets::cells::{put, put_all, put_fitting, put_line, put_line_right, put_right};
use super::{probe_question, signal_targets};
use crate::dashboard::dangers::{Danger, dangers};
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::fleet::{FleetRow, gpus_text};
use crate::dashboard::incidents::{ListedIncident, incident_time, news};
use crate::dashboard::pools::{first_fix, unread_text};
use crate::dashboard::process_columns::PROCESS_COLUMNS;
use crate::dashboard::recording::Recording;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::times::span_text;
use crate::dashboard::totals::GpuTotals;
use crate::export::explanation::program;
use crate::export::text_width::{columns, fit, whole_clauses};
use crate::tui::widgets::area::{margin, split_bottom};

/// Describes the batch job of the first process with a job: `job 81234`.
pub fn job_text(frame: &Frame) -> Option<String> {
    let processes = &frame.processes.as_ref()?.list;
    let job = processes.iter().find_map(|p| p.job.value())?;
    Some(format!("job {job}"))
}

/// Formats a duration: `0:12`, `1:02:03`.
fn clock_span(span: Millis) -> String {
    let seconds = span.0 / 1_000;
    let (h, m, s) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

/// Describes the recording and its position. A header of little width has no room for its name.
fn replay_text(recording: &Recording, width: u16) -> String {
    let position = recording.position;
    let state = match (position.at_end, position.paused) {
        (true, _) => " at end".to_owned(),
        (false, true) if (position.speed - 1.0).abs() < 0.01 => " paused".to_owned(),
        (false, true) => format!(" x{} paused", position.speed),
        _ if (position.speed - 1.0).abs() < 0.01 && recording.repeats => " repeats".to_owned(),
        _ if (position.speed - 1.0).abs() < 0.01 => String::new(),
        _ => format!(" x{}", position.speed),
    };
    let name = match recording.reason {
        _ if width < 60 => String::new(),
        Some(_) => format!(" {} (no GPU here)", recording.name),
        None => format!(" {}", recording.name),
    };
    if position.end == position.start {
        return format!(" REPLAY{name}{state} ");
    }
    let now = clock_span(position.now.since(position.start));
    let all = clock_span(position.end.since(position.start));
    format!(" REPLAY{name} {now}/{all}{state} ")
}

/// Names the key that returns to where a recording was before the user went back: `0 return to 2:03  `.
fn return_text(app: &App) -> Option<String> {
    let recording = app.host.recording.as_ref()?;
    let time = clock_span(recording.return_time()?.since(recording.position.start));
    Some(format!("{} return to {time}  ", app.ui.keymap.label(Action::Now)))
}

/// Help entry for hosts read through nvidia-smi.
pub const NVIDIA_SMI_HELP: (&str, &str) = (
    "reduced",
    "gputop is not running on the host, so the data comes from nvidia-smi and does not include allocators, logs or \
     incidents. `gputop --push HOST` copies gputop to the host.",
);

/// Describes a problem with the connection to a remote host. Returns `None` if the connection works.
pub fn link_text(link: &Link) -> Option<(String, Emphasis)> {
    Some(match link {
        Link::Up => return None,
        Link::Connecting => (" connecting ".into(), Emphasis::Warn),
        Link::Later { begins_in } => {
            (format!(" starts in {} ", span_text(*begins_in)), Emphasis::Dim)
        }
        Link::Silent { since } => (format!(" silent {} ", span_text(*since)), Emphasis::Warn),
        Link::Lost { since, .. } => (format!(" no link {} ", span_text(*since)), Emphasis::Bad),
    })
}

/// Draws the header. In a narrow pane, the state of the data source takes precedence.
pub fn header(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let clock = theme.clock(app.host.now_time(), " %H:%M:%S ");
    let clock_at = put_line_right(buffer, area, &clock, Role::Text, theme);
    let (text, role) = match &app.host.recording {
        Some(recording) => (replay_text(recording, area.width), Role::Banner),
        None if let Some((words, emphasis)) = app.host.link.as_ref().and_then(link_text) => {
            (words, emphasis.into())
        }
        None if app.host.source_end.is_some() => (" source closed ".into(), Role::Bad),
        None if app.host.hello.reduced && !app.host.paused => (
            format!("{} reduced {} ", theme.glyphs.live, interval_text(app.host.frame.interval)),
            Role::Warn,
        ),
        None if app.host.paused => (format!("{} paused ", theme.glyphs.paused), Role::Warn),
        None => (
            format!("{} live {} ", theme.glyphs.live, interval_text(app.host.frame.interval)),
            Role::Good,
        ),
    };
    let mut state_at = put_right(buffer, area.x, clock_at, area.y, &text, theme.style(role));
    let axis = app.host.time_axis(None);
    if axis.past.is_some() {
        let what = match app.host.is_rewound() {
            true => "as of",
            // Mention only the charts, because the tables still show current data.
            false => "charts end",
        };
        // Omit the key from a narrow header; the footer shows this key first.
        let key = match area.width {
            ..100 => String::new(),
            _ => {
                let now = Action::Now;
                format!("  {} {}", app.ui.keymap.label(now), now.def().short)
            }
        };
        let text = format!("{what} {}{key}  ", axis.end_text(theme));
        let warn = theme.style(Role::Warn);
        state_at = put_right(buffer, area.x, state_at, area.y, &text, warn);
    } else if let Some(text) = return_text(app).filter(|_| area.width >= 100) {
        let warn = theme.style(Role::Warn);
        state_at = put_right(buffer, area.x, state_at, area.y, &text, warn);
    }
    let fleet = match app.host.fleet.len() {
        0 => None,
        count => Some((format!("{count} hosts"), String::new())),
    };
    let (host, gpus) = fleet.unwrap_or_else(|| {
        let name = app.host.name.as_ref().unwrap_or(&app.host.hello.host);
        (name.clone(), gpus_text(&app.host.frame))
    });
    let job = job_text(&app.host.frame).unwrap_or_default();
    let parts = [(&host, Role::Title), (&gpus, Role::Text), (&job, Role::Dim)];
    let parts = parts.into_iter().filter(|(text, _)| !text.is_empty());
    let left = Rect { x: area.x + 1, width: state_at.saturating_sub(area.x + 2), ..area };
    put_fitting(buffer, left, parts.map(|(text, role)| (text.as_str(), role)), theme);
}

/// Draws the header of a screen that shows a file instead of a host.
pub fn headline(app: &App, text: &str, area: Rect, buffer: &mut Buffer) {
    put_line(buffer, margin(area), text, Role::Title, &app.ui.theme);
}

pub fn interval_text(interval: Millis) -> String {
    match interval.0 {
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

/// Content of the status line, the most urgent of what there is to say.
enum Status<'a> {
    /// A text, with what a key does about it.
    Text(String, Role, Option<Action>),
    /// The most severe unread incident.
    Incident(&'a Arc<Incident>),
}

/// Returns the current stop of the tour, if any, for a pane too small for the status line.
pub fn short_tour_text(app: &App) -> Option<String> {
    app.ui.guide?.short_words(&app.ui.keymap)
}

/// Returns what the status line of a screen shows: the tour, a lost connection, a present danger, an unread incident,
/// guidance, or that nothing has happened.
fn status<'a>(app: &App, unread: &[&'a ListedIncident], screen: &dyn Screen) -> Status<'a> {
    let guide = app.ui.guide.filter(|guide| guide.applies_to(screen.def().id));
    let guidance = |guide: Guide| {
        let is_paused = app.host.recording.as_ref().is_some_and(|r| r.position.paused);
        Status::Text(guide.words(&app.ui.keymap, is_paused, !unread.is_empty()), Role::Key, None)
    };
    if let Some(tour) = guide.filter(|guide| matches!(guide, Guide::Tour(_))) {
        return guidance(tour);
    }
    if let Some(status) = link_status(app) {
        return status;
    }
    if let Some(status) = reason_status(app, true) {
        return status;
    }
    // The incident of a lost GPU says more than that it is lost.
    let is_explained = |danger: &Danger| {
        unread.iter().any(|known| known.key.gpu.is_some() && known.key.gpu == danger.gpu)
    };
    let mut dangers = dangers(&app.host).into_iter().filter(|danger| !is_explained(danger));
    let danger = dangers.next();
    let second = dangers.find(|danger| danger.is_imminent);
    let incident = news(unread.iter().copied());
    match (danger, incident) {
        (Some(danger), Some(incident)) if !danger.is_imminent => {
            return Status::Incident(incident);
        }
        (Some(danger), incident) => {
            // The key of the screen that is shown would do nothing.
            let here = screen.def().id;
            let offers_ranks = danger.gpu.is_none() && here != ranks::DEF.id;
            let offers_incidents = incident.is_some() && here != incidents::DEF.id;
            let action = match (offers_ranks, offers_incidents) {
                (true, _) => Some(Action::Ranks),
                (false, true) => Some(Action::Incidents),
                (false, false) => None,
            };
            // There is hardly room for the details of two.
            let rest = second.map_or(danger.detail, |second| format!("; {}", second.text));
            return Status::Text(danger.text + &rest, danger.emphasis.into(), action);
        }
        (None, Some(incident)) => return Status::Incident(incident),
        (None, None) => {}
    }
    if let Some(status) = reason_status(app, false) {
        return status;
    }
    if let Some(words) = unread_text(&app.host.frame) {
        let fix = first_fix(&app.host.frame).map_or_else(String::new, |fix| format!(": {fix}"));
        return Status::Text(words + &fix, Role::Warn, Some(Action::Unread));
    }
    guide.map_or_else(|| nothing_happened(app), guidance)
}

/// Returns the action of the key that the status line names. `explained` is the incident that the explain key opens.
pub fn status_action(
    app: &App,
    unread: &[&ListedIncident],
    explained: Option<&Arc<Incident>>,
    screen: &dyn Screen,
) -> Option<Action> {
    match status(app, unread, screen) {
        Status::Text(_, _, action) => action,
        Status::Incident(incident) => Some(key_to(incident, explained)),
    }
}

/// Returns the action that opens an incident, or else the list of incidents.
fn key_to(incident: &Arc<Incident>, explained: Option<&Arc<Incident>>) -> Action {
    if Some(incident) == explained { Action::Why } else { Action::Incidents }
}

/// Returns why a recording plays instead of this machine's GPUs, `only_new` if the user has not pressed a key since.
fn reason_status<'a>(app: &App, only_new: bool) -> Option<Status<'a>> {
    let recording = app.host.recording.as_ref().filter(|r| r.is_reason_new || !only_new)?;
    let reason = recording.reason.as_ref()?;
    let text = format!("{reason} This is a recording. `gputop doctor` says more.");
    Some(Status::Text(text, Role::Warn, None))
}

fn link_status<'a>(app: &App) -> Option<Status<'a>> {
    let Some(Link::Lost { why, asks, again_in, .. }) = &app.host.link else { return None };
    let text = match (asks, again_in.0) {
        (true, _) => format!("Stale data: connection lost, and ssh needs your input ({why})"),
        (false, 0) => format!("Stale data: connection lost ({why}). Retrying now."),
        _ => format!("Stale data: connection lost ({why}). Retrying in {}.", span_text(*again_in)),
    };
    Some(Status::Text(text, Role::Bad, asks.then_some(Action::Connect)))
}

fn nothing_happened<'a>(app: &App) -> Status<'a> {
    let newest =
        app.host.shown_incidents().filter_map(|known| incident_time(&known.incident)).max();
    let text = match newest.or(app.host.first_time()) {
        Some(since) => {
            let day = |time| app.ui.theme.clock(time, "%F");
            let is_today = day(since) == day(app.host.now_time());
            let format = if is_today { "%H:%M" } else { "%b %d %H:%M" };
            format!("No incidents since {}", app.ui.theme.clock(since, format))
        }
        None => String::new(),
    };
    Status::Text(text, Role::Dim, None)
}

/// Draws the status line. `explained` is the incident that the explain key opens.
pub fn status_line(
    app: &App,
    unread: &[&ListedIncident],
    explained: Option<&Arc<Incident>>,
    screen: &dyn Screen,
    area: Rect,
    buffer: &mut Buffer,
) {
    match status(app, unread, screen) {
        Status::Incident(news) => {
            let is_above_page = screen.incident().is_some();
            incident(app, news, unread, explained, is_above_page, area, buffer);
        }
        Status::Text(text, role, action) => {
            let theme = &app.ui.theme;
            let area = margin(area);
            let right = match action {
                Some(Action::Incidents) => put_incidents_key(app, unread, area, buffer),
                Some(action) => {
                    let right = put_key(app, action, (action.def().short, Role::Dim), area, buffer);
                    let rest = Rect { width: right.saturating_sub(area.x), ..area };
                    let has_incidents = action == Action::Ranks && !unread.is_empty();
                    match has_incidents && area.width >= 60 {
                        true => put_incidents_key(app, unread, rest, buffer),
                        false => right,
                    }
                }
                None => area.right(),
            };
            let text = fit(&text, usize::from(right.saturating_sub(area.x)), theme.glyphs.ellipsis);
            put(buffer, area.x, area.y, &text, area.width, theme.style(role));
        }
    }
}

/// Draws the number of unread incidents and the key of their list at the right end of an area, in the colour of the most
/// severe one. Returns its first column.
fn put_incidents_key(
    app: &App,
    unread: &[&ListedIncident],
    area: Rect,
    buffer: &mut Buffer,
) -> u16 {
    let words = match unread.len() {
        0 | 1 => "incident".to_owned(),
        count => format!("{count} incidents"),
    };
    let severity = news(unread.iter().copied()).map(|incident| incident.severity);
    let role = severity.map_or(Role::Dim, Role::of_severity);
    put_key(app, Action::Incidents, (&words, role), area, buffer)
}

/// Draws a key at the right end of an area, and what it does: ` d explain`. Returns its first column.
fn put_key(
    app: &App,
    action: Action,
    (words, role): (&str, Role),
    area: Rect,
    buffer: &mut Buffer,
) -> u16 {
    let theme = &app.ui.theme;
    let words = format!(" {words}");
    let right = put_right(buffer, area.x, area.right(), area.y, &words, theme.style(role));
    let key = format!("  {}", app.ui.keymap.label(action));
    put_right(buffer, area.x, right, area.y, &key, theme.style(Role::Key))
}

/// Draws the sums over the machine: `SM 91%   VRAM 942 of 1123 GiB   5.1 of 5.6 kW   max 67C   CPU 22% of 64 cores`. A
/// narrow screen shows the first items that fit.
pub fn totals(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let absent = theme.glyphs.absent;
    let totals = GpuTotals::of(&app.host.frame.gpus);
    let mut items: Vec<(String, Role)> = Vec::new();
    let mut add = |text: String, role| items.push((text, role));
    if totals.lost > 0 {
        add(format!("{} lost", totals.lost), Role::Bad);
    }
    let known = |text: Option<String>| text.unwrap_or_else(|| absent.into());
    add(format!("SM {:>4}", known(totals.sm.map(|sm| format!("{sm:.0}%")))), Role::Text);
    let vram = totals.used.zip(totals.memory);
    let vram = vram
        .map(|(used, all)| format!("{} of {} GiB", whole_gib(used), whole_gib(all).trim_start()));
    // GPUs that share the host's memory have no total: that of RAM follows.
    let vram = vram.or(totals.used.map(|used| format!("{} GiB", whole_gib(used))));
    add(format!("VRAM {}", known(vram)), Role::Text);
    if let Some(power) = totals.power {
        add(power_text(power, totals.power_cap), Role::Text);
    }
    if let Some(hottest) = totals.hottest {
        add(format!("max {}C", hottest.0), Role::Text);
    }
    if let Some(host) = &app.host.frame.host {
        add(String::new(), Role::Text);
        let cores = host.cores.get().map_or_else(String::new, |cores| format!(" of {cores} cores"));
        add(
            format!("CPU {:>4}{cores}", known(host.cpu.get().map(|cpu| format!("{:.0}%", cpu.0)))),
            Role::Text,
        );
        let memory = host.memory_used.get().zip(host.memory_total.get());
        let memory = memory.map(|(used, all)| {
            format!("{} of {} GiB", whole_gib(used), whole_gib(all).trim_start())
        });
        add(format!("RAM {}", known(memory)), Role::Text);
        if let Some(swap) = host.swap_used.get().filter(|b| *b > Bytes::gib(1)) {
            add(format!("swap {}", swap.short()), Role::Warn);
        }
    }
    let driver = app.host.frame.driver.as_ref().and_then(|driver| driver.version.value());
    if let Some(driver) = driver {
        add(format!("driver {driver}"), Role::Text);
    }
    let mut at = area.x + 1;
    for (text, role) in items {
        let width = u16::try_from(columns(&text)).unwrap_or(u16::MAX);
        if at.saturating_add(width) >= area.right() {
            break;
        }
        let (name, value) = match text.split_once(' ') {
            Some((name, value)) if name.chars().all(char::is_alphabetic) => (name, value),
            _ => ("", text.as_str()),
        };
        let gap = if name.is_empty() { "" } else { " " };
        let dim = theme.style(Role::Dim);
        let pieces = [(name, dim), (gap, dim), (value, theme.style(role))];
        at = put_all(buffer, at, area.y, area.right(), &pieces) + 3;
    }
}

/// Formats a size in whole GiB, or with a decimal below 10 GiB.
fn whole_gib(size: Bytes) -> String {
    let decimals = usize::from(size.as_gib() < 9.95);
    format!("{:>4.decimals$}", size.as_gib())
}

/// Formats power as `5.1 of 5.6 kW`, or in W if a machine cannot use a kilowatt.
fn power_text(power: MilliWatts, cap: Option<MilliWatts>) -> String {
    let is_kilo = power.max(cap.unwrap_or(power)).0 >= 1_000_000;
    let number = |power: MilliWatts| match is_kilo {
        true => format!("{:.1}", f64::from(power.0) / 1e6),
        false => format!("{:>3}", power.0 / 1_000),
    };
    let cap = cap.map_or_else(String::new, |cap| format!("of {} ", number(cap).trim_start()));
    format!("{} {cap}{}W", number(power), if is_kilo { "k" } else { "" })
}

/// Minimum width of a truncated incident title. Shorter titles are not informative.
const MIN_TITLE_COLUMNS: usize = 20;

/// Draws an incident: `!! 12:03 GPU 0 train.py 418 OUT OF MEMORY: 2.00 GiB did not fit  i 2 more  d explain`. If the
/// explain key opens another incident, `explained`, shows the key of the list. Above the page of an incident, says that this
/// is another one.
pub fn incident(
    app: &App,
    incident: &Arc<Incident>,
    unread: &[&ListedIncident],
    explained: Option<&Arc<Incident>>,
    is_above_page: bool,
    area: Rect,
    buffer: &mut Buffer,
) {
    let theme = &app.ui.theme;
    let area = if area.width >= 60 { margin(area) } else { area };
    let x = area.x;
    let action = key_to(incident, explained);
    let opens_another = action == Action::Why && is_above_page;
    let others = unread.len().saturating_sub(1);
    let right = match action {
        _ if opens_another => put_key(app, action, ("open", Role::Dim), area, buffer),
        Action::Incidents => put_incidents_key(app, unread, area, buffer),
        action => put_key(app, action, (action.def().short, Role::Dim), area, buffer),
    };
    let right = if others > 0 && action != Action::Incidents && area.width >= 60 {
        let rest = Rect { width: right.saturating_sub(x), ..area };
        put_key(app, Action::Incidents, (&format!("{others} more"), Role::Dim), rest, buffer)
    } else {
        right
    };
    let room = usize::from(right.saturating_sub(x));
    let mark = match incident.severity {
        _ if is_above_page => "Also",
        Severity::Note => "!",
        _ => "!!",
    };
    let all = incident_texts(app, incident, mark);
    let title_room = room.saturating_sub(columns(&all[0]) + ": ".len());
    let words = if title_room >= MIN_TITLE_COLUMNS {
        format!("{}: {}", all[0], whole_clauses(&incident.title, title_room))
    } else {
        let fits = |text: &&String| columns(text) <= room;
        all.iter().find(fits).or(all.last()).cloned().unwrap_or_default()
    };
    let words = fit(&words, room, theme.glyphs.ellipsis);
    let style = theme.style(Role::of_severity(incident.severity));
    put(buffer, x, area.y, &words, right.saturating_sub(x), style);
}

/// Returns descriptions of an incident without its title, longest first, from `!! 12:03 GPU 0 rank 3 train.py 418 OUT OF
/// MEMORY (caught)` to `!! 12:03 OUT OF MEMORY`.
fn incident_texts(app: &App, incident: &Incident, mark: &str) -> Vec<String> {
    let time = incident_time(incident).map(|time| {
        let day = |time| app.ui.theme.clock(time, "%F");
        // Show the date of an incident from another day.
        let format = if day(time) == day(app.host.frame.time) { "%H:%M" } else { "%b %d %H:%M" };
        app.ui.theme.clock(time, format)
    });
    let caught = match incident.severity {
        Severity::Caught => " (caught)",
        _ => "",
    };
    let headline = &incident.headline;
    let start: Vec<String> = std::iter::once(mark.to_owned()).chain(time).collect();
    let fields = &incident.fields;
    let gpu = fields.gpu_index.map(|gpu| format!("GPU {gpu}"));
    let rank = fields.rank.map(|rank| format!("rank {rank}"));
    let subject: Vec<String> = gpu.into_iter().chain(rank).chain(program(incident)).collect();
    let line = |parts: usize| {
        let words: Vec<&str> = start
            .iter()
            .chain(&subject[..parts])
            .map(String::as_str)
            .chain([&**headline])
            .collect();
        words.join(" ")
    };
    let all = (0..=subject.len()).rev().map(|parts| line(parts) + caught);
    all.chain([line(0)]).collect()
}

/// Describes the active filter: `filter: train (3 hidden)`.
pub fn filter_text(app: &App) -> String {
    let clear = app.ui.keymap.label(Action::Back);
    format!(
        "filter: {} ({} hidden, {clear} clears)",
        app.host.processes.filter, app.host.processes.hidden
    )
}

/// Describes the settings in effect for the process table: filter, grouping, tags and sort order. Empty on screens
/// without that table.
fn arrangement(app: &App, screen: &dyn Screen) -> String {
    let mut words = Vec::new();
    if !screen.shows_all_processes() {
        return String::new();
    }
    if !app.host.processes.filter.is_empty() {
        words.push(filter_text(app));
    }
    words.extend(app.host.processes.grouping.words().map(str::to_owned));
    if !app.host.processes.tags.is_empty() {
        words.push(format!("{} tagged", app.host.processes.tags.len()));
    }
    if let Some(column) = app.host.processes.sort.and_then(|at| PROCESS_COLUMNS.get(at)) {
        let order = if app.host.processes.inverted { ", reversed" } else { "" };
        words.push(format!("sorted by {}{order}", column.title));
    }
    words.join("  ")
}

/// Draws a message over the last line of `area`.
pub fn message(app: &App, message: &str, area: Rect, buffer: &mut Buffer) {
    let [_, last] = split_bottom(area, 1);
    Clear.render(last, buffer);
    put_line(buffer, last, message, Role::Warn, &app.ui.theme);
}

/// A footer key with its position.
#[derive(Debug, Clone)]
pub struct Hint {
    pub columns: Range<u16>,
    pub action: Action,
    key: String,
    word: &'static str,
    is_right: bool,
}

impl Hint {
    fn new(action: Action, word: &'static str, app: &App) -> Option<Self> {
        let keys = app.ui.keymap.keys(action);
        (!keys.is_empty()).then(|| Self {
            columns: 0..0,
            action,
            key: app.ui.keymap.label(action),
            word,
            is_right: false,
        })
    }

    fn width(&self) -> u16 {
        u16::try_from(columns(&self.key) + 1 + columns(self.word)).unwrap_or(u16::MAX)
    }
}

/// Returns the process row under the cursor. If a GPU is under the cursor, returns its largest process, preferring
/// processes with a known pool.
pub fn process_under_cursor<'a>(screen: &dyn Screen, app: &'a App) -> Option<&'a ProcessRow> {
    let gpu = || screen.gpu(app).filter(|_| screen.group(app).is_none());
    let largest = || MemoryScreen::largest(&app.host.processes.all_rows, &gpu()?);
    screen.process(app).or_else(largest)
}

/// Returns true if the action has an effect on the screen as it is now.
fn is_offered(action: Action, screen: &dyn Screen, app: &App) -> bool {
    match action {
        Action::Signal => {
            let has_target = screen.process(app).is_some() || !app.host.processes.tags.is_empty();
            has_target && signal_targets::is_allowed(app).is_ok()
        }
        Action::Connect => app.host.fleet.iter().any(FleetRow::is_lost),
        Action::Probe => probe_question::is_allowed(app).is_ok(),
        Action::Memory => process_under_cursor(screen, app).is_some(),
        // A recording may contain readings, but cannot take another one.
        Action::Holders if screen.holders().is_none() => {
            let process = process_under_cursor(screen, app).map(|row| row.id().key);
            process.is_some_and(|process| app.host.missing_holders(process).is_none())
        }
        Action::Slow => {
            let running = process_under_cursor(screen, app).filter(|row| row.ended().is_none());
            let is_sampled = |row: &ProcessRow| app.host.why.window(row.id().key).is_some();
            running.is_some_and(|row| app.host.recording.is_none() || is_sampled(row))
        }
        // Its key pauses a recording.
        Action::Tag => app.host.recording.is_none(),
        // Hide these keys during playback: recordings contain no logs, no stack can be read, the incidents are not
        // stored, and there is another pause key.
        Action::Log | Action::Stack | Action::Wrong | Action::Pause => app.host.recording.is_none(),
        // The keys that skip ten seconds are listed instead.
        Action::ScrollBack => app.host.recording.is_none(),
        _ => screen.has_use_for(action, app),
    }
}

/// Returns the short label of an action. Some actions are labelled with their current effect.
pub fn footer_word(action: Action, screen: &dyn Screen, app: &App) -> &'static str {
    if let Some(label) = screen.footer_label(action) {
        return label;
    }
    match (action, &app.host.recording) {
        (Action::PlayPause, Some(recording)) if recording.position.paused => "play",
        (Action::Pause, None) if app.host.paused => "resume",
        (Action::Now, Some(_)) => "return",
        _ => action.def().short,
    }
}

/// Number of screen keys listed before the playback keys.
const MAIN_KEYS: usize = 4;

/// Returns the footer keys, and the column where the text about the table settings must end. Even the narrowest pane
/// shows quit and help. Returns no keys while a message is shown.
pub fn hints(app: &App, screen: &dyn Screen, is_first: bool, area: Rect) -> (Vec<Hint>, u16) {
    let mut right = area.right().saturating_sub(1);
    if app.ui.message.is_some() {
        return (Vec::new(), right);
    }
    let quit = screen.footer_label(Action::Quit);
    let quit = quit.unwrap_or(if is_first { "quit" } else { "back" });
    let mut hints = Vec::new();
    for (action, word) in [(Action::Quit, quit), (Action::Help, Action::Help.def().short)] {
        if let Some(hint) = Hint::new(action, word, app) {
            let start = right - hint.width().min(right.saturating_sub(area.x));
            hints.push(Hint { columns: start..right, is_right: true, ..hint });
            right = start.saturating_sub(2);
        }
    }
    let arrangement_end = right;
    let width = match columns(&arrangement(app, screen)) {
        0 => 0,
        width => u16::try_from(width + 2).unwrap_or(u16::MAX),
    };
    right -= width.min(right.saturating_sub(area.x));
    // While the display is rewound, list the keys that return to the current time early. List playback keys after the
    // screen's main keys.
    let skips = if screen.moves_sideways() {
        [Action::ScrollBack, Action::ScrollForward]
    } else {
        [Action::SkipBack, Action::SkipForward]
    };
    let (before_play, play): (usize, Vec<Action>) = match &app.host.recording {
        None if app.host.time_window.end().is_some() => {
            (0, vec![Action::Now, Action::ScrollBack, Action::ScrollForward])
        }
        None => (0, Vec::new()),
        Some(recording) if recording.return_time().is_some() => {
            (2, vec![Action::Now, Action::PlayPause, skips[0], skips[1]])
        }
        Some(_) => (MAIN_KEYS, vec![Action::PlayPause, skips[0], skips[1]]),
    };
    let own = screen.footer().iter();
    let own = own.filter(|action| !play.contains(action) && is_offered(**action, screen, app));
    let (main, other) = (own.clone().take(before_play), own.skip(before_play));
    let mut at = area.x + 1;
    for action in main.chain(&play).chain(other) {
        let Some(hint) = Hint::new(*action, footer_word(*action, screen, app), app) else {
            continue;
        };
        let end = at + hint.width();
        if end > right {
            break;
        }
        hints.push(Hint { columns: at..end, ..hint });
        at = end + 2;
    }
    (hints, arrangement_end)
}

/// Draws the footer keys, or the current message.
pub fn footer(app: &App, screen: &dyn Screen, is_first: bool, area: Rect, buffer: &mut Buffer) {
    let (theme, dim) = (&app.ui.theme, app.ui.theme.style(Role::Dim));
    if let Some(message) = &app.ui.message {
        put_line(buffer, margin(area), message, Role::Warn, theme);
        return;
    }
    let (hints, end) = hints(app, screen, is_first, area);
    put_right(buffer, area.x, end, area.y, &arrangement(app, screen), theme.style(Role::Warn));
    for hint in hints {
        let key = if hint.is_right { dim } else { theme.style(Role::Key) };
        let pieces = [(hint.key.as_str(), key), (" ", dim), (hint.word, dim)];
        put_all(buffer, hint.columns.start, area.y, hint.columns.end, &pieces);
    }
}

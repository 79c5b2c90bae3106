//! The line above and the line below every screen: where we are and whose data this is; which keys work here.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::{Clear, Widget};

use super::action::Action;
use super::app::{App, Recording};
use super::columns::PROCESS_COLUMNS;
use super::incidents::moment;
use super::probe_menu;
use super::screens::Screen;
use super::screens::fleet::FleetRow;
use super::screens::incident::role;
use super::signal_menu::SignalMenu;
use super::theme::Role;
use super::widgets::cells::{columns, fit, put, put_all, put_line, put_right, wrap_words};
use super::widgets::timeline::span_words;
use crate::model::frame::Frame;
use crate::model::incident::{Incident, Severity};
use crate::model::link::Link;
use crate::model::units::Millis;

/// `8xH200`, or the names one by one when they differ.
pub fn gpus_words(frame: &Frame) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for gpu in &frame.gpus {
        let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
        let name = name.strip_prefix("GeForce ").unwrap_or(name);
        match kinds.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name.to_owned(), 1)),
        }
    }
    if kinds.is_empty() {
        return "no GPU".into();
    }
    kinds
        .iter()
        .map(|(name, count)| format!("{count}x{name}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The job that most processes here belong to.
pub fn job_words(frame: &Frame) -> Option<String> {
    let processes = &frame.processes.as_ref()?.list;
    let job = processes.iter().find_map(|p| p.job.value())?;
    Some(format!("job {job}"))
}

/// `0:12`, `1:02:03`
fn clock_span(span: Millis) -> String {
    let seconds = span.0 / 1_000;
    let (h, m, s) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if h > 0 {
        format!("{h}:{m:02}:{s:02}")
    } else {
        format!("{m}:{s:02}")
    }
}

fn replay_words(recording: &Recording) -> String {
    let position = recording.position;
    let state = match (position.at_end, position.paused) {
        (true, _) => " at its end".to_owned(),
        (false, true) => " paused".to_owned(),
        _ if (position.speed - 1.0).abs() < 0.01 => String::new(),
        _ => format!(" x{}", position.speed),
    };
    let now = clock_span(position.now.since(position.start));
    let all = clock_span(position.end.since(position.start));
    format!(" REPLAY {} {now}/{all}{state} ", recording.name)
}

/// A word for help.
pub const REDUCED: (&str, &str) = (
    "reduced",
    "No gputop runs on that host: nvidia-smi tells what it can, which is nothing of allocators, logs and failures. \
     `gputop --push HOST` copies gputop there.",
);

/// What is wrong with the link to a far host, if anything is.
pub fn link_words(link: &Link) -> Option<(String, Role)> {
    match link {
        Link::Up => None,
        Link::Connecting => Some((" connecting ".into(), Role::Warn)),
        Link::Later { begins_in } => {
            let words = format!(" begins in {} ", span_words(*begins_in));
            Some((words, Role::Dim))
        }
        Link::Silent { since } => Some((format!(" silent {} ", span_words(*since)), Role::Warn)),
        Link::Lost { since, .. } => Some((format!(" no link {} ", span_words(*since)), Role::Bad)),
    }
}

/// One line; in a narrow pane the state of the source is what stays.
pub fn header(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.theme;
    let clock = theme.clock(app.frame.time, " %H:%M:%S ");
    let clock_at = put_right(
        buffer,
        area.x,
        area.right(),
        area.y,
        &clock,
        theme.style(Role::Text),
    );
    let (text, role) = match &app.recording {
        Some(recording) => (replay_words(recording), Role::Banner),
        None if let Some(state) = app.link.as_ref().and_then(link_words) => state,
        None if app.ended_source.is_some() => (" source ended ".into(), Role::Bad),
        None if app.hello.reduced && !app.paused => (
            format!(
                "{} reduced {} ",
                theme.glyphs.live,
                interval_words(app.frame.interval)
            ),
            Role::Warn,
        ),
        None if app.paused => (format!("{} held ", theme.glyphs.paused), Role::Warn),
        None => (
            format!(
                "{} live {} ",
                theme.glyphs.live,
                interval_words(app.frame.interval)
            ),
            Role::Good,
        ),
    };
    let mut state_at = put_right(buffer, area.x, clock_at, area.y, &text, theme.style(role));
    let axis = app.time_axis(None);
    if axis.past.is_some() {
        // The tables are of now all the same.
        let text = format!("charts end {}  ", axis.end_words(theme));
        let warn = theme.style(Role::Warn);
        state_at = put_right(buffer, area.x, state_at, area.y, &text, warn);
    }
    let fleet = match app.fleet.len() {
        0 => None,
        count => Some((format!("{count} hosts"), String::new())),
    };
    let (host, gpus) = fleet.unwrap_or_else(|| {
        let name = app.name.as_ref().unwrap_or(&app.hello.host);
        (name.clone(), gpus_words(&app.frame))
    });
    let job = job_words(&app.frame).unwrap_or_default();
    let dim = theme.style(Role::Dim);
    let pieces = [
        (host.as_str(), theme.style(Role::Title)),
        ("  ", dim),
        (gpus.as_str(), theme.style(Role::Text)),
        ("  ", dim),
        (job.as_str(), dim),
    ];
    put_all(
        buffer,
        area.x + 1,
        area.y,
        state_at.saturating_sub(1),
        &pieces,
    );
}

/// The same line where there is no host: of a file.
pub fn headline(app: &App, text: &str, area: Rect, buffer: &mut Buffer) {
    let line = Rect {
        x: area.x + 1,
        width: area.width.saturating_sub(2),
        ..area
    };
    put_line(buffer, line, text, Role::Title, &app.theme);
}

pub fn interval_words(interval: Millis) -> String {
    match interval.0 {
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

/// What stays in sight as long as it is so: why a recording plays although nobody asked for one, why a far host is not
/// heard any more.
pub fn reason_lines(app: &App, width: u16) -> Vec<String> {
    let reason = app.recording.as_ref().and_then(|r| r.reason.as_ref());
    let text = match (reason, &app.link) {
        (Some(reason), _) => format!(
            "What follows is a recording of another machine. Here: {reason} `gputop doctor` says more."
        ),
        (
            None,
            Some(Link::Lost {
                why, asks: true, ..
            }),
        ) => format!(
            "What is shown is old: the link is lost, and somebody has to answer on the way to it ({why}). {} connects.",
            app.keymap.label(Action::Connect)
        ),
        (None, Some(Link::Lost { why, again_in, .. })) => {
            let again = match again_in.0 {
                0 => "now".to_owned(),
                _ => format!("in {}", span_words(*again_in)),
            };
            format!("What is shown is old: the link is lost ({why}). It is tried again {again}.")
        }
        _ => return Vec::new(),
    };
    let mut lines = wrap_words(&text, usize::from(width.saturating_sub(2)).max(20));
    lines.truncate(3);
    lines
}

/// Those lines, from the top of `area`.
pub fn reason(app: &App, area: Rect, buffer: &mut Buffer) {
    let lines = reason_lines(app, area.width);
    for (y, line) in (area.y..area.bottom()).zip(lines) {
        put(
            buffer,
            area.x + 1,
            y,
            &line,
            area.width,
            app.theme.style(Role::Warn),
        );
    }
}

/// Of a sentence that is cut; fewer tell nothing.
const A_FEW_WORDS: usize = 20;

/// `!! 12:03 rank 3 OUT OF MEMORY: 2.00 GiB did not fit  +2  d why`: the incident to look at.
pub fn incident(app: &App, area: Rect, buffer: &mut Buffer) {
    let Some(incident) = app.incidents.news() else {
        return;
    };
    let theme = &app.theme;
    let margin = u16::from(area.width >= 60);
    let (x, end) = (area.x + margin, area.right().saturating_sub(margin));
    let key = format!(" {} why", app.keymap.label(Action::Why));
    let right = put_right(buffer, x, end, area.y, &key, theme.style(Role::Key));
    let others = app.incidents.unread() - 1;
    let right = if others > 0 && margin > 0 {
        let others = format!(" +{others}");
        put_right(buffer, x, right, area.y, &others, theme.style(Role::Dim))
    } else {
        right
    };
    let room = usize::from(right.saturating_sub(x));
    let words = incident_words(app, incident);
    // The longest that fits; the first also where it is cut behind a few words of the sentence.
    let at_least = [columns(&words[1]) + A_FEW_WORDS, 0, 0, 0];
    let fits = |(words, least): &(&String, usize)| {
        columns(words) <= room || (*least > 0 && *least <= room)
    };
    let best = words.iter().zip(at_least).find(fits);
    let words = best.map_or(&words[3], |(words, _)| words);
    let words = fit(words, room, theme.glyphs.ellipsis);
    let style = theme.style(role(incident.severity));
    put(buffer, x, area.y, &words, right.saturating_sub(x), style);
}

/// In fewer and fewer words: `!! 12:03 rank 3 OUT OF MEMORY (caught): 2.00 GiB did not fit` … `!! 12:03 OUT OF MEMORY`.
fn incident_words(app: &App, incident: &Incident) -> [String; 4] {
    let mark = match incident.severity {
        Severity::Note => "!",
        _ => "!!",
    };
    let time = moment(incident).map(|time| {
        let day = |time| app.theme.clock(time, "%F");
        // Yesterday's `12:03` is not today's.
        let format = if day(time) == day(app.frame.time) {
            "%H:%M"
        } else {
            "%b %d %H:%M"
        };
        app.theme.clock(time, format) + " "
    });
    let time = time.unwrap_or_default();
    let rank = incident.fields.rank.map(|rank| format!("rank {rank} "));
    let rank = rank.unwrap_or_default();
    let caught = match incident.severity {
        Severity::Caught => " (caught)",
        _ => "",
    };
    let (headline, title) = (&incident.headline, &incident.title);
    [
        format!("{mark} {time}{rank}{headline}{caught}: {title}"),
        format!("{mark} {time}{rank}{headline}{caught}"),
        format!("{mark} {time}{headline}{caught}"),
        format!("{mark} {time}{headline}"),
    ]
}

/// `filter: train (3 hidden)`
pub fn filter_words(app: &App) -> String {
    format!("filter: {} ({} hidden)", app.filter, app.hidden)
}

/// What changes the process table, if anything does: it must not be forgotten.
fn arrangement(app: &App) -> String {
    let mut words = Vec::new();
    if !app.filter.is_empty() {
        words.push(filter_words(app));
    }
    words.extend(app.grouping.words().map(str::to_owned));
    if !app.tags.is_empty() {
        words.push(format!("{} tagged", app.tags.len()));
    }
    if let Some(column) = app.sort.and_then(|at| PROCESS_COLUMNS.get(at)) {
        let way = if app.inverted { ", turned round" } else { "" };
        words.push(format!("by {}{way}", column.title));
    }
    words.join("  ")
}

/// A sentence in the last line of `area`, in place of what was there.
pub fn message(app: &App, message: &str, area: Rect, buffer: &mut Buffer) {
    let last = Rect {
        y: area.bottom().saturating_sub(1),
        height: area.height.min(1),
        ..area
    };
    Clear.render(last, buffer);
    put_line(buffer, last, message, Role::Warn, &app.theme);
}

/// A key in the footer.
#[derive(Debug, Clone)]
pub struct Hint {
    pub columns: Range<u16>,
    pub action: Action,
}

/// Keys of this screen, or what there is to say.
/// Returns what a press of the mouse does there.
pub fn footer(
    app: &App,
    screen: &dyn Screen,
    is_first: bool,
    area: Rect,
    buffer: &mut Buffer,
) -> Vec<Hint> {
    let theme = &app.theme;
    if let Some(message) = &app.message {
        put(
            buffer,
            area.x + 1,
            area.y,
            message,
            area.width,
            theme.style(Role::Warn),
        );
        return Vec::new();
    }
    let leave = if is_first { "quit" } else { "back" };
    // The two that are on every screen stand in the narrowest pane as well.
    let mut hints = Vec::new();
    let mut right = area.right().saturating_sub(1);
    for (action, word) in [
        (Action::Quit, leave),
        (Action::Help, Action::Help.def().short),
    ] {
        if app.keymap.keys(action).is_empty() {
            continue;
        }
        let end = right;
        let text = format!("{} {word}", app.keymap.label(action));
        let start = put_right(buffer, area.x, end, area.y, &text, theme.style(Role::Dim));
        hints.push(Hint {
            columns: start..end,
            action,
        });
        right = start.saturating_sub(2);
    }
    let arrangement = arrangement(app);
    if !arrangement.is_empty() {
        right = put_right(
            buffer,
            area.x,
            right,
            area.y,
            &arrangement,
            theme.style(Role::Warn),
        );
    }
    let mut at = area.x + 1;
    // A recording is moved in before anything else, and charts that are of another time than the tables before that.
    let play: &[Action] = match (app.stretch.end().is_some(), app.recording.is_some()) {
        (true, _) => &[Action::Now, Action::ScrollBack, Action::ScrollForward],
        (false, true) => &[Action::SkipBack, Action::SkipForward, Action::Pause],
        (false, false) => &[],
    };
    let own = screen
        .footer()
        .iter()
        .filter(|action| !play.contains(action))
        .filter(|action| match action {
            Action::Signal => SignalMenu::is_allowed(app).is_ok(),
            Action::Connect => app.fleet.iter().any(FleetRow::is_lost),
            Action::Probe => probe_menu::is_allowed(app).is_ok(),
            // Logs are not in a recording.
            Action::Log => app.recording.is_none(),
            _ => true,
        });
    for action in play.iter().chain(own) {
        if app.keymap.keys(*action).is_empty() {
            continue;
        }
        let (key, word) = (app.keymap.label(*action), action.def().short);
        let width = u16::try_from(columns(&key) + columns(word) + 3).unwrap_or(u16::MAX);
        if at + width > right {
            break;
        }
        let style = theme.style(Role::Dim);
        let pieces = [
            (key.as_str(), theme.style(Role::Key)),
            (" ", style),
            (word, style),
            ("  ", style),
        ];
        let from = at;
        at = put_all(buffer, at, area.y, right, &pieces);
        hints.push(Hint {
            columns: from..at.saturating_sub(2),
            action: *action,
        });
    }
    hints
}

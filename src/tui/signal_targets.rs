//! The target processes of a signal. Requests identify each process by PID and start time, so that the receiving host
//! can detect a reused PID.

use std::collections::BTreeSet;

use gputop_model::process::ProcessKey;
use gputop_model::units::{Bytes, StartTicks, UnixMillis};

use super::app::App;
use super::theme::Role;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::sizes::gib;

/// A target process, as shown in the confirmation prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub key: ProcessKey,
    command: String,
    user: Option<String>,
    /// True if the process is owned by another user.
    is_foreign: bool,
    /// GPUs used by the process, with its memory on each.
    gpus: Vec<(String, Option<Bytes>)>,
    started: UnixMillis,
}

/// Returns the process in a row as a signal target.
pub fn target(row: &ProcessRow, app: &App) -> Result<Target, String> {
    let key = row.id().key;
    if row.ended().is_some() {
        return Err(format!("process {} has exited", key.pid));
    }
    let Some(facts) = row.facts() else {
        return Err(format!(
            "process {} is not visible: it is in another PID namespace, or has just exited",
            key.pid
        ));
    };
    if key.start == StartTicks(0) {
        return Err(format!(
            "cannot identify process {}: its start time is not readable, and its PID may have been reused",
            key.pid
        ));
    }
    Ok(Target {
        key,
        command: row.command().value().cloned().unwrap_or_default(),
        user: facts.user.value().cloned(),
        is_foreign: facts.uid.is_some_and(|uid| app.host.hello.uid.is_some_and(|own| own != uid)),
        gpus: gpus(app, key),
        started: facts.started,
    })
}

/// Returns the GPUs used by a process.
fn gpus(app: &App, key: ProcessKey) -> Vec<(String, Option<Bytes>)> {
    let rows = app.host.processes.all_rows.iter().filter(|row| row.id().key == key);
    rows.filter_map(|row| Some((row.gpu_label()?, row.vram().get()))).collect()
}

/// Returns the tagged processes, or the one under the cursor if none are tagged.
pub fn targets(app: &App, under: Option<&ProcessRow>) -> Result<Vec<Target>, String> {
    is_allowed(app)?;
    if app.host.processes.tags.is_empty() {
        let row = under.ok_or("no process under the cursor, and none is tagged")?;
        return Ok(vec![target(row, app)?]);
    }
    let mut seen = BTreeSet::new();
    let tagged = app.host.processes.all_rows.iter().filter(|row| {
        let key = row.id().key;
        app.host.processes.tags.has(key) && seen.insert(key)
    });
    tagged.map(|row| target(row, app)).collect()
}

/// Checks whether signals are allowed.
pub fn is_allowed(app: &App) -> Result<(), String> {
    if app.host.recording.is_some() {
        return Err("cannot send signals to processes in a recording".into());
    }
    if app.host.is_rewound() {
        return Err(
            "cannot send signals while you view an earlier time; return to now first".into()
        );
    }
    app.host.permissions.signals.map_err(|why| format!("cannot send signals: {why}"))
}

/// Describes the targets, such as `418 train.py` or `3 processes`.
pub fn words(targets: &[Target]) -> String {
    match targets {
        [one] => format!("{} {}", one.key.pid, one.command),
        all => format!("{} processes", all.len()),
    }
}

/// Returns the lines of the confirmation prompt, including a heading.
pub fn lines(targets: &[Target], app: &App) -> Vec<Vec<(String, Role)>> {
    let theme = &app.ui.theme;
    let heading = "    PID  USER      GPU    VRAM  STARTED         COMMAND".to_owned();
    let mut lines = vec![vec![(heading, Role::Dim)]];
    lines.extend(targets.iter().map(|target| {
        let user = target.user.as_deref().unwrap_or(theme.glyphs.absent);
        let started = theme.clock(target.started, "%m-%d %H:%M:%S");
        let pid = target.key.pid.0;
        let gpus = target.gpus.iter().map(|(gpu, _)| gpu.as_str()).collect::<Vec<&str>>().join(",");
        let vram = target.vram().map_or(theme.glyphs.absent.to_owned(), gib);
        let command = &target.command;
        let line = format!("{pid:>7}  {user:<8}  {gpus:<4} {vram:>6}  {started:<14}  {command}");
        vec![(line, Role::Text)]
    }));
    let foreign: Vec<&Target> = targets.iter().filter(|target| target.is_foreign).collect();
    lines.extend(
        match foreign.as_slice() {
            [] => None,
            [one] => {
                let user = one.user.as_deref().unwrap_or("another user");
                let held = one.vram().map_or(String::new(), |vram| format!(" and holds {vram}"));
                Some(format!("PID {} is not yours. It belongs to {user}{held}.", one.key.pid))
            }
            several => Some(format!("{} of these processes are not yours.", several.len())),
        }
        .map(|warning| vec![(warning, Role::Bad)]),
    );
    lines
}

impl Target {
    /// Returns the process's memory on all GPUs, if known.
    fn vram(&self) -> Option<Bytes> {
        self.gpus.iter().filter_map(|(_, vram)| *vram).reduce(|a, b| Bytes(a.0.saturating_add(b.0)))
    }
}

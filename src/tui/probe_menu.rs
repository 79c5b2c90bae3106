//! The confirmation before a probe. It states the effects on the GPU, with the GPU's current figures. `y` starts the probe.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::action::Action;
use super::app::App;
use super::overlay::panel;
use super::rows::ProcessRow;
use super::theme::Role;
use super::widgets::cells::{put_all, put_lines, wrap_words};
use crate::model::gpu::{Gpu, Memory};
use crate::model::probe::{CONTEXT, DEFAULT_LIMIT, ProbeRequest, default_headroom};
use crate::model::process::ProcessKey;
use crate::model::units::{Bytes, GpuUuid};
use crate::protocol::Request;

/// The confirmation dialog.
#[derive(Debug)]
pub struct ProbeMenu {
    request: ProbeRequest,
    title: String,
    /// The process whose block sizes the pattern uses: `418 train.py`.
    process: Option<String>,
}

impl ProbeMenu {
    /// Opens the dialog for the GPU of a row, or else for `gpu`.
    ///
    /// # Errors
    /// Returns the reason why a probe is not possible.
    pub fn open(app: &App, row: Option<&ProcessRow>, gpu: Option<GpuUuid>) -> Result<Self, String> {
        is_allowed(app)?;
        let gpu = row.and_then(|row| row.id().gpu).or(gpu);
        let gpu = gpu.ok_or("no GPU selected; move the cursor to a GPU or a process")?;
        if app.probes.is_under_way(&gpu) {
            return Err("a probe of this GPU is already running".into());
        }
        let row = row.filter(|row| row.id().key != ProcessKey::default());
        let name = |row: &ProcessRow| {
            let command = row.command().value().cloned().unwrap_or_default();
            format!("{} {command}", row.id().key.pid)
        };
        Ok(Self {
            title: format!("Probe {}?", gpu_words(&gpu, app)),
            process: row.map(name),
            request: ProbeRequest {
                gpu,
                process: row.map(|row| row.id().key),
                ..ProbeRequest::default()
            },
        })
    }

    /// Handles `y`, the only key that starts the probe, regardless of the keymap.
    pub fn type_key(&self, key: KeyEvent) -> Option<Request> {
        matches!(key.code, KeyCode::Char('y' | 'Y')).then(|| Request::Probe(self.request.clone()))
    }

    fn sentences(&self, app: &App) -> Vec<String> {
        let limit = DEFAULT_LIMIT.0;
        let mut sentences = Vec::new();
        let memory = memory(&self.request.gpu, app);
        let figures = memory.and_then(|memory| Some((memory.total.get()?, memory.free.get()?)));
        if let Some((total, free)) = figures {
            let headroom = default_headroom(total, has_others(&self.request.gpu, app));
            let rest = Bytes(free.0.saturating_sub(headroom.0 + CONTEXT.0));
            sentences.push(format!(
                "Allocates {rest} for at most {limit} ms and leaves {headroom} free. Other processes may run out of \
                 memory while the probe runs."
            ));
        } else {
            sentences.push(format!(
                "Allocates the free memory of the GPU for at most {limit} ms and leaves at least 1 GiB free. Other \
                 processes may run out of memory while the probe runs."
            ));
        }
        sentences.push(format!(
            "Runs in a separate process with a CUDA context of at most {CONTEXT}, for one or two seconds. All memory is \
             released, even if the process is killed."
        ));
        sentences.push(match &self.process {
            Some(name) => format!("Uses the block sizes of {name}."),
            None => "Uses synthetic block sizes. Select a process to use its block sizes.".into(),
        });
        sentences
    }

    pub fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.theme;
        let width = 76.min(area.width);
        let room = usize::from(width.saturating_sub(4)).max(1);
        let sentences = self.sentences(app);
        let lines: Vec<(String, Role)> = sentences
            .iter()
            .flat_map(|sentence| wrap_words(sentence, room))
            .map(|line| (line, Role::Text))
            .collect();
        let height = u16::try_from(lines.len() + 4).unwrap_or(u16::MAX);
        let inner = panel(&self.title, width, height, area, app, buffer);
        let text = Rect {
            x: inner.x + 1,
            width: inner.width.saturating_sub(2),
            height: inner.height.saturating_sub(1),
            ..inner
        };
        put_lines(buffer, text, &lines, theme);
        let back = format!("  {} back", app.keymap.label(Action::Back));
        let pieces = [
            ("y", theme.style(Role::Key)),
            (" probe", theme.style(Role::Text)),
            (back.as_str(), theme.style(Role::Text)),
        ];
        let last = inner.bottom().saturating_sub(1);
        put_all(buffer, text.x, last, inner.right(), &pieces);
    }
}

/// Checks whether probes are allowed.
///
/// # Errors
/// Returns the reason why they are not.
pub fn is_allowed(app: &App) -> Result<(), String> {
    if app.recording.is_some() {
        return Err("cannot probe the GPU of a recording".into());
    }
    app.permissions
        .probes
        .map_err(|why| format!("cannot probe: {why}"))
}

/// Formats the name of a GPU: `GPU 3 NVIDIA H200`.
pub fn gpu_words(uuid: &GpuUuid, app: &App) -> String {
    match find(uuid, app) {
        Some(gpu) => format!("GPU {} {}", gpu.index, gpu.name),
        None => uuid.to_string(),
    }
}

fn find<'a>(uuid: &GpuUuid, app: &'a App) -> Option<&'a Gpu> {
    let is_it = |gpu: &&Gpu| gpu.uuid == *uuid || gpu.mig.iter().any(|mig| mig.uuid == *uuid);
    app.frame.gpus.iter().find(is_it)
}

fn memory<'a>(uuid: &GpuUuid, app: &'a App) -> Option<&'a Memory> {
    let gpu = find(uuid, app)?;
    let mig = gpu.mig.iter().find(|mig| mig.uuid == *uuid);
    Some(mig.map_or(&gpu.memory, |mig| &mig.memory))
}

fn has_others(uuid: &GpuUuid, app: &App) -> bool {
    let listed = find(uuid, app).and_then(|gpu| gpu.processes.value());
    listed.is_none_or(|list| !list.is_empty())
}

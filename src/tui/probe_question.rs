//! The confirmation before a GPU probe. It states the effects on the GPU and shows the GPU's current memory use. `y`
//! starts the probe.

use gputop_model::gpu::{Gpu, Memory};
use gputop_model::probe::{CONTEXT, DEFAULT_LIMIT, ProbeRequest, default_headroom};
use gputop_model::process::ProcessKey;
use gputop_model::protocol::Request;
use gputop_model::units::{Bytes, GpuUuid};

use super::app::App;
use super::theme::Role;
use super::widgets::cells::wrap_words;
use crate::dashboard::rows::ProcessRow;

/// Probe confirmation, with the request that `y` sends.
#[derive(Debug)]
pub struct ProbeQuestion {
    request: ProbeRequest,
    pub title: String,
    /// Process whose block sizes the probe uses: `418 train.py`.
    process: Option<String>,
}

impl ProbeQuestion {
    /// Returns the confirmation for the GPU of the selected row, or for `gpu` if no row is selected.
    pub fn open(app: &App, row: Option<&ProcessRow>, gpu: Option<GpuUuid>) -> Result<Self, String> {
        is_allowed(app)?;
        let gpu = row.and_then(|row| row.id().gpu).or(gpu);
        let gpu = gpu.ok_or("no GPU selected; move the cursor to a GPU or a process")?;
        if app.host.probes.is_under_way(&gpu) {
            return Err("a probe of this GPU is already running".into());
        }
        let row = row.filter(|row| row.id().key != ProcessKey::default());
        let name = |row: &ProcessRow| {
            let command = row.command().value().cloned().unwrap_or_default();
            format!("{} {command}", row.id().key.pid)
        };
        Ok(Self {
            title: format!("Probe {}?", gpu_text(&gpu, app)),
            process: row.map(name),
            request: ProbeRequest {
                gpu,
                process: row.map(|row| row.id().key),
                ..ProbeRequest::default()
            },
        })
    }

    pub fn request(&self) -> Request {
        Request::Probe(self.request.clone())
    }

    /// Returns the wrapped sentences of the probe confirmation.
    pub fn lines(&self, app: &App, width: u16) -> Vec<Vec<(String, Role)>> {
        let room = usize::from(width.saturating_sub(4)).max(1);
        let sentences = self.sentences(app).into_iter();
        sentences
            .flat_map(|sentence| wrap_words(&sentence, room))
            .map(|line| vec![(line, Role::Text)])
            .collect()
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
}

/// Returns an error if GPU probes are not allowed.
pub fn is_allowed(app: &App) -> Result<(), String> {
    if app.host.recording.is_some() {
        return Err("cannot probe a GPU in a recording".into());
    }
    app.host.permissions.probes.map_err(|why| format!("cannot probe: {why}"))
}

pub fn gpu_text(uuid: &GpuUuid, app: &App) -> String {
    match find(uuid, app) {
        Some(gpu) => format!("GPU {} {}", gpu.index, gpu.name),
        None => uuid.to_string(),
    }
}

fn find<'a>(uuid: &GpuUuid, app: &'a App) -> Option<&'a Gpu> {
    let is_it = |gpu: &&Gpu| gpu.uuid == *uuid || gpu.mig.iter().any(|mig| mig.uuid == *uuid);
    app.host.frame.gpus.iter().find(is_it)
}

fn memory<'a>(uuid: &GpuUuid, app: &'a App) -> Option<&'a Memory> {
    let gpu = find(uuid, app)?;
    let mig = gpu.mig.iter().find(|mig| mig.uuid == *uuid);
    Some(mig.map_or(&gpu.memory, |mig| &mig.memory))
}

fn has_others(uuid: &GpuUuid, app: &App) -> bool {
    find(uuid, app).and_then(|gpu| gpu.processes.value()).is_none_or(|list| !list.is_empty())
}

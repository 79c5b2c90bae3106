//! What happened, as letters on the time axes: the same in every chart of a GPU and of a process.

use super::app::App;
use super::incidents::ListedIncident;
use super::screens::incident::role;
use super::theme::Role;
use super::widgets::timeline::Mark;
use crate::model::process::ProcessKey;
use crate::model::units::{GpuUuid, Mono};

/// For the help of every screen with such charts.
pub const WORDS: [(&str, &str); 3] = [
    (
        "e on the time axis",
        "A process ended there; its own charts end with it.",
    ),
    (
        "x on the time axis",
        "A request for memory failed there; where that is an incident, i lists it.",
    ),
    ("! on the time axis", "Another incident; i lists it."),
];

/// Of a GPU: where processes on it ended, and its incidents.
pub fn of_gpu(app: &App, gpu: &GpuUuid) -> Vec<Mark> {
    let here = app.ended.iter().filter(|e| e.exit.gpus.contains(gpu));
    let ends = here.map(|ended| exit(app, ended.mono));
    let incidents = incidents(app, |known| known.place.gpus.contains(gpu));
    ends.chain(incidents).collect()
}

/// Of a process: where it ended, if it did, and its incidents.
pub fn of_process(app: &App, process: ProcessKey, ended: Option<Mono>) -> Vec<Mark> {
    let end = ended.map(|at| exit(app, at));
    let incidents = incidents(app, |known| known.place.processes.contains(&process));
    end.into_iter().chain(incidents).collect()
}

fn exit(app: &App, at: Mono) -> Mark {
    Mark {
        at,
        glyph: app.theme.glyphs.ended,
        role: Role::Warn,
    }
}

/// Over the ends, which they explain.
fn incidents(app: &App, is_its: impl Fn(&ListedIncident) -> bool) -> impl Iterator<Item = Mark> {
    let its = app
        .incidents
        .of_boot(&app.hello.boot_id)
        .filter(move |known| is_its(known));
    its.map(|known| Mark {
        at: known.place.at,
        glyph: match known.incident.is_gpu_oom() {
            true => app.theme.glyphs.oom,
            false => app.theme.glyphs.incident,
        },
        role: role(known.incident.severity),
    })
}

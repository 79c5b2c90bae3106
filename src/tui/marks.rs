//! Event marks on the time axes of charts.

use gputop_model::process::ProcessKey;
use gputop_model::units::{GpuUuid, Mono};

use super::app::App;
use super::theme::Role;
use super::widgets::timeline::Mark;
use crate::dashboard::incidents::ListedIncident;

/// Help entries for screens with marked charts.
pub const WORDS: [(&str, &str); 3] = [
    ("□ on a time axis", "A process exited. The charts of the process end here."),
    ("■ on a time axis", "A memory request failed; i lists it if it is an incident."),
    ("▲ on a time axis", "Another incident occurred; i lists it."),
];

/// Returns the marks for a GPU: exits of its processes, and its incidents.
pub fn of_gpu(app: &App, gpu: &GpuUuid) -> Vec<Mark> {
    let ended = app.host.ended.iter().filter(|e| e.exit.gpus.contains(gpu));
    let exits = ended.map(|ended| exit(app, ended.mono));
    exits.chain(incidents(app, |known| known.gpus.contains(gpu))).collect()
}

/// Returns the marks for a process: its exit, if any, and its incidents.
pub fn of_process(app: &App, process: ProcessKey, ended: Option<Mono>) -> Vec<Mark> {
    let exit = ended.map(|at| exit(app, at));
    exit.into_iter().chain(incidents(app, |known| known.processes.contains(&process))).collect()
}

fn exit(app: &App, at: Mono) -> Mark {
    Mark { at, glyph: app.ui.theme.glyphs.ended, role: Role::Warn }
}

/// Returns the marks for incidents, which are drawn over the marks for the related exits.
fn incidents(app: &App, is_its: impl Fn(&ListedIncident) -> bool) -> impl Iterator<Item = Mark> {
    app.host.incidents.of_boot(&app.host.hello.boot_id).filter(move |known| is_its(known)).map(
        |known| Mark {
            at: known.key.first,
            glyph: if known.incident.is_gpu_oom() {
                app.ui.theme.glyphs.oom
            } else {
                app.ui.theme.glyphs.incident
            },
            role: Role::of_severity(known.incident.severity),
        },
    )
}

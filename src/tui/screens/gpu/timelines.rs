//! Charts of a GPU over time: memory, utilization and power.

use gputop_model::gpu::Gpu;
use gputop_model::history::{GpuMetric, SeriesKey};

use crate::tui::app::App;
use crate::tui::marks;
use crate::tui::theme::Role;
use crate::tui::widgets::timeline::Timeline;
use crate::tui::widgets::timelines::Timelines;

/// Returns the charts of a GPU, of which as many are drawn as fit.
pub(super) fn of_gpu<'a>(gpu: &Gpu, app: &'a App) -> Timelines<'a> {
    let charts = charts_of(gpu, app).into();
    Timelines { charts, axis: app.host.time_axis(None), marks: marks::of_gpu(app, &gpu.uuid) }
}

/// Returns the charts of used memory, SM, memory bandwidth and power.
pub fn charts_of<'a>(gpu: &Gpu, app: &'a App) -> [Timeline<'a>; 4] {
    let series = |metric| app.host.history.series(&SeriesKey::Gpu(gpu.uuid.clone(), metric));
    let cap = gpu.power_cap.get().or(gpu.board.power_cap_default.get());
    let cap = cap.map_or(1_000, |cap| cap.0 / 1_000);
    let power = Timeline {
        title: "power".into(),
        series: series(GpuMetric::Power),
        top: cap as f32,
        top_label: format!("{cap}W"),
        role: Role::Chart,
    };
    [
        Timeline::bytes("VRAM used", series(GpuMetric::Used), app.host.chart_memory(gpu)),
        Timeline::percent("SM", series(GpuMetric::Sm)),
        Timeline::percent("memory bandwidth", series(GpuMetric::MemoryBandwidth)),
        power,
    ]
}

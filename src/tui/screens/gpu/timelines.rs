//! Charts of a GPU over time: memory, utilization and power.

use gputop_model::gpu::Gpu;
use gputop_model::history::{GpuMetric, SeriesKey};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::tui::app::App;
use crate::tui::marks;
use crate::tui::theme::Role;
use crate::tui::widgets::timeline::Timeline;
use crate::tui::widgets::timelines::Timelines;

/// Draws as many of the GPU charts as fit.
pub(super) fn draw(gpu: &Gpu, app: &App, area: Rect, buffer: &mut Buffer) {
    let series = |metric| app.host.history.series(&SeriesKey::Gpu(gpu.uuid.clone(), metric));
    let total = app.host.chart_memory(gpu);
    let mut charts = vec![
        Timeline::bytes("VRAM used", series(GpuMetric::Used), total),
        Timeline::percent("SM", series(GpuMetric::Sm)),
    ];
    charts.extend(bandwidth_and_power(gpu, app));
    Timelines { charts, axis: app.host.time_axis(None), marks: marks::of_gpu(app, &gpu.uuid) }
        .draw(area, buffer, &app.ui.theme);
}

/// Returns the charts of memory bandwidth and power.
pub fn bandwidth_and_power<'a>(gpu: &Gpu, app: &'a App) -> [Timeline<'a>; 2] {
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
    [Timeline::percent("memory bandwidth", series(GpuMetric::MemoryBandwidth)), power]
}

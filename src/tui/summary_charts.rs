//! Charts for the HTML summary of a recording, drawn like the charts on the screens.

use gputop_model::history::{DAY, GpuMetric, History, SeriesKey};
use gputop_model::process::ProcessKey;
use gputop_model::units::{Bytes, Millis, Mono, UnixMillis};
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::picture::svg;
use super::theme::{Palette, Role, Theme};
use super::widgets::pool_chart::PoolChart;
use super::widgets::timeline::{Mark, Timeline};
use super::widgets::timelines::Timelines;
use crate::dashboard::time_axis::{AxisEnd, TimeAxis};
use crate::summary::{GpuSummary, PoolSummary, ProcessSummary, RunSummary};

const CHART_AREA: Rect = Rect::new(0, 0, 140, 12);
/// Maximum number of pools with a chart. Pools of the processes with the most memory take precedence.
const MAX_POOL_CHARTS: usize = 16;

/// Returns the charts of each GPU and each pool over `span`, as pairs of title and SVG.
pub fn draw(run: &RunSummary, history: &History, span: (Mono, Mono)) -> Vec<(String, String)> {
    let theme = Theme::new(Palette::Dark, false, TimeZone::system());
    let length = Millis(span.1.since(span.0).0.clamp(1_000, DAY.0));
    let end = run.start.0.saturating_add(i64::try_from(run.duration.0).unwrap_or(0));
    let axis = TimeAxis {
        end: span.1,
        length,
        past: Some(AxisEnd { time: UnixMillis(end), ago: Millis(0) }),
    };
    let charts = Charts { run, history, axis, start: span.0, theme };
    let gpus = run.gpus.iter().map(|gpu| charts.gpu(gpu));
    let pools = run.processes.iter().flat_map(|p| charts.pools(p));
    gpus.chain(pools.take(MAX_POOL_CHARTS)).collect()
}

struct Charts<'a> {
    run: &'a RunSummary,
    history: &'a History,
    axis: TimeAxis,
    start: Mono,
    theme: Theme,
}

impl Charts<'_> {
    fn gpu(&self, gpu: &GpuSummary) -> (String, String) {
        let series = |metric| self.history.series(&SeriesKey::Gpu(gpu.uuid.clone(), metric));
        let mut charts = Vec::new();
        if gpu.total.is_some() {
            charts.push(Timeline::bytes("memory used", series(GpuMetric::Used), gpu.total));
        }
        charts.push(Timeline::percent("SM %", series(GpuMetric::Sm)));
        let power = series(GpuMetric::Power);
        let columns = usize::from(CHART_AREA.width);
        let watts = power.map(|power| power.window(self.axis.end, self.axis.length, columns));
        let top = watts.iter().flatten().flatten().map(|span| span.1).fold(1.0, f32::max);
        charts.push(Timeline {
            title: "power".into(),
            series: power,
            top,
            top_label: format!("{top:.0}W"),
            role: Role::Chart,
        });
        let marks = self.marks(|incident| incident.1 == Some(gpu.index));
        let timelines = Timelines { charts, axis: self.axis, marks };
        let svg = self.picture(|buffer| timelines.draw(CHART_AREA, buffer, &self.theme));
        (format!("GPU {} {}", gpu.index, gpu.name), svg)
    }

    fn pools(&self, process: &ProcessSummary) -> Vec<(String, String)> {
        let key = process.process;
        let recorded = self.history.pools_of(key);
        let charted = process.pools.iter().filter(|pool| recorded.contains(&pool.ordinal));
        let chart = |pool: &PoolSummary| {
            let gpus = &self.run.gpus;
            let gpu = gpus.iter().find(|gpu| Some(gpu.index) == pool.gpu);
            let peak = pool.reserved.map(|sizes| sizes.peak);
            let ordinal = pool.ordinal;
            let chart = PoolChart {
                history: self.history,
                process: key,
                ordinal,
                axis: self.axis,
                marks: self.marks(|incident| incident.0 == Some(key)),
                top: gpu.and_then(|gpu| gpu.total).or(peak).unwrap_or(Bytes::gib(1)),
            };
            let svg = self.picture(|buffer| chart.draw(CHART_AREA, buffer, &self.theme));
            let program = process.program();
            (format!("PID {} {program}, device {ordinal}", key.pid), svg)
        };
        charted.map(chart).collect()
    }

    /// Returns a mark for each incident for which `is_selected` returns true, given its process and GPU.
    fn marks(&self, is_selected: impl Fn((Option<ProcessKey>, Option<u32>)) -> bool) -> Vec<Mark> {
        let incidents = self.run.incidents.iter();
        let selected = incidents.filter(|incident| is_selected((incident.process, incident.gpu)));
        selected
            .map(|incident| Mark {
                at: Mono(self.start.0.saturating_add(incident.after.0)),
                glyph: self.theme.glyphs.incident,
                role: Role::Bad,
            })
            .collect()
    }

    fn picture(&self, draw: impl FnOnce(&mut Buffer)) -> String {
        let mut buffer = Buffer::empty(CHART_AREA);
        draw(&mut buffer);
        svg(&buffer)
    }
}

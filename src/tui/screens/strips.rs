//! The timeline of all GPUs: one strip for each GPU, on one time axis, so that the GPU that differs from the others is
//! seen without reading.

use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::history::Level;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::gpu::timelines::charts_of;
use crate::dashboard::times::span_text;
use crate::export::text_width::columns as columns_of;
use crate::tui::app::App;
use crate::tui::marks;
use crate::tui::theme::Role;
use crate::tui::widgets::area::row;
use crate::tui::widgets::cells::{put_line, put_line_right, put_right};
use crate::tui::widgets::timeline::{Timeline, columns, legend};

/// Width of the GPU's index beside its strips, with a gap.
const LABEL: u16 = 5;
const GAP: u16 = 2;
/// Width from which power is shown as well.
const WIDE: u16 = 160;
/// Maximum height of a strip.
const MAX_HEIGHT: u16 = 5;

/// Returns the height of each GPU's strips in `rows` rows, which include a heading and the axis. Returns `None` if the
/// strips of all GPUs do not fit.
pub fn height_in(rows: u16, gpus: usize) -> Option<u16> {
    let gpus = u16::try_from(gpus).ok().filter(|gpus| *gpus > 0)?;
    let height = (rows.saturating_sub(2) / gpus).min(MAX_HEIGHT);
    (height > 0).then_some(height)
}

/// Returns the number of rows of strips with this height.
pub fn rows_of(height: u16, gpus: usize) -> u16 {
    u16::try_from(gpus).unwrap_or(u16::MAX).saturating_mul(height).saturating_add(2)
}

/// Returns the strips of a GPU from left to right: their titles and charts.
fn strips<'a>(gpu: &Gpu, app: &'a App, width: u16) -> Vec<(&'static str, Timeline<'a>)> {
    let [vram, sm, _, power] = charts_of(gpu, app);
    let mut strips = vec![("SM", sm), ("VRAM", vram)];
    if width >= WIDE {
        strips.push(("POWER", power));
    }
    strips
}

/// Returns the area of each strip column, without the heading and the axis.
pub fn plots(area: Rect) -> Vec<Rect> {
    let count = if area.width >= WIDE { 3 } else { 2 };
    let room = area.width.saturating_sub(LABEL + 1 + (count - 1) * GAP);
    let width = room / count;
    let plot = |at: u16| Rect {
        x: area.x + LABEL + at * (width + GAP),
        y: area.y + 1,
        width,
        height: area.height.saturating_sub(2),
    };
    (0..count).map(plot).collect()
}

/// Draws the strips of all GPUs into `area`, whose height is that of [`rows_of`].
pub fn draw(app: &App, selected: Option<&Gpu>, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let gpus = &app.host.frame.gpus;
    let Some(height) = height_in(area.height, gpus.len()) else { return };
    let (axis, plots) = (app.host.time_axis(None), plots(area));
    let marks: Vec<_> = gpus.iter().flat_map(|gpu| marks::of_gpu(app, &gpu.uuid)).collect();
    let title = format!(" TIMELINE {}   ", axis.clock_text(theme));
    put_line(buffer, area, &title, Role::Dim, theme);
    let end_of_title = area.x + u16::try_from(columns_of(&title)).unwrap_or(0);
    for (gpu, y) in gpus.iter().zip((area.y + 1..).step_by(usize::from(height))) {
        let is_selected = selected.is_some_and(|selected| selected.uuid == gpu.uuid);
        let role = if is_selected { Role::Title } else { Role::Dim };
        let label = format!("{:>4}", gpu.index);
        let y_of_label = y + height - 1;
        put_line(buffer, Rect { width: LABEL, ..row(area, y_of_label) }, &label, role, theme);
        for ((title, chart), plot) in strips(gpu, app, area.width).iter().zip(&plots) {
            let strip = Rect { y, height, ..*plot };
            if y == area.y + 1 {
                let x = plot.x.max(end_of_title);
                let place = Rect { x, width: plot.right().saturating_sub(x), ..row(*plot, area.y) };
                put_line(buffer, place, title, Role::Dim, theme);
            }
            draw_strip(gpu, chart, strip, app, buffer);
        }
    }
    let on = |plot: Rect| marks.iter().filter_map(move |mark| mark.on(axis, plot)).collect();
    for plot in &plots {
        let marks: Vec<_> = on(*plot);
        axis.draw(&marks, *plot, buffer, theme);
    }
    let last = plots.last().copied().unwrap_or_default();
    let room = usize::from(last.width).saturating_sub("POWER  ".len());
    let marks: Vec<_> = on(last);
    let legend = legend(&marks, room, theme);
    put_line_right(buffer, row(last, area.y), &legend, Role::Dim, theme);
}

fn draw_strip(gpu: &Gpu, chart: &Timeline<'_>, area: Rect, app: &App, buffer: &mut Buffer) {
    let axis = app.host.time_axis(None);
    let levels = chart.series.map_or_else(Vec::new, |series| {
        series.levels(axis.end, axis.length, usize::from(area.width))
    });
    let without_peak = |level: Level| Level { peak: level.mean, ..level };
    let levels: Vec<_> = levels.into_iter().map(|level| level.map(without_peak)).collect();
    // The highest value leaves an eighth of a row free, so that strips do not touch.
    let eighths = f32::from(area.height) * 8.0;
    let top = chart.top * eighths / (eighths - 1.0);
    columns(&levels, top, chart.role, area, buffer, &app.ui.theme);
    let Some(words) = why_it_ends(gpu, app) else { return };
    let free = levels.iter().rev().take_while(|level| level.is_none()).count();
    if levels.is_empty() || columns_of(&words) < free {
        let style = app.ui.theme.style(Role::Dim);
        put_right(buffer, area.x, area.right(), area.bottom() - 1, &words, style);
    }
}

/// Returns why a GPU has no newer values, if it has none: `lost 07:12`.
pub(super) fn why_it_ends(gpu: &Gpu, app: &App) -> Option<String> {
    let since = gpu.health.since.map_or_else(String::new, |since| {
        format!(" for {}", span_text(app.host.frame.mono.since(since)))
    });
    match gpu.health.state {
        HealthState::Lost => Some(format!("lost{since}")),
        HealthState::Silent => Some(format!("no answer{since}")),
        HealthState::Asleep => Some("asleep".into()),
        HealthState::Denied => Some("not yours".into()),
        HealthState::Answering | HealthState::Unknown => None,
    }
}

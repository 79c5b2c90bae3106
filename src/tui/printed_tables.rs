//! The overview's tables as plain text, printed by `gputop once`.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::app::App;
use super::picture::text_of;
use super::screens::gpu_table::draw_gpus;
use super::screens::process_table::draw_processes;
use super::widgets::cells::replace_non_ascii;
use crate::dashboard::gpu_columns::GpuRow;

/// Returns the table of GPUs, an empty line and the table of processes, without trailing spaces.
pub fn text(app: &App, width: u16) -> String {
    let gpus = GpuRow::of_frame(&app.host.frame);
    let heights =
        [gpus.len() + 1, app.host.rows.len() + 1].map(|n| u16::try_from(n).unwrap_or(u16::MAX / 4));
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, heights[0] + 1 + heights[1]));
    draw_gpus(&gpus, None, Rect::new(0, 0, width, heights[0]), app, &mut buffer);
    let area = Rect::new(0, heights[0] + 1, width, heights[1]);
    draw_processes(app, &app.host.rows, 0, false, area, &mut buffer);
    replace_non_ascii(&mut buffer, &app.ui.theme);
    text_of(&buffer)
}

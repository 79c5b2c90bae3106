//! A report on the GPUs and their processes, one fact per sentence, printed by `gputop once --watch`. Unlike a table,
//! the report can be read aloud and searched line by line.

use std::fmt::Write as _;

use gputop_model::frame::Frame;
use gputop_model::gpu::Gpu;
use gputop_model::units::Bytes;
use jiff::tz::TimeZone;

use crate::dashboard::gpu_columns::notes;
use crate::dashboard::host_state::HostState;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::times::clock_text;

/// Returns the report: one line for the time, one for each GPU and each process, and an empty line.
#[must_use]
pub fn of(host: &HostState, zone: &TimeZone) -> String {
    let (gpus, rows) = (&host.frame.gpus, &host.processes.all_rows);
    let running = rows.iter().filter(|row| row.ended().is_none()).count();
    let mut out = format!(
        "{}: {}, {}.\n",
        clock_text(host.frame.time, zone, "%H:%M:%S"),
        counted(gpus.len(), "GPU", "GPUs"),
        counted(running, "process on a GPU", "processes on GPUs"),
    );
    for gpu in gpus {
        let _ = writeln!(out, "GPU {}: {}.", gpu.index, gpu_text(gpu, &host.frame).join(", "));
    }
    for row in rows {
        let _ = writeln!(out, "{}.", process_text(row, zone).join(", "));
    }
    out + "\n"
}

fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn gpu_text(gpu: &Gpu, frame: &Frame) -> Vec<String> {
    let mut words = Vec::new();
    if let (Some(used), Some(total)) = (gpu.memory.taken(), gpu.memory.total.get()) {
        let share = used.0 as f64 * 100.0 / total.0.max(1) as f64;
        words.push(format!("{used} of {total} used, {share:.0} percent"));
    }
    words.extend(gpu.sm.get().map(|sm| format!("SM {:.0} percent", sm.0)));
    words.extend(gpu.power.get().map(|power| format!("{} watts", power.0 / 1_000)));
    words.extend(gpu.temperature.get().map(|degrees| format!("{} degrees Celsius", degrees.0)));
    words.extend(notes(gpu, frame).into_iter().map(|note| note.text));
    words
}

fn process_text(row: &ProcessRow, zone: &TimeZone) -> Vec<String> {
    let command = row.command().value().cloned().unwrap_or_default();
    let mut words = vec![format!("Process {} {command}", row.pid()).trim_end().to_owned()];
    words.extend(row.gpu_label().map(|gpu| format!("GPU {gpu}")));
    words.extend(row.fact(|facts| &facts.user).value().map(|user| format!("user {user}")));
    if let Some(ended) = row.ended() {
        words.push(ended.words(zone, "%H:%M:%S"));
        return words;
    }
    let size = |name: &str, size: Option<Bytes>| size.map(|size| format!("{name} {size}"));
    words.extend(size("VRAM", row.vram().get()));
    words.extend(size("allocated", row.allocated()));
    words.extend(size("cached", row.cached()));
    words.extend(size("largest request that fits", row.fits()));
    words.extend(row.warning().map(|warning| format!("warning: {}", warning.word())));
    words
}

//! Clipboard text for items that appear on several screens: a process, a group of processes, a GPU.

use gputop_model::gpu::Gpu;
use gputop_model::process::ProcessKey;
use gputop_model::reading::Reading;

use super::app::App;
use super::clipboard::Copied;
use crate::dashboard::groups::Group;
use crate::dashboard::rows::ProcessRow;

/// Returns a process's PID and its full command line, which tables truncate: `418 /usr/bin/python3 train.py --lr 1`.
pub fn process(row: &ProcessRow) -> Copied {
    let pid = row.pid();
    let command = match row.facts().map(|facts| &facts.command) {
        Some(Reading::Value(command)) if !command.is_empty() => command.clone(),
        _ => row.command().value().cloned().unwrap_or_default(),
    };
    let what = if command.is_empty() {
        format!("PID {pid}")
    } else {
        format!("PID {pid} and its command line")
    };
    Copied::new(what, &format!("{pid} {command}"))
}

/// Returns the PIDs of a group, separated by spaces as `kill` expects.
pub fn group(group: &Group, app: &App) -> Copied {
    let rows = group.rows.iter().filter_map(|row| app.host.processes.rows.get(*row));
    let mut keys: Vec<ProcessKey> = rows.map(|row| row.id().key).collect();
    keys.sort_unstable();
    keys.dedup();
    let pids: Vec<String> = keys.iter().map(|key| key.pid.to_string()).collect();
    Copied::new(format!("the PIDs of {}", group.title), &pids.join(" "))
}

/// Returns the identifiers of a GPU, for use in CUDA_VISIBLE_DEVICES or a message to an administrator:
/// `GPU 0  NVIDIA H200  GPU-caae6e2c-…  00000000:3B:00.0`.
pub fn gpu(gpu: &Gpu) -> Copied {
    let bus = gpu.board.pci_bus.value().map_or("", String::as_str);
    let text = format!("GPU {}  {}  {}  {bus}", gpu.index, gpu.name, gpu.uuid);
    Copied::new(format!("GPU {} and its UUID", gpu.index), &text)
}

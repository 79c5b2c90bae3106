//! What is copied of the things that several screens show: a process, a group of them, a GPU.

use super::app::App;
use super::clipboard::Copied;
use super::groups::Group;
use super::rows::ProcessRow;
use crate::model::gpu::Gpu;
use crate::model::process::ProcessKey;
use crate::model::reading::Reading;

/// `418 /usr/bin/python3 train.py --lr 1`: the whole command line, of which a table shows the beginning.
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

/// The PIDs of its processes, as `kill` or `py-spy` take them.
pub fn group(group: &Group, app: &App) -> Copied {
    let rows = group.rows.iter().filter_map(|row| app.rows.get(*row));
    let mut keys: Vec<ProcessKey> = rows.map(|row| row.id().key).collect();
    keys.sort();
    keys.dedup();
    let pids: Vec<String> = keys.iter().map(|key| key.pid.to_string()).collect();
    Copied::new(format!("the PIDs of {}", group.title), &pids.join(" "))
}

/// `GPU 0  NVIDIA H200  GPU-caae6e2c-…  00000000:3B:00.0`: what CUDA_VISIBLE_DEVICES and an administrator ask for.
pub fn gpu(gpu: &Gpu) -> Copied {
    let bus = gpu.board.pci_bus.value().map_or("", String::as_str);
    let text = format!("GPU {}  {}  {}  {bus}", gpu.index, gpu.name, gpu.uuid);
    Copied::new(format!("GPU {} and its UUID", gpu.index), &text)
}

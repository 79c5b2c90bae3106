//! Reads `nvidia-smi` tables in a log: memory and compute mode of each GPU, and the processes on it.
//!
//! A table may be older or newer than the error beside it, so its processes count only where they do not contradict the
//! figures of the error message.

use std::sync::OnceLock;

use regex::bytes::{Captures, Regex, RegexBuilder};
use serde_json::{Value, json};

use super::fields::FieldMap;
use super::text::LogLine;

/// Number of lines before and after an error that are searched for a table.
const REACH: usize = 150;
const MIB: u64 = 1 << 20;
/// Minimum memory of a process that can be the reason for a failure, in bytes. A bare CUDA context uses more.
const MIN_HOLDER: u64 = 100 * MIB;
/// Tolerance in bytes for figures that were printed at different times.
const TOLERANCE: u64 = 512 * MIB;

/// First line of a GPU: index and bus address.
const GPU: &str = r"^\W{0,8}(?<gpu>\d{1,3})\s+\S[^\n|]*\|\s*(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d";
/// Second line of a GPU: memory and compute mode. The mode is truncated to the width of its column.
const USAGE: &str = r"\|\s*(?<used>\d+)MiB\s*/\s*(?<total>\d+)MiB\s*\|[^|\n]*?(?<mode>Default|E\. ?Process|E\. ?Thread|Prohibited)?\s*\|?\s*$";
/// Process on a GPU. Older drivers print neither instances nor types.
const PROCESS: &str = r"^\W{0,8}(?<gpu>\d{1,3})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?<pid>\d+)\s+(?:(?<kind>C\+G|M\+C|C|G)\s+)?(?<name>\S[^|\n]*?)\s+(?<used>\d+)\s?Mi?B\s*\|?\s*$";
/// Devices that the program could see.
const VISIBLE: &str = r#"(?i)\bcuda[_ ]visible[_ ]devices["']?\s*(?:is\s*)?[:=]\s*["'\[]?(?<devices>\d+(?:,\s?\d+)*)\b"#;

#[derive(Debug, Clone, PartialEq, Eq)]
struct SmiGpu {
    index: u64,
    used: u64,
    total: u64,
    /// True if only one process can use the GPU.
    is_exclusive: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SmiProcess {
    gpu: u64,
    pid: u64,
    name: String,
    bytes: u64,
    /// True for a graphics-only process.
    is_graphics: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    gpus: Vec<SmiGpu>,
    processes: Vec<SmiProcess>,
    /// True if the log contains the table's list of processes.
    lists_processes: bool,
    visible: Vec<u64>,
}

impl Table {
    fn read(text: &str) -> Self {
        let mut table = Self::default();
        if !text.contains("MiB") && !text.contains("rocesses:") {
            return table;
        }
        let [gpu, usage, process, visible] = expressions();
        let mut index = None;
        for line in text.lines() {
            let bytes = line.as_bytes();
            if let Some(row) = gpu.captures(bytes) {
                index = number(&row, "gpu");
            } else if let Some((row, at)) = usage.captures(bytes).zip(index) {
                index = None;
                let known = table.gpus.iter().position(|gpu| gpu.index == at);
                let mode = group(&row, "mode");
                let gpu = SmiGpu {
                    index: at,
                    used: number(&row, "used").unwrap_or(0).saturating_mul(MIB),
                    total: number(&row, "total").unwrap_or(0).saturating_mul(MIB),
                    is_exclusive: mode.is_some_and(|mode| mode.starts_with('E')),
                };
                match known {
                    Some(known) => table.gpus[known] = gpu,
                    None => table.gpus.push(gpu),
                }
            } else if line.contains("rocesses:") {
                // The last table is the newest.
                table.lists_processes = true;
                table.processes.clear();
            } else if let Some(row) = process.captures(bytes) {
                // If the list's header is missing, only rows with a process type are recognized.
                if !table.lists_processes && row.name("kind").is_none() {
                    continue;
                }
                let (Some(gpu), Some(pid)) = (number(&row, "gpu"), number(&row, "pid")) else {
                    continue;
                };
                table.processes.push(SmiProcess {
                    gpu,
                    pid,
                    name: group(&row, "name").unwrap_or_default(),
                    bytes: number(&row, "used").unwrap_or(0).saturating_mul(MIB),
                    is_graphics: group(&row, "kind").is_some_and(|kind| kind == "G"),
                });
            }
        }
        if let Some(devices) = visible.captures(text.as_bytes()).and_then(|c| group(&c, "devices"))
        {
            table.visible = devices.split(',').filter_map(|d| d.trim().parse().ok()).collect();
        }
        table
    }

    /// Returns the GPU of the failure as `nvidia-smi` counts it, or `None` if the log does not show it. `index` is
    /// the program's own device index.
    fn failed_gpu(&self, index: Option<u64>) -> Option<u64> {
        if !self.visible.is_empty() {
            let at = match index {
                Some(index) => usize::try_from(index).ok()?,
                None if self.visible.len() == 1 => 0,
                None => return None,
            };
            return self.visible.get(at).copied();
        }
        if index.is_some() {
            return index;
        }
        let mut seen = self.gpus.iter().map(|gpu| gpu.index);
        let mut seen = seen.by_ref().chain(self.processes.iter().map(|process| process.gpu));
        let first = seen.next()?;
        seen.all(|other| other == first).then_some(first)
    }

    /// Returns the processes on a GPU, without the process `own`.
    fn others(&self, gpu: u64, own: Option<u64>) -> impl Iterator<Item = &SmiProcess> {
        self.processes.iter().filter(move |process| process.gpu == gpu && Some(process.pid) != own)
    }

    /// Returns the number of processes if the table shows one process of the same program on each of several GPUs, with
    /// PIDs that are close together. These are the ranks of one job.
    fn ranks(&self) -> Option<usize> {
        let computing: Vec<&SmiProcess> =
            self.processes.iter().filter(|p| !p.is_graphics).collect();
        let mut gpus: Vec<u64> = computing.iter().map(|process| process.gpu).collect();
        let mut pids: Vec<u64> = computing.iter().map(|process| process.pid).collect();
        gpus.sort_unstable();
        gpus.dedup();
        pids.sort_unstable();
        let is_one_program = computing.windows(2).all(|pair| pair[0].name == pair[1].name);
        let are_ranks = gpus.len() == computing.len() && is_one_program && are_close(&pids);
        are_ranks.then_some(gpus.len())
    }

    /// Returns the process that computes on the GPU and holds most of its memory.
    fn holder(&self, gpu: u64, own: Option<u64>) -> Option<&SmiProcess> {
        let others = self.others(gpu, own).filter(|p| !p.is_graphics && p.bytes >= MIN_HOLDER);
        others.max_by_key(|process| process.bytes)
    }
}

/// Adds what a table near line `at` shows about the GPU of the failure: the process that holds most memory as
/// `holder_*`, all processes as `other_processes` unless the message lists them or leaves no memory for them, the
/// exclusive mode as `exclusive_gpu`, and memory of no listed process as `unnamed_*`. If the processes are the ranks of
/// one job, adds only their number as `smi_ranks`.
///
/// Reads the separate lines, because a flow would join the rows of a table as if they were one wrapped line.
pub(super) fn add(found: &mut FieldMap, lines: &[LogLine], at: usize) {
    let near = &lines[at.saturating_sub(REACH)..lines.len().min(at + REACH)];
    if near.iter().any(|line| line.text.contains("MiB") || line.text.contains("rocesses:")) {
        let text: Vec<&str> = near.iter().map(|line| line.text.as_str()).collect();
        add_from(found, &Table::read(&text.join("\n")));
    }
}

fn add_from(found: &mut FieldMap, table: &Table) {
    let get = |name: &str| found.get(name).and_then(Value::as_u64);
    let own = get("pid");
    let failed = table.failed_gpu(get("gpu_index"));
    let mut exclusive = table.gpus.iter().filter(|gpu| gpu.is_exclusive);
    if let Some(gpu) = exclusive.find(|gpu| failed.is_none_or(|failed| failed == gpu.index)) {
        found.insert("exclusive_gpu".into(), gpu.index.into());
    }
    let Some(failed) = failed else {
        return;
    };
    if let Some(ranks) = table.ranks() {
        found.insert("smi_ranks".into(), ranks.into());
        return;
    }
    let get = |name: &str| found.get(name).and_then(Value::as_u64);
    let processes: Vec<&SmiProcess> = table.others(failed, own).collect();
    let sum = processes.iter().fold(0_u64, |sum, p| sum.saturating_add(p.bytes));
    let this = get("process_bytes").or_else(|| get("reserved_bytes")).or_else(|| {
        Some(get("allocated_bytes")?.saturating_add(get("reserved_unallocated_bytes").unwrap_or(0)))
    });
    let room = get("total_bytes").zip(get("free_bytes")).zip(this);
    let room = room.map(|((total, free), this)| total.saturating_sub(free.saturating_add(this)));
    if room.is_some_and(|room| sum > room.saturating_add(TOLERANCE)) {
        return;
    }
    if room.is_some() && sum > 0 && !found.contains_key("other_processes") {
        let list = processes.iter().map(|p| json!({"pid": p.pid, "bytes": p.bytes}));
        let list: Vec<Value> = list.collect();
        found.insert("other_processes".into(), list.into());
    }
    if let Some(holder) = table.holder(failed, own) {
        found.insert("holder_gpu".into(), failed.into());
        found.insert("holder_pid".into(), holder.pid.into());
        found.insert("holder_name".into(), holder.name.clone().into());
        found.insert("holder_bytes".into(), holder.bytes.into());
    }
    if let Some(gpu) = table.gpus.iter().find(|gpu| gpu.index == failed)
        && room.is_none()
        && table.lists_processes
        && processes.is_empty()
        && gpu.used > gpu.total / 2
    {
        found.insert("unnamed_gpu".into(), failed.into());
        found.insert("unnamed_used_bytes".into(), gpu.used.into());
        found.insert("unnamed_total_bytes".into(), gpu.total.into());
    }
}

fn group(captures: &Captures<'_>, name: &str) -> Option<String> {
    captures.name(name).map(|m| String::from_utf8_lossy(m.as_bytes()).into_owned())
}

fn number(captures: &Captures<'_>, name: &str) -> Option<u64> {
    group(captures, name)?.parse().ok()
}

fn expressions() -> &'static [Regex; 4] {
    static EXPRESSIONS: OnceLock<[Regex; 4]> = OnceLock::new();
    EXPRESSIONS.get_or_init(|| {
        [GPU, USAGE, PROCESS, VISIBLE].map(|expression| {
            let built = RegexBuilder::new(expression).unicode(false).build();
            built.expect("constant expression")
        })
    })
}

/// Returns true if at least two processes were started shortly after each other. `pids` must be sorted.
pub(super) fn are_close(pids: &[u64]) -> bool {
    /// Maximum distance of neighbouring PIDs. A rank starts threads and helpers, which also take PIDs.
    const MAX_DISTANCE: u64 = 32;
    pids.len() >= 2 && pids.windows(2).all(|pair| pair[1] - pair[0] <= MAX_DISTANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
+-----------------------------------------------------------------------------------------+
|   0  NVIDIA A30                     Off |   00000000:17:00.0 Off |                    0 |
| N/A   41C    P0             70W /  165W |   20480MiB /  24576MiB |     12%   E. Process |
|   1  NVIDIA A30                     Off |   00000000:65:00.0 Off |                    0 |
| N/A   35C    P8             30W /  165W |       4MiB /  24576MiB |      0%      Default |
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|=========================================================================================|
|    0   N/A  N/A      2201      G   /usr/lib/xorg/Xorg                             60MiB |
|    0   N/A  N/A     41077      C   /opt/render farm/bin/worker                 20400MiB |
+-----------------------------------------------------------------------------------------+
";

    #[test]
    fn reads_gpus_and_processes() {
        let table = Table::read(TABLE);
        let modes: Vec<_> = table.gpus.iter().map(|g| (g.index, g.is_exclusive)).collect();
        assert_eq!(modes, [(0, true), (1, false)]);
        assert_eq!(table.gpus[0].used, 20480 * MIB);
        let holder = table.holder(0, None).expect("holder");
        assert_eq!((holder.pid, holder.name.as_str()), (41077, "/opt/render farm/bin/worker"));
        assert_eq!(table.holder(0, Some(41077)), None);
        assert_eq!((table.failed_gpu(None), table.failed_gpu(Some(1))), (None, Some(1)));
        let masked = Table::read(&format!("CUDA_VISIBLE_DEVICES=1\n{TABLE}"));
        assert_eq!((masked.failed_gpu(None), masked.failed_gpu(Some(0))), (Some(1), Some(1)));
    }

    #[test]
    fn adds_processes_only_where_the_message_leaves_room_for_them() {
        let gib = 1_u64 << 30;
        let after = |free: u64| {
            let message = json!({"gpu_index": 0, "total_bytes": 24 * gib, "free_bytes": free,
                "allocated_bytes": gib, "reserved_bytes": gib});
            let mut found = message.as_object().cloned().unwrap_or_default();
            add_from(&mut found, &Table::read(TABLE));
            (found.get("other_processes").map(|o| o.to_string()), found.get("holder_pid").cloned())
        };
        let (others, holder) = after(2 * gib);
        assert!(others.is_some_and(|o| o.contains("41077")));
        assert_eq!(holder, Some(41077.into()));
        assert_eq!(after(20 * gib), (None, None));
    }
}

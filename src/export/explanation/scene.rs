//! Formats the state of the host at the time of an incident, printed below the incident's explanation.
//!
//! ```text
//! ON    GPU 0 NVIDIA H200, 0.3 s before: 118.60 GiB of 139.81 GiB used, SM 97 %, 1755 of 1980 MHz,
//!       slowed by power cap
//! ALSO  PID 1771 python bench.py (ana): 12.00 GiB on GPU 0
//! MAP   read at most 0.04 s after the failure: 8.02 GiB free in 1218 of 5120 blocks, the largest 612.00 MiB; …
//!       <=    1M ########                      812    203M
//! HELD  read 0.6 s after the failure: 61.20 GiB allocated by PyTorch
//!        41.10 GiB  67 %  saved by autograd
//! STACK read at most 0.05 s after the failure
//!       train.py:57 step
//! WITH  gputop 0.1.0, driver 580.159.03, CUDA 13.0, torch 2.13 to 2.15
//! ```

use std::collections::BTreeMap;

use gputop_model::holders::Quality;
use gputop_model::holders::summary::HolderSummary;
use gputop_model::process::without_interpreter;
use gputop_model::scene::{FreeBlocks, Scene, SceneMap};
use gputop_model::stack::StackTrigger;
use gputop_model::text::visible;
use gputop_model::{
    Bytes, Gpu, GpuProcess, HolderClass, MegaHertz, Millis, Mono, ProcessKey, PythonStack, Throttle,
};

use super::lines::StyledLine;
use super::text::{INDENT, label};

/// Maximum number of other processes, and of GPUs, to list. `--json` lists more.
const MAX_OTHERS: usize = 5;
const MAX_GPUS: usize = 4;
/// Maximum number of stack frames to show, starting with the innermost.
const MAX_FRAMES: usize = 8;
/// Maximum number of groups of tensors to show, largest first, and maximum length of a group's name in characters.
const MAX_GROUPS: usize = 5;
const MAX_NAME: usize = 120;
/// Maximum number of classes of memory holders to show, largest first.
const MAX_CLASSES: usize = 6;
/// Width of the histogram's longest bar in cells.
const BAR_WIDTH: u64 = 24;

/// Amount of detail to show about other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// Lists other processes with command line and user, for readers who are allowed to see both.
    Named,
    /// Lists only the PIDs of other processes, for text that may be shared.
    Numbered,
}

/// Formats a scene as lines wrapped to `width` cells. Returns no lines if there are no observations.
pub fn scene(scene: &Scene, others: Others, width: usize) -> Vec<StyledLine> {
    let mut out = Vec::new();
    let section = |out: &mut Vec<StyledLine>, word: &str, lines: Vec<String>| {
        for (n, line) in lines.iter().enumerate() {
            label(out, if n == 0 { word } else { "" }, line, INDENT, width);
        }
    };
    let gpus = scene.frame.gpus.iter().take(MAX_GPUS);
    section(&mut out, "ON", gpus.map(|gpu| on(gpu, scene.at)).collect());
    section(&mut out, "ALSO", also(scene, others));
    if let Some(map) = &scene.map {
        section(&mut out, "MAP", vec![map_summary(map)]);
        out.extend(histogram(map).into_iter().map(StyledLine::plain));
    }
    if let Some(holders) = &scene.holders {
        let (head, rows) = held_lines(holders, scene.at, others);
        section(&mut out, "HELD", vec![head]);
        out.extend(rows.into_iter().map(StyledLine::plain));
    }
    for stack in &scene.stacks {
        out.extend(stack_lines(stack, scene.stacks.len() > 1));
    }
    out
}

/// Formats the WITH section: `WITH  driver 580.159.03, torch 2.13 to 2.15`.
pub fn versions(versions: &BTreeMap<String, String>, width: usize) -> Vec<StyledLine> {
    let mut out = Vec::new();
    let words: Vec<String> = versions
        .iter()
        .map(|(name, version)| match name.as_str() {
            "cuda" => format!("CUDA {version}"),
            _ => format!("{name} {version}"),
        })
        .collect();
    if !words.is_empty() {
        label(&mut out, "WITH", &words.join(", "), INDENT, width);
    }
    out
}

/// Formats a GPU's state: `GPU 0 NVIDIA H200, 0.3 s before: …`. Omits values that were not read.
fn on(gpu: &Gpu, at: Mono) -> String {
    let mut words = Vec::new();
    let memory = &gpu.memory;
    if let (Some(used), Some(total)) = (memory.taken(), memory.total.get()) {
        let free = memory.free.get().map_or(String::new(), |free| format!(", {free} free"));
        words.push(format!("{used} of {total} used{free}"));
    }
    words.extend(gpu.sm.get().map(|sm| format!("SM {:.0} %", sm.0)));
    words.extend(gpu.sm_clock.get().map(|clock| {
        let max = gpu.board.max_sm_clock.get();
        let max = max.map_or(String::new(), |MegaHertz(max)| format!(" of {max}"));
        format!("clock {}{max} MHz", clock.0)
    }));
    words.extend(gpu.power.get().map(|power| {
        let cap = gpu.power_cap.get();
        let cap = cap.map_or(String::new(), |cap| format!(" of {}", cap.0 / 1_000));
        format!("{}{cap} W", power.0 / 1_000)
    }));
    words.extend(gpu.temperature.get().map(|temperature| format!("{} C", temperature.0)));
    let throttle = gpu.throttle.value().into_iter().flatten();
    let reasons = throttle.filter(|reason| **reason != Throttle::Idle);
    let reasons: Vec<&str> = reasons.map(|reason| reason.words()).collect();
    if !reasons.is_empty() {
        words.push(format!("slowed by {}", reasons.join(", ")));
    }
    let when = match gpu.at > at {
        true => format!("{} later", seconds(gpu.at.since(at))),
        false => format!("{} before", seconds(at.since(gpu.at))),
    };
    format!("GPU {} {}, {when}: {}", gpu.index, gpu.name, words.join(", "))
}

/// Returns the other processes on the incident's GPUs, largest first.
fn also(scene: &Scene, others: Others) -> Vec<String> {
    let frame = &scene.frame;
    let own: Vec<ProcessKey> = {
        let pools = frame.pools.iter().flat_map(|pools| &*pools.list);
        pools.map(|pool| pool.process).chain(scene.processes.iter().copied()).collect()
    };
    let mut list: Vec<(&Gpu, &GpuProcess)> = Vec::new();
    for gpu in &frame.gpus {
        let there = gpu.processes.value().into_iter().flatten();
        let is_other = |p: &&GpuProcess| p.process.is_none_or(|key| !own.contains(&key));
        list.extend(there.filter(is_other).map(|process| (gpu, process)));
    }
    list.sort_by_key(|(_, process)| std::cmp::Reverse(process.vram.get()));
    let beyond = list.len().saturating_sub(MAX_OTHERS) + scene.left_out as usize;
    let words = |(gpu, process): &(&Gpu, &GpuProcess)| {
        let facts = process.process.and_then(|key| frame.process(key));
        let facts = facts.filter(|_| others == Others::Named);
        let name = facts.and_then(|facts| facts.command.value().or(Some(&facts.name)));
        let name = name.map_or(String::new(), |name| format!(" {}", without_interpreter(name)));
        let user = facts.and_then(|facts| facts.user.value());
        let user = user.map_or(String::new(), |user| format!(" ({user})"));
        let held = process.vram.get();
        let held = held.map_or("memory unknown".to_owned(), |held| held.to_string());
        format!("PID {}{name}{user}: {held} on GPU {}", process.pid, gpu.index)
    };
    let mut lines: Vec<String> = list.iter().take(MAX_OTHERS).map(words).collect();
    if beyond > 0 {
        lines.push(format!("and {beyond} more"));
    }
    lines
}

fn map_summary(map: &SceneMap) -> String {
    let blocks: u64 = map.free_histogram.iter().map(|step| step.count).sum();
    let free = map.free_histogram.iter().map(|step| step.bytes.0);
    let free = Bytes(free.fold(0, u64::saturating_add));
    let lag = lag(map.lag);
    let doubt = if map.exact { "" } else { "(changed during the read)" };
    if blocks == 0 {
        return format!("{lag}{doubt}: no free block in {} segments", map.segments);
    }
    format!(
        "{lag}{doubt}: {free} free in {blocks} of {} blocks, the largest {}; {} fragmented beside live tensors, {} \
         returnable to the driver",
        map.blocks, map.largest_free_block, map.fragmented, map.returnable
    )
}

/// Formats a histogram of free blocks: `      <=    1M ########   812    203M`. Blocks up to 1 MiB share a line.
fn histogram(map: &SceneMap) -> Vec<String> {
    const SMALL: Bytes = Bytes::mib(1);
    let mut steps: Vec<FreeBlocks> = Vec::new();
    for step in map.free_histogram.iter().filter(|step| step.count > 0) {
        let up_to_bytes = step.up_to_bytes.max(SMALL);
        match steps.last_mut().filter(|last| last.up_to_bytes == up_to_bytes) {
            Some(last) => {
                last.count += step.count;
                last.bytes = Bytes(last.bytes.0.saturating_add(step.bytes.0));
            }
            None => steps.push(FreeBlocks { up_to_bytes, ..*step }),
        }
    }
    let max = steps.iter().map(|step| step.bytes.0).max().unwrap_or(0).max(1);
    let line = |step: FreeBlocks| {
        let cells = u128::from(step.bytes.0) * u128::from(BAR_WIDTH) / u128::from(max);
        let bar = "#".repeat(usize::try_from(cells).unwrap_or(0).max(1));
        let (up_to, count) = (step.up_to_bytes.short(), step.count);
        format!("{:INDENT$}<= {up_to:>5} {bar:<25}{count:>7} {:>7}", "", step.bytes.short())
    };
    steps.into_iter().map(line).collect()
}

/// Returns a heading, and a line for each class of holder with its memory, largest first. Lists the largest groups by
/// name, unless the text may be shared with other users.
fn held_lines(holders: &HolderSummary, failed: Mono, others: Others) -> (String, Vec<String>) {
    let when = if holders.at < failed {
        match failed.since(holders.at) {
            Millis(span @ 120_000..) => format!("read {} min before the failure", span / 60_000),
            span => format!("read {} before the failure", seconds(span)),
        }
    } else {
        format!("read {} after the failure", seconds(holders.at.since(failed)))
    };
    let doubt = match holders.quality {
        Quality::Exact => "",
        Quality::Approximate => " (changed during the read)",
    };
    let row = |bytes: Bytes, what: &str| {
        let share = format!("{:.0} %", holders.percent(bytes));
        format!("{:INDENT$}{:>10} {share:>5}  {what}", "", bytes.to_string())
    };
    let head = format!("{when}: {} allocated by PyTorch{doubt}", holders.allocated);
    let mut lines = Vec::new();
    let mut classes: Vec<_> = holders.classes.iter().collect();
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
    lines.extend(classes.iter().take(MAX_CLASSES).map(|(class, bytes)| row(**bytes, class.name())));
    if holders.retained_graphs > Bytes(0) {
        let what = "graphs kept in a Python container (included above)";
        lines.push(row(holders.retained_graphs, what));
    }
    if holders.retained_tensors > Bytes(0) {
        let what = "tensors kept in a Python container (included above)";
        lines.push(row(holders.retained_tensors, what));
    }
    if let Some(minimum) = holders.training_minimum() {
        lines.push(row(minimum, "training minimum: parameters, gradients, optimizer"));
    }
    if others == Others::Named {
        for group in holders.groups.iter().take(MAX_GROUPS) {
            let name = visible(group.name.as_bytes(), MAX_NAME);
            let what = match group.class {
                HolderClass::SavedForBackward => format!("in the graph of {name}"),
                _ => name,
            };
            lines.push(row(group.bytes, &what));
        }
    }
    (head, lines)
}

fn stack_lines(stack: &PythonStack, is_one_of_several: bool) -> Vec<StyledLine> {
    let owner =
        if is_one_of_several { format!(" of PID {}", stack.process.pid) } else { String::new() };
    let when = match stack.why {
        StackTrigger::Oom => lag(stack.lag),
        _ => "read while the ranks waited".to_owned(),
    };
    let head = format!("{:<INDENT$}{when}{owner}", "STACK");
    let frames = stack.main().map_or(&[][..], |thread| &thread.frames);
    let mut lines = vec![head];
    if frames.is_empty() {
        lines.push(format!("{:INDENT$}no Python function is running", ""));
    }
    let shown = frames.iter().take(MAX_FRAMES);
    lines.extend(shown.map(|frame| format!("{:INDENT$}{frame}", "")));
    let beyond = frames.len().saturating_sub(MAX_FRAMES);
    if beyond > 0 {
        lines.push(format!("{:INDENT$}and {beyond} more below", ""));
    }
    lines.into_iter().map(StyledLine::plain).collect()
}

fn lag(lag: Millis) -> String {
    format!("read at most {} after the failure", seconds(lag))
}

/// Formats a time span in seconds, with two decimals below 0.1 s: `0.04 s`, `1.5 s`.
fn seconds(span: Millis) -> String {
    let seconds = span.0 as f64 / 1_000.0;
    match span.0 {
        0..100 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.1} s"),
    }
}

//! `gputop memory PID`: prints which tensors and arrays hold the GPU memory of a process, by Python name, without stopping
//! the process.
//!
//! Exit codes, as for `gputop allocator`: 0 success; 1 no readable allocator, or no group matches `--group`; 2
//! permission denied, or process not found.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use color_eyre::Result;
use color_eyre::eyre::{WrapErr as _, bail, eyre};
use gputop_model::bounded_json;
use gputop_model::frame::SCHEMA;
use gputop_model::holders::growth::{GroupGrowth, HolderGrowth, missing_groups};
use gputop_model::text::{Escaped, json_escaped, quoted};
use gputop_model::{Bytes, HolderClass, HolderGroup, Holders, Millis, Pid, ProcessKey, Reading};
use gputop_peek::cpython::limits::Options;
use gputop_peek::memory::dump::DumpRecorder;
use gputop_peek::memory::live::Live;
use gputop_peek::torch::Failure;
use gputop_peek::torch::holders::read_recorded;
use serde::{Deserialize, Serialize};

use super::allocator::{exit_code, save_dump};
use super::print::{say, width, write_out};
use super::settings::watch_argument;
use crate::collect::holders::read;
use crate::dashboard::holders::HolderRow;
use crate::export::explanation::wrapped;
use crate::export::glyphs::UNICODE;
use crate::export::holders::{
    advice_lines, difference_lines, estimates, sentence, state_text, tensors,
};
use crate::export::tables;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Process that uses PyTorch, JAX or CuPy on a GPU
    pid: u32,
    /// Print JSON, with sizes in bytes. With --watch, print one line at each interval
    #[arg(long)]
    json: bool,
    /// List at most this many groups [default: 20; all in JSON]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// List the tensors of the groups whose name or class contains this text, and the references that keep each tensor
    /// alive
    #[arg(long, value_name = "TEXT")]
    group: Option<String>,
    /// List the tensors of all groups
    #[arg(long, conflicts_with = "group")]
    tensors: bool,
    /// Read again at this interval, such as 10s or 1m, and show what grows
    #[arg(long, value_name = "TIME", value_parser = watch_argument)]
    watch: Option<Millis>,
    /// Compare with an earlier reading of the same process, saved with --json
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    since: Option<PathBuf>,
    /// Save the memory that a reading uses, for tests
    #[arg(long, value_name = "FILE", hide = true)]
    dump: Option<PathBuf>,
}

const DEFAULT_TOP: usize = 20;
/// A dump is read without a cache, one system call for each object.
const DUMP_TIME_LIMIT: Duration = Duration::from_secs(120);
/// Maximum size of a saved reading, and of the memory used to parse it. The largest reading takes a few megabytes.
const MAX_SAVED_BYTES: usize = 64 << 20;

/// JSON document for one memory reading.
#[derive(Serialize)]
struct MemoryDocument<'a> {
    schema: u32,
    pid: Pid,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    holders: Reading<&'a Holders>,
    /// Growth of tensor groups since the previous reading.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    growth: Vec<Growth<'a>>,
    /// Groups of the earlier reading that no longer exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_groups: Vec<&'a HolderGroup>,
}

/// The part of a saved document that is needed for a comparison.
#[derive(Deserialize)]
struct SavedDocument {
    holders: Holders,
}

#[derive(Serialize)]
struct Growth<'a> {
    ordinal: u32,
    class: HolderClass,
    name: &'a str,
    #[serde(flatten)]
    growth: GroupGrowth,
}

pub fn run(args: &Args) -> Result<u8> {
    let (pid, proc_root) = (Pid(args.pid), Path::new("/proc"));
    if let Some(file) = &args.dump {
        return write_dump(proc_root, pid, file);
    }
    let mut growth = HolderGrowth::default();
    let earlier = args.since.as_deref().map(saved_reading).transpose()?;
    if let Some(earlier) = &earlier {
        growth.push(earlier);
    }
    let mut process = earlier.as_ref().map(|earlier| earlier.process);
    loop {
        // Nothing sets the cancellation flag, because a signal terminates the whole program.
        let result = read(proc_root, pid, &AtomicBool::new(false));
        let can_repeat = matches!(result, Ok(_) | Err(Failure::Busy));
        let (text, code) = match result {
            Ok(holders) => {
                check_process(process, holders.process)?;
                process = Some(holders.process);
                growth.push(&holders);
                let code = u8::from(!args.has_match(&holders));
                (args.output(&holders, &growth, earlier.as_ref())?, code)
            }
            Err(failure) => (args.failure_output(pid, &failure)?, exit_code(&failure)),
        };
        let is_open = write_out(&text)?;
        let Some(interval) = args.watch.filter(|_| is_open && can_repeat) else { return Ok(code) };
        std::thread::sleep(Duration::from_millis(interval.0));
    }
}

/// Fails if a reading is of another process than the earlier one. PIDs are reused.
fn check_process(earlier: Option<ProcessKey>, process: ProcessKey) -> Result<()> {
    let pid = process.pid;
    match earlier {
        Some(earlier) if earlier.pid != pid => {
            bail!("the earlier reading is of PID {}, not of PID {pid}", earlier.pid)
        }
        Some(earlier) if earlier != process => {
            bail!("PID {pid} now belongs to a different process than in the earlier reading")
        }
        _ => Ok(()),
    }
}

/// Reads the holders once, and saves the memory that this needed.
fn write_dump(proc_root: &Path, pid: Pid, file: &Path) -> Result<u8> {
    let recorder = DumpRecorder::new(Live::new(proc_root, pid));
    // Scans the heaps without the recorder, so that the dump contains only the objects found by the scan.
    let heaps = Live::new(proc_root, pid);
    let options = Options { time_limit: DUMP_TIME_LIMIT, ..Options::default() };
    let started = Instant::now();
    let clock = || started.elapsed();
    let is_cancelled = AtomicBool::new(false);
    if let Err(failure) = read_recorded(&recorder, &heaps, &options, &clock, &is_cancelled) {
        say(&format!("gputop: cannot read the memory of PID {pid}: {failure}\n"));
    }
    save_dump(recorder, file)
}

/// Reads a document that `gputop memory --json` printed.
fn saved_reading(path: &Path) -> Result<Holders> {
    let name = path.display();
    let context = || format!("cannot read {name}");
    // Check the file type first, because opening a named pipe would wait for a writer.
    if !path.metadata().wrap_err_with(context)?.is_file() {
        bail!("cannot read {name}: not a regular file");
    }
    let file = File::open(path).wrap_err_with(context)?;
    let mut text = Vec::new();
    file.take(MAX_SAVED_BYTES as u64).read_to_end(&mut text).wrap_err_with(context)?;
    let saved = bounded_json::read::<SavedDocument>(&text, MAX_SAVED_BYTES);
    let (saved, _) = saved
        .map_err(|_| eyre!("{name} is not a reading saved with `gputop memory PID --json`"))?;
    let holders = saved.holders;
    if holders.process == ProcessKey::default() {
        bail!("{name} contains no reading, only the reason why the reading failed");
    }
    let listed = holders.groups.iter().map(|group| group.bytes.0);
    if listed.fold(0, u64::saturating_add) != holders.allocated.0 {
        bail!("{name} lists only some groups; save it without --top and --group");
    }
    Ok(holders)
}

impl Args {
    fn selects(&self, group: &HolderGroup) -> bool {
        let Some(wanted) = self.group.as_ref().map(|text| text.to_lowercase()) else { return true };
        let class = group.class;
        [group.name.as_str(), class.name(), class.short_name()]
            .iter()
            .any(|text| text.to_lowercase().contains(&wanted))
    }

    /// Checks that `--group` matches a group of tensors. If none matches, prints a message and returns false.
    fn has_match(&self, holders: &Holders) -> bool {
        let Some(wanted) = &self.group else { return true };
        let has_match = holders.groups.iter().any(|group| self.selects(group));
        if !has_match {
            let (pid, wanted) = (self.pid, quoted(wanted));
            say(&format!("gputop: no group of PID {pid} has `{wanted}` in its name or class\n"));
        }
        has_match
    }

    fn output(
        &self,
        holders: &Holders,
        growth: &HolderGrowth,
        earlier: Option<&Holders>,
    ) -> Result<String> {
        if self.json {
            return self.json(holders, growth, earlier);
        }
        let text = if self.tensors || self.group.is_some() {
            self.tensor_text(holders, growth)
        } else {
            self.text(holders, growth, earlier, width())
        };
        let separator = if self.watch.is_some() { "\n" } else { "" };
        Ok(Escaped(&(text + separator)).to_string())
    }

    /// Returns a summary, the growing groups, the group table and the total memory.
    fn text(
        &self,
        holders: &Holders,
        growth: &HolderGrowth,
        earlier: Option<&Holders>,
        width: usize,
    ) -> String {
        let mut sentences = vec![sentence(holders, growth)];
        sentences.extend(earlier.into_iter().flat_map(|e| difference_lines(e, holders)));
        sentences.extend(advice_lines(holders, growth));
        sentences.extend(estimates(holders, None));
        sentences.extend(holders.limit.clone());
        let lines = sentences.iter().flat_map(|text| wrapped(text, width));
        let mut text = lines.map(|line| line + "\n").collect::<String>();
        let mut rows = HolderRow::list(holders, growth);
        let others = rows.split_off(self.top.unwrap_or(DEFAULT_TOP).min(rows.len()));
        if !rows.is_empty() {
            let columns = u16::try_from(width).unwrap_or(u16::MAX);
            text += &format!("\n{}", tables::holders(&rows, columns, &UNICODE));
        }
        if !others.is_empty() {
            let bytes = Bytes(others.iter().map(|row| row.bytes.0).sum());
            text += &format!(" and {} smaller groups: {bytes}\n", others.len());
        }
        let (allocated, state) = (holders.allocated, state_text(holders));
        text + &format!("\nPID {}  {allocated} allocated; {state}\n", holders.process.pid)
    }

    fn tensor_text(&self, holders: &Holders, growth: &HolderGrowth) -> String {
        let groups = holders.groups.iter().filter(|group| self.selects(group));
        let groups = groups.take(self.top.unwrap_or(DEFAULT_TOP));
        let with_paths = self.group.is_some();
        let parts: Vec<String> = groups.map(|group| tensors(holders, group, with_paths)).collect();
        if with_paths {
            parts.join("\n")
        } else {
            format!("{}\n\n{}", sentence(holders, growth), parts.join("\n"))
        }
    }

    fn json(
        &self,
        holders: &Holders,
        growth: &HolderGrowth,
        earlier: Option<&Holders>,
    ) -> Result<String> {
        let mut shown = holders.clone();
        shown.groups.retain(|group| self.selects(group));
        shown.groups.truncate(self.top.unwrap_or(usize::MAX));
        let changes = shown.groups.iter().filter_map(|group| {
            Some(Growth {
                ordinal: group.ordinal,
                class: group.class,
                name: &group.name,
                growth: growth.of(group)?,
            })
        });
        let document = MemoryDocument {
            schema: SCHEMA,
            pid: holders.process.pid,
            summary: Some(sentence(holders, growth)),
            growth: changes.collect(),
            missing_groups: earlier
                .and_then(|earlier| missing_groups(earlier, holders))
                .unwrap_or_default(),
            holders: Reading::Value(&shown),
        };
        self.document_text(&document)
    }

    fn document_text(&self, document: &MemoryDocument<'_>) -> Result<String> {
        let text = match self.watch {
            Some(_) => serde_json::to_string(document)?,
            None => serde_json::to_string_pretty(document)?,
        };
        Ok(json_escaped(&(text + "\n")))
    }

    /// Returns the failure as JSON for standard output, or prints a message to standard error.
    fn failure_output(&self, pid: Pid, failure: &Failure) -> Result<String> {
        if self.json {
            return self.document_text(&MemoryDocument {
                schema: SCHEMA,
                pid,
                summary: None,
                holders: Reading::Missing(failure.missing()),
                growth: Vec::new(),
                missing_groups: Vec::new(),
            });
        }
        say(&format!("gputop: cannot read the memory of PID {pid}: {failure}\n"));
        Ok(String::new())
    }
}

#[cfg(test)]
mod tests;

//! The probe allocator: gputop's own allocations on the real card, in a short-lived child of the same binary.
//!
//! A CUDA context costs about half a GiB, a driver call may hang, and a driver too old ends whoever calls it: so gputop
//! itself never loads CUDA. [`probe`] starts `gputop probe-child`, tells it in one line of JSON what to do
//! ([`ChildRequest`]), reads one bounded line back ([`Probe`]), and kills it when it is late. The kernel's driver takes back what a
//! process held when that process ends, however it ends; the child asks to be killed when its parent dies.
//!
//! `child/` is the only place that names CUDA. `fill.rs` and `policy/` work on a `Device`, which is
//! the driver there and a card made of numbers in tests.

pub mod child;
mod device;
mod fill;
mod lock;
pub mod pattern;
mod policy;
mod request;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

pub use request::ChildRequest;

use crate::allocator::fragmentation::{Bucket, Fragmentation};
use crate::model::pool::PoolMap;
use crate::model::probe::{Bin, Outcome, Probe, ProcessSide};
use crate::model::text::visible;
use crate::model::units::Millis;

/// The hidden subcommand.
pub const CHILD: &str = "probe-child";

/// Loading the driver and creating a context: 0.2 s on a card that is awake, seconds on eight that are not.
pub const START: Duration = Duration::from_secs(20);

/// Giving back 130 GiB takes 90 ms; a driver that needs this long for the rest is stuck.
pub const FINISH: Duration = Duration::from_secs(2);

/// What the child's own alarm ends it with.
const LATE: i32 = nix::libc::SIGALRM;

/// Longer than any answer: a few dozen bins for each of a handful of policies.
const MAX_ANSWER: u64 = 256 << 10;
/// Half of a pipe, so that writing it never waits for a reader.
const MAX_ASK: usize = 32 << 10;
const MAX_BINS: usize = 64;
const MAX_WORDS: usize = 300;

/// Asks this binary's own child; returns when the child has ended and everything is given back.
pub fn probe(ask: &ChildRequest) -> Probe {
    // The file that runs now, also where another has taken its name since.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("gputop").arg(CHILD);
    told_by(command, ask, START)
}

/// The same with the program and the patience given.
fn told_by(mut command: Command, ask: &ChildRequest, start: Duration) -> Probe {
    let begun = Instant::now();
    command
        .env("CUDA_VISIBLE_DEVICES", OsStr::new(&*ask.gpu.0))
        .env("CUDA_MODULE_LOADING", "LAZY")
        .env_remove("CUDA_LAUNCH_BLOCKING")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let deadline = start + Duration::from_millis(ask.limit.0) * 2 + FINISH * 2;
    let mut probe = match answer(command, ask, deadline) {
        Ok(probe) => harmless(probe),
        Err(why) => Probe {
            outcome: Outcome::Failed,
            reason: Some(why),
            ..Probe::default()
        },
    };
    probe.schema = crate::model::frame::SCHEMA;
    probe.gpu = ask.gpu.clone();
    probe.nvml_free_bytes = ask.nvml_free.clone();
    probe.cost.total_ms = millis(begun.elapsed()).0;
    probe
}

fn answer(mut command: Command, ask: &ChildRequest, patience: Duration) -> Result<Probe, String> {
    let line = serde_json::to_string(ask).map_err(|error| error.to_string())?;
    if line.len() >= MAX_ASK {
        return Err(format!(
            "the pattern is too long to hand over: {} KiB, at most {}",
            line.len() >> 10,
            MAX_ASK >> 10
        ));
    }
    let mut child = Ended(
        command
            .spawn()
            .map_err(|error| format!("the probe's process could not be started: {error}"))?,
    );
    if let Some(mut input) = child.0.stdin.take() {
        // One that has ended already says why below.
        let _ = input.write_all(line.as_bytes());
    }
    let Some(output) = child.0.stdout.take() else {
        return Err("the probe's process has no output".into());
    };
    let (said, answer) = mpsc::channel();
    thread::Builder::new()
        .name("probe".into())
        .spawn(move || {
            let mut text = Vec::new();
            let _ = output.take(MAX_ANSWER + 1).read_to_end(&mut text);
            let _ = said.send(text);
        })
        .map_err(|error| error.to_string())?;
    let Ok(text) = answer.recv_timeout(patience) else {
        return Err(format!(
            "it had no answer after {} s and was killed; the driver takes back what it held",
            patience.as_secs()
        ));
    };
    if text.len() as u64 > MAX_ANSWER {
        return Err("its answer was too long and it was killed".into());
    }
    if text.is_empty() {
        return Err(silent(child.0.wait().ok()));
    }
    let probe = serde_json::from_slice(&text)
        .map_err(|error| format!("its answer cannot be read: {error}"))?;
    // Its end is when everything is back: closing its output came just before.
    let _ = child.0.wait();
    Ok(probe)
}

/// Why there was no answer.
fn silent(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Some(status) if status.signal() == Some(LATE) => {
            "the driver did not come back in time; the probe ended itself, and the driver takes back what it held".into()
        }
        Some(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("it was ended by signal {signal}; the driver takes back what it held"),
            (_, code) => format!("it ended with code {} and without an answer", code.unwrap_or(-1)),
        },
        None => "it ended without an answer".into(),
    }
}

/// Killed and collected at the latest when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child runs code of the driver: its words are shown as any other program's, and its lists are short.
fn harmless(mut probe: Probe) -> Probe {
    let clean = |text: &mut String| *text = visible(text.as_bytes(), MAX_WORDS);
    let bounded = |bins: &mut Vec<Bin>| bins.truncate(MAX_BINS);
    probe.reason.iter_mut().for_each(clean);
    probe.patterns.truncate(8);
    for run in &mut probe.patterns {
        clean(&mut run.source);
        run.missing.iter_mut().for_each(clean);
        bounded(&mut run.free_histogram);
    }
    if let Some(fill) = &mut probe.driver {
        bounded(&mut fill.histogram);
        fill.latency.truncate(MAX_BINS);
    }
    probe
}

/// A histogram of the model's, as it travels.
pub fn bins(histogram: &[Bucket]) -> Vec<Bin> {
    let bin = |bucket: &Bucket| Bin {
        up_to_bytes: bucket.up_to,
        count: bucket.count,
        bytes: bucket.bytes,
    };
    histogram.iter().map(bin).collect()
}

/// The free blocks of a process's own cache.
pub fn process_side(map: &PoolMap) -> ProcessSide {
    let found = Fragmentation::of(map);
    ProcessSide {
        process: map.process,
        exact: map.exact,
        reserved_bytes: crate::model::units::Bytes(
            found.free.0 + found.allocated.0 + found.active.0,
        ),
        free_bytes: found.free,
        largest_free_block: found.largest,
        external_fragmentation: found.external(),
        free_histogram: bins(&found.histogram),
        missing: None,
    }
}

fn millis(time: Duration) -> Millis {
    Millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

//! Allocator probes: gputop's own allocations on a real GPU, in a short-lived child process of the same binary.
//!
//! A CUDA context takes about half a GiB, a driver call may hang, and a driver that is too old aborts its caller.
//! Therefore gputop itself never loads CUDA. [`probe`] starts `gputop probe-child`, sends it a request as one line of
//! JSON ([`ChildRequest`]), reads one result line of limited length ([`Probe`]), and kills the child after a timeout.
//! The kernel driver releases a process's memory on any exit, and the child asks the kernel to kill it if its parent
//! dies.
//!
//! Only `child/` refers to CUDA. `fill.rs` and `policy/` use a `Device`: the driver in the child, and a simulated GPU
//! in tests.

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

use gputop_allocator::fragmentation::{Bucket, Fragmentation};
use gputop_model::bounded_json;
use gputop_model::probe::{Bin, Outcome, ProcessFragmentation};
use gputop_model::text::visible;
use gputop_model::{Millis, PoolMap, Probe};
pub use request::ChildRequest;

/// Name of the hidden subcommand for the probe's child process.
pub const CHILD: &str = "probe-child";

/// Timeout for loading the driver and creating a CUDA context. This takes 0.2 s on an active GPU, and several seconds
/// with eight suspended GPUs.
pub const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout for freeing the probe's memory. Freeing 130 GiB takes 90 ms, so a driver that needs much longer has hung.
pub const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Signal that kills the child when its own alarm expires.
const ALARM_SIGNAL: i32 = nix::libc::SIGALRM;

/// Maximum length of a probe result. A result contains a few dozen histogram bins for each of several policies.
const MAX_ANSWER_BYTES: u64 = 256 << 10;
/// Maximum length of a probe request: half of a pipe's capacity, so that writing the request never blocks.
const MAX_REQUEST_BYTES: usize = 32 << 10;
const MAX_BINS: usize = 64;
const MAX_TEXT_CHARS: usize = 300;

/// Runs a probe in a child process of the same binary. Returns when the child has exited and all memory is freed.
pub fn probe(request: &ChildRequest) -> Probe {
    // Run the same executable as the parent, even if the program's file has since been replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("gputop").arg(CHILD);
    probe_with(command, request, START_TIMEOUT)
}

fn probe_with(mut command: Command, request: &ChildRequest, start_timeout: Duration) -> Probe {
    let start = Instant::now();
    command
        .env("CUDA_VISIBLE_DEVICES", OsStr::new(&*request.gpu.0))
        .env("CUDA_MODULE_LOADING", "LAZY")
        .env_remove("CUDA_LAUNCH_BLOCKING")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let timeout = start_timeout + Duration::from_millis(request.limit.0) * 2 + FINISH_TIMEOUT * 2;
    let mut probe = match answer(command, request, timeout) {
        Ok(probe) => sanitized(probe),
        Err(why) => Probe { outcome: Outcome::Failed, reason: Some(why), ..Probe::default() },
    };
    probe.schema = gputop_model::frame::SCHEMA;
    probe.gpu = request.gpu.clone();
    probe.nvml_free_bytes = request.nvml_free.clone();
    probe.cost.total_ms = Millis::from(start.elapsed()).0;
    probe
}

fn answer(
    mut command: Command,
    request: &ChildRequest,
    timeout: Duration,
) -> Result<Probe, String> {
    let line = serde_json::to_string(request).map_err(|error| error.to_string())?;
    if line.len() >= MAX_REQUEST_BYTES {
        return Err(format!(
            "the pattern is too long: {} KiB (maximum {} KiB)",
            line.len() >> 10,
            MAX_REQUEST_BYTES >> 10
        ));
    }
    let mut child = KillOnDrop(
        command.spawn().map_err(|error| format!("cannot start the probe process: {error}"))?,
    );
    if let Some(mut input) = child.0.stdin.take() {
        // Ignore a failure to write. It means that the child has already exited, and the reason is determined later.
        let _ = input.write_all(line.as_bytes());
    }
    let Some(output) = child.0.stdout.take() else {
        return Err("the probe process produced no output".into());
    };
    let (sender, answer) = mpsc::channel();
    thread::Builder::new()
        .name("probe".into())
        .spawn(move || {
            let mut text = Vec::new();
            let _ = output.take(MAX_ANSWER_BYTES + 1).read_to_end(&mut text);
            let _ = sender.send(text);
        })
        .map_err(|error| error.to_string())?;
    let Ok(text) = answer.recv_timeout(timeout) else {
        return Err(format!(
            "the probe process did not respond within {} s and was killed; the driver then freed its memory",
            timeout.as_secs()
        ));
    };
    if text.len() as u64 > MAX_ANSWER_BYTES {
        return Err("the probe process was killed because its output was too long".into());
    }
    if text.is_empty() {
        return Err(exit_reason(child.0.wait().ok()));
    }
    let (probe, _) = bounded_json::read(&text, usize::MAX)
        .map_err(|error| format!("cannot read the output of the probe process: {error}"))?;
    // All memory is freed once the child has exited, shortly after it closes its output.
    let _ = child.0.wait();
    Ok(probe)
}

fn exit_reason(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Some(status) if status.signal() == Some(ALARM_SIGNAL) => {
            "a driver call did not return in time, so the probe process stopped; the driver releases its memory".into()
        }
        Some(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("the probe process was killed by signal {signal}; the driver releases its memory"),
            (_, code) => format!("the probe process exited with code {} without a result", code.unwrap_or(-1)),
        },
        None => "the probe process exited without a result".into(),
    }
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sanitizes a probe result: escapes its text and limits its lists. The child runs driver code, so its output is
/// trusted no more than that of other programs.
fn sanitized(mut probe: Probe) -> Probe {
    let clean = |text: &mut String| *text = visible(text.as_bytes(), MAX_TEXT_CHARS);
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

pub fn bins(histogram: &[Bucket]) -> Vec<Bin> {
    let bin = |bucket: &Bucket| Bin {
        up_to_bytes: bucket.up_to,
        count: bucket.count,
        bytes: bucket.bytes,
    };
    histogram.iter().map(bin).collect()
}

pub fn process_side(map: &PoolMap) -> ProcessFragmentation {
    let found = Fragmentation::of(map);
    ProcessFragmentation {
        process: map.process,
        exact: map.exact,
        reserved_bytes: gputop_model::units::Bytes(
            found.free.0 + found.allocated.0 + found.active.0,
        ),
        free_bytes: found.free,
        largest_free_block: found.largest,
        external_fragmentation: found.external(),
        free_histogram: bins(&found.histogram),
        missing: None,
    }
}

//! The probe's child process: loads the driver, creates a CUDA context, probes within its limits, frees all memory, and
//! prints one line.
//!
//! The probe runs in a separate process, so that a driver failure affects nothing else. Three things can end the child
//! early: the death of its parent (`PR_SET_PDEATHSIG`), its own alarm if a driver call holds memory for too long, and
//! its parent's timeout. The driver releases the memory in each case.

mod cost;
mod cuda;
mod driver_error;

use std::io::{Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use gputop_model::probe::{Cost, Outcome, PatternResult, default_headroom};
use gputop_model::{Bytes, Millis, Policy, Probe};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{alarm, getppid};

use self::cuda::{Card, CudaDevice, CudaDriver};
use self::driver_error::ContextError;
use super::device::{Device, DeviceError, GRANULE};
use super::fill::fill;
use super::lock::lock;
use super::request::ChildRequest;
use super::{FINISH_TIMEOUT, MAX_REQUEST_BYTES, policy};

/// Divisor for the policies' share of the time limit. All policies together may use half of the time, and the fill uses
/// the rest.
const POLICIES_SHARE: u64 = 2;

/// Error message if CUDA initialization runs out of memory. This can happen even though initialization does not
/// allocate GPU memory.
const NO_START: &str = "the driver cannot start because it is out of memory (CUDA error 2)";

/// Minimum free memory at which a refused CUDA context is reported as fragmentation, about twice the size of a context.
const MIN_FREE_FOR_FINDING: Bytes = Bytes::gib(2);

/// Executes the probe request from standard input and prints the result. Returns exit code 0 if there is any result.
pub fn run() -> u8 {
    // Set the death signal first, so that the child never outlives its parent.
    let _ = set_pdeathsig(Signal::SIGKILL);
    panic::set_hook(Box::new(|_| {}));
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(MAX_REQUEST_BYTES as u64).read_to_end(&mut text);
    let request: ChildRequest = match read.map(|_| serde_json::from_slice(&text)) {
        Ok(Ok(request)) => request,
        _ => return 2,
    };
    // The parent may have died before `set_pdeathsig` took effect.
    if u32::try_from(getppid().as_raw()) != Ok(request.parent) {
        return 2;
    }
    let result = panic::catch_unwind(AssertUnwindSafe(|| run_request(&request)));
    let probe = result.unwrap_or_else(|cause| {
        let message = cause
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| cause.downcast_ref().copied())
            .unwrap_or("unknown reason");
        unfinished(Outcome::Failed, format!("the probe stopped unexpectedly: {message}"))
    });
    let Ok(mut line) = serde_json::to_string(&probe) else { return 2 };
    line.push('\n');
    match std::io::stdout().lock().write_all(line.as_bytes()) {
        Ok(()) => 0,
        Err(_) => 2,
    }
}

fn unfinished(outcome: Outcome, reason: String) -> Probe {
    Probe { outcome, reason: Some(reason), ..Probe::default() }
}

fn run_request(request: &ChildRequest) -> Probe {
    // The lock is held until the function returns. By then, all memory has been freed.
    let folder = request.locks.as_deref();
    let _lock = match folder.map(|folder| lock(folder, &request.gpu)) {
        Some(Err(why)) => return unfinished(Outcome::Refused, why),
        Some(Ok(lock)) => Some(lock),
        None => None,
    };
    let start = Instant::now();
    let found = CudaDriver::load()
        .and_then(|driver| driver.find(&request.gpu))
        .and_then(|found| found.check_mode(request.force).map(|()| found));
    if request.look {
        return check_only(found);
    }
    let opened = found.and_then(CudaDevice::create_context);
    let mut card = match opened {
        Ok(card) => card,
        Err(ContextError::NoContext) => return without_context(request),
        Err(ContextError::Refused(why)) => return unfinished(Outcome::Refused, why),
    };
    let start_ms = Millis::from(start.elapsed()).0;
    let mut probe = Probe::default();
    if let Err(why) = measure(&mut card, request, &mut probe) {
        probe.outcome = Outcome::Failed;
        probe.reason = Some(match why {
            DeviceError::OutOfMemory => {
                "the driver reported free memory but did not allocate it".into()
            }
            DeviceError::Failed(why) => why,
        });
    }
    probe.cost = Cost { start_ms, context_bytes: probe.cost.context_bytes, ..card.ledger().cost() };
    probe
}

/// Returns the outcome that a probe would have, and the policies that cannot run on the GPU.
fn check_only(found: Result<CudaDevice, ContextError>) -> Probe {
    let found = match found {
        Ok(found) => found,
        Err(ContextError::Refused(why)) => return unfinished(Outcome::Refused, why),
        Err(ContextError::NoContext) => return unfinished(Outcome::NoContext, NO_START.into()),
    };
    let requirements = [
        (Policy::Expandable, found.has_virtual_memory(), "virtual memory management"),
        (Policy::Pool, found.has_pools(), "memory pools"),
    ];
    let unsupported = requirements.into_iter().filter(|(_, can, _)| !can);
    Probe {
        outcome: Outcome::Done,
        patterns: unsupported
            .map(|(policy, _, what)| PatternResult {
                policy,
                missing: Some(format!("driver or GPU does not support {what}")),
                ..PatternResult::default()
            })
            .collect(),
        ..Probe::default()
    }
}

/// Reports fragmentation if enough memory was free for a CUDA context, or a lack of memory if not.
fn without_context(request: &ChildRequest) -> Probe {
    match request.nvml_free.get() {
        Some(free) if free >= MIN_FREE_FOR_FINDING => unfinished(
            Outcome::NoContext,
            format!(
                "{free} is free, but too fragmented for a CUDA context (CUDA error 2): no process can start on this GPU"
            ),
        ),
        Some(free) => unfinished(
            Outcome::Refused,
            format!("{free} is free, which is too little for a CUDA context"),
        ),
        None => unfinished(Outcome::Refused, "the driver has no memory for a CUDA context".into()),
    }
}

fn measure(card: &mut Card, request: &ChildRequest, probe: &mut Probe) -> Result<(), DeviceError> {
    let (free, total) = card.memory()?;
    probe.total_bytes = total.into();
    probe.free_bytes = free.into();
    // The context size is measured as the decrease in free memory, so it includes allocations that other processes made
    // in the meantime.
    probe.cost.context_bytes =
        request.nvml_free.clone().map(|before| Bytes(before.0.saturating_sub(free.0)));
    let mut headroom = request.headroom.unwrap_or_else(|| default_headroom(total, request.others));
    probe.headroom_bytes = headroom;
    if free.0 < headroom.0.saturating_add(GRANULE) {
        if !request.force {
            probe.outcome = Outcome::Refused;
            probe.reason = Some(format!(
                "{free} is free, but {headroom} must stay free; lower this with --headroom, or use half of the free memory with --force"
            ));
            return Ok(());
        }
        headroom = Bytes(free.0 / 2);
        probe.headroom_bytes = headroom;
    }
    let limit_us = request.limit.0.saturating_mul(1_000);
    let end = card.now_us().saturating_add(limit_us);
    set_alarm(Duration::from_millis(request.limit.0) * 2 + FINISH_TIMEOUT);
    let arena = arena(request.arena, free, headroom);
    let until = card.now_us().saturating_add(limit_us / POLICIES_SHARE);
    for &policy in &request.policies {
        let run = policy::run(card, policy, &request.pattern, arena, until);
        probe.patterns.push(run);
    }
    probe.driver = Some(fill(card, headroom.0, end)?);
    probe.outcome = Outcome::Done;
    Ok(())
}

/// Returns how much memory a policy may hold: `wanted`, but at most the free memory minus the headroom, rounded down to
/// whole granules.
fn arena(wanted: Bytes, free: Bytes, headroom: Bytes) -> Bytes {
    let room = free.0.saturating_sub(headroom.0);
    Bytes(wanted.0.min(room) / GRANULE * GRANULE)
}

/// Kills the process if it is still running after `timeout`, in case a driver call hangs while the probe holds memory.
/// Uses the kernel's alarm instead of a thread, because the alarm works whatever state the process is in. The alarm's
/// signal also ends the process without running exit handlers, some of which belong to the driver.
fn set_alarm(timeout: Duration) {
    let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
    alarm::set(seconds.saturating_add(1));
}

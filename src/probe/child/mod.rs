//! The child: loads the driver, creates a context, probes within its bounds, gives everything back, prints one line.
//!
//! It is a process of its own so that whatever the driver does to it is done to nobody else. Three things end it early:
//! its parent's death (`PR_SET_PDEATHSIG`), its own alarm when a call of the driver holds memory for too long, and its
//! parent's patience. In each case the driver takes the memory back.

mod cost;
mod cuda;
mod driver_error;

use std::io::{Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{alarm, getppid};

use self::cuda::{Card, CudaDevice, Driver};
use self::driver_error::Trouble;
use super::device::{Device, DeviceError, GRANULE};
use super::fill::fill;
use super::lock::lock;
use super::request::ChildRequest;
use super::{FINISH, MAX_ASK, millis, policy};
use crate::model::probe::{Cost, Outcome, PatternRun, Policy, Probe, default_headroom};
use crate::model::units::Bytes;

/// The policies together may take this part of the time limit; the fill gets what they leave.
const POLICIES_SHARE: u64 = 2;

/// Initialising CUDA takes no memory of the card, and yet has failed for want of it.
const NO_START: &str = "the driver has no memory to start with (CUDA error 2)";

/// Less than twice a context, and that a context was refused is no surprise.
const PLENTY: Bytes = Bytes::gib(2);

/// Does what standard input says and prints what came of it. Its exit code is 0 whenever there is an answer.
pub fn run() -> u8 {
    // Set first: from here on no parent leaves this behind.
    let _ = set_pdeathsig(Signal::SIGKILL);
    panic::set_hook(Box::new(|_| {}));
    let mut text = Vec::new();
    let read = std::io::stdin()
        .lock()
        .take(MAX_ASK as u64)
        .read_to_end(&mut text);
    let ask: ChildRequest = match read.map(|_| serde_json::from_slice(&text)) {
        Ok(Ok(ask)) => ask,
        _ => return 2,
    };
    // It may have died before the line above took hold.
    if u32::try_from(getppid().as_raw()) != Ok(ask.parent) {
        return 2;
    }
    let probe = panic::catch_unwind(AssertUnwindSafe(|| probed(&ask))).unwrap_or_else(|cause| {
        let words = cause
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| cause.downcast_ref().copied())
            .unwrap_or("for an unknown reason");
        ended(Outcome::Failed, format!("the probe broke off: {words}"))
    });
    let Ok(mut line) = serde_json::to_string(&probe) else {
        return 2;
    };
    line.push('\n');
    match std::io::stdout().lock().write_all(line.as_bytes()) {
        Ok(()) => 0,
        Err(_) => 2,
    }
}

fn ended(outcome: Outcome, reason: String) -> Probe {
    Probe {
        outcome,
        reason: Some(reason),
        ..Probe::default()
    }
}

fn probed(ask: &ChildRequest) -> Probe {
    // Held until this returns, when everything has been given back.
    let _lock = match ask.locks.as_deref().map(|folder| lock(folder, &ask.gpu)) {
        Some(Err(why)) => return ended(Outcome::Refused, why),
        Some(Ok(lock)) => Some(lock),
        None => None,
    };
    let begun = Instant::now();
    let found = Driver::load()
        .and_then(|driver| driver.find(&ask.gpu))
        .and_then(|found| found.check_mode(ask.force).map(|()| found));
    if ask.look {
        return looked_at(found);
    }
    let opened = found.and_then(CudaDevice::create_context);
    let mut card = match opened {
        Ok(card) => card,
        Err(Trouble::NoContext) => return without_context(ask),
        Err(Trouble::Refused(why)) => return ended(Outcome::Refused, why),
    };
    let start_ms = millis(begun.elapsed()).0;
    let mut probe = Probe::default();
    if let Err(why) = measure(&mut card, ask, &mut probe) {
        probe.outcome = Outcome::Failed;
        probe.reason = Some(match why {
            DeviceError::OutOfMemory => "the driver gave no memory where it had some".into(),
            DeviceError::Failed(why) => why,
        });
    }
    probe.cost = Cost {
        start_ms,
        context_bytes: probe.cost.context_bytes,
        ..card.ledger().cost()
    };
    probe
}

/// What would come of a probe, and of each policy that cannot be run here.
fn looked_at(found: Result<CudaDevice, Trouble>) -> Probe {
    let found = match found {
        Ok(found) => found,
        Err(Trouble::Refused(why)) => return ended(Outcome::Refused, why),
        Err(Trouble::NoContext) => return ended(Outcome::NoContext, NO_START.into()),
    };
    let needs = [
        (
            Policy::Expandable,
            found.has_virtual_memory(),
            "virtual memory management",
        ),
        (Policy::Pool, found.has_pools(), "memory pools"),
    ];
    let cannot = needs.into_iter().filter(|(_, can, _)| !can);
    Probe {
        outcome: Outcome::Done,
        patterns: cannot
            .map(|(policy, _, what)| PatternRun {
                policy,
                missing: Some(format!("driver or GPU have no {what}")),
                ..PatternRun::default()
            })
            .collect(),
        ..Probe::default()
    }
}

/// The finding, where there was memory for one; else the plain reason.
fn without_context(ask: &ChildRequest) -> Probe {
    match ask.nvml_free.get() {
        Some(free) if free >= PLENTY => ended(
            Outcome::NoContext,
            format!(
                "{free} are free, but too scattered for a CUDA context (CUDA error 2): no process can start on this GPU"
            ),
        ),
        Some(free) => ended(
            Outcome::Refused,
            format!("{free} are free, which is too little for a CUDA context"),
        ),
        None => ended(
            Outcome::Refused,
            "the driver has no memory for a CUDA context".into(),
        ),
    }
}

fn measure(card: &mut Card, ask: &ChildRequest, probe: &mut Probe) -> Result<(), DeviceError> {
    let (free, total) = card.memory()?;
    probe.total_bytes = total.into();
    probe.free_bytes = free.into();
    // What the card had free before less what it has now; another's doings in between are in it.
    probe.cost.context_bytes = ask
        .nvml_free
        .clone()
        .map(|before| Bytes(before.0.saturating_sub(free.0)));
    let mut headroom = ask
        .headroom
        .unwrap_or_else(|| default_headroom(total, ask.others));
    probe.headroom_bytes = headroom;
    if free.0 < headroom.0.saturating_add(GRANULE) {
        if !ask.force {
            probe.outcome = Outcome::Refused;
            probe.reason = Some(format!(
                "{free} are free and {headroom} are to stay free; --headroom sets less, --force takes half of what is free"
            ));
            return Ok(());
        }
        headroom = Bytes(free.0 / 2);
        probe.headroom_bytes = headroom;
    }
    let limit_us = ask.limit.0.saturating_mul(1_000);
    let end = card.now_us().saturating_add(limit_us);
    watch(Duration::from_millis(ask.limit.0) * 2 + FINISH);
    let arena = arena(ask.arena, free, headroom);
    let until = card.now_us().saturating_add(limit_us / POLICIES_SHARE);
    for &policy in &ask.policies {
        let run = policy::run(card, policy, &ask.pattern, arena, until);
        probe.patterns.push(run);
    }
    probe.driver = Some(fill(card, headroom.0, end)?);
    probe.outcome = Outcome::Done;
    Ok(())
}

/// What a policy may hold: never into the headroom, whole granules.
fn arena(wanted: Bytes, free: Bytes, headroom: Bytes) -> Bytes {
    let room = free.0.saturating_sub(headroom.0);
    Bytes(wanted.0.min(room) / GRANULE * GRANULE)
}

/// Ends the process when it is still there after `patience`: a call of the driver does not come back, and memory is held.
/// The kernel's alarm and no thread, since nothing of this process has to work for it; and it runs no exit handlers, of
/// which the driver has some.
fn watch(patience: Duration) {
    let seconds = u32::try_from(patience.as_secs()).unwrap_or(u32::MAX);
    alarm::set(seconds.saturating_add(1));
}

//! The allocation trace that the hook wrote when a process of the command ran out of memory, as what the fixes would
//! have done.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::inside::Found;
use crate::allocator::config::Config;
use crate::allocator::rules::torch_of;
use crate::allocator::trace::{Recorded, Trace};
use crate::allocator::whatif::{Room, available};
use crate::diagnose::foretold;
use crate::incidents::{read_own, within};
use crate::model::event::HookOom;
use crate::model::incident::Incident;
use crate::model::process::ProcessKey;
use crate::model::units::Bytes;
use crate::snapshot;

/// The hook writes no more.
const MOST_BYTES: u64 = 64 << 20;
/// Whoever waits for the explanation waits no longer: a second is enough for the largest trace.
const PATIENCE: Duration = Duration::from_secs(5);

/// Puts into the fixes of `incident` what they would have done, where there is a trace of it among `traces`; and where
/// there is one that tells nothing, why.
pub(super) fn foretell(incident: &mut Incident, found: Found, traces: Vec<PathBuf>) {
    if !foretold::has_settings(incident) {
        return;
    }
    let Some(path) = of_process(traces, found.process) else {
        return;
    };
    let mut changed = incident.clone();
    let work = move || {
        let trace = read(&path, &found)?;
        let room = room(&trace, &found.heard.oom)
            .ok_or("The allocation trace holds no request that failed.")?;
        foretold::foretell(&mut changed, &trace, room)?;
        Ok::<_, String>(changed)
    };
    let why = match within(PATIENCE, work) {
        Some(Ok(changed)) => {
            *incident = changed;
            return;
        }
        Some(Err(why)) => why,
        None => format!(
            "The allocation trace takes longer than {} s to replay: `gputop whatif` on it says which settings help.",
            PATIENCE.as_secs()
        ),
    };
    // Whoever asked for a trace wants to know first.
    incident.needs.insert(0, why);
}

/// The last that the process wrote at an out-of-memory error: `RUN.PID.START.oom.N.pickle`.
fn of_process(traces: Vec<PathBuf>, process: ProcessKey) -> Option<PathBuf> {
    let number = |path: &PathBuf| -> Option<(u32, String)> {
        let name = path.file_name()?.to_str()?;
        let mut parts = name.split('.').skip(1);
        let is_it = parts.next()?.parse() == Ok(process.pid.0)
            && parts.next()?.parse() == Ok(process.start.0)
            && parts.next()? == "oom";
        // A program that another replaced in the same process counts anew: `1-1`.
        let (n, again) = parts.next().map(|n| n.split_once('-').unwrap_or((n, "")))?;
        let is_it = is_it && parts.next()? == "pickle";
        is_it.then_some((n.parse().ok()?, again.to_owned()))
    };
    let all = traces
        .into_iter()
        .filter_map(|path| Some((number(&path)?, path)));
    // Of those that replaced each other the last one's.
    let last = all.max_by(|((n, again), _), ((m, later), _)| (again, n).cmp(&(later, m)));
    last.map(|(_, path)| path)
}

/// The history up to the failure that is explained.
fn read(path: &Path, found: &Found) -> Result<Trace, String> {
    let oom = &found.heard.oom;
    let fault = |why: String| format!("The allocation trace could not be read: {why}.");
    let bytes = read_own(path, MOST_BYTES).map_err(|why| fault(why.to_string()))?;
    let snapshot = snapshot::read(bytes.as_slice()).map_err(|why| fault(why.to_string()))?;
    let mut devices = snapshot.devices.iter();
    let device = devices.find(|device| device.ordinal == oom.device);
    let trace = device.map(|device| snapshot.trace(device));
    let trace = trace.and_then(|trace| foretold::until(trace, oom.free_bytes));
    let Some(trace) = trace else {
        return Err(
            "The allocation trace is of an earlier failure: PyTorch's is kept of the first few only."
                .to_owned(),
        );
    };
    Ok(Trace {
        recorded: Recorded {
            torch: torch_of(&found.torch),
            ..trace.recorded
        },
        ..trace
    })
}

/// Of the card, all that is neither free nor the allocator's is others'. The limit is the card, or with a memory
/// fraction what that leaves (CUDACachingAllocator.cpp, `oom_observers_`).
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn room(trace: &Trace, oom: &HookOom) -> Option<Room> {
    let conf = trace.recorded.conf.as_deref().map(Config::parse);
    let fraction = conf.and_then(|conf| conf.memory_fraction);
    let fraction = fraction.filter(|fraction| *fraction > 0.0).unwrap_or(1.0);
    let card = Bytes((oom.limit_bytes.0 as f64 / fraction) as u64);
    // A fraction set in the code is not seen here: then the limit is less than what there is.
    let outside = card.0.saturating_sub(available(trace)?.0);
    Some(Room {
        card,
        outside: Bytes(outside),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::{Pid, StartTicks};

    #[test]
    fn of_many_traces_the_last_failure_of_that_process_is_taken() {
        let names = [
            "7-1.418.99.oom.1.pickle",
            "7-1.418.99.oom.2.pickle",
            "7-1.418.99.exit.3.pickle",
            "7-1.419.99.oom.4.pickle",
            "7-1.418.98.oom.4.pickle",
            "7-1.418.99.oom.4.part",
            "notes",
        ];
        let process = ProcessKey {
            pid: Pid(418),
            start: StartTicks(99),
        };
        let of = |names: &[&str]| {
            let path = of_process(names.iter().map(PathBuf::from).collect(), process);
            path.map(|path| path.display().to_string())
        };
        assert_eq!(of(&names).as_deref(), Some("7-1.418.99.oom.2.pickle"));
        let replaced = [names[1], "7-1.418.99.oom.1-1.pickle"];
        assert_eq!(of(&replaced).as_deref(), Some("7-1.418.99.oom.1-1.pickle"));
        assert_eq!(of(&names[2..5]), None);
    }
}

//! Evidence from what was measured before the failure; a log alone has none of it.

use serde::{Deserialize, Serialize};

use super::oom::Oom;
use super::{Case, Evidence, Finding};
use crate::model::units::{Bytes, Millis};

/// What the dashboard, or a watched run, knows about the time before; every part may be missing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// How long the process was watched.
    pub watched: Option<Millis>,
    /// Growth of the low-water mark of allocated memory, bytes a minute.
    pub allocated_growth: Option<f64>,
    /// Growth of reserved memory with allocated memory flat, bytes a minute.
    pub reserved_growth: Option<f64>,
    /// The last peak by the greatest before it.
    pub spike: Option<f64>,
    /// The most that was allocated in the steps before the last.
    pub greatest: Option<Bytes>,
    /// Optimizer steps done.
    pub steps: Option<u64>,
    /// Allocated had come down before, as it does after a step; `Some(false)` only for a process that was watched from
    /// its beginning.
    pub came_down: Option<bool>,
    /// How often the allocator flushed its cache in the minutes before.
    pub retries: Option<u64>,
    /// The largest free block of the cache that the request could have had, at the failure.
    pub largest_hole: Option<Bytes>,
    /// More than this was wanted: it would have been there in one piece.
    pub wanted_over: Option<Bytes>,
    /// How long after the failure it was read, at most; the hook reads it at the failure itself.
    pub hole_lag: Option<Millis>,
    /// The largest that only other streams may use.
    pub largest_hole_elsewhere: Option<Bytes>,
    /// What the blocks said, read so soon after the failure that they still were the same.
    pub holes: Option<Holes>,
    /// What other processes on the GPU took in the minute before.
    pub others_grew: Option<Bytes>,
}

/// The free blocks of the large pool, those of CUDA graphs and MemPools left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holes {
    pub count: u64,
    pub bytes: Bytes,
    /// Of the stream that holds most.
    pub largest: Bytes,
    /// Of all other streams, where there are some.
    pub elsewhere: Option<Bytes>,
    pub pins: Pins,
    /// How long after the failure they were read, at most.
    pub lag: Millis,
}

/// Segments that are held by live blocks of less than a tenth of their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pins {
    pub segments: u64,
    pub held: Bytes,
    pub live: Bytes,
}

/// A rise below this is noise (bytes a minute).
const GROWTH: f64 = 16.0 * 1024.0 * 1024.0;
/// A peak this much above all before it is a spike.
const SPIKE: f64 = 1.1;

pub(super) const EVIDENCE: &[Evidence] = &[
    Evidence {
        name: "allocated-memory-grows",
        judge: grows,
    },
    Evidence {
        name: "spike",
        judge: spike,
    },
    Evidence {
        name: "first-step",
        judge: first_step,
    },
    Evidence {
        name: "retries-rose",
        judge: retries,
    },
    Evidence {
        name: "other-processes-grew",
        judge: others,
    },
    Evidence {
        name: "largest-free-block-too-small",
        judge: hole,
    },
    Evidence {
        name: "small-blocks-hold-segments",
        judge: pins,
    },
    Evidence {
        name: "free-block-on-other-stream",
        judge: other_stream,
    },
];

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn a_minute(bytes: f64) -> Bytes {
    Bytes(bytes.max(0.0) as u64)
}

fn grows(case: &Case<'_>) -> Finding {
    match case.measured.allocated_growth {
        Some(growth) if growth > GROWTH => Finding::For(format!(
            "the minimum of allocated memory rose by {} per minute",
            a_minute(growth)
        )),
        Some(growth) => Finding::Against(format!(
            "the minimum of allocated memory rose by only {} per minute",
            a_minute(growth)
        )),
        None => Finding::Silent,
    }
}

fn spike(case: &Case<'_>) -> Finding {
    let Some(peak) = case.measured.spike else {
        return Finding::Silent;
    };
    // What did not fit is in no peak.
    let wanted = wanted_by_greatest(case).filter(|wanted| *wanted > peak);
    let says = match wanted {
        Some(wanted) => {
            format!(
                "with this request, allocated memory would reach {wanted:.2} times the highest earlier peak"
            )
        }
        None => format!("the last peak was {peak:.2} times the highest earlier peak"),
    };
    match wanted.unwrap_or(peak) > SPIKE {
        true => Finding::For(says),
        false => Finding::Against(says),
    }
}

/// What was allocated at the failure with the request on top, by the greatest peak of the steps before.
#[allow(clippy::cast_precision_loss)]
fn wanted_by_greatest(case: &Case<'_>) -> Option<f64> {
    let greatest = case.measured.greatest.filter(|greatest| greatest.0 > 0)?;
    let oom = Oom::of(case);
    let wanted = oom.al?.checked_add(oom.req?)?;
    Some(wanted as f64 / greatest.0 as f64)
}

fn first_step(case: &Case<'_>) -> Finding {
    match case.measured.steps {
        Some(0) => Finding::For("no optimizer step had finished".into()),
        Some(1) => Finding::For("one optimizer step had finished".into()),
        Some(steps) => Finding::Against(format!("{steps} optimizer steps had finished")),
        None => match case.measured.came_down {
            // A first batch that is too large looks the same.
            Some(false) => {
                Finding::Hint("allocated memory had only risen since the program started".into())
            }
            Some(true) => {
                Finding::Against("allocated memory had fallen after earlier steps".into())
            }
            None => Finding::Silent,
        },
    }
}

fn retries(case: &Case<'_>) -> Finding {
    match case.measured.retries {
        // The first time can be the last.
        Some(0) => Finding::Silent,
        Some(1) => Finding::For("the cache had been flushed once".into()),
        Some(n) => Finding::For(format!("the cache had been flushed {n} times")),
        None => Finding::Silent,
    }
}

fn others(case: &Case<'_>) -> Finding {
    match case.measured.others_grew {
        Some(Bytes(0)) => {
            Finding::Against("no other process allocated more memory in the minute before".into())
        }
        Some(bytes) => Finding::For(format!(
            "other processes allocated {bytes} more in the minute before"
        )),
        None => Finding::Silent,
    }
}

/// The hook measures it at the failure itself; from outside it was read a moment later.
fn hole(case: &Case<'_>) -> Finding {
    // Without any text more was wanted than each of them is.
    let wanted_at_least = wanted(case).or(case.measured.wanted_over);
    if let Some((holes, wanted)) = case.measured.holes.zip(wanted_at_least)
        && holes.largest <= wanted
        && holes.bytes >= wanted
    {
        return Finding::For(format!(
            "the largest of {} free blocks ({} in total) was {}, read up to {} ms after the failure",
            holes.count, holes.bytes, holes.largest, holes.lag.0
        ));
    }
    let Some((hole, wanted)) = case.measured.largest_hole.zip(wanted(case)) else {
        return Finding::Silent;
    };
    let how = match case.measured.hole_lag {
        Some(lag) => format!("read up to {} ms after the failure", lag.0),
        None => "measured at the failure by the hook".to_owned(),
    };
    if hole < wanted {
        Finding::For(format!("the largest free block was {hole}, {how}"))
    } else if case.measured.hole_lag.is_some() {
        // The exception may have freed it.
        Finding::Silent
    } else {
        Finding::Against(format!("a free block of {hole} was available, {how}"))
    }
}

/// What frees a tenth of the segments' bytes gives all of them back.
fn pins(case: &Case<'_>) -> Finding {
    let Some(pins) = case.measured.holes.map(|holes| holes.pins) else {
        return Finding::Silent;
    };
    if pins.segments == 0 {
        return Finding::Against("no segment was nearly empty".into());
    }
    let segments = match pins.segments {
        1 => "a segment".to_owned(),
        n => format!("{n} segments"),
    };
    let what = format!(
        "live blocks of {} keep {segments} ({} in total) from being freed",
        pins.live, pins.held
    );
    let wanted = wanted(case).or(case.measured.wanted_over);
    match wanted.is_some_and(|wanted| pins.held >= wanted) {
        true => Finding::For(what),
        false => Finding::Hint(what),
    }
}

fn other_stream(case: &Case<'_>) -> Finding {
    if let Some((holes, wanted)) = case.measured.holes.zip(wanted(case))
        && let Some(elsewhere) = holes.elsewhere
        && case.measured.largest_hole_elsewhere.is_none()
    {
        return match elsewhere >= wanted && holes.largest < wanted {
            true => Finding::For(format!(
                "a free block of {elsewhere} belonged to a different stream than most tensors"
            )),
            false => Finding::Against(format!(
                "no other stream had a free block larger than {elsewhere}"
            )),
        };
    }
    let Some((hole, wanted)) = case.measured.largest_hole_elsewhere.zip(wanted(case)) else {
        return Finding::Silent;
    };
    if hole >= wanted {
        Finding::For(format!(
            "a free block of {hole} belonged to another stream, measured at the failure by the hook"
        ))
    } else {
        Finding::Against(format!(
            "no other stream had a free block larger than {hole}, measured at the failure by the hook"
        ))
    }
}

fn wanted(case: &Case<'_>) -> Option<Bytes> {
    let wanted = case.found.get("requested_bytes")?;
    wanted.as_u64().map(Bytes)
}

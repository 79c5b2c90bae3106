//! What the child is told to do, and what follows from the card's size.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use crate::model::probe::{POLICIES, Policy};
use crate::model::reading::Reading;
use crate::model::units::{Bytes, GpuUuid, Millis};

/// Memory is held for so long at most, unless more is asked for.
pub const DEFAULT_LIMIT: Millis = Millis(500);
/// A policy may hold so much, unless less is left.
pub const DEFAULT_ARENA: Bytes = Bytes::gib(1);
/// What a context costs at most, before it is known: 518 MiB on an H200 as NVML counts it, libraries included.
pub const CONTEXT: Bytes = Bytes::mib(640);

/// One line of JSON on the child's standard input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ask {
    /// A GPU or a MIG device, by NVML's name of it.
    pub gpu: GpuUuid,
    /// Free on it just now, as NVML counts.
    pub nvml_free: Reading<Bytes>,
    /// Other processes live there.
    pub others: bool,
    pub limit: Millis,
    /// What the user wants left free; else [`default_headroom`].
    pub headroom: Option<Bytes>,
    /// Go on where it could hurt.
    pub force: bool,
    pub policies: Vec<Policy>,
    pub arena: Bytes,
    pub pattern: Pattern,
    /// Where the lock files of probes are; none where this user has no such place.
    pub locks: Option<PathBuf>,
    /// The asking process: the child ends with it.
    pub parent: u32,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            gpu: GpuUuid::default(),
            nvml_free: Reading::default(),
            others: false,
            limit: DEFAULT_LIMIT,
            headroom: None,
            force: false,
            policies: POLICIES.to_vec(),
            arena: DEFAULT_ARENA,
            pattern: Pattern::default(),
            locks: None,
            parent: std::process::id(),
        }
    }
}

/// The larger of 1 GiB and 2 % of the card; 10 % where others live there, since what they need next is not known.
pub fn default_headroom(total: Bytes, others: bool) -> Bytes {
    let share = if others { total.0 / 10 } else { total.0 / 50 };
    Bytes(share.max(Bytes::gib(1).0))
}

/// With less free than this nothing is probed: the context alone would eat into the headroom.
pub fn least_free(total: Bytes, headroom: Option<Bytes>, others: bool) -> Bytes {
    let headroom = headroom.unwrap_or_else(|| default_headroom(total, others));
    Bytes(headroom.0.saturating_add(CONTEXT.0))
}

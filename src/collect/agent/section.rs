//! Messages from the collectors to the agent.

use gputop_model::protocol::{Request, Update};
use gputop_model::{Gpu, GpuUuid, Host, Observation, Pools, ProcessKey, RankReading};
use gputop_peek::torch::allocation_spike::AllocationSpike;

use super::driver::FoundDriver;
use crate::collect::candidates::Candidate;
use crate::collect::exits::ExitReport;
use crate::collect::hook::HookUpdate;
use crate::collect::process::ProcessReadout;

/// A message from a collector thread to the agent.
#[derive(Debug)]
pub enum Section {
    Gpu(Box<Gpu>),
    Driver(Box<FoundDriver>),
    Kernel(Box<(Host, Option<ProcessReadout>)>),
    Pools(Pools),
    /// The process groups of all ranks on this host.
    Ranks(Vec<RankReading>),
    /// Failed allocations of a watched process.
    Ooms(Box<AllocationSpike>),
    Hook(HookUpdate),
    /// Update that the agent passes on to the reader.
    Update(Update),
    /// Observation that the agent numbers and publishes as an event.
    Observation(Option<ProcessKey>, Observation),
    Exit(ExitReport),
    Candidate(Box<Candidate>),
    /// An Xid with this number, reported by the driver.
    Xid(Option<GpuUuid>, u64),
    Request(Request),
    /// The agent's reader has disconnected.
    Closed,
}

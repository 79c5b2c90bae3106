//! gputop's data as plain types, passed unchanged from a collector to a screen.
//!
//! A [`Frame`] is the latest state of one host. Only the latest frame matters; older frames may be
//! skipped. An [`Event`] is an individual occurrence. A slow reader loses frames, but events only if it
//! stalls. Events are not part of a frame. An [`Incident`] is an observer's conclusion from events.
//!
//! The wire protocol and recordings contain these types as JSON. Therefore every field added later is
//! `#[serde(default)]`, every enum reads an unknown variant as `Unknown`, and every number that may be absent is a
//! [`Reading`] with a reason. `tests/pure/unknown_fields.rs` checks this with a line from a future version.
//!
//! The `model` module does no I/O, has no clock and does not depend on NVML or the terminal.

pub mod accounting;
pub mod bounded_json;
pub mod container;
pub mod document;
pub mod event;
pub mod frame;
pub mod gpu;
pub mod history;
pub mod holders;
pub mod host;
pub mod incident;
pub mod incident_key;
pub mod incident_record;
pub mod link;
pub mod log;
pub mod memory_size;
pub mod nearest_name;
pub mod newest;
pub mod permissions;
pub mod pool;
pub mod pool_location;
pub mod probe;
pub mod process;
pub mod reading;
pub mod remote_incident;
pub mod reported_pool;
pub mod scene;
pub mod signal;
pub mod stack;
pub mod stat_line;
pub mod text;
pub mod trace_replay;
pub mod units;

// The types that most modules use.
pub use self::event::{Event, HookEvent, HookOom, Observation};
pub use self::frame::{Frame, ProcessList};
pub use self::gpu::{
    ContextKind, Gpu, GpuProcess, Health, HealthState, Memory, MigInstance, Throttle,
};
pub use self::holders::{HolderClass, HolderGroup, Holders};
pub use self::host::{Driver, Hello, Host, PidNamespace};
pub use self::incident::{DetectedBy, Incident, Quote, Severity};
pub use self::incident_key::IncidentKey;
pub use self::incident_record::Record;
pub use self::link::Link;
pub use self::log::LogView;
pub use self::permissions::Permissions;
pub use self::pool::{
    Allocator, Block, BlockState, FailureMap, Pool, PoolId, PoolKind, PoolMap, PoolStats, Pools,
    Sampled, Segment, Unread,
};
pub use self::probe::{Policy, Probe, ProbeRequest};
pub use self::process::{Process, ProcessKey, RunState, Variable};
pub use self::reading::{Missing, Reading, Reason};
pub use self::remote_incident::{IncidentFile, RemoteIncident};
pub use self::reported_pool::ReportedPool;
pub use self::signal::{Signal, Signalled};
pub use self::stack::{PythonStack, StackFrame};
pub use self::trace_replay::TraceReplay;
pub use self::units::{
    Bytes, BytesPerSecond, Celsius, GpuUuid, MegaHertz, MilliJoules, MilliWatts, Millis, Mono,
    Percent, Pid, StartTicks, UnixMillis,
};

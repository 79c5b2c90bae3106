#![doc = include_str!("../README.md")]

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
mod named;
pub mod nearest_name;
pub mod newest;
pub mod permissions;
pub mod phases;
pub mod pool;
pub mod pool_location;
pub mod probe;
pub mod process;
pub mod process_group;
pub mod protocol;
pub mod ras;
pub mod reading;
pub mod redact;
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
pub use self::phases::{Phase, PhasePlace, PhaseRequest, PhaseWindow};
pub use self::pool::{
    Allocator, Block, BlockState, FailureMap, Pool, PoolId, PoolKind, PoolMap, PoolStats, Pools,
    Sampled, Segment, Unread,
};
pub use self::probe::{Policy, Probe, ProbeRequest};
pub use self::process::{Process, ProcessKey, RunState, Variable};
pub use self::process_group::{PendingWork, ProcessGroup, RankReading, Work};
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

//! Sources of frames and events: this host, a remote host or a recording, each read as one stream.
//!
//! A source yields [`Update`]s and accepts [`Request`]s. Screens, recorders and printers see only these, so they work
//! the same for all three.

pub(crate) mod layout;
pub mod live_message;
#[cfg(local)]
pub mod local;
pub mod map_line;
pub mod map_schedule;
pub mod record;
pub mod remote;
pub mod replay;
pub mod stream;
pub mod wire;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::event::Event;
use crate::model::frame::Frame;
use crate::model::history::Summary;
use crate::model::host::Hello;
use crate::model::link::Link;
use crate::model::log::LogView;
use crate::model::pool::{FailureMap, PoolMap};
use crate::model::probe::{Probe, ProbeRequest};
use crate::model::process::{ProcessDetail, ProcessKey};
use crate::model::reading::Missing;
use crate::model::remote_incident::RemoteIncident;
use crate::model::signal::{Signal, Signalled};
use crate::model::stack::PythonStack;
use crate::model::units::{GpuUuid, Millis, Mono};

/// A message from a source.
#[derive(Debug, Clone)]
pub enum Update {
    /// The first message, sent again when the remote agent restarts.
    Hello(Arc<Hello>),
    /// The latest state. An unread frame may be replaced by a newer one.
    Frame(Arc<Frame>),
    /// An event; never dropped.
    Event(Event),
    /// The answer to a [`Request::Detail`].
    Detail(ProcessKey, Box<Result<ProcessDetail, Missing>>),
    /// Every segment and block of the pool that [`Request::Map`] asked for. Only the newest map counts.
    Map(Arc<PoolMap>),
    /// The map of a pool is not available, and why. An earlier map remains the newest.
    NoMap((ProcessKey, u32), Missing),
    /// A map that was read because an allocation failed.
    FailureMap(Arc<FailureMap>),
    /// The answer to a [`Request::Stacks`], or a stack read at a new maximum or a failed allocation.
    Stacks(ProcessKey, Arc<Result<PythonStack, Missing>>),
    /// The answer to a [`Request::Log`].
    Log(Arc<LogView>),
    /// The answer to a [`Request::Watch`]: the name of the log that is now watched.
    Watched(ProcessKey, Result<String, Missing>),
    /// The answer to a [`Request::Signal`].
    Signalled(Signalled),
    /// The answer to a [`Request::Probe`].
    Probed(Arc<Probe>),
    /// An incident from the store of the remote host. It may have happened before the connection.
    RemoteIncident(Arc<RemoteIncident>),
    /// A recording jumped. Data from time `from` on must be discarded; the summaries describe that time, oldest
    /// first. Events follow as usual.
    Jump { from: Mono, summaries: Vec<Summary> },
    /// The answer to [`Play::Past`]: summaries from `from` to `before`. `from` is 0 if nothing older exists.
    /// Events of that time follow.
    Past {
        before: Mono,
        from: Mono,
        summaries: Vec<Summary>,
    },
    /// Position in a recording; follows every frame of one.
    Position(Position),
    /// State of the connection to a remote host.
    Link(Link),
    /// A sentence for the user: `The recording is damaged 3:07 min after its start; unreadable parts are skipped.`
    Notice(String),
    /// The end of the stream, and why.
    End(Option<String>),
}

/// A request to a source. A source that cannot fulfil it ignores it or answers with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Everything about one process, once.
    Detail(ProcessKey),
    /// The map of this pool, given by its process and the device number inside it, or of no pool. The request holds
    /// until the next one. Readers repeat it with every frame, so that a restarted source receives it.
    Map(Option<(ProcessKey, u32)>),
    /// The Python stack of a process, now.
    Stacks(ProcessKey),
    /// The log text of a process since gputop attached to it.
    Log(ProcessKey),
    /// Watch this file as a log of the process. A relative path starts at the working directory of the process.
    Watch { process: ProcessKey, path: String },
    /// Send a signal to these processes. A process is skipped if its PID now belongs to another one.
    Signal {
        signal: Signal,
        processes: Vec<ProcessKey>,
    },
    /// Allocate GPU memory briefly and free all of it. The user has confirmed this.
    Probe(ProbeRequest),
    /// The GPU that a screen shows alone: its expensive figures are collected until the focus changes.
    Focus(Option<GpuUuid>),
    /// The period between frames.
    Interval(Millis),
    /// Reconnect now after a lost connection. This request is not sent to the remote host.
    Connect,
    /// Move in a recording.
    Play(Play),
}

/// How to move in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Play {
    /// Pause or continue. Continuing at the end starts over.
    Pause(bool),
    /// Playback speed from 1/8 to 64; 1 is as recorded.
    Speed(f32),
    /// Move by this many frames and pause.
    Step(i32),
    /// Move by this many milliseconds.
    Skip(i64),
    /// Move to a time of the recording.
    To(Mono),
    Start,
    /// Send the quarter of an hour before this time, without moving.
    Past(Mono),
}

/// Position in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Position {
    pub start: Mono,
    pub end: Mono,
    pub now: Mono,
    pub speed: f32,
    pub paused: bool,
    /// True if the last frame was shown.
    pub at_end: bool,
}

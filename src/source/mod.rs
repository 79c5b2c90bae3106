//! Where frames and events come from: this host, another one or a recording, one stream in each case.
//!
//! A source yields [`Update`]s and takes [`Request`]s. Whoever draws, records or prints sees only these, so here, far
//! away and long ago are the same thing to them.

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

/// One thing a source has to say.
#[derive(Debug, Clone)]
pub enum Update {
    /// Comes first, and again when the far side started anew.
    Hello(Arc<Hello>),
    /// The latest state; one that was not taken in time is replaced by the next.
    Frame(Arc<Frame>),
    /// Never dropped.
    Event(Event),
    /// The answer to a [`Request::Detail`].
    Detail(ProcessKey, Box<Result<ProcessDetail, Missing>>),
    /// Every segment and block of the pool that [`Request::Map`] asked for; only the newest counts.
    Map(Arc<PoolMap>),
    /// There is no map of that pool now, and why; a map told before stays the newest.
    NoMap((ProcessKey, u32), Missing),
    /// A map that was read because an allocation failed.
    FailureMap(Arc<FailureMap>),
    /// The answer to a [`Request::Stacks`]; also one that was taken at a new maximum or a failed allocation.
    Stacks(ProcessKey, Arc<Result<PythonStack, Missing>>),
    /// The answer to a [`Request::Log`].
    Log(Arc<LogView>),
    /// The answer to a [`Request::Watch`]: the name of the log that is followed now.
    Watched(ProcessKey, Result<String, Missing>),
    /// The answer to a [`Request::Signal`].
    Signalled(Signalled),
    /// The answer to a [`Request::Probe`].
    Probed(Arc<Probe>),
    /// An incident of the far host's store: it happened there, and perhaps nobody watched.
    RemoteIncident(Arc<RemoteIncident>),
    /// A recording jumped: what came of this moment and after it is to be forgotten; these tell of it, oldest first.
    /// Events follow as usual.
    Jump { from: Mono, summaries: Vec<Summary> },
    /// The answer to [`Play::Past`]: what came before a moment, back to another; to 0 when nothing older is there.
    /// Events of that time follow.
    Past {
        before: Mono,
        from: Mono,
        summaries: Vec<Summary>,
    },
    /// Where a recording stands; follows every frame of one.
    Position(Position),
    /// How the connection to a far host stands.
    Link(Link),
    /// A sentence the user should read: `A minute of the recording is damaged and left out.`
    Notice(String),
    /// Nothing more will come, and why.
    End(Option<String>),
}

/// What a reader may ask of a source. A source that cannot do a thing ignores it or answers with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Everything about one process, once.
    Detail(ProcessKey),
    /// A screen shows the map of this pool, by its process and the device's number inside it: it is wanted until
    /// another or none is told. Said again with every frame, so that a source that started anew hears of it.
    Map(Option<(ProcessKey, u32)>),
    /// The Python stack of a process, now.
    Stacks(ProcessKey),
    /// What a process has written since it was attached to.
    Log(ProcessKey),
    /// Follow this file as a log of the process; a path that is not absolute begins at its working directory.
    Watch { process: ProcessKey, path: String },
    /// Send a signal to these processes, to each only if it is still the one that this key names.
    Signal {
        signal: Signal,
        processes: Vec<ProcessKey>,
    },
    /// Allocate on a card for a moment and give everything back; the person was asked.
    Probe(ProbeRequest),
    /// A screen shows this GPU alone: its costly figures are wanted until another focus is told.
    Focus(Option<GpuUuid>),
    /// The period between frames.
    Interval(Millis),
    /// Try a link that is lost again, now. It goes nowhere.
    Connect,
    /// Move in a recording.
    Play(Play),
}

/// How to move in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Play {
    /// Going on at the end starts over.
    Pause(bool),
    /// 1 is as recorded; from 1/8 to 64.
    Speed(f32),
    /// By so many frames, and pause there.
    Step(i32),
    /// By so many milliseconds.
    Skip(i64),
    /// To a moment of the recording.
    To(Mono),
    Start,
    /// Not a move: tell of the quarter of an hour before this moment.
    Past(Mono),
}

/// Where a recording stands.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Position {
    pub start: Mono,
    pub end: Mono,
    pub now: Mono,
    pub speed: f32,
    pub paused: bool,
    /// The last frame was shown and nothing follows.
    pub at_end: bool,
}

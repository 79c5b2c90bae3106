//! Messages between gputop's threads, between hosts and in recordings. A data source sends [`Update`]s and receives
//! [`Request`]s.
//!
//! An update is one line of JSON: an object with a key that names the kind of update. Updates that only a live source
//! sends are nested in `reply` and never recorded.
//!
//! ```text
//! {"hello":{…}}  {"frame":{…}}  {"event":{…}}  {"map":{…}}  {"map":{…},"failed_since":90412}
//! {"holder_summary":{…}}
//! {"stack":{…}}  {"phase_window":{…}}  {"holder_reading":{…}}              in recordings
//! {"reply":{"detail":{"process":{…},"is":{…}}}}                             on connections
//! {"request":{"interval":500}}  {"frames":12}  {"incident":"01kq3v7-x2c9"}  to a remote agent
//! ```
//!
//! Readers skip unknown kinds and fields, so new ones do not need a new protocol version.

pub mod backlog;
pub mod map_line;
pub mod stream;
mod wire;

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use self::map_line::{MapLine, MapLineError};
use self::wire::{Answer, NoMap, Outcomes, cut, wire_forms};
use crate::bounded_json;
use crate::history::Summary;
use crate::holders::summary::HolderSummary;
use crate::process::ProcessDetail;
use crate::process_group::GroupArrivals;
use crate::ras::RasReport;
use crate::{
    Event, FailureMap, Frame, GpuUuid, Hello, Holders, IncidentFile, Link, LogView, Millis,
    Missing, Mono, PhaseRequest, PhaseWindow, PoolMap, Probe, ProbeRequest, ProcessKey,
    PythonStack, RemoteIncident, Signal, Signalled, memory_size,
};

/// Maximum memory for the lists and maps in one protocol line. A frame with 2,000 processes takes 3 MiB.
const MAX_LINE_MEMORY: usize = 12 << 20;

/// A message from a data source: this host, a remote host or a recording.
#[derive(Debug, Clone)]
pub enum Update {
    /// The first message from a source, sent again when the remote agent restarts.
    Hello(Arc<Hello>),
    /// The latest state of GPUs and processes. A newer frame may replace an unread one.
    Frame(Arc<Frame>),
    /// An event. Unlike frames, events are not dropped, unless a reader of this host's collectors stalls.
    Event(Event),
    Detail(ProcessKey, Box<Result<ProcessDetail, Missing>>),
    /// Every segment and block of the pool requested by [`Request::Map`]. Replaces the previous map.
    Map(Arc<PoolMap>),
    /// Reason why the map of a pool is not available. Readers may continue to show the last map.
    NoMap((ProcessKey, u32), Missing),
    /// A pool map read because an allocation failed.
    FailureMap(Arc<FailureMap>),
    /// The reply to [`Request::Stacks`], or a Python stack read when memory reached a new maximum or an allocation
    /// failed.
    Stacks(ProcessKey, Arc<Result<PythonStack, Missing>>),
    /// The reply to [`Request::Holders`]. Tensor names are private, so it is recorded only at the user's request, in the
    /// form of [`Holders::recorded`].
    Holders(ProcessKey, Arc<Result<Holders, Missing>>),
    /// What a process did: once a second after [`Request::Phases`], and every ten seconds while its GPU has little to do.
    Phases(ProcessKey, Arc<Result<PhaseWindow, Missing>>),
    /// Which ranks come last to the collectives of their groups: once a second after [`Request::Arrivals`], or without it
    /// while PyTorch's flight recorder is on.
    Arrivals(Arc<Vec<GroupArrivals>>),
    /// The reply to [`Request::Ras`].
    Ras(ProcessKey, Arc<Result<RasReport, Missing>>),
    /// Memory holders read because an allocation failed, or because the GPU's memory was nearly full.
    HolderSummary(Arc<HolderSummary>),
    Log(Arc<LogView>),
    /// The reply to [`Request::Watch`]: the name of the log that is now watched.
    Watched(ProcessKey, Result<String, Missing>),
    Signalled(Signalled),
    Probed(Arc<Probe>),
    /// Contents of the remote host's incident store, newest first. Sent again after each change.
    IncidentList(Vec<IncidentFile>),
    /// An incident requested from the remote incident store. It may be older than the connection.
    RemoteIncident(Arc<RemoteIncident>),
    /// Playback jumped. Readers discard all data from time `from` on, and use the summaries instead. Summaries are
    /// sorted oldest first. Events follow as usual.
    Jump {
        from: Mono,
        summaries: Vec<Summary>,
    },
    /// The reply to [`Play::Past`]: summaries from `from` to `before`. `from` is 0 if there is no older data. The
    /// events of that period follow.
    Past {
        before: Mono,
        from: Mono,
        summaries: Vec<Summary>,
    },
    /// Playback position in a recording, sent after each frame.
    Position(Position),
    /// State of the connection to a remote host.
    Link(Link),
    /// A sentence for the user: `The recording is damaged 3:07 min after its start; unreadable parts are skipped.`
    Notice(String),
    /// End of the update stream, with the reason if known.
    End(Option<String>),
}

// The wire form of each update. A row holds its place in the line, its name, its value in JSON, and how it is read.
wire_forms! {
    Line "hello" Self::Hello(hello) => hello, |hello: _| Self::Hello(hello);
    Line "frame" Self::Frame(frame) => frame, |frame: _| Self::Frame(frame);
    Line "event" Self::Event(event) => event, |event: _| Self::Event(event);
    Line "holder_summary" Self::HolderSummary(summary) => summary,
        |summary: HolderSummary| Self::HolderSummary(Arc::new(cut(summary)));
    Reply "detail" Self::Detail(process, detail) => Answer::of(*process, detail),
        |detail: Answer<ProcessDetail>| Self::Detail(detail.process, Box::new(detail.result()));
    Reply "no_map" Self::NoMap(pool, why) => NoMap::of(*pool, why),
        |no_map: NoMap| Self::NoMap((no_map.process, no_map.ordinal), no_map.why);
    Reply "stacks" Self::Stacks(process, stack) => Answer::of(*process, stack),
        |stack: Answer<PythonStack>| Self::Stacks(stack.process, Arc::new(stack.result()));
    Reply "holders" Self::Holders(process, holders) => Answer::of(*process, holders),
        |holders: Answer<Holders>| Self::Holders(holders.process, Arc::new(holders.result()));
    Reply "phases" Self::Phases(process, window) => Answer::of(*process, window),
        |window: Answer<PhaseWindow>| Self::Phases(window.process, Arc::new(window.result()));
    Reply "arrivals" Self::Arrivals(groups) => groups, |groups: _| Self::Arrivals(groups);
    Reply "ras" Self::Ras(process, report) => Answer::of(*process, report),
        |report: Answer<RasReport>| Self::Ras(report.process, Arc::new(report.result()));
    Reply "log" Self::Log(log) => log, |log: _| Self::Log(log);
    Reply "watched" Self::Watched(process, name) => Answer::of(*process, name),
        |name: Answer<String>| Self::Watched(name.process, name.result());
    Reply "signalled" Self::Signalled(signalled) => Outcomes::of(signalled),
        |outcomes: Outcomes<()>| Self::Signalled(outcomes.signalled());
    Reply "probed" Self::Probed(probe) => probe, |probe: _| Self::Probed(probe);
    Reply "notice" Self::Notice(notice) => notice, |notice: _| Self::Notice(notice);
    Reply "shelf" Self::IncidentList(list) => list, |list: _| Self::IncidentList(list);
    Reply "incident" Self::RemoteIncident(incident) => incident,
        |incident: _| Self::RemoteIncident(incident);

    // In recordings, which contain no failed readings.
    "stack", |stack: PythonStack| Self::Stacks(stack.process, Arc::new(Ok(stack)));
    "phase_window", |window: PhaseWindow| Self::Phases(window.process, Arc::new(Ok(window)));
    "holder_reading", |holders: Holders| Self::Holders(holders.process, Arc::new(Ok(holders)));

    not sent: Self::Jump { .. }
        | Self::Past { .. }
        | Self::Position(_)
        | Self::Link(_)
        | Self::End(_)
}

/// A request to a data source. A source that cannot fulfil a request ignores it or replies with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Send all details of one process, once.
    Detail(ProcessKey),
    /// Send the map of this pool, given by its process and the device index as seen by that process. `None` stops the
    /// maps. The request stays in effect until the next map request. Readers repeat it with every frame, so that a
    /// restarted source receives it.
    Map(Option<(ProcessKey, u32)>),
    /// Send the current Python stack of a process.
    Stacks(ProcessKey),
    /// Find out once which tensors hold the memory of this process. Cancels the search in any other process; `None`
    /// only cancels.
    Holders(Option<ProcessKey>),
    /// Sample the stack of this process, and send what it does. `None` stops it. Stays in effect until the next request
    /// of this kind.
    Phases(Option<PhaseRequest>),
    /// Count the collectives of all ranks many times a second, and send which of them come last. `false` stops it. Ranks
    /// whose flight recorder is on are not counted, because it has the times.
    Arrivals(bool),
    /// Ask NCCL about the job of this process, on all its hosts. The user has confirmed the request.
    Ras(ProcessKey),
    /// Send the log text that a process has written since gputop attached to it.
    Log(ProcessKey),
    /// Watch this file as a log of the process. A relative path is resolved against the working directory of the
    /// process.
    Watch {
        process: ProcessKey,
        path: String,
    },
    /// Send a signal to these processes. A process is skipped if its PID has been reused.
    Signal {
        signal: Signal,
        processes: Vec<ProcessKey>,
    },
    /// Allocate GPU memory briefly and free all of it. The user has confirmed the request.
    Probe(ProbeRequest),
    /// Select the GPU to show in full screen. The source collects expensive values for this GPU until the selection
    /// changes.
    Focus(Option<GpuUuid>),
    Interval(Millis),
    /// Wake the GPUs that are asleep, and read them until nothing has used them for a while.
    Wake,
    /// Reconnect now after a lost connection. This request is not sent to the remote host.
    Connect,
    Play(Play),
}

impl Request {
    /// Returns the reply to a request that cannot be fulfilled, or `None` if no reply is expected.
    pub fn refused(&self, why: Missing) -> Option<Update> {
        Some(match self {
            Self::Detail(key) => Update::Detail(*key, Box::new(Err(why))),
            Self::Map(wanted) => Update::NoMap((*wanted)?, why),
            Self::Stacks(key) => Update::Stacks(*key, Arc::new(Err(why))),
            Self::Holders(wanted) => Update::Holders((*wanted)?, Arc::new(Err(why))),
            Self::Phases(wanted) => Update::Phases(wanted.as_ref()?.process, Arc::new(Err(why))),
            Self::Ras(process) => Update::Ras(*process, Arc::new(Err(why))),
            Self::Log(process) => Update::Log(Arc::new(LogView {
                process: *process,
                missing: Some(why),
                ..LogView::default()
            })),
            Self::Watch { process, .. } => Update::Watched(*process, Err(why)),
            Self::Signal { signal, processes } => Update::Signalled(Signalled {
                signal: *signal,
                outcomes: processes.iter().map(|key| (*key, Err(why.clone()))).collect(),
            }),
            Self::Probe(request) => {
                Update::Probed(Arc::new(Probe::refused(&request.gpu, why.to_string())))
            }
            Self::Arrivals(_)
            | Self::Focus(_)
            | Self::Interval(_)
            | Self::Wake
            | Self::Connect
            | Self::Play(_) => return None,
        })
    }
}

/// A protocol line sent to a remote agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestLine {
    Request(Request),
    /// Number of frames received since the connection started.
    Frames(u64),
    /// Requests the incident with this name. The incident list contains the names.
    Incident(String),
}

/// A playback command for a recording.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Play {
    /// Pause or continue playback. Continuing at the end restarts the recording.
    Pause(bool),
    /// Playback speed from 1/8 to 64; 1 is the recorded speed.
    Speed(f32),
    /// Move by this many frames and pause.
    Step(i32),
    /// Move by this many milliseconds.
    Skip(i64),
    /// Jump to a time in the recording.
    To(Mono),
    Start,
    /// Jump to the last frame and pause.
    End,
    /// Send the data for the 15 minutes before this time without changing the playback position.
    Past(Mono),
}

/// Playback position and state of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Position {
    pub start: Mono,
    pub end: Mono,
    pub now: Mono,
    pub speed: f32,
    pub paused: bool,
    /// True once the last frame has been shown.
    pub at_end: bool,
    /// True if the recording contains readings of the memory holders.
    pub has_holders: bool,
}

/// A parsed protocol line.
#[derive(Debug)]
pub enum Line {
    Update(Update),
    /// A pool map, parsed on demand because parsing is expensive.
    Map(MapLine),
    /// A line of an unknown kind, or a line from a host other than the first one (`from` is not 0).
    Unknown,
}

impl Line {
    /// Parses an untrusted line. Rejects a line whose parsed form would take far more memory than its text.
    pub fn read(text: &[u8]) -> serde_json::Result<Self> {
        bounded_json::read(text, MAX_LINE_MEMORY).map(|(line, _)| line)
    }

    /// Converts the line to an update and parses its pool map, if any. Returns `None` for an unknown line.
    pub fn update(self) -> Result<Option<Update>, MapLineError> {
        Ok(match self {
            Self::Update(update) => Some(update),
            Self::Map(line) => Some(match (line.read()?, line.failed_since) {
                (map, None) => Update::Map(Arc::new(map)),
                (map, Some(since)) => Update::FailureMap(Arc::new(FailureMap { since, map })),
            }),
            Self::Unknown => None,
        })
    }
}

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LineVisitor)
    }
}

struct LineVisitor;

impl<'de> Visitor<'de> for LineVisitor {
    type Value = Line;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one key, such as `frame` or `event`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut line: A) -> Result<Line, A::Error> {
        let (mut content, mut failed_since, mut host) = (Line::Unknown, None, 0);
        while let Some(kind) = line.next_key::<String>()? {
            match kind.as_str() {
                "from" => host = line.next_value::<u32>()?,
                "failed_since" => failed_since = line.next_value()?,
                "map" => content = Line::Map(MapLine::unread(line.next_value()?)),
                "reply" => content = line.next_value()?,
                kind => match Update::read(kind, &mut line)? {
                    Some(update) => content = Line::Update(update),
                    None => drop(line.next_value::<IgnoredAny>()?),
                },
            }
        }
        if let Line::Map(map) = &mut content {
            map.failed_since = failed_since;
        }
        Ok(if host == 0 { content } else { Line::Unknown })
    }
}

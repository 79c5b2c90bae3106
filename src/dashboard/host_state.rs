//! The state of one host or recording: the newest frame, the history, exited processes, and what the user has selected
//! of them.
//!
//! `update` applies one [`Update`]. Screens and text outputs only borrow the state, and treat a recording like a live
//! host.

use std::collections::BTreeSet;
use std::sync::Arc;

use gputop_allocator::pool_history::PoolHistory;
use gputop_allocator::warnings::Note;
use gputop_model::event::Event;
use gputop_model::frame::Frame;
use gputop_model::gpu::Gpu;
use gputop_model::history::{DAY, History, Reach, SeriesKey, Summary};
use gputop_model::host::Hello;
use gputop_model::incident::Severity;
use gputop_model::incident_record::{Record, Track};
use gputop_model::link::Link;
use gputop_model::log::LogView;
use gputop_model::newest::Newest;
use gputop_model::permissions::Permissions;
use gputop_model::pool::PoolMap;
use gputop_model::process::{ProcessDetail, ProcessKey};
use gputop_model::protocol::Update;
use gputop_model::reading::Missing;
use gputop_model::stack::{PythonStack, StackTrigger};
use gputop_model::units::{Bytes, Millis, Mono, UnixMillis};

use super::exited::{ExitedProcess, ExitedProcesses};
use super::fleet::FleetRow;
use super::holders::{HolderReadings, ProcessReading};
use super::incident_charts::tracks;
use super::incidents::{Incidents, ListedIncident};
use super::jobs::{Jobs, Known};
use super::last_busy::LastBusy;
use super::past_frames::PastFrames;
use super::probes::Probes;
use super::process_table::ProcessTable;
use super::recording::Recording;
use super::rows::{Growth, ProcessRow};
use super::signal_outcome::outcome_text;
use super::time_axis::{AxisEnd, TimeAxis};
use super::time_window::{Retained, ScrollDirection, TimeWindow};
use super::why::Why;
use crate::incident::Uid;

/// Maximum number of retained Python stacks, and their maximum memory. If there are more, the oldest are dropped.
const MAX_STACKS: usize = 100;
const MAX_STACK_BYTES: usize = 8 << 20;

type StackResult = Arc<Result<PythonStack, Missing>>;

/// The state of one host or recording. For the host list, only the list and its clock are set.
pub struct HostState {
    pub hello: Arc<Hello>,
    /// The frame on the screen: the current frame, or an earlier one while the display is rewound.
    pub frame: Arc<Frame>,
    /// The newest frame, or the frame at which the display was paused.
    current: Arc<Frame>,
    past_frames: PastFrames,
    /// The displayed history. It does not change while the display is paused.
    pub history: History,
    /// The live history, which continues while `history` is paused. A separate copy is required, because later samples
    /// would be merged into the newest bucket, and old buckets would expire.
    live_history: Option<History>,
    pub ended: ExitedProcesses,
    pub processes: ProcessTable,
    pub incidents: Incidents,
    /// Permission for each action on processes or GPUs.
    pub permissions: Permissions,
    /// The process whose details were last requested, and the response.
    pub detail: Option<(ProcessKey, Box<Result<ProcessDetail, Missing>>)>,
    /// The newest memory map that a screen requested. The screen must check that the map belongs to the pool it shows.
    pub map: Option<Arc<PoolMap>>,
    /// The pool for which a requested memory map is not available, and the reason.
    pub no_map: Option<((ProcessKey, u32), Missing)>,
    /// The newest log that a screen requested. The screen must check that the log belongs to the process it shows.
    pub log: Option<Arc<LogView>>,
    /// For each process, the newest reading of what holds its GPU memory.
    pub holders: HolderReadings,
    pub probes: Probes,
    /// Python stacks, newest last, with at most one stack per process and trigger.
    stacks: Newest<(ProcessKey, StackResult)>,
    /// Recent samples of every pool, used for early warnings.
    pool_history: PoolHistory,
    last_busy: LastBusy,
    pub jobs: Jobs,
    pub why: Why,
    /// User-assigned name of a remote host, or `None` for this host.
    pub name: Option<String>,
    pub fleet: Vec<FleetRow>,
    /// Connection state of a remote host, or `None` for this host.
    pub link: Option<Link>,
    /// The recording being played, or `None` for a live host.
    pub recording: Option<Recording>,
    /// True while the display is paused and shows no new frames. The live history continues.
    pub paused: bool,
    /// Time window of the charts.
    pub time_window: TimeWindow,
    /// The reason why the data source has closed, or `None` while the source is open.
    pub source_end: Option<String>,
    newest: Arc<Frame>,
    /// False while another host is on the screen. No rows are built during that time.
    is_shown: bool,
}

impl HostState {
    /// Returns the memory that a chart of a GPU shows at its top: its own, or the host's if it has none of its own.
    pub fn chart_memory(&self, gpu: &Gpu) -> Option<Bytes> {
        let host = || self.frame.host.as_ref()?.memory_total.get();
        gpu.memory.total.get().or_else(|| gpu.memory.is_shared_with_host().then(host).flatten())
    }

    /// Returns the reason why the recording being played has no reading of a process's memory holders at this time.
    /// Returns `None` if it has one, and for a live host, which reads the holders on request.
    pub fn missing_holders(&self, process: ProcessKey) -> Option<&'static str> {
        let recording = self.recording.as_ref()?;
        let reading = self.holders.of(process).and_then(ProcessReading::holders);
        match reading {
            Some(_) => None,
            None if recording.position.has_holders => {
                Some("this recording has no names of the process's tensors up to this time")
            }
            None => Some("this recording has no names of tensors: record with record_names = true"),
        }
    }

    /// Returns the reason why the process table is empty.
    pub fn why_no_rows(&self) -> String {
        if !self.processes.filter.is_empty() {
            return format!("No process matches `{}`", self.processes.filter);
        }
        let is_unread = |gpu: &&Gpu| gpu.processes.why().is_some();
        let unread: Vec<&Gpu> = self.frame.gpus.iter().filter(is_unread).collect();
        let Some(why) = unread.first().and_then(|gpu| gpu.processes.why()) else {
            return "No process uses a GPU".into();
        };
        if unread.len() == self.frame.gpus.len() {
            return format!("Process list not available: {why}");
        }
        let indices: Vec<String> = unread.iter().map(|gpu| gpu.index.to_string()).collect();
        format!(
            "Process list not available for GPU {}: {why}. No process uses another GPU",
            indices.join(", ")
        )
    }

    pub fn new(recording: Option<Recording>) -> Self {
        Self {
            hello: Arc::default(),
            frame: Arc::default(),
            current: Arc::default(),
            past_frames: PastFrames::default(),
            history: History::default(),
            live_history: None,
            ended: ExitedProcesses::default(),
            processes: ProcessTable::default(),
            incidents: Incidents::default(),
            permissions: Permissions::ALL,
            detail: None,
            map: None,
            no_map: None,
            log: None,
            holders: HolderReadings::default(),
            probes: Probes::default(),
            stacks: Newest::new(MAX_STACKS, MAX_STACK_BYTES),
            pool_history: PoolHistory::default(),
            last_busy: LastBusy::default(),
            jobs: Jobs::default(),
            why: Why::default(),
            name: None,
            fleet: Vec::new(),
            link: None,
            recording,
            paused: false,
            time_window: TimeWindow::default(),
            source_end: None,
            newest: Arc::default(),
            is_shown: true,
        }
    }

    /// Applies an update. Returns a message for the user, if it contains one.
    pub fn update(&mut self, update: Update) -> Option<String> {
        match update {
            Update::Hello(hello) => self.take_hello(hello),
            Update::Frame(frame) => self.take_frame(frame),
            Update::Event(event) => self.take_event(&event),
            Update::Detail(key, detail) => self.detail = Some((key, detail)),
            Update::Map(map) => (self.map, self.no_map) = (Some(map), None),
            // Ignore these updates, which are handled by the diagnosis code and the incident store.
            Update::FailureMap(_)
            | Update::HolderSummary(_)
            | Update::IncidentList(_)
            | Update::RemoteIncident(_) => {}
            Update::NoMap(pool, why) => self.no_map = Some((pool, why)),
            Update::Stacks(key, stack) => self.take_stack(key, stack),
            Update::Holders(process, holders) => self.holders.take(process, &holders),
            Update::Phases(process, window) => self.take_window(process, window),
            Update::Arrivals(groups) => self.jobs.take_arrivals(groups),
            Update::Ras(_, report) => self.jobs.take_ras(report),
            Update::Log(log) => self.log = Some(log),
            Update::Watched(process, name) => {
                return Some(match name {
                    Ok(name) => format!("following {name} for process {}", process.pid),
                    Err(why) => format!("cannot follow the log: {why}"),
                });
            }
            Update::Signalled(signalled) => {
                return Some(outcome_text(&signalled, &self.processes.all_rows));
            }
            Update::Probed(probe) => self.probes.take(probe),
            Update::Jump { from, summaries } => {
                if let Some(recording) = &mut self.recording {
                    recording.is_jumping = true;
                }
                self.take_jump(from, &summaries);
            }
            Update::Past { before, from, summaries } => {
                if self.time_window.prepend(before, from) {
                    self.fill(&summaries);
                }
            }
            Update::Position(position) => {
                if let Some(recording) = &mut self.recording {
                    recording.move_to(position);
                }
            }
            Update::Link(link) => self.link = Some(link),
            Update::Notice(notice) => return Some(notice),
            Update::End(why) => {
                self.source_end = Some(why.unwrap_or_else(|| "the data source closed".into()));
            }
        }
        None
    }

    fn take_hello(&mut self, hello: Arc<Hello>) {
        // Forget the history after a reboot: the monotonic clock restarts at boot, so data from both boots cannot share
        // a chart.
        if hello.boot_id != self.hello.boot_id {
            self.forget_history();
            self.ended.clear();
            self.pool_history.clear();
            self.last_busy.clear();
            self.jobs.clear();
            self.why.clear();
            self.forget_map();
            self.stacks.clear();
            self.holders.clear();
        }
        self.hello = hello;
    }

    fn forget_map(&mut self) {
        (self.map, self.no_map) = (None, None);
    }

    fn forget_history(&mut self) {
        (self.history, self.live_history) = (self.history.empty_copy(), None);
        self.past_frames = PastFrames::default();
        self.time_window = self.time_window.reset();
    }

    /// Handles a jump within a recording. `summaries` contains the recorded history from `from` up to the next frame.
    /// Existing history is retained if it has no gap, because its resolution is higher than that of `summaries`.
    fn take_jump(&mut self, from: Mono, summaries: &[Summary]) {
        self.forget_map();
        self.stacks.clear();
        self.holders.clear();
        self.pool_history.clear();
        self.jobs.clear();
        self.why.clear();
        let frames_from = summaries.last().map_or(from, Summary::end);
        let retained = self.time_window.jump(from, frames_from);
        match retained {
            Retained::Nothing => self.ended.clear(),
            Retained::All | Retained::Earlier => self.ended.forget_from(from),
        }
        match retained {
            Retained::All => {
                self.last_busy.jump(frames_from);
                return;
            }
            Retained::Earlier => {
                self.history.forget_from(from);
                self.past_frames.forget_from(from);
            }
            Retained::Nothing => {
                self.history = History::default();
                self.past_frames = PastFrames::default();
            }
        }
        self.last_busy.clear();
        self.fill(summaries);
    }

    fn fill(&mut self, summaries: &[Summary]) {
        for summary in summaries {
            self.history.push_summary(summary);
        }
    }

    fn take_frame(&mut self, frame: Arc<Frame>) {
        self.live_history.as_mut().unwrap_or(&mut self.history).push(&frame);
        if !self.history.is_outline() {
            self.pool_history.push(&frame);
            self.past_frames.push(&frame);
            self.last_busy.push(&frame);
            self.why.push(&frame);
        }
        let (exits, incidents) = (&self.ended, &self.incidents);
        self.jobs.push(&frame, &Known { hello: &self.hello, exits, incidents });
        self.time_window.extend(frame.mono);
        self.newest = frame;
        if !self.paused {
            self.show_newest();
        }
    }

    /// Returns the early warnings for a pool, most severe first.
    /// Returns how long a process has not used a GPU, as far as that is known.
    pub(super) fn unused_for(&self, process: ProcessKey) -> Option<Millis> {
        Some(self.last_busy.unused(process, self.frame.mono)?.time)
    }

    pub fn pool_notes(&self, process: ProcessKey, ordinal: u32) -> Vec<Note> {
        self.pool_history.notes((process, ordinal))
    }

    fn take_stack(&mut self, process: ProcessKey, stack: StackResult) {
        // Treat an unreadable stack as one that the user requested: only a stack that was read contains its trigger.
        let why = |stack: &StackResult| (**stack).as_ref().map_or(StackTrigger::Request, |s| s.why);
        self.stacks.retain(|(key, old)| *key != process || why(old) != why(&stack));
        self.stacks.push((process, stack));
    }

    /// Returns the Python stacks of a process, newest first.
    pub fn stacks(
        &self,
        process: ProcessKey,
    ) -> impl Iterator<Item = &Result<PythonStack, Missing>> {
        let is_its = move |(key, _): &&(ProcessKey, StackResult)| *key == process;
        self.stacks.iter().rev().filter(is_its).map(|(_, stack)| &**stack)
    }

    fn take_event(&mut self, event: &Event) {
        if let Some(ended) = ExitedProcess::from_event(event)
            && self.ended.take(ended)
        {
            self.rebuild_rows();
        }
    }

    /// Returns this host's row of the host list.
    pub fn fleet_row(&self) -> FleetRow {
        let name = self.name.clone().unwrap_or_else(|| self.hello.host.clone());
        let unread = Vec::from_iter(self.unread_incidents());
        FleetRow::of(name, self.link.clone(), &self.hello, &self.frame, &unread)
    }

    /// Updates the row of a host in the host list, or appends it.
    pub fn take_host(&mut self, host: usize, row: FleetRow) {
        match self.fleet.get_mut(host) {
            Some(old) => *old = row,
            None => self.fleet.push(row),
        }
        self.jobs.take_all();
        let frame = Arc::make_mut(&mut self.frame);
        frame.time = self.fleet.iter().map(|row| row.time).max().unwrap_or_default();
        frame.interval = self.fleet.iter().map(|row| row.interval).max().unwrap_or_default();
    }

    pub fn set_shown(&mut self, is_shown: bool) {
        self.is_shown = is_shown;
        if is_shown {
            self.rebuild_rows();
        } else {
            self.processes.clear_rows();
        }
    }

    /// Sets how much history is retained.
    pub fn set_reach(&mut self, reach: Reach) {
        self.history.keep(reach);
        if let Some(live) = &mut self.live_history {
            live.keep(reach);
        }
        if reach == Reach::Outline {
            self.pool_history.clear();
        }
    }

    /// Adds an incident of the host's incident watcher. For a stored incident, returns the chart data around its time,
    /// so that the data can be stored too.
    pub fn take_incident(&mut self, record: Record) -> Option<(Uid, Vec<Track>)> {
        let tracks = tracks(self.live_history.as_ref().unwrap_or(&self.history), &record);
        let uid = record.incident.uid.clone();
        self.incidents.take_live(record);
        self.rebuild_rows();
        Some((uid?.parse().ok()?, tracks))
    }

    pub fn take_stored(&mut self, stored: Vec<ListedIncident>) {
        self.incidents.take_stored(stored);
        self.rebuild_rows();
    }

    /// Returns the most severe incident of a process, up to the time on the screen.
    pub fn incident_of(&self, process: ProcessKey) -> Option<&ListedIncident> {
        let known = self.incidents.of_process(&self.hello.boot_id, process);
        known.filter(|known| !self.is_later(known))
    }

    /// Returns the incidents up to the time on the screen, newest first.
    pub fn shown_incidents(&self) -> impl Iterator<Item = &ListedIncident> {
        self.incidents.newest_first().filter(|known| !self.is_later(known))
    }

    /// Returns the unread incidents up to the time on the screen, newest first.
    pub fn unread_incidents(&self) -> impl Iterator<Item = &ListedIncident> {
        self.shown_incidents().filter(|known| !known.is_read)
    }

    /// Returns true if an incident occurred after the time on the screen. Events after the last frame of a recording
    /// belong to its end.
    fn is_later(&self, known: &ListedIncident) -> bool {
        let is_past = match self.recording.as_ref().map(|recording| recording.position) {
            // After a jump back, the new frame arrives before the new position.
            Some(position) => !position.at_end || self.frame.mono < position.now,
            None => self.is_rewound(),
        };
        is_past
            && match known.key.boot_id == self.hello.boot_id {
                true => known.key.first > self.frame.mono,
                // Monotonic times of two boots are not comparable.
                false => known.key.time > self.frame.time,
            }
    }

    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
        if paused {
            self.live_history.get_or_insert_with(|| self.history.clone());
        } else {
            if let Some(live) = self.live_history.take() {
                self.history = live;
            }
            self.show_newest();
        }
    }

    fn show_newest(&mut self) {
        self.current = Arc::clone(&self.newest);
        if !self.is_rewound() || self.time_window.end().is_none() {
            self.frame = Arc::clone(&self.current);
            self.rebuild_rows();
        }
    }

    /// Returns true if the tables, like the charts, show an earlier time.
    pub fn is_rewound(&self) -> bool {
        self.time_window.end().is_some_and(|end| self.frame.mono <= end)
            && self.frame.mono < self.current.mono
    }

    /// Shows the retained frame for the time at which the charts end, or the current frame if there is none.
    fn follow_charts(&mut self) {
        let past = self.time_window.end().and_then(|end| self.past_frames.at(end));
        self.frame = past.map_or_else(|| Arc::clone(&self.current), Arc::new);
        self.rebuild_rows();
    }

    /// Scrolls the charts and tables to the current time.
    pub fn to_now(&mut self) {
        if self.time_window.end().is_some() {
            self.time_window.to_now();
            self.follow_charts();
        }
    }

    /// Returns the current time, or the pause time while the display is paused.
    pub fn now(&self) -> Mono {
        self.current.mono
    }

    /// Returns the wall-clock time of [`Self::now`].
    pub fn now_time(&self) -> UnixMillis {
        if self.is_rewound() { self.current.time } else { self.frame.time }
    }

    /// Marks the exited processes that have an incident with a fatal GPU out-of-memory error.
    fn mark_gpu_ooms(&mut self) {
        let fatal = self.incidents.of_boot(&self.hello.boot_id).filter(|known| {
            known.incident.severity == Severity::Fatal && known.incident.is_gpu_oom()
        });
        let failed: BTreeSet<ProcessKey> = fatal.filter_map(ListedIncident::process).collect();
        self.ended.mark_gpu_ooms(&failed);
    }

    /// Rebuilds the process rows after the frame, the exits or the incidents change.
    fn rebuild_rows(&mut self) {
        if !self.is_shown {
            return;
        }
        self.mark_gpu_ooms();
        let until = if self.is_rewound() { self.frame.mono } else { Mono(u64::MAX) };
        let ended = self.ended.until(until);
        let mut rows = ProcessRow::of_frame(&self.frame, &ended, self.hello.ticks_per_second);
        for row in &mut rows {
            let worst = row.pool().and_then(|pool| {
                let notes = self.pool_history.notes((pool.process, pool.ordinal));
                Some(notes.first()?.kind)
            });
            row.warn(worst);
            row.set_growth(self.growth(row));
            row.set_unused_for(self.last_busy.idle(row.id().key, self.frame.mono));
        }
        self.processes.set_rows(rows, self.hello.uid);
    }

    /// Returns the change in a process's VRAM over the last minute, in bytes per minute: from the maximum of its first ten
    /// seconds to that of its last ten. Returns `None` if the process has exited, or if less than half a minute of data
    /// is available.
    fn growth(&self, row: &ProcessRow) -> Option<Growth> {
        const MINUTE: u64 = 60_000;
        const SPAN: u64 = 10_000;
        if row.ended().is_some() {
            return None;
        }
        let id = row.id();
        let series = self.history.series(&SeriesKey::Vram(id.key, id.gpu?))?;
        let now = self.frame.mono.0;
        let start = series.since()?.0.max(now.saturating_sub(MINUTE));
        let time = now.saturating_sub(SPAN).checked_sub(start)?;
        if time + SPAN < MINUTE / 2 {
            return None;
        }
        let peak_from = |from| series.peak_between(Mono(from), Mono(from + SPAN));
        let (first, last) = (peak_from(start)?, peak_from(now - SPAN)?);
        let half = peak_from(start + time / 2).unwrap_or(first) - first;
        let whole = last - first;
        Some(Growth {
            bytes_per_minute: f64::from(whole) * MINUTE as f64 / time as f64,
            // A program that allocates its memory at its start grows only in a part of the minute.
            is_steady: time + SPAN >= MINUTE && (0.3 * whole..=0.7 * whole).contains(&half),
        })
    }

    /// Returns the time axis of the charts. `ended` is the exit time of the process on the screen. Charts end at that
    /// time unless they are scrolled back.
    pub fn time_axis(&self, ended: Option<Mono>) -> TimeAxis {
        let now = self.now();
        let length = self.time_window.length(now);
        let end = self.time_window.end().or(ended).filter(|end| *end < now);
        TimeAxis {
            end: end.unwrap_or(now),
            length,
            past: end.map(|end| AxisEnd { time: self.clock_of(end), ago: now.since(end) }),
        }
    }

    /// Returns the wall-clock time of the oldest data.
    pub fn first_time(&self) -> Option<UnixMillis> {
        (self.current.seq > 0 || !self.current.gpus.is_empty())
            .then(|| self.clock_of(self.oldest()))
    }

    /// Converts a monotonic time to wall-clock time, assuming that the wall clock has not been adjusted since then.
    fn clock_of(&self, time: Mono) -> UnixMillis {
        let back = i64::try_from(self.now().since(time).0).unwrap_or(i64::MAX);
        UnixMillis(self.current.time.0.saturating_sub(back))
    }

    pub fn oldest(&self) -> Mono {
        // Ignore the start time if the recording began before a reboot: the monotonic clock restarts at boot.
        let began = self.recording.as_ref().map(|r| r.position.start);
        let began = began.filter(|began| *began <= self.now());
        let known = began.or(self.time_window.since());
        let day_ago = Mono(self.now().0.saturating_sub(DAY.0));
        known.unwrap_or(self.now()).max(day_ago)
    }

    /// Returns the earliest time to which the display can be scrolled back: tables need a retained frame, and charts
    /// need history for their whole time range.
    fn first_scrolled(&self) -> Mono {
        let (now, oldest) = (self.now(), self.oldest());
        let charts = Mono(oldest.0.saturating_add(self.time_window.length(now).0));
        self.past_frames.oldest().unwrap_or(now).max(oldest).min(charts).min(now)
    }

    /// Scrolls the charts, and scrolls the tables with them as far back as frames are retained. `from` is the time at
    /// which unscrolled charts end, or `None` if they end at the current time. Returns the time of the oldest data if
    /// nothing lies further back.
    pub fn scroll(
        &mut self,
        direction: ScrollDirection,
        from: Option<Mono>,
    ) -> Result<(), UnixMillis> {
        let (now, oldest, first) = (self.now(), self.oldest(), self.first_scrolled());
        if self.time_window.scroll(direction, from, now, first) {
            self.follow_charts();
        } else if direction == ScrollDirection::Back {
            return Err(self.clock_of(oldest));
        }
        Ok(())
    }

    /// Scrolls charts and tables to a time, as far back as there is data.
    pub fn scroll_to(&mut self, time: Mono) {
        self.time_window.scroll_to(time, self.now(), self.first_scrolled());
        self.follow_charts();
    }

    /// Returns the time before which the charts need more history from a recording.
    pub fn missing_before(&self) -> Option<Mono> {
        self.recording.as_ref()?;
        let (now, oldest) = (self.now(), self.oldest());
        self.time_window.missing_before(now, oldest)
    }
}

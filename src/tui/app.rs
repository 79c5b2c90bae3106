//! Everything that screens read: the newest frame, the history, what has ended, and how the user wants it shown.
//!
//! `update` takes one [`Update`] and draws nothing; screens borrow the result and change nothing. That is the whole
//! contract, and why a recording and a live host look the same here.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::columns::PROCESS_COLUMNS;
use super::density::Density;
use super::filter::{Filter, FilterError};
use super::groups::{self, Grouping, TableRow};
use super::incident_charts::tracks;
use super::incidents::{Incidents, ListedIncident};
use super::keymap::Keymap;
use super::pools;
use super::probes::Probes;
use super::rows::{Ended, ProcessRow};
use super::screens::fleet::FleetRow;
use super::signal_menu::outcome_words;
use super::tags::Tags;
use super::theme::Theme;
use super::time_window::{ScrollDirection, TimeWindow};
use super::widgets::table::Hidden;
use super::widgets::time_axis::{AxisEnd, TimeAxis};
use crate::allocator::warnings::{Note, PoolSamples, Sample};
use crate::incidents::{Track, Uid};
use crate::model::event::Event;
use crate::model::frame::Frame;
use crate::model::history::{DAY, History, Reach, Summary, worth};
use crate::model::host::Hello;
use crate::model::incident::Severity;
use crate::model::link::Link;
use crate::model::log::LogView;
use crate::model::permissions::Permissions;
use crate::model::pool::PoolMap;
use crate::model::process::{ProcessDetail, ProcessKey};
use crate::model::reading::Missing;
use crate::model::stack::{PythonStack, StackWhy};
use crate::model::units::{Millis, Mono, UnixMillis};
use crate::source::{Position, Update};
use crate::watch::WatchResult;

/// Rows of ended processes that are kept, for a day; beyond it those go that are worth least.
const MAX_ENDED: usize = 100;

/// The samples of a pool that is read no more go after this long.
const WATCH_KEPT: Millis = Millis(60_000);

/// Python stacks that are kept; older ones go.
const MAX_STACKS: usize = 100;

type TakenStack = Arc<Result<PythonStack, Missing>>;

pub struct App {
    pub theme: Theme,
    pub keymap: Keymap,
    pub density: Density,
    pub hello: Arc<Hello>,
    pub frame: Arc<Frame>,
    /// As far as it is shown: while the display is held it stands still.
    pub history: History,
    /// Goes on while `history` is held. A copy and not a mark in time, since the newest bucket of the past would take
    /// in what comes after it, and old buckets leave.
    ahead: Option<History>,
    pub ended: Vec<Arc<Ended>>,
    /// Every process on every GPU, in the natural order.
    pub all_rows: Vec<ProcessRow>,
    /// The rows of the process table, filtered and in order.
    pub rows: Vec<ProcessRow>,
    /// The rows as the process table shows them: in groups, in a tree, or each by itself.
    pub lines: Vec<TableRow>,
    pub grouping: Grouping,
    /// Titles of groups that hide their processes.
    folded: BTreeSet<String>,
    pub hidden_columns: Hidden,
    /// How many rows the filter hides.
    pub hidden: usize,
    /// The last one that was understood.
    pub filter: Filter,
    pub tags: Tags,
    /// Of the store and of now.
    pub incidents: Incidents,
    /// The terminal reports clicks and the wheel.
    pub mouse: bool,
    /// What may be done beside looking.
    pub leave: Permissions,
    /// A probe whose screen is open is made again after this.
    pub probe_interval: Option<Millis>,
    /// Index into the columns; `None` is the natural order.
    pub sort: Option<usize>,
    pub inverted: bool,
    /// The answer to the last request for detail.
    pub detail: Option<(ProcessKey, Box<Result<ProcessDetail, Missing>>)>,
    /// The newest map of the pool that a screen asked for; the screen looks whether it is still its own.
    pub map: Option<Arc<PoolMap>>,
    /// Why there is none, where the source said so.
    pub no_map: Option<((ProcessKey, u32), Missing)>,
    /// The newest log that a screen asked for; the screen looks whether it is still its own.
    pub log: Option<Arc<LogView>>,
    /// What probes of the cards found.
    pub probes: Probes,
    /// Python stacks, the newest first: of a process one for each thing they are taken for.
    stacks: Vec<(ProcessKey, TakenStack)>,
    /// The last minutes of every pool, for early warnings.
    watches: HashMap<(ProcessKey, u32), PoolSamples>,
    /// What the host is called by whoever watches it; nothing for this one.
    pub name: Option<String>,
    /// The rows of the hosts, on the screen that lists them.
    pub fleet: Vec<FleetRow>,
    /// How the connection to a far host stands; nothing where there is none.
    pub link: Option<Link>,
    /// Set while the source is a recording.
    pub recording: Option<Recording>,
    /// Live frames are held back while this is set; history goes on.
    pub paused: bool,
    /// What the charts show of the history.
    pub stretch: TimeWindow,
    /// A sentence for the bottom line, until the next key.
    pub message: Option<String>,
    /// The source has ended; why, if it said.
    pub ended_source: Option<String>,
    newest: Arc<Frame>,
    /// Of a host that is not on the screen, rows are not made.
    is_shown: bool,
}

/// What is known of the recording that plays.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    pub name: String,
    /// Why a recording plays although nobody asked for one.
    pub reason: Option<String>,
    pub position: Position,
}

impl App {
    pub fn new(theme: Theme, keymap: Keymap, recording: Option<Recording>) -> Self {
        Self {
            theme,
            keymap,
            density: Density::default(),
            hello: Arc::default(),
            frame: Arc::default(),
            history: History::default(),
            ahead: None,
            ended: Vec::new(),
            all_rows: Vec::new(),
            rows: Vec::new(),
            lines: Vec::new(),
            grouping: Grouping::default(),
            folded: BTreeSet::new(),
            hidden_columns: Hidden::default(),
            hidden: 0,
            filter: Filter::default(),
            tags: Tags::default(),
            incidents: Incidents::default(),
            mouse: true,
            leave: Permissions::ALL,
            probe_interval: None,
            sort: None,
            inverted: false,
            detail: None,
            map: None,
            no_map: None,
            log: None,
            probes: Probes::default(),
            stacks: Vec::new(),
            watches: HashMap::new(),
            name: None,
            fleet: Vec::new(),
            link: None,
            recording,
            paused: false,
            stretch: TimeWindow::default(),
            message: None,
            ended_source: None,
            newest: Arc::default(),
            is_shown: true,
        }
    }

    pub fn update(&mut self, update: Update) {
        match update {
            Update::Hello(hello) => self.take_hello(hello),
            Update::Frame(frame) => self.take_frame(frame),
            Update::Event(event) => self.take_event(&event),
            Update::Detail(key, detail) => self.detail = Some((key, detail)),
            Update::Map(map) => (self.map, self.no_map) = (Some(map), None),
            // They are for who judges and keeps what happened.
            Update::FailureMap(_) | Update::RemoteIncident(_) => {}
            Update::NoMap(pool, why) => self.no_map = Some((pool, why)),
            Update::Stacks(key, stack) => self.take_stack(key, stack),
            Update::Log(log) => self.log = Some(log),
            Update::Watched(process, name) => {
                self.message = Some(match name {
                    Ok(name) => format!("following {name} for process {}", process.pid),
                    Err(why) => format!("not followed: {why}"),
                });
            }
            Update::Signalled(signalled) => {
                self.message = Some(outcome_words(&signalled, &self.all_rows));
            }
            Update::Probed(probe) => self.probes.take(probe),
            Update::Jump { from, summaries } => self.take_jump(from, &summaries),
            Update::Past {
                before,
                from,
                summaries,
            } => {
                if self.stretch.fills(before, from) {
                    self.fill(&summaries);
                }
            }
            Update::Position(position) => {
                if let Some(recording) = &mut self.recording {
                    recording.position = position;
                }
            }
            Update::Link(link) => self.link = Some(link),
            Update::Notice(notice) => self.message = Some(notice),
            Update::End(why) => {
                self.ended_source = Some(why.unwrap_or_else(|| "the source has ended".into()));
            }
        }
    }

    fn take_hello(&mut self, hello: Arc<Hello>) {
        // Another boot has another clock: its charts have nothing in common with the old ones.
        if hello.boot_id != self.hello.boot_id {
            self.forget_history();
            self.ended.clear();
            self.watches.clear();
            self.forget_map();
            self.stacks.clear();
        }
        self.hello = hello;
    }

    fn forget_map(&mut self) {
        (self.map, self.no_map) = (None, None);
    }

    fn forget_history(&mut self) {
        (self.history, self.ahead) = (self.history.emptied(), None);
        self.stretch = self.stretch.anew();
    }

    /// A recording is at another moment; of its past, `summaries` tell from `from` on. What was known before that
    /// stays, unless there is a hole between.
    fn take_jump(&mut self, from: Mono, summaries: &[Summary]) {
        self.incidents.forget_live();
        self.forget_map();
        self.stacks.clear();
        self.watches.clear();
        if self.stretch.jumps(from) {
            self.history.forget_from(from);
            self.ended.retain(|ended| ended.mono < from);
        } else {
            self.history = History::default();
            self.ended.clear();
        }
        self.fill(summaries);
    }

    fn fill(&mut self, summaries: &[Summary]) {
        for summary in summaries {
            self.history.push_summary(summary);
        }
    }

    fn take_frame(&mut self, frame: Arc<Frame>) {
        self.ahead
            .as_mut()
            .unwrap_or(&mut self.history)
            .push(&frame);
        if !self.history.is_outline() {
            self.watch_pools(&frame);
        }
        self.stretch.goes_on(frame.mono);
        self.newest = frame;
        if !self.paused {
            self.show_newest();
        }
    }

    fn watch_pools(&mut self, frame: &Frame) {
        for pool in frame.pools.iter().flat_map(|pools| &*pools.list) {
            let free = pools::gpu_of(frame, pool).and_then(|gpu| gpu.memory.free.get());
            self.watches
                .entry((pool.process, pool.ordinal))
                .or_default()
                .push(Sample::new(frame.mono, &pool.stats, free));
        }
        self.watches.retain(|_, watch| {
            watch
                .last_at()
                .is_some_and(|at| frame.mono.since(at) < WATCH_KEPT)
        });
    }

    /// Early warnings of a pool, the worst first.
    pub fn pool_notes(&self, process: ProcessKey, ordinal: u32) -> Vec<Note> {
        self.watches
            .get(&(process, ordinal))
            .map(PoolSamples::notes)
            .unwrap_or_default()
    }

    fn take_stack(&mut self, process: ProcessKey, stack: TakenStack) {
        // The reason why there is none answers a request.
        let why = |stack: &TakenStack| (**stack).as_ref().map_or(StackWhy::Request, |s| s.why);
        self.stacks
            .retain(|(key, old)| *key != process || why(old) != why(&stack));
        self.stacks.insert(0, (process, stack));
        self.stacks.truncate(MAX_STACKS);
    }

    /// The Python stacks of a process, the newest first.
    pub fn stacks(
        &self,
        process: ProcessKey,
    ) -> impl Iterator<Item = &Result<PythonStack, Missing>> {
        let of = move |(key, _): &&(ProcessKey, TakenStack)| *key == process;
        self.stacks.iter().filter(of).map(|(_, stack)| &**stack)
    }

    fn take_event(&mut self, event: &Event) {
        if let Some(ended) = Ended::from_event(event) {
            // A recording that was skipped through may tell the same end twice.
            if self.ended.iter().any(|e| e.key == ended.key) {
                return;
            }
            // What a recording tells of the past comes late.
            let behind = |other: &Arc<Ended>| other.mono <= ended.mono;
            let at = self.ended.iter().rposition(behind).map_or(0, |at| at + 1);
            self.ended.insert(at, Arc::new(ended));
            self.forget_ended();
            self.arrange();
        }
    }

    /// What there is to tell of a host now, by its number; a new one comes behind the others.
    pub fn take_host(&mut self, host: usize, row: FleetRow) {
        let frame = Arc::make_mut(&mut self.frame);
        frame.time = frame.time.max(row.time);
        frame.interval = frame.interval.max(row.interval);
        match self.fleet.get_mut(host) {
            Some(old) => *old = row,
            None => self.fleet.push(row),
        }
    }

    /// Whether it is on the screen: else it follows what comes and makes nothing of it that only a screen wants.
    pub fn set_shown(&mut self, is_shown: bool) {
        self.is_shown = is_shown;
        if is_shown {
            self.arrange();
        } else {
            (self.all_rows, self.rows, self.lines) = Default::default();
        }
    }

    /// Keeps so much of the past from now on.
    pub fn keep(&mut self, reach: Reach) {
        self.history.keep(reach);
        if let Some(ahead) = &mut self.ahead {
            ahead.keep(reach);
        }
        if reach == Reach::Outline {
            self.watches.clear();
        }
    }

    /// What was found in what came; the minutes around it, for whoever keeps it.
    pub fn take_found(&mut self, found: WatchResult) -> Option<(Uid, Vec<Track>)> {
        match found {
            WatchResult::Trouble(why) => {
                self.message = Some(why);
                None
            }
            WatchResult::Incident(revision, uid) => {
                let tracks = tracks(self.ahead.as_ref().unwrap_or(&self.history), &revision);
                let name = uid.as_ref().map(ToString::to_string);
                self.incidents.take_live(*revision, name);
                self.arrange();
                Some((uid?, tracks))
            }
        }
    }

    /// What the store holds now.
    pub fn take_stored(&mut self, stored: Vec<ListedIncident>) {
        self.incidents.take_stored(stored);
        self.arrange();
    }

    /// What is known of why a process failed.
    pub fn incident_of(&self, process: ProcessKey) -> Option<&ListedIncident> {
        self.incidents.of_process(&self.hello.boot_id, process)
    }

    fn forget_ended(&mut self) {
        let Some(now) = self.ended.last().map(|newest| newest.mono) else {
            return;
        };
        self.ended.retain(|ended| now.since(ended.mono) < DAY);
        let worth_of = |ended: &Arc<Ended>| {
            let peak = ended.exit.peak_vram.get().unwrap_or_default();
            worth(peak, now.since(ended.mono))
        };
        while self.ended.len() > MAX_ENDED {
            let least = (0..self.ended.len())
                .min_by(|a, b| worth_of(&self.ended[*a]).total_cmp(&worth_of(&self.ended[*b])));
            least.map(|at| self.ended.remove(at));
        }
    }

    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
        if paused {
            self.ahead.get_or_insert_with(|| self.history.clone());
        } else {
            if let Some(ahead) = self.ahead.take() {
                self.history = ahead;
            }
            self.show_newest();
        }
    }

    fn show_newest(&mut self) {
        self.frame = Arc::clone(&self.newest);
        self.arrange();
    }

    /// # Errors
    /// With what is wrong with the text; the filter before stays in force.
    pub fn set_filter(&mut self, text: &str) -> Result<(), FilterError> {
        let parsed = Filter::parse(text);
        let wrong = parsed.as_ref().err().cloned();
        self.filter = match parsed {
            Ok(filter) => filter,
            Err(wrong) => std::mem::take(&mut self.filter).without(&wrong),
        };
        self.arrange();
        wrong.map_or(Ok(()), Err)
    }

    /// One that was understood before; the empty one shows everything.
    pub fn use_filter(&mut self, filter: Filter) {
        self.filter = filter;
        self.arrange();
    }

    pub fn set_sort(&mut self, sort: Option<usize>, inverted: bool) {
        (self.sort, self.inverted) = (sort, inverted);
        self.arrange();
    }

    pub fn set_grouping(&mut self, grouping: Grouping) {
        self.grouping = grouping;
        self.arrange();
    }

    /// Hides the processes of a group, or shows them again.
    pub fn fold(&mut self, title: &str) {
        if !self.folded.remove(title) {
            self.folded.insert(title.to_owned());
        }
        self.arrange();
    }

    /// The row that a line of the table shows; none for a group.
    pub fn row_of_line(&self, line: usize) -> Option<&ProcessRow> {
        self.rows.get(self.lines.get(line)?.row()?)
    }

    /// Those that ran out of a GPU's memory and ended of it, as their incidents say.
    fn name_ooms(&mut self) {
        let fatal = self.incidents.of_boot(&self.hello.boot_id).filter(|known| {
            known.incident.severity == Severity::Fatal && known.incident.is_gpu_oom()
        });
        let ran_out: BTreeSet<ProcessKey> = fatal.filter_map(ListedIncident::process).collect();
        for ended in &mut self.ended {
            let oom = ran_out.contains(&ended.key);
            if ended.ran_out != oom {
                Arc::make_mut(ended).ran_out = oom;
            }
        }
    }

    /// Builds the rows anew: after a frame, a filter, an order.
    fn arrange(&mut self) {
        if !self.is_shown {
            return;
        }
        self.name_ooms();
        self.all_rows = ProcessRow::of_frame(&self.frame, &self.ended, self.hello.ticks_per_second);
        for row in &mut self.all_rows {
            let worst = row.pool().and_then(|pool| {
                let watch = self.watches.get(&(pool.process, pool.ordinal))?;
                Some(watch.notes().first()?.kind)
            });
            row.warn(worst);
        }
        self.tags.follow(&self.all_rows);
        self.all_rows.sort_by_cached_key(ProcessRow::natural_order);
        let mut rows = self.all_rows.clone();
        if !self.filter.is_empty() {
            rows.retain(|row| self.filter.matches(row, self.hello.uid));
        }
        self.hidden = self.all_rows.len() - rows.len();
        if let Some(sort) = self
            .sort
            .and_then(|i| PROCESS_COLUMNS.get(i)?.sort.as_ref())
        {
            let mut keyed: Vec<_> = rows
                .into_iter()
                .map(|row| ((sort.key)(&row), row))
                .collect();
            // What has ended stays below, whatever the order: its figures are of another moment.
            keyed.sort_by(|(a, x), (b, y)| {
                let ended = x.ended().is_some().cmp(&y.ended().is_some());
                ended.then_with(|| a.compare(b, sort.first, self.inverted))
            });
            rows = keyed.into_iter().map(|(_, row)| row).collect();
        }
        self.lines = groups::lines(&rows, self.grouping, &self.folded);
        self.rows = rows;
    }

    /// What the charts show; `ended` is when what they are about ended, if it did: they end there too.
    pub fn time_axis(&self, ended: Option<Mono>) -> TimeAxis {
        let now = self.frame.mono;
        let length = self.stretch.length(now);
        let end = self.stretch.end().or(ended).filter(|end| *end < now);
        TimeAxis {
            end: end.unwrap_or(now),
            length,
            past: end.map(|end| AxisEnd {
                time: self.clock_of(end),
                ago: now.since(end),
            }),
        }
    }

    /// What a clock showed at a moment, if it was not set since.
    fn clock_of(&self, moment: Mono) -> UnixMillis {
        let back = i64::try_from(self.frame.mono.since(moment).0).unwrap_or(i64::MAX);
        UnixMillis(self.frame.time.0.saturating_sub(back))
    }

    /// The moment before which nothing is known or kept.
    pub fn oldest(&self) -> Mono {
        // A recording may begin in another boot, whose clock is not this one's.
        let began = self.recording.as_ref().map(|r| r.position.start);
        let began = began.filter(|began| *began <= self.frame.mono);
        let known = began.or(self.stretch.since());
        let day_ago = Mono(self.frame.mono.0.saturating_sub(DAY.0));
        known.unwrap_or(self.frame.mono).max(day_ago)
    }

    /// Scrolls the charts, from `from` when they end there without having been scrolled.
    pub fn scroll(&mut self, way: ScrollDirection, from: Option<Mono>) {
        let (now, oldest) = (self.frame.mono, self.oldest());
        if !self.stretch.scroll(way, from, now, oldest) && way == ScrollDirection::Back {
            let clock = self.theme.clock(self.clock_of(oldest), "%H:%M:%S");
            self.message = Some(format!("nothing is known before {clock}"));
        }
    }

    /// The moment before which a recording is to tell more.
    pub fn wants_before(&self) -> Option<Mono> {
        self.recording.as_ref()?;
        let (now, oldest) = (self.frame.mono, self.oldest());
        self.stretch.wants_before(now, oldest)
    }
}

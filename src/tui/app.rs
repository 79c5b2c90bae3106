//! Everything that screens read: the newest frame, the history, what has ended, and how the user wants it shown.
//!
//! `update` takes one [`Update`] and draws nothing; screens borrow the result and change nothing. That is the whole
//! contract, and why a recording and a live host look the same here.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::columns::PROCESS_COLUMNS;
use super::density::Density;
use super::filter::{Filter, FilterError};
use super::groups::{self, Grouping, Line};
use super::keymap::Keymap;
use super::pools;
use super::rows::{Ended, ProcessRow};
use super::signal_menu::outcome_words;
use super::tags::Tags;
use super::theme::Theme;
use super::widgets::table::Hidden;
use crate::allocator::warnings::{Note, Sample, Watch};
use crate::model::event::Event;
use crate::model::frame::Frame;
use crate::model::history::History;
use crate::model::host::Hello;
use crate::model::log::LogView;
use crate::model::pool::PoolMap;
use crate::model::process::{ProcessDetail, ProcessKey};
use crate::model::reading::Missing;
use crate::model::stack::{PythonStack, StackWhy};
use crate::model::units::{Millis, Mono};
use crate::source::{Position, Update};

/// Rows of ended processes that are kept; older ones go.
const MOST_ENDED: usize = 100;

/// Lengths of charts, shortest first.
pub const ZOOMS: &[Millis] = &[
    Millis(60_000),
    Millis(300_000),
    Millis(600_000),
    Millis(1_800_000),
    Millis(3_600_000),
    Millis(21_600_000),
];

/// The samples of a pool that is read no more go after this long.
const WATCH_KEPT: Millis = Millis(60_000);

/// Python stacks that are kept; older ones go.
const MOST_STACKS: usize = 100;

type TakenStack = Arc<Result<PythonStack, Missing>>;

/// Ten minutes.
const DEFAULT_ZOOM: usize = 2;

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
    pub lines: Vec<Line>,
    pub grouping: Grouping,
    /// Titles of groups that hide their processes.
    folded: BTreeSet<String>,
    pub hidden_columns: Hidden,
    /// How many rows the filter hides.
    pub hidden: usize,
    /// The last one that was understood.
    pub filter: Filter,
    pub tags: Tags,
    /// The terminal reports clicks and the wheel.
    pub mouse: bool,
    /// No signal may be sent: the user said so.
    pub readonly: bool,
    /// Index into the columns; `None` is the natural order.
    pub sort: Option<usize>,
    pub inverted: bool,
    /// The answer to the last request for detail.
    pub detail: Option<(ProcessKey, Box<Result<ProcessDetail, Missing>>)>,
    /// The newest map of the pool that a screen asked for; the screen looks whether it is still its own.
    pub map: Option<Arc<PoolMap>>,
    /// The newest log that a screen asked for; the screen looks whether it is still its own.
    pub log: Option<Arc<LogView>>,
    /// Python stacks, the newest first: of a process one for each thing they are taken for.
    stacks: Vec<(ProcessKey, TakenStack)>,
    /// The last minutes of every pool, for early warnings.
    watches: HashMap<(ProcessKey, u32), Watch>,
    /// Set while the source is a recording.
    pub recording: Option<Recording>,
    /// Live frames are held back while this is set; history goes on.
    pub paused: bool,
    /// Index into [`ZOOMS`] as the user chose it; without a choice charts grow with what is known.
    zoom: Option<usize>,
    /// When the oldest frame was taken that the charts can show.
    since: Option<Mono>,
    /// A sentence for the bottom line, until the next key.
    pub message: Option<String>,
    /// The source has ended; why, if it said.
    pub ended_source: Option<String>,
    newest: Arc<Frame>,
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
            mouse: true,
            readonly: false,
            sort: None,
            inverted: false,
            detail: None,
            map: None,
            log: None,
            stacks: Vec::new(),
            watches: HashMap::new(),
            recording,
            paused: false,
            zoom: None,
            since: None,
            message: None,
            ended_source: None,
            newest: Arc::default(),
        }
    }

    pub fn update(&mut self, update: Update) {
        match update {
            Update::Hello(hello) => self.take_hello(hello),
            Update::Frame(frame) => self.take_frame(frame),
            Update::Event(event) => self.take_event(&event),
            Update::Detail(key, detail) => self.detail = Some((key, detail)),
            Update::Map(map) => self.map = Some(map),
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
            Update::Jump(summaries) => {
                self.map = None;
                self.stacks.clear();
                self.watches.clear();
                self.forget_history();
                self.ended.clear();
                self.since = summaries.first().map(|summary| summary.start);
                summaries
                    .iter()
                    .for_each(|summary| self.history.push_summary(summary));
            }
            Update::Position(position) => {
                if let Some(recording) = &mut self.recording {
                    recording.position = position;
                }
            }
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
            self.map = None;
            self.stacks.clear();
        }
        self.hello = hello;
    }

    fn forget_history(&mut self) {
        (self.history, self.ahead) = (History::default(), None);
    }

    fn take_frame(&mut self, frame: Arc<Frame>) {
        self.ahead
            .as_mut()
            .unwrap_or(&mut self.history)
            .push(&frame);
        self.watch_pools(&frame);
        self.since = Some(self.since.unwrap_or(frame.mono).min(frame.mono));
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
                .last()
                .is_some_and(|last| frame.mono.since(last.at) < WATCH_KEPT)
        });
    }

    /// Early warnings of a pool, the worst first.
    pub fn pool_notes(&self, process: ProcessKey, ordinal: u32) -> Vec<Note> {
        self.watches
            .get(&(process, ordinal))
            .map(Watch::notes)
            .unwrap_or_default()
    }

    fn take_stack(&mut self, process: ProcessKey, stack: TakenStack) {
        // The reason why there is none answers a request.
        let why = |stack: &TakenStack| (**stack).as_ref().map_or(StackWhy::Request, |s| s.why);
        self.stacks
            .retain(|(key, old)| *key != process || why(old) != why(&stack));
        self.stacks.insert(0, (process, stack));
        self.stacks.truncate(MOST_STACKS);
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
            self.ended.push(Arc::new(ended));
            if self.ended.len() > MOST_ENDED {
                self.ended.remove(0);
            }
            self.arrange();
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

    /// Builds the rows anew: after a frame, a filter, an order.
    fn arrange(&mut self) {
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

    pub fn chart_length(&self) -> Millis {
        ZOOMS[self.zoom.unwrap_or_else(|| self.natural_zoom())]
    }

    /// The shortest that holds all there is, up to [`DEFAULT_ZOOM`].
    fn natural_zoom(&self) -> usize {
        let known = self
            .since
            .map_or(Millis(0), |since| self.frame.mono.since(since));
        ZOOMS[..DEFAULT_ZOOM]
            .iter()
            .position(|zoom| *zoom > known)
            .unwrap_or(DEFAULT_ZOOM)
    }

    /// One step longer (1) or shorter (-1).
    pub fn zoom_by(&mut self, step: isize) {
        let now = self.zoom.unwrap_or_else(|| self.natural_zoom());
        self.zoom = Some(now.saturating_add_signed(step).min(ZOOMS.len() - 1));
    }
}

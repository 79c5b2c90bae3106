//! Latest state of each host, and the metrics page generated from these states.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gputop_explain::ranks::{JobReport, JobWatch, RankObservation};
use gputop_model::newest::Newest;
use gputop_model::process_group::GroupArrivals;
use gputop_model::protocol::Update;
use gputop_model::protocol::stream::Source;
use gputop_model::{Frame, Gpu, IncidentKey, Link, Millis, PhaseWindow, ProcessKey, Record};
use hyper::body::Bytes;
use tokio::sync::watch;

use super::super::dashboard::why_no_gpus;
use crate::cli::print::say;
use crate::export::metrics::{self, Format, HostMetrics, HostState, IncidentCount, Options};
use crate::incident::{WatchResult, Watcher};

/// Maximum number of recent incidents to remember. A remembered incident is not counted again when its diagnosis is
/// revised.
const MAX_INCIDENTS: usize = 256;
const MAX_INCIDENT_BYTES: usize = 1 << 20;
/// Maximum number of error cards with a counter, which is more than the catalogue contains.
const MAX_CARDS: usize = 512;
/// Number of frames in a complete sample. Rates require two frames.
const COMPLETE_FRAMES: u64 = 2;
/// Number of frames after which a sample is complete even if the host does not send all values.
const MAX_FRAMES: u64 = 6;

/// Age from which on a window no longer describes a process.
const MAX_PHASES_AGE: Millis = Millis(30_000);
/// Minimum number of samples for shares.
const MIN_SAMPLES: u32 = 20;

#[derive(Debug)]
pub struct HostStatus {
    frame: Option<Arc<Frame>>,
    ranks: JobWatch,
    jobs: Vec<JobReport>,
    arrivals: Arc<Vec<GroupArrivals>>,
    /// Newest window of each process.
    phases: BTreeMap<ProcessKey, Arc<PhaseWindow>>,
    received: Option<Instant>,
    frames: u64,
    /// Number of frames and incidents received.
    updates: u64,
    is_disconnected: bool,
    incidents: Vec<IncidentCount>,
    counted: Newest<IncidentKey>,
}

impl Default for HostStatus {
    fn default() -> Self {
        Self {
            frame: None,
            ranks: JobWatch::default(),
            jobs: Vec::new(),
            arrivals: Arc::default(),
            phases: BTreeMap::new(),
            received: None,
            frames: 0,
            updates: 0,
            is_disconnected: false,
            incidents: Vec::new(),
            counted: Newest::new(MAX_INCIDENTS, MAX_INCIDENT_BYTES),
        }
    }
}

impl HostStatus {
    fn state(&self) -> HostState {
        let Some((frame, received)) = self.frame.as_deref().zip(self.received) else {
            return if self.is_disconnected { HostState::Disconnected } else { HostState::Waiting };
        };
        // Wait for several intervals, because a busy host may skip frames.
        let limit = Duration::from_millis(frame.interval.0.saturating_mul(3) + 2_000);
        if self.is_disconnected {
            HostState::Disconnected
        } else if received.elapsed() > limit {
            HostState::Stale
        } else if why_no_gpus(frame).is_some() {
            let has_driver = frame.driver.as_ref().is_some_and(|d| d.version.value().is_some());
            if has_driver { HostState::NoGpus } else { HostState::NoDriver }
        } else if frame.gpus.is_empty() {
            HostState::Waiting
        } else {
            HostState::Up
        }
    }

    fn gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.frame.iter().flat_map(|frame| &frame.gpus)
    }

    fn is_complete(&self) -> bool {
        self.gpus().all(|gpu| gpu.is_complete() && !gpu.awaits_utilization())
    }

    fn update(&mut self, update: &Update) -> bool {
        match update {
            Update::Frame(frame) => {
                self.frame = Some(Arc::clone(frame));
                if !frame.ranks.is_empty() || !self.jobs.is_empty() {
                    let ranks = RankObservation::of_frame("", frame, std::iter::empty());
                    self.jobs = self.ranks.observe(frame.mono, &ranks);
                }
                self.phases.retain(|_, window| frame.mono.since(window.at) < MAX_PHASES_AGE);
                self.received = Some(Instant::now());
                self.frames += 1;
                self.updates += 1;
                self.is_disconnected = false;
            }
            Update::Phases(process, window) => {
                if let Ok(window) = &**window {
                    self.phases.insert(*process, Arc::new(window.clone()));
                }
            }
            Update::Arrivals(groups) => self.arrivals = Arc::clone(groups),
            Update::Link(Link::Lost { .. }) => self.is_disconnected = true,
            Update::Link(Link::Up) => self.is_disconnected = false,
            _ => return false,
        }
        true
    }

    /// Counts an incident under the card of its first diagnosis, so that no counter decreases if the diagnosis is
    /// revised.
    fn count(&mut self, record: &Record) -> bool {
        let (key, incident) = (&record.key, &record.incident);
        if self.counted.iter().any(|counted| counted.is_same(key)) {
            return false;
        }
        self.updates += 1;
        self.counted.push(key.clone());
        let severity = incident.severity.word();
        let last = key.time.0 as f64 / 1_000.0;
        let is_same =
            |row: &&mut IncidentCount| row.card == incident.id && row.severity == severity;
        if let Some(row) = self.incidents.iter_mut().find(is_same) {
            row.count += 1;
            row.last = row.last.max(last);
        } else if self.incidents.len() < MAX_CARDS {
            self.incidents.push(IncidentCount {
                card: incident.id.clone(),
                severity,
                count: 1,
                last,
            });
        }
        true
    }
}

/// Stores the updates of a host until gputop stops. Returns the host's watcher, which may still be saving incidents.
pub async fn follow(
    name: Option<String>,
    mut source: Source,
    mut watcher: Watcher,
    status: watch::Sender<HostStatus>,
    mut stopped: watch::Receiver<()>,
) -> Watcher {
    let watched = watcher.backlog();
    let prefix = name.map_or_else(String::new, |name| format!("{name}: "));
    let mut reported = None;
    loop {
        tokio::select! {
            update = source.next_for(&watched) => match update {
                Some(update) => {
                    watcher.see(&update);
                    if let Update::Frame(frame) = &update {
                        let why = why_no_gpus(frame);
                        if let Some(why) = why.as_ref().filter(|_| why != reported) {
                            say(&format!("gputop: {prefix}{why}\n"));
                        }
                        reported = why;
                    }
                    status.send_if_modified(|status| status.update(&update));
                }
                None => {
                    status.send_modify(|status| status.is_disconnected = true);
                    let _ = stopped.changed().await;
                    return watcher;
                }
            },
            found = watcher.next() => {
                report(&found);
                if let WatchResult::Incident(record) = found {
                    status.send_if_modified(|status| status.count(&record));
                }
            }
            _ = stopped.changed() => return watcher,
        }
    }
}

/// Value of the label `host`, and the latest state of that host.
type ServedHost = (Option<String>, watch::Receiver<HostStatus>);

/// Metrics page. It is formatted once for each change of state and shared by all scrapes.
pub struct Page {
    hosts: Vec<ServedHost>,
    options: Options,
    cache: Mutex<Cache>,
}

/// Formatted metrics pages. `shown` holds the update count and the state of each host at the time of formatting.
#[derive(Default)]
struct Cache {
    shown: Vec<(u64, HostState)>,
    open_metrics: Option<Bytes>,
    text: Option<Bytes>,
}

impl Page {
    pub fn new(hosts: Vec<ServedHost>, options: Options) -> Self {
        Self { hosts, options, cache: Mutex::default() }
    }

    pub fn text(&self, format: Format) -> Bytes {
        let hosts = self.hosts.iter().map(|(_, latest)| latest.borrow());
        let shown: Vec<(u64, HostState)> =
            hosts.map(|status| (status.updates, status.state())).collect();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.shown != shown {
            *cache = Cache { shown, ..Cache::default() };
        }
        let text = match format {
            Format::OpenMetrics => &mut cache.open_metrics,
            Format::Text => &mut cache.text,
        };
        let hosts = || self.hosts.iter().map(host_metrics).collect();
        text.get_or_insert_with(|| metrics::text(hosts(), &self.options, format).into()).clone()
    }

    /// Waits until each host has sent a complete sample or cannot be reached. Returns true if at least one GPU has
    /// answered.
    pub async fn wait_complete(&self, timeout: Duration) -> bool {
        let wait = async {
            for (_, latest) in &self.hosts {
                let mut latest = latest.clone();
                let is_complete = |status: &HostStatus| {
                    status.is_disconnected
                        || matches!(status.state(), HostState::NoGpus | HostState::NoDriver)
                        || status.frames >= COMPLETE_FRAMES
                            && status.state() == HostState::Up
                            && status.gpus().all(Gpu::has_answered)
                            && (status.is_complete() || status.frames >= MAX_FRAMES)
                };
                let _ = latest.wait_for(is_complete).await;
            }
        };
        let _ = tokio::time::timeout(timeout, wait).await;
        self.hosts.iter().any(|(_, latest)| {
            let status = latest.borrow();
            status.state() == HostState::Up && status.gpus().any(Gpu::has_answered)
        })
    }

    /// Returns true if a host has GPUs, none of which has answered.
    pub fn is_silent(&self) -> bool {
        self.hosts.iter().any(|(_, latest)| {
            let status = latest.borrow();
            status.state() == HostState::Up && !status.gpus().any(Gpu::has_answered)
        })
    }
}

fn host_metrics((name, latest): &ServedHost) -> HostMetrics {
    let status = latest.borrow();
    HostMetrics {
        name: name.clone(),
        state: status.state(),
        frame: status.frame.clone(),
        jobs: status.jobs.clone(),
        arrivals: Arc::clone(&status.arrivals),
        phases: status
            .phases
            .values()
            .filter(|one| one.samples() >= MIN_SAMPLES)
            .cloned()
            .collect(),
        incidents: status.incidents.clone(),
    }
}

/// Prints an error. Incidents are counted in the metrics.
pub(super) fn report(found: &WatchResult) {
    if let WatchResult::Error(why) = found {
        say(&format!("gputop: {why}\n"));
    }
}

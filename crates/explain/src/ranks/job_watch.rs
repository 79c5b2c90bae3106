//! Groups processes into jobs, and remembers what is needed from one look to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gputop_model::process::ProcessKey;
use gputop_model::units::Mono;

use super::constant_offset::OffsetWatch;
use super::decision::decide;
use super::job_report::{JobKey, JobReport, rows, stack_groups};
use super::job_view::JobView;
use super::observation::{ProcessStatus, RankObservation};
use super::rank_track::RankTrack;
use super::usual_interval::UsualInterval;

/// Watches all jobs of one or more hosts. Call [`JobWatch::observe`] about once a second, at least twice.
#[derive(Debug, Default)]
pub struct JobWatch {
    tracks: BTreeMap<TrackKey, RankTrack>,
    memories: BTreeMap<JobKey, JobMemory>,
}

type TrackKey = (Arc<str>, ProcessKey);

#[derive(Debug)]
struct JobMemory {
    interval: UsualInterval,
    offsets: OffsetWatch,
    /// Time of the last look at which a rank had called a collective.
    moved_at: Mono,
}

/// The processes of one job.
#[derive(Default)]
struct JobMembers<'a> {
    ranks: BTreeMap<u32, (ProcessKey, &'a RankTrack)>,
    /// True if two processes claim the same rank. They may be two jobs.
    is_ambiguous: bool,
    /// True if a process may belong to the job, and its rank is unknown.
    has_unread_processes: bool,
}

impl JobWatch {
    /// Returns a report for each job. `ranks` are all processes that may be ranks, at one time; `now` is a clock of the
    /// caller, which is not compared with any time in `ranks`.
    pub fn observe<'a>(
        &mut self,
        now: Mono,
        ranks: impl IntoIterator<Item = &'a RankObservation>,
    ) -> Vec<JobReport> {
        let mut seen = BTreeSet::new();
        for observation in ranks {
            let key = (observation.host.clone(), observation.reading.process);
            let new = || RankTrack::new(observation.host.clone());
            self.tracks.entry(key.clone()).or_insert_with(new).update(now, observation);
            seen.insert(key);
        }
        self.forget_missing(&seen);
        let jobs = jobs(&self.tracks);
        self.memories.retain(|key, _| jobs.contains_key(key));
        let reports = jobs.into_iter().map(|(key, members)| {
            let memory = self.memories.entry(key.clone()).or_insert_with(|| JobMemory {
                interval: UsualInterval::default(),
                offsets: OffsetWatch::default(),
                moved_at: now,
            });
            memory.report(now, key, &members)
        });
        reports.collect()
    }

    /// A process that is missing while its host is still observed has exited. If all processes of a host are missing,
    /// the host is no longer observed.
    fn forget_missing(&mut self, seen: &BTreeSet<TrackKey>) {
        let live = || self.tracks.iter().filter(|(key, _)| seen.contains(key));
        let hosts: BTreeSet<_> =
            live().map(|((host, _), track)| (host.clone(), job_key(track))).collect();
        let ranks: BTreeSet<_> = live().map(|(_, track)| (job_key(track), track.rank)).collect();
        self.tracks.retain(|key, track| {
            let job = job_key(track);
            let is_replaced = ranks.contains(&(job.clone(), track.rank));
            let is_known = !track.positions.is_empty() && hosts.contains(&(key.0.clone(), job));
            let is_seen = seen.contains(key);
            if !is_seen {
                track.vanish();
            }
            is_seen || (is_known && !is_replaced)
        });
    }
}

impl JobMemory {
    fn report(&mut self, now: Mono, job: JobKey, members: &JobMembers<'_>) -> JobReport {
        let tracks: BTreeMap<_, _> = members.ranks.iter().map(|(r, (_, t))| (*r, *t)).collect();
        let calls = tracks.values().map(|track| track.calls).max().unwrap_or(0);
        if calls > 0 {
            self.interval.add(calls, now.since(self.moved_at));
            self.moved_at = now;
        }
        let view = JobView::new(&tracks, members.has_unread_processes);
        let (mut verdicts, mut offsets) = (Vec::new(), Vec::new());
        if !members.is_ambiguous {
            verdicts = decide(&view, self.interval.median());
            offsets = self.offsets.observe(now, &view);
        }
        let process = |rank| members.ranks.get(&rank).map(|(key, _)| *key).unwrap_or_default();
        let ranks = rows(&view, &verdicts, process);
        let stacks = stack_groups(&view, &ranks);
        let world_size = tracks.values().filter_map(|track| track.world_size).max();
        let largest = view.groups.iter().map(|group| group.key.size).max();
        JobReport { job, world_size: world_size.or(largest), verdicts, offsets, ranks, stacks }
    }
}

/// Groups processes by the address of their store. Without one, all processes of a host are one job.
fn jobs(tracks: &BTreeMap<TrackKey, RankTrack>) -> BTreeMap<JobKey, JobMembers<'_>> {
    let mut jobs: BTreeMap<JobKey, JobMembers<'_>> = BTreeMap::new();
    let (members, others): (Vec<_>, Vec<_>) =
        tracks.iter().partition(|(_, track)| !track.positions.is_empty());
    for ((_, process), track) in members {
        if let Some(rank) = track.rank {
            jobs.entry(job_key(track)).or_default().add(rank, *process, track);
        }
    }
    for members in jobs.values_mut() {
        members.drop_earlier_runs();
    }
    for ((host, process), track) in others.into_iter().filter(|(_, track)| track.may_have_groups())
    {
        let key = job_key(track);
        for (job, members) in &mut jobs {
            let is_possible = if track.store.is_some() { *job == key } else { members.is_on(host) };
            if is_possible {
                members.add_unread(*process, track);
            }
        }
    }
    jobs
}

impl<'a> JobMembers<'a> {
    /// Adds a process. One that exists replaces one that has exited, and a later one an earlier one.
    fn add(&mut self, rank: u32, process: ProcessKey, track: &'a RankTrack) {
        let Some((other_process, other)) = self.ranks.get(&rank) else {
            self.ranks.insert(rank, (process, track));
            return;
        };
        self.is_ambiguous |= is_live(track) && is_live(other);
        if (is_live(track), process.start) > (is_live(other), other_process.start) {
            self.ranks.insert(rank, (process, track));
        }
    }

    fn add_unread(&mut self, process: ProcessKey, track: &'a RankTrack) {
        match track.rank {
            Some(rank) => {
                let known = self.ranks.get(&rank);
                if !known.is_some_and(|(_, known)| is_live(known)) {
                    self.ranks.insert(rank, (process, track));
                }
            }
            None => self.has_unread_processes = true,
        }
    }

    fn is_on(&self, host: &Arc<str>) -> bool {
        self.ranks.values().any(|(_, track)| track.host == *host)
    }

    /// Drops exited processes if all others on their host started later: the job was restarted.
    fn drop_earlier_runs(&mut self) {
        let mut oldest: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for (process, track) in self.ranks.values().filter(|(_, track)| is_live(track)) {
            let started = process.start.since_boot().0;
            let oldest = oldest.entry(track.host.clone()).or_insert(started);
            *oldest = started.min(*oldest);
        }
        self.ranks.retain(|_, (_, track)| {
            is_live(track) || oldest.get(&track.host).is_none_or(|started| *started <= track.at.0)
        });
    }
}

fn is_live(track: &RankTrack) -> bool {
    !matches!(track.status, ProcessStatus::Exited(_))
}

fn job_key(track: &RankTrack) -> JobKey {
    let store = track.store.clone();
    let is_local = store.as_deref().is_none_or(is_loopback);
    JobKey { store, host: is_local.then(|| track.host.clone()) }
}

/// Returns true if the address means another store on every host.
fn is_loopback(store: &str) -> bool {
    let address = store.rsplit_once(':').map_or(store, |(address, _)| address);
    let address = address.trim_matches(['[', ']']);
    matches!(address, "localhost" | "::1" | "0.0.0.0" | "") || address.starts_with("127.")
}

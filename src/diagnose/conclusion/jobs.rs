//! Decides which logs in a directory belong to one job. A failure in one log can cause an error in another log only
//! within the same job. The directory may also contain logs of unrelated jobs.

use std::collections::BTreeSet;

use super::build::standard_time;
use super::grouping::{REPORTS, comes_late};
use crate::diagnose::catalogue::Catalogue;
use crate::diagnose::log::{LogFindings, Sighting};

/// Maximum time between the last failures of a job's ranks. By default, NCCL's watchdog waits at most 30 minutes.
const MAX_MINUTES_APART: i64 = 40;

/// Returns the logs grouped by job, in their original order.
#[must_use]
pub fn jobs(catalogue: &Catalogue, logs: Vec<LogFindings>) -> Vec<Vec<LogFindings>> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut reports = Vec::new();
    for log in logs {
        if is_only_report(catalogue, &log) {
            reports.push(log);
            continue;
        }
        match jobs.iter_mut().find(|job| job.includes(&log)) {
            Some(job) => job.add(log),
            None => jobs.push(Job::of(log)),
        }
    }
    // Add the launcher's log, which reports worker failures, to the job in the same directory, if that directory has
    // only one job.
    for log in reports {
        let folder = folder(&log.file);
        let mut beside = jobs.iter_mut().filter(|job| {
            let known = job.logs.first().map_or("", |known| &known.file);
            known.starts_with(folder) && job.is_near(&log)
        });
        match (beside.next(), beside.next()) {
            (Some(job), None) => job.logs.push(log),
            _ => jobs.push(Job::of(log)),
        }
    }
    jobs.into_iter().map(|job| job.logs).collect()
}

struct Job {
    /// Log path without its numbers.
    key: String,
    ranks: BTreeSet<u32>,
    logs: Vec<LogFindings>,
}

impl Job {
    fn of(log: LogFindings) -> Self {
        Self { key: without_numbers(&log.file), ranks: ranks(&log), logs: vec![log] }
    }

    fn add(&mut self, log: LogFindings) {
        self.ranks.extend(ranks(&log));
        self.logs.push(log);
    }

    /// Returns true if the path of `log` differs from the job's log paths only in numbers, and its time is about the
    /// same. The log must also contain other ranks or be another output stream.
    fn includes(&self, log: &LogFindings) -> bool {
        let ranks = ranks(log);
        let is_second_stream = self.logs.iter().any(|known| {
            known.file != log.file && stream_path(&known.file) == stream_path(&log.file)
        });
        let is_further_rank =
            !ranks.is_empty() && !self.ranks.is_empty() && self.ranks.is_disjoint(&ranks);
        self.key == without_numbers(&log.file)
            && (is_second_stream || is_further_rank)
            && self.is_near(log)
    }

    fn is_near(&self, log: &LogFindings) -> bool {
        let times = (self.logs.iter().find_map(last_time), last_time(log));
        match times {
            (Some(a), Some(b)) => (a - b).abs() <= MAX_MINUTES_APART * 60,
            _ => true,
        }
    }
}

/// Returns true if the log contains failures, and each of them only reports that another process failed.
fn is_only_report(catalogue: &Catalogue, log: &LogFindings) -> bool {
    let is_report = |sighting: &Sighting| {
        let card = &catalogue.cards[sighting.card];
        REPORTS.contains(&card.family.as_str()) && comes_late(card)
    };
    log.rank.is_none() && !log.sightings.is_empty() && log.sightings.iter().all(is_report)
}

/// Returns the rank in a log's file name. If it contains none, returns the ranks in the log's lines.
fn ranks(log: &LogFindings) -> BTreeSet<u32> {
    match log.rank {
        Some(rank) => BTreeSet::from([rank]),
        None => log.sightings.iter().filter_map(|s| s.rank).collect(),
    }
}

/// Returns the time of the log's last failure in seconds since 1970.
fn last_time(log: &LogFindings) -> Option<i64> {
    let mut sightings = log.sightings.iter().rev();
    sightings.find_map(|sighting| {
        let time = standard_time(sighting.time.as_deref()?)?;
        let time: jiff::civil::DateTime = time.trim_end_matches('Z').parse().ok()?;
        Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
    })
}

/// Returns a log's path without digits. A rank's standard output and standard error have the same key.
fn without_numbers(file: &str) -> String {
    let file = stream_path(file);
    file.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn stream_path(file: &str) -> String {
    file.replace("stdout", "std")
        .replace("stderr", "std")
        .replace(".err", ".std")
        .replace(".out", ".std")
}

fn folder(file: &str) -> &str {
    file.rfind('/').map_or("", |at| &file[..=at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::log::LogReader;

    const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free.\n";

    fn grouped(files: &[(&str, &str)]) -> Vec<usize> {
        let catalogue = Catalogue::embedded();
        let logs = files.iter().map(|(name, text)| {
            let mut reader = LogReader::new(catalogue, name);
            reader.push(text.as_bytes());
            reader.finish()
        });
        let jobs = jobs(catalogue, logs.collect());
        jobs.iter().map(Vec::len).collect()
    }

    #[test]
    fn only_ranks_of_one_job_are_diagnosed_together() {
        let table = "Root Cause (first observed failure):\n[0]:\n  time : x\n  host : h\n  rank : 1 (local_rank: 1)\n  exitcode : 1 (pid: 7)\n";
        assert_eq!(grouped(&[("d/rank_0.log", OOM), ("d/rank_1.log", OOM)]), [2]);
        assert_eq!(grouped(&[("d/1.log", OOM), ("d/2.log", OOM)]), [1, 1]);
        assert_eq!(
            grouped(&[("d/rank_0.log", OOM), ("d/rank_1.log", OOM), ("d/run.log", table)]),
            [3]
        );
        assert_eq!(
            grouped(&[
                ("r/attempt_0/1/stderr.log", OOM),
                ("r/attempt_0/1/stdout.log", OOM),
                ("r/attempt_0/2/stderr.log", OOM)
            ]),
            [3]
        );
        let at = |time: &str| format!("{time} {OOM}");
        let (noon, night) = (at("2026-01-01T12:00:00Z"), at("2026-01-01T23:00:00Z"));
        assert_eq!(grouped(&[("d/rank_0.log", &noon), ("d/rank_1.log", &night)]), [1, 1]);
    }
}

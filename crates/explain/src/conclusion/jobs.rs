//! Decides which logs in a directory belong to one job. A failure in one log can cause an error in another log only
//! within the same job. The directory may also contain logs of unrelated jobs.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use super::grouping::{REPORTS, comes_late};
use super::standard_time::standard_time;
use crate::catalogue::Catalogue;
use crate::log::{LogFindings, Sighting};

/// Maximum time between the last failures of a job's ranks. By default, NCCL's watchdog waits at most 30 minutes.
const MAX_MINUTES_APART: i64 = 40;

/// Maximum difference between local times, in minutes.
const MAX_ZONES_APART: i64 = 26 * 60;

/// Returns the logs grouped by job. The job that failed last comes first if the times are known.
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
    let mut jobs: Vec<_> = jobs.into_iter().map(|job| job.logs).collect();
    last_first(&mut jobs);
    jobs
}

/// Sorts jobs by the times in their logs, or else by the times at which their logs were last written.
fn last_first(jobs: &mut [Vec<LogFindings>]) {
    /// Logs that were all written within this time have probably been copied, and their order is unknown.
    const MIN_SPREAD: Duration = Duration::from_mins(1);
    let failed = |job: &Vec<LogFindings>| {
        job.iter().filter_map(last_time).filter(|time| time.has_year).map(|time| time.time).max()
    };
    if jobs.iter().all(|job| failed(job).is_some()) {
        return jobs.sort_by_cached_key(|job| Reverse(failed(job)));
    }
    let written = |job: &Vec<LogFindings>| job.iter().filter_map(|log| log.modified).max();
    let times = jobs.iter().map(written).collect::<Option<Vec<_>>>().unwrap_or_default();
    if let (Some(first), Some(last)) = (times.iter().min(), times.iter().max())
        && last.duration_since(*first).is_ok_and(|spread| spread > MIN_SPREAD)
    {
        jobs.sort_by_key(|job| Reverse(written(job)));
    }
}

struct Job {
    ranks: BTreeSet<u32>,
    logs: Vec<LogFindings>,
}

impl Job {
    fn of(log: LogFindings) -> Self {
        Self { ranks: ranks(&log), logs: vec![log] }
    }

    fn add(&mut self, log: LogFindings) {
        self.ranks.extend(ranks(&log));
        self.logs.push(log);
    }

    /// Returns true if the path of `log` differs from the job's log paths only in the rank, or is that of another
    /// output stream, and the time of the log is about the same.
    fn includes(&self, log: &LogFindings) -> bool {
        let is_second_stream = self.logs.iter().any(|known| {
            known.file != log.file && stream_path(&known.file) == stream_path(&log.file)
        });
        let ranks = ranks(log);
        let is_further_rank = || {
            !ranks.is_empty()
                && self.ranks.is_disjoint(&ranks)
                && self.logs.iter().any(|known| is_other_rank(known, log))
        };
        (is_second_stream || is_further_rank()) && self.is_near(log)
    }

    fn is_near(&self, log: &LogFindings) -> bool {
        match (self.logs.iter().find_map(last_time), last_time(log)) {
            (Some(a), Some(b)) => a.is_near(b),
            _ => true,
        }
    }
}

/// Returns true if the paths of two logs differ only in the rank. The numbers in `job1/rank0.log` and `job2/rank1.log`
/// differ in two places, and the number in `slurm-7.out` is that of a job.
fn is_other_rank(a: &LogFindings, b: &LogFindings) -> bool {
    let (one, two) = (path_parts(&a.file), path_parts(&b.file));
    let mut differing = one.iter().zip(&two).filter(|(one, two)| one != two);
    let Some((mut one_rank, mut two_rank)) = differing.next() else {
        return false;
    };
    // The directory of a node may differ too: `node0/rank0.log` and `node1/rank8.log`.
    let is_rank_only = match differing.next() {
        None => true,
        Some(rank) => {
            let is_node = is_node(&one, one_rank) && differing.next().is_none();
            (one_rank, two_rank) = rank;
            is_node
        }
    };
    let is_job = one.iter().any(|part| part.ends_with("slurm-")) && one.len() <= 3;
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    is_rank_only
        && !is_job
        && one.len() == two.len()
        && is_number(one_rank)
        && is_number(two_rank)
        && [(a, one_rank), (b, two_rank)].iter().all(|(log, number)| names_rank(log, number))
}

/// Returns true if the number in the path is the rank of the log's process, and not a job or a date.
fn names_rank(log: &LogFindings, number: &str) -> bool {
    let number = number.parse().ok();
    match log.rank {
        Some(rank) => Some(rank) == number,
        None => log.sightings.iter().any(|s| s.rank.is_some() && s.rank == number),
    }
}

/// Returns true if `number`, a part of a path, follows a name for machines.
fn is_node(parts: &[String], number: &String) -> bool {
    const NODES: [&str; 5] = ["node", "host", "machine", "server", "worker"];
    let at = parts.iter().position(|part| std::ptr::eq(part, number));
    at.and_then(|at| parts.get(at.checked_sub(1)?)).is_some_and(|name| {
        let name = name.trim_end_matches(['-', '_', '.']).to_ascii_lowercase();
        NODES.iter().any(|node| name.ends_with(node))
    })
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

/// Returns the time of the log's last failure.
fn last_time(log: &LogFindings) -> Option<LogTime> {
    log.sightings.iter().rev().find_map(|sighting| LogTime::of(sighting.time.as_deref()?))
}

/// Year of times that are written without a year. It is a leap year.
const UNKNOWN_YEAR: i16 = 1972;

/// Time of a log line. Some formats have no year, or are in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogTime {
    has_year: bool,
    time: jiff::civil::DateTime,
}

impl LogTime {
    fn of(written: &str) -> Option<Self> {
        if let Some(time) = standard_time(written) {
            return Some(Self { has_year: true, time: time.trim_end_matches('Z').parse().ok()? });
        }
        let time = glog_time(written).or_else(|| syslog_time(written))?;
        Some(Self { has_year: false, time })
    }

    /// Returns true if both times may belong to the last failures of one job.
    fn is_near(self, other: Self) -> bool {
        // Times in different formats may be in different time zones.
        let minutes = if self.has_year == other.has_year {
            MAX_MINUTES_APART
        } else {
            MAX_MINUTES_APART + MAX_ZONES_APART
        };
        let seconds = |time: Self| {
            let year =
                if self.has_year && other.has_year { time.time.year() } else { UNKNOWN_YEAR };
            let time = time.time.with().year(year).build().ok()?;
            Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
        };
        match (seconds(self), seconds(other)) {
            (Some(a), Some(b)) => (a - b).abs() <= minutes * 60,
            _ => true,
        }
    }
}

/// Parses a time in glog format: `1120 10:00:00.123456`.
fn glog_time(written: &str) -> Option<jiff::civil::DateTime> {
    let (day, time) = written.split_once(' ')?;
    let (month, day) = (day.get(..2)?, day.get(2..)?);
    format!("{UNKNOWN_YEAR}-{month}-{day}T{time}").parse().ok()
}

/// Parses a time in syslog format: `Nov 20 10:00:00`.
fn syslog_time(written: &str) -> Option<jiff::civil::DateTime> {
    let written = format!("{UNKNOWN_YEAR} {written}");
    jiff::civil::DateTime::strptime("%Y %b %d %H:%M:%S", written).ok()
}

/// Returns the parts of a path, which are alternately text and numbers. A rank's standard output and standard error
/// have the same parts.
fn path_parts(file: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for c in stream_path(file).chars() {
        match parts.last_mut() {
            Some(part) if part.ends_with(|b: char| b.is_ascii_digit() == c.is_ascii_digit()) => {
                part.push(c);
            }
            _ => parts.push(c.to_string()),
        }
    }
    parts
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
    use crate::log::LogReader;

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
    fn logs_of_different_jobs_are_not_diagnosed_together() {
        let at = |time: &str, rank: u32| format!("[rank{rank}]: {time} {OOM}");
        let (one, two) = (at("", 0), at("", 1));
        assert_eq!(grouped(&[("job1/rank0.log", &one), ("job2/rank1.log", &two)]), [1, 1]);
        assert_eq!(grouped(&[("d/slurm-1.out", &one), ("d/slurm-2.out", &two)]), [1, 1]);
        assert_eq!(grouped(&[("d/log.0.txt", &one), ("d/log.1.txt", &two)]), [2]);
        assert_eq!(grouped(&[("node0/rank0.log", &one), ("node1/rank1.log", &two)]), [2]);
        assert_eq!(grouped(&[("job_a/0.log", &one), ("job_b/1.log", &two)]), [1, 1]);
        let watchdog = |time: &str, rank: u32| {
            format!(
                "[rank{rank}]:[E{time} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600045 milliseconds before timing out.\n"
            )
        };
        let monday = watchdog("1120 10:00:00.123", 0);
        let tuesday = watchdog("1121 10:00:00.123", 1);
        let soon = watchdog("1120 10:20:00.123", 1);
        assert_eq!(grouped(&[("rank0.log", &monday), ("rank1.log", &tuesday)]), [1, 1]);
        assert_eq!(grouped(&[("rank0.log", &monday), ("rank1.log", &soon)]), [2]);
    }

    #[test]
    fn compares_times_in_different_formats() {
        let is_near = |a: &str, b: &str| {
            LogTime::of(a).expect("a time").is_near(LogTime::of(b).expect("a time"))
        };
        assert!(is_near("Nov 20 12:00:00", "1120 12:00:30.5"));
        assert!(!is_near("Nov 20 12:00:00", "Nov 20 22:00:00"));
        // The times may be in different zones.
        assert!(is_near("1120 12:00:30.5", "2026-11-20T19:00:00Z"));
        assert!(!is_near("1120 12:00:30.5", "2026-11-23T12:00:00Z"));
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

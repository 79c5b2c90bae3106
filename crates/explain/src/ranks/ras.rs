//! Compares two answers of NCCL's RAS subsystem.
//!
//! Ranks of a healthy job differ most of the time by the collective that is under way. So nothing is said about a
//! communicator in which any count moved between the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use gputop_model::bounded_json;
use gputop_model::ras::{RasDifference, RasDifferenceKind, RasRank, RasReport};
use gputop_model::text::visible;
use gputop_model::units::Millis;
use serde::Deserialize;

use super::sentence::RankList;

/// Maximum memory of an answer. That of 4,096 ranks in ten communicators takes 20 MB of JSON.
const MAX_ANSWER_MEMORY: usize = 64 << 20;
const MAX_DIFFERENCES: usize = 64;
const MAX_NAME: usize = 64;
/// NCCL's code for a call that is under way, which is no error.
const IN_PROGRESS: i32 = 7;

/// NCCL's answer to `STATUS` in JSON, as of version 2.28.7.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct RasAnswer {
    nccl_version: String,
    communicators: Vec<Communicator>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct Communicator {
    hash: String,
    secondary_hash: String,
    size: u32,
    ranks: Vec<Rank>,
    missing_ranks: Vec<MissingRank>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct Rank {
    rank: u32,
    host: String,
    /// -1 if NCCL does not know it.
    pid: i64,
    status: Status,
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct Status {
    async_error: i32,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct MissingRank {
    rank: u32,
    host: String,
    pid: i64,
    status: MissingStatus,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct MissingStatus {
    unresponsive: bool,
    considered_dead: bool,
}

impl MissingStatus {
    fn kind(&self) -> Option<RasDifferenceKind> {
        if self.considered_dead {
            return Some(RasDifferenceKind::ConsideredDead);
        }
        self.unresponsive.then_some(RasDifferenceKind::Unresponsive)
    }
}

impl RasAnswer {
    pub fn read(json: &[u8]) -> serde_json::Result<Self> {
        bounded_json::read(json, MAX_ANSWER_MEMORY).map(|(answer, _)| answer)
    }

    /// Returns true if the answer is about the job of this process. `pid` is its PID in its own namespace.
    pub fn has_process(&self, pid: u32) -> bool {
        let mut ranks = self.communicators.iter().flat_map(|one| &one.ranks);
        ranks.any(|rank| rank.pid == i64::from(pid))
    }

    fn communicator(&self, like: &Communicator) -> Option<&Communicator> {
        let key = |one: &Communicator| (one.hash.clone(), one.secondary_hash.clone());
        self.communicators.iter().find(|one| key(one) == key(like))
    }

    /// Compares this answer with one that came later.
    pub fn compare(&self, later: &Self, apart: Millis) -> RasReport {
        let mut report = RasReport {
            nccl_version: visible(later.nccl_version.as_bytes(), MAX_NAME),
            communicators: number(later.communicators.len()),
            apart,
            ..RasReport::default()
        };
        let ranks = || later.communicators.iter().flat_map(|one| &one.ranks);
        let processes: BTreeSet<_> = ranks().map(|rank| (&rank.host, rank.pid)).collect();
        let hosts: BTreeSet<_> = ranks().map(|rank| &rank.host).collect();
        (report.processes, report.hosts) = (number(processes.len()), number(hosts.len()));
        for communicator in &later.communicators {
            let Some(before) = self.communicator(communicator) else { continue };
            communicator.add_missing(before, &mut report.differences);
            communicator.add_failed(before, &mut report.differences);
            match communicator.counts() == before.counts() {
                true => communicator.add_launched(&mut report.differences),
                false => report.moving += 1,
            }
        }
        report.differences.truncate(MAX_DIFFERENCES);
        report
    }
}

impl Communicator {
    fn counts(&self) -> BTreeMap<u32, &BTreeMap<String, u64>> {
        self.ranks.iter().map(|rank| (rank.rank, &rank.collective_counts)).collect()
    }

    fn difference(
        &self,
        mut ranks: Vec<RasRank>,
        kind: RasDifferenceKind,
    ) -> Option<RasDifference> {
        ranks.sort_by_key(|rank| rank.rank);
        (!ranks.is_empty()).then_some(RasDifference { size: self.size, ranks, kind })
    }

    fn add_missing(&self, before: &Self, differences: &mut Vec<RasDifference>) {
        for kind in [RasDifferenceKind::ConsideredDead, RasDifferenceKind::Unresponsive] {
            let is_kind = |one: &MissingRank| one.status.kind().as_ref() == Some(&kind);
            let was =
                |rank: u32| before.missing_ranks.iter().any(|one| one.rank == rank && is_kind(one));
            let ranks = self.missing_ranks.iter().filter(|one| is_kind(one) && was(one.rank));
            let ranks = ranks.map(|one| ras_rank(one.rank, &one.host, one.pid)).collect();
            differences.extend(self.difference(ranks, kind));
        }
    }

    fn add_failed(&self, before: &Self, differences: &mut Vec<RasDifference>) {
        let failed = |rank: &&Rank| ![0, IN_PROGRESS].contains(&rank.status.async_error);
        let mut by_error: BTreeMap<i32, Vec<RasRank>> = BTreeMap::new();
        for rank in self.ranks.iter().filter(failed) {
            let error = rank.status.async_error;
            let is_same = |one: &Rank| one.rank == rank.rank && one.status.async_error == error;
            if before.ranks.iter().any(is_same) {
                by_error.entry(error).or_default().push(rank.shown());
            }
        }
        for (error, ranks) in by_error {
            differences.extend(self.difference(ranks, RasDifferenceKind::Failed(error)));
        }
    }

    /// Adds the ranks that have launched another number of collectives than more than half of the ranks. Without such a
    /// majority, adds those that have launched the fewest.
    fn add_launched(&self, differences: &mut Vec<RasDifference>) {
        let operations: BTreeSet<&String> =
            self.ranks.iter().flat_map(|rank| rank.collective_counts.keys()).collect();
        for operation in operations {
            let mut by_count: BTreeMap<u64, Vec<RasRank>> = BTreeMap::new();
            for rank in &self.ranks {
                let count = rank.collective_counts.get(operation).copied().unwrap_or(0);
                by_count.entry(count).or_default().push(rank.shown());
            }
            if by_count.len() < 2 {
                continue;
            }
            let is_majority = |ranks: &Vec<RasRank>| ranks.len() * 2 > self.ranks.len();
            let usual = by_count.iter().find(|(_, ranks)| is_majority(ranks));
            let usual = usual.map(|(count, _)| *count);
            let odd = by_count.into_iter().filter(|(count, _)| Some(*count) != usual);
            for (count, ranks) in odd.take(if usual.is_some() { MAX_DIFFERENCES } else { 1 }) {
                let operation = visible(operation.as_bytes(), MAX_NAME);
                let kind = RasDifferenceKind::Launched { operation, count, usual };
                differences.extend(self.difference(ranks, kind));
            }
        }
    }
}

impl Rank {
    fn shown(&self) -> RasRank {
        ras_rank(self.rank, &self.host, self.pid)
    }
}

fn ras_rank(rank: u32, host: &str, pid: i64) -> RasRank {
    let host = visible(host.as_bytes(), MAX_NAME);
    RasRank { rank, host, pid: u32::try_from(pid).unwrap_or(0) }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns a sentence for each difference, and a last one that says what NCCL was asked about.
pub fn ras_sentences(report: &RasReport) -> Vec<String> {
    let counted = |count: u32, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let seconds = report.apart.0 / 1_000;
    let asked = format!(
        "NCCL {} knows {} on {} and {}; ",
        report.nccl_version,
        counted(report.processes, "process", "processes"),
        counted(report.hosts, "host", "hosts"),
        counted(report.communicators, "communicator", "communicators"),
    );
    let moved = match report.moving {
        0 => format!("none moved on within {seconds} s"),
        moving if moving == report.communicators => format!("all moved on within {seconds} s"),
        moving => format!("{moving} of them moved on within {seconds} s"),
    };
    let rest = match (report.moving, report.differences.is_empty()) {
        (_, false) => "",
        (0, true) => ", and no rank differs",
        (moving, true) if moving == report.communicators => "",
        (_, true) => ", and in the others no rank differs",
    };
    let differences = report.differences.iter().map(|one| Sentence(one).to_string());
    differences.chain([asked + &moved + rest]).collect()
}

struct Sentence<'a>(&'a RasDifference);

impl Display for Sentence<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RasDifference { size, ranks, kind } = self.0;
        let numbers: Vec<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let one = ranks.len() == 1;
        let choose = |singular: &'static str, plural| if one { singular } else { plural };
        let who = match ranks.as_slice() {
            [rank] if rank.pid != 0 => {
                format!("rank {} of {size} ({}, PID {})", rank.rank, rank.host, rank.pid)
            }
            _ => format!("{} of {size}", RankList(&numbers)),
        };
        match kind {
            RasDifferenceKind::Launched { operation, count, usual } => {
                write!(f, "{who} {} launched {count} {operation}, ", choose("has", "have"))?;
                match usual {
                    Some(usual) => write!(f, "most ranks {usual}"),
                    None => f.write_str("the others more"),
                }
            }
            RasDifferenceKind::Failed(error) => {
                write!(f, "{who} {} error {error}", choose("reports", "report"))?;
                error_name(*error).map_or(Ok(()), |name| write!(f, " ({name})"))
            }
            RasDifferenceKind::Unresponsive => {
                write!(f, "{who} {} not answer NCCL", choose("does", "do"))
            }
            RasDifferenceKind::ConsideredDead => {
                write!(f, "{who} {} not answered NCCL for a minute", choose("has", "have"))
            }
        }
    }
}

/// Returns the meaning of a `ncclResult_t`.
fn error_name(error: i32) -> Option<&'static str> {
    Some(match error {
        1 => "CUDA error",
        2 => "system error",
        3 => "internal error",
        4 => "invalid argument",
        5 => "invalid usage",
        6 => "error of another process",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an answer about one communicator. Each rank has launched this many AllReduce.
    fn answer(counts: &[u64], missing: &str) -> RasAnswer {
        let rank = |(rank, count): (usize, &u64)| {
            format!(
                r#"{{"rank": {rank}, "host": "10.0.0.{}", "pid": {}, "cuda_dev": 0, "nvml_dev": 0,
                    "status": {{"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false,
                    "abort_flag": false}}, "collective_counts": {{"AllReduce": {count}, "AllGather": 2}}}}"#,
                rank / 2 + 1,
                400 + rank
            )
        };
        let ranks: Vec<_> = counts.iter().enumerate().map(rank).collect();
        let size = counts.len() + usize::from(!missing.is_empty());
        let json = format!(
            r#"{{"nccl_version": "2.28.9", "cuda_runtime_version": 13000, "timestamp": "2026-06-01 12:00:00",
                "communicators_count": 1, "communicators": [{{"hash": "0x1f", "secondary_hash": "0x2:0x3",
                "size": {size}, "ranks_count": {size}, "missing_ranks_count": 0, "ranks": [{}],
                "missing_ranks": [{missing}]}}], "ras": {{"collection_time_sec": 0.002, "timeouts_count": 0}}}}"#,
            ranks.join(", ")
        );
        RasAnswer::read(json.as_bytes()).expect("an answer")
    }

    fn sentences(first: &RasAnswer, later: &RasAnswer) -> Vec<String> {
        let mut sentences = ras_sentences(&first.compare(later, Millis(5_000)));
        sentences.pop();
        sentences
    }

    #[test]
    fn names_ranks_that_stay_behind_and_their_hosts() {
        let behind = answer(&[30, 30, 30, 29], "");
        assert_eq!(
            ras_sentences(&behind.compare(&behind, Millis(5_000))),
            [
                "rank 3 of 4 (10.0.0.2, PID 403) has launched 29 AllReduce, most ranks 30",
                "NCCL 2.28.9 knows 4 processes on 2 hosts and 1 communicator; none moved on within 5 s"
            ]
        );
        let two = answer(&[30, 29, 30, 29, 30], "");
        let expected = ["ranks 1 and 3 of 5 have launched 29 AllReduce, most ranks 30"];
        assert_eq!(sentences(&two, &two), expected);
        // Neither half is usual.
        let halves = answer(&[30, 29], "");
        let expected =
            ["rank 1 of 2 (10.0.0.1, PID 401) has launched 29 AllReduce, the others more"];
        assert_eq!(sentences(&halves, &halves), expected);
        assert!(behind.has_process(403) && !behind.has_process(404));
    }

    #[test]
    fn says_nothing_about_counts_that_move() {
        let report = answer(&[30, 30, 29], "").compare(&answer(&[31, 31, 30], ""), Millis(5_000));
        assert_eq!((report.moving, report.differences.len()), (1, 0));
        // The rank in question has not moved, but another one has.
        assert_eq!(sentences(&answer(&[30, 30, 29], ""), &answer(&[30, 31, 29], "")), [""; 0]);
        let equal = answer(&[30, 30], "");
        let expected = "NCCL 2.28.9 knows 2 processes on 1 host and 1 communicator; none moved on within 5 s, and no rank differs";
        assert_eq!(ras_sentences(&equal.compare(&equal, Millis(5_000))), [expected]);
    }

    #[test]
    fn names_ranks_that_do_not_answer_in_both() {
        let missing = |is_dead: bool| {
            format!(
                r#"{{"rank": 2, "host": "10.0.0.2", "pid": 402, "cuda_dev": 0, "nvml_dev": 0,
                    "status": {{"unresponsive": true, "considered_dead": {is_dead}}}}}"#
            )
        };
        let [silent, dead] = [false, true].map(|is_dead| answer(&[30, 30], &missing(is_dead)));
        let expected = ["rank 2 of 3 (10.0.0.2, PID 402) does not answer NCCL"];
        assert_eq!(sentences(&silent, &silent), expected);
        assert_eq!(sentences(&answer(&[30, 30], ""), &silent), [""; 0]);
        let expected = ["rank 2 of 3 (10.0.0.2, PID 402) has not answered NCCL for a minute"];
        assert_eq!(sentences(&dead, &dead), expected);
    }

    #[test]
    fn an_answer_that_is_none_is_refused() {
        assert!(RasAnswer::read(b"SERVER PROTOCOL 2\n").is_err());
        assert_eq!(RasAnswer::read(b"{}").expect("an empty answer"), RasAnswer::default());
    }
}

use gputop_model::Reading;
use gputop_model::event::LogExcerpt;

use super::*;

fn key(pid: u32) -> ProcessKey {
    ProcessKey::new(pid, u64::from(pid) * 10)
}

fn process(pid: u32, rank: Option<u32>) -> Process {
    let rank = rank.map_or(Reading::default(), Reading::Value);
    Process { key: key(pid), rank, ..Process::default() }
}

fn candidate(pid: u32, rank: Option<u32>, ancestors: &[u32]) -> Candidate {
    let ancestors = ancestors.iter().map(|pid| key(*pid)).collect();
    Candidate { process: process(pid, rank), ancestors }
}

fn followed(found: Vec<Candidate>, listed: &[Process]) -> Vec<u32> {
    let mut candidates = FollowedCandidates::default();
    for candidate in found {
        candidates.add(candidate, listed, Mono(0));
    }
    candidates.keys().iter().map(|key| key.pid.0).collect()
}

#[test]
fn follows_ranks_instead_of_their_launcher() {
    let launcher = candidate(10, None, &[1]);
    let ranks = [candidate(11, Some(0), &[10, 1]), candidate(12, Some(1), &[10, 1])];
    assert_eq!(followed([launcher].into_iter().chain(ranks).collect(), &[]), [11, 12]);
}

#[test]
fn follows_programs_instead_of_their_workers() {
    let found = vec![candidate(10, None, &[1]), candidate(11, None, &[10, 1])];
    assert_eq!(followed(found, &[]), [10]);
    let found = vec![candidate(10, Some(0), &[1]), candidate(11, Some(0), &[10, 1])];
    assert_eq!(followed(found, &[]), [10]);
    let found = vec![candidate(11, None, &[10, 1]), candidate(21, None, &[20, 1])];
    assert_eq!(followed(found, &[process(10, None)]), [21]);
}

#[test]
fn keeps_the_newest_until_they_use_a_gpu_or_are_old() {
    let mut candidates = FollowedCandidates::default();
    for pid in 1..=300 {
        let mut candidate = candidate(pid, None, &[]);
        candidate.process.uid = Some(pid % 5);
        candidates.add(candidate, &[], Mono(u64::from(pid)));
    }
    let pids = |candidates: &FollowedCandidates| {
        candidates.keys().iter().map(|key| key.pid.0).collect::<Vec<_>>()
    };
    assert_eq!(pids(&candidates), (45..=300).collect::<Vec<_>>());
    candidates.retain(&[key(299)], Mono(297 + MAX_TIME.0));
    assert_eq!(pids(&candidates), [298, 300]);
}

#[test]
fn no_user_affects_the_programs_of_another() {
    let mut candidates = FollowedCandidates::default();
    let of_user = |uid, mut candidate: Candidate| {
        candidate.process.uid = Some(uid);
        candidate
    };
    candidates.add(of_user(1, candidate(1, None, &[])), &[], Mono(0));
    // Neither as the worker of a program nor as a rank of a launcher.
    candidates.add(of_user(2, candidate(2, None, &[1])), &[], Mono(1));
    candidates.add(of_user(2, candidate(3, Some(0), &[1])), &[], Mono(2));
    for pid in 4..=300 {
        candidates.add(of_user(2, candidate(pid, None, &[])), &[], Mono(u64::from(pid)));
    }
    let pids: Vec<u32> = candidates.keys().iter().map(|key| key.pid.0).collect();
    assert_eq!(pids, [1].into_iter().chain(237..=300).collect::<Vec<_>>());
}

#[test]
fn announces_a_candidate_once_before_its_first_observation() {
    let mut candidates = FollowedCandidates::default();
    (1..=3).for_each(|pid| candidates.add(candidate(pid, None, &[]), &[], Mono(0)));
    let log = |writers| Observation::Log(Box::new(LogExcerpt { writers, ..Default::default() }));
    let mut announced = |process, writers| {
        let new = candidates.take_unannounced(process, &log(writers));
        new.iter().map(|process| process.key.pid.0).collect::<Vec<_>>()
    };
    assert_eq!(announced(Some(key(1)), Vec::new()), [1]);
    assert_eq!(announced(None, vec![key(1), key(2), key(9)]), [2]);
    assert!(announced(Some(key(1)), Vec::new()).is_empty());
}

//! Jobs on a mesh in which one rank stops calling, anywhere, while the others run ahead. It alone is named.

use std::collections::BTreeMap;

use super::*;

const RANKS: u32 = 8;

/// Returns the groups of a rank: its pair, its row of four, and all ranks.
fn groups_of(rank: u32) -> [Vec<u32>; 3] {
    let pair = rank & !1;
    [vec![pair, pair + 1], (0..4).map(|n| 2 * n + rank % 2).collect(), all(RANKS)]
}

/// Calls of one rank, as pairs of group and number in the group.
type Calls = Vec<(Vec<u32>, u64)>;

/// Runs the same program on all ranks until none can go on: each call goes to a group, and a rank stops if `ahead` of its
/// calls are not complete. The frozen rank makes `limit` calls.
fn run(program: &[usize], frozen: u32, limit: usize, ahead: usize) -> Vec<Calls> {
    let mut called: Vec<Calls> = vec![Vec::new(); RANKS as usize];
    loop {
        let mut has_moved = false;
        let counts = counts(&called);
        for rank in 0..RANKS {
            let mine = &mut called[rank as usize];
            let open =
                mine.iter().filter(|(group, seq)| !is_complete(&counts, group, *seq)).count();
            let is_frozen = rank == frozen && mine.len() >= limit;
            if is_frozen || open >= ahead || mine.len() >= program.len() {
                continue;
            }
            let group = groups_of(rank)[program[mine.len()]].clone();
            let seq = mine.iter().filter(|(other, _)| *other == group).count() as u64 + 1;
            mine.push((group, seq));
            has_moved = true;
        }
        if !has_moved {
            return called;
        }
    }
}

/// Returns the number of calls of each rank in each group.
fn counts(called: &[Calls]) -> BTreeMap<(Vec<u32>, u32), u64> {
    let mut counts = BTreeMap::new();
    for (rank, calls) in called.iter().enumerate() {
        for (group, _) in calls {
            *counts.entry((group.clone(), rank as u32)).or_default() += 1;
        }
    }
    counts
}

fn is_complete(counts: &BTreeMap<(Vec<u32>, u32), u64>, group: &[u32], seq: u64) -> bool {
    group.iter().all(|rank| counts.get(&(group.to_vec(), *rank)) >= Some(&seq))
}

fn observed(called: &[Calls]) -> Vec<Rank> {
    let counts = counts(called);
    ranks(RANKS, |number, mut rank| {
        for group in groups_of(number) {
            let mine = called[number as usize].iter().enumerate();
            let open: Vec<_> = mine
                .filter(|(_, (other, seq))| *other == group && !is_complete(&counts, other, *seq))
                .collect();
            let all_calls = counts.get(&(group.clone(), number)).copied().unwrap_or(0);
            rank = rank.group(&format!("{group:?}"), &group, all_calls - open.len() as u64);
            for (at, (_, seq)) in open {
                rank = rank.pending(work(*seq, "ALLREDUCE", SIZE), 39.0 - at as f64 / 100.0);
            }
        }
        rank
    })
}

/// Generates jobs, and calls `check` with the ranks of each at the end, and the frozen rank.
fn generate(jobs: usize, mut check: impl FnMut(&[Rank], u32)) {
    let mut random = Random(9);
    for job in 0..jobs {
        let program: Vec<usize> = (0..40).map(|_| random.below(3) as usize).collect();
        let frozen = random.below(u64::from(RANKS)) as u32;
        let limit = random.below(25) as usize;
        check(&observed(&run(&program, frozen, limit, 1 + job % 5)), frozen);
    }
}

fn culprits(ranks: &[Rank]) -> Vec<u32> {
    let reports = look(ranks, &[0, 2000]);
    reports[0].verdicts.iter().flat_map(|verdict| verdict.culprits.clone()).collect()
}

#[test]
fn names_the_frozen_rank_of_a_mesh() {
    generate(200, |ranks, frozen| assert_eq!(culprits(ranks), [frozen]));
}

#[test]
fn names_no_victim_if_half_of_the_ranks_are_not_observed() {
    let mut right = 0;
    generate(200, |ranks, frozen| {
        let observed = &ranks[..4];
        let named: Vec<_> = culprits(observed).into_iter().filter(|rank| *rank < 4).collect();
        assert!(named.is_empty() || named == [frozen], "{frozen}: {named:?}");
        right += usize::from(!named.is_empty());
    });
    assert!(right > 50, "{right}");
}

#[test]
fn names_no_victim_if_a_rank_cannot_be_read() {
    generate(200, |ranks, frozen| {
        let mut ranks = ranks.to_vec();
        ranks[frozen as usize] = ranks[frozen as usize].clone().missing(Reason::Denied);
        let long = look(&ranks, &[0, 1000, 70_000]);
        let named: Vec<_> = long[0].verdicts.iter().flat_map(|v| v.culprits.clone()).collect();
        assert!(named.iter().all(|rank| *rank == frozen), "{frozen}: {:?}", sentences(&long));
    });
}

//! Generated jobs: the numbers of the ranks have no meaning, and no reading makes the watch fail.

use std::collections::BTreeSet;
use std::time::Instant;

use super::*;

const OPERATIONS: [&str; 4] = ["ALLREDUCE", "_ALLGATHER_BASE", "RECV", ""];

/// What a rank does in a group of a generated job.
#[derive(Clone, Copy)]
struct Plan {
    called: u64,
    pending: Option<(u64, usize, f64)>,
    is_inside: bool,
}

/// Returns the groups of a generated job of six ranks, and the plan of each rank in each of its groups.
fn plan(random: &mut Random) -> Vec<(Vec<u32>, Vec<Plan>)> {
    let groups: [&[u32]; 4] = [&[0, 1, 2, 3, 4, 5], &[0, 1, 2], &[3, 4, 5], &[1, 4]];
    let member = |random: &mut Random| {
        let called = 28 + random.below(3);
        let seconds = 1.0 + random.below(1_000_000) as f64 / 1e4;
        let operation = random.below(10).saturating_sub(6) as usize;
        let is_pending = random.chance(60);
        let pending = is_pending.then(|| (called - random.below(2), operation, seconds));
        Plan { called, pending, is_inside: random.chance(5) }
    };
    let plans = |group: &&[u32]| (group.to_vec(), group.iter().map(|_| member(random)).collect());
    groups.iter().map(plans).collect()
}

/// Builds the job, with rank `new[n]` in the place of rank `n`.
fn build(plan: &[(Vec<u32>, Vec<Plan>)], status: &[ProcessStatus], new: &[u32]) -> Vec<Rank> {
    let build = |number: usize| {
        let mut built = rank(new[number]).status(status[number].clone());
        for (at, (members, plans)) in plan.iter().enumerate() {
            let Some(place) = members.iter().position(|m| *m as usize == number) else { continue };
            let renamed: Vec<u32> = members.iter().map(|m| new[*m as usize]).collect();
            let Plan { called, pending, is_inside } = plans[place];
            built = built.group(&format!("g{at}"), &renamed, called);
            if let Some((seq, operation, seconds)) = pending {
                built = built.pending(work(seq, OPERATIONS[operation], SIZE), seconds);
            }
            built = if is_inside { built.inside() } else { built };
        }
        built
    };
    (0..new.len()).map(build).collect()
}

/// Returns what was decided, with the ranks under their first names.
fn decided(ranks: &[Rank], new: &[u32]) -> BTreeSet<String> {
    let old = |ranks: &[u32]| -> BTreeSet<usize> {
        let old = |rank: &u32| new.iter().position(|n| n == rank).expect("a rank");
        ranks.iter().map(old).collect()
    };
    let reports = look(ranks, &[0, 2000]);
    let verdicts = reports.iter().flat_map(|report| &report.verdicts);
    let verdict = |verdict: &Verdict| {
        let cause = match &verdict.cause {
            Cause::Deadlock { camps } => {
                let camps: BTreeSet<_> = camps.iter().map(|c| (&c.group, old(&c.ranks))).collect();
                format!("deadlock {camps:?}")
            }
            cause => format!("{cause:?}"),
        };
        let (culprits, waiting) = (old(&verdict.culprits), old(&verdict.waiting));
        let (group, waited) = (&verdict.group, verdict.waited);
        format!("{cause} {group} {culprits:?} {waiting:?} {waited:?}")
    };
    verdicts.map(verdict).collect()
}

#[test]
fn numbers_of_ranks_have_no_influence() {
    let mut random = Random(11);
    let mut decisions = 0;
    for case in 0..500 {
        let plan = plan(&mut random);
        let status = |random: &mut Random| match random.below(20) {
            0 => ProcessStatus::Stopped,
            1 => ProcessStatus::Exited(RankExit::default()),
            _ => ProcessStatus::Running,
        };
        let status: Vec<_> = (0..6).map(|_| status(&mut random)).collect();
        let same = all(6);
        let mut new = all(6);
        for at in (1..6).rev() {
            new.swap(at, random.below(at as u64 + 1) as usize);
        }
        let expected = decided(&build(&plan, &status, &same), &same);
        assert_eq!(decided(&build(&plan, &status, &new), &new), expected, "case {case}: {new:?}");
        decisions += expected.len();
    }
    assert!(decisions > 200, "{decisions}");
}

fn garbage(random: &mut Random) -> RankObservation {
    let number = |random: &mut Random| match random.below(5) {
        0 => 0,
        1 => u64::MAX - random.below(2),
        2 => random.next(),
        _ => random.below(4),
    };
    let small = |random: &mut Random| u32::try_from(number(random) & 0xffff_ffff).expect("small");
    let garbage_work = |random: &mut Random| Work {
        seq: number(random),
        operation: OPERATIONS[random.below(4) as usize].into(),
        elements: random.chance(50).then(|| (number(random), number(random))),
        dtype: None,
    };
    let optional = |random: &mut Random| {
        let missing = Reading::Missing(Reason::Unknown.into());
        if random.chance(20) { missing } else { Reading::Value(number(random)) }
    };
    let group = |random: &mut Random| {
        let pending = (0..random.below(4))
            .map(|_| PendingWork { work: garbage_work(random), called_ns: number(random) });
        let pending: Vec<_> = pending.collect();
        let members: Vec<u32> = (0..random.below(5)).map(|_| small(random)).collect();
        let size = if random.chance(80) { members.len() as u32 } else { small(random) };
        ProcessGroup {
            name: ["0", "dp", ""][random.below(3) as usize].into(),
            description: String::new(),
            rank: small(random),
            size,
            members: random.chance(70).then(|| members.into()),
            called: optional(random),
            called_p2p: optional(random),
            enqueued: random.chance(70).then(|| garbage_work(random)),
            completed: random.chance(70).then(|| garbage_work(random)),
            pending: if random.chance(90) { pending.into() } else { Reading::default() },
            recorded: Vec::new(),
        }
    };
    let mut observation = rank(0).0;
    let reading = &mut observation.reading;
    reading.rank = random.chance(80).then(|| small(random));
    reading.process = ProcessKey::new(small(random), number(random));
    reading.store =
        random.chance(80).then(|| ["", ":", "[::1]:1", "a"][random.below(4) as usize].into());
    reading.at = Mono(number(random));
    let groups: Vec<_> = (0..random.below(5)).map(|_| group(random)).collect();
    reading.groups = if random.chance(80) { groups.into() } else { Reading::default() };
    observation.status = match random.below(6) {
        0 => ProcessStatus::Stopped,
        1 => ProcessStatus::Starting,
        2 => ProcessStatus::Exited(RankExit::default()),
        _ => ProcessStatus::Running,
    };
    observation
}

#[test]
fn garbage_is_survived() {
    let mut random = Random(1);
    for _ in 0..500 {
        let mut watch = JobWatch::default();
        let ranks: Vec<_> = (0..8).map(|_| garbage(&mut random)).collect();
        for look in 0..4 {
            let mut ranks = ranks.clone();
            if look > 0 && random.chance(30) {
                ranks.push(garbage(&mut random));
            }
            for rank in &mut ranks {
                rank.reading.at.0 = rank.reading.at.0.saturating_add(look * 5000);
            }
            let reports = watch.observe(Mono(look * 5000), &ranks);
            reports
                .iter()
                .flat_map(|report| &report.ranks)
                .for_each(|row| drop(row.state.to_string()));
            sentences(&reports);
        }
    }
}

/// Returns 1024 ranks with eight groups each, one of them of all ranks.
fn large_job(make: impl Fn(u32, u32, Rank, &[u32]) -> Rank) -> Vec<Rank> {
    let world = all(1024);
    ranks(1024, |number, mut rank| {
        rank = make(number, 0, rank, &world);
        for size in 1..8 {
            let first = number >> size << size;
            let members: Vec<u32> = (first..first + (1 << size)).collect();
            rank = make(number, size, rank, &members);
        }
        rank
    })
}

/// Shown by `cargo test -- --nocapture`.
#[expect(clippy::print_stderr, reason = "the test reports how long a look takes")]
fn show_time(name: &str, start: Instant) {
    eprintln!("{name}: {:?}", start.elapsed());
}

fn time(name: &str, ranks: &[Rank]) -> Vec<JobReport> {
    let mut watch = JobWatch::default();
    let mut reports = Vec::new();
    for ms in [0, 2000, 4000] {
        let ranks: Vec<_> = ranks.iter().map(|rank| rank.later(ms)).collect();
        let start = Instant::now();
        reports = watch.observe(Mono(ms), &ranks);
        show_time(name, start);
    }
    reports
}

#[test]
fn large_jobs_take_a_bounded_time() {
    let start = Instant::now();
    let healthy = large_job(|_, at, rank, members| rank.group(&format!("g{at}"), members, 30));
    assert_eq!(sentences(&time("healthy", &healthy)), [""; 0]);
    let stuck = large_job(|number, at, rank, members| {
        let rank = rank.group(&format!("g{at}"), members, 30);
        if number == 777 || at > 0 { rank } else { rank.waits(31) }
    });
    let expected =
        "rank 777 holds up 1023 ranks for 43 s: it has not come to ALLREDUCE #31 in group g0";
    assert_eq!(sentences(&time("stuck", &stuck)), [expected]);
    // Every rank is somewhere else, in eight groups of all ranks.
    let chaos = ranks(1024, |number, mut rank| {
        for at in 0..8_u32 {
            let seq = u64::from(number.wrapping_mul(2 * at + 1) % 1024) + 1;
            let all = all(1024);
            rank = rank.group(&format!("g{at}"), &all, seq);
            rank = if (number + at) % 3 == 0 { rank } else { rank.waits(seq) };
        }
        rank
    });
    time("chaos", &chaos);
    // Generous: tests are not optimized, and the machine may be busy.
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

//! Healthy jobs, in which nothing may be said, and jobs with skipped collectives.

use super::*;

/// Time between the completion of a collective and its removal by the watchdog, at most.
const WATCHDOG_MS: u64 = 100;

/// One collective of a simulated job: the time of the call by each rank, and of the completion.
struct Collective {
    called: Vec<u64>,
    completed: u64,
}

/// How a simulated job spends its time, in milliseconds.
#[derive(Clone, Copy)]
struct Habits {
    step: u64,
    collectives_per_step: u64,
    /// Maximum extra time of one rank in a step.
    jitter: u64,
    /// Maximum extra time of a slow data loader, in some steps of each rank.
    loader: u64,
    checkpoint: u64,
    evaluation: u64,
}

/// Runs a job of `n` ranks for `duration` ms. Every rank works for a while and calls the next collective, which
/// completes once all have called it.
fn simulate(n: usize, duration: u64, habits: Habits, random: &mut Random) -> Vec<Collective> {
    let mut collectives: Vec<Collective> = Vec::new();
    let mut free = vec![0; n];
    for seq in 1_u64.. {
        let is_new_step = seq.is_multiple_of(habits.collectives_per_step);
        let step = seq / habits.collectives_per_step;
        for (rank, free) in free.iter_mut().enumerate() {
            *free += random.below(3);
            if is_new_step {
                *free += habits.step + random.below(habits.jitter + 1);
                let is_checkpoint = step.is_multiple_of(50);
                *free += if is_checkpoint && rank == 0 { habits.checkpoint } else { 0 };
                let is_slow_loader = !is_checkpoint && random.chance(2);
                *free += if is_slow_loader { random.below(habits.loader + 1) } else { 0 };
                *free += if step.is_multiple_of(100) { habits.evaluation } else { 0 };
            }
        }
        let called = free.clone();
        let completed = called.iter().max().copied().unwrap_or(0) + 1;
        free.fill(completed);
        collectives.push(Collective { called, completed });
        if completed > duration {
            break;
        }
    }
    collectives
}

/// Returns what a look shows. The ranks are read one after the other, 1 ms each. `skipped` collectives of rank 1 are
/// not counted by it.
fn reading(n: u32, job: &[Collective], now: u64, skipped: u64) -> Vec<RankObservation> {
    let read = |number: u32| {
        let index = number as usize;
        let now = now + u64::from(number);
        let missing = if number == 1 { skipped } else { 0 };
        let called = job.partition_point(|c| c.called[index] <= now) as u64;
        let done = job.partition_point(|c| c.completed + WATCHDOG_MS <= now) as u64;
        let mut rank = rank(number).group("dp", &all(n), done - missing.min(done));
        for seq in done + 1..=called {
            let ago = now - job[seq as usize - 1].called[index];
            // `pending` counts from the first look.
            let seconds = (ago as f64 - now as f64) / 1000.0;
            rank = rank.pending(work(seq - missing.min(seq), "ALLREDUCE", SIZE), seconds);
        }
        rank.later(now)
    };
    (0..n).map(read).collect()
}

/// Looks at a job once a second, and returns everything that is said.
fn watch(n: u32, job: &[Collective], duration: u64, skipped: u64) -> (Vec<String>, Vec<String>) {
    let mut watch = JobWatch::default();
    let (mut verdicts, mut offsets) = (Vec::new(), Vec::new());
    for now in (1000..duration).step_by(1000) {
        for report in watch.observe(Mono(now), &reading(n, job, now, skipped)) {
            verdicts.extend(report.verdicts.iter().map(ToString::to_string));
            offsets.extend(report.offsets.iter().map(ToString::to_string));
        }
    }
    offsets.dedup();
    (verdicts, offsets)
}

const HOUR: u64 = 3_600_000;

#[test]
fn nothing_is_said_about_an_hour_of_healthy_training() {
    #[rustfmt::skip]
    let jobs = [
        Habits { step: 700, collectives_per_step: 40, jitter: 300, loader: 9000, checkpoint: 9000, evaluation: 60_000 },
        Habits { step: 50, collectives_per_step: 1, jitter: 60, loader: 9000, checkpoint: 9000, evaluation: 20_000 },
        // A step with long waits between short bursts: 25 s for the slowest loader are not unusual.
        Habits { step: 20_000, collectives_per_step: 100, jitter: 15_000, loader: 25_000, checkpoint: 25_000, evaluation: 120_000 },
    ];
    for (seed, habits) in jobs.into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let job = simulate(4, HOUR, habits, &mut random);
        let said = watch(4, &job, HOUR, 0);
        assert_eq!(said, (Vec::new(), Vec::new()), "job {seed}");
    }
}

#[test]
fn hosts_may_run_ahead_of_their_gpus() {
    // Each step of 30 s is launched in its first second, and its ten collectives complete one after the other.
    let collective = |n: u64| {
        let launched = n / 10 * 30_000 + n % 10 * 100;
        let called = (0..4).map(|rank| launched + rank * 10).collect();
        Collective { called, completed: n / 10 * 30_000 + (n % 10 + 1) * 2900 }
    };
    let job: Vec<_> = (0..400).map(collective).collect();
    assert_eq!(watch(4, &job, HOUR / 4, 0), (Vec::new(), Vec::new()));
}

#[test]
fn a_checkpoint_longer_than_usual_is_named_while_it_lasts() {
    let habits = Habits {
        step: 500,
        collectives_per_step: 10,
        jitter: 50,
        loader: 0,
        checkpoint: 0,
        evaluation: 0,
    };
    let long = Habits { checkpoint: 40_000, ..habits };
    let job = simulate(4, 60_000, long, &mut Random(7));
    let (said, _) = watch(4, &job, 60_000, 0);
    assert!(
        said.iter().any(|said| said.starts_with("rank 0 holds up 3 ranks for 10 s")),
        "{said:?}"
    );
}

#[test]
fn warns_of_a_rank_that_has_skipped_a_collective() {
    // One call a step, so that a rank that is behind can be told from one that was read earlier.
    let habits = Habits {
        step: 1500,
        collectives_per_step: 1,
        jitter: 20,
        loader: 0,
        checkpoint: 100,
        evaluation: 0,
    };
    let job = simulate(4, 120_000, habits, &mut Random(3));
    let (verdicts, offsets) = watch(4, &job, 120_000, 2);
    assert_eq!(verdicts, [""; 0]);
    let expected = "rank 1 stays 2 collectives behind in group dp: it may have skipped calls";
    assert_eq!(offsets, [expected]);
}

#[test]
fn ranks_that_have_finished_need_no_warning() {
    let ranks =
        ranks(4, |number, rank| rank.group("dp", &all(4), if number == 1 { 29 } else { 30 }));
    let times: Vec<u64> = (0..60).map(|second| second * 1000).collect();
    assert_eq!(look(&ranks, &times)[0].offsets, []);
}

#[test]
fn a_slow_rank_has_not_skipped_a_collective() {
    // Rank 1 calls a second after the others in each step of a little more, so it is behind at most looks.
    let mut free = 0;
    let step = |_| {
        let called = vec![free + 10, free + 1010, free + 11, free + 12];
        free += 1011;
        Collective { called, completed: free }
    };
    let job: Vec<_> = (0..300).map(step).collect();
    assert_eq!(watch(4, &job, 290_000, 0), (Vec::new(), Vec::new()));
}

#[test]
fn a_rank_that_is_read_earlier_has_not_skipped_a_collective() {
    let step = |n: u64| Collective { called: vec![n * 500; 4], completed: n * 500 + 1 };
    let job: Vec<_> = (0..300).map(step).collect();
    let mut watch = JobWatch::default();
    for now in (2000..100_000).step_by(1000) {
        let mut ranks = reading(4, &job, now, 0);
        ranks[1] = reading(4, &job, now - 900, 0).remove(1);
        let reports = watch.observe(Mono(now), &ranks);
        assert_eq!(reports[0].offsets, []);
    }
}

#[test]
fn replays_of_a_captured_graph_show_nothing() {
    let ranks = ranks(4, |number, rank| {
        let rank = rank.group("dp", &all(4), 30);
        rank.stack(&[("replay", "/home/ana/serve.py", 10 + number)])
    });
    assert_eq!(sentences(&look(&ranks, &[0, 1000, 60_000])), [""; 0]);
}

/// Sweeps over four ranks that call a collective every 60 ms, rank 1 `late` ms after the others. Returns the slow rank
/// of each group.
fn lateness(late: u64, period: u64, steps: u64) -> Vec<Option<SlowRank>> {
    let mut watch = ArrivalWatch::default();
    for now in (0..steps * 60).step_by(period as usize) {
        let called = |rank: u32| (now + 60 - if rank == 1 { late } else { 0 }) / 60;
        let ranks = ranks(4, |number, rank| rank.group("dp", &all(4), called(number)));
        watch.sweep(Mono(now), &readings(ranks));
    }
    slow(&watch)
}

fn readings(ranks: Vec<Rank>) -> Vec<RankReading> {
    ranks.into_iter().map(|rank| rank.0.reading).collect()
}

fn slow(watch: &ArrivalWatch) -> Vec<Option<SlowRank>> {
    watch.arrivals().iter().map(SlowRank::of).collect()
}

#[test]
fn names_a_slow_rank_after_enough_collectives() {
    assert_eq!(lateness(40, 20, 90), [None]);
    let found = lateness(40, 20, 300);
    let [Some(slow)] = found[..] else { panic!("{found:?}") };
    assert_eq!(
        slow.to_string(),
        "rank 1 comes last to 100 % of the collectives, 40 ms after the first rank"
    );
    assert_eq!(lateness(0, 20, 300), [None]);
    // A few milliseconds cannot be seen at this rate.
    assert_eq!(lateness(3, 50, 300), [None]);
}

/// Returns the arrivals at 300 collectives, of which each look finds the last 64 in the flight recorders. The others come
/// up to 0.9 ms after rank 0, and rank 1 `late_us` after it.
fn recorded_arrivals(late_us: u64, numbers: &[u32]) -> ArrivalWatch {
    let mut watch = ArrivalWatch::default();
    for newest in (40..=300).step_by(20) {
        let call = |rank: u32, seq: u64| {
            let after_us = if rank == 1 { late_us } else { u64::from(rank) * 300 };
            RecordedCall { seq, called_unix_ns: (seq * 60_000 + after_us) * 1_000 }
        };
        let ranks = ranks(4, |number, rank| {
            let mut rank = rank.group("dp", &all(4), newest);
            // The last call of a late rank is not there yet.
            let own = newest - u64::from(number == 1);
            rank.groups()[0].recorded =
                (own.saturating_sub(63).max(1)..=own).rev().map(|seq| call(number, seq)).collect();
            rank
        });
        let mut readings = readings(ranks);
        readings.retain(|reading| reading.rank.is_some_and(|rank| numbers.contains(&rank)));
        watch.add_recorded(Mono(newest * 60), &readings);
    }
    watch
}

#[test]
fn recorded_calls_name_a_slow_rank_without_sweeps() {
    let found = slow(&recorded_arrivals(5_000, &[0, 1, 2, 3]));
    let [Some(slow_rank)] = found[..] else { panic!("{found:?}") };
    assert_eq!(
        slow_rank.to_string(),
        "rank 1 comes last to 100 % of the collectives, 5 ms after the first rank"
    );
    // Less than a millisecond counts as simultaneous, and a single rank is not late.
    assert_eq!(slow(&recorded_arrivals(1_800, &[0, 1, 2, 3])), [None]);
    assert_eq!(slow(&recorded_arrivals(5_000, &[1])), [None]);
    let collectives = recorded_arrivals(5_000, &[0, 1]).arrivals()[0].collectives;
    assert_eq!(collectives, 200, "each collective counts once");
}

#[test]
fn a_job_that_starts_again_is_counted_anew() {
    let mut watch = recorded_arrivals(5_000, &[0, 1]);
    let ranks = ranks(2, |_, rank| {
        let mut rank = rank.group("dp", &all(4), 3);
        rank.groups()[0].recorded = vec![RecordedCall { seq: 3, called_unix_ns: 1 << 60 }];
        rank
    });
    watch.add_recorded(Mono(19_000), &readings(ranks));
    assert_eq!(watch.arrivals()[0].collectives, 1);
}

/// The groups of a mesh have the same description. Ranks of different groups do not wait for each other.
#[test]
fn ranks_are_late_only_in_their_own_group() {
    let mut watch = ArrivalWatch::default();
    for step in 0..300 {
        let ranks = ranks(4, |number, rank| {
            let members = [number % 2, number % 2 + 2];
            // The second group has called more, and is 20 ms later.
            let mut rank = rank.group("mesh_dp", &members, step + u64::from(number % 2));
            rank.groups()[0].name = format!("{}", number % 2);
            rank
        });
        watch.sweep(Mono(step * 20), &readings(ranks));
    }
    assert_eq!(slow(&watch), [None, None]);
    let ranks = watch.arrivals().into_iter().map(|group| group.ranks);
    assert_eq!(ranks.collect::<Vec<_>>(), [[0, 2], [1, 3]]);
}

#[test]
fn a_rank_that_cannot_be_read_at_times_does_not_restart_the_count() {
    let mut watch = ArrivalWatch::default();
    let sweep = |watch: &mut ArrivalWatch, now: u64, missing| {
        let called = |rank: u32| (now + 60 - if rank == 1 { 40 } else { 0 }) / 60;
        let ranks = ranks(4, |number, rank| rank.group("dp", &all(4), called(number)));
        let mut readings = readings(ranks);
        readings.retain(|reading| reading.rank != missing);
        watch.sweep(Mono(now), &readings);
    };
    for now in (0..18_000).step_by(20) {
        sweep(&mut watch, now, (now % 3_000 == 0).then_some(2));
    }
    assert_eq!(slow(&watch)[0].map(|slow| slow.rank), Some(1));
    // A rank that has exited is not awaited for ever.
    for now in (18_000..48_000).step_by(20) {
        sweep(&mut watch, now, Some(2));
    }
    assert_eq!(watch.arrivals()[0].ranks, [0, 1, 3]);
    assert_eq!(slow(&watch)[0].map(|slow| slow.rank), Some(1));
}

#[test]
fn a_slow_rank_is_slow_most_of_the_time() {
    let mut random = Random(5);
    let mut watch = ArrivalWatch::default();
    for step in 1..400 {
        let late = random.below(4) as u32;
        for tick in 0..3 {
            let called = |rank| if rank == late && tick < 2 { step - 1 } else { step };
            let ranks = ranks(4, |number, rank| rank.group("dp", &all(4), called(number)));
            watch.sweep(Mono(step * 60 + tick * 20), &readings(ranks));
        }
    }
    assert_eq!(slow(&watch), [None]);
}

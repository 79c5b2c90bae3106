//! Public reports of stuck jobs, and jobs that were stopped in known ways on real GPUs.

use super::*;

const LOADER: &[(&str, &str, u32)] = &[
    ("wait", "/usr/lib/python3.12/threading.py", 355),
    ("get", "/usr/lib/python3.12/queue.py", 171),
    ("_try_get_data", "/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", 1251),
    (
        "_BaseDataLoaderIter.__next__",
        "/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py",
        708,
    ),
    ("train", "/home/ana/train.py", 88),
];
const ITEM: &[(&str, &str, u32)] = &[("step", "/home/ana/train.py", 91)];
const SAVE: &[(&str, &str, u32)] = &[
    ("save", "/venv/lib/python3.12/site-packages/torch/serialization.py", 850),
    ("save_checkpoint", "/home/ana/train.py", 212),
];
const DESTROY: &[(&str, &str, u32)] = &[
    (
        "destroy_process_group",
        "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
        2100,
    ),
    ("main", "/home/ana/pretrain.py", 40),
];

/// One rank is at #29, the others wait at #30.
fn one_behind(n: u32, culprit: u32) -> Vec<Rank> {
    ranks(n, |number, rank| {
        let rank = rank.group("dp", &all(n), 29);
        if number == culprit { rank } else { rank.waits(30) }
    })
}

fn change(mut ranks: Vec<Rank>, number: usize, change: impl Fn(Rank) -> Rank) -> Vec<Rank> {
    ranks[number] = change(ranks[number].clone());
    ranks
}

fn with_stacks(ranks: Vec<Rank>, stack: &[(&str, &str, u32)]) -> Vec<Rank> {
    ranks.into_iter().map(|rank| rank.stack(stack)).collect()
}

#[track_caller]
fn assert_said(name: &str, ranks: &[Rank], expected: &[&str]) {
    assert_eq!(say(ranks), expected, "{name}");
}

#[test]
fn names_the_rank_of_each_public_report() {
    let members = all(8);
    let operation = |odd: &'static [u32], theirs: &'static str| {
        ranks(8, move |number, rank| {
            let operation = if odd.contains(&number) { theirs } else { "ALLREDUCE" };
            rank.group("dp", &all(8), 29).pending(work(30, operation, SIZE), 39.0)
        })
    };
    assert_said(
        "pytorch#77562: ranks disagree about saving",
        &operation(&[0], "REDUCE"),
        &["rank 0 holds up 7 ranks for 41 s: it called REDUCE #30, others ALLREDUCE"],
    );
    let alone = ranks(8, |number, rank| {
        let rank = rank.group("default_pg", &all(8), 30);
        if number == 0 { rank.pending(work(31, "ALLREDUCE", 1), 39.0) } else { rank }
    });
    assert_said(
        "autocast PR#386: a barrier for rank 0 only",
        &alone,
        &[
            "rank 0 waits alone for 41 s at ALLREDUCE #31 in group default_pg: 7 ranks have not come",
        ],
    );
    assert_said(
        "konstmish/prodigy#35: an early return in the optimizer of two ranks",
        &ranks(8, |number, rank| {
            let rank = rank.group("dp", &members, 29);
            if [1, 5].contains(&number) { rank } else { rank.waits(30) }
        }),
        &[
            "ranks 1 and 5 hold up 6 ranks for 41 s: they have not come to ALLREDUCE #30 in group dp",
        ],
    );
    assert_said(
        "pytorch#33148: fewer batches on one rank",
        &one_behind(8, 3),
        &["rank 3 holds up 7 ranks for 41 s: it has not come to ALLREDUCE #30 in group dp"],
    );
    assert_said(
        "snowfall#152: fewer batches, and the rank has exited",
        &change(one_behind(8, 3), 3, |rank| rank.exited("exited with 0", None)),
        &["7 ranks wait for rank 3 for 41 s: it exited with 0"],
    );
    let loader = change(with_stacks(one_behind(8, 0), ITEM), 0, |rank| rank.stack(LOADER));
    assert_said(
        "pytorch#87995 and Megatron-DeepSpeed PR#282: a data loader without data",
        &loader,
        &["rank 0 holds up 7 ranks for 41 s: it waits for its data loader (train.py:88)"],
    );
    let other_groups = ranks(8, |number, rank| {
        let is_odd = number >= 6;
        let (a, b) = (rank.group("a", &all(8), 29), 29);
        let a = if is_odd { a.waits(30) } else { a }.group("b", &all(8), b);
        if is_odd { a } else { a.waits(30) }
    });
    assert_said(
        "torchrec PR#4149: two ranks use two groups in another order",
        &other_groups,
        &[
            "ranks 6 and 7 (group a) and ranks 0, 1 and 4 more (group b) wait for each other for 41 s",
        ],
    );
    let pipeline = ranks(4, |number, rank| {
        let rank = rank.group("pp", &all(4), 0);
        if number == 0 { rank.stack(DESTROY) } else { rank.pending(work(7, "RECV", 64), 39.0) }
    });
    assert_said(
        "Megatron-Bridge PR#5283: the first stage shuts down in silence",
        &pipeline,
        &["rank 0 holds up 3 ranks for 41 s: it destroys its process groups (pretrain.py:40)"],
    );
    let collecting = change(with_stacks(one_behind(8, 2), ITEM), 2, |rank| {
        rank.stack(&[("schedule", "/home/ana/engine.py", 7)])
    });
    assert_said(
        "sglang PR#28067: garbage collection in one rank, which has no frame",
        &collecting,
        &["rank 2 holds up 7 ranks for 41 s: it is in schedule (engine.py:7)"],
    );
    let inside = ranks(2, |number, rank| {
        let rank = rank.group("tp", &all(2), 29);
        if number == 0 { rank.inside() } else { rank.pending(work(30, "BROADCAST", 8), 39.0) }
    });
    assert_said(
        "sglang#33289: one rank does not return from NCCL",
        &inside,
        &["rank 0 holds up rank 1 for 41 s: it is inside NCCL for BROADCAST #30 in group tp"],
    );
    let elements = ranks(4, |number, rank| {
        let elements = if number == 1 { 2 * SIZE } else { SIZE };
        rank.group("dp", &all(4), 29).pending(work(30, "ALLREDUCE", elements), 39.0)
    });
    assert_said(
        "pytorch#97191: one rank reduces twice the elements",
        &elements,
        &[
            "rank 1 holds up 3 ranks for 41 s: it called ALLREDUCE #30 with 8388608 elements, others with 4194304",
        ],
    );
    let partly_done = ranks(4, |number, rank| {
        let rank = rank.group("dp", &all(4), 30);
        if number == 1 { rank.pending(work(30, "ALLREDUCE", SIZE), 90.0) } else { rank }
    });
    assert_said("pytorch#109074, nccl#1730: only one rank does not complete", &partly_done, &[]);
    let never = ranks(4, |_, rank| {
        rank.group("default_pg", &all(4), 0).pending(work(1, "BROADCAST", 64), 90.0)
    });
    assert_said(
        "accelerate PR#2195, pytorch#85334: no rank ever completes the first collective",
        &never,
        &[
            "4 ranks wait for 92 s for BROADCAST #1: all have called it, so suspect GPU, link or driver",
        ],
    );
}

#[test]
fn names_the_rank_of_each_measured_hang() {
    // hang_skip: all main threads are in `.item()`, so the place explains nothing.
    assert_said(
        "hang_skip",
        &with_stacks(one_behind(4, 1), ITEM),
        &["rank 1 holds up 3 ranks for 41 s: it has not come to ALLREDUCE #30 in group dp"],
    );
    let two_groups = ranks(4, |number, rank| {
        let half: &[u32] = if number < 2 { &[0, 1] } else { &[2, 3] };
        let rank = rank.group("tp", half, 12).group("dp", &all(4), 29);
        match number {
            1 => rank.stack(&[("next_batch", "/home/ana/target.py", 31)]),
            _ => rank.waits(30),
        }
    });
    assert_said(
        "hang_item",
        &two_groups,
        &["rank 1 holds up 3 ranks for 41 s: it is in next_batch (target.py:31)"],
    );
    let kind = ranks(4, |number, rank| {
        let operation = if number == 1 { "_ALLGATHER_BASE" } else { "ALLREDUCE" };
        rank.group("dp", &all(4), 29).pending(work(30, operation, SIZE), 39.0)
    });
    assert_said(
        "hang_kind",
        &kind,
        &["rank 1 holds up 3 ranks for 41 s: it called ALLGATHER #30, others ALLREDUCE"],
    );
    let order = ranks(4, |number, rank| {
        let (world, tp) = if number == 1 { (38.9, 39.0) } else { (39.0, 38.9) };
        let rank = rank.group("default_pg", &all(4), 29);
        let rank = rank.pending(work(30, "ALLREDUCE", SIZE), world).group("tp", &all(4), 29);
        rank.pending(work(30, "ALLREDUCE", SIZE), tp)
    });
    assert_said(
        "hang_order",
        &order,
        &[
            "rank 1 holds up 3 ranks for 41 s: it called group tp before default_pg, others after it",
        ],
    );
    // Measured on two GPUs: rank 1 skips a reduction in the default group and goes on with group tp, where the GPUs of the
    // others have not come to, although all have called it.
    let skip = |n: u32| {
        ranks(n, |number, rank| {
            let half: &[u32] = if number < 2 { &[0, 1] } else { &[2, 3] };
            let rank = rank.group("default_pg", &all(n), 29);
            let rank = if number == 1 { rank } else { rank.waits(30) };
            rank.group("tp", half, 29).pending(work(30, "_ALLGATHER_BASE", 1024), 38.9)
        })
    };
    assert_said(
        "hang_skip in one of two groups",
        &skip(4),
        &[
            "rank 1 holds up 3 ranks for 41 s: it called group tp before default_pg, others after it",
        ],
    );
    assert_said(
        "hang_skip in one of two groups, two ranks",
        &skip(2),
        &["2 ranks wait for 41 s: they called groups tp and default_pg in different orders"],
    );
    // The reduction of fewer elements completes, and the gathering after it waits for the other rank.
    let mismatch = ranks(2, |number, rank| {
        let rank = rank.group("default_pg", &all(2), 29);
        let rank = match number {
            0 => rank.waits(30),
            _ => {
                let mut rank = rank.pending(work(30, "ALLREDUCE", 1024), 39.0);
                let group = rank.groups().last_mut().expect("a group");
                (group.completed, group.pending) = (group.enqueued.clone(), Vec::new().into());
                rank
            }
        };
        rank.group("tp", &all(2), 29).pending(work(30, "_ALLGATHER_BASE", 1024), 38.9)
    });
    assert_said(
        "hang_mismatch, two ranks",
        &mismatch,
        &[
            "rank 0 waits for 41 s: some called ALLREDUCE #30 with 4194304 elements, others with 1024",
        ],
    );
    let dead = change(one_behind(4, 1), 1, |rank| {
        rank.exited("was killed by signal 9", Some("OUT OF MEMORY"))
    });
    assert_said(
        "dead",
        &dead,
        &["3 ranks wait for rank 1 for 41 s: it was killed by signal 9 (OUT OF MEMORY)"],
    );
    let ok = ranks(4, |_, rank| rank.group("dp", &all(4), 30));
    assert_said("ok", &ok, &[]);
}

#[test]
fn communicator_setup_takes_a_minimum_time() {
    let setup = ranks(4, |number, rank| {
        let rank = rank.group("dp", &all(4), 0);
        if number == 1 { rank } else { rank.inside() }
    });
    assert_eq!(say(&setup), [""; 0]);
    let reports = look(&setup, &[0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 12_000]);
    let expected = "rank 1 holds up 3 ranks for 12 s: it has not come to collective #1 in group dp";
    assert_eq!(sentences(&reports), [expected]);
    // All ranks may have completed it: PyTorch does not record it if TORCH_NCCL_BLOCKING_WAIT is set.
    let inside = ranks(4, |_, rank| rank.group("dp", &all(4), 0).inside());
    assert_eq!(sentences(&look(&inside, &[0, 1000, 90_000])), [""; 0]);
}

#[test]
fn names_a_stopped_rank_of_real_training_loops() {
    // The others run ahead before they block, and the stopped rank has stale pending works.
    let ddp = ranks(4, |number, rank| {
        let rank = rank.group("default_pg", &all(4), 13_337);
        if number == 1 {
            return rank
                .pending(work(13_300, "ALLREDUCE", SIZE), 15.0)
                .status(ProcessStatus::Stopped);
        }
        let first = rank.pending(work(13_338, "ALLREDUCE", SIZE), 10.0);
        first.pending(work(13_384, "ALLREDUCE", SIZE), 9.9)
    });
    let stopped =
        |waiting| format!("rank 1 holds up {waiting} ranks for 12 s: it is stopped (state T)");
    assert_eq!(say(&ddp), [stopped(3)]);

    let mesh = ranks(4, |number, rank| {
        let (tp, dp): (&[u32], &[u32]) = match number {
            0 => (&[0, 1], &[0, 2]),
            1 => (&[0, 1], &[1, 3]),
            2 => (&[2, 3], &[0, 2]),
            _ => (&[2, 3], &[1, 3]),
        };
        let tp_called = if number == 2 { 91 } else { 90 };
        let rank = rank.group("mesh_tp", tp, if number == 0 { 91 } else { tp_called });
        let rank = if number == 0 || number == 2 {
            rank.pending(work(91, "ALLREDUCE", 8), 9.0)
        } else {
            rank
        };
        let rank = rank.group("mesh_dp", dp, 3075);
        match number {
            1 => rank.status(ProcessStatus::Stopped),
            3 => rank.pending(work(3076, "_ALLGATHER_BASE", 64), 10.0),
            _ => rank,
        }
    });
    assert_eq!(say(&mesh), [stopped(3)], "rank 3 is a victim of rank 1");
    let running = change(mesh, 1, |rank| rank.status(ProcessStatus::Running));
    let expected =
        "rank 1 holds up 3 ranks for 12 s: it has not come to ALLGATHER #3076 in group mesh_dp";
    assert_eq!(say(&running), [expected]);

    let pipeline = ranks(4, |number, rank| {
        let rank = rank.group("pp", &all(4), 488);
        if number == 0 {
            return rank.status(ProcessStatus::Stopped);
        }
        let rank = rank.pending(work(19_556, "COALESCED", 64), 10.0);
        if number == 1 { rank.pending(work(489, "ALLREDUCE", SIZE), 9.0) } else { rank }
    });
    assert_eq!(say(&pipeline), ["rank 0 holds up 3 ranks for 12 s: it is stopped (state T)"]);
}

#[test]
fn a_starting_rank_has_a_process() {
    let starting = change(one_behind(4, 1), 1, Rank::unread);
    let told = say(&starting);
    assert_eq!(told, [""; 0], "the others may just have called it");
    let long = sentences(&look(&starting, &[0, 1000, 11_000]));
    assert_eq!(long, ["3 ranks wait for rank 1 for 50 s: it is not read yet"]);
    // The environment of the process tells the rank.
    let known = change(starting, 1, |mut rank| {
        rank.0.reading.rank = Some(1);
        rank
    });
    let reports = look(&known, &[0, 1000, 11_000]);
    assert_eq!(sentences(&reports), long);
    assert_eq!(reports[0].ranks[1].state, RankState::NotReadYet);

    let denied = change(one_behind(4, 1), 1, |rank| rank.missing(Reason::Denied));
    let long = sentences(&look(&denied, &[0, 1000, 11_000]));
    assert_eq!(long, ["3 ranks wait for rank 1 for 50 s: it cannot be read (no permission)"]);
    // A program without process groups is no rank.
    let other = change(one_behind(4, 1), 1, |rank| rank.unread().missing(Reason::Unsupported));
    let long = sentences(&look(&other, &[0, 1000, 11_000]));
    assert_eq!(
        long,
        ["3 ranks wait for 50 s at ALLREDUCE #30 in group dp: rank 1 has no process on this host"]
    );
}

#[test]
fn a_rank_that_disappears_has_no_process() {
    let ranks = one_behind(4, 1);
    let mut watch = JobWatch::default();
    let at = |ms, ranks: &[Rank]| ranks.iter().map(|rank| rank.later(ms)).collect::<Vec<_>>();
    watch.observe(Mono(0), &at(0, &ranks));
    let mut rest = at(2000, &ranks);
    rest.remove(1);
    let reports = watch.observe(Mono(2000), &rest);
    assert_eq!(sentences(&reports), ["3 ranks wait for rank 1 for 41 s: it has no process"]);
    assert_eq!(reports[0].ranks[1].state.to_string(), "no process");
    // The same with an empty reading of the exited process.
    let mut exited = rank(1).exited("exited with 1", None).later(2500);
    exited.reading = RankReading { process: exited.reading.process, ..RankReading::default() };
    for groups in [Reading::default(), Vec::new().into()] {
        exited.reading.groups = groups;
        let mut ranks = at(2500, &ranks);
        ranks[1] = exited.clone();
        let said = sentences(&watch.observe(Mono(2500), &ranks));
        assert_eq!(said, ["3 ranks wait for rank 1 for 41 s: it exited with 1"]);
    }
    // If the whole host disappears, nothing is known about its processes.
    assert_eq!(watch.observe(Mono(3000), &[]), []);
}

#[test]
fn an_orderly_exit_is_no_failure() {
    // All have called #30. One rank exits a little earlier than the others, which save a checkpoint.
    let finished = ranks(4, |number, rank| {
        let rank = rank.group("dp", &all(4), 30);
        if number == 1 { rank.exited("exited with 0", None) } else { rank.stack(SAVE) }
    });
    assert_said("orderly exit", &finished, &[]);
}

#[test]
fn ranks_of_an_earlier_run_are_forgotten() {
    // Rank 1 of the earlier run exited before the processes of this run started.
    let mut ranks = one_behind(4, 1);
    for rank in &mut ranks {
        rank.0.reading.process = ProcessKey::new(rank.0.reading.process.pid.0, START / 10 + 100);
    }
    ranks[1] = ranks[1].clone().exited("exited with 1", None);
    let late = look(&ranks, &[0, 500]);
    assert_eq!(late[0].ranks.len(), 3);
}

#[test]
fn jobs_of_one_host_are_not_mixed() {
    let mut ranks = one_behind(4, 1);
    let other = one_behind(4, 2).into_iter().enumerate();
    ranks.extend(other.map(|(n, rank)| rank.store("10.0.0.1:29501").process(2000 + n as u32)));
    let told = say(&ranks);
    let rank_held = |n| {
        format!("rank {n} holds up 3 ranks for 41 s: it has not come to ALLREDUCE #30 in group dp")
    };
    assert_eq!(told, [rank_held(1), rank_held(2)]);
    // Without the address of the store, the processes cannot be told apart.
    for rank in &mut ranks {
        rank.0.reading.store = None;
    }
    assert_eq!(say(&ranks), [""; 0]);
}

#[test]
fn a_job_may_have_several_hosts() {
    let split = |store: &str| -> Vec<Rank> {
        let hosts = ["node1", "node1", "node2", "node2"];
        let ranks = one_behind(4, 2).into_iter().zip(hosts);
        ranks.map(|(rank, host)| rank.host(host).store(store)).collect()
    };
    let expected =
        "rank 2 on node2 holds up 3 ranks for 41 s: it has not come to ALLREDUCE #30 in group dp";
    assert_eq!(say(&split("10.0.0.1:29500")), [expected]);
    // The clocks of the hosts differ by years.
    let mut watch = JobWatch::default();
    let mut told = Vec::new();
    for ms in [0, 2000] {
        let ranks = split("10.0.0.1:29500").into_iter().map(|rank| {
            let mut rank = rank.later(ms);
            if &*rank.host == "node2" {
                let shift = 100_000_000_000;
                rank.reading.at.0 += shift;
                if let Reading::Value(groups) = &mut rank.reading.groups
                    && let Reading::Value(pending) = &mut groups[0].pending
                {
                    pending.iter_mut().for_each(|p| p.called_ns += shift * 1_000_000);
                }
            }
            rank
        });
        told = watch.observe(Mono(ms), &ranks.collect::<Vec<_>>());
    }
    assert_eq!(sentences(&told), [expected]);
    // An address of the host itself means two jobs, of which each has only half of its ranks here.
    assert_eq!(look(&split("localhost:29500"), &[0, 2000]).len(), 2);
    // Only one of the hosts is observed.
    let one: Vec<_> = split("10.0.0.1:29500").into_iter().take(2).collect();
    let long = sentences(&look(&one, &[0, 1000, 11_000]));
    let expected = "2 ranks wait for 50 s at ALLREDUCE #30 in group dp: ranks 2 and 3 have no process on this host";
    assert_eq!(long, [expected]);
}

#[test]
fn a_rank_that_goes_on_does_not_wait() {
    // The watchdog of rank 0 is stuck, so its works stay in the list while it calls others.
    let mut watch = JobWatch::default();
    for ms in [0, 2000, 4000] {
        let ranks = ranks(4, |number, rank| {
            let rank = rank.group("dp", &all(4), 100 + ms);
            let oldest = work(70 + u64::from(number), "ALLREDUCE", SIZE);
            if number == 0 { rank.pending(oldest, 100.0) } else { rank }
        });
        let ranks: Vec<_> = ranks.iter().map(|rank| rank.later(ms)).collect();
        let reports = watch.observe(Mono(ms), &ranks);
        assert_eq!(sentences(&reports), [""; 0]);
        assert!(reports[0].ranks.iter().all(|rank| rank.state == RankState::Runs));
    }
}

#[test]
fn ranks_that_advance_do_not_wait() {
    // Rank 0 runs 12 s ahead of its GPU, and rank 1 is even later. Both go on.
    let mut watch = JobWatch::default();
    for ms in [0, 1000, 2000, 3000] {
        let step = ms / 1000;
        let ranks = ranks(2, |number, rank| {
            let oldest = work(100 + step, "ALLREDUCE", SIZE);
            match number {
                0 => rank.group("dp", &all(2), 150 + step).pending(oldest, 12.0 - step as f64),
                _ => rank.group("dp", &all(2), 90 + step),
            }
        });
        let ranks: Vec<_> = ranks.iter().map(|rank| rank.later(ms)).collect();
        assert_eq!(sentences(&watch.observe(Mono(ms), &ranks)), [""; 0]);
    }
}

#[test]
fn numbers_of_two_kinds_are_not_compared() {
    // The newest point-to-point operation is #29, and the newest collective #30.
    let pipeline = ranks(2, |number, mut rank| {
        rank = rank.group("pp", &all(2), 30);
        let group = &mut rank.groups()[0];
        group.called_p2p = 29.into();
        group.enqueued = Some(work(29, "SEND", 64));
        if number == 0 { rank } else { rank.waits(30) }
    });
    assert_eq!(sentences(&look(&pipeline, &[0, 1000, 20_000])), [""; 0]);
    // Rank 0 is inside #35, so it does not hold up #30.
    let later = ranks(2, |number, rank| match number {
        0 => rank.group("tp", &all(2), 34).inside(),
        _ => rank.group("tp", &all(2), 35).waits(30),
    });
    assert_eq!(sentences(&look(&later, &[0, 1000, 20_000])), [""; 0]);
}

#[test]
fn a_group_is_the_same_with_and_without_a_list_of_members() {
    let ranks = change(one_behind(4, 1), 1, |mut rank| {
        rank.groups()[0].members = None;
        rank
    });
    assert_eq!(say(&ranks), say(&one_behind(4, 1)));
}

#[test]
fn a_circle_with_a_busy_rank_may_be_none() {
    let circle = ranks(2, |number, rank| {
        let a = rank.group("a", &all(2), 29);
        let a = if number == 0 { a.waits(30) } else { a }.group("b", &all(2), 29);
        if number == 0 { a } else { a.waits(30) }
    });
    let expected = "rank 0 (group a) and rank 1 (group b) wait for each other for 41 s";
    assert_eq!(say(&circle), [expected]);
    assert_eq!(say(&change(circle, 1, |rank| rank.stack(SAVE))), [""; 0]);
}

#[test]
fn an_old_reading_says_nothing() {
    // The reading of rank 1 is not renewed, so nobody knows what it has called since.
    let ranks = one_behind(4, 1);
    let mut watch = JobWatch::default();
    let mut told = Vec::new();
    for ms in [0, 1000, 2000, 3000, 4000, 5000] {
        let later = |(n, rank): (usize, &Rank)| rank.later(if n == 1 { 0 } else { ms });
        let ranks: Vec<_> = ranks.iter().enumerate().map(later).collect();
        told = sentences(&watch.observe(Mono(ms), &ranks));
    }
    assert_eq!(told, [""; 0]);
}

#[test]
fn describes_each_rank_and_equal_stacks() {
    let mut waiting = ITEM.to_vec();
    waiting
        .insert(0, ("all_reduce", "/venv/site-packages/torch/distributed/distributed_c10d.py", 9));
    let ranks = change(with_stacks(one_behind(8, 0), &waiting), 0, |rank| rank.stack(LOADER));
    let reports = look(&ranks, &[0, 2000]);
    let states: Vec<_> = reports[0].ranks.iter().map(|row| row.state.to_string()).collect();
    assert_eq!(states[..2], ["holds up others", "waits for rank 0"]);
    let last = reports[0].ranks[1].last.as_ref().expect("a collective");
    assert_eq!((last.work.seq, last.pending.map(|age| age.0)), (30, Some(41_000)));
    let stacks: Vec<_> = reports[0].stacks.iter().map(ToString::to_string).collect();
    assert_eq!(stacks, ["7 ranks wait in all_reduce < step", "rank 0 is in wait < get < train"]);
    assert_eq!(reports[0].world_size, Some(8));
}

#[test]
fn groups_of_a_mesh_are_one_verdict() {
    let mesh = ranks(8, |number, rank| {
        let pair = [number % 4, number % 4 + 4];
        let mut rank = rank.group(&format!("g{pair:?}"), &pair, 29);
        rank.groups()[0].description = "mesh_dp".into();
        if number < 4 { rank.waits(30) } else { rank }
    });
    let expected = "ranks 4, 5 and 2 more hold up 4 ranks for 41 s: they have not come to ALLREDUCE #30 in group mesh_dp";
    assert_eq!(say(&mesh), [expected]);
}

#[test]
fn a_rank_in_its_data_loader_waits_for_no_rank() {
    // Rank 1 has launched a collective for rank 3, which waits for rank 1.
    let ranks = ranks(4, |number, rank| {
        let tp: &[u32] = if number < 2 { &[0, 1] } else { &[2, 3] };
        let dp: &[u32] = if number % 2 == 0 { &[0, 2] } else { &[1, 3] };
        let rank = rank.group("dp", dp, 29);
        let rank = if number == 1 { rank.waits(30) } else { rank };
        let rank = rank.group("tp", tp, 29).group("world", &all(4), 29);
        if number == 1 { rank.stack(LOADER) } else { rank.waits(30) }
    });
    let expected = "rank 1 holds up 3 ranks for 41 s: it waits for its data loader (train.py:88)";
    assert_eq!(say(&ranks), [expected]);
}

#[test]
fn a_camp_of_equal_size_is_not_named() {
    let half = ranks(4, |number, rank| {
        let operation = if number < 2 { "ALLREDUCE" } else { "_ALLGATHER_BASE" };
        rank.group("dp", &all(4), 29).pending(work(30, operation, SIZE), 39.0)
    });
    let told = say(&half);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("4 ranks wait for 41 s: some called"), "{told:?}");
}

#[test]
fn hostile_text_is_bounded() {
    let long = "x".repeat(10_000);
    let ranks = ranks(4, |number, rank| {
        let rank = rank.group(&long, &all(4), 29);
        match number {
            1 => rank.stack(&[(&long, &long, 1)]),
            _ => rank.pending(work(30, &long, 1), 39.0),
        }
    });
    let told = say(&ranks);
    assert!(told[0].chars().count() < 160, "{told:?}");
    let exited = change(ranks, 1, |rank| rank.exited(&long, Some(&long)));
    assert!(say(&exited)[0].chars().count() < 160);
}

//! Tests with an idle process: every statistic and every block must be the same as PyTorch's.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::compare::differences;
use crate::harness::{EXPANDABLE, Launch, Release, releases};
use crate::reader;

struct Scenario {
    name: &'static str,
    commands: &'static [&'static str],
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "nothing yet", commands: &[] },
    Scenario { name: "one block", commands: &["alloc 1"] },
    Scenario { name: "400 mixed", commands: &["alloc 400", "free 0.4", "alloc 50"] },
    Scenario {
        name: "full",
        commands: &[
            "alloc 400",
            "free 0.4",
            "alloc 50",
            "oom",
            "pool 1 8",
            "record_stream 20",
            "device 1",
            "alloc 60",
            "free 0.2",
            "oom",
            "oom",
            "stream 1",
            "alloc 30",
            "device 0",
        ],
    },
    Scenario { name: "idle private pool", commands: &["alloc 50", "pool 1 30", "free 1"] },
    Scenario {
        name: "released private pools",
        commands: &[
            "alloc 50",
            "pool 1 30",
            "pool 2 30",
            "pool 1 5",
            "free 0.5",
            "release_pool 2",
            "empty_cache",
        ],
    },
    Scenario { name: "all freed", commands: &["alloc 300", "free 1"] },
    Scenario { name: "emptied cache", commands: &["alloc 300", "free 1", "empty_cache"] },
    Scenario {
        name: "holes",
        commands: &["alloc 300", "free 0.8", "empty_cache", "alloc 20", "free 0.1"],
    },
    Scenario {
        name: "resets",
        commands: &[
            "alloc 300",
            "free 0.5",
            "reset accumulated",
            "reset peak",
            "alloc 20",
            "free 0.3",
        ],
    },
    Scenario {
        name: "four streams",
        commands: &[
            "alloc 100",
            "stream 1",
            "alloc 100",
            "stream 2",
            "alloc 100",
            "stream 3",
            "alloc 100",
            "free 0.5",
            "stream 0",
            "record_stream 40 1000",
            "events ready",
            "alloc 1",
        ],
    },
    Scenario { name: "30,000 blocks", commands: &["alloc 30000 2048", "free 0.5", "alloc 3000"] },
];

const TUNED: &str =
    "max_split_size_mb:64,garbage_collection_threshold:0.6,roundup_power2_divisions:4";

struct Case {
    release: Release,
    scenario: &'static Scenario,
    conf: &'static str,
}

#[test]
fn every_statistic_and_block_of_an_idle_process_is_pytorchs() {
    let mut cases = Vec::new();
    for release in releases() {
        for scenario in SCENARIOS {
            let mut confs = vec![""];
            if release.at_least(20100) {
                confs.push(EXPANDABLE);
            }
            // Torch 1.13 does not support this rounding, and its other two settings change little there.
            if scenario.name == "full" && release.at_least(20000) {
                confs.push(TUNED);
            }
            for conf in confs {
                let release = release.clone();
                cases.push(Case { release, scenario, conf });
            }
        }
    }
    let failures = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = differing(case);
                    if !found.is_empty() {
                        failures.lock().unwrap().push(format!(
                            "{} / {} / {}:\n    {}",
                            case.release.name,
                            case.scenario.name,
                            if case.conf.is_empty() { "default" } else { case.conf },
                            found.join("\n    ")
                        ));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    println!("{} cases, {} differ", cases.len(), failures.len());
    assert!(
        failures.is_empty(),
        "{} of {} differ\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

fn differing(case: &Case) -> Vec<String> {
    let mut harness = Launch::new(&case.release).conf(case.conf).start();
    harness.run_all(case.scenario.commands);
    let run = reader::run(harness.pid);
    if run.code != 0 {
        return vec![format!("not read: {}", run.message())];
    }
    differences(&harness.truth(), &run.reading())
}

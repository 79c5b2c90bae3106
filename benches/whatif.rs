//! Measures how many operations per second the what-if model simulates, and how much memory it needs. Limits: 2 million
//! per second; memory only for live blocks.
//!
//! Run `cargo bench --bench whatif`. Append `-- 10000000` for another number of operations.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use gputop_allocator::config::Config;
use gputop_allocator::rules::NEWEST;
use gputop_allocator::trace::{Op, PoolId, Trace};
use gputop_allocator::whatif::{Room, replay};
use gputop_model::units::Bytes;

const MIN_EVENTS_PER_SECOND: f64 = 2e6;

fn main() {
    let operations = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(3_000_000);
    let mut slowest = f64::MAX;
    for live in [500, 20_000] {
        let trace = training(operations, live);
        for conf in [
            "",
            "expandable_segments:True",
            "max_split_size_mb:128",
            "roundup_power2_divisions:4",
            "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
        ] {
            let rules = Config::read(conf, NEWEST).unwrap().rules(NEWEST);
            let room = Room { card: Bytes::gib(80), outside: Bytes(0) };
            let before = resident();
            let start = Instant::now();
            let outlook = replay(&trace, &rules, room);
            let rate = outlook.played as f64 / start.elapsed().as_secs_f64();
            slowest = slowest.min(rate);
            println!(
                "{live:>6} live  {conf:<68} {:>5.1} M/s  reserved {:>10}  {} retries  {} ooms  {:>5} KiB more",
                rate / 1e6,
                outlook.peak_reserved.to_string(),
                outlook.num_alloc_retries,
                outlook.num_ooms,
                resident().saturating_sub(before) / 1024,
            );
        }
    }
    println!(
        "slowest {:.1} M/s, at least {:.1} wanted",
        slowest / 1e6,
        MIN_EVENTS_PER_SECOND / 1e6
    );
    assert!(slowest >= MIN_EVENTS_PER_SECOND);
}

/// Returns the operations of training steps: activations are allocated in order and freed in reverse. Some sizes vary,
/// and some blocks remain.
fn training(operations: usize, live: usize) -> Trace {
    let mut dice = 7_u64;
    let mut next = move || {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice
    };
    let mut ops = Vec::with_capacity(operations + 3 * live);
    let mut held: Vec<u64> = Vec::new();
    let mut name = 0;
    while ops.len() < operations {
        while held.len() < live {
            name += 1;
            let bits = 9 + next() % if live > 1000 { 12 } else { 18 };
            let requested = Bytes((1 << bits) + next() % (1 << bits));
            ops.push(Op::Alloc {
                block: name,
                requested,
                stream: u64::from(next() % 8 == 0),
                pool: PoolId::SHARED,
            });
            held.push(name);
        }
        for _ in 0..live * 9 / 10 {
            let at = held.len() - 1 - (next() as usize % 4).min(held.len() - 1);
            let block = held.remove(at);
            ops.push(Op::Free { block });
            ops.push(Op::FreeCompleted { block });
        }
    }
    Trace { ops, ..Trace::default() }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

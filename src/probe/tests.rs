//! Tests of the probe's parent process with various children, and of the policies on a simulated GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use gputop_allocator::config::Config;
use gputop_allocator::model::Model;
use gputop_allocator::rules::NEWEST;
use gputop_allocator::trace::{Live, Op, PoolId, Trace};
use gputop_model::probe::{POLICIES, PatternResult};
use gputop_model::{Block, BlockState, Bytes, GpuUuid, Policy, PoolKind, Segment};
use proptest::prelude::*;

use super::device::{Device, DeviceError, GRANULE};
use super::pattern::{AllocationPattern, PatternRequest, of_map, of_maps, of_trace, synthetic};
use super::*;

/// Runs a probe whose child process is a shell script.
fn probe_shell(script: &str, start_timeout: Duration) -> Probe {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let request =
        ChildRequest { gpu: GpuUuid("GPU-1".into()), limit: Millis(0), ..ChildRequest::default() };
    probe_with(command, &request, start_timeout)
}

fn why(probe: &Probe) -> &str {
    assert_eq!(probe.outcome, Outcome::Failed, "{probe:?}");
    probe.reason.as_deref().unwrap_or_default()
}

const LONG_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_child_with_endless_output_is_killed() {
    let probe = probe_shell("yes '{\"outcome\":'", LONG_TIMEOUT);
    assert_eq!(why(&probe), "the probe process was killed because its output was too long");
}

#[test]
fn a_child_without_an_answer_is_described_by_its_exit() {
    assert_eq!(
        why(&probe_shell("exit 3", LONG_TIMEOUT)),
        "the probe process exited with code 3 without a result"
    );
    assert!(why(&probe_shell("kill -ABRT $$", LONG_TIMEOUT)).contains("killed by signal 6"));
    assert!(why(&probe_shell("kill -ALRM $$", LONG_TIMEOUT)).contains("did not return in time"));
    assert!(why(&probe_shell("echo nonsense", LONG_TIMEOUT)).contains("cannot read the output"));
}

#[test]
fn a_late_child_is_killed() {
    let probe = probe_shell("exec sleep 1000", Duration::ZERO);
    assert!(why(&probe).contains("and was killed"), "{probe:?}");
}

#[test]
fn the_answer_of_a_child_is_sanitized() {
    let line = r#"{"gpu":"GPU-2","outcome":"refused","reason":"\u001b[31mred","schema":7}"#;
    let probe = probe_shell(&format!("echo '{line}'"), LONG_TIMEOUT);
    assert_eq!(probe.reason.as_deref(), Some("^[[31mred"));
    assert_eq!((&*probe.gpu.0, probe.schema), ("GPU-1", 1));
    let bin = r#"{"up_to_bytes":512,"count":1,"bytes":1}"#;
    let many = vec![bin; 2_000].join(",");
    let line = format!(r#"{{"driver":{{"histogram":[{many}]}}}}"#);
    let fill = probe_shell(&format!("echo '{line}'"), LONG_TIMEOUT).driver.expect("a fill");
    assert_eq!(fill.histogram.len(), MAX_BINS);
}

/// A simulated GPU whose memory is never fragmented.
#[derive(Default)]
struct SimulatedGpu {
    size: u64,
    held: u64,
    peak: u64,
    next: u64,
    blocks: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, u64>,
    ranges: u64,
    pool: BTreeMap<u64, u64>,
    pool_reserved: u64,
    clock: u64,
    /// Number of allocations until the simulated GPU fails.
    fails_after: Option<u32>,
}

impl SimulatedGpu {
    fn new(size: u64) -> Self {
        Self { size, next: 1 << 40, ..Self::default() }
    }

    fn take(&mut self, size: u64) -> Result<(), DeviceError> {
        let size = size.next_multiple_of(GRANULE);
        if let Some(remaining) = &mut self.fails_after {
            let left = remaining.checked_sub(1);
            *remaining = left.ok_or_else(|| DeviceError::Failed("the GPU was lost".into()))?;
        }
        if self.held + size > self.size {
            return Err(DeviceError::OutOfMemory);
        }
        self.held += size;
        self.peak = self.peak.max(self.held);
        Ok(())
    }

    fn address(&mut self, size: u64) -> u64 {
        let address = self.next;
        self.next += size.next_multiple_of(GRANULE) + GRANULE;
        address
    }

    fn is_empty(&self) -> bool {
        self.held == 0 && self.blocks.is_empty() && self.mapped.is_empty() && self.ranges == 0
    }
}

impl Device for SimulatedGpu {
    fn now_us(&self) -> u64 {
        self.clock
    }

    fn free_bytes(&mut self) -> Result<Bytes, DeviceError> {
        Ok(Bytes(self.size - self.held))
    }

    fn alloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.take(size)?;
        self.clock += 100;
        let address = self.address(size);
        self.blocks.insert(address, size);
        Ok(address)
    }

    fn free(&mut self, address: u64) {
        let size = self.blocks.remove(&address).expect("a block");
        self.held -= size.next_multiple_of(GRANULE);
    }

    fn reserve(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.ranges += 1;
        Ok(self.address(size))
    }

    fn unreserve(&mut self, _address: u64, _size: u64) {
        self.ranges -= 1;
    }

    fn map(&mut self, address: u64, size: u64) -> Result<(), DeviceError> {
        self.take(size)?;
        assert!(self.mapped.insert(address, size).is_none(), "mapped twice");
        Ok(())
    }

    fn unmap(&mut self, address: u64, size: u64) {
        assert_eq!(self.mapped.remove(&address), Some(size));
        self.held -= size;
    }

    fn open_pool(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn pool_alloc(&mut self, size: u64) -> Result<u64, DeviceError> {
        self.take(size)?;
        self.pool_reserved += size.next_multiple_of(GRANULE);
        let address = self.address(size);
        self.pool.insert(address, size);
        Ok(address)
    }

    fn pool_free(&mut self, address: u64) {
        self.pool.remove(&address).expect("a block");
    }

    fn pool_reserved(&mut self) -> Result<u64, DeviceError> {
        Ok(self.pool_reserved)
    }

    fn close_pool(&mut self) {
        assert!(self.pool.is_empty(), "the closed pool has live blocks");
        self.held -= self.pool_reserved;
        self.pool_reserved = 0;
    }
}

const MIB: u64 = 1 << 20;

fn pattern(requests: &[(u64, u32)]) -> AllocationPattern {
    let requests = requests.iter().map(|(size, lives)| PatternRequest(*size, *lives));
    AllocationPattern { source: "test".into(), requests: requests.collect() }
}

fn run(policy: Policy, requests: &[(u64, u32)], arena: u64) -> PatternResult {
    let mut gpu = SimulatedGpu::new(1 << 34);
    let run = policy::run(&mut gpu, policy, &pattern(requests), Bytes(arena), u64::MAX);
    assert!(gpu.is_empty(), "{policy:?} leaked memory");
    assert_eq!(run.missing, None);
    run
}

#[test]
fn expandable_segments_fit_what_is_fragmented_under_native_rules() {
    // Under the native policy, free blocks of 18 MiB and 2 MiB remain next to live blocks, each in its own segment. In
    // an expandable range, the free memory forms one block at the end.
    let requests = [(20 * MIB, 1), (2 * MIB, 0), (22 * MIB, 1), (20 * MIB, 0), (40 * MIB, 0)];
    let native = run(Policy::Native, &requests, 80 * MIB);
    let expandable = run(Policy::Expandable, &requests, 80 * MIB);
    assert_eq!((native.failures, native.free_bytes), (1, Bytes::mib(20)));
    assert_eq!((expandable.failures, expandable.free_bytes), (0, Bytes::mib(18)));
}

#[test]
fn native_rules_split_merge_and_release() {
    // Two blocks of 4 MiB share a segment of 20 MiB. Adjacent free blocks are merged again.
    let split = run(Policy::Native, &[(4 * MIB, 0), (4 * MIB, 0)], 1 << 30);
    assert_eq!(split.reserved_bytes, Bytes::mib(20));
    assert_eq!(split.largest_free_block, Bytes::mib(12));
    let merged = run(Policy::Native, &[(4 * MIB, 2), (4 * MIB, 1), (512, 0)], 1 << 30);
    assert_eq!(merged.largest_free_block, Bytes::mib(20));
    // A completely free segment is released if the next request does not fit.
    let released = run(Policy::Native, &[(30 * MIB, 1), (40 * MIB, 0)], 64 * MIB);
    assert_eq!((released.failures, released.reserved_bytes), (0, Bytes::mib(40)));
    // A remainder of 1 MiB or less is not split off.
    let unsplit = run(Policy::Native, &[(12 * MIB - 512, 0)], 1 << 30);
    assert_eq!(unsplit.free_bytes, Bytes(0));
    assert_eq!(unsplit.external_fragmentation, None);
}

#[test]
fn plain_allocation_wastes_only_the_remainders_of_pages() {
    let plain = run(Policy::Plain, &[(3 * MIB, 0), (40 * MIB, 1), (512, 0)], 1 << 30);
    assert_eq!(plain.allocated_bytes, Bytes(3 * MIB + 512));
    assert_eq!(plain.reserved_bytes, Bytes::mib(6));
}

#[test]
fn the_pattern_of_a_process_has_its_sizes_and_fits() {
    let blocks = (0..5_000_u64).map(|at| Block {
        address: at << 20,
        size: Bytes(MIB),
        requested: (at % 2 == 0).then_some(Bytes(MIB - 100)),
        state: if at % 2 == 0 { BlockState::Allocated } else { BlockState::Free },
    });
    let map = PoolMap {
        segments: vec![Segment {
            size: Bytes(5_000 << 20),
            pool: PoolKind::Large,
            blocks: blocks.collect(),
            ..Segment::default()
        }],
        ..PoolMap::default()
    };
    let pattern = of_map(&map, "PID 1", Bytes::gib(1));
    assert!(pattern.requests.len() <= pattern::MAX_REQUESTS);
    assert!(pattern.requests.len() > 100);
    let live = pattern.requests.iter().filter(|wanted| wanted.1 == 0);
    assert!(live.clone().all(|wanted| wanted.0 == MIB - 100));
    assert_eq!(live.count() * 3, pattern.requests.len(), "each freed block is requested twice");
    let request = ChildRequest { pattern, ..ChildRequest::default() };
    assert!(serde_json::to_string(&request).expect("JSON").len() < MAX_REQUEST_BYTES);
    assert_eq!(of_map(&PoolMap::default(), "", Bytes::gib(1)).requests, []);
}

#[test]
fn a_history_determines_sizes_and_lifetimes() {
    let alloc = |block, mib| Op::Alloc {
        block,
        requested: Bytes::mib(mib),
        stream: 0,
        pool: PoolId::SHARED,
    };
    let mut trace = Trace {
        start: vec![Live { block: 9, requested: Bytes::mib(7), stream: 0, pool: PoolId::SHARED }],
        ops: vec![
            alloc(1, 10),
            alloc(2, 20),
            Op::Free { block: 1 },
            alloc(3, 900),
            alloc(1, 30),
            Op::Free { block: 9 },
        ],
        ..Trace::default()
    };
    let lives = |trace: &Trace, arena| {
        let requests = of_trace(trace, "PID 1, allocation trace", arena).requests;
        requests.iter().map(|w| (w.0 / MIB, w.1)).collect::<Vec<_>>()
    };
    // A block larger than half of the arena is omitted, and its request does not count toward the other blocks'
    // lifetimes.
    assert_eq!(lives(&trace, Bytes::gib(1)), [(7, 4), (10, 2), (20, 0), (30, 0)]);
    trace.ops.extend((10..2_000).flat_map(|n| [alloc(n, 1), Op::Free { block: n }]));
    let many = lives(&trace, Bytes::gib(1));
    assert!(many.len() <= pattern::MAX_REQUESTS && many.len() > 300);
    assert!(many.iter().filter(|(mib, _)| *mib == 1).all(|(_, lives)| *lives == 1));
}

/// Returns a map of 64 MiB with `live` blocks, given as position and size in MiB. All other memory is free.
fn timed_map(requests: u64, live: &[(u64, u64)]) -> pattern::TimedMap {
    let mut blocks = Vec::new();
    let mut at = 0;
    let mut add = |from: u64, to: u64, state| {
        if to > from {
            blocks.push(Block {
                address: from * MIB,
                size: Bytes::mib(to - from),
                requested: None,
                state,
            });
        }
    };
    for &(from, mib) in live {
        add(at, from, BlockState::Free);
        add(from, from + mib, BlockState::Allocated);
        at = from + mib;
    }
    add(at, 64, BlockState::Free);
    pattern::TimedMap {
        requests,
        map: PoolMap {
            segments: vec![Segment { size: Bytes::mib(64), blocks, ..Segment::default() }],
            ..PoolMap::default()
        },
    }
}

#[test]
fn several_maps_show_allocations_and_frees_between_them() {
    let maps = [
        timed_map(100, &[(0, 4), (10, 8)]),
        timed_map(102, &[(0, 4), (10, 8), (30, 2), (40, 3)]),
        timed_map(104, &[(0, 4), (30, 2), (50, 5)]),
    ];
    let found = of_maps(&maps, "PID 1", Bytes::gib(1)).expect("something happened");
    let of = |mib: u64| {
        let mut all = found.requests.iter().filter(|w| w.0 == mib * MIB);
        all.next().map(|wanted| wanted.1)
    };
    assert_eq!((of(4), of(2), of(5)), (Some(0), Some(0), Some(0)), "still there");
    assert!(of(8) > Some(1) && of(3) > Some(0), "{found:?}");
    // Three of the four requests are in the maps. The fourth has the size of a block that is now free.
    assert!(found.requests.len() >= 6, "{found:?}");
    assert!(found.requests.iter().all(|w| w.0 <= 29 * MIB));
    // There is no pattern for a single map, or if the request counter was reset.
    assert_eq!(of_maps(&maps[..1], "PID 1", Bytes::gib(1)), None);
    let reset = [maps[2].clone(), maps[0].clone()];
    assert_eq!(of_maps(&reset, "PID 1", Bytes::gib(1)), None);
    assert_eq!(of_maps(&[], "PID 1", Bytes::gib(1)), None);
}

#[test]
fn the_pattern_of_a_busy_process_is_bounded() {
    let maps = [timed_map(0, &[(0, 4)]), timed_map(1 << 40, &[(0, 4)])];
    let found = of_maps(&maps, "PID 1", Bytes::gib(1)).expect("something happened");
    assert!(found.requests.len() > 100 && found.requests.len() <= pattern::MAX_REQUESTS);
}

#[test]
fn the_synthetic_pattern_fits_every_arena() {
    for arena in [Bytes::mib(2), Bytes::mib(64), Bytes::gib(1), Bytes::gib(64)] {
        let pattern = synthetic(arena);
        let requests: Vec<(u64, u32)> = pattern.requests.iter().map(|w| (w.0, w.1)).collect();
        let plain = run(Policy::Plain, &requests, arena.0);
        assert_eq!(plain.failures, 0, "{arena}");
        assert!(requests.len() > 20, "{arena}: {}", requests.len());
    }
}

#[test]
fn policies_report_a_failing_gpu_and_return_all_memory() {
    // Each request needs a segment of 40 MiB, or two pages of 20 MiB.
    let requests = [(40 * MIB, 0); 4];
    for &policy in POLICIES {
        let mut gpu = SimulatedGpu::new(1 << 34);
        gpu.fails_after = Some(3);
        let run = policy::run(&mut gpu, policy, &pattern(&requests), Bytes(1 << 30), u64::MAX);
        assert_eq!(run.missing.as_deref(), Some("the GPU was lost"));
        assert!(gpu.is_empty(), "{policy:?} leaked memory");
    }
}

proptest! {
    /// Checks that the GPU holds exactly the memory that the model predicts for the same requests.
    #[test]
    fn pytorch_policies_agree_with_the_model(
        requests in prop::collection::vec((1..40 * MIB, 0..12_u32), 0..80),
        arena in 1..300 * MIB,
    ) {
        for (policy, conf) in [(Policy::Native, ""), (Policy::Expandable, "expandable_segments:True")] {
            let run = run(policy, &requests, arena);
            let config = Config::read(conf, NEWEST).expect("a setting");
            let mut model = Model::new(config.rules(NEWEST), Bytes(arena), Bytes(arena));
            for (at, (size, _)) in (0_u64..).zip(&requests) {
                for (block, (_, lives)) in (0_u64..at).zip(&requests) {
                    if *lives > 0 && block + u64::from(*lives) == at {
                        model.play(&Op::Free { block });
                        model.play(&Op::FreeCompleted { block });
                    }
                }
                model.alloc(at, Bytes(*size), 0, PoolId::SHARED);
            }
            let stats = model.stats();
            prop_assert_eq!(run.failures, stats.num_ooms);
            prop_assert_eq!(run.allocated_bytes.0, stats.allocated.current);
            prop_assert_eq!(run.reserved_bytes.0, stats.reserved.current);
            prop_assert_eq!(run.reserved_peak_bytes.0, stats.reserved.peak);
            let map = PoolMap { segments: model.segments(), ..PoolMap::default() };
            prop_assert_eq!(run.free_histogram, bins(&Fragmentation::of(&map).histogram));
        }
    }

    #[test]
    fn policies_return_all_memory_and_bins_add_up(
        requests in prop::collection::vec((1..40 * MIB, 0..12_u32), 0..80),
        arena in 1..300 * MIB,
    ) {
        for &policy in POLICIES {
            let run = run(policy, &requests, arena);
            let binned: u64 = run.free_histogram.iter().map(|bin| bin.bytes.0).sum();
            prop_assert_eq!(binned, run.free_bytes.0);
            if matches!(policy, Policy::Native | Policy::Expandable) {
                prop_assert!(run.reserved_peak_bytes.0 <= arena);
                let sum = run.free_bytes.0 + run.allocated_bytes.0;
                prop_assert_eq!(sum, run.reserved_bytes.0);
            }
        }
    }

    #[test]
    fn a_fill_is_the_binary_form_of_the_free_memory(size in 1..1_u64 << 38, headroom in 0..1_u64 << 34) {
        let mut gpu = SimulatedGpu::new(size);
        let fill = fill::fill(&mut gpu, headroom, u64::MAX).expect("a fill");
        let room = size.saturating_sub(headroom) / GRANULE * GRANULE;
        prop_assert_eq!(fill.held_bytes.0, room);
        let blocks: u64 = fill.histogram.iter().map(|bin| bin.count).sum();
        prop_assert_eq!(blocks, u64::from(room.count_ones()));
        prop_assert!(gpu.is_empty());
        prop_assert!(fill.is_clean());
    }
}

#[test]
fn a_fill_stops_at_its_deadline() {
    let mut gpu = SimulatedGpu::new(7 << 30);
    let fill = fill::fill(&mut gpu, 0, 150).expect("a fill");
    assert!(fill.cut_short && !fill.is_clean());
    assert_eq!(fill.held_bytes, Bytes::gib(6));
    assert!(gpu.is_empty());
}

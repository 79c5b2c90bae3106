//! The figures of the memory screen: where a process's memory is, in parts whose printed values add up.
//!
//! Statistics, map, and the driver's view are of slightly different moments. The parts of the pool come from the map
//! while that is as fresh as the statistics, since only it knows what is stuck; otherwise from the statistics.

use super::analysed_map::Read;
use crate::allocator::fits::{Fits, returnable, stuck};
use crate::allocator::fragmentation::Fragmentation;
use crate::model::frame::Frame;
use crate::model::gpu::Gpu;
use crate::model::pool::Pool;
use crate::model::units::{Bytes, apportion};
use crate::tui::pools;

/// Printed sizes are in GiB with two decimals.
pub const STEP: u64 = Bytes::gib(1).0 / 100;

/// Sizes as they are printed: multiples of [`STEP`] whose sums are the sums printed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures {
    pub allocated: Bytes,
    pub idle: Bytes,
    /// The parts of `idle`; `None` when it is not known how it is split.
    pub idle_parts: Option<IdleParts>,
    /// What the process holds beside its pool; `None` when the driver does not say what the process holds.
    pub other: Option<Bytes>,
    /// The sum of the above.
    pub process: Bytes,
    /// The driver's side, when it was read.
    pub card: Option<Card>,
    /// Samples contradict each other, so a remainder is not exact.
    pub approximate: bool,
    pub fits: Fits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdleParts {
    pub stuck: Bytes,
    pub returnable: Bytes,
    /// Whole free segments of private pools.
    pub kept: Bytes,
    /// Freed, but another stream may still use it.
    pub waiting: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Card {
    /// The sum of its parts.
    pub total: Bytes,
    pub driver: Bytes,
    /// Used by others, or by nobody that is listed.
    pub elsewhere: Bytes,
    pub free: Bytes,
}

/// Exact sizes of one pool's parts.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    allocated: Bytes,
    idle: Bytes,
    split: Option<IdleParts>,
}

impl Parts {
    fn of(pool: &Pool, read: Option<&Read>) -> Self {
        match read {
            Some(read) => Self::of_map(&read.fragmentation),
            None => Self::of_stats(pool),
        }
    }

    fn of_map(of: &Fragmentation) -> Self {
        let split = IdleParts {
            stuck: of.stuck,
            returnable: of.returnable,
            kept: of.kept,
            waiting: of.active,
        };
        Self {
            allocated: of.allocated,
            idle: Bytes(of.free.0.saturating_add(of.active.0)),
            split: Some(split),
        }
    }

    fn of_stats(pool: &Pool) -> Self {
        let (stats, idle) = (&pool.stats, pool.stats.idle());
        let split = stuck(stats)
            .zip(returnable(stats))
            .map(|(stuck, returnable)| {
                // Of statistics that were changing, the parts may not sum up: the last one is the remainder.
                let waiting = stats.waiting();
                let stuck = stuck.0.min(idle.0 - waiting.0);
                IdleParts {
                    stuck: Bytes(stuck),
                    returnable: Bytes(returnable.0.min(idle.0 - waiting.0 - stuck)),
                    kept: Bytes(0),
                    waiting,
                }
            });
        Self {
            allocated: stats.allocated.last(),
            idle,
            split,
        }
    }

    /// Idle in its known parts and what is left of it.
    fn idle_list(&self) -> [Bytes; 5] {
        let split = self.split.unwrap_or_default();
        let known = [split.stuck, split.returnable, split.kept, split.waiting];
        let sum = known.iter().fold(0_u64, |sum, p| sum.saturating_add(p.0));
        let rest = Bytes(self.idle.0.saturating_sub(sum));
        [known[0], known[1], known[2], known[3], rest]
    }
}

/// The driver's figures of a card, exact.
fn card(gpu: &Gpu, process: u64) -> Option<([Bytes; 3], bool)> {
    let (total, free) = (gpu.memory.total.get()?, gpu.memory.free.get()?);
    let used = total.0.saturating_sub(free.0);
    let driver = gpu.memory.reserved.get().unwrap_or_default().0.min(used);
    let elsewhere = (used - driver).checked_sub(process);
    let parts = [
        Bytes(driver),
        Bytes(elsewhere.unwrap_or(0)),
        Bytes(free.0.min(total.0)),
    ];
    Some((parts, elsewhere.is_none()))
}

impl Figures {
    pub fn of(frame: &Frame, pool: &Pool, read: Option<&Read>) -> Self {
        let read = read.filter(|read| read.is_fresh(pool));
        let parts = Parts::of(pool, read);
        let gpu = pools::gpu_of(frame, pool);
        let vram = pools::vram(frame, pool);
        let held = parts.allocated.0.saturating_add(parts.idle.0);
        let other = vram.map(|vram| vram.0.saturating_sub(held));
        let process = held.saturating_add(other.unwrap_or(0));
        let card = gpu.and_then(|gpu| card(gpu, process));
        let contradicts = vram.is_some_and(|vram| vram.0 < held);
        let mut figures = Self {
            approximate: contradicts || card.is_some_and(|(_, contradicts)| contradicts),
            fits: fits(frame, gpu, pool, read),
            ..Self::default()
        };
        figures.print(&parts, other, card.map(|(card, _)| card));
        figures
    }

    /// Rounds all parts of the card at once, so that every sum is the sum of what is printed.
    fn print(&mut self, parts: &Parts, other: Option<u64>, card: Option<[Bytes; 3]>) {
        let mut exact = vec![parts.allocated, Bytes(other.unwrap_or(0))];
        exact.extend(parts.idle_list());
        exact.extend(card.unwrap_or_default());
        let printed = apportion(&exact, STEP);
        let sum = |parts: &[Bytes]| Bytes(parts.iter().map(|p| p.0).sum());
        self.allocated = printed[0];
        self.other = other.map(|_| printed[1]);
        self.idle = sum(&printed[2..7]);
        self.process = sum(&printed[..7]);
        self.idle_parts = parts.split.map(|_| IdleParts {
            stuck: printed[2],
            // What statistics leave over can only be whole segments.
            returnable: sum(&[printed[3], printed[6]]),
            kept: printed[4],
            waiting: printed[5],
        });
        self.card = card.map(|_| Card {
            total: sum(&printed),
            driver: printed[7],
            elsewhere: printed[8],
            free: printed[9],
        });
    }
}

fn fits(frame: &Frame, gpu: Option<&Gpu>, pool: &Pool, read: Option<&Read>) -> Fits {
    let mut processes = frame.processes.iter().flat_map(|p| &*p.list);
    let process = processes.find(|process| process.key == pool.process);
    let around = pools::around(process, pool, gpu);
    match read {
        Some(read) => read.fits(around),
        None => Fits::of_stats(&pool.stats, &around),
    }
}

/// Two decimals, of a size that is printed as it is.
pub fn gib(size: Bytes) -> String {
    format!("{:.2}", size.as_gib())
}

/// Two decimals, rounded down: what is promised to fit does. Small sizes say their unit.
pub fn down(size: Bytes) -> String {
    match size.0 {
        0 => "0".into(),
        n if n < STEP * 10 => size.short(),
        n => gib(Bytes(n / STEP * STEP)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::allocator::fragmentation::tests::any_map;
    use crate::model::gpu::Memory;
    use crate::model::pool::{PoolMap, PoolStats, Sampled};
    use crate::model::process::ProcessKey;
    use crate::model::units::{GpuUuid, Mono};
    use proptest::prelude::*;

    fn frame(total: u64, free: u64, driver: u64, vram: Option<u64>) -> Frame {
        let mut gpu = Gpu {
            memory: Memory {
                total: Bytes(total).into(),
                free: Bytes(free).into(),
                reserved: Bytes(driver).into(),
                ..Memory::default()
            },
            processes: Vec::new().into(),
            ..Gpu::default()
        };
        if let (Some(vram), crate::model::reading::Reading::Value(list)) =
            (vram, &mut gpu.processes)
        {
            list.push(crate::model::gpu::GpuProcess {
                process: Some(ProcessKey::default()),
                vram: Bytes(vram).into(),
                ..Default::default()
            });
        }
        Frame {
            gpus: vec![gpu],
            ..Frame::default()
        }
    }

    fn pool(allocated: u64, reserved: u64, split: u64) -> Pool {
        Pool {
            gpu: GpuUuid::default().into(),
            stats: PoolStats {
                allocated: Sampled::new(Bytes(allocated)),
                active: Sampled::new(Bytes(allocated)),
                reserved: Sampled::new(Bytes(reserved)),
                inactive_split: Bytes(split),
                largest_free_block: Bytes(split).into(),
                ..PoolStats::default()
            },
            ..Pool::default()
        }
    }

    #[test]
    fn the_mock_up_of_the_product_says_what_is_wrong() {
        let size = |gib: f64| (gib * (1_u64 << 30) as f64) as u64;
        let frame = frame(size(23.99), size(2.13), size(0.44), Some(size(21.42)));
        let mut pool = pool(size(14.10), size(20.90), size(5.90));
        pool.stats.largest_free_block = Bytes(size(0.61)).into();
        let figures = Figures::of(&frame, &pool, None);
        let parts = figures.idle_parts.expect("a split");
        let printed = [
            figures.allocated,
            figures.idle,
            parts.stuck,
            parts.returnable,
            figures.process,
        ];
        assert_eq!(printed.map(gib), ["14.10", "6.80", "5.90", "0.90", "21.42"]);
        assert_eq!(
            figures.headline(),
            "8.93 GiB unused, yet one tensor above 3.02 fails: 5.90 is stuck in pieces"
        );
    }

    #[test]
    fn memory_that_can_be_had_in_one_piece_is_no_alarm() {
        let gib = Bytes::gib(1).0;
        let frame = frame(24 * gib, 10 * gib, 0, Some(14 * gib));
        let figures = Figures::of(&frame, &pool(13 * gib, 13 * gib + 1, 1), None);
        assert_eq!(
            figures.headline(),
            "10.00 GiB unused, and one tensor up to 10.00 fits"
        );
        // Perhaps with expandable segments: only the map knows what can go back.
        let figures = Figures::of(&frame, &pool(8 * gib, 13 * gib, 0), None);
        assert_eq!(figures.idle_parts, None);
        assert_eq!(
            figures.headline(),
            "15.00 GiB unused; one tensor of 10.00 fits for sure, the map tells whether more does"
        );
        let figures = Figures::of(&Frame::default(), &pool(8 * gib, 13 * gib, 0), None);
        assert_eq!(figures.headline(), "5.00 GiB cached in no tensor");
    }

    #[test]
    fn an_old_map_says_nothing_of_the_present() {
        let mut pool = pool(100 << 20, 300 << 20, 50 << 20);
        pool.at = Mono(100_000);
        let old = Read::new(Arc::new(PoolMap {
            at: Mono(90_000),
            ..PoolMap::default()
        }));
        let figures = Figures::of(&Frame::default(), &pool, Some(&old));
        assert!(figures.allocated.0 > 0);
    }

    proptest! {
        #[test]
        fn every_printed_sum_is_the_sum_of_the_printed_parts(
            map in any_map(), with_map: bool,
            total in 0..200 * (1_u64 << 30), free: u64, driver in 0..1_u64 << 30,
            vram in prop::option::of(0..200 * (1_u64 << 30)),
            allocated in 0..100 * (1_u64 << 30), more in 0..100 * (1_u64 << 30), split in 0..100 * (1_u64 << 30),
        ) {
            let frame = frame(total, free.checked_rem(total).unwrap_or(0), driver, vram);
            let pool = pool(allocated, allocated + more, split);
            let read = Read::new(Arc::new(map));
            let figures = Figures::of(&frame, &pool, with_map.then_some(&read));
            let other = figures.other.unwrap_or_default().0;
            prop_assert_eq!(figures.allocated.0 + figures.idle.0 + other, figures.process.0);
            if let Some(p) = figures.idle_parts {
                let sum = p.stuck.0 + p.returnable.0 + p.kept.0 + p.waiting.0;
                prop_assert_eq!(sum, figures.idle.0);
            }
            if let Some(card) = figures.card {
                let sum = card.driver.0 + card.elsewhere.0 + card.free.0 + figures.process.0;
                prop_assert_eq!(sum, card.total.0);
            }
            let _ = figures.headline();
        }
    }
}

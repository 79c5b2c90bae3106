//! The parts of a GPU's memory as a bar: their sizes and their number of character cells.

use gputop_model::accounting::{Accounting, account_pools, account_shared};
use gputop_model::frame::Frame;
use gputop_model::gpu::Gpu;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryPart {
    Allocated,
    Cached,
    Other,
    /// Processes with an unreadable allocator, in a bar that also shows pools.
    Unreadable,
    /// Processes, in a bar without pools.
    Processes,
    Unattributed,
    Driver,
    Free,
}

/// Returns the parts of the memory of a GPU, or of the host's memory if the GPU shares it.
pub fn split_of(gpu: &Gpu, frame: &Frame) -> Option<Accounting> {
    let pools = frame.pools.as_ref();
    let shared = || account_shared(gpu, frame.host.as_ref()?, pools);
    account_pools(gpu, pools).or_else(shared)
}

/// Number of parts in a bar: processes are either of two parts.
const COUNT: usize = 7;

/// Returns the parts in drawing order. `pooled` is true if any bar on the screen shows pools.
pub fn parts(pooled: bool) -> [MemoryPart; COUNT] {
    [
        MemoryPart::Allocated,
        MemoryPart::Cached,
        MemoryPart::Other,
        if pooled { MemoryPart::Unreadable } else { MemoryPart::Processes },
        MemoryPart::Unattributed,
        MemoryPart::Driver,
        MemoryPart::Free,
    ]
}

/// Returns the sizes of the parts, in drawing order.
pub fn amounts(split: &Accounting) -> [u64; COUNT] {
    [
        split.allocated.0,
        split.cached.0,
        split.other.0,
        split.processes.0,
        split.unattributed.0,
        split.driver.0,
        split.free.0,
    ]
}

/// Returns true if the memory of at least one process on the GPU can be split into pool memory and other memory.
pub fn has_pools(split: &Accounting) -> bool {
    split.allocated.0 > 0 || split.cached.0 > 0 || split.other.0 > 0
}

/// Returns the number of cells for each part, by the largest remainder method. A part that fills at least an eighth of
/// a cell stays visible while there is room. Smaller parts get no cell.
pub fn divide(amounts: &[u64], width: usize) -> Vec<usize> {
    let sum: u128 = amounts.iter().map(|&a| u128::from(a)).sum();
    if sum == 0 || width == 0 {
        return vec![0; amounts.len()];
    }
    let exact = |a: u64| u128::from(a) * width as u128;
    let mut cells: Vec<usize> =
        amounts.iter().map(|&a| usize::try_from(exact(a) / sum).unwrap_or(width)).collect();
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(exact(amounts[i]) % sum));
    let short = width - cells.iter().sum::<usize>();
    order.iter().take(short).for_each(|&i| cells[i] += 1);
    for i in 0..amounts.len() {
        if cells[i] > 0 || exact(amounts[i]) * 8 < sum {
            continue;
        }
        // Prefer to shorten a part before the last one, which is free memory, so that the used parts keep their length.
        let largest = |count| (0..count).max_by_key(|&j| cells[j]).filter(|&j| cells[j] > 1);
        if let Some(largest) = largest(cells.len() - 1).or_else(|| largest(cells.len())) {
            cells[largest] -= 1;
            cells[i] = 1;
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keeps_small_parts_visible() {
        assert_eq!(divide(&[2, 0, 100], 10), [1, 0, 9]);
        assert_eq!(divide(&[1, 0, 1_000], 10), [0, 0, 10]);
        assert_eq!(divide(&[0, 0], 10), [0, 0]);
        // Half of the bar stays half of the bar.
        assert_eq!(divide(&[46, 2, 2, 50], 10), [3, 1, 1, 5]);
    }

    proptest! {
        #[test]
        fn cells_add_up_to_the_width(amounts in prop::collection::vec(any::<u64>(), 1..6), width in 0..300_usize) {
            let cells = divide(&amounts, width);
            let any = amounts.iter().any(|&a| a > 0);
            prop_assert_eq!(cells.iter().sum::<usize>(), if any { width } else { 0 });
        }
    }
}

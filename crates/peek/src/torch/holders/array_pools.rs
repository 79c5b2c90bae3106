//! The pools of JAX and CuPy from which arrays have their memory. What a pool has in use beside the arrays belongs to
//! compiled programs, or is rounding.

use std::path::Path;
use std::time::{Duration, Instant};

use gputop_model::holders::{HolderClass, HolderGroup};
use gputop_model::reported_pool::{Framework, ReportedPool};
use gputop_model::units::{Bytes, Pid};
use gputop_model::{ProcessKey, Reading};

use super::tensors::HeldBlock;
use crate::bfc::{self, Failure, Found, VtableCache};
use crate::cpython::limits::Limits;
use crate::memory::Memory;

/// The pools of JAX and CuPy in one process, which may have none.
#[derive(Debug, Default)]
pub struct ArrayPools {
    found: Found,
    /// Reason why no pool was found.
    pub failure: Option<Failure>,
}

impl ArrayPools {
    /// Finds the pools, if that takes at most `timeout`.
    pub fn find(memory: &dyn Memory, timeout: Duration) -> Self {
        let until = Instant::now() + timeout;
        let found = bfc::find_until(memory, &mut VtableCache::default(), Some(until));
        match found {
            Ok(found) => Self { found, failure: None },
            Err(failure) => Self { found: Found::default(), failure: Some(failure) },
        }
    }

    /// Returns true if there are pools, but they belong to the parent of the process.
    pub fn are_forked_copies(&self, proc_root: &Path, pid: Pid) -> bool {
        bfc::is_forked_copy(proc_root, pid, &self.found)
    }

    /// Returns the bytes in use of each pool on a GPU, with its framework and its ordinal.
    pub fn in_use(&mut self, memory: &dyn Memory) -> Vec<(Framework, u32, Bytes)> {
        let pools = self.found.read(ProcessKey::default(), memory).unwrap_or_default().gpu;
        let in_use = |pool: &ReportedPool| match pool.allocated {
            Reading::Value(bytes) => Some((pool.framework, pool.ordinal, bytes)),
            Reading::Missing(_) => None,
        };
        pools.iter().filter_map(in_use).collect()
    }
}

/// Returns a group for what each pool has in use beside the arrays, which have these blocks. Pools without an array are
/// left out.
pub fn rest(
    pools: &[(Framework, u32, Bytes)],
    blocks: &[HeldBlock],
    limits: &Limits,
) -> Vec<HolderGroup> {
    let mut groups = Vec::new();
    for &(framework, ordinal, in_use) in pools {
        let of_pool = |block: &&HeldBlock| block.array_of == Some(framework);
        let on_gpu = blocks.iter().filter(of_pool).filter(|block| block.ordinal == ordinal);
        let arrays = on_gpu.map(|block| block.bytes).fold(0, u64::saturating_add);
        match in_use.0.checked_sub(arrays) {
            None => limits.add(format!(
                "The arrays of {} on device {ordinal} add up to more than its pool has in use: some were donated to a \
                 compiled function, or freed during the read.",
                framework.words()
            )),
            Some(0) => {}
            Some(_) if arrays == 0 => {}
            Some(rest) => groups.push(HolderGroup {
                ordinal,
                class: HolderClass::OutsideArrays,
                bytes: Bytes(rest),
                ..HolderGroup::default()
            }),
        }
    }
    groups
}

/// Corrects the number of the GPU if there is only one. JAX counts the GPUs of all processes of a job, but a pool those of
/// its own process.
pub fn correct_ordinal(pools: &[(Framework, u32, Bytes)], blocks: &mut [HeldBlock]) {
    let mut of_jax = pools.iter().filter(|(framework, ..)| *framework == Framework::Jax);
    let (Some(&(_, ordinal, _)), None) = (of_jax.next(), of_jax.next()) else { return };
    let is_jax = |block: &&mut HeldBlock| block.array_of == Some(Framework::Jax);
    let mut arrays: Vec<&mut HeldBlock> = blocks.iter_mut().filter(is_jax).collect();
    if arrays.windows(2).all(|pair| pair[0].ordinal == pair[1].ordinal) {
        arrays.iter_mut().for_each(|block| block.ordinal = ordinal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn blocks(of: &[(Framework, u32, u64)]) -> Vec<HeldBlock> {
        let block = |(at, &(framework, ordinal, mib)): (usize, &(Framework, u32, u64))| {
            HeldBlock::of_array(0x10_0000 * (at as u64 + 1), mib * MIB, ordinal, framework)
        };
        of.iter().enumerate().map(block).collect()
    }

    #[test]
    fn the_rest_of_each_pool_is_a_group() {
        let (jax, cupy) = (Framework::Jax, Framework::Cupy);
        let pools = [(jax, 0, 100), (jax, 1, 100), (jax, 2, 9), (cupy, 0, 7), (cupy, 1, 5)]
            .map(|(framework, ordinal, mib)| (framework, ordinal, Bytes(mib * MIB)));
        let arrays = [(jax, 0, 60), (jax, 0, 30), (jax, 1, 101), (cupy, 0, 6), (cupy, 1, 5)];
        let limits = Limits::default();
        let groups = rest(&pools, &blocks(&arrays), &limits);
        let rest: Vec<_> =
            groups.iter().map(|group| (group.ordinal, group.bytes.0 / MIB)).collect();
        assert_eq!(rest, [(0, 10), (0, 1)]);
        let text = limits.text().expect("a limit");
        assert!(text.starts_with("The arrays of JAX on device 1 add up to more"), "{text}");
        assert!(!limits.is_incomplete());
    }

    #[test]
    fn the_only_gpu_of_a_process_has_the_number_of_its_pool() {
        let (jax, cupy) = (Framework::Jax, Framework::Cupy);
        let ordinals = |pools: &[(Framework, u32, Bytes)], arrays: &[(Framework, u32, u64)]| {
            let mut blocks = blocks(arrays);
            correct_ordinal(pools, &mut blocks);
            blocks.iter().map(|block| block.ordinal).collect::<Vec<_>>()
        };
        let pool = |ordinal| (jax, ordinal, Bytes(MIB));
        assert_eq!(ordinals(&[pool(0)], &[(jax, 5, 1), (cupy, 3, 1), (jax, 5, 1)]), [0, 3, 0]);
        assert_eq!(ordinals(&[pool(0)], &[(jax, 5, 1), (jax, 4, 1)]), [5, 4]);
        assert_eq!(ordinals(&[pool(0), pool(1)], &[(jax, 1, 1)]), [1]);
        assert_eq!(ordinals(&[], &[(jax, 1, 1)]), [1]);
    }
}

//! Maps of memory pools for tests of this crate and of screens that draw them.

use gputop_model::units::Bytes;
use gputop_model::{Block, BlockState, PoolKind, PoolMap, Segment};
use proptest::prelude::*;

pub const MIB: u64 = 1 << 20;

/// Builds a segment from `(state, size)` pairs. State letters: `a`llocated, `f`ree, `w`aiting for another stream,
/// `u`nmapped.
pub fn segment(address: u64, pool: PoolKind, expandable: bool, parts: &[(char, u64)]) -> Segment {
    let mut at = address;
    let mut blocks = Vec::new();
    for &(state, size) in parts {
        let state = match state {
            'a' => BlockState::Allocated,
            'f' => BlockState::Free,
            'w' => BlockState::Active,
            _ => BlockState::Unmapped,
        };
        let requested = (state == BlockState::Allocated).then_some(Bytes(size.saturating_sub(100)));
        blocks.push(Block { address: at, size: Bytes(size), requested, state });
        at += size;
    }
    Segment {
        address,
        size: Bytes(at - address),
        pool,
        pool_id: None,
        stream: 0,
        expandable,
        blocks,
    }
}

pub fn map(segments: Vec<Segment>) -> PoolMap {
    PoolMap { exact: true, segments, ..PoolMap::default() }
}

/// Generates arbitrary maps, including some that no allocator could produce.
pub fn any_map() -> impl Strategy<Value = PoolMap> {
    let block = (prop::sample::select(vec!['a', 'f', 'w', 'u']), 1..200_000_u64);
    let kind = prop::sample::select(vec![PoolKind::Large, PoolKind::Small, PoolKind::Private]);
    let parts = prop::collection::vec(block, 1..12);
    let one = (kind, any::<bool>(), 0..3_u64, parts);
    prop::collection::vec(one, 0..12).prop_map(|list| {
        let mut at = 0x7f00_0000_0000;
        let mut segments = Vec::new();
        for (kind, expandable, stream, parts) in list {
            let parts: Vec<(char, u64)> = parts
                .into_iter()
                .filter(|(state, _)| *state != 'u' || expandable)
                .map(|(state, size)| (state, size * 512))
                .collect();
            let mut one = segment(at, kind, expandable, &parts);
            one.stream = stream;
            at += one.size.0.next_multiple_of(2 * MIB) + 64 * MIB;
            segments.push(one);
        }
        map(segments)
    })
}

//! Summarizes the blocks in the pool of a failed allocation, if they have not changed since the failure.
//!
//! ```text
//! OOMs rose ─► agent reads the blocks ─► FailureMap ─► Case ─► FreeBlockSummary ─► Measured ─► evidence of the causes
//! ```
//!
//! The summary includes only the shared large pool, because requests up to 1 MiB and private pools do not use it.

use std::collections::HashMap;

use gputop_model::pool::{BlockState, FailureMap, PoolKind, PoolMap, Segment};
use gputop_model::units::Bytes;

use super::figures::OomFigures;
use crate::evidence::{FreeBlockSummary, PinnedSegments};

/// Divisor for pinned segments: a segment is pinned if live blocks use less than its size divided by this number.
const PINNED_DIVISOR: u64 = 10;

/// Summarizes the free blocks, or returns `None` if they changed before the read or the read was inconsistent.
pub fn summary(failed: &FailureMap, figures: &OomFigures) -> Option<FreeBlockSummary> {
    let map = &failed.map;
    let is_unchanged = figures.matches_allocated(live(map));
    (map.exact && is_unchanged)
        .then(|| FreeBlockSummary { lag: map.at.since(failed.since), ..summarize(map) })
}

fn live(map: &PoolMap) -> Bytes {
    Bytes(map.segments.iter().map(|segment| in_use(segment).0).sum())
}

fn in_use(segment: &Segment) -> Bytes {
    let live = segment.blocks.iter().filter(|block| block.state != BlockState::Free);
    Bytes(live.map(|block| block.size.0).sum())
}

fn summarize(map: &PoolMap) -> FreeBlockSummary {
    let mut all = FreeBlockSummary::default();
    let mut streams: HashMap<u64, (Bytes, Bytes)> = HashMap::new();
    for segment in map.segments.iter().filter(|s| s.pool == PoolKind::Large) {
        let (live, largest) = streams.entry(segment.stream).or_default();
        live.0 += in_use(segment).0;
        for block in &segment.blocks {
            if block.state == BlockState::Free {
                all.count += 1;
                all.bytes.0 += block.size.0;
                *largest = (*largest).max(block.size);
            }
        }
        all.pinned.add(segment.size, in_use(segment));
    }
    let busiest = streams.iter().max_by_key(|(_, (live, _))| *live).map(|(stream, _)| *stream);
    for (stream, (_, largest)) in &streams {
        if Some(*stream) == busiest {
            all.largest = *largest;
        } else {
            let known = all.other_streams.unwrap_or_default();
            all.other_streams = Some(known.max(*largest));
        }
    }
    all
}

impl PinnedSegments {
    fn add(&mut self, segment: Bytes, live: Bytes) {
        if live.0 > 0 && live.0 < segment.0 / PINNED_DIVISOR {
            self.segments += 1;
            self.held.0 += segment.0;
            self.live.0 += live.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::pool::Block;
    use gputop_model::units::Mono;

    fn segment(stream: u64, blocks: &[(u64, BlockState)]) -> Segment {
        Segment {
            size: Bytes(blocks.iter().map(|(size, _)| size).sum()),
            pool: PoolKind::Large,
            stream,
            blocks: blocks
                .iter()
                .map(|&(size, state)| Block { size: Bytes(size), state, ..Block::default() })
                .collect(),
            ..Segment::default()
        }
    }

    fn failed() -> FailureMap {
        use BlockState::{Allocated, Free};
        let private = Segment { pool: PoolKind::Private, ..segment(0, &[(9_000, Free)]) };
        FailureMap {
            since: Mono(10),
            map: PoolMap {
                at: Mono(50),
                exact: true,
                segments: vec![
                    segment(0, &[(40, Allocated), (700, Free), (260, Free)]),
                    segment(0, &[(500, Allocated), (100, Free)]),
                    segment(7, &[(300, Allocated), (900, Free)]),
                    private,
                ],
                ..PoolMap::default()
            },
        }
    }

    fn figures(allocated: u64) -> OomFigures {
        OomFigures { allocated: Bytes(allocated), ..OomFigures::default() }
    }

    #[test]
    fn summarizes_the_busiest_stream_and_finds_pinned_segments() {
        let found = summary(&failed(), &figures(840)).expect("unchanged blocks");
        assert_eq!((found.count, found.bytes), (4, Bytes(1_960)));
        assert_eq!((found.largest, found.other_streams), (Bytes(700), Some(Bytes(900))));
        assert_eq!(found.lag.0, 40);
        let pinned = found.pinned;
        assert_eq!((pinned.segments, pinned.held, pinned.live), (1, Bytes(1_000), Bytes(40)));
    }

    #[test]
    fn ignores_a_map_of_another_time() {
        assert_eq!(summary(&failed(), &figures(2_000)), None, "tensors were freed");
        let mut inconsistent = failed();
        inconsistent.map.exact = false;
        assert_eq!(summary(&inconsistent, &figures(840)), None);
    }
}

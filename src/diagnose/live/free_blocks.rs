//! What the blocks of a failed allocation's pool say, where they still are what they were.
//!
//! ```text
//! OOMs rose ─► agent reads the blocks ─► FailureMap ─► Case ─► Holes::of ─► Measured ─► evidence of the causes
//! ```
//!
//! Only the large pool and only blocks that PyTorch shares are looked at: requests up to 1 MiB and private pools find
//! no place there anyway.

use std::collections::HashMap;

use super::figures::Figures;
use crate::diagnose::evidence::{Holes, Pins};
use crate::model::pool::{BlockState, FailureMap, PoolKind, PoolMap, Segment};
use crate::model::units::Bytes;

/// Segments of which live blocks take less than a tenth are there for those blocks' sake alone.
const PINNED: u64 = 10;

/// `None` where the exception has freed something between the failure and the read, or the read was torn.
pub fn of(failed: &FailureMap, figures: &Figures) -> Option<Holes> {
    let map = &failed.map;
    let is_as_it_was = figures.is_still(live(map));
    (map.exact && is_as_it_was).then(|| Holes {
        lag: map.at.since(failed.since),
        ..holes(map)
    })
}

fn live(map: &PoolMap) -> Bytes {
    Bytes(map.segments.iter().map(|segment| in_use(segment).0).sum())
}

fn in_use(segment: &Segment) -> Bytes {
    let blocks = segment.blocks.iter();
    let live = blocks.filter(|block| block.state != BlockState::Free);
    Bytes(live.map(|block| block.size.0).sum())
}

fn holes(map: &PoolMap) -> Holes {
    let mut all = Holes::default();
    let mut streams: HashMap<u64, (Bytes, Bytes)> = HashMap::new();
    let shared = map.segments.iter().filter(|s| s.pool == PoolKind::Large);
    for segment in shared {
        let (live, largest) = streams.entry(segment.stream).or_default();
        live.0 += in_use(segment).0;
        for block in &segment.blocks {
            if block.state == BlockState::Free {
                all.count += 1;
                all.bytes.0 += block.size.0;
                *largest = (*largest).max(block.size);
            }
        }
        all.pins.take(segment.size, in_use(segment));
    }
    let busiest = streams.iter().max_by_key(|(_, (live, _))| *live);
    let busiest = busiest.map(|(stream, _)| *stream);
    for (stream, (_, largest)) in &streams {
        if Some(*stream) == busiest {
            all.largest = *largest;
        } else {
            let elsewhere = all.elsewhere.unwrap_or_default();
            all.elsewhere = Some(elsewhere.max(*largest));
        }
    }
    all
}

impl Pins {
    fn take(&mut self, segment: Bytes, live: Bytes) {
        if live.0 > 0 && live.0 < segment.0 / PINNED {
            self.segments += 1;
            self.held.0 += segment.0;
            self.live.0 += live.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pool::Block;
    use crate::model::units::Mono;

    fn segment(stream: u64, blocks: &[(u64, BlockState)]) -> Segment {
        Segment {
            size: Bytes(blocks.iter().map(|(size, _)| size).sum()),
            pool: PoolKind::Large,
            stream,
            blocks: blocks
                .iter()
                .map(|&(size, state)| Block {
                    size: Bytes(size),
                    state,
                    ..Block::default()
                })
                .collect(),
            ..Segment::default()
        }
    }

    fn failed() -> FailureMap {
        use BlockState::{Allocated, Free};
        let private = Segment {
            pool: PoolKind::Private,
            ..segment(0, &[(9_000, Free)])
        };
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

    fn figures(allocated: u64) -> Figures {
        Figures {
            allocated: Bytes(allocated),
            ..Figures::default()
        }
    }

    #[test]
    fn holes_are_those_of_the_stream_that_holds_most_and_pins_hold_what_is_nearly_empty() {
        let found = of(&failed(), &figures(840)).expect("as it was");
        assert_eq!((found.count, found.bytes), (4, Bytes(1_960)));
        assert_eq!(
            (found.largest, found.elsewhere),
            (Bytes(700), Some(Bytes(900)))
        );
        assert_eq!(found.lag.0, 40);
        let pins = found.pins;
        assert_eq!(
            (pins.segments, pins.held, pins.live),
            (1, Bytes(1_000), Bytes(40))
        );
    }

    #[test]
    fn a_map_of_another_moment_says_nothing() {
        assert_eq!(of(&failed(), &figures(2_000)), None, "tensors were freed");
        let mut torn = failed();
        torn.map.exact = false;
        assert_eq!(of(&torn, &figures(840)), None);
    }
}

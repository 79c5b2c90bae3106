//! A pool map as one line of a recording: the JSON of the model without block addresses.
//!
//! Blocks are contiguous, so their addresses can be computed from their sizes. Writing the addresses would more than
//! double the size of a compressed map. A map line is parsed only when its map is needed. The content of the line is
//! not trusted, because a file can contain anything.
//!
//! ```text
//! {"map":{"process":{"pid":418,"start":7},"ordinal":0,"at":90412,"exact":true,"segments":[
//!   {"address":139853,"size":2097152,"pool":"small","stream":0,"expandable":false,"blocks":[
//!     {"size":1024,"requested":1000,"state":"allocated"},{"size":2096128,"state":"free"}]}]}}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::bounded_json;
use crate::{Mono, PoolMap, ProcessKey, Segment};

/// Maximum memory for the segments and blocks of a map. It suffices for more blocks than any healthy program has.
const MAX_MAP_MEMORY: usize = 16 << 20;

/// A recording line with an unparsed pool map.
#[derive(Debug, Clone, Serialize)]
pub struct MapLine {
    map: Box<RawValue>,
    /// Time of the last sample before the failure. Set only if the map was read because an allocation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed_since: Option<Mono>,
}

#[derive(Debug, thiserror::Error)]
pub enum MapLineError {
    #[error("invalid map: {0}")]
    Json(#[from] serde_json::Error),
    #[error("blocks of the map overlap or lie outside their segment")]
    Misplaced,
}

/// Process and device of a pool map. Parsing only this part is faster than parsing the complete map.
#[derive(Deserialize)]
struct MapOwner {
    #[serde(default)]
    process: ProcessKey,
    #[serde(default)]
    ordinal: u32,
}

impl MapLine {
    pub fn new(map: &PoolMap, failed_since: Option<Mono>) -> serde_json::Result<Self> {
        let mut map = map.clone();
        map.segments.iter_mut().for_each(Segment::omit_implied_addresses);
        Ok(Self { map: serde_json::value::to_raw_value(&map)?, failed_since })
    }

    /// Returns true if the recording `line` contains a pool map, without parsing the line.
    pub fn is_map(line: &[u8]) -> bool {
        line.starts_with(b"{\"map\"")
    }

    pub(super) fn unread(map: Box<RawValue>) -> Self {
        Self { map, failed_since: None }
    }

    pub fn is_of_failure(&self) -> bool {
        self.failed_since.is_some()
    }

    /// Returns true if the line contains the map of `pool`.
    pub fn is_of(&self, pool: (ProcessKey, u32)) -> bool {
        serde_json::from_str::<MapOwner>(self.map.get())
            .is_ok_and(|owner| (owner.process, owner.ordinal) == pool)
    }

    /// Parses the pool map. Fails if the map is too large or inconsistent, for example because blocks overlap.
    pub fn read(&self) -> Result<PoolMap, MapLineError> {
        let text = self.map.get().as_bytes();
        let (mut map, _) = bounded_json::read::<PoolMap>(text, MAX_MAP_MEMORY)?;
        let mut free_from = 0;
        for segment in &mut map.segments {
            if segment.address < free_from {
                return Err(MapLineError::Misplaced);
            }
            free_from = fill_addresses(segment).ok_or(MapLineError::Misplaced)?;
        }
        Ok(map)
    }
}

/// Fills in the block addresses of a segment. Returns the segment's end address, or `None` if the segment is
/// inconsistent.
fn fill_addresses(segment: &mut Segment) -> Option<u64> {
    let end = segment.address.checked_add(segment.size.0)?;
    let mut next = segment.address;
    for block in &mut segment.blocks {
        if block.address == 0 {
            block.address = next;
        }
        if block.address < next || block.size.0 == 0 || block.requested > Some(block.size) {
            return None;
        }
        next = block.address.checked_add(block.size.0)?;
    }
    (next <= end && !segment.blocks.is_empty()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Block, BlockState, PoolKind};
    use crate::units::Bytes;

    fn block(address: u64, size: u64, state: BlockState) -> Block {
        Block {
            address,
            size: Bytes(size),
            requested: (state == BlockState::Allocated).then_some(Bytes(size - 24)),
            state,
        }
    }

    fn map() -> PoolMap {
        PoolMap {
            process: ProcessKey::new(418, 7),
            allocator: crate::Allocator::XlaBfc,
            ordinal: 1,
            at: Mono(90_412),
            exact: true,
            segments: vec![
                Segment {
                    address: 0x7000,
                    size: Bytes(2_048),
                    pool: PoolKind::Small,
                    pool_id: None,
                    stream: 3,
                    expandable: true,
                    blocks: vec![
                        block(0x7000, 512, BlockState::Allocated),
                        block(0x7200, 1_024, BlockState::Free),
                        block(0x7600, 512, BlockState::Active),
                    ],
                },
                Segment {
                    address: 0x9000,
                    size: Bytes(1_024),
                    blocks: vec![
                        block(0x9000, 512, BlockState::Free),
                        block(0x9300, 256, BlockState::Free),
                    ],
                    ..Segment::default()
                },
            ],
        }
    }

    fn line(text: &str) -> MapLine {
        MapLine::unread(RawValue::from_string(text.into()).expect("JSON"))
    }

    #[test]
    fn a_map_survives_a_round_trip_and_names_its_pool() {
        let line = MapLine::new(&map(), None).expect("JSON");
        assert_eq!(line.read().expect("a map"), map());
        assert!(line.is_of((map().process, 1)));
        assert!(!line.is_of((map().process, 0)));
    }

    #[test]
    fn writes_an_address_only_after_a_gap() {
        let line = MapLine::new(&map(), None).expect("JSON");
        let value: serde_json::Value = serde_json::from_str(line.map.get()).expect("JSON");
        let blocks = |segment: usize| value["segments"][segment]["blocks"].to_string();
        assert!(!blocks(0).contains("address"), "{}", blocks(0));
        assert_eq!(blocks(1).matches("address").count(), 1, "{}", blocks(1));
    }

    #[test]
    fn rejects_impossible_maps() {
        let segments = |segments: &str| line(&format!("{{\"segments\":[{segments}]}}")).read();
        let fine = segments(r#"{"address":512,"size":512,"blocks":[{"size":512}]}"#);
        assert_eq!(fine.expect("a map").segments[0].blocks[0].address, 512);
        for misplaced in [
            r#"{"address":512,"size":512,"blocks":[{"size":513}]}"#,
            r#"{"address":512,"size":512,"blocks":[{"size":0}]}"#,
            r#"{"address":512,"size":512,"blocks":[]}"#,
            r#"{"address":512,"size":512,"blocks":[{"size":512,"requested":513}]}"#,
            r#"{"address":512,"size":512,"blocks":[{"size":256},{"address":600,"size":8}]}"#,
            r#"{"address":512,"size":18446744073709551615,"blocks":[{"size":8}]}"#,
            r#"{"address":512,"size":8,"blocks":[{"size":8}]},{"address":515,"size":8,"blocks":[{"size":8}]}"#,
            "{}",
        ] {
            let error = segments(misplaced).expect_err(misplaced);
            assert!(matches!(error, MapLineError::Misplaced), "{misplaced}");
        }
        assert!(matches!(segments("7"), Err(MapLineError::Json(_))));
        let error = segments(&("{},".repeat(1 << 20) + "{}")).expect_err("too large");
        assert!(error.to_string().contains("more than 16 MiB"), "{error}");
    }
}

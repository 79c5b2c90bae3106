use super::*;
use crate::tui::picture::text_of;
use crate::tui::pool_maps::{MIB, any_map, map, segment};
use crate::tui::theme::Palette;
use proptest::prelude::*;

fn ascii() -> Theme {
    Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC)
}

fn two() -> PoolMap {
    map(vec![
        segment(0x7f2c_0000_0000, PoolKind::Small, false, &[('a', MIB), ('f', MIB)]),
        segment(
            0x7f2a_0000_0000,
            PoolKind::Large,
            false,
            &[('a', 64 * MIB), ('f', 40 * MIB), ('w', 8 * MIB), ('a', 16 * MIB)],
        ),
        segment(0x7f2d_0000_0000, PoolKind::Small, false, &[('a', 512), ('f', 2 * MIB - 512)]),
    ])
}

fn drawn(layout: &SegmentLayout, map: &PoolMap, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    let cursor = Some(Cursor { row: 0, x: 5 });
    layout.draw(map, 0, cursor, area, &mut buffer, &ascii());
    text_of(&buffer)
}

#[test]
fn draws_segments_as_rows_and_lets_short_ones_share() {
    let map = two();
    let layout = SegmentLayout::with_cell(&map, 24, Bytes::mib(8));
    insta::assert_snapshot!(drawn(&layout, &map, 48, 3), @r"
        7f2a00>########=====a##          large   s0
        7f2c00 #=                        small   s0
        ");
}

#[test]
fn continues_long_segments_and_grows_cells_to_fit() {
    let map = two();
    let layout = SegmentLayout::with_cell(&map, 6, Bytes::mib(8));
    assert_eq!(layout.rows(), 4);
    let fitting = SegmentLayout::fitting(&map, 24, 2);
    assert_eq!((fitting.cell, fitting.rows()), (Bytes::mib(8), 2));
    assert_eq!(SegmentLayout::fitting(&map, 24, 40).cell, Bytes(256 << 10));
    assert_eq!(
        SegmentLayout::fitting(&map, 24, 1).cell,
        Bytes::mib(32),
        "the map grows so that free blocks stay visible"
    );
}

#[test]
fn cursor_visits_every_cell_and_describes_it() {
    let map = two();
    let layout = SegmentLayout::with_cell(&map, 24, Bytes::mib(8));
    let under = layout.under(&map, Cursor { row: 0, x: 13 }).expect("a cell");
    assert_eq!(under.segment.address, 0x7f2a_0000_0000);
    assert_eq!((under.from, under.to), (104 * MIB, 112 * MIB));
    assert_eq!(under.blocks.len(), 1);
    assert_eq!(under.blocks[0].state, BlockState::Active);
    let (mut cursor, mut steps) = (Cursor::default(), 0);
    while layout.right(cursor) != cursor {
        (cursor, steps) = (layout.right(cursor), steps + 1);
    }
    assert_eq!((steps, cursor), (17, Cursor { row: 1, x: 1 }));
    while layout.left(cursor) != cursor {
        (cursor, steps) = (layout.left(cursor), steps - 1);
    }
    assert_eq!((steps, cursor), (0, Cursor::default()));
    assert_eq!(SegmentLayout::default().under(&map, cursor), None);
}

#[test]
fn left_and_right_move_from_block_to_block() {
    let map = two();
    let layout = SegmentLayout::with_cell(&map, 24, Bytes::mib(8));
    let mut starts = vec![Cursor::default()];
    loop {
        let last = starts[starts.len() - 1];
        let next = layout.next_block(&map, last);
        if next == last {
            break;
        }
        starts.push(next);
    }
    let places: Vec<(usize, usize)> = starts.iter().map(|at| (at.row, at.x)).collect();
    assert_eq!(places, [(0, 0), (0, 8), (0, 13), (0, 14), (1, 0), (1, 1)]);
    for pair in starts.windows(2) {
        assert_eq!(layout.previous_block(&map, pair[1]), pair[0]);
    }
    let middle = Cursor { row: 0, x: 11 };
    assert_eq!(layout.previous_block(&map, middle), Cursor { row: 0, x: 8 });
}

#[test]
fn goes_through_the_allocated_blocks_by_size() {
    let map = two();
    let mut pane = MapPane::default();
    pane.layout(&map, Rect::new(0, 0, 60, 4));
    let mut sizes = Vec::new();
    for _ in 0..5 {
        let text = pane.next_largest(&map).expect("a block");
        let cell = pane.under(&map).expect("a cell");
        assert!(cell.blocks.iter().any(|block| text.contains(&block.size.short())), "{text}");
        sizes.push(text);
    }
    assert_eq!(sizes[0], "block 1 of 4 by size: 64M allocated");
    assert_eq!(sizes[3], "block 4 of 4 by size: 512B allocated");
    assert_eq!(sizes[4], sizes[0]);
    pane.act(Action::Down, &map, 1);
    assert_eq!(pane.next_largest(&map).as_ref(), Some(&sizes[0]));
}

#[test]
fn draws_thirty_thousand_blocks_within_a_frame() {
    let parts: Vec<(char, u64)> =
        (0..300).map(|i| (if i % 2 == 0 { 'a' } else { 'f' }, 512 * (1 + i % 7) * 97)).collect();
    let segments = (0..100)
        .map(|i| segment(0x7f00_0000_0000 + (i << 32), PoolKind::Large, false, &parts))
        .collect();
    let map = map(segments);
    let area = Rect::new(0, 0, 120, 40);
    let mut buffer = Buffer::empty(area);
    let start = std::time::Instant::now();
    let layout = SegmentLayout::fitting(&map, cells_per_row(area), 40);
    let laid_out = start.elapsed();
    let start = std::time::Instant::now();
    for _ in 0..10 {
        layout.draw(&map, 0, None, area, &mut buffer, &ascii());
    }
    let draw = start.elapsed() / 10;
    // The limits allow for unoptimized code on a shared machine. Optimized code takes far less than 2 ms.
    assert!(draw.as_millis() < 40 && laid_out.as_millis() < 400, "{laid_out:?} {draw:?}");
}

proptest! {
    #[test]
    fn every_block_is_in_a_cell_and_any_cursor_is_valid(
        map in any_map(), width in 1..80_usize, height in 0..40_usize, row in 0..99_usize, x: usize,
    ) {
        let layout = SegmentLayout::fitting(&map, width, height);
        let counted = count_rows(&map, &row_order(&map), layout.cell.0, width);
        prop_assert_eq!(layout.rows(), counted);
        let _ = layout.under(&map, Cursor { row, x });
        let mut seen = 0;
        for (r, pieces) in layout.rows.iter().enumerate() {
            for piece in pieces {
                prop_assert!(piece.x + piece.fills.len() <= width);
                for i in 0..piece.fills.len() {
                    let under = layout.under(&map, Cursor { row: r, x: piece.x + i });
                    let under = under.expect("the layout contains this cell");
                    prop_assert!(!under.blocks.is_empty());
                    seen += under.to - under.from;
                }
            }
        }
        prop_assert_eq!(seen, map.segments.iter().map(|s| s.size.0).sum::<u64>());
    }
}

//! The memory map of a pool: segments as rows of cells. A cell represents a fixed number of bytes and shows the state
//! that occupies most of it.
//!
//! Segments of the large pool come first, then private ones, then those of the small pool; each group is ordered by
//! stream and address. A segment longer than a row continues in the next row. Short segments share a row, separated by
//! a space unless each is a single cell. The layout is computed once per map and width. Drawing visits only the visible
//! rows.

use std::cell::RefCell;
use std::rc::Rc;

use gputop_model::pool::{Block, BlockState, PoolKind, PoolMap, Segment};
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::cells::{put, put_all, put_glyph, put_line, put_line_right};
use super::table::scrolled;
use crate::tui::action::{Action, moved};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::row;

/// The state that occupies most of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellFill {
    Allocated,
    Active,
    Free,
    Unmapped,
}

impl CellFill {
    const ALL: [Self; 4] = [Self::Allocated, Self::Active, Self::Free, Self::Unmapped];

    pub fn of(state: BlockState) -> Self {
        match state {
            // Treat an unknown state, probably added in a later PyTorch version, as not free.
            BlockState::Allocated | BlockState::Unknown => Self::Allocated,
            BlockState::Active => Self::Active,
            BlockState::Free => Self::Free,
            BlockState::Unmapped => Self::Unmapped,
        }
    }

    pub fn glyph(self, theme: &Theme) -> &'static str {
        match self {
            Self::Allocated => theme.glyphs.allocated,
            Self::Active => theme.glyphs.active,
            Self::Free => theme.glyphs.cached,
            Self::Unmapped => theme.glyphs.unmapped,
        }
    }

    pub fn role(self) -> Role {
        match self {
            Self::Allocated => Role::Allocated,
            Self::Active => Role::Active,
            Self::Free => Role::Cached,
            Self::Unmapped => Role::Free,
        }
    }
}

/// The part of a segment that lies in one row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    /// Index into the map's segments.
    segment: usize,
    x: usize,
    /// First byte, as an offset from the segment's address.
    from: u64,
    fills: Vec<CellFill>,
}

/// Position of a cell: its row and column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    pub row: usize,
    pub x: usize,
}

/// Positions of all cells in a map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SegmentLayout {
    pub cell: Bytes,
    rows: Vec<Vec<Piece>>,
}

/// Content of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CellContents<'m> {
    pub segment: &'m Segment,
    /// Start and end of the cell in bytes, as offsets from the segment's address. The end is exclusive.
    pub from: u64,
    pub to: u64,
    /// All blocks that overlap the cell.
    pub blocks: &'m [Block],
}

impl CellContents<'_> {
    /// Describes the cell, listing at most `max_blocks` blocks: `cell at +4M: # 2M = 6M and 3 more  segment 7f2a00000000
    /// (20M large stream 0)`. A single block may be larger than the cell: `cell at +4M: part of = 600M`.
    pub fn words(&self, max_blocks: usize, theme: &Theme) -> String {
        let part = if self.is_part_of_a_block() { " part of" } else { "" };
        let mut text = format!("cell at +{}:{part}", Bytes(self.from).short());
        for block in self.blocks.iter().take(max_blocks) {
            let fill = CellFill::of(block.state);
            text.push_str(&format!(" {} {}", fill.glyph(theme), block.size.short()));
        }
        if self.blocks.len() > max_blocks {
            text.push_str(&format!(" and {} more", self.blocks.len() - max_blocks));
        }
        let segment = self.segment;
        if segment.pool == PoolKind::Region {
            let (address, size) = (segment.address, segment.size.short());
            text.push_str(&format!("  region {address:x} ({size})"));
            return text;
        }
        let kind = if segment.expandable { " expandable" } else { "" };
        text.push_str(&format!(
            "  segment {:x} ({}{kind} {} stream {})",
            segment.address,
            segment.size.short(),
            pool_text(segment.pool),
            stream_text(segment.stream),
        ));
        text
    }

    fn is_part_of_a_block(&self) -> bool {
        matches!(self.blocks, [block] if block.size.0 > self.to - self.from)
    }
}

/// Minimum and maximum cell size, as exponents of two: 64 KiB to 64 GiB.
const MIN_CELL_POWER: u32 = 16;
const MAX_CELL_POWER: u32 = 36;
/// Preferred maximum cell size: 32 MiB, because larger cells would hide most free blocks between tensors.
const MAX_PREFERRED_POWER: u32 = 25;
/// Maximum number of rows to scroll through.
const MAX_ROWS: usize = 400;

impl SegmentLayout {
    /// Returns the layout with the smallest cells that fit the whole map into `height` rows. Cells larger than 32 MiB
    /// would hide free blocks between tensors, so a large map gets up to a few hundred rows instead.
    pub fn fitting(map: &PoolMap, cells_per_row: usize, height: usize) -> Self {
        let order = row_order(map);
        let rows = |power: u32| count_rows(map, &order, 1 << power, cells_per_row);
        let can_scroll = |power: &u32| rows(*power) <= MAX_ROWS;
        let power = (MIN_CELL_POWER..=MAX_PREFERRED_POWER)
            .find(|power| rows(*power) <= height)
            .or_else(|| (MAX_PREFERRED_POWER..MAX_CELL_POWER).find(can_scroll));
        Self::with_cell(map, cells_per_row, Bytes(1 << power.unwrap_or(MAX_CELL_POWER)))
    }

    pub fn with_cell(map: &PoolMap, cells_per_row: usize, cell: Bytes) -> Self {
        let width = cells_per_row.max(1);
        let mut rows: Vec<Vec<Piece>> = Vec::new();
        let mut packer = RowPacker::default();
        for i in row_order(map) {
            let segment = &map.segments[i];
            let fills = fills(segment, cell.0);
            for (at, part) in fills.chunks(width).enumerate() {
                let (new_row, x) = packer.next(segment, part.len(), width, at > 0);
                if new_row {
                    rows.push(Vec::new());
                }
                let piece = Piece {
                    segment: i,
                    x,
                    from: (at * width) as u64 * cell.0,
                    fills: part.to_vec(),
                };
                if let Some(row) = rows.last_mut() {
                    row.push(piece);
                }
            }
        }
        Self { cell, rows }
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Converts a cursor from another layout to the nearest cell in its row.
    pub fn nearest(&self, cursor: Cursor) -> Cursor {
        let row = cursor.row.min(self.rows.len().saturating_sub(1));
        let x = self.piece(row, cursor.x).map_or(0, |piece| {
            cursor.x.clamp(piece.x, piece.x + piece.fills.len().saturating_sub(1))
        });
        Cursor { row, x }
    }

    /// Returns the segment part at a column, or the last part that begins before it.
    fn piece(&self, row: usize, x: usize) -> Option<&Piece> {
        let row = self.rows.get(row)?;
        row.iter().rev().find(|piece| piece.x <= x).or_else(|| row.first())
    }

    /// Returns the next cell in the row, or the first cell of the next row.
    pub fn right(&self, cursor: Cursor) -> Cursor {
        let cursor = self.nearest(cursor);
        let row = self.rows.get(cursor.row).map_or(&[][..], Vec::as_slice);
        let beyond = |piece: &Piece| piece.x + piece.fills.len() > cursor.x + 1;
        match row.iter().find(|piece| beyond(piece)) {
            Some(piece) => Cursor { x: piece.x.max(cursor.x + 1), ..cursor },
            None if cursor.row + 1 < self.rows.len() => Cursor { row: cursor.row + 1, x: 0 },
            None => cursor,
        }
    }

    /// Returns the previous cell in the row, or the last cell of the row above.
    pub fn left(&self, cursor: Cursor) -> Cursor {
        let cursor = self.nearest(cursor);
        match cursor.x.checked_sub(1) {
            Some(x) => self.nearest(Cursor { x, ..cursor }),
            None if cursor.row > 0 => self.nearest(Cursor { row: cursor.row - 1, x: usize::MAX }),
            None => cursor,
        }
    }

    /// Returns the first cell of the next block, or the last cell if there is none.
    fn next_block(&self, map: &PoolMap, cursor: Cursor) -> Cursor {
        self.right(self.edge_of_block(map, cursor, Self::right))
    }

    /// Returns the first cell of the block at `cursor`, or of the previous block if `cursor` is at the first cell.
    fn previous_block(&self, map: &PoolMap, cursor: Cursor) -> Cursor {
        self.edge_of_block(map, self.left(cursor), Self::left)
    }

    /// Returns the last cell in the direction of `step` that shows the same blocks as the cell at `cursor`.
    fn edge_of_block(
        &self,
        map: &PoolMap,
        cursor: Cursor,
        step: fn(&Self, Cursor) -> Cursor,
    ) -> Cursor {
        let mut at = self.nearest(cursor);
        loop {
            let next = step(self, at);
            if next == at || !self.is_same_block(map, next, at) {
                return at;
            }
            at = next;
        }
    }

    /// Returns the cell with a byte of a segment, given as an offset from the segment's address.
    fn cursor_of(&self, segment: usize, offset: u64) -> Option<Cursor> {
        let is_in = |piece: &&Piece| {
            let end = piece.from + piece.fills.len() as u64 * self.cell.0;
            piece.segment == segment && (piece.from..end).contains(&offset)
        };
        self.rows.iter().enumerate().find_map(|(row, pieces)| {
            let piece = pieces.iter().find(is_in)?;
            let cells = usize::try_from((offset - piece.from) / self.cell.0).ok()?;
            Some(Cursor { row, x: piece.x + cells })
        })
    }

    /// Returns true if two cells show the same blocks of one segment.
    fn is_same_block(&self, map: &PoolMap, one: Cursor, two: Cursor) -> bool {
        let blocks = |cursor| {
            let cell = self.under(map, cursor)?;
            Some((cell.segment.address, std::ptr::from_ref(cell.blocks)))
        };
        blocks(one) == blocks(two)
    }

    /// Returns the content of the cell under a cursor.
    pub fn under<'m>(&self, map: &'m PoolMap, cursor: Cursor) -> Option<CellContents<'m>> {
        let cursor = self.nearest(cursor);
        let piece = self.piece(cursor.row, cursor.x)?;
        let segment = map.segments.get(piece.segment)?;
        let from = piece.from + (cursor.x - piece.x) as u64 * self.cell.0;
        let to = from.saturating_add(self.cell.0).min(segment.size.0);
        let offset = |block: &Block| block.address.saturating_sub(segment.address);
        let first = segment.blocks.partition_point(|b| offset(b).saturating_add(b.size.0) <= from);
        let last = segment.blocks.partition_point(|b| offset(b) < to);
        Some(CellContents {
            segment,
            from,
            to,
            blocks: segment.blocks.get(first..last).unwrap_or(&[]),
        })
    }

    /// Returns the map's title: `cell 16 MiB, large pool first`.
    pub fn title(&self, map: &PoolMap, exact: bool, width: u16) -> String {
        let cell = self.cell.to_string();
        let cell = cell
            .strip_suffix(".00 MiB")
            .map_or_else(|| self.cell.short(), |whole| format!("{whole} MiB"));
        let has_pools = !map.allocator.is_bfc();
        let wide = if width >= 40 && has_pools { ", large pool first" } else { "" };
        let exact = if exact { "" } else { "; approximate" };
        format!("cell {cell}{wide}{exact}")
    }

    /// Draws the rows starting at `offset`, and marks `cursor` if it is visible.
    pub fn draw(
        &self,
        map: &PoolMap,
        offset: usize,
        cursor: Option<Cursor>,
        area: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let columns = Columns::of(area);
        let rows = self.rows.iter().enumerate().skip(offset);
        for (y, (r, row)) in (area.y..area.bottom()).zip(rows) {
            let Some(segment) = row.first().and_then(|p| map.segments.get(p.segment)) else {
                continue;
            };
            let label = match row[0].from {
                0 => format!("{:06x}", segment.address >> 24),
                offset => format!("+{}", Bytes(offset).short()),
            };
            put(buffer, area.x, y, &label, LABEL, theme.style(Role::Dim));
            for piece in row {
                draw_piece(piece, columns.cells + area.x, y, area, buffer, theme);
            }
            if columns.label > 0 {
                let words = segment_text(segment, columns.label == SEGMENT_LABEL);
                let label = Rect::new(area.right() - columns.label, y, columns.label, 1);
                put_line(buffer, label, &words, Role::Dim, theme);
            }
            if let Some(cursor) = cursor.map(|c| self.nearest(c)).filter(|c| c.row == r) {
                mark(cursor, columns.cells + area.x, y, area, buffer, theme);
            }
        }
        let below = self.rows.len().saturating_sub(offset + usize::from(area.height));
        if below > 0 && area.height > 1 {
            let rows = if below == 1 { "row" } else { "rows" };
            let text = format!(" {} {below} {rows} below", theme.glyphs.ellipsis);
            put_line_right(buffer, row(area, area.bottom() - 1), &text, Role::Dim, theme);
        }
    }
}

/// A map with its cursor. The cell layout is computed on the first draw and after a size change.
#[derive(Debug, Default)]
pub struct MapPane {
    pub cursor: Cursor,
    /// Number of the block that [`Self::next_largest`] chose, ordered by size. Unset by other moves.
    rank: Option<usize>,
    cached: RefCell<Option<(usize, usize, Rc<SegmentLayout>)>>,
}

impl MapPane {
    /// Discards the layout of the previous map. The cursor is kept.
    pub fn set_map(&mut self) {
        self.cached = RefCell::default();
    }

    /// Returns the layout for a cell area.
    pub fn layout(&self, map: &PoolMap, cells: Rect) -> Rc<SegmentLayout> {
        let (across, down) = (cells_per_row(cells), usize::from(cells.height));
        let mut cached = self.cached.borrow_mut();
        if let Some((a, d, layout)) = &*cached
            && (*a, *d) == (across, down)
        {
            return Rc::clone(layout);
        }
        let layout = Rc::new(SegmentLayout::fitting(map, across, down));
        *cached = Some((across, down, Rc::clone(&layout)));
        layout
    }

    /// Returns the most recently drawn layout.
    fn drawn(&self) -> Option<Rc<SegmentLayout>> {
        self.cached.borrow().as_ref().map(|cached| Rc::clone(&cached.2))
    }

    /// Moves the cursor: sideways by a block, otherwise by a row. Returns false for all other actions.
    pub fn act(&mut self, action: Action, map: &PoolMap, page: usize) -> bool {
        let Some(layout) = self.drawn() else {
            return false;
        };
        let row = layout.nearest(self.cursor).row;
        self.cursor = match (action, moved(row, layout.rows(), page, action)) {
            (Action::Left, _) => layout.previous_block(map, self.cursor),
            (Action::Right, _) => layout.next_block(map, self.cursor),
            (_, Some(row)) => Cursor { row, ..self.cursor },
            (_, None) => return false,
        };
        self.rank = None;
        true
    }

    /// Moves the cursor to the largest allocated block, or to the next smaller one after that. Returns a description: `block 2
    /// of 223 by size: 1.00 GiB allocated`.
    pub fn next_largest(&mut self, map: &PoolMap) -> Option<String> {
        let mut blocks: Vec<(usize, &Block)> = map.allocated().collect();
        blocks.sort_unstable_by_key(|(_, block)| (std::cmp::Reverse(block.size), block.address));
        let rank = self.rank.map_or(0, |rank| rank + 1) % blocks.len().max(1);
        let (segment, block) = *blocks.get(rank)?;
        let offset = block.address.saturating_sub(map.segments[segment].address);
        self.cursor = self.drawn()?.cursor_of(segment, offset)?;
        self.rank = Some(rank);
        let size = block.size.short();
        Some(format!("block {} of {} by size: {size} allocated", rank + 1, blocks.len()))
    }

    /// Moves the cursor to the cell at a position.
    pub fn click(&mut self, map: &PoolMap, cells: Rect, at: Position) {
        let layout = self.layout(map, cells);
        if let Some(x) = at.x.checked_sub(cells.x + LABEL + 1).map(usize::from) {
            let row = self.first_row(&layout, cells) + usize::from(at.y - cells.y);
            self.cursor = layout.nearest(Cursor { row, x });
        }
    }

    /// Returns the first row to draw that keeps the cursor visible.
    fn first_row(&self, layout: &SegmentLayout, cells: Rect) -> usize {
        scrolled(layout.nearest(self.cursor).row, layout.rows(), usize::from(cells.height))
    }

    /// Returns the content of the cell under the cursor, in the most recently drawn layout.
    pub fn under<'m>(&self, map: &'m PoolMap) -> Option<CellContents<'m>> {
        self.drawn()?.under(map, self.cursor)
    }

    /// Draws the title, and the cells below it with the cursor.
    pub fn draw(
        &self,
        map: &PoolMap,
        is_exact: bool,
        cells: Rect,
        buffer: &mut Buffer,
        theme: &Theme,
    ) {
        let layout = self.layout(map, cells);
        let title = layout.title(map, is_exact, cells.width);
        let pieces =
            [("MAP  ", theme.style(Role::Title)), (title.as_str(), theme.style(Role::Dim))];
        put_all(buffer, cells.x, cells.y.saturating_sub(1), cells.right(), &pieces);
        let first = self.first_row(&layout, cells);
        layout.draw(map, first, Some(self.cursor), cells, buffer, theme);
    }
}

const LABEL: u16 = 6;
/// Width of a long label: `private stream ..a8c3`.
const SEGMENT_LABEL: u16 = 21;
/// Width of a short label: `private s..a8c3`.
const SHORT_SEGMENT_LABEL: u16 = 15;

/// First column of the cells, and the width of the label to their right.
struct Columns {
    cells: u16,
    label: u16,
}

impl Columns {
    fn of(area: Rect) -> Self {
        Self {
            cells: LABEL + 1,
            label: match area.width {
                0..44 => 0,
                44..70 => SHORT_SEGMENT_LABEL,
                _ => SEGMENT_LABEL,
            },
        }
    }
}

/// Returns the number of cells per row in an area.
pub fn cells_per_row(area: Rect) -> usize {
    let columns = Columns::of(area);
    let gap = u16::from(columns.label > 0);
    usize::from(area.width.saturating_sub(columns.cells + columns.label + gap).max(1))
}

fn draw_piece(piece: &Piece, left: u16, y: u16, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    for (i, fill) in piece.fills.iter().enumerate() {
        let Ok(x) = u16::try_from(piece.x + i) else {
            return;
        };
        let x = left.saturating_add(x);
        if x < area.right() {
            put_glyph(buffer, x, y, fill.glyph(theme), theme.style(fill.role()));
        }
    }
}

/// Shows the cell in reverse video, and marks its row for terminals without colour or reverse video.
fn mark(cursor: Cursor, left: u16, y: u16, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let x = left.saturating_add(u16::try_from(cursor.x).unwrap_or(u16::MAX));
    let cell = Rect::new(x, y, 1, 1);
    buffer.set_style(cell.intersection(area).intersection(buffer.area), theme.style(Role::Banner));
    put_glyph(buffer, area.x + LABEL, y, theme.glyphs.cursor, theme.style(Role::Key));
}

/// Returns a row label: `large   stream 0` or `large   s0`.
fn segment_text(segment: &Segment, long: bool) -> String {
    if segment.pool == PoolKind::Region {
        return pool_text(segment.pool).to_owned();
    }
    format!(
        "{:<8}{}{}",
        pool_text(segment.pool),
        if long { "stream " } else { "s" },
        stream_text(segment.stream)
    )
}

pub fn pool_text(pool: PoolKind) -> &'static str {
    match pool {
        PoolKind::Large => "large",
        PoolKind::Small => "small",
        PoolKind::Private => "private",
        PoolKind::Region => "region",
        PoolKind::Unknown => "other",
    }
}

/// Formats a stream: 0 for the default stream, or the last digits of a handle.
pub fn stream_text(stream: u64) -> String {
    match stream {
        0 => "0".into(),
        handle => format!("..{:04x}", handle & 0xffff),
    }
}

/// Returns the segments in row order.
fn row_order(map: &PoolMap) -> Vec<usize> {
    let rank = |pool| match pool {
        PoolKind::Large => 0,
        PoolKind::Private => 1,
        PoolKind::Small => 2,
        PoolKind::Region | PoolKind::Unknown => 3,
    };
    let mut order: Vec<usize> =
        (0..map.segments.len()).filter(|&i| map.segments[i].size.0 > 0).collect();
    order.sort_unstable_by_key(|&i| {
        let segment = &map.segments[i];
        (rank(segment.pool), segment.stream, segment.address)
    });
    order
}

/// Packer that places segment parts side by side if they have the same pool and stream and the row has room.
#[derive(Default)]
struct RowPacker {
    /// Pool and stream of the row, and its first free column.
    row: Option<(PoolKind, u64, usize)>,
    /// True if the last part was a single cell.
    is_single: bool,
}

impl RowPacker {
    /// Places the next part. Returns true if the part begins a new row, and returns its column.
    fn next(
        &mut self,
        segment: &Segment,
        cells: usize,
        width: usize,
        continues: bool,
    ) -> (bool, usize) {
        let gap = usize::from(!(self.is_single && cells == 1));
        let shared = self.row.filter(|(pool, stream, end)| {
            !continues
                && *pool == segment.pool
                && *stream == segment.stream
                && end + gap + cells <= width
        });
        let (new_row, x) = shared.map_or((true, 0), |(_, _, end)| (false, end + gap));
        self.is_single = cells == 1;
        self.row = Some((segment.pool, segment.stream, x + cells));
        (new_row, x)
    }
}

fn count_rows(map: &PoolMap, order: &[usize], cell: u64, width: usize) -> usize {
    let width = width.max(1);
    let (mut packer, mut rows) = (RowPacker::default(), 0_usize);
    for &i in order {
        let segment = &map.segments[i];
        let mut left = cells_of(segment, cell);
        // Count the full rows of a long segment without placing each one.
        let whole = (left.saturating_sub(1)) / width;
        if whole > 0 {
            rows = rows.saturating_add(whole);
            left -= whole * width;
        }
        rows += usize::from(packer.next(segment, left, width, whole > 0).0);
    }
    rows
}

fn cells_of(segment: &Segment, cell: u64) -> usize {
    usize::try_from(segment.size.0.div_ceil(cell.max(1)).max(1)).unwrap_or(usize::MAX)
}

/// Maximum number of cells per segment. Segments on the largest GPU have fewer; a larger number indicates corrupt data.
const MAX_CELLS: usize = 1 << 20;

/// Returns the state of each cell, computed in one pass over the blocks.
fn fills(segment: &Segment, cell: u64) -> Vec<CellFill> {
    let count = cells_of(segment, cell).min(MAX_CELLS);
    let mut fills = Vec::with_capacity(count);
    let mut amounts = [0_u64; 4];
    let mut blocks = segment.blocks.iter().peekable();
    for index in 0..count as u64 {
        let (from, to) = (index * cell, (index + 1) * cell);
        while let Some(block) = blocks.peek() {
            let start = block.address.saturating_sub(segment.address);
            let end = start.saturating_add(block.size.0);
            let part = end.min(to).saturating_sub(start.max(from));
            amounts[CellFill::of(block.state) as usize] += part;
            if end > to {
                break;
            }
            blocks.next();
        }
        let largest = (0..4).rev().max_by_key(|&i| amounts[i]).unwrap_or(0);
        // Memory outside all blocks is treated as unmapped.
        let known = amounts[largest] > 0;
        fills.push(if known { CellFill::ALL[largest] } else { CellFill::Unmapped });
        amounts = [0; 4];
    }
    fills
}

#[cfg(test)]
mod tests;

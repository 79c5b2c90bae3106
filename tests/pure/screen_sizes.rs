//! Sizes of a terminal at which every screen must be drawn without a panic.

use crate::support::training_day::Random;

/// Widths and heights at which a screen changes its parts, and those next to them.
const WIDTHS: [u16; 10] = [0, 1, 2, 39, 40, 60, 61, 80, 120, 200];
const HEIGHTS: [u16; 9] = [0, 1, 2, 3, 6, 7, 13, 24, 40];

/// Returns all pairs of these, and sizes between them. Each seed has others.
pub fn screen_sizes(seed: u64) -> impl Iterator<Item = (u16, u16)> {
    let boundaries = WIDTHS.into_iter().flat_map(|width| HEIGHTS.map(|height| (width, height)));
    let mut random = Random(seed + 1);
    let mut below = move |max| random.between(0, max) as u16;
    let others = std::iter::repeat_with(move || (below(140), below(60)));
    boundaries.chain(others.take(30))
}

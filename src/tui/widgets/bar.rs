//! A bar whose parts add up to its width. A part that fills at least an eighth of a cell gets at least one cell if
//! there is room.

use ratatui::buffer::Buffer;
use ratatui::style::Style;

use super::cells::put_glyph;

#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub amount: u64,
    pub glyph: &'a str,
    pub style: Style,
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

pub fn draw(buffer: &mut Buffer, x: u16, y: u16, width: u16, parts: &[Part<'_>]) {
    let amounts: Vec<u64> = parts.iter().map(|p| p.amount).collect();
    let mut at = x;
    for (part, cells) in parts.iter().zip(divide(&amounts, usize::from(width))) {
        for _ in 0..cells {
            put_glyph(buffer, at, y, part.glyph, part.style);
            at += 1;
        }
    }
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

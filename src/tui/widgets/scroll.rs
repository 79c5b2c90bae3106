//! Scroll position of a text. How far the text can scroll follows from its length and the rows that fit.

use crate::tui::action::Action;
use crate::tui::screens::moved;

#[derive(Debug, Default)]
pub struct Scroll {
    at: usize,
}

impl Scroll {
    /// Returns the first line to draw of `total` lines if `shown` fit.
    pub fn first(&self, total: usize, shown: usize) -> usize {
        self.at.min(total.saturating_sub(shown))
    }

    /// Scrolls `total` lines of which `shown` fit. Returns true if the action scrolls.
    pub fn act(&mut self, action: Action, total: usize, shown: usize) -> bool {
        if action == Action::Last {
            // Stays at the end as the list grows.
            self.at = usize::MAX;
            return true;
        }
        let count = total.saturating_sub(shown) + 1;
        let to = moved(self.first(total, shown), count, shown, action);
        self.at = to.unwrap_or(self.at);
        to.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrolls_up_from_the_end_with_the_first_key() {
        let mut scroll = Scroll::default();
        assert_eq!(scroll.first(50, 20), 0);
        assert!(scroll.act(Action::Last, 50, 20));
        assert_eq!(scroll.first(40, 20), 20);
        assert_eq!(scroll.first(50, 20), 30);
        assert!(scroll.act(Action::Up, 50, 20));
        assert_eq!(scroll.first(50, 20), 29);
        assert_eq!(scroll.first(10, 20), 0);
        assert!(!scroll.act(Action::Open, 50, 20));
    }
}

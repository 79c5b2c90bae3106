//! Scroll position of a list. Each draw computes how far the list can scroll, and keys stay within that limit.

use std::cell::Cell;

use crate::tui::action::Action;
use crate::tui::screens::moved;

#[derive(Debug, Default)]
pub struct Scroll {
    at: usize,
    /// Maximum scroll position as of the last draw. Both lengths are known only then.
    last: Cell<usize>,
    page: Cell<usize>,
}

impl Scroll {
    /// Returns the first line to draw of `total` lines if `shown` fit.
    pub fn first(&self, total: usize, shown: usize) -> usize {
        self.last.set(total.saturating_sub(shown));
        self.page.set(shown);
        self.at.min(self.last.get())
    }

    /// Returns true if the action scrolls.
    pub fn act(&mut self, action: Action) -> bool {
        if action == Action::Last {
            // Stays at the end as the list grows.
            self.at = usize::MAX;
            return true;
        }
        let last = self.last.get();
        let to = moved(self.at.min(last), last + 1, self.page.get(), action);
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
        assert!(scroll.act(Action::Last));
        assert_eq!(scroll.first(40, 20), 20);
        assert_eq!(scroll.first(50, 20), 30);
        assert!(scroll.act(Action::Up));
        assert_eq!(scroll.first(50, 20), 29);
        assert_eq!(scroll.first(10, 20), 0);
        assert!(!scroll.act(Action::Open));
    }
}

//! How far a list that is longer than its place was scrolled: drawing says how far it can go, keys stay within that.

use std::cell::Cell;

use crate::tui::action::Action;
use crate::tui::screens::moved;

#[derive(Debug, Default)]
pub struct Scroll {
    at: usize,
    /// The furthest that made sense when it was last drawn: only then are both lengths known.
    last: Cell<usize>,
    page: Cell<usize>,
}

impl Scroll {
    /// The first line to draw of `total` in a place of `shown`.
    pub fn first(&self, total: usize, shown: usize) -> usize {
        self.last.set(total.saturating_sub(shown));
        self.page.set(shown);
        self.at.min(self.last.get())
    }

    /// True when the action scrolls.
    pub fn act(&mut self, action: Action) -> bool {
        if action == Action::Last {
            // The end, also of what is still to come.
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
    fn the_first_key_up_after_the_end_moves() {
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

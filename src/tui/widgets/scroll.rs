//! The scroll position in a text. The scroll limit depends on the text's length and the number of visible rows.

use crate::tui::action::{Action, moved};
use crate::tui::screen::Effect;

#[derive(Debug, Default)]
pub struct Scroll {
    at: usize,
}

impl Scroll {
    /// Returns the index of the first line to draw, if there are `total` lines and `shown` of them fit.
    pub fn first(&self, total: usize, shown: usize) -> usize {
        self.at.min(total.saturating_sub(shown))
    }

    /// Scrolls through `total` lines, of which `shown` fit. Ignores other actions.
    pub fn act(&mut self, action: Action, total: usize, shown: usize) -> Effect {
        if action == Action::Last {
            // Stay at the end as the list grows.
            self.at = usize::MAX;
            return Effect::Done;
        }
        let count = total.saturating_sub(shown) + 1;
        let to = moved(self.first(total, shown), count, shown, action);
        self.at = to.unwrap_or(self.at);
        match to {
            Some(_) => Effect::Done,
            None => Effect::Ignored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrolls_up_from_the_end_with_the_first_key() {
        let mut scroll = Scroll::default();
        assert_eq!(scroll.first(50, 20), 0);
        assert!(matches!(scroll.act(Action::Last, 50, 20), Effect::Done));
        assert_eq!(scroll.first(40, 20), 20);
        assert_eq!(scroll.first(50, 20), 30);
        assert!(matches!(scroll.act(Action::Up, 50, 20), Effect::Done));
        assert_eq!(scroll.first(50, 20), 29);
        assert_eq!(scroll.first(10, 20), 0);
        let effect = scroll.act(Action::Open, 50, 20);
        assert!(matches!(effect, Effect::Ignored));
    }
}

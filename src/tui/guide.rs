//! Guidance line of the demo: the keys to try first, or the stops of a tour.

use super::action::Action;
use super::keymap::Keymap;

/// Guidance shown above a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guide {
    /// A line with the most useful keys.
    Keys,
    /// The tour, with the index of the current stop.
    Tour(usize),
}

/// A stop of the tour: a sentence with the key for the first action. Each of the listed actions advances to the next
/// stop.
struct Stop {
    before_key: &'static str,
    actions: &'static [Action],
    after_key: &'static str,
}

const STOPS: [Stop; 6] = [
    Stop {
        before_key: "A program has just run out of memory. Press",
        actions: &[Action::Why],
        after_key: "to see why.",
    },
    Stop {
        before_key: "Each fix has a number, and some have a predicted effect. Press",
        actions: &[Action::CopyFix],
        after_key: "to copy the first one.",
    },
    Stop {
        before_key: "The causes are ranked by evidence. Press",
        actions: &[Action::Back, Action::Quit],
        after_key: "to go back to the overview.",
    },
    Stop {
        before_key: "Which process uses the most memory? Press",
        actions: &[Action::SortVram],
        after_key: "to sort by VRAM.",
    },
    Stop {
        before_key: "What fills the memory of a process? Press",
        actions: &[Action::Memory],
        after_key: "to see tensors, cache, fragments and the largest request that fits.",
    },
    Stop {
        before_key: "Every screen explains its keys and terms. Press",
        actions: &[Action::Help],
        after_key: "for help.",
    },
];

impl Guide {
    /// Advances the tour if the action is the one requested at the current stop.
    pub fn follow(&mut self, action: Action) {
        if let Self::Tour(at) = self
            && STOPS.get(*at).is_some_and(|stop| stop.actions.contains(&action))
        {
            *at += 1;
        }
    }

    /// Returns the guidance as a sentence or phrase.
    pub fn words(self, keymap: &Keymap) -> String {
        let key = |action| keymap.label(action);
        match self {
            Self::Keys => format!(
                "{} explains the failure, {} opens process memory, {} pauses, {} shows help",
                key(Action::Why),
                key(Action::Memory),
                key(Action::PlayPause),
                key(Action::Help),
            ),
            Self::Tour(at) => match STOPS.get(at) {
                Some(stop) => format!(
                    "{}/{}  {} {} {}",
                    at + 1,
                    STOPS.len(),
                    stop.before_key,
                    key(stop.actions[0]),
                    stop.after_key
                ),
                None => format!(
                    "End of the tour. {} plays the recording, {} quits.",
                    key(Action::PlayPause),
                    key(Action::QuitNow)
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tour_moves_on_only_when_its_key_is_pressed() {
        let keymap = Keymap::default();
        let mut tour = Guide::Tour(0);
        for (at, stop) in STOPS.iter().enumerate() {
            assert_eq!(tour, Guide::Tour(at));
            let words = tour.words(&keymap);
            assert!(words.contains(&keymap.label(stop.actions[0])), "{words}");
            tour.follow(Action::Redraw);
            assert_eq!(tour, Guide::Tour(at));
            stop.actions.iter().take(1).for_each(|action| tour.follow(*action));
        }
        assert!(tour.words(&keymap).starts_with("End of the tour"));
        let mut keys = Guide::Keys;
        keys.follow(Action::Why);
        assert_eq!(keys, Guide::Keys);
    }
}

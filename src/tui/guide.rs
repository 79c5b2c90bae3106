//! Guidance line in the demo: the keys to try first, or the stops of a tour.

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

/// A stop of the tour: a sentence with the key of an action, and the goal that completes the stop.
struct Stop {
    before_key: &'static str,
    action: Action,
    after_key: &'static str,
    goal: Goal,
}

/// The condition that completes a stop of the tour. A key that was refused or handled by a menu does not complete a
/// stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// The screen with this ID is on top.
    Screen(&'static str),
    /// Text was copied.
    Copy,
    /// The stop's action was performed.
    Action,
    /// The process on top is under the cursor.
    TopProcess,
}

/// Result of a key press.
pub struct KeyResult {
    pub action: Option<Action>,
    pub has_copied: bool,
    /// True if the first process of the table is under the cursor afterwards.
    pub is_top_process: bool,
    /// ID of the screen on top afterwards.
    pub screen: &'static str,
}

const STOPS: [Stop; 7] = [
    Stop {
        before_key: "A program has just run out of memory. Press",
        action: Action::Why,
        after_key: "to see why.",
        goal: Goal::Screen("incident"),
    },
    Stop {
        before_key: "Each fix has a number, and some have a predicted effect. Press",
        action: Action::CopyFix,
        after_key: "to copy one of them.",
        goal: Goal::Copy,
    },
    Stop {
        before_key: "The causes are ranked by evidence. Press",
        action: Action::Back,
        after_key: "to go back to the overview.",
        goal: Goal::Screen("overview"),
    },
    Stop {
        before_key: "Which process uses the most memory? Press",
        action: Action::SortVram,
        after_key: "to sort by VRAM.",
        goal: Goal::Action,
    },
    Stop {
        before_key: "The process with the most memory is now on top. Press",
        action: Action::NextPane,
        after_key: "to go to it.",
        goal: Goal::TopProcess,
    },
    Stop {
        before_key: "What fills its memory? Press",
        action: Action::Memory,
        after_key: "for its tensors, cache, fragments and largest possible request.",
        goal: Goal::Screen("memory"),
    },
    Stop {
        before_key: "Every screen explains its keys and terms. Press",
        action: Action::Help,
        after_key: "for help.",
        goal: Goal::Action,
    },
];

impl Guide {
    /// Advances the tour if a key completed the current stop.
    pub fn follow(&mut self, key: &KeyResult) {
        if let Self::Tour(at) = self
            && STOPS.get(*at).is_some_and(|stop| match stop.goal {
                Goal::Screen(id) => key.screen == id,
                Goal::Copy => key.has_copied,
                Goal::Action => key.action == Some(stop.action),
                Goal::TopProcess => key.is_top_process,
            })
        {
            *at += 1;
        }
    }

    /// Returns true if the guidance applies to a screen. The keys to try first are those of the overview.
    pub fn applies_to(self, screen: &str) -> bool {
        self != Self::Keys || screen == "overview"
    }

    /// Returns the current stop of the tour for a small pane: `1/7 Press d to see why.`
    pub fn short_words(self, keymap: &Keymap) -> Option<String> {
        let Self::Tour(at) = self else {
            return None;
        };
        let stop = STOPS.get(at)?;
        let key = keymap.label(stop.action);
        Some(format!("{}/{} Press {key} {}", at + 1, STOPS.len(), stop.after_key))
    }

    /// Returns the guidance as a sentence or phrase.
    pub fn words(self, keymap: &Keymap, is_paused: bool, has_incident: bool) -> String {
        let pauses = if is_paused { "plays" } else { "pauses" };
        let key = |action| keymap.label(action);
        match self {
            Self::Keys => {
                let explain = format!("{} explains the failure, ", key(Action::Why));
                format!(
                    "{}{} opens process memory, {} {pauses}, {} shows help",
                    if has_incident { &explain } else { "" },
                    key(Action::Memory),
                    key(Action::PlayPause),
                    key(Action::Help),
                )
            }
            Self::Tour(at) => match STOPS.get(at) {
                Some(stop) => format!(
                    "{}/{}  {} {} {}",
                    at + 1,
                    STOPS.len(),
                    stop.before_key,
                    key(stop.action),
                    stop.after_key
                ),
                None => format!(
                    "End of the tour. {} {pauses} the recording, {} quits.",
                    key(Action::PlayPause),
                    key(Action::Quit)
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::screens::SCREENS;

    #[test]
    fn every_screen_of_the_guidance_exists() {
        let goals = STOPS.iter().map(|stop| stop.goal);
        let named = goals.filter_map(|goal| match goal {
            Goal::Screen(id) => Some(id),
            Goal::Copy | Goal::Action | Goal::TopProcess => None,
        });
        for id in named.chain(["overview"]) {
            assert!(SCREENS.iter().any(|screen| screen.id == id), "{id}");
        }
        assert!(Guide::Keys.applies_to("overview"));
    }

    #[test]
    fn the_tour_moves_on_only_when_its_goal_is_reached() {
        let keymap = Keymap::default();
        let nothing =
            KeyResult { action: None, has_copied: false, is_top_process: false, screen: "gpu" };
        let mut tour = Guide::Tour(0);
        for (at, stop) in STOPS.iter().enumerate() {
            assert_eq!(tour, Guide::Tour(at));
            let words = tour.words(&keymap, false, true);
            assert!(words.contains(&keymap.label(stop.action)), "{words}");
            tour.follow(&nothing);
            assert_eq!(tour, Guide::Tour(at));
            tour.follow(&match stop.goal {
                Goal::Screen(screen) => KeyResult { screen, ..nothing },
                Goal::Copy => KeyResult { has_copied: true, ..nothing },
                Goal::Action => KeyResult { action: Some(stop.action), ..nothing },
                Goal::TopProcess => KeyResult { is_top_process: true, ..nothing },
            });
        }
        assert!(tour.words(&keymap, true, true).starts_with("End of the tour"));
        let mut keys = Guide::Keys;
        keys.follow(&KeyResult { action: Some(Action::Why), ..nothing });
        assert_eq!(keys, Guide::Keys);
    }

    #[test]
    fn the_guidance_says_what_the_keys_do_now() {
        let keymap = Keymap::default();
        assert!(Guide::Keys.words(&keymap, false, true).contains("Space pauses"));
        assert!(Guide::Keys.words(&keymap, true, true).contains("Space plays"));
        assert!(Guide::Keys.words(&keymap, true, true).contains("d explains the failure"));
        assert!(!Guide::Keys.words(&keymap, true, false).contains("the failure"));
    }
}

//! The events that were told: a far side that is heard anew may begin with what it said before.

use std::collections::VecDeque;

use crate::model::event::Event;

/// Agents of which the newest number is known; one comes with each connection.
const MAX_AGENTS: usize = 64;

/// Of each agent the number of its newest event: they count up by one.
#[derive(Debug, Default)]
pub(super) struct EventNumbers(VecDeque<(String, u64)>);

impl EventNumbers {
    /// Whether it was not told before. An agent without a name is not known again.
    pub(super) fn is_new(&mut self, event: &Event) -> bool {
        if event.agent.is_empty() {
            return true;
        }
        if let Some((_, newest)) = self.0.iter_mut().find(|(agent, _)| *agent == event.agent) {
            let is_new = event.seq > *newest;
            *newest = event.seq.max(*newest);
            return is_new;
        }
        if self.0.len() == MAX_AGENTS {
            self.0.pop_front();
        }
        self.0.push_back((event.agent.clone(), event.seq));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_agent_every_event_is_new_once() {
        let mut told = EventNumbers::default();
        let mut is_new = |agent: &str, seq| {
            let agent = agent.to_owned();
            told.is_new(&Event {
                agent,
                seq,
                ..Event::default()
            })
        };
        let first = [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("", 0), ("", 0)];
        assert!(first.into_iter().all(|(agent, seq)| is_new(agent, seq)));
        let again = [("a", 0), ("a", 2), ("b", 0)];
        assert!(!again.into_iter().any(|(agent, seq)| is_new(agent, seq)));
        // The agents of a day of lost links take no room.
        (0..1_000).for_each(|n| assert!(is_new(&n.to_string(), 0)));
        assert_eq!(told.0.len(), MAX_AGENTS);
    }
}

//! Filters out repeated events: after a reconnect, an agent may first repeat events that it has already sent.

use std::collections::VecDeque;

use gputop_model::event::Event;

/// Maximum number of agents to remember. Each connection adds one agent.
const MAX_AGENTS: usize = 64;
/// Maximum length of an agent's name. Agents choose much shorter ones.
const MAX_AGENT_BYTES: usize = 256;

/// Each agent and its newest event number. An agent numbers its events consecutively.
#[derive(Debug, Default)]
pub(super) struct EventNumbers(VecDeque<(String, u64)>);

impl EventNumbers {
    /// Returns true if the event has not been received before. Events from agents without a valid name always count as
    /// new.
    pub(super) fn is_new(&mut self, event: &Event) -> bool {
        if event.agent.is_empty() || event.agent.len() > MAX_AGENT_BYTES {
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
    fn each_event_of_an_agent_is_new_once() {
        let mut numbers = EventNumbers::default();
        let mut is_new = |agent: &str, seq| {
            let agent = agent.to_owned();
            numbers.is_new(&Event { agent, seq, ..Event::default() })
        };
        let first = [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("", 0), ("", 0)];
        assert!(first.into_iter().all(|(agent, seq)| is_new(agent, seq)));
        let again = [("a", 0), ("a", 2), ("b", 0)];
        assert!(!again.into_iter().any(|(agent, seq)| is_new(agent, seq)));
        // Many reconnects must not increase memory use.
        (0..1_000).for_each(|n| assert!(is_new(&n.to_string(), 0)));
        assert_eq!(numbers.0.len(), MAX_AGENTS);
    }
}

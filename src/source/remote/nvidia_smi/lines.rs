//! Assembles the remote script's output lines: `g 0, GPU-…, NVIDIA H200, …` is a GPU in the round that started with `b
//! 7`.
//!
//! Unknown lines are skipped, so a faulty program on the remote host affects only its own lines.

use super::facts::Facts;
use super::readings::{Clocks, Round, SmiDetails, clocks, number};

/// A complete section of the remote script's output.
pub(super) enum ScriptLine {
    Facts(Box<Facts>),
    Round(Round),
    Details(SmiDetails),
    Clocks(Clocks),
}

/// Sections of script output that are still incomplete.
#[derive(Default)]
pub(super) struct SmiLines {
    facts: Option<Box<Facts>>,
    has_facts: bool,
    round: Option<Round>,
    details: Option<SmiDetails>,
}

impl SmiLines {
    /// Adds a line without its line feed. Returns the section completed by the line, if any.
    pub(super) fn take(&mut self, line: &[u8]) -> Option<ScriptLine> {
        let (kind, text) = line.split_first()?;
        let text = text.strip_prefix(b" ").unwrap_or(text);
        match kind {
            b'.' if text.is_empty() => {
                self.has_facts = true;
                Some(ScriptLine::Facts(self.facts.take().unwrap_or_default()))
            }
            b'.' => {
                let number = number(text);
                self.round.take_if(|round| Some(round.number) == number).map(ScriptLine::Round)
            }
            b'b' => {
                self.round = number(text).map(|number| Round { number, ..Round::default() });
                None
            }
            b'i' => {
                self.details =
                    number(text).map(|number| SmiDetails { number, ..SmiDetails::default() });
                None
            }
            b';' => {
                let number = number(text);
                let is_same = |details: &mut SmiDetails| Some(details.number) == number;
                self.details.take_if(is_same).map(ScriptLine::Details)
            }
            b't' | b'v' | b'w' => {
                self.details.as_mut()?.take(*kind, text);
                None
            }
            b'h' => clocks(text).map(ScriptLine::Clocks),
            kind if kind.is_ascii_uppercase() && !self.has_facts => {
                self.facts.get_or_insert_default().take(*kind, text);
                None
            }
            kind => {
                self.round.as_mut()?.take(*kind, text);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::readings::{MAX_GPUS, MAX_PROCESSES};
    use super::*;
    use gputop_model::host::PidNamespace;
    use gputop_model::units::{Mono, UnixMillis};
    use proptest::prelude::*;

    fn parse(text: &str) -> Vec<ScriptLine> {
        let mut lines = SmiLines::default();
        let all = text.lines().filter_map(|line| lines.take(line.as_bytes()));
        all.collect()
    }

    #[test]
    fn reads_the_host_facts_once() {
        let text = "N node17\nS pid:[4026531836]\nT 100\nP 4096\nF \"index\"\nF \"uuid\" or \"gpu_uuid\"\n\
                    F \"clocks_throttle_reasons.active\"\n.\nN other\n.\n";
        let parse = parse(text);
        let [ScriptLine::Facts(facts), ScriptLine::Facts(again)] = &parse[..] else {
            panic!("not two");
        };
        assert_eq!(facts.host.as_deref(), Some("node17"));
        assert_eq!(facts.namespace, PidNamespace::Host);
        assert_eq!(facts.query(), "index,uuid,clocks_throttle_reasons.active");
        assert_eq!(again.host, None);
        // The older name is used if the host supports only that name, or if its field names are unknown.
        let names = ["clocks_event_reasons.active", "clocks_throttle_reasons.active"];
        assert_eq!(facts.name_of(&names), Some(names[1]));
        assert_eq!(again.name_of(&names), Some(names[1]));
    }

    #[test]
    fn a_round_is_complete_at_its_own_end_line() {
        let text = ".\ng extra\nb 1\nu 10.50 1763668000\ng 0, a\n. 2\nb 2\ng 0, b\ng 1, c\ne 0\nh 11.5 1763668001\n. 2\n. 2\n";
        let parse = parse(text);
        let [ScriptLine::Facts(_), ScriptLine::Clocks(clocks), ScriptLine::Round(round)] =
            &parse[..]
        else {
            panic!("not those");
        };
        assert_eq!((clocks.mono, clocks.time), (Mono(11_500), UnixMillis(1_763_668_001_000)));
        assert_eq!(round.number, 2);
        assert_eq!(round.gpus, [b"0, b".to_vec(), b"1, c".to_vec()]);
        assert_eq!(round.gpus_exit, Some(0));
    }

    #[test]
    fn details_are_complete_at_their_own_end_line() {
        let text = ".\nt extra\ni 3\nt # gpu\nv GPU 0\n; 2\nb 4\nw | 0\n; 3\n; 3\n";
        let parse = parse(text);
        let [ScriptLine::Facts(_), ScriptLine::Details(details)] = &parse[..] else {
            panic!("not those");
        };
        assert_eq!(details.number, 3);
        assert_eq!(details.usage, [b"# gpu".to_vec()]);
        assert_eq!((details.devices.len(), details.instances.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic_or_unlimited_growth(line: Vec<u8>, times in 1usize..5_000) {
            let mut lines = SmiLines::default();
            lines.take(b"b 1");
            lines.take(b"i 1");
            for _ in 0..times {
                lines.take(&line);
            }
            let round = lines.round.unwrap_or_default();
            let details = lines.details.unwrap_or_default();
            prop_assert!(details.usage.len() <= MAX_PROCESSES);
            prop_assert!(round.gpus.len() <= MAX_GPUS && round.ps_lines.len() <= MAX_PROCESSES);
        }
    }
}

//! The lines of the loop there, put together again: `g 0, GPU-…, NVIDIA H200, …` is a GPU of the round that began with `b 7`.
//!
//! What is not understood is left out: a line of a ruined program costs itself.

use super::facts::Facts;
use super::readings::{Details, Round};
use crate::model::units::{Mono, UnixMillis};

/// Something whole.
pub(super) enum ScriptLine {
    Facts(Box<Facts>),
    Round(Round),
    Details(Details),
    Clocks(Clocks),
}

/// Since boot, and by the wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Clocks {
    pub mono: Mono,
    pub time: UnixMillis,
}

/// What has been heard so far.
#[derive(Default)]
pub(super) struct Lines {
    facts: Option<Box<Facts>>,
    is_begun: bool,
    round: Option<Round>,
    details: Option<Details>,
}

impl Lines {
    /// One more line, without its end; something whole when it was the last of it.
    pub(super) fn take(&mut self, line: &[u8]) -> Option<ScriptLine> {
        let (kind, text) = line.split_first()?;
        let text = text.strip_prefix(b" ").unwrap_or(text);
        match kind {
            b'.' if text.is_empty() => {
                self.is_begun = true;
                Some(ScriptLine::Facts(self.facts.take().unwrap_or_default()))
            }
            b'.' => {
                let ends = number(text);
                let is_it = |round: &mut Round| Some(round.number) == ends;
                self.round.take_if(is_it).map(ScriptLine::Round)
            }
            b'b' => {
                self.round = number(text).map(|number| Round {
                    number,
                    ..Round::default()
                });
                None
            }
            b'i' => {
                self.details = number(text).map(|number| Details {
                    number,
                    ..Details::default()
                });
                None
            }
            b';' => {
                let ends = number(text);
                let is_it = |details: &mut Details| Some(details.number) == ends;
                self.details.take_if(is_it).map(ScriptLine::Details)
            }
            b't' | b'v' | b'w' => {
                self.details.as_mut()?.take(*kind, text);
                None
            }
            b'h' => clocks(text).map(ScriptLine::Clocks),
            kind if kind.is_ascii_uppercase() && !self.is_begun => {
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

/// `12345.67 1763668000`
pub(super) fn clocks(text: &[u8]) -> Option<Clocks> {
    let text = std::str::from_utf8(text).ok()?;
    let (up, wall) = text.split_once(' ')?;
    let up: f64 = up.parse().ok()?;
    let wall: i64 = wall.trim().parse().ok()?;
    // A float into an integer stays within its bounds.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Some(Clocks {
        mono: Mono((up * 1_000.0) as u64),
        time: UnixMillis(wall.saturating_mul(1_000)),
    })
}

pub(super) fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

pub(super) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = text.split(u8::is_ascii_whitespace);
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::readings::{MAX_GPUS, MAX_PROCESSES};
    use super::*;
    use crate::model::host::PidNamespace;
    use proptest::prelude::*;

    fn heard(text: &str) -> Vec<ScriptLine> {
        let mut lines = Lines::default();
        let all = text.lines().filter_map(|line| lines.take(line.as_bytes()));
        all.collect()
    }

    #[test]
    fn the_host_and_what_its_driver_knows_are_told_once() {
        let told = "N node17\nS pid:[4026531836]\nT 100\nP 4096\nF \"index\"\nF \"uuid\" or \"gpu_uuid\"\n\
                    F \"clocks_throttle_reasons.active\"\n.\nN other\n.\n";
        let heard = heard(told);
        let [ScriptLine::Facts(facts), ScriptLine::Facts(again)] = &heard[..] else {
            panic!("not two");
        };
        assert_eq!(facts.host.as_deref(), Some("node17"));
        assert_eq!(facts.namespace, PidNamespace::Host);
        assert_eq!(facts.query(), "index,uuid,clocks_throttle_reasons.active");
        assert_eq!(again.host, None);
        // The newer name where there are both.
        let names = [
            "clocks_event_reasons.active",
            "clocks_throttle_reasons.active",
        ];
        assert_eq!(facts.name_of(&names), Some(names[1]));
        assert_eq!(again.name_of(&names), Some(names[1]));
    }

    #[test]
    fn a_round_is_whole_when_its_own_end_was_heard() {
        let told = ".\ng stray\nb 1\nu 10.50 1763668000\ng 0, a\n. 2\nb 2\ng 0, b\ng 1, c\ne 0\nh 11.5 1763668001\n. 2\n. 2\n";
        let heard = heard(told);
        let [
            ScriptLine::Facts(_),
            ScriptLine::Clocks(clocks),
            ScriptLine::Round(round),
        ] = &heard[..]
        else {
            panic!("not those");
        };
        assert_eq!(
            (clocks.mono, clocks.time),
            (Mono(11_500), UnixMillis(1_763_668_001_000))
        );
        assert_eq!(round.number, 2);
        assert_eq!(round.gpus, [b"0, b".to_vec(), b"1, c".to_vec()]);
        assert_eq!(round.gpus_exit, Some(0));
    }

    #[test]
    fn details_are_whole_when_their_own_end_was_heard() {
        let told = ".\nt stray\ni 3\nt # gpu\nv GPU 0\n; 2\nb 4\nw | 0\n; 3\n; 3\n";
        let heard = heard(told);
        let [ScriptLine::Facts(_), ScriptLine::Details(details)] = &heard[..] else {
            panic!("not those");
        };
        assert_eq!(details.number, 3);
        assert_eq!(details.usage, [b"# gpu".to_vec()]);
        assert_eq!((details.devices.len(), details.instances.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_grow(line: Vec<u8>, times in 1usize..5_000) {
            let mut lines = Lines::default();
            lines.take(b"b 1");
            lines.take(b"i 1");
            for _ in 0..times {
                lines.take(&line);
            }
            let round = lines.round.unwrap_or_default();
            let details = lines.details.unwrap_or_default();
            prop_assert!(details.usage.len() <= MAX_PROCESSES);
            prop_assert!(round.gpus.len() <= MAX_GPUS && round.people.len() <= MAX_PROCESSES);
        }
    }
}

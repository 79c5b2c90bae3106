//! The lines of the loop there, put together again: `g 0, GPU-…, NVIDIA H200, …` is a GPU of the round that began with `b 7`.
//!
//! What is not understood is left out: a line of a ruined program costs itself.

use std::collections::BTreeSet;

use super::fields::FIELDS;
use crate::model::host::PidNamespace;
use crate::model::text::visible;
use crate::model::units::{Mono, UnixMillis};

/// A round holds no more lines of a kind.
const MOST_GPUS: usize = 256;
const MOST_PROCESSES: usize = 1024;
/// And a help no more names.
const MOST_NAMES: usize = 2048;
const MOST_WORD: usize = 255;

/// Something whole.
pub(super) enum Heard {
    Facts(Box<Facts>),
    Round(Round),
    Clocks(Clocks),
}

/// Since boot, and by the wall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Clocks {
    pub mono: Mono,
    pub time: UnixMillis,
}

/// Who the host is.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub host: Option<String>,
    pub kernel: Option<String>,
    pub boot_id: Option<String>,
    pub namespace: PidNamespace,
    pub namespace_id: Option<u64>,
    pub ticks_per_second: Option<u64>,
    pub page_bytes: Option<u64>,
    pub cores: Option<u32>,
    pub uid: Option<u32>,
    /// The names that `nvidia-smi` has for what it can tell.
    names: BTreeSet<String>,
}

impl Facts {
    /// Those of [`FIELDS`] that this `nvidia-smi` knows, as it is asked for them; where it has no help, all, by their oldest
    /// names.
    pub(super) fn query(&self) -> String {
        let asked = FIELDS.iter().filter_map(|field| self.name_of(field.names));
        asked.collect::<Vec<_>>().join(",")
    }

    pub(super) fn name_of(&self, names: &[&'static str]) -> Option<&'static str> {
        if self.names.is_empty() {
            return names.last().copied();
        }
        names
            .iter()
            .copied()
            .find(|name| self.names.contains(*name))
    }

    fn take(&mut self, kind: u8, text: &[u8]) {
        let word = || Some(visible(text, MOST_WORD)).filter(|word| !word.is_empty());
        match kind {
            b'N' => self.host = word(),
            b'K' => self.kernel = word(),
            b'B' => self.boot_id = word(),
            b'S' => self.take_namespace(text),
            b'T' => self.ticks_per_second = number(text).filter(|ticks| *ticks > 0),
            b'P' => self.page_bytes = number(text),
            b'C' => self.cores = number(text),
            b'U' => self.uid = number(text),
            // `"clocks.current.sm" or "clocks.sm"`
            b'F' if self.names.len() < MOST_NAMES => {
                let quoted = text.split(|byte| *byte == b'"').skip(1).step_by(2);
                self.names.extend(quoted.map(|name| visible(name, 80)));
            }
            _ => {}
        }
    }

    /// `pid:[4026531836]`, which is `PROC_PID_INIT_INO` of the kernel's include/linux/proc_ns.h: the driver's own.
    fn take_namespace(&mut self, text: &[u8]) {
        let inside = text.strip_prefix(b"pid:[");
        self.namespace_id = inside.and_then(|id| number(id.strip_suffix(b"]")?));
        self.namespace = match self.namespace_id {
            Some(4_026_531_836) => PidNamespace::Host,
            Some(_) => PidNamespace::Container,
            None => PidNamespace::Unknown,
        };
    }
}

/// One round of readings, as it was told.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub number: u64,
    pub clocks: Clocks,
    /// `MemTotal:  792574036 kB`
    pub memory: Vec<Vec<u8>>,
    /// `cpu  10132153 290696 …`
    pub cpu: Vec<u8>,
    /// `0.20 0.18 0.12 1/80 11206`
    pub load: Vec<u8>,
    /// Fields in the order of the query; else what went wrong.
    pub gpus: Vec<Vec<u8>>,
    pub gpus_exit: Option<i32>,
    /// `GPU-…, 426, 1542, python3`
    pub apps: Vec<Vec<u8>>,
    pub apps_exit: Option<i32>,
    /// `/proc/PID/stat`
    pub stats: Vec<Vec<u8>>,
    /// `  426 ana   python3 train.py`
    pub people: Vec<Vec<u8>>,
}

impl Round {
    fn take(&mut self, kind: u8, text: &[u8]) {
        let put = |list: &mut Vec<Vec<u8>>, most: usize| {
            if list.len() < most && !text.is_empty() {
                list.push(text.to_vec());
            }
        };
        match kind {
            b'u' => self.clocks = clocks(text).unwrap_or_default(),
            b'm' => put(&mut self.memory, 16),
            b'c' => self.cpu = text.to_vec(),
            b'l' => self.load = text.to_vec(),
            b'g' => put(&mut self.gpus, MOST_GPUS),
            b'e' => self.gpus_exit = number(text),
            b'a' => put(&mut self.apps, MOST_PROCESSES),
            b'd' => self.apps_exit = number(text),
            b's' => put(&mut self.stats, MOST_PROCESSES),
            b'p' => put(&mut self.people, MOST_PROCESSES),
            _ => {}
        }
    }
}

/// What has been heard so far.
#[derive(Default)]
pub(super) struct Lines {
    facts: Option<Box<Facts>>,
    is_begun: bool,
    round: Option<Round>,
}

impl Lines {
    /// One more line, without its end; something whole when it was the last of it.
    pub(super) fn take(&mut self, line: &[u8]) -> Option<Heard> {
        let (kind, text) = line.split_first()?;
        let text = text.strip_prefix(b" ").unwrap_or(text);
        match kind {
            b'.' if text.is_empty() => {
                self.is_begun = true;
                Some(Heard::Facts(self.facts.take().unwrap_or_default()))
            }
            b'.' => {
                let ends = number(text);
                let is_it = |round: &mut Round| Some(round.number) == ends;
                self.round.take_if(is_it).map(Heard::Round)
            }
            b'b' => {
                self.round = number(text).map(|number| Round {
                    number,
                    ..Round::default()
                });
                None
            }
            b'h' => clocks(text).map(Heard::Clocks),
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
fn clocks(text: &[u8]) -> Option<Clocks> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heard(text: &str) -> Vec<Heard> {
        let mut lines = Lines::default();
        let all = text.lines().filter_map(|line| lines.take(line.as_bytes()));
        all.collect()
    }

    #[test]
    fn the_host_and_what_its_driver_knows_are_told_once() {
        let told = "N node17\nS pid:[4026531836]\nT 100\nP 4096\nF \"index\"\nF \"uuid\" or \"gpu_uuid\"\n\
                    F \"clocks_throttle_reasons.active\"\n.\nN other\n.\n";
        let heard = heard(told);
        let [Heard::Facts(facts), Heard::Facts(again)] = &heard[..] else {
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
        let [Heard::Facts(_), Heard::Clocks(clocks), Heard::Round(round)] = &heard[..] else {
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

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_grow(line: Vec<u8>, times in 1usize..5_000) {
            let mut lines = Lines::default();
            lines.take(b"b 1");
            for _ in 0..times {
                lines.take(&line);
            }
            let round = lines.round.unwrap_or_default();
            prop_assert!(round.gpus.len() <= MOST_GPUS && round.people.len() <= MOST_PROCESSES);
        }
    }
}

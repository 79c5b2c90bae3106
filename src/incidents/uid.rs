//! The name of an incident: `01kq3v7-x2c9`. Sorts by time, is typed with one hand, and is a file name everywhere.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::key::Key;

/// Digits and small letters in the order of their bytes, without those that look like others (Crockford's base 32).
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Seconds since 1970 until the year 3058.
const TIME: usize = 7;
/// About whom it is: of one process all incidents end the same.
const WHOM: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(String);

/// A text that names no incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoUid;

impl Uid {
    /// The name for an incident of this key; `later` seconds on where that one is taken by another.
    pub(super) fn of(key: &Key, later: u64) -> Self {
        let seconds = u64::try_from(key.time.0 / 1_000).unwrap_or(0);
        let time = letters(seconds.saturating_add(later), TIME);
        Self(format!("{time}-{}", Self::whom(key)))
    }

    /// What the names of all incidents of the key's process end with.
    pub(super) fn whom(key: &Key) -> String {
        letters(hash(&key.whom()), WHOM)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a person who typed `word` may mean it: its beginning or its end.
    pub(super) fn is_meant_by(&self, word: &str) -> bool {
        !word.is_empty() && (self.0.starts_with(word) || self.0.ends_with(word))
    }
}

impl FromStr for Uid {
    type Err = NoUid;

    fn from_str(text: &str) -> Result<Self, NoUid> {
        let is_letter = |byte: u8| LETTERS.contains(&byte);
        let is_whole = text.len() == TIME + 1 + WHOM
            && text.bytes().enumerate().all(|(at, byte)| match at {
                TIME => byte == b'-',
                _ => is_letter(byte),
            });
        if is_whole {
            Ok(Self(text.to_owned()))
        } else {
            Err(NoUid)
        }
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The last `count` digits of `number` to the base 32.
fn letters(mut number: u64, count: usize) -> String {
    let mut digits = Vec::with_capacity(count);
    for _ in 0..count {
        digits.push(char::from(LETTERS[(number % 32) as usize]));
        number /= 32;
    }
    digits.iter().rev().collect()
}

/// FNV-1a: the same in every process and version, which std's hasher does not promise.
fn hash(text: &str) -> u64 {
    let mixed = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::process::ProcessKey;
    use crate::model::units::{Mono, Pid, StartTicks, UnixMillis};

    fn key(pid: u32, time: i64) -> Key {
        Key {
            boot_id: "b".into(),
            process: Some(ProcessKey {
                pid: Pid(pid),
                start: StartTicks(7),
            }),
            run: None,
            gpu: None,
            first: Mono(0),
            time: UnixMillis(time),
        }
    }

    #[test]
    fn names_sort_by_time_and_read_back() {
        let times = [0, 1_700_000_000_000, 1_795_177_607_000, 4_000_000_000_000];
        let uids: Vec<Uid> = times.iter().map(|t| Uid::of(&key(418, *t), 0)).collect();
        assert!(uids.is_sorted(), "{uids:?}");
        for uid in &uids {
            assert_eq!(uid.as_str().parse().as_ref(), Ok(uid));
        }
        assert_eq!(Uid::of(&key(1, -5), 0).as_str().len(), 12);
    }

    #[test]
    fn a_name_ends_with_whom_it_is_about() {
        let of = |pid, time| Uid::of(&key(pid, time), 0).to_string();
        assert_eq!(of(418, 0)[8..], of(418, 9_000_000)[8..]);
        assert_ne!(of(418, 0)[8..], of(419, 0)[8..]);
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "state",
            "01kq3v7-x2c",
            "01kq3v7_x2c9",
            "01KQ3V7-x2c9",
            "../etc-x2c9",
            "01kq3v7-x2c9x",
        ] {
            assert_eq!(name.parse::<Uid>(), Err(NoUid), "{name}");
        }
    }
}

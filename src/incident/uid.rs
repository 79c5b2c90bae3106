//! Incident IDs like `01kq3v7-x2c9`, which sort by time, are easy to type and are valid file names.

use std::fmt;
use std::str::FromStr;

use gputop_model::incident_key::IncidentKey;
use serde::{Deserialize, Serialize};

/// The 32 digits used in incident IDs, sorted by byte value. Characters that look alike are excluded (Crockford's base
/// 32).
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Number of base-32 digits for the time in seconds since 1970. Seven digits last until the year 3058.
const TIME_LENGTH: usize = 7;
/// Number of base-32 digits for the hash of the subject (process or GPU). The IDs of all incidents of one process have
/// the same suffix.
const SUBJECT_LENGTH: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidUid;

impl Uid {
    /// Returns the ID for an incident. Adds `offset` seconds to the time, for use when the ID without an offset is
    /// taken.
    pub(super) fn of(key: &IncidentKey, offset: u64) -> Self {
        let seconds = u64::try_from(key.time.0 / 1_000).unwrap_or(0);
        let time = letters(seconds.saturating_add(offset), TIME_LENGTH);
        Self(format!("{time}-{}", Self::subject_suffix(key)))
    }

    /// Returns the ID suffix for the key's subject (process or GPU). All incidents of that subject share it.
    pub(super) fn subject_suffix(key: &IncidentKey) -> String {
        // The IDs of a `gputop run` command and its child processes have the same suffix.
        let process = key.run.or(key.process).map(|key| (key.pid.0, key.start.0));
        let gpu = key.gpu.as_ref().filter(|_| process.is_none());
        let subject = format!("{} {process:?} {gpu:?}", key.boot_id);
        letters(hash(&subject), SUBJECT_LENGTH)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if both incidents occurred in the same second.
    pub(super) fn is_of_second(&self, other: &Self) -> bool {
        self.0[..TIME_LENGTH] == other.0[..TIME_LENGTH]
    }

    /// Returns true if the incident ID starts or ends with `word`.
    pub(super) fn matches(&self, word: &str) -> bool {
        !word.is_empty() && (self.0.starts_with(word) || self.0.ends_with(word))
    }
}

impl FromStr for Uid {
    type Err = InvalidUid;

    fn from_str(text: &str) -> Result<Self, InvalidUid> {
        let is_letter = |byte: u8| LETTERS.contains(&byte);
        let is_valid = text.len() == TIME_LENGTH + 1 + SUBJECT_LENGTH
            && text.bytes().enumerate().all(|(at, byte)| match at {
                TIME_LENGTH => byte == b'-',
                _ => is_letter(byte),
            });
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidUid) }
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the last `count` digits of `number` in base 32.
fn letters(mut number: u64, count: usize) -> String {
    let mut digits = Vec::with_capacity(count);
    for _ in 0..count {
        digits.push(char::from(LETTERS[(number % 32) as usize]));
        number /= 32;
    }
    digits.iter().rev().collect()
}

/// Returns the FNV-1a hash of a string, which is the same in every process and gputop version. std's hasher does not
/// guarantee that.
fn hash(text: &str) -> u64 {
    let mixed = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed ^ (mixed >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::process::ProcessKey;
    use gputop_model::units::{Mono, UnixMillis};

    fn key(pid: u32, time: i64) -> IncidentKey {
        IncidentKey {
            boot_id: "b".into(),
            process: Some(ProcessKey::new(pid, 7)),
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
    fn incidents_of_one_process_have_the_same_suffix() {
        let of = |pid, time| Uid::of(&key(pid, time), 0).to_string();
        assert_eq!(of(418, 0)[8..], of(418, 9_000_000)[8..]);
        assert_ne!(of(418, 0)[8..], of(419, 0)[8..]);
    }

    #[test]
    fn rejects_other_names() {
        for name in [
            "",
            "state",
            "01kq3v7-x2c",
            "01kq3v7_x2c9",
            "01KQ3V7-x2c9",
            "../etc-x2c9",
            "01kq3v7-x2c9x",
        ] {
            assert_eq!(name.parse::<Uid>(), Err(InvalidUid), "{name}");
        }
    }
}

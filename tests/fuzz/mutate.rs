//! A small deterministic mutator, which makes cases from seeds and a dictionary.

use std::fs;

use crate::targets::repository;

/// Maximum length of a case in bytes.
const MAX_CASE: usize = 64 << 10;
/// Maximum number of changes to a seed.
const MAX_CHANGES: usize = 4;

/// Numbers that replace others.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1e308",
    "4294967295",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999",
];

pub struct Mutator {
    state: u64,
    words: Vec<Vec<u8>>,
}

impl Mutator {
    pub fn new(target: &str, seed: u64) -> Self {
        let name = target
            .bytes()
            .fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self { state: name | 1, words: dictionary(target) }
    }

    /// Returns a pseudo-random number below `limit`, by xorshift64*.
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let number = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(number).unwrap() % limit.max(1)
    }

    /// Returns one of the seeds with a few changes.
    pub fn mutated(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let seed = self.below(seeds.len());
        let mut case = seeds[seed].clone();
        for _ in 0..=self.below(MAX_CHANGES) {
            self.change(&mut case, seeds);
        }
        case.truncate(MAX_CASE);
        case
    }

    fn change(&mut self, case: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.below(case.len() + 1);
        let until = at + self.below((case.len() - at + 1).min(256));
        match self.below(9) {
            0 => {
                if let Some(byte) = case.get_mut(at) {
                    *byte ^= 1 << self.below(8);
                }
            }
            1 => {
                if let Some(byte) = case.get_mut(at) {
                    *byte = [0, 0x7f, 0x80, 0xff, b'"', b'\n'][self.below(6)];
                }
            }
            2 | 3 => {
                let word = self.below(self.words.len());
                // Repeat some words, because long runs of multi-byte characters find errors in byte offsets.
                let times = [1, 1, 1, 1 + self.below(64)][self.below(4)];
                let word = self.words[word].repeat(times);
                case.splice(at..at, word);
            }
            4 => case.truncate(at),
            5 => drop(case.drain(at..until)),
            6 => {
                let part = case[at..until].to_vec();
                let times = 1 + self.below(40);
                case.splice(at..at, part.repeat(times));
            }
            7 => {
                let other = &seeds[self.below(seeds.len())];
                let from = self.below(other.len() + 1);
                case.truncate(at);
                case.extend_from_slice(&other[from..]);
            }
            _ => self.replace_number(case, at),
        }
    }

    /// Replaces a number: the next decimal one, or 4 binary bytes.
    fn replace_number(&mut self, case: &mut Vec<u8>, at: usize) {
        let digits = |byte: &u8| byte.is_ascii_digit();
        let start = case[at..].iter().take(64).position(digits);
        if let Some(start) = start.map(|start| at + start)
            && self.below(4) > 0
        {
            let length = case[start..].iter().take_while(|byte| digits(byte)).count();
            let number = NUMBERS[self.below(NUMBERS.len())];
            case.splice(start..start + length, number.bytes());
        } else if let Some(bytes) = case.get_mut(at..at + 4) {
            let number = [0, 1, 0x7fff_ffff, u32::MAX, 0x0100_0000][self.below(5)];
            bytes.copy_from_slice(&number.to_le_bytes());
        }
    }
}

/// Reads the words of a target's dictionary, which is a file in libFuzzer's format.
pub fn dictionary(target: &str) -> Vec<Vec<u8>> {
    let name = match target {
        "wire" | "recording" | "incident" | "hook" => "json",
        "snapshot" | "dump" => "binary",
        other => other,
    };
    let path = repository().join(format!("fuzz/dictionaries/{name}.dict"));
    let text = fs::read_to_string(path).unwrap_or_default();
    let words = text.lines().filter_map(|line| {
        let word = line.trim().strip_prefix('"')?.strip_suffix('"')?;
        Some(unescaped(word))
    });
    words.collect()
}

/// Replaces `\xNN` by the byte.
fn unescaped(word: &str) -> Vec<u8> {
    let mut parts = word.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (number, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(number, 16).unwrap());
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

//! Reads and changes single words of a dump.

use gputop_peek::memory::dump::Dump;
use gputop_peek::memory::{Memory, Range};

pub fn poke(dump: &mut Dump, address: u64, value: u64) {
    let mut ranges = dump.bytes_mut();
    let (start, bytes) =
        ranges.find(|(at, bytes)| (*at..*at + bytes.len() as u64).contains(&address)).unwrap();
    let at = usize::try_from(address - start).unwrap();
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

pub fn peek(dump: &Dump, address: u64) -> u64 {
    let mut bytes = Vec::new();
    dump.read(&[Range { address, len: 8 }], &mut bytes).unwrap();
    u64::from_le_bytes(bytes.try_into().unwrap())
}

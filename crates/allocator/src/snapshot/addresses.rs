//! A hash table keyed by address. Addresses come from a file, so the hash function uses random parameters, which
//! prevent a crafted file from making all addresses collide. The hash is a single multiplication, which takes a third
//! of the standard hasher's time.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

pub type ByAddress<T> = HashMap<u64, T, Keyed>;

#[derive(Debug, Clone, Copy)]
pub struct Keyed(u64, u64);

impl Default for Keyed {
    fn default() -> Self {
        let random = RandomState::new();
        Self(random.hash_one(0), random.hash_one(1) | 1)
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(*self, 0)
    }
}

#[derive(Debug)]
pub struct Folded(Keyed, u64);

impl Hasher for Folded {
    fn write_u64(&mut self, address: u64) {
        let Keyed(first, second) = self.0;
        let product = u128::from(address ^ first) * u128::from(second);
        let (low, high) = (product as u64, (product >> 64) as u64);
        self.1 ^= low ^ high;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn finish(&self) -> u64 {
        self.1
    }
}

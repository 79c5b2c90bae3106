//! A list of the newest items, limited in number and in memory.

use std::collections::VecDeque;

use serde::Serialize;

use super::memory_size;

/// Items from outside, oldest first. If they exceed a limit, the oldest are dropped, but never the newest.
#[derive(Debug)]
pub struct Newest<T> {
    /// Each item with its memory in bytes.
    items: VecDeque<(usize, T)>,
    bytes: usize,
    max_items: usize,
    max_bytes: usize,
}

impl<T: Serialize> Newest<T> {
    pub fn new(max_items: usize, max_bytes: usize) -> Self {
        Self { items: VecDeque::new(), bytes: 0, max_items, max_bytes }
    }

    pub fn push(&mut self, item: T) {
        let bytes = memory_size::of(&item);
        self.bytes += bytes;
        self.items.push_back((bytes, item));
        while self.items.len() > 1
            && (self.items.len() > self.max_items || self.bytes > self.max_bytes)
        {
            self.bytes -= self.items.pop_front().map_or(0, |(bytes, _)| bytes);
        }
    }
}

impl<T> Newest<T> {
    pub fn retain(&mut self, is_retained: impl Fn(&T) -> bool) {
        self.items.retain(|(_, item)| is_retained(item));
        self.bytes = self.items.iter().map(|(bytes, _)| bytes).sum();
    }

    pub fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// Returns the items, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.items.iter().map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_oldest_items_beyond_either_limit() {
        let mut list = Newest::new(3, 10_000);
        (0..9).for_each(|number| list.push(number.to_string()));
        assert_eq!(list.iter().collect::<Vec<_>>(), ["6", "7", "8"]);
        list.push("x".repeat(9_000));
        list.push("y".repeat(9_000));
        assert_eq!(list.iter().map(String::len).collect::<Vec<_>>(), [9_000]);
        // The newest item is retained, whatever its size.
        list.push("z".repeat(90_000));
        assert_eq!(list.iter().map(String::len).collect::<Vec<_>>(), [90_000]);
        list.push("a".into());
        list.retain(|item| item != "a");
        assert_eq!((list.iter().count(), list.bytes), (0, 0));
    }
}

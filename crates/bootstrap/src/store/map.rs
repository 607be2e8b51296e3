//! What a store holds: values and queues, and what requests do to them. No sockets, no waits.
//!
//! Where torch's two servers differ, this is the default one (`TCPStoreLibUvBackend.cpp`).

use std::collections::{HashMap, VecDeque};

/// Values and queues under keys. A key may have both; they do not know each other.
#[derive(Debug, Default)]
pub(super) struct Map {
    values: HashMap<Vec<u8>, Vec<u8>>,
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
}

impl Map {
    /// Whether there is a value, or something in the queue.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queue_len(key) > 0
    }

    /// The value; empty if there is none.
    pub(super) fn get(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) {
        self.values.insert(key.to_owned(), value.to_owned());
    }

    /// Sets the value if it is `expected`, an empty one also if there is none; returns what is there then. If there is
    /// none and another one was expected, that is said to be `expected`.
    pub(super) fn compare_set<'a>(&'a mut self, key: &[u8], expected: &'a [u8], desired: &[u8]) -> &'a [u8] {
        match self.values.get(key) {
            None if !expected.is_empty() => return expected,
            Some(value) if value != expected => {}
            _ => self.set(key, desired),
        }
        self.get(key)
    }

    /// Adds to the number that the value is the decimal text of, 0 if there is none. `None` if there is no sum.
    pub(super) fn add(&mut self, key: &[u8], delta: i64) -> Option<i64> {
        let old = match self.values.get(key) {
            None => 0,
            Some(value) => std::str::from_utf8(value).ok()?.parse::<i64>().ok()?,
        };
        let sum = old.checked_add(delta)?;
        self.set(key, sum.to_string().as_bytes());
        Some(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], value: &[u8]) {
        self.values.entry(key.to_owned()).or_default().extend(value);
    }

    /// Whether there was a value.
    pub(super) fn delete(&mut self, key: &[u8]) -> bool {
        self.values.remove(key).is_some()
    }

    /// The keys of values.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.values.keys().map(Vec::as_slice)
    }

    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.queues.entry(key.to_owned()).or_default().push_back(value.to_owned());
    }

    /// The oldest of a queue.
    pub(super) fn pop(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(key)?;
        let value = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        value
    }

    pub(super) fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_set_is_that_of_torch() {
        let mut map = Map::default();
        assert_eq!(map.compare_set(b"k", b"other", b"new"), b"other");
        assert!(!map.has(b"k"));
        assert_eq!(map.compare_set(b"k", b"", b"first"), b"first");
        assert_eq!(map.compare_set(b"k", b"other", b"second"), b"first");
        assert_eq!(map.compare_set(b"k", b"first", b"second"), b"second");
        assert_eq!(map.compare_set(b"k", b"", b"third"), b"second");
    }

    #[test]
    fn sums_do_not_wrap_and_texts_have_none() {
        let mut map = Map::default();
        assert_eq!(map.add(b"n", -5), Some(-5));
        assert_eq!(map.get(b"n"), b"-5");
        map.set(b"n", i64::MAX.to_string().as_bytes());
        assert_eq!(map.add(b"n", 1), None);
        map.append(b"n", b"x");
        assert_eq!(map.add(b"n", 0), None);
        assert!(map.delete(b"n") && !map.delete(b"n"));
        assert_eq!(map.add(b"n", 0), Some(0));
    }

    #[test]
    fn queues_are_first_in_first_out_and_apart_from_values() {
        let mut map = Map::default();
        assert_eq!((map.pop(b"q"), map.has(b"q")), (None, false));
        map.push(b"q", b"1");
        map.push(b"q", b"2");
        assert_eq!((map.queue_len(b"q"), map.has(b"q"), map.keys().len()), (2, true, 0));
        assert_eq!(map.pop(b"q").as_deref(), Some(&b"1"[..]));
        assert_eq!(map.pop(b"q").as_deref(), Some(&b"2"[..]));
        assert_eq!((map.pop(b"q"), map.has(b"q")), (None, false));
    }
}

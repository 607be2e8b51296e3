//! The counting of a stream: which slot a number means, when it may be written, when it must be given back.
//!
//! Pure, so that the model (`model.rs`) checks what runs. Numbers grow by one a slot, for ever, and are
//! compared by signed difference.

/// The slots of every rank's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slots {
    /// A power of two, so that numbers may wrap.
    count: u64,
}

impl Slots {
    /// A ring of `count` slots, a power of two.
    pub(crate) const fn new(count: u64) -> Self {
        assert!(count.is_power_of_two(), "slots are a power of two");
        Self { count }
    }

    /// How many there are.
    pub(crate) const fn count(self) -> usize {
        self.count as usize
    }

    /// Where slot `number` lies in the ring.
    pub(crate) const fn index(self, number: u64) -> usize {
        (number % self.count) as usize
    }

    /// What every reader must have given back before slot `number` is written: the slot's last use.
    pub(crate) const fn last_use(self, number: u64) -> u64 {
        number.wrapping_sub(self.count)
    }

    /// Whether a reader that has read up to `read`, and told the writer of `returned`, must tell it again: every quarter
    /// of the ring, so that a stream of small messages costs its reader few stores, and its writer seldom waits.
    pub(crate) const fn owes(self, returned: u64, read: u64) -> bool {
        let quarter = if self.count >= 4 { self.count / 4 } else { 1 };
        read.wrapping_sub(returned) >= quarter
    }

    /// How many slots of its own a rank publishes ahead of what it reads from others: half a ring, so that it never
    /// waits for a slot that only its own reading would set free.
    pub(crate) const fn ahead(self) -> usize {
        if self.count >= 2 { (self.count / 2) as usize } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap() {
        let slots = Slots::new(8);
        assert_eq!(slots.index(u64::MAX), 7);
        assert_eq!(slots.index(u64::MAX.wrapping_add(1)), 0);
        assert_eq!(slots.last_use(3), 3u64.wrapping_sub(8));
        assert!(!slots.owes(u64::MAX, 0) && slots.owes(u64::MAX, 1));
        assert!(Slots::new(1).owes(4, 5));
    }
}

//! Who asks for how much at a time.
//!
//! A limit on the requests under way is enforced only while it protects somebody: some processes keep
//! many requests waiting or under way, as many at least as a mean is of, and others a quarter of that or less.
//! A process *keeps* what is there when it asks anew after something came back: a burst,
//! as a readahead law makes it, is one ask however many requests it has.

use crate::observed::NEWEST;

/// How many requests a process asks for at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asking {
    /// Mean, in parts of [`NEWEST`].
    at_a_time: u64,
    asks: u64,
    /// Nothing came back since the last ask.
    is_burst: bool,
}

impl Asking {
    /// It asks for one more while so many of its own are not back yet.
    pub(super) fn asks(&mut self, others: u64) {
        if core::mem::replace(&mut self.is_burst, true) {
            return;
        }
        self.asks = (self.asks + 1).min(NEWEST);
        self.at_a_time = (self.at_a_time * (self.asks - 1) + (others + 1) * NEWEST) / self.asks;
    }

    /// Something is back.
    pub(super) fn got(&mut self) {
        self.is_burst = false;
    }

    /// Whether some ask for many, and others for a quarter of that or less.
    pub(super) fn are_uneven(all: impl Iterator<Item = Asking>) -> bool {
        let (mut least, mut most) = (u64::MAX, 0);
        for asking in all.filter(|asking| asking.asks == NEWEST) {
            (least, most) = (least.min(asking.at_a_time), most.max(asking.at_a_time));
        }
        most >= NEWEST * NEWEST && least <= most / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(at_a_time: u64) -> Asking {
        let mut asking = Asking::default();
        for _ in 0..NEWEST {
            asking.asks(at_a_time - 1);
            asking.got();
        }
        asking
    }

    #[test]
    fn uneven_is_sixteen_against_four_and_no_less() {
        let are_uneven = |all: &[u64]| Asking::are_uneven(all.iter().map(|&it| asking(it)));
        assert!(are_uneven(&[1, 16]) && are_uneven(&[4, 16, 16]) && are_uneven(&[64, 1, 1, 1]));
        assert!(!are_uneven(&[5, 16]), "more than a quarter");
        assert!(!are_uneven(&[1, 15]), "fifteen are not many");
        assert!(!are_uneven(&[64, 64]) && !are_uneven(&[64]) && !are_uneven(&[]));
    }

    #[test]
    fn a_burst_is_one_ask() {
        let mut bursts = Asking::default();
        for _ in 0..NEWEST {
            (0..200).for_each(|others| bursts.asks(others));
            bursts.got();
        }
        assert!(!Asking::are_uneven([bursts, asking(1)].into_iter()));
    }
}

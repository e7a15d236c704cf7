//! Who asks for how much at a time.
//!
//! A limit on the requests under way is enforced only while it protects somebody: some processes keep
//! eight requests waiting or under way and more, and others a quarter of that or less.
//! A process *keeps* what is there when it asks anew after something came back: a burst,
//! as a readahead law makes it, is one ask however many requests it has.

/// Who asks for so many at a time asks for many.
const MANY: u32 = 8;

/// Fewer asks than these tell nothing.
const LEAST: u32 = 8;

/// Who asked for many has done so at least so often before it is believed.
const LEAST_OF_MANY: u32 = 32;

/// The share of a mean that the newest has.
const NEWEST: u32 = 16;
/// How many requests a process asks for at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asking {
    /// Mean, in parts of [`NEWEST`].
    at_a_time: u32,
    asks: u32,
    /// Nothing came back since the last ask.
    is_burst: bool,
}

impl Asking {
    /// It asks for one more while so many of its own are not back yet.
    pub(super) fn asks(&mut self, others: u32) {
        if core::mem::replace(&mut self.is_burst, true) {
            return;
        }
        self.asks = (self.asks + 1).min(LEAST_OF_MANY);
        let count = self.asks.min(NEWEST);
        self.at_a_time = (self.at_a_time * (count - 1) + (others + 1) * NEWEST) / count;
    }

    /// Something is back.
    pub(super) fn got(&mut self) {
        self.is_burst = false;
    }

    /// Whether some ask for many, and others for a quarter of that or less.
    pub(super) fn are_uneven(all: impl Iterator<Item = Asking>) -> bool {
        let (mut least, mut most) = (u32::MAX, 0);
        for asking in all.filter(|asking| asking.asks >= LEAST) {
            least = least.min(asking.at_a_time);
            if asking.asks == LEAST_OF_MANY {
                most = most.max(asking.at_a_time);
            }
        }
        most >= MANY * NEWEST && least <= most / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(at_a_time: u32) -> Asking {
        let mut asking = Asking::default();
        for _ in 0..LEAST_OF_MANY {
            asking.asks(at_a_time - 1);
            asking.got();
        }
        asking
    }

    #[test]
    fn uneven_is_eight_against_two_and_no_less() {
        let are_uneven = |all: &[u32]| Asking::are_uneven(all.iter().map(|&it| asking(it)));
        assert!(are_uneven(&[1, 8]) && are_uneven(&[2, 8, 8]) && are_uneven(&[64, 1, 1, 1]));
        assert!(!are_uneven(&[3, 8]), "more than a quarter");
        assert!(!are_uneven(&[1, 7]), "seven are not many");
        assert!(!are_uneven(&[64, 64]) && !are_uneven(&[64]) && !are_uneven(&[]));
    }

    #[test]
    fn a_burst_is_one_ask() {
        let mut bursts = Asking::default();
        for _ in 0..LEAST_OF_MANY {
            (0..200).for_each(|others| bursts.asks(others));
            bursts.got();
        }
        assert!(!Asking::are_uneven([bursts, asking(1)].into_iter()));
    }
}

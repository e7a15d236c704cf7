//! Who asks for how much at a time, and how much of it is under way.
//!
//! A depth is enforced only while it protects somebody: some processes keep
//! eight requests waiting or under way and more, and others a quarter of that or less.
//! A process *keeps* what is there when it asks anew after something came back: a burst,
//! as a readahead law makes it, is one ask however many requests it has.

use crate::unit::Time;

use super::knee::{Found, Knee};

/// Who asks for so many at a time asks for many.
const MANY: u32 = 8;

/// Fewer asks than these tell nothing.
const LEAST: u32 = 8;

/// Who asked for many has done so at least so often before it is believed.
const LEAST_OF_MANY: u32 = 32;

/// Completions between two looks at who asks for how much.
const WATCH: u32 = 16;

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

/// The depth that is worth having, and whether it is enforced.
#[derive(Debug, Default)]
pub(super) struct Shares {
    is_uneven: bool,
    completions: u32,
    /// Mean size of a request.
    request_bytes: u64,
    /// By class of request size: up to 16 KiB, 128 KiB, 1 MiB, and more.
    knees: [Knee; 4],
}

impl Shares {
    /// Whether one more may go of a process that has so many under way, of so many in all.
    pub(super) fn has_room(&self, under_way: u32, own: u32) -> bool {
        let depth = if self.is_uneven { self.knees[self.class()].depth() } else { None };
        own == 0 || depth.is_none_or(|depth| under_way < depth)
    }

    /// Looks now and then whether they ask for uneven shares.
    pub(super) fn watch(&mut self, is_uneven: impl FnOnce() -> bool) {
        if self.completions.is_multiple_of(WATCH) {
            self.is_uneven = is_uneven();
        }
        self.completions = self.completions.wrapping_add(1);
    }

    /// A read is back; so many were under way, this one included.
    pub(super) fn completed(&mut self, now: Time, bytes: u64, under_way: u32) -> Option<Found> {
        self.request_bytes = match self.request_bytes {
            0 => bytes,
            mean => (mean * u64::from(NEWEST - 1) + bytes) / u64::from(NEWEST),
        };
        if !self.is_uneven {
            return None;
        }
        let class = self.class();
        self.knees[class].completed(now, bytes, under_way)
    }

    fn class(&self) -> usize {
        [16 << 10, 128 << 10, 1 << 20].iter().filter(|&&end| self.request_bytes > end).count()
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

    #[test]
    fn who_has_nothing_under_way_always_has_room() {
        let mut shares = Shares::default();
        shares.watch(|| true);
        // Four at a time, whoever comes: the knee of 32.
        let mut now = Time::ZERO;
        for _ in 0..100 {
            now += Time::from_ms(1);
            let under_way = shares.knees[0].depth().unwrap_or(32);
            (0..under_way.min(4)).for_each(|_| {
                shares.completed(now, 4096, under_way);
            });
        }
        let depth = shares.knees[0].depth().expect("it is found");
        // Three of them while it is put to the proof.
        assert!((3..=6).contains(&depth), "{depth}");
        assert!(shares.has_room(depth - 1, 1) && !shares.has_room(depth, 1));
        assert!(shares.has_room(100, 0));
        shares.completions = 0;
        shares.watch(|| false);
        assert!(shares.has_room(100, 50), "it protects nobody");
    }
}

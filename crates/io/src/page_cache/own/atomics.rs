//! Atomic words of the page index and of its readers, so that `loom` can replace them.

use std::sync::atomic::Ordering;

use crate::os::sync::preemption_point;

/// Binary logarithm of the number of pages in a group: 64 KiB. The heads of a group share one cache
/// line, and one sign-in covers a group.
pub(crate) const GROUP_LOG2: u32 = 4;

/// The atomic words of an index.
pub(crate) trait Atomics {
    type Word: Word<u32>;
    type Key: Word<u64>;
    /// Gives sequentially consistent accesses of different words one order for all threads, if the
    /// accesses alone do not. The model checker loom models this order only for fences.
    fn fence();
}

/// An atomic integer. Each method is as in `std::sync::atomic`. Only the thread that holds the
/// machine's lock calls `fetch_and` and `fetch_or`.
pub(crate) trait Word<T> {
    fn new(value: T) -> Self;
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn fetch_sub(&self, value: T, order: Ordering) -> T;
    fn fetch_and(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, value: T, order: Ordering) -> T;
    fn compare_exchange_weak(
        &self,
        current: T,
        new_value: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T>;
}

/// The atomics of the standard library.
pub(crate) struct Std;

impl Atomics for Std {
    type Word = std::sync::atomic::AtomicU32;
    type Key = std::sync::atomic::AtomicU64;

    /// Does nothing: the accesses themselves are sequentially consistent.
    #[inline]
    fn fence() {}
}

/// Implements `Word` for an atomic type with the methods of the standard library. A *preemption
/// point* is a place where the simulation may switch to another thread. It has no effect in other
/// builds.
macro_rules! impl_word {
    ($atomic:ty, $integer:ty) => {
        impl Word<$integer> for $atomic {
            #[inline]
            fn new(value: $integer) -> Self {
                <$atomic>::new(value)
            }
            #[inline]
            fn load(&self, order: Ordering) -> $integer {
                preemption_point();
                self.load(order)
            }
            #[inline]
            fn store(&self, value: $integer, order: Ordering) {
                preemption_point();
                self.store(value, order);
            }
            #[inline]
            fn fetch_sub(&self, value: $integer, order: Ordering) -> $integer {
                preemption_point();
                self.fetch_sub(value, order)
            }
            #[inline]
            fn fetch_and(&self, value: $integer, order: Ordering) -> $integer {
                self.fetch_and(value, order)
            }
            #[inline]
            fn fetch_or(&self, value: $integer, order: Ordering) -> $integer {
                self.fetch_or(value, order)
            }
            #[inline]
            fn compare_exchange_weak(
                &self,
                current: $integer,
                new_value: $integer,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$integer, $integer> {
                preemption_point();
                self.compare_exchange_weak(current, new_value, success, failure)
            }
        }
    };
}

impl_word!(std::sync::atomic::AtomicU32, u32);
impl_word!(std::sync::atomic::AtomicU64, u64);

#[cfg(test)]
pub(super) use impl_word;

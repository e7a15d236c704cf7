//! A slab with 32-bit keys. A key identifies its object until removal and is then reused.

use std::ops::{Index, IndexMut};

use slab::Slab;

/// A slab of objects whose keys serve as request numbers.
#[derive(Clone, Debug)]
pub struct NumberedSlab<T>(Slab<T>);

impl<T> NumberedSlab<T> {
    /// Creates an empty slab.
    pub const fn new() -> NumberedSlab<T> {
        NumberedSlab(Slab::new())
    }

    /// Inserts an object and returns its key.
    #[inline]
    pub fn add(&mut self, object: T) -> u32 {
        self.0.insert(object) as u32
    }

    /// Removes and returns the object with number `key`, which must exist. Frees the key.
    #[inline]
    pub fn take(&mut self, key: u32) -> T {
        self.0.remove(key as usize)
    }

    /// Number of objects in the slab.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl<T> Default for NumberedSlab<T> {
    fn default() -> NumberedSlab<T> {
        NumberedSlab::new()
    }
}

impl<T> Index<u32> for NumberedSlab<T> {
    type Output = T;
    /// Returns the object with number `key`.
    #[inline]
    fn index(&self, key: u32) -> &T {
        &self.0[key as usize]
    }
}

impl<T> IndexMut<u32> for NumberedSlab<T> {
    /// Returns the object with number `key` for changes.
    #[inline]
    fn index_mut(&mut self, key: u32) -> &mut T {
        &mut self.0[key as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_reuses_freed_numbers_without_growing() {
        let mut slab = NumberedSlab::new();
        let (key_a, key_b) = (slab.add('a'), slab.add('b'));
        assert_eq!((key_a, key_b, slab[key_b]), (0, 1, 'b'));
        assert_eq!(slab.take(key_a), 'a');
        assert_eq!(slab.add('c'), 0);
        assert_eq!(slab.count(), 2);
    }
}

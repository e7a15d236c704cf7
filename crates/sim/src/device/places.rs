//! Numbered places for things that come and go: a number is given out, names
//! the thing as long as it is there, and is used again afterwards.

use std::ops::{Index, IndexMut};

use slab::Slab;

/// Things by number: a slab whose numbers are those that requests are named by.
#[derive(Clone, Debug)]
pub struct NumberedSlab<T>(Slab<T>);

impl<T> NumberedSlab<T> {
    /// Nothing yet.
    pub const fn new() -> NumberedSlab<T> {
        NumberedSlab(Slab::new())
    }

    /// Puts a thing in; gives its number.
    #[inline]
    pub fn add(&mut self, thing: T) -> u32 {
        self.0.insert(thing) as u32
    }

    /// Takes a thing out; its number may be given out again.
    #[inline]
    pub fn take(&mut self, number: u32) -> T {
        self.0.remove(number as usize)
    }

    /// How many things are there.
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
    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.0[number as usize]
    }
}

impl<T> IndexMut<u32> for NumberedSlab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.0[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_and_the_room_stays_as_small_as_it_was() {
        let mut places = NumberedSlab::new();
        let (a, b) = (places.add('a'), places.add('b'));
        assert_eq!((a, b, places[b]), (0, 1, 'b'));
        assert_eq!(places.take(a), 'a');
        assert_eq!(places.add('c'), 0);
        assert_eq!(places.count(), 2);
    }
}

//! Numbered places for things that come and go: a number is given out, names
//! the thing as long as it is there, and is used again afterwards.

use std::ops::{Index, IndexMut};

/// Things by number. Grows to the most that were there at once, and no further.
#[derive(Clone, Debug)]
pub struct Places<T> {
    places: Vec<T>,
    free: Vec<u32>,
}

impl<T: Copy> Places<T> {
    /// Nothing yet.
    pub const fn new() -> Places<T> {
        Places { places: Vec::new(), free: Vec::new() }
    }

    /// Puts a thing in; gives its number.
    #[inline]
    pub fn add(&mut self, thing: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.places[number as usize] = thing;
                number
            }
            None => {
                self.places.push(thing);
                self.places.len() as u32 - 1
            }
        }
    }

    /// Takes a thing out; its number may be given out again.
    #[inline]
    pub fn take(&mut self, number: u32) -> T {
        self.free.push(number);
        self.places[number as usize]
    }

    /// How many things are there.
    pub fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl<T: Copy> Default for Places<T> {
    fn default() -> Places<T> {
        Places::new()
    }
}

impl<T> Index<u32> for Places<T> {
    type Output = T;
    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.places[number as usize]
    }
}

impl<T> IndexMut<u32> for Places<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.places[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_and_the_room_stays_as_small_as_it_was() {
        let mut places = Places::new();
        let (a, b) = (places.add('a'), places.add('b'));
        assert_eq!((a, b, places[b]), (0, 1, 'b'));
        assert_eq!(places.take(a), 'a');
        assert_eq!(places.add('c'), 0);
        assert_eq!(places.count(), 2);
    }
}

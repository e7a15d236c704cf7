//! A list in the order of arrival, from any place of which an element may be taken out.

use slab::Slab;

/// There is no node on that side.
const NONE: u32 = u32::MAX;

/// Values in the order in which they came: a doubly linked list, whose nodes are numbered.
#[derive(Debug)]
pub(super) struct Fifo<T> {
    nodes: Slab<Node<T>>,
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Node<T> {
    value: T,
    before: u32,
    behind: u32,
}

impl<T> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo { nodes: Slab::new(), first: NONE, last: NONE }
    }
}

impl<T> Fifo<T> {
    /// How many values it holds.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Adds a value at the end; gives the number that it has until it is removed.
    pub(super) fn push(&mut self, value: T) -> u32 {
        let before = self.last;
        let number = self.nodes.insert(Node { value, before, behind: NONE }) as u32;
        *self.link_behind(before) = number;
        self.last = number;
        number
    }

    /// Takes the value of that number out.
    pub(super) fn remove(&mut self, number: u32) -> T {
        let Node { value, before, behind } = self.nodes.remove(number as usize);
        *self.link_behind(before) = behind;
        match behind {
            NONE => self.last = before,
            _ => self.nodes[behind as usize].before = before,
        }
        value
    }

    /// The value that came first.
    pub(super) fn first(&self) -> Option<&T> {
        (self.first != NONE).then(|| self.get(self.first))
    }

    pub(super) fn get(&self, number: u32) -> &T {
        &self.nodes[number as usize].value
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.nodes[number as usize].value
    }

    fn link_behind(&mut self, number: u32) -> &mut u32 {
        match number {
            NONE => &mut self.first,
            _ => &mut self.nodes[number as usize].behind,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn what_is_taken_out_anywhere_leaves_the_others_in_their_order() {
        let mut fifo = Fifo::default();
        let numbers: Vec<u32> = "abcde".chars().map(|letter| fifo.push(letter)).collect();
        assert_eq!(
            [numbers[2], numbers[0], numbers[4]].map(|number| fifo.remove(number)),
            ['c', 'a', 'e']
        );
        fifo.push('f');
        let left: Vec<char> = core::iter::from_fn(|| {
            let number = fifo.first;
            (number != NONE).then(|| fifo.remove(number))
        })
        .collect();
        assert_eq!(left, ['b', 'd', 'f']);
        assert_eq!((fifo.count(), fifo.first()), (0, None));
        fifo.push('g');
        assert_eq!(fifo.first(), Some(&'g'));
    }
}

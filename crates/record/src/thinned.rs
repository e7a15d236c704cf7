//! A list that keeps every item, then every second, then every fourth of a long sequence.

/// Items at equal distances in a sequence. Its memory is bounded.
#[derive(Clone, Debug)]
pub struct ThinnedList<T> {
    /// Kept items, in the order of the sequence.
    items: Vec<T>,
    /// Largest number of kept items.
    items_max: usize,
    /// Distance of the kept items in the sequence, a power of two.
    keep_every: u64,
    /// Number of items in the sequence so far.
    count: u64,
}

impl<T> ThinnedList<T> {
    /// Creates an empty list of at most `items_max` items.
    pub fn new(items_max: usize) -> ThinnedList<T> {
        ThinnedList { items: Vec::new(), items_max, keep_every: 1, count: 0 }
    }

    /// Adds the next item if its number is a multiple of [`keep_every`](ThinnedList::keep_every).
    /// Drops every second item of a full list.
    pub fn push(&mut self, item: T) {
        if self.count.is_multiple_of(self.keep_every) {
            self.items.push(item);
        }
        self.count += 1;
        if self.items.len() > self.items_max {
            let mut index = 0;
            self.items.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.keep_every *= 2;
        }
    }

    /// Kept items, in the order of the sequence.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    /// Distance of the kept items in the sequence.
    pub fn keep_every(&self) -> u64 {
        self.keep_every
    }
}

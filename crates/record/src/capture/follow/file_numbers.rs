//! Numbers of the files in the recording.

use std::collections::HashMap;

use super::super::event::Inode;
use super::super::names::FileNames;
use super::TaskTracker;

/// Files of a recording with their numbers, in the order in which they were added, from 0.
#[derive(Debug, Default)]
pub(super) struct FileNumbers {
    /// Number of each file.
    numbers: HashMap<Inode, u32>,
    /// Each file, by its number.
    inodes: Vec<Inode>,
}

impl FileNumbers {
    /// Returns the number of a file. `None` if it was not added.
    pub fn number(&self, inode: Inode) -> Option<u32> {
        self.numbers.get(&inode).copied()
    }

    /// Adds a file, which must be new, and returns its number.
    pub fn add(&mut self, inode: Inode) -> u32 {
        let number = self.inodes.len() as u32;
        self.numbers.insert(inode, number);
        self.inodes.push(inode);
        number
    }
}

impl<N: FileNames> TaskTracker<N> {
    /// Returns the file with a number in the recording. Its record names the disk only, of which
    /// several partitions may have files with equal inode numbers.
    pub fn inode_of_file(&self, file: u32) -> Option<Inode> {
        self.files.inodes.get(file as usize).copied()
    }
}

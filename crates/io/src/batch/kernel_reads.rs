//! Batch reads that were submitted to the kernel page cache, taken in order of completion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{Thread, current, park};

use super::Batch;
use crate::engine::OpenFile;
use crate::engine::batch_reads::UnstartedRead;
use crate::kernel_page_cache::blocking_read::Wish;
use crate::kernel_page_cache::submitted_reads::Came;

/// Number of reads checked by one system call each, oldest first, before the batch waits for one.
const LOOKS_MAX: u32 = 8;
/// Limits of reads that helper threads await for one batch: per file, and in total.
const WISHES_OF_FILE_MAX: u32 = 16;
const WISHES_MAX: u32 = 64;

/// A batch read submitted to the kernel page cache.
pub(super) struct Begun {
    pub(super) asked: UnstartedRead,
    /// True if all its pages were resident at submission.
    pub(super) was_held: bool,
    /// Request to a helper thread that waits for the read; `None` until the batch has to wait.
    pub(super) wish: Option<Arc<Wish>>,
}

/// Waker that unparks the batch's thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Batch {
    /// Returns the next completed read of the kernel page cache, and waits if there is none. Reads
    /// of up to `copied_max` bytes are returned as copies where that is as cheap. `None` if no read
    /// is in flight.
    pub(super) fn next_begun(&mut self, copied_max: u64) -> Option<(UnstartedRead, Came)> {
        while !self.kept.is_empty() {
            if let Some(found) = self.find_come(copied_max) {
                return Some(found);
            }
            if !self.await_begun() {
                // No helper thread is available: this thread blocks in the read itself.
                return self.kept.pop_front().map(|begun| (begun.asked, Came::There));
            }
        }
        None
    }

    /// Polls the oldest reads once and removes the first completed one.
    fn find_come(&mut self, copied_max: u64) -> Option<(UnstartedRead, Came)> {
        let mut looks = 0;
        for at in 0..self.kept.len() {
            let Begun { asked, was_held, wish } = &self.kept[at];
            let UnstartedRead { handle, offset, bytes, .. } = asked;
            let came = match wish {
                Some(wish) if wish.has_come() => {
                    Some(handle.came(wish, *offset, *bytes, &mut self.spare))
                }
                None if looks < LOOKS_MAX => {
                    looks += 1;
                    let spare = &mut self.spare;
                    handle.look_at_begun(*offset, *bytes, *was_held, copied_max, spare)
                }
                _ => None,
            };
            if let Some(came) = came {
                let begun = self.kept.remove(at).expect("it was found there");
                return Some((begun.asked, came));
            }
        }
        None
    }

    /// Starts helper threads for the oldest reads of each file, and sleeps until one completes.
    /// Returns false if the system provides no thread.
    fn await_begun(&mut self) -> bool {
        let waker = Waker::from(Arc::new(Unpark(current())));
        let mut of_files: BTreeMap<*const OpenFile, u32> = BTreeMap::new();
        let (mut count, mut has_come) = (0, false);
        for begun in &mut self.kept {
            let UnstartedRead { handle, offset, bytes, .. } = &begun.asked;
            let of_file = of_files.entry(Arc::as_ptr(&handle.file)).or_default();
            // The first read of a file may exceed the total limit, so every file progresses.
            if *of_file >= WISHES_OF_FILE_MAX || *of_file > 0 && count >= WISHES_MAX {
                continue;
            }
            *of_file += 1;
            count += 1;
            if begun.wish.is_none() {
                match handle.wish_for_begun(*offset, *bytes) {
                    Ok(Some(wish)) => begun.wish = Some(wish),
                    // The read does not go through the kernel page cache. The next check finds that
                    // out.
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
            has_come |= begun.wish.as_ref().is_some_and(|wish| wish.poll(&waker));
        }
        if !has_come {
            // After a spurious wake-up the caller checks again and parks again.
            park();
        }
        true
    }
}

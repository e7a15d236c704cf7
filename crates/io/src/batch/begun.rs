//! The reads of a batch that the kernel has begun: the first that has come is taken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{Thread, current, park};

use super::Batch;
use crate::engine::OpenFile;
use crate::engine::batches::UnstartedRead;
use crate::kernel_pages::begun::Came;
use crate::kernel_pages::wish::Wish;

/// Number of reads that are looked at by a system call each, oldest first, before one is waited for.
const LOOKS_MAX: u32 = 8;
/// Most reads of one file, and of all, that threads wait for on behalf of one batch.
const WISHES_OF_FILE_MAX: u32 = 16;
const WISHES_MAX: u32 = 64;

/// A read that the kernel has begun.
pub(super) struct Begun {
    pub(super) asked: UnstartedRead,
    /// Whether the kernel held all of it before.
    pub(super) was_held: bool,
    /// From the time that a thread waits for it.
    pub(super) wish: Option<Arc<Wish>>,
}

/// Wakes the thread of a batch.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Batch {
    /// The next read that has come, of those that the kernel has begun; waits for one if none has.
    /// Reads of no more than `copied_max` bytes come as copies where that is as cheap.
    pub(super) fn next_begun(&mut self, copied_max: u64) -> Option<(UnstartedRead, Came)> {
        while !self.kept.is_empty() {
            if let Some(found) = self.find_come(copied_max) {
                return Some(found);
            }
            if !self.await_begun() {
                // There is no thread to wait for it: this one does.
                return self.kept.pop_front().map(|begun| (begun.asked, Came::There));
            }
        }
        None
    }

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

    /// Has threads wait for the oldest reads of each file, and sleeps until one has come; false
    /// where the system gives no thread.
    fn await_begun(&mut self) -> bool {
        let waker = Waker::from(Arc::new(Unpark(current())));
        let mut of_files: BTreeMap<*const OpenFile, u32> = BTreeMap::new();
        let (mut count, mut has_come) = (0, false);
        for begun in &mut self.kept {
            let UnstartedRead { handle, offset, bytes, .. } = &begun.asked;
            let of_file = of_files.entry(Arc::as_ptr(&handle.file)).or_default();
            // Of a file that has none, one goes beyond the limit of all.
            if *of_file >= WISHES_OF_FILE_MAX || *of_file > 0 && count >= WISHES_MAX {
                continue;
            }
            *of_file += 1;
            count += 1;
            if begun.wish.is_none() {
                match handle.wish_for_begun(*offset, *bytes) {
                    Ok(Some(wish)) => begun.wish = Some(wish),
                    // It is found to be none of the kernel's at the next look.
                    Ok(None) => return true,
                    Err(_) => return false,
                }
            }
            has_come |= begun.wish.as_ref().is_some_and(|wish| wish.poll(&waker));
        }
        if !has_come {
            // Woken for something else, the batch looks and sleeps again.
            park();
        }
        true
    }
}

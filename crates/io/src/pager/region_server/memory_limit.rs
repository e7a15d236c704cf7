//! Frames in addition to the configured memory, for pages that cannot leave.
//!
//! A page is *kept* if the kernel or the program keeps it in its place. A direct transfer has it
//! pinned, or the program has removed its own access to it. A transfer may pin more pages than the
//! memory holds, and needs the next one before it unpins any. Each kept page therefore adds a frame
//! (memory for one page) to the machine, which is taken back after the page has left. A page is
//! *chosen* if the machine wants to evict it, and *leaves* if it could be unmapped.

use std::collections::BTreeSet;

use super::*;

/// Pause in microseconds before pages are chosen again, if none of the chosen ones could leave and
/// the memory cannot grow. Chosen, not measured: system calls hold pages for about a disk access.
const KEPT_PAUSE_US: u64 = 1_000;

/// Limit of the memory, and the pages that add to it.
pub(super) struct MemoryLimit {
    /// Configured number of frames.
    frames: u64,
    /// Bound of the limit: number of frames with an address.
    frames_max: u64,
    /// Pages that could not leave when they were last chosen. Each adds a frame to the limit.
    kept: BTreeSet<u64>,
    /// Frames for kept pages that were chosen once more, in place of pages that can leave. A policy
    /// may choose the same pages again and again.
    frames_again: u64,
    /// End of the pause before pages are chosen again, if no chosen page could leave.
    pub(super) pause_end: Option<Time>,
    /// True if a page has left since the last check for a pause.
    has_left: bool,
}

impl MemoryLimit {
    /// A limit of `frames` frames, which kept pages raise up to `frames_max`.
    pub(super) fn new(frames: u64, frames_max: u64) -> MemoryLimit {
        MemoryLimit {
            frames,
            frames_max,
            kept: BTreeSet::new(),
            frames_again: 0,
            pause_end: None,
            has_left: false,
        }
    }

    /// Adds a page that could not leave.
    pub(super) fn on_kept(&mut self, page: u64) {
        self.kept.insert(page);
    }

    /// Removes a page that has left its place, or was dropped.
    pub(super) fn on_left(&mut self, page: u64) {
        self.kept.remove(&page);
        self.frames_again = 0;
        self.has_left = true;
    }

    /// True during a pause. A page that has left since the last call ends it: its frame may serve a
    /// fault that waits.
    pub(super) fn is_paused(&mut self) -> bool {
        if std::mem::take(&mut self.has_left) {
            self.pause_end = None;
        }
        self.pause_end.is_some()
    }

    /// Number of pages that could not leave when they were last chosen.
    pub(super) fn kept_pages(&self) -> usize {
        self.kept.len()
    }

    /// True if the page could not leave when it was last chosen.
    pub(super) fn is_kept(&self, page: u64) -> bool {
        self.kept.contains(&page)
    }

    /// The limit in bytes, with a frame for each kept page.
    fn bytes(&self) -> u64 {
        (self.frames + self.kept.len() as u64 + self.frames_again).min(self.frames_max) * PAGE_BYTES
    }
}

impl Areas {
    /// Adds frames to the machine for newly kept pages. If all `chosen_count` chosen pages were
    /// kept before too (`are_kept_again`), adds as many further ones, or begins a pause at the
    /// bound of the limit. Each chosen page was reported to the machine before.
    pub(super) fn enlarge_memory(
        &mut self,
        machine: &mut Machine,
        now: Time,
        chosen_count: usize,
        are_kept_again: bool,
    ) {
        let limit = &mut self.memory_limit;
        let [memory_bytes, _used_bytes] = machine.memory_bytes();
        if limit.bytes() <= memory_bytes && are_kept_again {
            limit.frames_again = (limit.frames_again + chosen_count as u64).min(limit.frames_max);
        }
        if limit.bytes() > memory_bytes {
            let withdrawn = machine.resize(now, limit.bytes());
            debug_assert!(withdrawn.is_empty(), "a growth withdraws no frames");
        } else if are_kept_again {
            limit.pause_end = Some(now + Time::from_us(KEPT_PAUSE_US));
        }
    }

    /// Takes back frames of kept pages that have left, as far as pages can leave at once. Returns
    /// true if any was taken: the machine may then have pages to unmap, as replacements.
    pub(super) fn reduce_memory(&mut self, machine: &mut Machine) -> bool {
        let limit_bytes = self.memory_limit.bytes();
        let [memory_bytes, _used_bytes] = machine.memory_bytes();
        if limit_bytes >= memory_bytes {
            return false;
        }
        // The frames that the machine gives up. Their memory is released here.
        let withdrawn = machine.resize(self.clock.now(), limit_bytes);
        for frame in &withdrawn {
            if self.frames[frame.0 as usize].presence == FramePresence::InFrame {
                self.release_frame_memory(frame.0);
                self.frames[frame.0 as usize].presence = FramePresence::Unallocated;
            }
        }
        machine.on_withdrawn(&withdrawn);
        let [new_memory_bytes, _used_bytes] = machine.memory_bytes();
        new_memory_bytes < memory_bytes
    }

    /// Gives the memory at a frame's own address back to the system. The caller updates the frame's
    /// state.
    pub(super) fn release_frame_memory(&mut self, frame: u32) {
        // SAFETY: the bytes are at the program's address, and no transfer uses the frame's own
        // page.
        unsafe { self.frame_area.release(PageRange::new(u64::from(frame), 1)) };
        self.present_pages -= 1;
    }

    /// Adds to the number of present pages, and updates its maximum.
    pub(super) fn add_present(&mut self, pages: u64) {
        self.present_pages += pages;
        self.statistics.memory_pages_max = self.statistics.memory_pages_max.max(self.present_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One batch of pages could leave and another could not, in either order.
    #[test]
    fn page_that_leaves_ends_the_pause_of_its_step() {
        let mut limit = MemoryLimit::new(64, 64);
        limit.pause_end = Some(Time::from_us(1));
        assert!(limit.is_paused());
        limit.on_left(7);
        assert!(!limit.is_paused());
        limit.on_left(8);
        limit.pause_end = Some(Time::from_us(2));
        assert!(!limit.is_paused());
        limit.pause_end = Some(Time::from_us(3));
        assert!(limit.is_paused());
    }
}

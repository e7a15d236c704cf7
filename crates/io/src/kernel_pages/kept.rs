//! Reads of files whose pages the kernel keeps.
//!
//! A read is made with one system call where it is [trusted](super::residency_sampling) to be held. Else it is looked at: what is held is
//! taken with `RWF_NOWAIT`, and was that all of it, the read is done. Otherwise
//! our law sees it, the kernel is advised of what that wants, and the rest is read and waited for.
//!
//! A run that began at a place of which nothing was known, a header and what follows it, is read *alone*: through the file opened once more, of
//! which the kernel reads what is asked for and nothing ahead, as long as the law wants less ahead of it than the kernel would read
//! by itself (up to four times what was asked for). What the law wants is advised. Whether a run goes on alone is decided when the law sees
//! a read of it that is not held; the law sees then what of the run it has not seen. A read that is longer than all of the run before it, a piece
//! behind a header that was trusted to be held, is looked at alone too: the kernel would begin with its window at the look. (A zip file's
//! entries of 4 to 200 KiB at random, headers first: the kernel by itself reads 111 MiB for 26; ours 84 before that, 35 with it.)
//!
//! A read is not looked at while something that was advised waits for its reader, where it is expected not to be held, and where the
//! file system doesn't tell what it holds. Then the law sees it before it is made, and the time that it takes tells. (What the kernel reads ahead
//! of a read that may not wait it reads into single pages.) A stream that goes upwards on a device where the kernel's own window is large is the kernel's as soon as one of its reads was
//! held: to advise it of what lies beyond that window took three times the processor time (256 MiB by 64 KiB: 236 MiB advised), and a
//! law that saw one read of thirty would take them for reads at random places.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::task::{Poll, Waker};

use readpath_core::unit::PageRange;

use super::holds;
use super::kernel_readahead::{Shown, Steered};
use super::waiter::Wish;
use crate::engine::Handle;
use crate::target::Target;

impl Handle {
    /// Reads through the kernel's cache; gives how many of the bytes had to be waited for. `None`: they are to be read past
    /// that cache.
    pub(super) fn read_kept(
        &self,
        steered: &Steered,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Option<u64> {
        let pages = &self.file.kernel_pages;
        let (through, target) = (pages.through()?, pages.target.as_ref()?);
        let reads = self.read_counters.kernel_reads();
        if steered.trusts(reads.residency_sampling()) {
            return through.read_all(offset, bytes, buffers).then_some(0);
        }
        let residency_sampling = reads.residency_sampling();
        // From here on: what is not held the kernel begins with as soon as it is looked at.
        let reading = steered.reads();
        // Behind a header that was trusted to be held the kernel reads ahead as of a stream, as soon as it is looked.
        let alone_from = reads.alone_from(offset).or_else(|| reads.header_from(offset, bytes));
        if reads.last_end() == Some(offset)
            && alone_from.is_none()
            && steered.leaves_streams(target)
        {
            steered.disengage();
        }
        let is_engaged = steered.is_engaged();
        let is_to_look = !is_engaged && !residency_sampling.expects_miss();
        let seen = if is_to_look {
            through.read_seen(offset, alone_from.is_some(), buffers)
        } else {
            None
        };
        if seen == Some(bytes) {
            residency_sampling.looked(true);
            return Some(0);
        }
        let missed = seen.map(|held| offset + held);
        let (mut is_alone, mut was_advised) = (false, false);
        if is_engaged || alone_from.is_some() || !reads.goes_on_unseen(offset) {
            let shown = self.shown(offset, bytes, alone_from, false, missed);
            let seen = steered.read(&self.policy, target, shown);
            reads.goes_on_alone(seen.goes_on_alone);
            // Of a read that continues none the kernel reads nothing ahead.
            is_alone = seen.goes_on_alone && shown.goes_on;
            was_advised = seen.was_advised;
        }
        let held = seen.unwrap_or(0);
        if !through.read_rest(offset, held, is_alone, buffers) {
            return None;
        }
        let demand = reading.has_read(bytes - held, missed.is_some(), was_advised);
        match is_engaged {
            true => residency_sampling.ends(),
            false => residency_sampling.looked(demand == 0),
        }
        Some(demand)
    }

    /// Has the kernel begin with what it doesn't hold of a read that is to be
    /// [taken](Handle::look_at_begun) later; gives whether it held all of it, as far as is known.
    /// `None` where it doesn't keep the pages of the file, or our own cache has some of these.
    pub(crate) fn begin_in_kernel(&self, offset: u64, bytes: u64) -> Option<bool> {
        let pages = &self.file.kernel_pages;
        let (steered, target) = (pages.steered.as_ref()?, pages.target.as_ref()?);
        if self.has_own(offset, bytes) {
            return None;
        }
        // Before anything is under way: some file systems have an open wait for that.
        pages.through()?;
        let reads = self.read_counters.kernel_reads();
        if steered.trusts(reads.begun()) {
            return Some(true);
        }
        let is_held = self.begin(steered, target, offset, bytes);
        reads.begun().looked(is_held);
        Some(is_held)
    }

    /// Has the kernel begin with a read, unless it holds all of it and the law needn't know; gives whether it does.
    fn begin(&self, steered: &Steered, target: &Target, offset: u64, bytes: u64) -> bool {
        let request = PageRange::covering(offset, bytes);
        let is_held = holds(target, request);
        if !is_held || steered.is_engaged() {
            let reads = self.read_counters.kernel_reads();
            steered.read(
                &self.policy,
                target,
                self.shown(offset, bytes, reads.alone_from(offset), !is_held, None),
            );
        }
        is_held
    }

    /// Reads for a task into `buffer`, as [`read_from_kernel`](Handle::read_from_kernel) does for a thread; false: it is to be
    /// read past that cache. `wish` is the task's own, none before the first call, and `waker` is called once there is more to be had.
    ///
    /// # Errors
    /// The system gives no thread to wait on.
    pub(crate) fn poll_kernel(
        &self,
        offset: u64,
        buffer: &mut [u8],
        wish: &mut Option<Arc<Wish>>,
        waker: &Waker,
    ) -> Poll<io::Result<bool>> {
        let pages = &self.file.kernel_pages;
        let bytes = buffer.len() as u64;
        let (Some(steered), Some(target)) = (&pages.steered, &pages.target) else {
            return Poll::Ready(Ok(self.read_held(offset, buffer)));
        };
        let through = match pages.through() {
            Some(through) if wish.is_some() || !self.has_own(offset, bytes) => through,
            _ => return Poll::Ready(Ok(false)),
        };
        let buffers = &mut [IoSliceMut::new(buffer)];
        if let Some(wish) = wish {
            if !wish.poll(waker) {
                return Poll::Pending;
            }
            // What is gone again by now, or could not be read, is read past the cache, which says why.
            let is_read = match wish.take_copy() {
                Some(copy) => {
                    buffers[0].copy_from_slice(&copy);
                    true
                }
                None => through.read_held(offset, bytes, buffers),
            };
            if !is_read {
                through.was_gone();
            }
            return Poll::Ready(Ok(is_read && self.counted(bytes, bytes, offset)));
        }
        // The thread that waits reads on through the kernel, as the look does: so a stream is the kernel's here too.
        let is_kernels = steered.leaves_streams(target) && self.read_counters.has_end_at(offset);
        if is_kernels {
            steered.disengage();
        }
        let is_engaged = steered.is_engaged();
        let alone_from = self.read_counters.kernel_reads().alone_from(offset);
        if is_engaged {
            steered.read(&self.policy, target, self.shown(offset, bytes, alone_from, true, None));
        }
        let seen = through.read_seen(offset, false, buffers);
        if seen == Some(bytes) {
            return Poll::Ready(Ok(self.counted(bytes, 0, offset)));
        }
        if !is_engaged && !is_kernels {
            let missed = seen.map(|held| offset + held);
            steered.read(&self.policy, target, self.shown(offset, bytes, alone_from, true, missed));
        }
        let wanted = wish.insert(Arc::new(through.wish(offset, bytes)));
        wanted.poll(waker);
        match steered.wait_for(Arc::clone(wanted)) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// What the law is shown of a read: of a run that is read alone also what it has not seen of that.
    fn shown(
        &self,
        offset: u64,
        bytes: u64,
        alone_from: Option<u64>,
        is_begun: bool,
        missed: Option<u64>,
    ) -> Shown {
        let reads = self.read_counters.kernel_reads();
        let goes_on = reads.last_end().map_or(offset == 0, |end| end == offset);
        let (from, end) = (alone_from.unwrap_or(offset), offset + bytes);
        reads.shown(end);
        let was_alone = alone_from.is_some();
        Shown { offset: from, bytes: end - from, goes_on, was_alone, is_begun, missed }
    }
}

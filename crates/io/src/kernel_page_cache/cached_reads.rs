//! Reads of files whose pages the kernel caches.
//!
//! A read whose pages are [trusted](super::residency_sampling) to be resident is one system call.
//! Any other read is checked: `RWF_NOWAIT` returns its resident bytes, and if that is all, the read
//! is complete. Otherwise the policy sees it, the kernel is advised of the policy's windows, and
//! the rest is read with waiting.
//!
//! *Reads without kernel readahead.* A run that begins at a new offset (a header and its content)
//! is read *alone*, through a second open file with `POSIX_FADV_RANDOM`. It stays so while the
//! policy's window is smaller than the kernel's own (up to four times the request). The policy's
//! window is advised. The mode is decided again when a read of the run misses and reaches the
//! policy; the policy then also sees the skipped reads of the run. A read longer than the run
//! before it (content after a trusted header) is also checked alone, because the check itself would
//! start the kernel's window. Example: entries of 4 to 200 KiB of a zip file at random, headers
//! first, 26 MiB. The kernel alone reads 111 MiB, advice without this mode 84 MiB, and this mode 35
//! MiB.
//!
//! *Reads without a check.* The check is skipped while advised pages wait for their reader, if a
//! miss is expected, and if the file system does not support `RWF_NOWAIT`. The policy then sees the
//! read first, and its duration shows a miss. (The kernel's readahead of a `RWF_NOWAIT` read uses
//! single pages.)
//!
//! *Streams of the kernel.* An ascending stream on a device with a large kernel window is left to
//! the kernel after its first resident read. Advising pages beyond that window took three times the
//! processor time (256 MiB by 64 KiB: 236 MiB advised). A policy that saw one read of thirty would
//! take the stream for random access.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::task::{Poll, Waker};

use readpath_core::unit::PageRange;

use super::blocking_pool::Wish;
use super::holds;
use super::kernel_readahead::{Shown, Steered};
use crate::engine::Handle;
use crate::target::Target;

impl Handle {
    /// Reads through the kernel page cache and returns the number of bytes that had to be awaited.
    /// `None` if the read must bypass that cache.
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
        // The clock starts here: the check below makes the kernel start its I/O.
        let reading = steered.reads();
        // Behind a trusted header the check would start the kernel's window as for a stream.
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
            // The kernel reads nothing ahead of a read that continues no run.
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

    /// Starts the kernel's I/O for a read that will be [taken](Handle::look_at_begun) later.
    /// Returns true if the range was resident, as far as known. `None` if the kernel does not cache
    /// the pages, or the path's cache has some of them.
    pub(crate) fn begin_in_kernel(&self, offset: u64, bytes: u64) -> Option<bool> {
        let pages = &self.file.kernel_pages;
        let (steered, target) = (pages.steered.as_ref()?, pages.target.as_ref()?);
        if self.has_own(offset, bytes) {
            return None;
        }
        // Before any I/O is in flight: on some file systems an open waits for it.
        pages.through()?;
        let reads = self.read_counters.kernel_reads();
        if steered.trusts(reads.begun()) {
            return Some(true);
        }
        let is_held = self.begin(steered, target, offset, bytes);
        reads.begun().looked(is_held);
        Some(is_held)
    }

    /// Starts the I/O of a read, unless it is resident and the policy need not see it. Returns true
    /// if it is resident.
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

    /// Reads into `buffer` for a task, like [`read_from_kernel`](Handle::read_from_kernel) for a
    /// thread. Returns false if the read must bypass the kernel page cache. `wish` belongs to the
    /// task and is `None` before the first call. `waker` is called when the read has progressed.
    ///
    /// # Errors
    /// The system provides no thread to wait on.
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
            // Bytes that were evicted again or could not be read are read without the kernel page
            // cache, which reports the error.
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
        // The waiting thread reads through the kernel with its readahead, like the check. Streams
        // are therefore left to the kernel here too.
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

    /// Access to show to the policy. For a run that is read alone it includes the skipped reads of
    /// the run.
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

//! Reads of files whose pages the kernel caches.
//!
//! A *handle* is one opening of a file. A page is *resident* if it is in the kernel page cache. The
//! *policy* is the readahead policy of this process. It returns page ranges, its *windows*, and the
//! kernel is *advised* to read them ahead. The *kernel's window* is read ahead by the kernel
//! itself. `RWF_NOWAIT` is the flag of preadv2(2) that reads resident pages only and never waits
//! for the device.
//!
//! A read whose pages are [trusted] to be resident is one system call. Any other read is checked:
//! `RWF_NOWAIT` returns its resident bytes, and if that is all, the read is complete. Otherwise the
//! policy sees it, the kernel is advised of the policy's windows, and the rest is read with
//! waiting. A *sampler* for each thread and file selects the method of the next read from the
//! results of the last ones ([`ReadMethod`]). The *awaited* bytes of a read were not resident.
//!
//! [trusted]: crate::page_cache::kernel::residency_sampling
//!
//! *Reads without kernel readahead.* A *run* is a sequence of reads, each of which begins where the
//! last one ended. A run that begins at a new offset (a header and its content) is read *alone*,
//! through a second open file with `POSIX_FADV_RANDOM`. It stays so while the policy's window is
//! smaller than the kernel's own (up to four times the request). The policy's window is advised.
//! The mode is decided again when a read of the run misses and reaches the policy; the policy then
//! also sees the skipped reads of the run. A read longer than the run before it (content after a
//! trusted header) is also checked alone, because the check itself would start the kernel's window.
//! Example: entries of 4 to 200 KiB of a zip file at random, headers first, 26 MiB. The kernel
//! alone reads 111 MiB, advice without this mode 84 MiB, and this mode 35 MiB.
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

use crate::os::thread::future_thread_error;
use crate::page_cache::kernel::KernelFile;
use crate::page_cache::kernel::blocking_pool::BlockingRead;
use crate::page_cache::kernel::buffered_file::{BufferedFile, KernelReadahead};
use crate::page_cache::kernel::kernel_readahead::{KernelReadTimer, PolicyAccess};
use crate::page_cache::kernel::residency_sampling::ReadMethod;
use crate::page_cache::kernel_reads::submitted_reads::{COPIED_BYTES_MAX, SubmittedResidency};
use crate::page_cache::own::Handle;
use crate::probes;
use crate::read_error::ReadError;

/// A read that may wait for the device.
struct UntrustedRead<'a> {
    /// First byte in the file, and number of bytes.
    offset: u64,
    bytes: u64,
    /// Method of the read, from the sampler: any but `Trusted`. `Sampling` is a checked read. With
    /// `Prefetching`, advised pages of the file wait for their reader. Otherwise a miss is
    /// expected.
    method: ReadMethod,
    /// Offset up to which the policy knows its run, if the run is read without kernel readahead.
    /// For the content behind a trusted header, it is the start of the header.
    no_readahead_from: Option<u64>,
    /// Number of resident bytes that a check has read; `None` without a check, and if the file
    /// system does not support `RWF_NOWAIT`.
    checked_bytes: Option<u64>,
    /// Started before the check.
    timer: KernelReadTimer<'a>,
    /// Span of the read for tracing, ended by its drop.
    _probe: probes::ReadSpan,
}

impl Handle {
    /// Reads through the kernel page cache into buffers of `bytes` bytes in total. Returns false if
    /// the read must bypass that cache: the file cannot be opened without O_DIRECT, the file ends
    /// before, or the device fails.
    #[inline]
    pub(crate) fn read_kernel_pages(
        &self,
        file: &KernelFile,
        offset: u64,
        bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> bool {
        let Some(buffered_file) = file.open_buffered() else { return false };
        let reads = self.read_counters.kernel_reads();
        let mut read = match reads.sampler().next_read(file.readahead.is_prefetching()) {
            ReadMethod::Trusted => {
                let is_read = match buffers {
                    [buffer] => buffered_file.read_blocking(offset, buffer),
                    buffers => buffered_file.read_all_blocking(offset, bytes, buffers),
                };
                // Counted as resident also after a miss, which is not detected without a clock. The
                // functions that record a read always return true.
                return is_read && self.record_resident_read(bytes, offset);
            }
            method => self.begin_untrusted(file, method, offset, bytes),
        };
        // A read that is expected to miss, or that the policy must see first, is not checked.
        if read.method == ReadMethod::Sampling {
            let kernel_readahead = KernelReadahead::disabled_if(read.no_readahead_from.is_some());
            read.checked_bytes = buffered_file.read_nowait(offset, kernel_readahead, buffers);
            if read.checked_bytes == Some(bytes) {
                let is_resident = true;
                reads.sampler().record_check(is_resident);
                return self.record_resident_read(bytes, offset);
            }
        }
        self.finish_untrusted(file, buffered_file, read, buffers)
            .is_some_and(|awaited_bytes| self.record_kernel_read(bytes, awaited_bytes, offset))
    }

    /// Begins a read that may wait: starts its timer and its probe, and finds out if its run is
    /// read without kernel readahead. `method` is the sampler's choice for this read. If the read
    /// continues a stream that is left to the kernel, the method `Prefetching` is replaced, and
    /// later reads of the file need not be shown to the policy.
    fn begin_untrusted<'a>(
        &self,
        file: &'a KernelFile,
        method: ReadMethod,
        offset: u64,
        bytes: u64,
    ) -> UntrustedRead<'a> {
        let KernelFile { target, readahead, .. } = file;
        let reads = self.read_counters.kernel_reads();
        let probe = probes::begin_read(offset, bytes);
        // The clock starts here: the check makes the kernel start its I/O.
        let timer = readahead.begin_read();
        // Behind a trusted header the check would start the kernel's window as for a stream.
        let no_readahead_from =
            reads.no_readahead_start(offset).or_else(|| reads.header_start(offset, bytes));
        // The read continues the last one, and the kernel's own window is large enough for streams.
        let is_kernel_stream = reads.last_end() == Some(offset)
            && no_readahead_from.is_none()
            && readahead.leaves_streams(target);
        let method = match method {
            // The advised pages wait for another reader, not for this stream.
            ReadMethod::Prefetching if is_kernel_stream => {
                readahead.stop_showing_reads();
                reads.sampler().untrusted_method()
            }
            method => method,
        };
        UntrustedRead {
            offset,
            bytes,
            method,
            no_readahead_from,
            checked_bytes: None,
            timer,
            _probe: probe,
        }
    }

    /// Finishes a read after its check, or without one: reads the rest of its bytes into `buffers`.
    /// The policy sees the read first, unless it is one of a stream that the kernel reads ahead.
    /// Returns the number of bytes that had to be awaited. Returns `None` if the read must bypass
    /// the kernel page cache: the file ends before, or the device fails.
    fn finish_untrusted(
        &self,
        file: &KernelFile,
        buffered_file: &BufferedFile,
        read: UntrustedRead<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Option<u64> {
        // `_probe` is dropped at the end of this function.
        let UntrustedRead {
            offset,
            bytes,
            method,
            no_readahead_from,
            checked_bytes,
            timer,
            _probe,
        } = read;
        let reads = self.read_counters.kernel_reads();
        let first_absent = checked_bytes.map(|resident_bytes| offset + resident_bytes);
        let is_prefetching = method == ReadMethod::Prefetching;
        // Without the policy the kernel reads ahead as usual, and nothing is advised.
        let (mut kernel_readahead, mut was_advised) = (KernelReadahead::Enabled, false);
        // The policy must see reads of advised pages, and runs without kernel readahead. Any other
        // read that continues one unseen by the policy belongs to a stream of the kernel.
        let is_kernel_stream =
            no_readahead_from.is_none() && reads.continues_read_unseen_by_policy(offset);
        if is_prefetching || !is_kernel_stream {
            let access = self.policy_access(offset, bytes, no_readahead_from, first_absent);
            let answer = file.readahead.show_read(&self.kernel_policy, &file.target, access);
            // For the rest of the run, until the policy sees another read of it.
            reads.set_no_readahead(answer.is_kernel_readahead_off);
            // The kernel reads nothing ahead of a read that continues no run.
            kernel_readahead = KernelReadahead::disabled_if(
                answer.is_kernel_readahead_off && access.is_continuation,
            );
            was_advised = answer.has_advised_part;
        }
        // Without a check all bytes are read here.
        let resident_bytes = checked_bytes.unwrap_or(0);
        if !buffered_file.read_rest(offset, resident_bytes, kernel_readahead, buffers) {
            return None;
        }
        // A check that left bytes over has certainly missed. Without a check the duration decides.
        let awaited_bytes =
            timer.finish(bytes - resident_bytes, first_absent.is_some(), was_advised);
        // A read of advised pages is no sample of the residency: it only ends the trust.
        match is_prefetching {
            true => reads.sampler().reset(),
            false => reads.sampler().record_check(awaited_bytes == 0),
        }
        Some(awaited_bytes)
    }

    /// Starts the kernel's I/O for a read that is [polled](Handle::poll_submitted) later, unless
    /// the sampler or a check finds the range resident. Returns the residency. Returns `None` if
    /// the kernel does not cache the pages, or if the file cannot be opened without O_DIRECT.
    pub(crate) fn submit_to_kernel(&self, offset: u64, bytes: u64) -> Option<SubmittedResidency> {
        let file = self.file.pages.kernel_file()?;
        // Before any I/O is in flight: on some file systems an open waits for it.
        let buffered_file = file.open_buffered()?;
        let reads = self.read_counters.kernel_reads();
        // Pages that a submitted read has brought in say nothing about other reads, so submitted
        // reads have a sampler of their own.
        let sampler = reads.async_sampler();
        let method = sampler.next_read(file.readahead.is_prefetching());
        // Later polls verify the trust by `RWF_NOWAIT`. Without it, the caller would make each read
        // in turn, and wait for absent pages one read after another.
        if method == ReadMethod::Trusted && buffered_file.supports_nowait(offset) {
            return Some(SubmittedResidency::Resident);
        }
        let is_resident = self.submit_if_absent(file, offset, bytes);
        // A read of advised pages is no sample of the residency: it only ends the trust.
        match method {
            ReadMethod::Prefetching => sampler.reset(),
            _ => sampler.record_check(is_resident),
        }
        Some(if is_resident { SubmittedResidency::Resident } else { SubmittedResidency::Absent })
    }

    /// Shows a submitted read to the policy and starts its I/O. No effect if the range is resident
    /// and no advised page waits for its reader. Returns true if all pages of the range are
    /// resident.
    fn submit_if_absent(&self, file: &KernelFile, offset: u64, bytes: u64) -> bool {
        let KernelFile { target, readahead, .. } = file;
        let request = PageRange::covering(offset, bytes);
        let is_resident = file.are_resident_for_batch(request);
        // While advised pages wait for their reader, the policy must see every read.
        if !is_resident || readahead.is_prefetching() {
            let reads = self.read_counters.kernel_reads();
            // The check counts pages and does not report which of them is absent.
            let first_absent = None;
            // The answer concerns the caller's own reads, and is not used.
            readahead.show_read(
                &self.kernel_policy,
                target,
                PolicyAccess {
                    // A resident range needs no I/O.
                    is_submitted: !is_resident,
                    // Also true for a batch, which has other reads in flight.
                    is_of_task: true,
                    ..self.policy_access(
                        offset,
                        bytes,
                        reads.no_readahead_start(offset),
                        first_absent,
                    )
                },
            );
        }
        is_resident
    }

    /// Reads into `buffer` for a task, like [`read_from_kernel`](Handle::read_from_kernel) for a
    /// thread. Returns false if the read must bypass the kernel page cache. `blocking_read` belongs
    /// to the task and is `None` before the first call. After `Pending`, `waker` is called when the
    /// read, or a piece of it, has ended. The task then calls again, with the same arguments. A
    /// read that is `Ready` is not polled again.
    ///
    /// # Errors
    /// The system provides no thread to wait on. Or the read has failed, and the file system does
    /// not support `RWF_NOWAIT`.
    pub(crate) fn poll_kernel_read(
        &self,
        offset: u64,
        buffer: &mut [u8],
        blocking_read: &mut Option<Arc<BlockingRead>>,
        waker: &Waker,
    ) -> Poll<io::Result<bool>> {
        let bytes = buffer.len() as u64;
        let Some(file) = self.file.pages.kernel_file() else {
            // The kernel does not cache the pages: resident ones are read without waiting.
            let buffers = &mut [IoSliceMut::new(buffer)];
            return Poll::Ready(Ok(self.read_from_kernel(offset, bytes, buffers)));
        };
        let Some(buffered_file) = file.open_buffered() else { return Poll::Ready(Ok(false)) };
        // An earlier call has started a thread, which makes the read.
        if let Some(blocking_read) = blocking_read {
            return self.poll_started_read(
                file,
                buffered_file,
                offset,
                buffer,
                blocking_read,
                waker,
            );
        }
        if self.check_task_read(file, buffered_file, offset, buffer) {
            self.record_resident_read(bytes, offset);
            return Poll::Ready(Ok(true));
        }
        file.readahead.record_wait(bytes);
        let new_read = blocking_read.insert(Arc::new(new_task_read(buffered_file, offset, bytes)));
        start_task_read(file, new_read, waker)
    }

    /// Polls a task's read that a waiter thread makes, or the present piece of it. Starts the next
    /// piece when one has ended. Arguments and result are as for
    /// [`poll_kernel_read`](Handle::poll_kernel_read).
    fn poll_started_read(
        &self,
        file: &KernelFile,
        buffered_file: &BufferedFile,
        offset: u64,
        buffer: &mut [u8],
        blocking_read: &mut Arc<BlockingRead>,
        waker: &Waker,
    ) -> Poll<io::Result<bool>> {
        if !blocking_read.poll(waker) {
            return Poll::Pending;
        }
        let bytes = buffer.len() as u64;
        let finished = finish_blocking_read(buffered_file, blocking_read, offset, buffer)?;
        if let FinishedRead::Piece { end } = finished {
            // The whole read was counted as waiting at its first piece.
            let piece = new_task_read(buffered_file, end, offset + bytes - end);
            *blocking_read = Arc::new(piece);
            return start_task_read(file, blocking_read, waker);
        }
        let is_read = finished == FinishedRead::Whole;
        if is_read {
            // All bytes count as awaited, also if a check has found some of them resident.
            let awaited_bytes = bytes;
            self.record_kernel_read(bytes, awaited_bytes, offset);
        }
        Poll::Ready(Ok(is_read))
    }

    /// Reads the resident bytes from `offset` on into `buffer`, for a task's read that has not
    /// started. Returns true if all bytes were resident. Shows a read that was not complete to the
    /// policy, unless it is one of a stream that is left to the kernel. While advised pages wait
    /// for their reader, the policy sees each read, and before the check.
    fn check_task_read(
        &self,
        file: &KernelFile,
        buffered_file: &BufferedFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> bool {
        let KernelFile { target, readahead: file_readahead, .. } = file;
        let bytes = buffer.len() as u64;
        // The waiting thread reads through the kernel with its readahead, like the check. Streams
        // are therefore left to the kernel here too. A task may have made its last read on another
        // thread, so the last reads of all threads are looked at.
        let is_kernel_stream =
            file_readahead.leaves_streams(target) && self.read_counters.has_any_read_end_at(offset);
        if is_kernel_stream {
            // The advised pages wait for another reader, not for this stream.
            file_readahead.stop_showing_reads();
        }
        let is_prefetching = file_readahead.is_prefetching();
        let no_readahead_from = self.read_counters.kernel_reads().no_readahead_start(offset);
        let show_read = |first_absent| {
            let access = self.policy_access(offset, bytes, no_readahead_from, first_absent);
            let access = PolicyAccess { is_submitted: true, is_of_task: true, ..access };
            // The answer concerns the caller's own reads, and is not used.
            file_readahead.show_read(&self.kernel_policy, target, access);
        };
        if is_prefetching {
            // Before the check, so no absent page is known.
            let first_absent = None;
            show_read(first_absent);
        }
        let buffers = &mut [IoSliceMut::new(buffer)];
        let checked_bytes = buffered_file.read_nowait(offset, KernelReadahead::Enabled, buffers);
        if checked_bytes == Some(bytes) {
            return true;
        }
        if !is_prefetching && !is_kernel_stream {
            let first_absent = checked_bytes.map(|resident_bytes| offset + resident_bytes);
            show_read(first_absent);
        }
        false
    }

    /// Returns a read as the policy must see it, and records that the policy knows the run up to
    /// the read's end. If the run is read without kernel readahead, the access begins at
    /// `no_readahead_from` and includes the skipped reads. `first_absent` is the offset of the
    /// first byte known to be absent.
    fn policy_access(
        &self,
        offset: u64,
        bytes: u64,
        no_readahead_from: Option<u64>,
        first_absent: Option<u64>,
    ) -> PolicyAccess {
        let reads = self.read_counters.kernel_reads();
        // A first read continues a run if it begins at the start of the file.
        let is_continuation = reads.last_end().map_or(offset == 0, |end| end == offset);
        let (shown_start, end) = (no_readahead_from.unwrap_or(offset), offset + bytes);
        reads.record_policy_end(end);
        let was_without_readahead = no_readahead_from.is_some();
        PolicyAccess {
            offset: shown_start,
            bytes: end - shown_start,
            is_continuation,
            was_without_readahead,
            is_submitted: false,
            is_of_task: false,
            first_absent,
        }
    }
}

/// Creates a read of a task for a waiter thread: of all `bytes` bytes from `offset` on, or of a
/// first piece of them. Without `RWF_NOWAIT` the task cannot copy the pages without waiting, so the
/// content of each piece is kept for it. A future that is not polled again keeps one piece.
fn new_task_read(buffered_file: &BufferedFile, offset: u64, bytes: u64) -> BlockingRead {
    match buffered_file.is_nowait_unsupported() {
        true => {
            buffered_file.new_blocking_read(offset, bytes.min(COPIED_BYTES_MAX)).copying_bytes()
        }
        false => buffered_file.new_blocking_read(offset, bytes),
    }
}

/// Passes a new read of a task to a waiter thread, which calls `waker` at its end. Returns
/// `Pending`, or an error at once.
///
/// # Errors
/// The system provides no thread.
fn start_task_read(
    file: &KernelFile,
    new_read: &Arc<BlockingRead>,
    waker: &Waker,
) -> Poll<io::Result<bool>> {
    // Stores the waker before the read can end.
    new_read.poll(waker);
    match file.readahead.start_blocking_read(Arc::clone(new_read)) {
        Ok(()) => Poll::Pending,
        Err(error) => Poll::Ready(Err(future_thread_error(&error))),
    }
}

/// Progress of a task's read after a waiter thread has read a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinishedRead {
    /// The buffer is full.
    Whole,
    /// The buffer has the bytes before offset `end` of the file.
    Piece { end: u64 },
    /// The pages were evicted again or could not be read. The kernel page cache is then bypassed,
    /// which reports the error.
    Missing,
}

/// Moves the bytes of an ended `blocking_read` into `buffer`, whose first byte has the offset
/// `offset`. The read may be a later piece of the buffer. Never waits for the device.
///
/// # Errors
/// The file system does not support `RWF_NOWAIT`, and the read has failed or had no memory.
fn finish_blocking_read(
    buffered_file: &BufferedFile,
    blocking_read: &BlockingRead,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<FinishedRead> {
    if let Some(copy) = blocking_read.take_copy() {
        let piece_start = (blocking_read.offset - offset) as usize;
        let piece_end = piece_start + copy.len();
        buffer[piece_start..piece_end].copy_from_slice(&copy);
        let end = offset + piece_end as u64;
        let is_whole = piece_end == buffer.len();
        return Ok(if is_whole { FinishedRead::Whole } else { FinishedRead::Piece { end } });
    }
    // Without `RWF_NOWAIT` another read may wait in this call, so the error is final. `ENOMEM` is
    // the thread's, which had no memory for the content.
    if buffered_file.is_nowait_unsupported() {
        return Err(blocking_read.error().map_or(io::ErrorKind::OutOfMemory.into(), |error| {
            ReadError::from_machine(error).into()
        }));
    }
    // The read was too large to keep its bytes, or it failed. The waiting thread has brought the
    // pages into the kernel page cache, as far as it got.
    let bytes = buffer.len() as u64;
    if buffered_file.read_resident(offset, bytes, &mut [IoSliceMut::new(buffer)]) {
        return Ok(FinishedRead::Whole);
    }
    // A failed read counts as an eviction too: the cause is not known here. Later reads that wait
    // then go without kernel readahead.
    buffered_file.record_eviction();
    Ok(FinishedRead::Missing)
}

#[cfg(test)]
mod tests {
    use readpath_core::unit::PageRange;

    use crate::page_cache::kernel::counted_pages;
    use crate::page_cache::kernel::residency_sampling::ReadMethod;
    use crate::page_cache::kernel_reads::submitted_reads::SubmittedResidency;
    use crate::path::ReadPath;

    /// Pages are advised below a backward reader. Submitted reads of the bytes that it has just
    /// read find them resident, and earn no trust while the advised pages wait for their reader.
    #[test]
    fn resident_submitted_read_is_no_sample_while_advised_pages_wait() {
        const BYTES: usize = 16 << 10;
        const FILE_BYTES: usize = 4 << 20;
        // Next to the test program: the build directory is on a disk.
        let name = format!("readpath-sample-{}", std::process::id());
        let scratch_path = std::env::current_exe().unwrap().with_file_name(name);
        std::fs::write(&scratch_path, vec![7; FILE_BYTES]).unwrap();
        let written_file = std::fs::File::open(&scratch_path).unwrap();
        written_file.sync_all().unwrap();
        rustix::fs::fadvise(&written_file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if counted_pages(&written_file, PageRange::new(0, 1)).is_none() {
            std::fs::remove_file(&scratch_path).unwrap();
            return println!("skipped: the kernel counts no resident pages (cachestat, Linux 6.5)");
        }
        let path = ReadPath::builder().build().unwrap();
        let file = path.open(&scratch_path).unwrap();
        std::fs::remove_file(&scratch_path).unwrap();
        let handle = file.handle();
        let Some(kernel_file) = handle.file.pages.kernel_file() else {
            return println!("skipped: the kernel does not cache the pages");
        };
        let mut offset = FILE_BYTES;
        while !kernel_file.readahead.is_prefetching() && offset >= BYTES {
            offset -= BYTES;
            file.read_exact_at(&mut [0; BYTES], offset as u64).unwrap();
        }
        if !kernel_file.readahead.is_prefetching() {
            return println!("skipped: no page was advised");
        }
        for _ in 0..3 {
            let residency = handle.submit_to_kernel(offset as u64, BYTES as u64);
            assert_eq!(residency, Some(SubmittedResidency::Resident));
        }
        assert!(kernel_file.readahead.is_prefetching());
        let is_prefetching = false;
        let reads = handle.read_counters.kernel_reads();
        assert_eq!(reads.async_sampler().next_read(is_prefetching), ReadMethod::Sampling);
    }
}

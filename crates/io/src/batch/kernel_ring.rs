//! Reads through the kernel page cache in an io_uring of one batch.
//!
//! The kernel queues such a read on the page that it waits for and completes it without a thread.
//! One system call submits the reads of a batch and sleeps for the first that ends. An *answer* is
//! the kernel's result of a read: a number of bytes, or a negative `errno`.
//!
//! Waiting threads took processor time from the program. Example: 2,048 reads of 64 KiB at depth
//! 32, on two processors and a device of 1 ms. For 135 of 341 ms up to three requests were in
//! flight.

use std::collections::BTreeMap;
use std::fs::File as StdFile;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use readpath_core::request::Op;

use crate::backend::uring::UringBackend;
use crate::backend::{Backend, KernelAnswer, Sleep, Transfer};
use crate::os::aligned_bytes::AlignedBytes;
use crate::os::process::ProcessNumber;
use crate::os::thread::spawn;

/// Largest number of reads in the ring. Further reads wait for room; their device requests are
/// already under way. The limits here are chosen, not measured.
const READS_MAX: usize = 64;
/// Largest number of bytes of the reads in the ring, which bounds the memory of their buffers. A
/// single read may have more.
const BYTES_MAX: u64 = 16 << 20;

/// Ring with its reads.
pub(super) struct KernelRing {
    /// The io_uring itself.
    backend: UringBackend,
    /// Reads in the ring, by token.
    reads: BTreeMap<u64, RingRead>,
    /// Bytes of these reads.
    bytes_in_ring: u64,
    /// Answers that were not taken yet.
    answers: Vec<KernelAnswer>,
    /// Token of the next read. Tokens are not reused.
    next_token: u64,
    /// Process that may use the ring.
    process: ProcessNumber,
}

/// Memory and open file of a read. Both stay until the kernel has answered.
struct RingRead {
    /// Destination of the bytes.
    buffer: AlignedBytes,
    /// Keeps the descriptor open, by which the kernel reads.
    _file: Arc<StdFile>,
}

/// A read that has left the ring.
pub(super) struct RingAnswer {
    /// Token that `queue_read` has returned for the read.
    pub(super) token: u64,
    /// Memory of the read. Its content is complete if `has_all_bytes` is true.
    pub(super) buffer: AlignedBytes,
    /// True if all bytes were read.
    pub(super) has_all_bytes: bool,
}

impl KernelRing {
    /// Creates a ring; `None` if the kernel provides none.
    pub(super) fn new() -> Option<KernelRing> {
        Some(KernelRing {
            // A batch may move to another thread, and `end_ring` drops the ring on a new one.
            backend: UringBackend::for_any_thread(READS_MAX as u32).ok()?,
            reads: BTreeMap::new(),
            bytes_in_ring: 0,
            answers: Vec::new(),
            next_token: 0,
            process: ProcessNumber::current(),
        })
    }

    /// True if no read is in the ring.
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// True if a read of `bytes` bytes fits into the ring now. An empty ring takes any read.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.reads.is_empty()
            || self.reads.len() < READS_MAX && self.bytes_in_ring.saturating_add(bytes) <= BYTES_MAX
    }

    /// Queues a read from `offset` on that fills `buffer`, and returns its token. The ring must
    /// [have room](KernelRing::has_room) for it. [`wait`](KernelRing::wait) submits it to the
    /// kernel.
    pub(super) fn queue_read(
        &mut self,
        file: Arc<StdFile>,
        offset: u64,
        mut buffer: AlignedBytes,
    ) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let segment = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let transfer = Transfer {
            token,
            fd: file.as_raw_fd(),
            op: Op::Read,
            offset,
            segments: &[segment],
            is_direct: false,
        };
        // SAFETY: the memory lies on the heap. Memory and open file stay in `reads` until the
        // answer. A single segment is copied into the queue.
        unsafe { self.backend.queue(transfer) };
        self.bytes_in_ring += buffer.len() as u64;
        self.reads.insert(token, RingRead { buffer, _file: file });
        token
    }

    /// Removes and returns a read that has ended, without a system call. Returns `None` if none has
    /// ended.
    pub(super) fn take_answer(&mut self) -> Option<RingAnswer> {
        if self.answers.is_empty() && !self.reads.is_empty() {
            // The error needs no handling: a failed ring answers its unsubmitted reads with it. A
            // ring without an eventfd queues nothing here.
            let _ = self.backend.collect(&mut self.answers);
        }
        let KernelAnswer { token, raw } = self.answers.pop()?;
        let RingRead { buffer, .. } =
            self.reads.remove(&token).expect("the ring answers each queued read once");
        self.bytes_in_ring -= buffer.len() as u64;
        // An error is negative, and fewer bytes are the end of the file or an early stop.
        let has_all_bytes = usize::try_from(raw) == Ok(buffer.len());
        Some(RingAnswer { token, buffer, has_all_bytes })
    }

    /// Submits the queued reads and sleeps until one ends, at most for `sleep`: not at all, for a
    /// duration, or without a limit. A signal may end the sleep earlier. Answers are kept for
    /// [`take_answer`](KernelRing::take_answer). After a failure of the ring, its unsubmitted reads
    /// end with that error.
    pub(super) fn wait(&mut self, sleep: Sleep) {
        let _ = self.backend.exchange(sleep, &mut self.answers);
    }
}

/// Ends a ring of abandoned reads. Its memory must stay until all of them are answered, which may
/// take long. A new thread therefore waits for them. In a forked child the ring's memory leaks
/// instead.
pub(super) fn end_ring(ring: KernelRing) {
    if !ring.process.is_current() {
        // The parent's reads write to its own memory, and only the parent can wait for them.
        std::mem::forget(ring);
    } else if !ring.is_empty() {
        // Without a thread, the ring is dropped and waited for here.
        let _ = spawn("readpath-batch", move || drop(ring));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use super::*;

    /// A ring, or `None` with a note where the kernel provides none.
    fn ring_or_skip() -> Option<KernelRing> {
        let ring = KernelRing::new();
        if ring.is_none() {
            println!("skipped: the kernel provides no io_uring");
        }
        ring
    }

    /// Allocates memory for a read.
    fn new_buffer(bytes: usize) -> AlignedBytes {
        AlignedBytes::allocate(bytes, None)
    }

    /// Waits for a read and takes it.
    fn next_answer(ring: &mut KernelRing) -> RingAnswer {
        loop {
            ring.wait(Sleep::UntilAnswered);
            if let Some(answer) = ring.take_answer() {
                return answer;
            }
        }
    }

    /// Reads of 5 bytes at 2, 8 and 20 of a file of 10 bytes.
    #[test]
    fn read_is_answered_with_its_bytes_or_as_failed() {
        let Some(mut ring) = ring_or_skip() else { return };
        let name = std::env::temp_dir().join(format!("readpath-ring-{}", std::process::id()));
        std::fs::write(&name, b"0123456789").unwrap();
        let file = Arc::new(StdFile::open(&name).unwrap());
        std::fs::remove_file(&name).unwrap();
        let tokens = [(2, 5), (8, 5), (20, 5)]
            .map(|(offset, bytes)| ring.queue_read(Arc::clone(&file), offset, new_buffer(bytes)));
        let mut answers: Vec<RingAnswer> = (0..3).map(|_| next_answer(&mut ring)).collect();
        answers.sort_by_key(|answer| answer.token);
        assert_eq!(answers.iter().map(|answer| answer.token).collect::<Vec<_>>(), tokens);
        // The second read ends after two bytes, the third lies behind the end of the file.
        assert_eq!(
            answers.iter().map(|answer| answer.has_all_bytes).collect::<Vec<_>>(),
            [true, false, false]
        );
        assert_eq!(*answers[0].buffer, *b"23456");
        assert!(ring.is_empty() && ring.take_answer().is_none());
    }

    /// Two reads of 15 MiB in total leave 1 MiB of the 16 MiB, and 62 of the 64 places.
    #[test]
    fn ring_has_room_for_64_reads_and_16_mib_or_one_larger_read() {
        let Some(mut ring) = ring_or_skip() else { return };
        let zeros = Arc::new(StdFile::open("/dev/zero").unwrap());
        assert!(ring.has_room(1 << 30));
        for bytes in [12 << 20, 3 << 20] {
            ring.queue_read(Arc::clone(&zeros), 0, new_buffer(bytes));
        }
        assert!(ring.has_room(1 << 20) && !ring.has_room((1 << 20) + 1));
        for _ in 2..64 {
            assert!(ring.has_room(1));
            ring.queue_read(Arc::clone(&zeros), 0, new_buffer(1));
        }
        assert!(!ring.has_room(1));
        drop(next_answer(&mut ring));
        assert!(ring.has_room(1));
    }

    /// A pipe answers when it is written, which happens after the ring has ended. The kernel then
    /// writes to the memory of the read.
    #[test]
    fn ended_ring_waits_for_its_reads_on_a_thread() {
        let Some(mut ring) = ring_or_skip() else { return };
        let (reader, mut writer) = std::io::pipe().unwrap();
        let unread = reader.try_clone().unwrap();
        ring.queue_read(Arc::new(StdFile::from(OwnedFd::from(reader))), 0, new_buffer(8));
        ring.wait(Sleep::Never);
        end_ring(ring);
        writer.write_all(b"12345678").unwrap();
        let started_at = Instant::now();
        while rustix::io::ioctl_fionread(&unread).unwrap() > 0 {
            assert!(started_at.elapsed() < Duration::from_secs(10), "the read was abandoned");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

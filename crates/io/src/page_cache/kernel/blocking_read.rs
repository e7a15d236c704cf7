//! A read that a waiter thread makes for a task or a batch, and its result. A *waiter thread* is a
//! thread of the path's pool for reads through the kernel page cache.

use std::fs::File as StdFile;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use readpath_core::machine::ReadError;
use rustix::io::{pread, retry_on_intr};

use crate::backend::answer::device_error;
use crate::os::aligned_bytes::AlignedBytes;
use crate::target::Target;

/// Size of one `read` call in bytes, and the largest read whose content is kept for the task. A
/// batch, or a task without `RWF_NOWAIT`, may keep a larger content, which one call then reads.
const COPY_BYTES_MAX: u64 = 64 << 10;

/// Reason for which the locks are never poisoned.
pub(super) const POISON: &str = "no code of others runs under this lock";

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileKey {
    // Both as in stat(2).
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl FileKey {
    /// Returns the key of an open file.
    pub(super) fn from_target(target: &Target) -> FileKey {
        let identity = target.identity();
        FileKey { device: identity.device, inode: identity.inode }
    }
}

/// A read made by a waiter thread.
pub(crate) struct BlockingRead {
    /// Open file for reads through the kernel page cache.
    pub(super) file: Arc<StdFile>,
    /// Identifies the file in the queue of the threads.
    pub(in crate::page_cache) key: FileKey,
    /// First byte to read.
    pub(in crate::page_cache) offset: u64,
    /// Number of bytes to read.
    pub(in crate::page_cache) bytes: u64,
    /// True if the bytes are kept in `copy` for the task.
    copies_bytes: bool,
    /// True once the read has ended.
    has_ended: AtomicBool,
    /// The bytes, if kept and all read.
    copy: Mutex<Option<AlignedBytes>>,
    /// Error of the read, if it has failed.
    error: OnceLock<ReadError>,
    /// Waker of the task that waits for the read.
    waker: Mutex<Option<Waker>>,
}

impl BlockingRead {
    /// Creates a read of `bytes` bytes from `offset` on, not started. Content of at most
    /// [`COPY_BYTES_MAX`] bytes is kept for the task. A larger read only makes the kernel cache the
    /// pages, unless it is changed by [`copying_bytes`](BlockingRead::copying_bytes).
    pub(super) fn new(file: Arc<StdFile>, key: FileKey, offset: u64, bytes: u64) -> BlockingRead {
        let copies_bytes = bytes <= COPY_BYTES_MAX;
        let has_ended = AtomicBool::new(false);
        let (copy, error, waker) = (Mutex::default(), OnceLock::new(), Mutex::default());
        BlockingRead { file, key, offset, bytes, copies_bytes, has_ended, copy, error, waker }
    }

    /// Returns the read changed to keep its content whatever its size.
    pub(in crate::page_cache) fn copying_bytes(self) -> BlockingRead {
        BlockingRead { copies_bytes: true, ..self }
    }

    /// Stores `waker`, which is called at the end of the read. Returns true if the read has ended
    /// already: the waker may then stay uncalled.
    pub(crate) fn poll(&self, waker: &Waker) -> bool {
        // The waker's own code runs without the lock.
        let new_waker = waker.clone();
        let old_waker = self.waker.lock().expect(POISON).replace(new_waker);
        drop(old_waker);
        // Checked after the waker is stored: the thread takes the waker after it has set this flag.
        self.has_ended()
    }

    /// True if the read has ended, successful or not. Its bytes may then be taken.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Takes the bytes, if they were kept and all of them were read.
    pub(in crate::page_cache) fn take_copy(&self) -> Option<AlignedBytes> {
        self.copy.lock().expect(POISON).take()
    }

    /// Returns the error of the ended read: of the device, an earlier end of the file, or `ENOMEM`
    /// if there was no memory. `None` if all bytes were read.
    pub(in crate::page_cache) fn error(&self) -> Option<ReadError> {
        self.error.get().copied()
    }

    /// Makes the read on the calling thread. Keeps the error, or the content if `copies_bytes` is
    /// true. Without memory for a buffer it fails before the first byte.
    /// [`wake_task`](BlockingRead::wake_task) must follow: it marks the read as ended.
    pub(super) fn execute(&self) {
        // Content that is not kept goes through a small buffer.
        let buffer_bytes =
            if self.copies_bytes { self.bytes } else { self.bytes.min(COPY_BYTES_MAX) };
        let Some(mut buffer) = AlignedBytes::try_allocate(buffer_bytes as usize) else {
            let error = device_error(libc::ENOMEM);
            let _ = self.error.set(ReadError::Device { offset: self.offset, error });
            return;
        };
        let end_offset = self.offset + self.bytes;
        let mut offset = self.offset;
        while offset < end_offset {
            let bytes = buffer.len().min((end_offset - offset) as usize);
            if let Err(error) = self.read_part(&mut buffer[..bytes], offset) {
                let _ = self.error.set(error);
                return;
            }
            offset += bytes as u64;
        }
        if self.copies_bytes {
            *self.copy.lock().expect(POISON) = Some(buffer);
        }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The device fails, or the file ends before.
    fn read_part(&self, mut buffer: &mut [u8], mut offset: u64) -> Result<(), ReadError> {
        while !buffer.is_empty() {
            match retry_on_intr(|| pread(&self.file, &mut *buffer, offset)) {
                Ok(0) => return Err(ReadError::Shrunk { offset }),
                Ok(bytes) => {
                    buffer = &mut buffer[bytes..];
                    offset += bytes as u64;
                }
                Err(errno) => {
                    let error = device_error(errno.raw_os_error());
                    return Err(ReadError::Device { offset, error });
                }
            }
        }
        Ok(())
    }

    /// Marks the read as ended and calls the waker, which is foreign code.
    pub(super) fn wake_task(&self) {
        self.has_ended.store(true, Ordering::Release);
        let waker = self.waker.lock().expect(POISON).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use readpath_core::request::DeviceError;

    use super::*;

    /// Offset of the reads in the test file.
    const OFFSET: u64 = 10;

    /// A read of `bytes` bytes from [`OFFSET`] on in a removed file of 100,000 bytes. The byte at
    /// offset n is n modulo 251.
    fn new_read(bytes: u64) -> BlockingRead {
        let name =
            std::env::temp_dir().join(format!("readpath-wish-{}-{bytes}", std::process::id()));
        let content: Vec<u8> = (0..100_000u32).map(|offset| (offset % 251) as u8).collect();
        std::fs::write(&name, content).unwrap();
        let file = Arc::new(StdFile::open(&name).unwrap());
        std::fs::remove_file(&name).unwrap();
        BlockingRead::new(file, FileKey::default(), OFFSET, bytes)
    }

    /// Makes the read on this thread, as a waiter thread does.
    fn execute_and_wake(read: &BlockingRead) {
        read.execute();
        read.wake_task();
    }

    /// Lengths at the limit of 64 KiB, and up to the end of the file.
    #[test]
    fn waiter_passes_a_copy_to_the_task_up_to_64_kib() {
        for (bytes, is_copied) in [(1, true), (65_536, true), (65_537, false), (99_990, false)] {
            for copies_any_size in [false, true] {
                let new_read = new_read(bytes);
                let read = if copies_any_size { new_read.copying_bytes() } else { new_read };
                execute_and_wake(&read);
                assert!(read.poll(Waker::noop()));
                let copy = read.take_copy();
                assert_eq!(copy.is_some(), is_copied || copies_any_size, "{bytes} bytes");
                let is_file_content = |copy: AlignedBytes| {
                    let mut bytes_at = copy.iter().zip(OFFSET..);
                    copy.len() as u64 == bytes
                        && bytes_at.all(|(&byte, offset)| u64::from(byte) == offset % 251)
                };
                assert!(copy.is_none_or(is_file_content));
            }
        }
    }

    /// 4 EiB of memory for the content are not available. The read ends before its first byte.
    #[test]
    fn waiter_without_memory_for_the_content_reports_it() {
        let read = new_read(1 << 62).copying_bytes();
        execute_and_wake(&read);
        assert!(read.poll(Waker::noop()) && read.take_copy().is_none());
        let error = DeviceError::Other(libc::ENOMEM);
        assert_eq!(read.error(), Some(ReadError::Device { offset: OFFSET, error }));
    }

    /// The read fails, because its last byte does not exist.
    #[test]
    fn waiter_passes_no_copy_beyond_the_end_of_file() {
        let file = new_read(99_991).file;
        // Ends one byte beyond the 100,000 bytes of the file.
        let read = BlockingRead::new(file, FileKey::default(), 99_990, 11);
        execute_and_wake(&read);
        assert!(read.poll(Waker::noop()));
        assert!(read.take_copy().is_none());
        assert_eq!(read.error(), Some(ReadError::Shrunk { offset: 100_000 }));
    }
}

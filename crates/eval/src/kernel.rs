//! Kernel baseline: the same reads through the kernel's own path.
//!
//! A measurement needs a comparison with the kernel's result. This module runs the reads and writes
//! of one process as fio's engines do: `pread`, a mapping, or io_uring, with or without `O_DIRECT`,
//! with the advice of the job. Only the kernel's own readahead, cache and scheduler decide.
//!
//! Every engine is driven like the library's own device: `read` or `write` while a slot is free,
//! then `wait`, then `poll`. The synchronous engines have a depth of 1 and
//! work inside `read`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use readpath_core::readahead::Advice;
use readpath_core::request::{Completion, Op, RequestId};
use readpath_core::unit::Time;

use crate::clock::Clock;

mod buffer;
mod bus;
mod calls;
mod mapped;
mod priority;
mod ring;
mod under_way;

use buffer::FixedBuffer;
use calls::Calls;
use mapped::Mapped;
pub use priority::set_thread_priority;
use ring::UringEngine;
use under_way::{EndedKernelTransfer, FileTransfers, TransferEngine};

/// System calls used for reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelEngine {
    /// `pread(2)` and `pwrite(2)`, one at a time.
    Psync,
    /// A shared mapping of the whole file. Each block is copied out of it.
    Mmap,
    /// io_uring with several requests in flight.
    IoUring,
}

impl KernelEngine {
    /// Returns the engine for fio's `ioengine` of that name, or `None` if no engine fits.
    ///
    /// `sync` differs from `psync` only by the file position. Requests of `libaio` run over
    /// io_uring. `raw` is one `pread(2)` or `pwrite(2)` per transfer, split by the kernel. Reports
    /// must print [`name`](KernelEngine::name) as the engine that ran.
    pub fn from_ioengine(name: &str) -> Option<KernelEngine> {
        match name {
            "sync" | "psync" | "raw" => Some(KernelEngine::Psync),
            "mmap" => Some(KernelEngine::Mmap),
            "libaio" | "io_uring" => Some(KernelEngine::IoUring),
            _ => None,
        }
    }

    /// Returns fio's name of the engine.
    pub fn name(self) -> &'static str {
        match self {
            KernelEngine::Psync => "psync",
            KernelEngine::Mmap => "mmap",
            KernelEngine::IoUring => "io_uring",
        }
    }
}

/// Options of the kernel baseline.
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// System calls to use.
    pub engine: KernelEngine,
    /// True to bypass the kernel page cache (`O_DIRECT`). A mapping ignores it, as in fio, and
    /// [`KernelFile::is_direct`] returns false.
    pub is_direct: bool,
    /// Queue depth. The synchronous engines always use 1.
    pub depth: u32,
    /// Maximum size of a read or write in bytes. Buffers of this size are allocated at the start.
    pub bytes_max: u32,
    /// True if the job writes.
    pub is_writable: bool,
    /// True to drop the file's pages from the kernel page cache on open.
    pub invalidates: bool,
    /// Advice passed to `posix_fadvise(2)`.
    pub advice: Advice,
    /// Advice passed to `madvise(2)` for a mapping. Other engines ignore it.
    pub mapping_advice: Advice,
}

/// A file or block device that one process reads through the kernel's own path.
///
/// It belongs to one thread. Order of calls: [`read`](KernelFile::read) or
/// [`write`](KernelFile::write) while a slot is [free](KernelFile::free_slots);
/// [`wait`](KernelFile::wait); [`poll`](KernelFile::poll) until it returns `None`.
pub struct KernelFile {
    /// Transfers in flight. Dropped before the file, because they use it.
    transfers: FileTransfers,
    /// The open file.
    _file: File,
    /// Length of the file at open.
    bytes: u64,
    /// True if the file is open with `O_DIRECT`.
    is_direct: bool,
    /// System calls in use.
    engine: KernelEngine,
    /// Free buffers, one per transfer that can still be started.
    free_buffers: Vec<FixedBuffer>,
    /// Last transfer returned by `poll`. The caller may still borrow its bytes.
    last_polled: Option<EndedKernelTransfer>,
}

impl KernelFile {
    /// Opens the regular file or block device at `path`. Drops its cached pages first if the
    /// options ask for it.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, the kernel refuses the advice, io_uring is not
    /// available, or memory for the buffers is missing.
    pub fn open(
        path: &Path,
        options: KernelOptions,
        clock: Clock,
    ) -> Result<KernelFile, KernelError> {
        let KernelOptions { engine, bytes_max, is_writable, advice, mapping_advice, .. } = options;
        let is_direct = options.is_direct && engine != KernelEngine::Mmap;
        let open_error = |error: io::Error| KernelError::Open {
            path: path.to_path_buf(),
            errno: error.raw_os_error().unwrap_or(0),
            is_direct,
        };
        let flags = if is_direct { libc::O_DIRECT } else { 0 };
        let mut open_options = File::options();
        open_options.read(true).write(is_writable).custom_flags(flags);
        let file = open_options.open(path).map_err(open_error)?;
        let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0));
        let bytes = bytes.map_err(|errno| open_error(errno.into()))?;
        let advice_error =
            |errno: rustix::io::Errno| KernelError::Advice { errno: errno.raw_os_error() };
        let (from_start, to_end) = (0, None);
        // fio drops the cached pages at the start of a job (`invalidate`).
        if options.invalidates {
            let drop_pages = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&file, from_start, to_end, drop_pages).map_err(advice_error)?;
        }
        rustix::fs::fadvise(&file, from_start, to_end, fadvise_advice(advice))
            .map_err(advice_error)?;
        let depth = match engine {
            KernelEngine::Psync | KernelEngine::Mmap => 1,
            KernelEngine::IoUring => options.depth.max(1),
        };
        // One buffer more than the depth, because the caller may still borrow the last completed
        // one.
        let free_buffers = FixedBuffer::allocate(depth + 1, bytes_max)
            .ok_or(KernelError::Memory { bytes: bytes_max, count: depth + 1 })?;
        let errno_of = |error: io::Error| error.raw_os_error().unwrap_or(0);
        let transfer_engine: Box<dyn TransferEngine> = match engine {
            KernelEngine::Psync => Box::new(Calls::new(file.as_raw_fd())),
            KernelEngine::Mmap => {
                let mapped = Mapped::new(&file, bytes, is_writable, mapping_advice);
                Box::new(mapped.map_err(|error| KernelError::Map {
                    path: path.to_path_buf(),
                    errno: errno_of(error),
                })?)
            }
            KernelEngine::IoUring => {
                let ring = UringEngine::new(file.as_raw_fd(), depth);
                Box::new(ring.map_err(|error| KernelError::Ring { errno: errno_of(error) })?)
            }
        };
        let transfers = FileTransfers::over(transfer_engine, depth, clock);
        Ok(KernelFile {
            transfers,
            _file: file,
            bytes,
            is_direct,
            engine,
            free_buffers,
            last_polled: None,
        })
    }

    /// Writes to every buffer once, so that page faults on buffers are not measured as reads.
    pub fn touch_buffers(&mut self) {
        self.free_buffers.iter_mut().for_each(|buffer| buffer.bytes_mut().fill(0));
    }

    /// Keeps time by another clock from now on. No transfer is in flight.
    pub fn set_clock(&mut self, clock: Clock) {
        self.transfers.set_clock(clock);
    }

    /// Returns the engine in use.
    pub fn engine(&self) -> KernelEngine {
        self.engine
    }

    /// Returns the length of the file at open, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns true if reads bypass the kernel page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the current time on the clock of the completions.
    pub fn now(&self) -> Time {
        self.transfers.clock().now()
    }

    /// Returns the number of reads or writes that can be started now: at most the depth without
    /// those in flight. Completions that [`poll`](KernelFile::poll) has not returned yet keep their
    /// buffers, and so may lower it.
    pub fn free_slots(&self) -> u32 {
        self.transfers.free_slots().min(self.free_buffers.len() as u32)
    }

    /// Starts a read of `bytes` bytes at `offset`. An error is reported by the completion, or by
    /// the next [`wait`](KernelFile::wait) if the kernel refuses the submission.
    ///
    /// # Panics
    /// The read is larger than `bytes_max`, or no slot is [free](KernelFile::free_slots).
    pub fn read(&mut self, id: RequestId, offset: u64, bytes: u32) {
        let buffer = self.take_buffer();
        self.start_transfer(id, Op::Read, offset, bytes, buffer);
    }

    /// Starts a write of `bytes` bytes at `offset`. `fill` puts the bytes into the buffer.
    ///
    /// # Panics
    /// The write is larger than `bytes_max`, or no slot is [free](KernelFile::free_slots).
    pub fn write(&mut self, id: RequestId, offset: u64, bytes: u32, fill: impl FnOnce(&mut [u8])) {
        let mut buffer = self.take_buffer();
        fill(&mut buffer.bytes_mut()[..bytes as usize]);
        self.start_transfer(id, Op::Write, offset, bytes, buffer);
    }

    /// Submits the started requests, collects completions for [`poll`](KernelFile::poll), and
    /// sleeps until one has come or `deadline` has passed. It may return early.
    ///
    /// # Errors
    /// The kernel refuses the submission, now or at the start of a request.
    pub fn wait(&mut self, deadline: Option<Time>) -> Result<(), KernelError> {
        let submit_error =
            |error: io::Error| KernelError::Submit { errno: error.raw_os_error().unwrap_or(0) };
        self.transfers.wait(deadline).map_err(submit_error)
    }

    /// Returns the next completion with the bytes of a read, which are valid until the next call. A
    /// write and a failed read have none. [`wait`](KernelFile::wait) has freed its slot, and the
    /// next call frees its buffer. `None` if no collected completion is left; does not wait.
    pub fn poll(&mut self) -> Option<(Completion, &[u8])> {
        if let Some(previous) = self.last_polled.take() {
            self.free_buffers.push(previous.buffer);
        }
        let ended = self.last_polled.insert(self.transfers.next_ended()?);
        let bytes_read = match ended.op {
            Op::Read => ended.bytes,
            Op::Write => 0,
        };
        Some((ended.completion, &ended.buffer.bytes()[..bytes_read]))
    }

    /// Removes a free buffer, for a transfer.
    fn take_buffer(&mut self) -> FixedBuffer {
        self.free_buffers.pop().expect("a slot is free, and so is a buffer")
    }

    /// Starts a transfer of `bytes` bytes at `offset` with a free buffer.
    fn start_transfer(
        &mut self,
        id: RequestId,
        op: Op,
        offset: u64,
        bytes: u32,
        buffer: FixedBuffer,
    ) {
        self.transfers.start(id, op, offset, bytes as usize, buffer);
    }
}

/// Copies bytes out of a mapping of a file. An unreadable page causes an `Err` in place of SIGBUS,
/// with the address of the first byte that could not be read.
///
/// # Safety
/// After an error the rest of `from`, to the end of its last page, is anonymous memory that reads
/// as zeros. The caller must not use it.
///
/// # Panics
/// The lengths differ, or the signal handler cannot be installed.
pub unsafe fn copy_mapped(from: &[u8], to: &mut [u8]) -> Result<(), usize> {
    bus::install().expect("a handler of SIGBUS can be set");
    bus::catch_bus_error(from.as_ptr() as usize, from.len(), || to.copy_from_slice(from))
}

/// Converts the advice for `posix_fadvise(2)`.
pub fn fadvise_advice(advice: Advice) -> rustix::fs::Advice {
    match advice {
        Advice::Normal => rustix::fs::Advice::Normal,
        Advice::Sequential => rustix::fs::Advice::Sequential,
        Advice::Random => rustix::fs::Advice::Random,
        Advice::WillNeed => rustix::fs::Advice::WillNeed,
        Advice::DontNeed => rustix::fs::Advice::DontNeed,
    }
}

/// Error of the kernel baseline. Each `errno` is the kernel's result, errno(3), or 0 for an error
/// that has no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The file cannot be opened.
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Error number.
        errno: i32,
        /// True if the open used `O_DIRECT`.
        is_direct: bool,
    },
    /// io_uring is not available.
    Ring {
        /// Error number.
        errno: i32,
    },
    /// The kernel no longer accepts requests over io_uring.
    Submit {
        /// Error number.
        errno: i32,
    },
    /// The kernel accepts no advice on this file.
    Advice {
        /// Error number.
        errno: i32,
    },
    /// Memory for the buffers is missing.
    Memory {
        /// Size of a buffer in bytes.
        bytes: u32,
        /// Number of buffers.
        count: u32,
    },
    /// The file cannot be mapped.
    Map {
        /// Path of the file.
        path: PathBuf,
        /// Error number.
        errno: i32,
    },
    /// The I/O priority cannot be set.
    Priority {
        /// Error number.
        errno: i32,
    },
}

impl std::fmt::Display for KernelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let errno_text = |errno: i32| io::Error::from_raw_os_error(errno);
        match self {
            KernelError::Open { path, errno: libc::EINVAL, is_direct: true } => write!(
                f,
                "{}: can't be read past the kernel's cache; run the job without direct=1",
                path.display()
            ),
            KernelError::Open { path, errno, .. } => {
                write!(f, "{}: can't be opened: {}", path.display(), errno_text(*errno))
            }
            KernelError::Ring { errno } => {
                write!(
                    f,
                    "the kernel gives no io_uring: {}; use another ioengine",
                    errno_text(*errno)
                )
            }
            KernelError::Submit { errno } => {
                write!(f, "the kernel takes nothing over io_uring any more: {}", errno_text(*errno))
            }
            KernelError::Advice { errno } => {
                write!(f, "posix_fadvise: {}; run the job without advice", errno_text(*errno))
            }
            KernelError::Memory { bytes, count } => write!(
                f,
                "no memory for {count} buffers of {bytes} bytes; use a smaller bs, or less iodepth"
            ),
            KernelError::Map { path, errno } => write!(
                f,
                "{}: can't be mapped: {}; use another ioengine",
                path.display(),
                errno_text(*errno)
            ),
            KernelError::Priority { errno } => write!(
                f,
                "ioprio_set: {}; the class real time (prioclass=1) needs root",
                errno_text(*errno)
            ),
        }
    }
}

impl std::error::Error for KernelError {}

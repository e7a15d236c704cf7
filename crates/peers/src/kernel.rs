//! The peer: the same reads through the kernel's own path.
//!
//! A measurement of ours means something beside what a program gets from the
//! kernel without us. So this runs one process's reads and writes as fio's
//! engines do: `pread`, touching a mapping, io_uring, each with the kernel's
//! cache or past it, with the advice that the job gives. The kernel's own
//! readahead, cache and scheduler decide everything; nothing here helps them.
//!
//! Whatever the engine, it is driven as our own device is: `read` or `write`
//! while fewer than the depth are in flight, `wait`, `poll`. The synchronous
//! engines have a depth of 1 and do the work inside `read`.

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
mod ring;
mod under_way;

use buffer::FixedBuffer;
use calls::Calls;
use mapped::Mapped;
use ring::UringEngine;
use under_way::{EndedKernelTransfer, FileTransfers, TransferEngine};

/// The system calls that a program uses to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelEngine {
    /// `pread(2)` and `pwrite(2)`, one at a time.
    Psync,
    /// A shared mapping of the whole file, copied out of block by block.
    Mmap,
    /// io_uring, many at a time.
    IoUring,
}

impl KernelEngine {
    /// The engine that runs a job whose fio `ioengine` is `name`; `None` if
    /// none of ours does.
    ///
    /// `sync` does the same as `psync` but for the file position that it sets,
    /// `libaio` has its requests carried by io_uring, and `raw` is one `pread(2)`
    /// or `pwrite(2)` for each transfer, which the kernel cuts as it does: report
    /// [`name`](KernelEngine::name) as what ran.
    pub fn of_ioengine(name: &str) -> Option<KernelEngine> {
        match name {
            "sync" | "psync" | "raw" => Some(KernelEngine::Psync),
            "mmap" => Some(KernelEngine::Mmap),
            "libaio" | "io_uring" => Some(KernelEngine::IoUring),
            _ => None,
        }
    }

    /// Its name, as fio calls it.
    pub fn name(self) -> &'static str {
        match self {
            KernelEngine::Psync => "psync",
            KernelEngine::Mmap => "mmap",
            KernelEngine::IoUring => "io_uring",
        }
    }
}

/// How the peer reads.
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// With which system calls.
    pub engine: KernelEngine,
    /// Whether past the kernel's cache (`O_DIRECT`). A mapping can't be: there
    /// it has no effect, as in fio, and [`KernelFile::is_direct`] says so.
    pub is_direct: bool,
    /// How many at once; 1 for the synchronous engines whatever is said here.
    pub depth: u32,
    /// The largest read or write, in bytes; the memory for it is taken at the start.
    pub bytes_max: u32,
    /// Whether there will be writes.
    pub is_writable: bool,
    /// Whether what the kernel has cached of the file is dropped when it is opened.
    pub invalidates: bool,
    /// What the kernel is told of the pattern with `posix_fadvise(2)`.
    pub advice: Advice,
    /// What it is told of a mapping with `madvise(2)`; without effect for the other engines.
    pub mapping_advice: Advice,
}

/// A file or block device that one process reads through the kernel's own path.
///
/// It belongs to one thread. Order of calls: [`read`](KernelFile::read) or
/// [`write`](KernelFile::write) while fewer than the depth are in flight;
/// [`wait`](KernelFile::wait); [`poll`](KernelFile::poll) until it gives nothing.
pub struct KernelFile {
    // Dropped before the file, which its transfers read.
    under_way: FileTransfers,
    _file: File,
    bytes: u64,
    is_direct: bool,
    engine: KernelEngine,
    /// Buffers of no transfer: as many as may still be started.
    spare: Vec<FixedBuffer>,
    /// The last transfer that was given back, whose bytes may still be lent.
    polled: Option<EndedKernelTransfer>,
}

impl KernelFile {
    /// Opens the regular file or block device at `path`, and, unless told otherwise, has the
    /// kernel drop what it has cached of it.
    ///
    /// # Errors
    /// It can't be opened in that way, can't be mapped, the kernel gives no
    /// ring, or there is no memory for the buffers.
    pub fn open(
        path: &Path,
        options: KernelOptions,
        clock: Clock,
    ) -> Result<KernelFile, KernelError> {
        let KernelOptions { engine, bytes_max, is_writable, advice, mapping_advice, .. } = options;
        let is_direct = options.is_direct && engine != KernelEngine::Mmap;
        let unopened = |error: io::Error| KernelError::Open {
            path: path.to_path_buf(),
            errno: error.raw_os_error().unwrap_or(0),
            is_direct,
        };
        let mut open = File::options();
        open.read(true).write(is_writable).custom_flags(if is_direct { libc::O_DIRECT } else { 0 });
        let file = open.open(path).map_err(unopened)?;
        let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0));
        let bytes = bytes.map_err(|errno| unopened(errno.into()))?;
        let refused =
            |errno: rustix::io::Errno| KernelError::Advice { errno: errno.raw_os_error() };
        // As fio does when a job starts (`invalidate`): what is cached goes.
        if options.invalidates {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(refused)?;
        }
        rustix::fs::fadvise(&file, 0, None, on_file(advice)).map_err(refused)?;
        let depth = match engine {
            KernelEngine::Psync | KernelEngine::Mmap => 1,
            KernelEngine::IoUring => options.depth.max(1),
        };
        // One more than are in flight: the last one given back is still lent.
        let spare = FixedBuffer::several(depth + 1, bytes_max)
            .ok_or(KernelError::Memory { bytes: bytes_max, count: depth + 1 })?;
        let errno_of = |error: io::Error| error.raw_os_error().unwrap_or(0);
        let carrier: Box<dyn TransferEngine> = match engine {
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
        let under_way = FileTransfers::over(carrier, depth, clock);
        Ok(KernelFile { under_way, _file: file, bytes, is_direct, engine, spare, polled: None })
    }

    /// Writes to every buffer once, so that no fault on them is measured as the
    /// kernel's read.
    pub fn touch_buffers(&mut self) {
        self.spare.iter_mut().for_each(|buffer| buffer.bytes_mut().fill(0));
    }

    /// Keeps time by another clock from now on. No transfer is in flight.
    pub fn keep_time_by(&mut self, clock: Clock) {
        self.under_way.keep_time_by(clock);
    }

    /// The engine that runs.
    pub fn engine(&self) -> KernelEngine {
        self.engine
    }

    /// Its length when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the kernel's cache is passed by.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The time, on the clock that completions are stamped with.
    pub fn now(&self) -> Time {
        self.under_way.clock().now()
    }

    /// How many more reads or writes can be started now.
    pub fn room(&self) -> u32 {
        self.under_way.room()
    }

    /// Starts a read of `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// It is larger than was said at the start, or there is no room.
    pub fn read(&mut self, id: RequestId, offset: u64, bytes: u32) {
        let buffer = self.take_buffer();
        self.start(id, Op::Read, offset, bytes, buffer);
    }

    /// Starts a write of `bytes` bytes at `offset`, which `fill` puts into the buffer.
    ///
    /// # Panics
    /// It is larger than was said at the start, or there is no room.
    pub fn write(&mut self, id: RequestId, offset: u64, bytes: u32, fill: impl FnOnce(&mut [u8])) {
        let mut buffer = self.take_buffer();
        fill(&mut buffer.bytes_mut()[..bytes as usize]);
        self.start(id, Op::Write, offset, bytes, buffer);
    }

    /// Hands what was started to the kernel, and sleeps until something has
    /// ended or `deadline` has come; may wake up early with nothing.
    ///
    /// # Errors
    /// The kernel refuses the exchange as such.
    pub fn wait(&mut self, deadline: Option<Time>) -> Result<(), KernelError> {
        let exchange =
            |error: io::Error| KernelError::Exchange { errno: error.raw_os_error().unwrap_or(0) };
        self.under_way.wait(deadline).map_err(exchange)
    }

    /// The next completion, and the bytes that a read brought.
    pub fn poll(&mut self) -> Option<(Completion, &[u8])> {
        if let Some(previous) = self.polled.take() {
            self.spare.push(previous.buffer);
        }
        let ended = self.polled.insert(self.under_way.next_ended()?);
        let brought = match ended.op {
            Op::Read => ended.bytes,
            Op::Write => 0,
        };
        Some((ended.completion, &ended.buffer.bytes()[..brought]))
    }

    fn take_buffer(&mut self) -> FixedBuffer {
        self.spare.pop().expect("no more than the depth are in flight")
    }

    fn start(&mut self, id: RequestId, op: Op, offset: u64, bytes: u32, buffer: FixedBuffer) {
        self.under_way.start(id, op, offset, bytes as usize, buffer);
    }
}

/// Copies out of a mapping of a file; `Err` with the address that could not be read, in place of
/// a bus error.
///
/// # Safety
/// After an error the rest of `from`, to the end of its last page, is memory of nobody's that reads as
/// zeros: the caller looks at it no more.
///
/// # Panics
/// The two differ in length, or the system takes no handler.
pub unsafe fn copy_mapped(from: &[u8], to: &mut [u8]) -> Result<(), usize> {
    bus::install().expect("a handler of SIGBUS can be set");
    bus::watch(from.as_ptr() as usize, from.len(), || to.copy_from_slice(from))
}

/// The advice, as `posix_fadvise(2)` takes it.
pub(crate) fn on_file(advice: Advice) -> rustix::fs::Advice {
    match advice {
        Advice::Normal => rustix::fs::Advice::Normal,
        Advice::Sequential => rustix::fs::Advice::Sequential,
        Advice::Random => rustix::fs::Advice::Random,
        Advice::WillNeed => rustix::fs::Advice::WillNeed,
        Advice::DontNeed => rustix::fs::Advice::DontNeed,
    }
}

/// Why the kernel's own path can't be run. Each `errno` is the kernel's answer, as in `errno(3)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The file can't be opened.
    Open {
        /// Which file.
        path: PathBuf,
        /// Why not.
        errno: i32,
        /// Whether past the kernel's cache.
        is_direct: bool,
    },
    /// The kernel gives no ring.
    Ring {
        /// Why not.
        errno: i32,
    },
    /// The kernel takes no requests over the ring any more.
    Exchange {
        /// Why not.
        errno: i32,
    },
    /// The kernel takes no advice on this file.
    Advice {
        /// Why not.
        errno: i32,
    },
    /// There is no memory for the buffers.
    Memory {
        /// The size of one.
        bytes: u32,
        /// How many.
        count: u32,
    },
    /// The file can't be mapped.
    Map {
        /// Which file.
        path: PathBuf,
        /// Why not.
        errno: i32,
    },
}

impl std::fmt::Display for KernelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let told = |errno: i32| io::Error::from_raw_os_error(errno);
        match self {
            KernelError::Open { path, errno: libc::EINVAL, is_direct: true } => write!(
                f,
                "{}: can't be read past the kernel's cache; run the job without direct=1",
                path.display()
            ),
            KernelError::Open { path, errno, .. } => {
                write!(f, "{}: can't be opened: {}", path.display(), told(*errno))
            }
            KernelError::Ring { errno } => {
                write!(f, "the kernel gives no io_uring: {}; use another ioengine", told(*errno))
            }
            KernelError::Exchange { errno } => {
                write!(f, "the kernel takes nothing over io_uring any more: {}", told(*errno))
            }
            KernelError::Advice { errno } => {
                write!(f, "posix_fadvise: {}; run the job without advice", told(*errno))
            }
            KernelError::Memory { bytes, count } => write!(
                f,
                "no memory for {count} buffers of {bytes} bytes; use a smaller bs, or less iodepth"
            ),
            KernelError::Map { path, errno } => write!(
                f,
                "{}: can't be mapped: {}; use another ioengine",
                path.display(),
                told(*errno)
            ),
        }
    }
}

impl std::error::Error for KernelError {}

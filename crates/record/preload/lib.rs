//! Functions that stand before the C library's in a recorded program (`LD_PRELOAD`). Each calls the
//! function that it stands for and reports the read to the recorder.
//!
//! `readpath record` uses this library where the tracepoints of the kernel are not available.
//! Reports go through shared memory (`layout.rs`), into rings of *cells* with space for one report
//! each. A *ticket* is the number of a write to a ring. The *turn* of a cell is the ticket that may
//! write it, or that ticket + 1 once it is written.
//!
//! The library allocates nothing, locks nothing and never waits; `errno` stays as it was. A read of
//! a pipe, a socket or a terminal costs one more system call and is not reported. A read of a file
//! costs none or one, and one more now and then. Without the environment variable all calls go
//! through at once.
//!
//! **The program must behave as it does alone.** These rules keep that true:
//!
//! 1. A process under seccomp is not recorded (`sandbox.rs`): a system call that its filter does
//!    not expect ends it.
//! 2. A call on a signal stack with less than `thread::STACK_ROOM` bytes left is not recorded
//!    (`thread.rs`).
//! 3. The shared memory is allocated before the program starts, and its file is small.
//! 4. No Rust standard library, no lazily allocated thread-local storage, no symbol that is bound
//!    late.
//!
//! Calls that rules 1 and 2 exclude are counted, and the recorder reports their number.
//!
//! **The file of a descriptor** is asked from the kernel and kept for `CACHE_LIFETIME_NS`, as
//! the question costs as much as a small read. Functions of the C library that close or replace a
//! descriptor end that at once.
//!
//! **Reads within the C library** (`fread`, `getline`, `fseek`) are recorded by the functions that
//! cause them (`stdio.rs`). Reads of AIO are recorded when their results are fetched (`aio.rs`).
//!
//! The build script of the command builds this library with `panic=abort`.

#![cfg_attr(panic = "abort", no_std)]
#![allow(non_camel_case_types, reason = "names of the C library")]
#![allow(clippy::missing_safety_doc, reason = "each is the C library's function of its name")]
#![allow(missing_docs, reason = "each is the C library's function of its name")]

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

mod aio;
mod before;
mod c;
mod files;
mod layout;
mod sandbox;
mod stdio;
mod thread;

use c::{off64_t, ssize_t};
use layout::{ADVICE, BYTES, Cells, MAGIC, REQUESTS_SHIFT, RecordRing, VARIABLE};

/// The shared memory; null while the program is not recorded.
static RING: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Counter of forks, incremented in each child. A thread compares it with its own copy, to see if
/// its numbers are still valid.
static GENERATION: AtomicU32 = AtomicU32::new(1);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = map_shared_memory;

/// Maps the shared memory when the library is loaded, if the environment names its file.
///
/// A filter may be in force already. The system calls up to the result of `sandbox::is_inherited`
/// are the same as the dynamic linker's own: `openat`, `read`, `close`, `mmap`.
extern "C" fn map_shared_memory() {
    // SAFETY: the C library is there before the libraries that it loads; names are terminated.
    unsafe {
        let path = c::getenv(VARIABLE.as_ptr());
        if path.is_null() {
            return;
        }
        before::find_all_functions();
        stdio::find_library();
        let descriptor = c::open(path, c::O_RDWR | c::O_CLOEXEC);
        if descriptor < 0 {
            return;
        }
        let mut magic = 0u64;
        let read_bytes = c::read(descriptor, (&raw mut magic).cast(), size_of::<u64>());
        let mut address = null_mut();
        if read_bytes == size_of::<u64>() as ssize_t && magic == MAGIC {
            let (protection, flags) = (c::PROT_READ_WRITE, c::MAP_SHARED);
            address = c::mmap64(null_mut(), BYTES as usize, protection, flags, descriptor, 0);
        }
        c::close(descriptor);
        // -1: the mapping failed.
        if address.is_null() || address as isize == -1 {
            return;
        }
        let ring = RecordRing::new(address.cast());
        ring.head().programs.fetch_add(1, Ordering::Relaxed);
        if sandbox::is_inherited(ring.head().filters.load(Ordering::Relaxed)) {
            sandbox::end_recording(Some(ring));
        } else {
            c::pthread_atfork(None, None, Some(on_fork_in_child));
        }
        // Last: from now on all threads find the memory. In a sandbox their calls are only counted.
        RING.store(address.cast(), Ordering::Release);
    }
}

/// Makes threads of a new child query their numbers again.
extern "C" fn on_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns the shared memory, or `None` while the program is not recorded.
fn ring() -> Option<RecordRing> {
    let address = RING.load(Ordering::Acquire);
    // SAFETY: the file was mapped as a whole, and is never unmapped.
    (!address.is_null()).then(|| unsafe { RecordRing::new(address) })
}

/// Returns true if the current call may be recorded. A call whose recording could harm the program
/// is counted in `unrecorded` instead.
#[inline(always)]
fn is_recorded() -> bool {
    let Some(ring) = ring() else { return false };
    let is_harmless = !sandbox::is_entered() && thread::has_stack();
    if !is_harmless {
        ring.head().unrecorded.fetch_add(1, Ordering::Relaxed);
    }
    is_harmless
}

/// Returns true if another thread entered a sandbox during the current call. The call then counts
/// as unrecorded.
fn has_entered_sandbox(ring: RecordRing) -> bool {
    let is_entered = sandbox::is_entered();
    if is_entered {
        ring.head().unrecorded.fetch_add(1, Ordering::Relaxed);
    }
    is_entered
}

/// Draws a ticket for a free cell of a ring: one whose turn is the ticket. Returns `None` and
/// counts a lost read when the ring is full.
fn take_ticket(ring: RecordRing, cells: Cells) -> Option<u64> {
    let (head, order) = (ring.head(), Ordering::Relaxed);
    let next = head.tickets.get(cells as usize)?;
    let mut ticket = next.load(order);
    loop {
        let turn = ring.turn(cells, ticket).load(Ordering::Acquire);
        // The recorder has not yet taken the cell's last report.
        if turn < ticket {
            head.lost.fetch_add(1, order);
            return None;
        }
        if turn > ticket {
            // Another writer has drawn it in the meantime.
            ticket = next.load(order);
            continue;
        }
        match next.compare_exchange_weak(ticket, ticket + 1, order, order) {
            Ok(_) => return Some(ticket),
            Err(drawn) => ticket = drawn,
        }
    }
}

/// Releases the written cell of a ticket to the recorder, which waits for the turn `ticket + 1`.
fn publish(ring: RecordRing, cells: Cells, ticket: u64) {
    ring.turn(cells, ticket).store(ticket + 1, Ordering::Release);
}

/// Returns the time of the monotonic clock in nanoseconds.
fn now_ns() -> u64 {
    let mut time = c::timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the function writes to its argument alone.
    unsafe { c::clock_gettime(c::CLOCK_MONOTONIC, &raw mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

/// Returns the error number of this thread.
fn errno() -> c_int {
    // SAFETY: address of this thread's own error number.
    unsafe { *c::__errno_location() }
}

/// Sets the error number of this thread.
fn set_errno(number: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *c::__errno_location() = number };
}

/// Method numbers of reads, as in the documentation of [`ADVICE`].
mod method {
    pub const READ: u64 = 0;
    pub const PREAD: u64 = 1;
    pub const READV: u64 = 2;
    pub const PREADV: u64 = 3;
    pub const COPY: u64 = 4;
    pub const AIO: u64 = 5;
}

/// Minimum duration in nanoseconds of a call whose requests are counted. A call that sends one to a
/// device takes longer, and a call that copies a page from memory takes about 1 µs.
const COUNTED_NS_MIN: u64 = 4_000;

/// A call that is recorded.
struct RecordedCall {
    /// Method number of a read or of advice.
    method: u64,
    /// Descriptor of the file that is read.
    descriptor: c_int,
    /// Source of the offset of the first byte.
    position: ReadPosition,
    /// Requested bytes, or `None` for a vector and for a copy. The library must not read the vector:
    /// a wrong address is an error of the call, and would end the program here. The number of bytes
    /// read replaces it.
    requested_bytes: Option<usize>,
}

/// File offset of a call.
#[derive(Clone, Copy)]
enum ReadPosition {
    /// This offset.
    At(u64),
    /// The position of the descriptor, which the call moves.
    Current,
    /// The number at this address, which the call changes. It is read after the kernel has accepted
    /// the address.
    AtAddress(*const off64_t),
    /// No file: the call is of memory at this address.
    InMemory(u64),
}

impl RecordedCall {
    /// Calls the C library's function (`real`), records the call with its times, and returns the
    /// result. The error number stays as the function left it. Failed advice is not recorded. The
    /// caller has asked `is_recorded`.
    #[inline(always)]
    fn call_and_record(self, real: impl FnOnce() -> ssize_t) -> ssize_t {
        let Some(ring) = ring() else { return real() };
        let begin_ns = now_ns();
        let result = real();
        if has_entered_sandbox(ring) {
            return result;
        }
        let (end_ns, error_number) = (now_ns(), errno());
        if self.method >= ADVICE && result != 0 {
            // The result is an error's number, or -1: the kernel ignored the advice.
            return result;
        }
        let value = if result < 0 { -(error_number as i64) } else { result as i64 };
        self.record(ring, begin_ns, end_ns, value);
        set_errno(error_number);
        result
    }

    /// Writes the call into a slot of the ring. `result`: bytes read, or the negative number of an
    /// error. A call at an unknown offset, on a descriptor without positions, or of a file too
    /// short to be reported is left out. With a full ring it counts as lost.
    #[inline(never)]
    fn record(&self, ring: RecordRing, begin_ns: u64, end_ns: u64, result: i64) {
        let file = match self.position {
            // Memory has no file: both numbers are 0.
            ReadPosition::InMemory(_) => Some((0, 0)),
            _ => files::device_and_inode(ring, self.descriptor, end_ns),
        };
        let Some((device, inode)) = file else { return };
        let read_bytes = result.max(0) as u64;
        // Advice is not counted. A read of AIO is recorded at its result, and an earlier call has
        // sent its requests.
        let is_counted = self.method < method::AIO && end_ns - begin_ns >= COUNTED_NS_MIN;
        let requests = if is_counted { thread::new_requests() } else { 0 };
        let offset = match self.position {
            ReadPosition::At(offset) | ReadPosition::InMemory(offset) => offset,
            ReadPosition::Current => {
                // SAFETY: the call changes nothing.
                let position = unsafe { c::lseek64(self.descriptor, 0, c::SEEK_CUR) };
                if position < 0 {
                    return;
                }
                // The call has moved the position by the bytes read. Another thread that moves it
                // meanwhile makes the offset wrong.
                (position as u64).saturating_sub(read_bytes)
            }
            // After an error the address itself may be wrong.
            ReadPosition::AtAddress(_) if result < 0 => return,
            ReadPosition::AtAddress(address) => {
                // SAFETY: the kernel has read this number, and written it.
                let position = unsafe { *address };
                (position as u64).saturating_sub(read_bytes)
            }
        };
        let Some(ticket) = take_ticket(ring, Cells::Slots) else { return };
        let slot = ring.slot(ticket);
        let set = |field: &AtomicU64, value: u64| field.store(value, Ordering::Relaxed);
        set(&slot.begin_ns, begin_ns);
        set(&slot.end_ns, end_ns);
        set(&slot.task, thread::task());
        // The parts of the word are described at `method_and_descriptor` in `layout.rs`.
        let requests_and_method = requests << REQUESTS_SHIFT | self.method << 32;
        set(&slot.method_and_descriptor, requests_and_method | self.descriptor as u32 as u64);
        set(&slot.device, device);
        set(&slot.inode, inode);
        set(&slot.offset, offset);
        set(&slot.requested_bytes, self.requested_bytes.map_or(read_bytes, |bytes| bytes as u64));
        set(&slot.result, result as u64);
        publish(ring, Cells::Slots, ticket);
    }
}

/// Ends the program after a fault of the library, since unwinding needs the standard library.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: the function never returns.
    unsafe { c::abort() }
}

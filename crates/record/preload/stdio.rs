//! Streams of the C library (`stdio`), whose reads are no calls that a library could stand before.
//!
//! A function that finds enough bytes in the stream's buffer makes no read, and passes at once. The
//! buffer is known from the first fields of the C library's `FILE`, which programs compiled against
//! it use as well (`getc_unlocked` is a macro), so their places are fixed. Another thread may
//! change them meanwhile. The values only choose the recorded reads.
//!
//! A read through several fills of the buffer is recorded as one. Formatted input (`fscanf`) and
//! wide characters are not recorded.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::c::{self, ssize_t};
use crate::layout::RecordRing;
use crate::{
    ReadPosition, RecordedCall, errno, has_entered_sandbox, method, now_ns, ring, set_errno,
};

/// Number of bytes, chosen: most lines are shorter. With at least this many in the buffer, a
/// function that reads a line passes at once, and a fill within it is not recorded. A larger number
/// would read the clock at more lines.
const LINE_BYTES: usize = 512;

/// Flag of a stream whose current buffer holds characters of `ungetc`.
const IS_PUSHED_BACK: c_int = 0x100;

/// Start of the C library's `FILE` on machines with 64 bits.
#[repr(C)]
struct Stream {
    flags: c_int,
    read_next: usize,
    read_end: usize,
    read_begin: usize,
    _write: [usize; 3],
    _buffer: [usize; 2],
    saved_begin: usize,
    _backup: usize,
    saved_end: usize,
    _chain: [usize; 2],
    _descriptor: [c_int; 2],
    _old_offset: i64,
    _column: [u8; 8],
    _lock: usize,
    /// Position of the descriptor; negative while it is unknown.
    offset: i64,
}

/// True if the C library is the one whose `FILE` is known.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Finds out whether the C library's `FILE` is known, for all later calls.
pub fn find_library() {
    // SAFETY: the name is terminated.
    let version = unsafe { c::dlsym(c::RTLD_NEXT, c"gnu_get_libc_version".as_ptr()) };
    let is_known = cfg!(target_pointer_width = "64") && !version.is_null();
    IS_KNOWN.store(is_known, Ordering::Relaxed);
}

/// Buffer of a stream.
#[derive(Clone, Copy)]
struct Buffer {
    /// Bytes that were read from the file and not yet taken.
    available: usize,
    /// Bytes of the last fill.
    filled: usize,
    /// Position of the descriptor; negative while it is unknown.
    offset: i64,
}

/// Returns the number of bytes in the current buffer of a stream.
///
/// # Safety
/// The stream is one of the C library whose `FILE` is known.
#[inline(always)]
unsafe fn current_bytes(stream: *const Stream) -> usize {
    // SAFETY: the C library's function is about to read the same fields, or has read them. Volatile
    // reads never assume that another thread leaves them alone.
    unsafe {
        let end = (&raw const (*stream).read_end).read_volatile();
        end.saturating_sub((&raw const (*stream).read_next).read_volatile())
    }
}

/// Returns the buffer of a stream. `None` for a null stream, and for a C library whose `FILE` is
/// not known.
#[inline(never)]
fn buffer_of(stream: *mut c_void) -> Option<Buffer> {
    if stream.is_null() || !IS_KNOWN.load(Ordering::Relaxed) {
        return None;
    }
    let stream: *const Stream = stream.cast();
    // SAFETY: as in `current_bytes`.
    unsafe {
        let end = (&raw const (*stream).read_end).read_volatile();
        let begin = (&raw const (*stream).read_begin).read_volatile();
        let mut available = current_bytes(stream);
        // Behind pushed-back characters, the bytes of the file wait in the saved buffer.
        if (&raw const (*stream).flags).read_volatile() & IS_PUSHED_BACK != 0 {
            let saved_end = (&raw const (*stream).saved_end).read_volatile();
            let saved_begin = (&raw const (*stream).saved_begin).read_volatile();
            available += saved_end.saturating_sub(saved_begin);
        }
        let offset = (&raw const (*stream).offset).read_volatile();
        Some(Buffer { available, filled: end.saturating_sub(begin), offset })
    }
}

/// Returns true if the current buffer of a stream has fewer than `bytes` bytes, false if the C
/// library's `FILE` is not known. Functions that take single bytes ask this each time.
#[inline(always)]
pub fn lacks(stream: *mut c_void, bytes: usize) -> bool {
    if !IS_KNOWN.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: the C library's function does not accept null either.
    unsafe { current_bytes(stream.cast()) < bytes }
}

/// Returns true if the buffer of a stream may end within the next line.
#[inline(always)]
pub fn lacks_line(stream: *mut c_void) -> bool {
    lacks(stream, LINE_BYTES)
}

/// Returns the length of the text that `fgets` returned, 0 for null.
pub fn text_length(text: ssize_t) -> usize {
    // SAFETY: the C library has written this text and its end.
    if text == 0 { 0 } else { unsafe { c::strlen(text as *const c_char) } }
}

/// Returns the length of the line that `getline` returned, 0 for an error.
pub fn line_length(length: ssize_t) -> usize {
    length.max(0) as usize
}

/// Returns the position of a descriptor, or `None` for a descriptor without positions.
fn position_of(descriptor: c_int) -> Option<u64> {
    // SAFETY: the call changes nothing.
    u64::try_from(unsafe { c::lseek64(descriptor, 0, c::SEEK_CUR) }).ok()
}

/// Returns the descriptor of a stream.
fn descriptor_of(stream: *mut c_void) -> c_int {
    // SAFETY: a stream, as its user claims by this call.
    unsafe { c::fileno(stream) }
}

/// Records a read of a stream from `offset` on. `bytes`: number of bytes that were read from the
/// file. It counts as the requested number too (`None`).
fn record_read(
    ring: RecordRing,
    descriptor: c_int,
    offset: u64,
    bytes: u64,
    (begin_ns, end_ns): (u64, u64),
) {
    let position = ReadPosition::At(offset);
    let call = RecordedCall { method: method::READ, descriptor, position, requested_bytes: None };
    call.record(ring, begin_ns, end_ns, bytes as i64);
}

/// Calls a function (`real`) that must fill the buffer, and returns its result. A forward movement
/// of the descriptor's position is recorded as one read. Streams without a position have no record.
#[inline(always)]
pub fn refill(stream: *mut c_void, real: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some(ring) = ring() else { return real() };
    let error_number = errno();
    let descriptor = descriptor_of(stream);
    let position_before = position_of(descriptor);
    set_errno(error_number);
    let Some(position_before) = position_before else { return real() };
    let begin_ns = now_ns();
    let result = real();
    if has_entered_sandbox(ring) {
        return result;
    }
    let (end_ns, error_number) = (now_ns(), errno());
    let position_after = position_of(descriptor);
    if let Some(bytes) = position_after
        .and_then(|position_after| position_after.checked_sub(position_before))
        .filter(|&bytes| bytes > 0)
    {
        record_read(ring, descriptor, position_before, bytes, (begin_ns, end_ns));
    }
    set_errno(error_number);
    result
}

/// Calls a function (`real`) that reads a line, and returns its result. Bytes that entered the
/// buffer are recorded as one read. `line_length_of` returns the line's length from the result.
#[inline(always)]
pub fn read_line(
    stream: *mut c_void,
    line_length_of: fn(ssize_t) -> usize,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let (Some(ring), Some(before)) = (ring(), buffer_of(stream)) else { return real() };
    let begin_ns = now_ns();
    let result = real();
    if has_entered_sandbox(ring) {
        return result;
    }
    let Some(after) = buffer_of(stream) else { return result };
    // All bytes that were in the buffer or entered it: the line and the rest.
    let taken_and_left = line_length_of(result) + after.available;
    if let Some(bytes) = taken_and_left.checked_sub(before.available).filter(|&bytes| bytes > 0) {
        let (end_ns, error_number) = (now_ns(), errno());
        let descriptor = descriptor_of(stream);
        // The last fill ended at the position of the descriptor.
        let offset = position_of(descriptor).and_then(|end| end.checked_sub(bytes as u64));
        if let Some(offset) = offset {
            record_read(ring, descriptor, offset, bytes as u64, (begin_ns, end_ns));
        }
        set_errno(error_number);
    }
    result
}

/// Calls a function (`real`) that moves the position of a stream, and returns its result. The C
/// library reads the bytes from the last multiple of the buffer's size to the new position, and
/// with them the rest of the buffer. These bytes are recorded as one read.
#[inline(always)]
pub fn seek(stream: *mut c_void, real: impl FnOnce() -> ssize_t) -> ssize_t {
    let (Some(ring), Some(before)) = (ring(), buffer_of(stream)) else { return real() };
    let begin_ns = now_ns();
    let result = real();
    let Some(after) = buffer_of(stream) else { return result };
    // A new position within the buffer leaves the position of the descriptor as it was.
    let has_read = after.filled > 0 && after.offset != before.offset;
    if result == 0 && has_read && !has_entered_sandbox(ring) {
        let (end_ns, error_number) = (now_ns(), errno());
        let (bytes, descriptor) = (after.filled as u64, descriptor_of(stream));
        if let Some(offset) =
            u64::try_from(after.offset).ok().and_then(|end| end.checked_sub(bytes))
        {
            record_read(ring, descriptor, offset, bytes, (begin_ns, end_ns));
        }
        set_errno(error_number);
    }
    result
}

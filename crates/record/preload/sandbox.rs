//! Sandboxes: processes under seccomp, in which the library makes no system call.
//!
//! Strict mode allows `read`, `write` and `_exit`, and a filter allows the calls that its author
//! expected. Any other call ends the program, or fails in an unexpected way. Strict mode also
//! forbids the instruction that reads the clock, as `PR_SET_TSC` does. Recording stops when the
//! process requests seccomp through `prctl(2)` or `syscall(2)` of the C library, which libseccomp
//! uses. A bare system call instruction is not detected.

use core::ffi::{c_int, c_long};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::c;
use crate::layout::RecordRing;
use crate::ring;

/// True once this process is in a sandbox or about to enter one.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Returns true if this process is in a sandbox, or is about to enter one.
pub fn is_entered() -> bool {
    ENTERED.load(Ordering::Acquire)
}

/// Ends the recording of this process, and counts the process as sandboxed once.
pub fn end_recording(ring: Option<RecordRing>) {
    if !ENTERED.swap(true, Ordering::AcqRel)
        && let Some(ring) = ring
    {
        ring.head().sandboxed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes a call that enters a sandbox if `is_entering`, and returns its result. The recording ends
/// before the call. After a failed call it continues.
#[inline(always)]
pub fn call_and_enter(is_entering: bool, real: impl FnOnce() -> isize) -> isize {
    if !is_entering || is_entered() {
        return real();
    }
    end_recording(ring());
    let result = real();
    if result < 0 {
        ENTERED.store(false, Ordering::Release);
        if let Some(ring) = ring() {
            ring.head().sandboxed.fetch_sub(1, Ordering::Relaxed);
        }
    }
    result
}

/// Returns true if `prctl(2)` with these arguments enters a sandbox.
pub fn enters_by_prctl(option: c_int, value: c_long) -> bool {
    option == c::PR_SET_SECCOMP || (option == c::PR_SET_TSC && value == c::PR_TSC_SIGSEGV)
}

/// Returns true if `syscall(2)` with these arguments enters a sandbox. Operations of `seccomp(2)`
/// from 2 on are queries.
pub fn enters_by_syscall(number: c_long, first: c_long, second: c_long) -> bool {
    let is_prctl_entry = number == c::number::PRCTL && enters_by_prctl(first as c_int, second);
    is_prctl_entry || (number == c::number::SECCOMP && matches!(first, 0 | 1))
}

/// Text of `/proc/self/status`: less than 2 KiB in Linux 6.18.
static STATUS: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// Returns true if the program runs under more filters than the recorder: a sandboxed program has
/// started it. Also true if the program may not read the clock. An unreadable status counts as a
/// sandbox. Called before the program has threads.
pub fn is_inherited(recorder_filters: u64) -> bool {
    // SAFETY: the name is terminated.
    let file = unsafe { c::open(c"/proc/self/status".as_ptr(), c::O_RDONLY | c::O_CLOEXEC) };
    if file < 0 {
        return true;
    }
    let status_bytes = size_of_val(&STATUS);
    // SAFETY: the memory is as long as stated, and atomics may be written through a shared pointer.
    let length = unsafe {
        let length = c::read(file, STATUS.as_ptr().cast_mut().cast(), status_bytes);
        c::close(file);
        length
    };
    if length <= 0 {
        return true;
    }
    // SAFETY: the kernel has written these bytes, and no thread changes them.
    let text =
        unsafe { core::slice::from_raw_parts(STATUS.as_ptr().cast::<u8>(), length as usize) };
    let has_filter = match number_after(text, b"\nSeccomp_filters:") {
        Some(own_filters) => own_filters > recorder_filters,
        // Linux before 5.9 counts no filters. 0: the process has none.
        None => number_after(text, b"\nSeccomp:") != Some(0),
    };
    // The second query is a system call that a further filter might not expect.
    has_filter || has_no_clock()
}

/// Returns true if reading the clock without a system call ends the program. Architectures without
/// this option refuse the query.
fn has_no_clock() -> bool {
    let mut value: c_int = 0;
    // SAFETY: the call writes to its argument alone.
    let result = unsafe { c::prctl(c::PR_GET_TSC, &raw mut value) };
    result == 0 && c_long::from(value) == c::PR_TSC_SIGSEGV
}

/// Returns the decimal number after the first occurrence of `name`. `None` without that name or
/// without a digit.
fn number_after(text: &[u8], name: &[u8]) -> Option<u64> {
    let digits_offset = text.windows(name.len()).position(|part| part == name)? + name.len();
    let digits = text.get(digits_offset..)?.iter().skip_while(|byte| byte.is_ascii_whitespace());
    let mut value = None;
    for digit in digits.take_while(|byte| byte.is_ascii_digit()) {
        value = Some(value.unwrap_or(0_u64).wrapping_mul(10).wrapping_add(u64::from(digit - b'0')));
    }
    value
}

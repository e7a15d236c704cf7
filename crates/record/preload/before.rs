//! Functions that are called in place of the C library's.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::c::{self, iovec, off64_t, ssize_t};
use crate::files::call_and_forget;
use crate::layout::{ADVICE, MEMORY_ADVICE};
use crate::{
    ReadPosition, RecordedCall, aio, is_recorded, method, sandbox, set_errno, stdio, thread,
};

/// Addresses of the C library's functions. Null before the search.
static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; NAMES.len()];

/// Finds all functions. A later search could happen in a signal handler, and needs a large stack
/// and locks.
pub fn find_all_functions() {
    NAMES.iter().zip(&NEXT).for_each(|(name, cache)| _ = find_function(name, cache));
}

/// Finds the C library's function. Needed for a call before `find_all_functions`, and in a program
/// that is not recorded.
#[inline(never)]
fn find_function(name: &CStr, cache: &AtomicPtr<c_void>) -> *mut c_void {
    // SAFETY: the name is terminated.
    let address = unsafe { c::dlsym(c::RTLD_NEXT, name.as_ptr()) };
    cache.store(address, Ordering::Relaxed);
    address
}

/// Converts a name that ends with a zero byte to a C string.
const fn terminated(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => unreachable!(),
    }
}

/// Defines the functions by name and arguments. In the expression, `real` is a closure that calls
/// the C library's function. A call goes through at once where the condition after `if` is false.
macro_rules! before {
    ($(
        fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $(, if $condition:expr)?
            => |$real:ident| $recorded:expr;
    )*) => {
        /// Index of each function in `NEXT`. Reads and advice come first, the others from `close`
        /// on.
        enum Function { $($name),* }

        const NAMES: &[&CStr] = &[$(terminated(concat!(stringify!($name), "\0"))),*];

        $(
        // SAFETY: arguments and result are equal to the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            const INDEX: usize = Function::$name as usize;
            type Real = unsafe extern "C" fn($($type),*) -> $result;

            /// Returns the C library's function of this name.
            ///
            /// # Safety
            /// `address` is its address.
            #[inline(always)]
            unsafe fn function_at(address: *mut c_void) -> Real {
                // SAFETY: the C library's function of this name has these arguments.
                unsafe { core::mem::transmute::<*mut c_void, Real>(address) }
            }

            /// Makes a call that may be recorded. Not inlined: other calls save its stack frame.
            #[inline(never)]
            unsafe extern "C" fn call_recorded($($argument: $type),*) -> $result {
                let mut address = NEXT[INDEX].load(Ordering::Relaxed);
                if address.is_null() {
                    address = find_function(NAMES[INDEX], &NEXT[INDEX]);
                }
                if address.is_null() {
                    // An older C library without this function.
                    set_errno(c::ENOSYS);
                    return -1_isize as $result;
                }
                // SAFETY: as in `call_unless_passed`.
                let $real = || unsafe { function_at(address)($($argument),*) } as ssize_t;
                $recorded as $result
            }

            /// Makes a call that was not passed at once. Reads and advice that are not recorded
            /// (`is_recorded`) go directly to the C library's function, once it is known.
            #[inline(never)]
            unsafe extern "C" fn call_unless_passed($($argument: $type),*) -> $result {
                let address = NEXT[INDEX].load(Ordering::Relaxed);
                if INDEX < Function::close as usize && !address.is_null() && !is_recorded() {
                    // SAFETY: the function's address, and the arguments of the original call.
                    return unsafe { function_at(address)($($argument),*) };
                }
                // SAFETY: the arguments of the original call.
                unsafe { call_recorded($($argument),*) }
            }

            #[allow(unused_mut, unused_assignments, reason = "most functions have no condition")]
            let mut is_passed = false;
            $(is_passed = !$condition;)?
            let address = NEXT[INDEX].load(Ordering::Relaxed);
            if is_passed && !address.is_null() {
                // SAFETY: as in `call_unless_passed`.
                return unsafe { function_at(address)($($argument),*) };
            }
            // SAFETY: the arguments of the original call.
            unsafe { call_unless_passed($($argument),*) }
        }
        )*
    };
}

/// Calls `sigaltstack(2)` (`real`), and records the thread's new stack if the call succeeds.
#[inline(always)]
fn call_sigaltstack(stack: *const c::stack, real: impl FnOnce() -> ssize_t) -> ssize_t {
    let result = real();
    if result == 0 {
        thread::record_signal_stack(stack);
    }
    result
}

/// Calls `syscall(2)` (`real`), and handles the calls of AIO, of sandboxes and of signal stacks.
/// All other calls only go through. The tuple has the first four arguments of the call `number`.
#[inline(always)]
fn call_syscall(
    number: c_long,
    (first, second, third, fourth): (c_long, c_long, c_long, c_long),
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match number {
        c::number::SIGALTSTACK => call_sigaltstack(first as *const c::stack, real),
        c::number::IO_SUBMIT if is_recorded() => {
            aio::submit_requests(second, third as *mut *mut c_void, real)
        }
        c::number::IO_GETEVENTS | c::number::IO_PGETEVENTS if is_recorded() => {
            aio::fetch_results(fourth as *const aio::Event, real)
        }
        _ => sandbox::call_and_enter(sandbox::enters_by_syscall(number, first, second), real),
    }
}

/// Describes a call by its method number (see `layout::ADVICE`), descriptor, offset and requested
/// bytes (`None`: a vector or a copy).
#[inline(always)]
fn recorded_call(
    method: u64,
    descriptor: c_int,
    position: ReadPosition,
    requested_bytes: Option<usize>,
) -> RecordedCall {
    RecordedCall { method, descriptor, position, requested_bytes }
}

/// Describes a call that requests bytes at an offset.
fn read_at(
    method: u64,
    descriptor: c_int,
    offset: off64_t,
    requested_bytes: usize,
) -> RecordedCall {
    recorded_call(method, descriptor, ReadPosition::At(offset as u64), Some(requested_bytes))
}

/// Describes a call that requests bytes at the position of the descriptor.
fn read_at_position(method: u64, descriptor: c_int, requested_bytes: usize) -> RecordedCall {
    recorded_call(method, descriptor, ReadPosition::Current, Some(requested_bytes))
}

/// Describes a vectored read at an offset. Offset -1 of `preadv2` means the position of the
/// descriptor.
fn vectored_read(descriptor: c_int, offset: off64_t) -> RecordedCall {
    let position =
        if offset == -1 { ReadPosition::Current } else { ReadPosition::At(offset as u64) };
    recorded_call(method::PREADV, descriptor, position, None)
}

/// Describes a copy within the kernel, from the offset at an address. A null address means the
/// position of the descriptor. The requested bytes are unknown: programs pass the largest possible
/// number for the rest of a file.
fn copy_call(descriptor: c_int, offset: *const off64_t) -> RecordedCall {
    let position =
        if offset.is_null() { ReadPosition::Current } else { ReadPosition::AtAddress(offset) };
    recorded_call(method::COPY, descriptor, position, None)
}

/// Number of the advice `WILLNEED` of `posix_fadvise(2)`.
const WILL_NEED: u64 = 3;

/// Describes advice on a range. `advice_number`: the argument of `posix_fadvise(2)`. A negative
/// value becomes 0: the call fails with it, and failed advice is not recorded.
fn advice_call(
    descriptor: c_int,
    offset: off64_t,
    bytes: off64_t,
    advice_number: c_int,
) -> RecordedCall {
    read_at(ADVICE + advice_number.max(0) as u64, descriptor, offset, bytes.max(0) as usize)
}

/// Calls `readahead(2)`, and records it as the advice `WILLNEED`. A call for no bytes is not
/// recorded: it reads nothing, while advice of no bytes extends to the end of the file.
fn call_readahead(
    descriptor: c_int,
    offset: off64_t,
    bytes: usize,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    match bytes {
        0 => real(),
        _ => read_at(ADVICE + WILL_NEED, descriptor, offset, bytes).call_and_record(real),
    }
}

/// Number of the advice `POPULATE_READ` of `madvise(2)`.
const POPULATE_READ: c_int = 22;

/// Returns true for advice on reads of memory. Allocators often advise that memory is free, and
/// this advice is neither recorded nor counted.
fn is_read_advice(advice: c_int) -> bool {
    // 0 to 3: normal, random, sequential, and `WILL_NEED`.
    matches!(advice, 0..=3 | POPULATE_READ)
}

/// Calls `madvise(2)`, and records advice on reads. Other advice gets here only while the C
/// library's function is unknown.
fn call_madvise(
    address: *mut c_void,
    bytes: usize,
    advice: c_int,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !is_read_advice(advice) {
        return real();
    }
    let position = ReadPosition::InMemory(address as u64);
    recorded_call(MEMORY_ADVICE + advice as u64, -1, position, Some(bytes)).call_and_record(real)
}

before! {
    fn read(fd: c_int, to: *mut c_void, bytes: usize) -> ssize_t
        => |real| read_at_position(method::READ, fd, bytes).call_and_record(real);
    fn __read_chk(fd: c_int, to: *mut c_void, bytes: usize, room: usize) -> ssize_t
        => |real| read_at_position(method::READ, fd, bytes).call_and_record(real);
    fn pread(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t) -> ssize_t
        => |real| read_at(method::PREAD, fd, offset, bytes).call_and_record(real);
    fn pread64(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t) -> ssize_t
        => |real| read_at(method::PREAD, fd, offset, bytes).call_and_record(real);
    fn __pread_chk(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t, room: usize) -> ssize_t
        => |real| read_at(method::PREAD, fd, offset, bytes).call_and_record(real);
    fn __pread64_chk(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t, room: usize) -> ssize_t
        => |real| read_at(method::PREAD, fd, offset, bytes).call_and_record(real);
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t
        => |real| recorded_call(method::READV, fd, ReadPosition::Current, None)
            .call_and_record(real);
    fn preadv(fd: c_int, list: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        => |real| vectored_read(fd, offset).call_and_record(real);
    fn preadv64(fd: c_int, list: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        => |real| vectored_read(fd, offset).call_and_record(real);
    fn preadv2(fd: c_int, list: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t
        => |real| vectored_read(fd, offset).call_and_record(real);
    fn preadv64v2(fd: c_int, list: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t
        => |real| vectored_read(fd, offset).call_and_record(real);
    fn sendfile(to: c_int, fd: c_int, offset: *mut off64_t, bytes: usize) -> ssize_t
        => |real| copy_call(fd, offset).call_and_record(real);
    fn sendfile64(to: c_int, fd: c_int, offset: *mut off64_t, bytes: usize) -> ssize_t
        => |real| copy_call(fd, offset).call_and_record(real);
    fn copy_file_range(fd: c_int, offset: *mut off64_t, to: c_int, at: *mut off64_t, bytes: usize, flags: c_uint)
        -> ssize_t => |real| copy_call(fd, offset).call_and_record(real);
    fn splice(fd: c_int, offset: *mut off64_t, to: c_int, at: *mut off64_t, bytes: usize, flags: c_uint)
        -> ssize_t => |real| copy_call(fd, offset).call_and_record(real);
    fn posix_fadvise(fd: c_int, offset: off64_t, bytes: off64_t, advice: c_int) -> c_int
        => |real| advice_call(fd, offset, bytes, advice).call_and_record(real);
    fn posix_fadvise64(fd: c_int, offset: off64_t, bytes: off64_t, advice: c_int) -> c_int
        => |real| advice_call(fd, offset, bytes, advice).call_and_record(real);
    fn readahead(fd: c_int, offset: off64_t, bytes: usize) -> ssize_t
        => |real| call_readahead(fd, offset, bytes, real);
    fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int, if is_read_advice(advice)
        => |real| call_madvise(address, bytes, advice, real);
    fn posix_madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int,
        if is_read_advice(advice) => |real| call_madvise(address, bytes, advice, real);
    fn fread(to: *mut c_void, bytes: usize, count: usize, stream: *mut c_void) -> usize,
        if stdio::lacks(stream, bytes.wrapping_mul(count)) => |real| stdio::refill(stream, real);
    fn fread_unlocked(to: *mut c_void, bytes: usize, count: usize, stream: *mut c_void) -> usize,
        if stdio::lacks(stream, bytes.wrapping_mul(count)) => |real| stdio::refill(stream, real);
    fn __fread_chk(to: *mut c_void, room: usize, bytes: usize, count: usize, stream: *mut c_void) -> usize,
        if stdio::lacks(stream, bytes.wrapping_mul(count)) => |real| stdio::refill(stream, real);
    fn __fread_unlocked_chk(to: *mut c_void, room: usize, bytes: usize, count: usize, stream: *mut c_void)
        -> usize, if stdio::lacks(stream, bytes.wrapping_mul(count)) => |real| stdio::refill(stream, real);
    fn fgetc(stream: *mut c_void) -> c_int, if stdio::lacks(stream, 1)
        => |real| stdio::refill(stream, real);
    fn getc(stream: *mut c_void) -> c_int, if stdio::lacks(stream, 1)
        => |real| stdio::refill(stream, real);
    fn _IO_getc(stream: *mut c_void) -> c_int, if stdio::lacks(stream, 1)
        => |real| stdio::refill(stream, real);
    fn fgetc_unlocked(stream: *mut c_void) -> c_int, if stdio::lacks(stream, 1)
        => |real| stdio::refill(stream, real);
    fn getc_unlocked(stream: *mut c_void) -> c_int, if stdio::lacks(stream, 1)
        => |real| stdio::refill(stream, real);
    fn __uflow(stream: *mut c_void) -> c_int, if stdio::lacks(stream, 1)
        => |real| stdio::refill(stream, real);
    fn fgets(to: *mut c_char, bytes: c_int, stream: *mut c_void) -> *mut c_char,
        if stdio::lacks_line(stream) => |real| stdio::read_line(stream, stdio::text_length, real);
    fn fgets_unlocked(to: *mut c_char, bytes: c_int, stream: *mut c_void) -> *mut c_char,
        if stdio::lacks_line(stream) => |real| stdio::read_line(stream, stdio::text_length, real);
    fn __fgets_chk(to: *mut c_char, room: usize, bytes: c_int, stream: *mut c_void) -> *mut c_char,
        if stdio::lacks_line(stream) => |real| stdio::read_line(stream, stdio::text_length, real);
    fn __fgets_unlocked_chk(to: *mut c_char, room: usize, bytes: c_int, stream: *mut c_void) -> *mut c_char,
        if stdio::lacks_line(stream) => |real| stdio::read_line(stream, stdio::text_length, real);
    fn getline(line: *mut *mut c_char, room: *mut usize, stream: *mut c_void) -> ssize_t,
        if stdio::lacks_line(stream) => |real| stdio::read_line(stream, stdio::line_length, real);
    fn getdelim(line: *mut *mut c_char, room: *mut usize, end: c_int, stream: *mut c_void) -> ssize_t,
        if stdio::lacks_line(stream) => |real| stdio::read_line(stream, stdio::line_length, real);
    fn __getdelim(line: *mut *mut c_char, room: *mut usize, end: c_int, stream: *mut c_void) -> ssize_t,
        if stdio::lacks_line(stream) => |real| stdio::read_line(stream, stdio::line_length, real);
    fn fseek(stream: *mut c_void, offset: c_long, whence: c_int) -> c_int
        => |real| stdio::seek(stream, real);
    fn fseeko(stream: *mut c_void, offset: off64_t, whence: c_int) -> c_int
        => |real| stdio::seek(stream, real);
    fn fseeko64(stream: *mut c_void, offset: off64_t, whence: c_int) -> c_int
        => |real| stdio::seek(stream, real);
    fn fsetpos(stream: *mut c_void, position: *const c_void) -> c_int
        => |real| stdio::seek(stream, real);
    fn fsetpos64(stream: *mut c_void, position: *const c_void) -> c_int
        => |real| stdio::seek(stream, real);
    fn io_submit(context: *mut c_void, count: c_long, requests: *mut *mut c_void) -> c_int
        => |real| aio::submit_requests(count, requests, real);
    fn io_getevents(context: *mut c_void, least: c_long, most: c_long, events: *mut aio::Event, timeout: *mut c_void)
        -> c_int => |real| aio::fetch_results(events, real);
    fn io_pgetevents(context: *mut c_void, least: c_long, most: c_long, events: *mut aio::Event,
        timeout: *mut c_void, signals: *mut c_void) -> c_int
        => |real| aio::fetch_results(events, real);
    fn aio_read(request: *mut c_void) -> c_int => |real| aio::count_helper_reads(1, real);
    fn aio_read64(request: *mut c_void) -> c_int => |real| aio::count_helper_reads(1, real);
    fn lio_listio(mode: c_int, list: *const *const aio::ListedRequest, count: c_int, event: *mut c_void)
        -> c_int => |real| aio::count_listed_reads(list, count, real);
    fn lio_listio64(mode: c_int, list: *const *const aio::ListedRequest, count: c_int, event: *mut c_void)
        -> c_int => |real| aio::count_listed_reads(list, count, real);
    fn close(fd: c_int) -> c_int => |real| call_and_forget(Some(fd), real);
    fn dup2(from: c_int, to: c_int) -> c_int => |real| call_and_forget(Some(to), real);
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int => |real| call_and_forget(Some(to), real);
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int
        => |real| call_and_forget(None, real);
    fn fclose(stream: *mut c_void) -> c_int => |real| call_and_forget(None, real);
    fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int
        => |real| sandbox::call_and_enter(sandbox::enters_by_prctl(option, a), real);
    fn sigaltstack(stack: *const c::stack, old: *mut c::stack) -> c_int
        => |real| call_sigaltstack(stack, real);
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long
        => |real| call_syscall(number, (a, b, c, d), real);
}

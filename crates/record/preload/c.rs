//! Functions and numbers of the C library and of the kernel.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

pub type off64_t = i64;
pub type ssize_t = isize;

/// `struct iovec`, which the library never reads.
pub enum iovec {}

#[repr(C)]
pub struct timespec {
    pub seconds: c_long,
    pub nanoseconds: c_long,
}

/// `struct iovec` with addresses in another process, for `process_vm_readv(2)`.
#[repr(C)]
pub struct memory_piece {
    pub begin: *const c_void,
    pub bytes: usize,
}

/// `stack_t` of `sigaltstack(2)`.
#[repr(C)]
pub struct stack {
    pub begin: *mut c_void,
    pub flags: c_int,
    pub bytes: usize,
}

/// `struct rusage`.
#[repr(C)]
pub struct resource_usage {
    /// Processor times, memory and page faults.
    pub _first: [c_long; 11],
    /// Blocks of 512 bytes read from devices.
    pub read_blocks: c_long,
    pub _rest: [c_long; 6],
}

/// Start of the kernel's `struct statx`, padded to its 256 bytes.
#[repr(C)]
pub struct statx_buffer {
    pub mask: u32,
    pub block_bytes: u32,
    pub attributes: u64,
    pub links: u32,
    pub user: u32,
    pub group: u32,
    pub mode: u16,
    pub _spare: u16,
    pub inode: u64,
    pub bytes: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub times: [u64; 8],
    pub special_major: u32,
    pub special_minor: u32,
    pub major: u32,
    pub minor: u32,
    pub _rest: [u64; 14],
}

// SAFETY: functions of the C library, with the arguments and results of its manual.
#[link(name = "c")]
unsafe extern "C" {
    pub fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn getenv(name: *const c_char) -> *const c_char;
    pub fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    pub fn read(descriptor: c_int, to: *mut c_void, bytes: usize) -> ssize_t;
    pub fn close(descriptor: c_int) -> c_int;
    pub fn fcntl(descriptor: c_int, what: c_int, ...) -> c_int;
    pub fn lseek64(descriptor: c_int, offset: off64_t, whence: c_int) -> off64_t;
    pub fn mmap64(
        at: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: off64_t,
    ) -> *mut c_void;
    pub fn statx(
        descriptor: c_int,
        path: *const c_char,
        flags: c_int,
        mask: c_uint,
        buffer: *mut statx_buffer,
    ) -> c_int;
    pub fn readlink(path: *const c_char, buffer: *mut c_char, bytes: usize) -> ssize_t;
    pub fn clock_gettime(clock: c_int, time: *mut timespec) -> c_int;
    pub fn process_vm_readv(
        process: c_int,
        local: *const memory_piece,
        local_count: c_long,
        remote: *const memory_piece,
        remote_count: c_long,
        flags: c_long,
    ) -> ssize_t;
    pub fn fileno(stream: *mut c_void) -> c_int;
    pub fn strlen(text: *const c_char) -> usize;
    pub fn prctl(option: c_int, ...) -> c_int;
    pub fn getrusage(whose: c_int, usage: *mut resource_usage) -> c_int;
    pub fn getpid() -> c_int;
    pub fn gettid() -> c_int;
    pub fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    pub fn __errno_location() -> *mut c_int;
    #[cfg(panic = "abort")]
    pub fn abort() -> !;
}

// These numbers are equal on all machines of Linux.
pub const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
pub const O_RDONLY: c_int = 0;
pub const O_RDWR: c_int = 2;
pub const O_CLOEXEC: c_int = 0o2_000_000;
pub const PROT_READ_WRITE: c_int = 3;
pub const MAP_SHARED: c_int = 1;
pub const SEEK_CUR: c_int = 1;
/// The calling thread, for `getrusage(2)`.
pub const RUSAGE_THREAD: c_int = 1;
pub const CLOCK_MONOTONIC: c_int = 1;
pub const AT_EMPTY_PATH: c_int = 0x1000;
/// Requested fields: type, inode, size.
pub const STATX_MASK: c_uint = 0x1 | 0x100 | 0x200;
pub const F_GETFL: c_int = 3;
pub const ENOSYS: c_int = 38;
pub const TYPE_MASK: u16 = 0o170_000;
pub const TYPE_FILE: u16 = 0o100_000;
pub const TYPE_BLOCK: u16 = 0o060_000;
/// Flag of a disabled signal stack.
pub const SS_DISABLE: c_int = 2;
// Options of `prctl(2)`, and a value.
pub const PR_SET_SECCOMP: c_int = 22;
pub const PR_GET_TSC: c_int = 25;
pub const PR_SET_TSC: c_int = 26;
pub const PR_TSC_SIGSEGV: c_long = 2;

/// Numbers of system calls that a program may make by `syscall(2)`.
#[cfg(target_arch = "x86_64")]
pub mod number {
    use core::ffi::c_long;

    pub const PRCTL: c_long = 157;
    pub const SECCOMP: c_long = 317;
    pub const SIGALTSTACK: c_long = 131;
    pub const IO_GETEVENTS: c_long = 208;
    pub const IO_SUBMIT: c_long = 209;
    pub const IO_PGETEVENTS: c_long = 333;
}

/// Numbers of system calls on all newer architectures.
#[cfg(not(target_arch = "x86_64"))]
pub mod number {
    use core::ffi::c_long;

    pub const PRCTL: c_long = 167;
    pub const SECCOMP: c_long = 277;
    pub const SIGALTSTACK: c_long = 132;
    pub const IO_GETEVENTS: c_long = 4;
    pub const IO_SUBMIT: c_long = 2;
    pub const IO_PGETEVENTS: c_long = 292;
}

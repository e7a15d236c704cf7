//! Functions that stand before the C library's in a watched program (`LD_PRELOAD`): each calls the one
//! it stands for, and tells the watcher of what it read.
//!
//! `readpath watch` does so where it may not have the kernel tell. What is told goes into memory that both share
//! (`layout.rs`); nothing is allocated, locked or waited for, and `errno` stays as it was. A read of what has
//! no places (a pipe, a socket, a terminal) costs one more system call and is not told; that of a file none or one, and one more now
//! and then. With the variable unset all calls go through at once.
//!
//! **Which file a descriptor is of** the kernel is asked, and is believed for `BELIEVED_NS`: to ask costs as much as a
//! small read. Whoever closes a descriptor or puts another in its place by a function of the C library ends that at once.
//!
//! The library is built into the command (its build script), and by nobody else.

#![allow(non_camel_case_types, reason = "the C library's own names")]
#![allow(clippy::missing_safety_doc, reason = "each is the C library's function of its name")]
#![allow(missing_docs, reason = "each is the C library's function of its name")]

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

mod layout;

use layout::{ADVICE, BYTES, MAGIC, PATH_BYTES_MAX, RecordRing, RingSlot, VARIABLE};

type off64_t = i64;
type ssize_t = isize;

/// `struct iovec`, at which nobody here looks.
pub enum iovec {}

#[repr(C)]
struct timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

/// The beginning of the kernel's `struct statx`, and room for the rest: 256 bytes.
#[repr(C)]
struct statx_buffer {
    mask: u32,
    block_bytes: u32,
    attributes: u64,
    links: u32,
    user: u32,
    group: u32,
    mode: u16,
    _spare: u16,
    inode: u64,
    bytes: u64,
    blocks: u64,
    attributes_mask: u64,
    times: [u64; 8],
    special_major: u32,
    special_minor: u32,
    major: u32,
    minor: u32,
    _rest: [u64; 14],
}

// SAFETY: these are the C library's functions, with their arguments and results as its manual has them.
unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn fcntl(descriptor: c_int, what: c_int, ...) -> c_int;
    fn lseek64(descriptor: c_int, offset: off64_t, whence: c_int) -> off64_t;
    fn mmap64(
        at: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: off64_t,
    ) -> *mut c_void;
    fn statx(
        descriptor: c_int,
        path: *const c_char,
        flags: c_int,
        mask: c_uint,
        buffer: *mut statx_buffer,
    ) -> c_int;
    fn readlink(path: *const c_char, buffer: *mut c_char, bytes: usize) -> ssize_t;
    fn clock_gettime(clock: c_int, time: *mut timespec) -> c_int;
    fn getpid() -> c_int;
    fn gettid() -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn __errno_location() -> *mut c_int;
}

// The same on all of Linux's machines.
const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
const O_RDWR: c_int = 2;
const O_CLOEXEC: c_int = 0o2_000_000;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const SEEK_CUR: c_int = 1;
const CLOCK_MONOTONIC: c_int = 1;
const AT_EMPTY_PATH: c_int = 0x1000;
/// Type, inode, size.
const STATX_ASKED: c_uint = 0x1 | 0x100 | 0x200;
const F_GETFL: c_int = 3;
const ENOSYS: c_int = 38;
const TYPE_MASK: u16 = 0o170_000;
const TYPE_FILE: u16 = 0o100_000;
const TYPE_BLOCK: u16 = 0o060_000;

/// The shared memory; null while nobody watches.
static RING: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Grows in each child that `fork` makes.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Of the descriptors and files whose names were told, their hashes; another one in its place is told again.
static TOLD: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

/// For how long a descriptor is believed to be of the file that it was of. What closes a descriptor unseen (the C library for
/// itself, a bare system call) and opens another file in its place within that has its next reads told of the old one.
const BELIEVED_NS: u64 = 200_000;

/// What the first descriptors are of.
static BELIEVED: [Believed; 1024] = [const { Believed::nothing() }; 1024];

struct Believed {
    until_ns: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Believed {
    const fn nothing() -> Believed {
        Believed {
            until_ns: AtomicU64::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }
}

/// A descriptor is of another file from now on, or, `None`, any may be.
fn forget(descriptor: Option<c_int>) {
    let forget = |one: &Believed| one.until_ns.store(0, Ordering::Release);
    match descriptor {
        Some(descriptor) => _ = BELIEVED.get(descriptor as usize).map(forget),
        None => BELIEVED.iter().for_each(forget),
    }
}

/// Makes a call that closes a descriptor, or, `None`, perhaps any.
fn closing(descriptor: Option<c_int>, real: impl FnOnce() -> ssize_t) -> ssize_t {
    forget(descriptor);
    real()
}

thread_local! {
    /// The task's numbers, and in which generation they were asked for.
    static TASK: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    // SAFETY: the C library is there before anything that it loads; names are terminated.
    unsafe {
        let path = getenv(VARIABLE.as_ptr());
        if path.is_null() {
            return;
        }
        let descriptor = open(path, O_RDWR | O_CLOEXEC);
        if descriptor < 0 {
            return;
        }
        let mut about: statx_buffer = core::mem::zeroed();
        let asked = statx(descriptor, c"".as_ptr(), AT_EMPTY_PATH, STATX_ASKED, &raw mut about);
        let mut address = null_mut();
        if asked == 0 && about.bytes == BYTES {
            address =
                mmap64(null_mut(), BYTES as usize, PROT_READ_WRITE, MAP_SHARED, descriptor, 0);
        }
        close(descriptor);
        if address.is_null() || address as isize == -1 {
            return;
        }
        let ring = RecordRing::new(address.cast());
        if ring.head().magic.load(Ordering::Acquire) == MAGIC {
            pthread_atfork(None, None, Some(forked));
            ring.head().programs.fetch_add(1, Ordering::Relaxed);
            RING.store(address.cast(), Ordering::Release);
        }
    }
}

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

fn ring() -> Option<RecordRing> {
    let address = RING.load(Ordering::Acquire);
    // SAFETY: it was mapped as a whole, and is never unmapped.
    (!address.is_null()).then(|| unsafe { RecordRing::new(address) })
}

/// Draws a ticket for a slot that is free; `None` where there is none.
fn draw(ring: &RecordRing) -> Option<(u64, &RingSlot)> {
    let head = ring.head();
    let mut ticket = head.ticket.load(Ordering::Relaxed);
    loop {
        let slot = ring.slot(ticket);
        let turn = slot.turn.load(Ordering::Acquire);
        if turn < ticket {
            head.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if turn > ticket {
            // Others have drawn it meanwhile.
            ticket = head.ticket.load(Ordering::Relaxed);
            continue;
        }
        let (weak, next) = (Ordering::Relaxed, ticket + 1);
        match head.ticket.compare_exchange_weak(ticket, next, weak, weak) {
            Ok(_) => return Some((ticket, slot)),
            Err(now) => ticket = now,
        }
    }
}

fn now_ns() -> u64 {
    let mut time = timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: it writes to what it is given.
    unsafe { clock_gettime(CLOCK_MONOTONIC, &raw mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

fn task() -> u64 {
    let generation = GENERATION.load(Ordering::Relaxed);
    let (task, of) = TASK.get();
    if of == generation {
        return task;
    }
    // SAFETY: they only answer.
    let task = unsafe { (getpid() as u64) << 32 | gettid() as u64 };
    TASK.set((task, generation));
    task
}

/// A call that is told.
struct RecordedCall {
    way: u64,
    descriptor: c_int,
    from: ReadPosition,
    /// How many bytes it asks for; `None` for a list of pieces, which only the kernel may look at: a wrong address is an
    /// error for it, and would end the program here. Then what it gave stands for it.
    asked: Option<usize>,
}

/// From which byte a call reads.
enum ReadPosition {
    /// From this.
    At(u64),
    /// From where the descriptor stands, which the call moves.
    Here,
    /// From where this says, which the call moves; it is looked at once the kernel has found it well.
    Told(*const off64_t),
}

impl RecordedCall {
    /// Makes the call, and tells of it.
    fn make(self, real: impl FnOnce() -> ssize_t) -> ssize_t {
        let Some(ring) = ring() else { return real() };
        let begin_ns = now_ns();
        let result = real();
        let end_ns = now_ns();
        // SAFETY: the place of this thread's own error number.
        let errno = unsafe { *__errno_location() };
        self.tell(ring, (begin_ns, end_ns), result, errno);
        // SAFETY: as above.
        unsafe { *__errno_location() = errno };
        result
    }

    fn tell(
        &self,
        ring: RecordRing,
        (begin_ns, end_ns): (u64, u64),
        result: ssize_t,
        errno: c_int,
    ) {
        if self.way >= ADVICE && result != 0 {
            // It answers with an error's number, and the kernel took no notice.
            return;
        }
        let moved = result.max(0) as u64;
        let offset = match self.from {
            ReadPosition::At(offset) => offset,
            ReadPosition::Here => {
                // SAFETY: it only answers.
                let stands = unsafe { lseek64(self.descriptor, 0, SEEK_CUR) };
                if stands < 0 {
                    return;
                }
                (stands as u64).saturating_sub(moved)
            }
            ReadPosition::Told(_) if result < 0 => return,
            // SAFETY: the kernel has read it, and written to it.
            ReadPosition::Told(place) => (unsafe { *place } as u64).saturating_sub(moved),
        };
        let Some((device, inode)) = file_of(ring, self.descriptor, end_ns) else { return };
        let Some((ticket, slot)) = draw(&ring) else { return };
        let result = if result < 0 { -i64::from(errno) } else { result as i64 };
        let set = |place: &AtomicU64, value: u64| place.store(value, Ordering::Relaxed);
        set(&slot.begin_ns, begin_ns);
        set(&slot.end_ns, end_ns);
        set(&slot.task, task());
        set(&slot.way, self.way << 32 | self.descriptor as u32 as u64);
        set(&slot.device, device);
        set(&slot.inode, inode);
        set(&slot.offset, offset);
        set(&slot.asked, self.asked.map_or(moved, |asked| asked as u64));
        set(&slot.result, result as u64);
        slot.turn.store(ticket + 1, Ordering::Release);
    }
}

/// The file of a descriptor, as it is believed or as the kernel says.
fn file_of(ring: RecordRing, descriptor: c_int, now_ns: u64) -> Option<(u64, u64)> {
    let believed = BELIEVED.get(descriptor as usize);
    if let Some(known) = believed.filter(|known| now_ns < known.until_ns.load(Ordering::Acquire)) {
        return Some((known.device.load(Ordering::Relaxed), known.inode.load(Ordering::Relaxed)));
    }
    let (device, inode) = named(ring, descriptor)?;
    if let Some(known) = believed {
        known.device.store(device, Ordering::Relaxed);
        known.inode.store(inode, Ordering::Relaxed);
        known.until_ns.store(now_ns + BELIEVED_NS, Ordering::Release);
    }
    Some((device, inode))
}

/// The file of a descriptor as the kernel says, whose name is told if it is seen for the first time; `None` where it is none that
/// has places.
fn named(ring: RecordRing, descriptor: c_int) -> Option<(u64, u64)> {
    // SAFETY: it writes to what it is given; the name is terminated.
    let about = unsafe {
        let mut about: statx_buffer = core::mem::zeroed();
        let answer = statx(descriptor, c"".as_ptr(), AT_EMPTY_PATH, STATX_ASKED, &raw mut about);
        (answer == 0).then_some(about)?
    };
    if !matches!(about.mode & TYPE_MASK, TYPE_FILE | TYPE_BLOCK) {
        return None;
    }
    let device = u64::from(about.major) << 20 | u64::from(about.minor);
    let file = (device, about.inode);
    let hash = hash(device ^ about.inode.rotate_left(20) ^ (descriptor as u64).rotate_left(40)) | 1;
    let told = &TOLD[hash as usize >> 1 & (TOLD.len() - 1)];
    if told.load(Ordering::Relaxed) != hash {
        told.store(hash, Ordering::Relaxed);
        tell_name(ring, descriptor, file, about.bytes);
    }
    Some(file)
}

fn tell_name(ring: RecordRing, descriptor: c_int, (device, inode): (u64, u64), bytes: u64) {
    let mut path = [0u8; PATH_BYTES_MAX];
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let (mut digits, mut left) = (0, descriptor as u32);
    while digits == 0 || left > 0 {
        let rest = &mut link[14..14 + digits + 1];
        rest.copy_within(..digits, 1);
        rest[0] = b'0' + (left % 10) as u8;
        (digits, left) = (digits + 1, left / 10);
    }
    // SAFETY: the link's name is terminated, and the answer is no longer than its place.
    let (length, flags) = unsafe {
        let length = readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), path.len());
        (length.max(0) as usize, fcntl(descriptor, F_GETFL))
    };
    let words = (size_of::<layout::Name>() + length).div_ceil(8) as u64;
    let at = ring.head().names_bytes.fetch_add(words * 8, Ordering::Relaxed);
    let Some((name, place)) = ring.name(at) else { return };
    let set = |place: &AtomicU64, value: u64| place.store(value, Ordering::Relaxed);
    set(&name.device, device);
    set(&name.inode, inode);
    set(&name.bytes, bytes);
    set(&name.task, task());
    set(&name.opened, (flags.max(0) as u64) << 32 | descriptor as u32 as u64);
    set(&name.path_bytes, length as u64);
    // SAFETY: nobody else was given this place, and it is as long as the longest path.
    unsafe { core::ptr::copy_nonoverlapping(path.as_ptr(), place, length) };
    name.words.store(words, Ordering::Release);
}

/// The finaliser of MurmurHash3.
fn hash(key: u64) -> u64 {
    let key = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ key >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

/// The function that ours stands before; it is looked for once.
fn next(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let address = known.load(Ordering::Relaxed);
    if !address.is_null() {
        return address;
    }
    // SAFETY: the name is terminated.
    let address = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
    known.store(address, Ordering::Relaxed);
    address
}

/// Stands before functions of the C library: their names, arguments, and what is made of the real one's call, which is `real`.
macro_rules! before {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = |$real:ident| $told:expr;)*) => {$(
        // SAFETY: it takes and gives what the C library's function of this name does, for which it stands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let address = next(&NEXT, const {
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                }
            });
            if address.is_null() {
                // An older C library, of which nobody expects it.
                // SAFETY: the place of this thread's own error number.
                unsafe { *__errno_location() = ENOSYS };
                return -1;
            }
            // SAFETY: the C library's function of this name has these arguments; who calls has it so.
            let function = unsafe {
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(address)
            };
            // SAFETY: as it was called.
            let $real = || unsafe { function($($argument),*) } as ssize_t;
            $told as $result
        }
    )*};
}

fn call(way: u64, descriptor: c_int, from: ReadPosition, asked: Option<usize>) -> RecordedCall {
    RecordedCall { way, descriptor, from, asked }
}

fn at(way: u64, descriptor: c_int, offset: off64_t, asked: usize) -> RecordedCall {
    call(way, descriptor, ReadPosition::At(offset as u64), Some(asked))
}

fn here(way: u64, descriptor: c_int, asked: usize) -> RecordedCall {
    call(way, descriptor, ReadPosition::Here, Some(asked))
}

/// A list of pieces, from an offset on, or, at -1 as of `preadv2`, from where the descriptor stands.
fn pieces(descriptor: c_int, offset: off64_t) -> RecordedCall {
    let from = if offset == -1 { ReadPosition::Here } else { ReadPosition::At(offset as u64) };
    call(3, descriptor, from, None)
}

/// A copy within the kernel, from where it is told, or from where the descriptor stands.
fn copied(descriptor: c_int, offset: *const off64_t, asked: usize) -> RecordedCall {
    let from = if offset.is_null() { ReadPosition::Here } else { ReadPosition::Told(offset) };
    call(4, descriptor, from, Some(asked))
}

fn advice(descriptor: c_int, offset: off64_t, bytes: off64_t, what: c_int) -> RecordedCall {
    at(ADVICE + what.max(0) as u64, descriptor, offset, bytes.max(0) as usize)
}

before! {
    fn read(fd: c_int, to: *mut c_void, bytes: usize) -> ssize_t = |real| here(0, fd, bytes).make(real);
    fn __read_chk(fd: c_int, to: *mut c_void, bytes: usize, room: usize) -> ssize_t
        = |real| here(0, fd, bytes).make(real);
    fn pread(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t) -> ssize_t
        = |real| at(1, fd, offset, bytes).make(real);
    fn pread64(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t) -> ssize_t
        = |real| at(1, fd, offset, bytes).make(real);
    fn __pread_chk(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t, room: usize) -> ssize_t
        = |real| at(1, fd, offset, bytes).make(real);
    fn __pread64_chk(fd: c_int, to: *mut c_void, bytes: usize, offset: off64_t, room: usize) -> ssize_t
        = |real| at(1, fd, offset, bytes).make(real);
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t
        = |real| call(2, fd, ReadPosition::Here, None).make(real);
    fn preadv(fd: c_int, list: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        = |real| pieces(fd, offset).make(real);
    fn preadv64(fd: c_int, list: *const iovec, count: c_int, offset: off64_t) -> ssize_t
        = |real| pieces(fd, offset).make(real);
    fn preadv2(fd: c_int, list: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t
        = |real| pieces(fd, offset).make(real);
    fn preadv64v2(fd: c_int, list: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t
        = |real| pieces(fd, offset).make(real);
    fn sendfile(to: c_int, fd: c_int, offset: *mut off64_t, bytes: usize) -> ssize_t
        = |real| copied(fd, offset, bytes).make(real);
    fn sendfile64(to: c_int, fd: c_int, offset: *mut off64_t, bytes: usize) -> ssize_t
        = |real| copied(fd, offset, bytes).make(real);
    fn copy_file_range(fd: c_int, offset: *mut off64_t, to: c_int, at: *mut off64_t, bytes: usize, flags: c_uint)
        -> ssize_t = |real| copied(fd, offset, bytes).make(real);
    fn posix_fadvise(fd: c_int, offset: off64_t, bytes: off64_t, what: c_int) -> c_int
        = |real| advice(fd, offset, bytes, what).make(real);
    fn posix_fadvise64(fd: c_int, offset: off64_t, bytes: off64_t, what: c_int) -> c_int
        = |real| advice(fd, offset, bytes, what).make(real);
    fn close(fd: c_int) -> c_int = |real| closing(Some(fd), real);
    fn dup2(from: c_int, to: c_int) -> c_int = |real| closing(Some(to), real);
    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int = |real| closing(Some(to), real);
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = |real| closing(None, real);
    fn fclose(stream: *mut c_void) -> c_int = |real| closing(None, real);
}

//! Bus errors, as an answer in place of the end of the program.
//!
//! To touch a mapped page that the file no longer has, or that the device
//! can't read, raises `SIGBUS` in the thread that touches. A thread that is
//! about to touch a range says so ([`watch`]). When the signal comes from
//! within that range, the handler puts empty memory over the rest of the range
//! and notes the address; the copy goes on over zeros, and the watch reports
//! it. Any other bus error goes where it went before.
//!
//! Nothing is paid for it while no signal comes: two stores a copy. (The
//! alternative, to jump out of the handler, would leave frames of Rust without
//! unwinding them.)

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use readpath_core::unit::PAGE_BYTES;

/// What a thread watches: an address range (empty: nothing), and the address
/// of the first bus error in it (0: none yet).
#[derive(Clone, Copy)]
struct BusErrorRange {
    start: usize,
    end: usize,
    hit: usize,
}

const NOTHING: BusErrorRange = BusErrorRange { start: 0, end: 0, hit: 0 };

thread_local! {
    // Constant and without a destructor, so that the handler's access to it is
    // plain memory: nothing is initialised, allocated or locked.
    static WATCH: Cell<BusErrorRange> = const { Cell::new(NOTHING) };
}

/// What the program did about `SIGBUS` before; set once, before the handler can run.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once for the program. A handler that is there already
/// still gets every bus error that is not ours.
pub(super) fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: asks only; the place for the answer is large enough.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), previous.as_mut_ptr()) } != 0 {
            return Err(errno());
        }
        // SAFETY: filled in by the call above.
        PREVIOUS.get_or_init(|| unsafe { previous.assume_init() });
        // SAFETY: all zero is a valid value of this plain structure.
        let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler calls only what may be called in one (signal-safety(7)).
        match unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    });
    installed.map_err(std::io::Error::from_raw_os_error)
}

/// Runs `touch`, which touches the `bytes` bytes of a mapping at `start`; gives
/// the address of the first bus error among them, after which the rest of the
/// range is private empty memory, up to the end of its last page.
pub(super) fn watch(start: usize, bytes: usize, touch: impl FnOnce()) -> Result<(), usize> {
    WATCH.set(BusErrorRange { start, end: start + bytes, hit: 0 });
    // The handler runs on this thread: the order of the compiler is enough.
    compiler_fence(Ordering::SeqCst);
    touch();
    compiler_fence(Ordering::SeqCst);
    match WATCH.replace(NOTHING).hit {
        0 => Ok(()),
        address => Err(address),
    }
}

/// The handler.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid description of a SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let watch = WATCH.get();
    if watch.start <= address && address < watch.end && cover(address, watch.end) {
        let hit = if watch.hit == 0 { address } else { watch.hit };
        WATCH.set(BusErrorRange { hit, ..watch });
        return;
    }
    pass_on(signal, info, context);
}

/// Puts empty memory over the pages from that of `address` to `end`.
fn cover(address: usize, end: usize) -> bool {
    let first = address / PAGE_BYTES as usize * PAGE_BYTES as usize;
    let end = end.next_multiple_of(PAGE_BYTES as usize);
    // SAFETY: the pages belong to the mapping that this thread watches, whose
    // owner restores them. mmap is a plain system call, and errno is put back.
    unsafe {
        let errno = *libc::__errno_location();
        let covered = libc::mmap(
            first as *mut libc::c_void,
            end - first,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        );
        *libc::__errno_location() = errno;
        covered != libc::MAP_FAILED
    }
}

/// Gives a bus error that is not ours to whoever had them before.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // Back to the default: the instruction runs again, and ends the program.
        // SAFETY: signal(2) may be called in a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    let takes_info = previous.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: the address of a handler that the program installed itself, of
    // the kind that its flags say.
    unsafe {
        if takes_info {
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(i32) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

//! Bus errors of mapped files, converted to error values.
//!
//! An access to a mapped page beyond the end of the file, or to an unreadable one, raises `SIGBUS`
//! in the accessing thread. [`catch_bus_error`] declares the range of an access. For a signal from
//! that range, the handler maps empty memory over the rest of the range and stores the address. The
//! copy continues over zeros, and `catch_bus_error` returns the address. Any other bus error goes
//! to the previous handler.
//!
//! Without a signal the cost is two stores per copy. The alternative, a jump out of the handler,
//! would skip Rust frames without unwinding.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use readpath_core::unit::PAGE_BYTES;

/// Declared address range of a thread (empty without a declaration), and the address of the first
/// bus error in it (0: none yet).
#[derive(Clone, Copy)]
struct BusErrorRange {
    /// First address.
    start: usize,
    /// Address behind the last one.
    end: usize,
    /// Address of the first bus error in the range; 0 for none yet.
    fault_address: usize,
}

/// No access is declared: the empty range contains no address.
const NO_RANGE: BusErrorRange = BusErrorRange { start: 0, end: 0, fault_address: 0 };

thread_local! {
    // Constant and without a destructor, so that the handler accesses plain memory, without
    // initialisation, allocation or locks.
    static DECLARED_RANGE: Cell<BusErrorRange> = const { Cell::new(NO_RANGE) };
}

/// Disposition of `SIGBUS` before the installation. Set once, before the handler can run.
static PREVIOUS_ACTION: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler once per process. A previous handler still receives every bus error outside
/// declared ranges.
pub(super) fn install() -> std::io::Result<()> {
    // Result of the installation, with the error number: `std::io::Error` cannot be copied.
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a pure query. The struct is large enough.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), previous.as_mut_ptr()) } != 0 {
            return Err(errno());
        }
        // SAFETY: initialised by the call above.
        PREVIOUS_ACTION.get_or_init(|| unsafe { previous.assume_init() });
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
        action.sa_sigaction = handle_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler makes only async-signal-safe calls (signal-safety(7)).
        match unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    });
    installed.map_err(std::io::Error::from_raw_os_error)
}

/// Runs `access`, which uses the `bytes` bytes of a mapping at `start`. The caller has
/// [installed](install) the handler. Returns the address of the first bus error in the range. After
/// an error the rest of the range, to the end of its last page, is private empty memory, which
/// stays until the caller replaces it.
pub(super) fn catch_bus_error(
    start: usize,
    bytes: usize,
    access: impl FnOnce(),
) -> Result<(), usize> {
    DECLARED_RANGE.set(BusErrorRange { start, end: start + bytes, fault_address: 0 });
    // The handler runs on this thread, so compiler order is sufficient.
    compiler_fence(Ordering::SeqCst);
    access();
    compiler_fence(Ordering::SeqCst);
    match DECLARED_RANGE.replace(NO_RANGE).fault_address {
        0 => Ok(()),
        address => Err(address),
    }
}

/// Signal handler of `SIGBUS`. Records the first address in the declared range, and maps zeros over
/// the rest of the range. Other addresses go to the previous handler, and so do the ones that
/// cannot be covered.
extern "C" fn handle_bus_error(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid description of a SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let range = DECLARED_RANGE.get();
    if range.start <= address && address < range.end && cover_with_zeros(address, range.end) {
        let first_fault = if range.fault_address == 0 { address } else { range.fault_address };
        DECLARED_RANGE.set(BusErrorRange { fault_address: first_fault, ..range });
        return;
    }
    call_previous_handler(signal, info, context);
}

/// Maps empty memory over the pages from the page with `address` to `end`. Returns false if that
/// fails.
fn cover_with_zeros(address: usize, end: usize) -> bool {
    let first = address / PAGE_BYTES as usize * PAGE_BYTES as usize;
    let end = end.next_multiple_of(PAGE_BYTES as usize);
    // SAFETY: the pages belong to the mapping declared by this thread, and its owner restores them.
    // mmap is a plain system call, and errno is restored.
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

/// Passes a foreign bus error to the previous handler. Without one, also if the signal was ignored,
/// the process ends.
fn call_previous_handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS_ACTION.get();
    let handler = previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // With the default disposition the instruction runs again and ends the process. SAFETY:
        // signal(2) is async-signal-safe.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    let takes_info = previous.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: a handler installed by the program, with the signature given by its flags.
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

/// Error number of the last system call of this thread.
fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

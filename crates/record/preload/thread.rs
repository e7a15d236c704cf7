//! State of the calling thread: its numbers, and its signal stack.
//!
//! On x86-64 the state is in thread-local storage of the initial-exec model, which exists from a
//! thread's first instruction. Rust's `thread_local!` in a shared library may allocate at the first
//! access, which must not happen in a signal handler. On other architectures the kernel is queried
//! each time, and signal stacks are unknown.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::Ordering;

use crate::layout::{NO_REQUEST, SOME_REQUEST};
use crate::{GENERATION, c};

/// Minimum number of free bytes on a signal stack for a recorded call. A test of the command
/// measures the use (`a_handler_on_a_small_signal_stack_does_not_overrun_it`).
pub const STACK_ROOM: usize = 1024;

// Space for a `ThreadState`, which has 48 bytes.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 3",
    "readpath_thread:",
    ".zero 48",
    ".previous",
);

/// State of a thread. All zero in a new one.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct ThreadState {
    /// Process × 2³² + thread.
    task: u64,
    /// Value of `GENERATION` when `task` was queried.
    generation: u64,
    /// First byte of the signal stack.
    stack_begin: usize,
    /// End of the signal stack; 0 without one.
    stack_end: usize,
    /// Blocks requested from devices by the last count, and the value of `GENERATION` then.
    blocks: u64,
    blocks_generation: u64,
}

/// Returns the state of this thread. No other thread accesses it, but a signal handler may
/// interrupt an access.
#[cfg(target_arch = "x86_64")]
fn thread_state() -> *mut ThreadState {
    let state: *mut ThreadState;
    // SAFETY: adds the thread pointer to the offset that the dynamic linker has stored.
    unsafe {
        core::arch::asm!(
            "mov {state}, qword ptr fs:[0]",
            "add {state}, qword ptr [rip + readpath_thread@GOTTPOFF]",
            state = out(reg) state,
            options(nostack, readonly),
        );
    }
    state
}

/// Queries the kernel for the numbers of the calling task: process × 2³² + thread.
fn query_task() -> u64 {
    // SAFETY: these calls only return numbers.
    unsafe { (c::getpid() as u64) << 32 | u64::from(c::gettid() as u32) }
}

/// The calling task: process × 2³² + thread.
#[cfg(target_arch = "x86_64")]
pub fn task() -> u64 {
    let generation = u64::from(GENERATION.load(Ordering::Relaxed));
    let state = thread_state();
    // SAFETY: the state is this thread's own; a handler in between writes equal values.
    unsafe {
        if (*state).generation != generation {
            (*state).task = query_task();
            (*state).generation = generation;
        }
        (*state).task
    }
}

/// The calling task, queried each time.
#[cfg(not(target_arch = "x86_64"))]
pub fn task() -> u64 {
    _ = &GENERATION;
    query_task()
}

/// Returns [`NO_REQUEST`] if this thread sent no request to a device since its last count, else
/// [`SOME_REQUEST`]. 0 if the kernel reports no count. Readahead that the thread started is a
/// request. A wait for the request of another thread is none.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
pub fn new_requests() -> u64 {
    let mut usage = c::resource_usage { _first: [0; 11], read_blocks: 0, _rest: [0; 6] };
    // SAFETY: the function writes to its argument alone.
    if unsafe { c::getrusage(c::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return 0;
    }
    let blocks = usage.read_blocks as u64;
    let generation = u64::from(GENERATION.load(Ordering::Relaxed));
    let state = thread_state();
    // SAFETY: the state is this thread's own. A handler in between has counted the difference.
    unsafe {
        // The kernel counts a child of `fork` from 0.
        let is_same = (*state).blocks_generation == generation;
        let counted_blocks = if is_same { (*state).blocks } else { 0 };
        (*state).blocks = blocks;
        (*state).blocks_generation = generation;
        if blocks > counted_blocks { SOME_REQUEST } else { NO_REQUEST }
    }
}

/// Returns 0, because a thread has no state here.
#[cfg(not(target_arch = "x86_64"))]
pub fn new_requests() -> u64 {
    _ = (c::getrusage, c::RUSAGE_THREAD, NO_REQUEST, SOME_REQUEST);
    0
}

/// Returns true if this call has enough stack: on a signal stack, [`STACK_ROOM`] bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn has_stack() -> bool {
    let stack_pointer: usize;
    let state = thread_state();
    // SAFETY: copies the stack pointer; the state is this thread's own.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) stack_pointer, options(nomem, nostack, preserves_flags));
        let is_on_signal_stack =
            (*state).stack_begin <= stack_pointer && stack_pointer < (*state).stack_end;
        !is_on_signal_stack || stack_pointer - (*state).stack_begin >= STACK_ROOM
    }
}

/// Always true, because signal stacks are unknown here.
#[cfg(not(target_arch = "x86_64"))]
pub fn has_stack() -> bool {
    true
}

/// Records the thread's new signal stack. Null means no change.
#[cfg(target_arch = "x86_64")]
pub fn record_signal_stack(stack: *const c::stack) {
    if stack.is_null() {
        return;
    }
    let state = thread_state();
    // SAFETY: the kernel has read this struct; the state is this thread's own.
    unsafe {
        let is_disabled = (*stack).flags & c::SS_DISABLE != 0;
        (*state).stack_begin = (*stack).begin as usize;
        (*state).stack_end =
            if is_disabled { 0 } else { ((*stack).begin as usize).wrapping_add((*stack).bytes) };
    }
}

/// Does nothing, because signal stacks are unknown here.
#[cfg(not(target_arch = "x86_64"))]
pub fn record_signal_stack(_: *const c::stack) {
    _ = (c::SS_DISABLE, STACK_ROOM);
}

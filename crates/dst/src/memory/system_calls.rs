//! Replacements of the pager's requests to the system about its memory. Outside a simulation each
//! returns `None` or false, or does nothing. The *pager* is the library's server of page faults. A
//! *touch* is an access of the program to a page. A *delegated* page is served by the kernel's own
//! mapping of the file. A fault with a rate, such as `short_call_one_in`, is an injected one. At a
//! *preemption point* another thread may run.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use linux_raw_sys::general as raw;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use readpath_os::queue::QueueLimits;
use rustix::io::Errno;

use super::super::world::{World, panic_message, world};
use super::{Kernel, PAGE, PAGER_SLEEP_KEY, PageState, WaitingTouch};
use crate::os::system_memory::SystemMemory;

/// Size of a message in bytes (`struct uffd_msg`).
const MESSAGE_BYTES: usize = 32;

/// One answer of this number to a count of cached pages is the one of an old kernel.
const OLD_KERNEL_ANSWER_ONE_IN: u64 = 20;

/// Opens a simulated userfaultfd; `None` outside a simulation.
pub(crate) fn open_uffd() -> Option<OwnedFd> {
    world().map(|_| File::open("/dev/null").expect("`/dev/null` exists").into())
}

/// Makes the ioctl `call` on a simulated userfaultfd, and returns its result. Returns `None`
/// outside a simulation.
///
/// # Safety
/// `argument` is the struct that the call takes.
pub(crate) unsafe fn make_ioctl(
    uffd: BorrowedFd<'_>,
    call: rustix::ioctl::Opcode,
    argument: *mut libc::c_void,
) -> Option<Result<(), Errno>> {
    let (world, uffd) = (world()?, uffd.as_raw_fd());
    world.preemption_point();
    // The number of a call is its low byte (ioctl(2)). SAFETY: the caller guarantees the type of
    // each argument.
    let answer = unsafe {
        match u32::from(call.to_le_bytes()[0]) {
            // While a move waits for its report, these calls fail.
            raw::_UFFDIO_COPY
            | raw::_UFFDIO_ZEROPAGE
            | raw::_UFFDIO_MOVE
            | raw::_UFFDIO_POISON
            | raw::_UFFDIO_WRITEPROTECT
                if world.memory().has_pending_move(uffd) =>
            {
                Err(Errno::AGAIN)
            }
            raw::_UFFDIO_API => Ok(()),
            raw::_UFFDIO_REGISTER => world.register(uffd, &*argument.cast()),
            raw::_UFFDIO_COPY => world.copy(uffd, &mut *argument.cast()),
            raw::_UFFDIO_ZEROPAGE => world.zero(uffd, &mut *argument.cast()),
            raw::_UFFDIO_MOVE => world.move_pages(uffd, &mut *argument.cast()),
            raw::_UFFDIO_POISON => world.poison(uffd, &mut *argument.cast()),
            raw::_UFFDIO_WRITEPROTECT => world.unprotect(&*argument.cast()),
            raw::_UFFDIO_WAKE => {
                let raw::uffdio_range { start, len } = *argument.cast();
                world.wake_range(start as usize, len as usize);
                Ok(())
            }
            // The pager makes no other call.
            _ => Err(Errno::NOTTY),
        }
    };
    world.preemption_point();
    Some(answer)
}

impl World {
    /// Removes write protection (`UFFDIO_WRITEPROTECT`) from the present pages of a range, and
    /// wakes its touches. Fails with EAGAIN and no effect by the fault `short_call_one_in`, and
    /// with ENOENT outside of a registered range.
    fn unprotect(&self, argument: &raw::uffdio_writeprotect) -> Result<(), Errno> {
        let short_call_one_in = self.disk.borrow().faults().short_call_one_in;
        if self.happens_one_in(short_call_one_in) {
            return Err(Errno::AGAIN);
        }
        let raw::uffdio_range { start, len } = argument.range;
        for address in (start as usize..).step_by(PAGE).take(len as usize / PAGE) {
            let mut memory = self.memory();
            let page = memory.page(address).ok_or(Errno::NOENT)?;
            if let PageState::Present { is_protected } = &mut page.state {
                *is_protected = false;
            }
        }
        self.wake_range(start as usize, len as usize);
        Ok(())
    }
}

/// Reads pending messages of a simulated userfaultfd into `buffer`, and marks their touches and
/// moves as reported. Returns the number of bytes, or the error EAGAIN without a message; `None`
/// outside a simulation.
pub(crate) fn read_messages(
    uffd: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Option<Result<usize, Errno>> {
    let world = world()?;
    let mut memory = world.memory();
    let mut byte_count = 0;
    let is_unreported =
        |touch: &&mut WaitingTouch| touch.uffd == uffd.as_raw_fd() && !touch.is_reported;
    for touch in memory.touches.iter_mut().filter(is_unreported) {
        let Some(message) = buffer.get_mut(byte_count..byte_count + MESSAGE_BYTES) else { break };
        touch.is_reported = true;
        message.fill(0);
        message[0] = raw::UFFD_EVENT_PAGEFAULT as u8;
        // Flags, address and thread, at their offsets in the struct.
        message[8..16].copy_from_slice(&u64::from(touch.flags).to_ne_bytes());
        message[16..24].copy_from_slice(&(touch.address as u64).to_ne_bytes());
        message[24..28].copy_from_slice(&touch.task.to_ne_bytes());
        byte_count += MESSAGE_BYTES;
    }
    while let Some(message) = buffer.get_mut(byte_count..byte_count + MESSAGE_BYTES) {
        let Some(moved_from) = memory.report_next_move(uffd.as_raw_fd()) else { break };
        // The pager only counts moves, so the message has no addresses. The moving task sleeps
        // until its report is read.
        message.fill(0);
        message[0] = raw::UFFD_EVENT_REMAP as u8;
        world.wake_all(moved_from);
        byte_count += MESSAGE_BYTES;
    }
    Some(if byte_count == 0 { Err(Errno::AGAIN) } else { Ok(byte_count) })
}

/// Sleeps until an unreported touch or move waits, the eventfd is signalled, or `timeout` has
/// passed. Returns two flags: a touch or move waits, and the eventfd is signalled. Both can be
/// false after a spurious wake-up. Returns `None` outside a simulation. The pager has finished its
/// work before it sleeps, so the present pages are checked here.
pub(crate) fn sleep_for_event(
    uffd: BorrowedFd<'_>,
    event_fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> Option<(bool, bool)> {
    let world = world()?;
    world.preemption_point();
    world.check_present_pages();
    let until_ns = timeout.map(|span| world.now_ns() + span.as_nanos() as u64);
    let spurious_wake_one_in = world.disk.borrow().faults().spurious_wake_one_in;
    loop {
        let mut memory = world.memory();
        let has_event = memory.has_unreported_event(uffd.as_raw_fd());
        let is_signalled = memory.signalled_event_fds.contains(&event_fd.as_raw_fd());
        // Each end of a write-out signals the eventfd: without a signal the pager knows all ends.
        if !is_signalled && memory.pages_writing_out == 0 {
            memory.pages_written_out = 0;
        }
        drop(memory);
        let is_over = until_ns.is_some_and(|until_ns| until_ns <= world.now_ns());
        if has_event || is_signalled || is_over || world.happens_one_in(spurious_wake_one_in) {
            return Some((has_event, is_signalled));
        }
        world.block(PAGER_SLEEP_KEY, until_ns);
    }
}

/// Sleeps until a userfaultfd is readable, or `timeout` of virtual time has passed. Returns true in
/// both cases: the caller reads it and finds out. Returns false at once outside a simulation.
pub(crate) fn wait_until_readable(uffd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let Some(world) = world() else { return false };
    world.preemption_point();
    if !world.memory().has_unreported_event(uffd.as_raw_fd()) {
        world.block(PAGER_SLEEP_KEY, Some(world.now_ns() + timeout.as_nanos() as u64));
    }
    true
}

/// Signals an eventfd and returns true. Returns false without an effect outside a simulation.
pub(crate) fn signal_event_fd(event_fd: RawFd) -> bool {
    let Some(world) = world() else { return false };
    world.signal_event_fd(event_fd);
    world.preemption_point();
    true
}

/// Clears the signal of an eventfd and returns true. Returns false outside a simulation.
pub(crate) fn clear_event_fd(event_fd: RawFd) -> bool {
    let Some(world) = world() else { return false };
    world.memory().signalled_event_fds.retain(|&signalled| signalled != event_fd);
    true
}

/// Returns true if mincore(2) would report a page as present. A page in memory is sometimes
/// reported as absent, by the fault `swapped_out_one_in`. `None` outside a simulation.
pub(crate) fn is_present(address: usize) -> Option<bool> {
    let world = world()?;
    // The kernel reports swapped-out pages as not in memory (mincore(2)).
    let is_swapped = world.happens_one_in(world.disk.borrow().faults().swapped_out_one_in);
    let mut memory = world.memory();
    let page = memory.page(address);
    // For a delegated page, the kernel reports if it is mapped.
    Some(page.is_some_and(|page| match page.state {
        PageState::Present { .. } => !is_swapped,
        PageState::Delegated { is_mapped, .. } => is_mapped,
        _ => false,
    }))
}

/// Panics if a page that the pager reads is not present. No effect outside a simulation.
pub(crate) fn assert_readable(address: usize) {
    let Some(world) = world() else { return };
    let state = world.memory().page(address).map(|page| page.state);
    assert!(
        matches!(state, Some(PageState::Present { .. })),
        "the pager reads a page in the state {state:?}"
    );
}

/// Drops the pages of a range on behalf of the pager. `address` is the address of the range's first
/// page. Returns true after the drop, and false without an effect outside a simulation.
pub(crate) fn release_pages(address: usize, range: PageRange) -> bool {
    let Some(world) = world() else { return false };
    let is_by_pager = true;
    world.drop_pages(address, range.count() as usize, is_by_pager);
    world.preemption_point();
    true
}

/// Unlocks the pages of a range of `bytes` bytes at `address`. No effect outside a simulation.
pub(crate) fn unlock(address: usize, bytes: usize) {
    if let Some(world) = world() {
        let is_locked = false;
        world.set_locked(address, bytes as u64 / PAGE_BYTES, is_locked);
    }
}

/// Unmaps the area of `bytes` bytes at `address`: touches that wait for its pages are woken, and
/// end in a bus error. Its delegated pages are no longer counted. No effect outside a simulation.
pub(crate) fn unmap(address: usize, bytes: usize) {
    if let Some(world) = world() {
        let is_by_pager = true;
        world.drop_pages(address, bytes / PAGE, is_by_pager);
        world.wake_range(address, bytes);
        let mut memory = world.memory();
        if let Some(area) = memory.areas.remove(&address) {
            memory.count_unmapped_area(&area.pages);
        }
    }
}

/// Ends the run with the panic of a pager's thread, instead of the process. Returns false outside a
/// simulation.
pub(crate) fn end_run_on_panic(payload: &(dyn std::any::Any + Send)) -> bool {
    let Some(world) = world() else { return false };
    world.record_failure(format!("a pager's thread panicked: {}", panic_message(payload)));
    true
}

/// Properties of the kernel for a run with delegated windows; otherwise `None`.
fn kernel() -> Option<Kernel> {
    world()?.memory().kernel().cloned()
}

/// The kernel's largest page of a file, in pages; `None` in a run without delegated windows.
pub(crate) fn large_folio_pages() -> Option<u64> {
    kernel().map(|kernel| kernel.large_folio_pages)
}

/// Queue properties of the device below the file; `None` in a run without delegated windows. Only
/// the readahead depends on the run; the rest is an arbitrary solid-state drive.
pub(crate) fn queue() -> Option<QueueLimits> {
    kernel().map(|kernel| QueueLimits {
        request_bytes_max: 1 << 20,
        requests_max: 64,
        read_ahead_bytes: kernel.ahead_pages * PAGE_BYTES,
        is_rotational: false,
        scheduler: None,
    })
}

/// Memory of the system in a run with delegated windows; otherwise `None`.
pub(crate) fn system_memory() -> Option<SystemMemory> {
    /// More memory than the files of all runs have.
    const AMPLE_BYTES: u64 = 1 << 40;
    // A single page is less than the file has.
    let available_bytes = if kernel()?.is_memory_short { PAGE_BYTES } else { AMPLE_BYTES };
    // No task has stalled on memory.
    Some(SystemMemory { total_bytes: AMPLE_BYTES, available_bytes, stall_us: 0 })
}

/// True if the program has locked any of its memory; `None` in a run without delegated windows.
pub(crate) fn has_locked_memory() -> Option<bool> {
    kernel()?;
    let world = world()?;
    let memory = world.memory();
    Some(memory.areas.values().any(|area| area.pages.iter().any(|page| page.is_locked)))
}

/// Number of these pages of the file in the kernel page cache. The inner `None` is the answer of an
/// old kernel, which does not report it. The outer `None` means a run without delegated windows.
pub(crate) fn cached_pages(range: PageRange) -> Option<Option<u64>> {
    kernel()?;
    let world = world()?;
    world.preemption_point();
    let cached = world.memory().cached_pages(range);
    let is_reported = !world.happens_one_in(OLD_KERNEL_ANSWER_ONE_IN);
    Some(is_reported.then_some(cached))
}

/// Drops these pages from the kernel page cache as far as possible. Returns false in a run without
/// delegated windows.
pub(crate) fn drop_cached(range: PageRange) -> bool {
    let (Some(_), Some(world)) = (kernel(), world()) else { return false };
    world.memory().drop_cached(range);
    world.preemption_point();
    true
}

/// Maps the pages `range` of the file, which begin at byte `offset`, by the kernel at `address`.
/// Returns the kernel's answer; `None` outside a simulation.
pub(crate) fn map_file(address: usize, range: PageRange, offset: u64) -> Option<Result<(), Errno>> {
    let world = world()?;
    world.preemption_point();
    let result = world.map_file(address, range.count(), offset);
    world.preemption_point();
    Some(result)
}

/// Moves a registered range of `bytes` bytes to the address `to`, and waits until its report is
/// read. Returns the kernel's answer; `None` outside a simulation.
pub(crate) fn move_into(from: usize, bytes: usize, to: usize) -> Option<Result<(), Errno>> {
    let world = world()?;
    world.preemption_point();
    let result = world.move_into(from, bytes, to);
    world.preemption_point();
    Some(result)
}

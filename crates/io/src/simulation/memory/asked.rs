//! What the pager asks the system for about its memory, and what a simulation answers. Each is nothing where none runs.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use linux_raw_sys::general as raw;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::io::Errno;

use super::{PAGE, SERVING, State, Touch};
use crate::simulation::world::{told_by, world};

/// The size of a message (`struct uffd_msg`).
const MESSAGE_BYTES: usize = 32;

/// A userfaultfd of the simulation that runs; `None` where none does.
pub(crate) fn open() -> Option<OwnedFd> {
    world().map(|_| File::open("/dev/null").expect("there is always nothing to be opened").into())
}

/// A call on a userfaultfd of the simulation that runs; `None` where none does.
///
/// # Safety
/// `argument` is the struct that the call of that number takes.
pub(crate) unsafe fn call(
    uffd: BorrowedFd<'_>,
    call: u32,
    argument: *mut libc::c_void,
) -> Option<Result<(), Errno>> {
    let (world, uffd) = (world()?, uffd.as_raw_fd());
    world.point();
    // The number of a call is its low byte (ioctl(2)).
    // SAFETY: the caller's promise, in each.
    let answer = unsafe {
        match call & 0xff {
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
            _ => Err(Errno::NOTTY),
        }
    };
    world.point();
    Some(answer)
}

/// Reads the messages that wait; `None` where no simulation runs.
pub(crate) fn messages(uffd: BorrowedFd<'_>, to: &mut [u8]) -> Option<Result<usize, Errno>> {
    let world = world()?;
    let mut memory = world.memory();
    let mut count = 0;
    let of_it = |touch: &&mut Touch| touch.uffd == uffd.as_raw_fd() && !touch.is_told;
    for touch in memory.touches.iter_mut().filter(of_it) {
        let Some(message) = to.get_mut(count..count + MESSAGE_BYTES) else { break };
        touch.is_told = true;
        message.fill(0);
        message[0] = raw::UFFD_EVENT_PAGEFAULT as u8;
        message[8..16].copy_from_slice(&u64::from(touch.flags).to_ne_bytes());
        message[16..24].copy_from_slice(&(touch.address as u64).to_ne_bytes());
        message[24..28].copy_from_slice(&touch.task.to_ne_bytes());
        count += MESSAGE_BYTES;
    }
    Some(if count == 0 { Err(Errno::AGAIN) } else { Ok(count) })
}

/// Sleeps until a touch waits, the bell rings, or the time is over, and says which; `None` where no simulation runs.
pub(crate) fn sleep(
    uffd: BorrowedFd<'_>,
    bell: BorrowedFd<'_>,
    most: Option<Duration>,
) -> Option<(bool, bool)> {
    let world = world()?;
    world.point();
    world.check_count();
    let until = most.map(|span| world.now_ns() + span.as_nanos() as u64);
    let wakes = world.disk.borrow().faults().wakes;
    loop {
        let mut memory = world.memory();
        let by_faults = memory.is_waited_for(uffd.as_raw_fd());
        let by_bell = memory.bells.contains(&bell.as_raw_fd());
        if !by_bell && memory.written == 0 {
            memory.written_before = 0;
        }
        drop(memory);
        let is_over = until.is_some_and(|until| until <= world.now_ns());
        if by_faults || by_bell || is_over || world.one_of(wakes) {
            return Some((by_faults, by_bell));
        }
        world.block(SERVING, until);
    }
}

/// Rings a bell; false where no simulation runs.
pub(crate) fn ring(bell: RawFd) -> bool {
    let Some(world) = world() else { return false };
    world.ring(bell);
    world.point();
    true
}

/// Makes a bell quiet; false where no simulation runs.
pub(crate) fn quieten(bell: RawFd) -> bool {
    let Some(world) = world() else { return false };
    world.memory().bells.retain(|&rings| rings != bell);
    true
}

/// Whether a page is present; `None` where no simulation runs.
pub(crate) fn is_present(address: usize) -> Option<bool> {
    let world = world()?;
    let mut memory = world.memory();
    let page = memory.page(address);
    Some(page.is_some_and(|page| matches!(page.state, State::Present { .. })))
}

/// The pages of a range are given up; false where no simulation runs.
pub(crate) fn release(address: usize, range: PageRange) -> bool {
    let Some(world) = world() else { return false };
    world.give_up(address, range.count() as usize, true);
    world.point();
    true
}

/// The program has no page of the range locked any more.
pub(crate) fn unlock(address: usize, bytes: usize) {
    if let Some(world) = world() {
        world.lock(address, bytes as u64 / PAGE_BYTES, false);
    }
}

/// A range is no longer mapped: who waits for a page of it finds none.
pub(crate) fn unmap(address: usize, bytes: usize) {
    if let Some(world) = world() {
        world.give_up(address, bytes / PAGE, true);
        world.wake_range(address, bytes);
        world.memory().areas.remove(&address);
    }
}

/// A pager's thread has panicked, in a simulation: the run ends with what it said, in place of the process. False where none runs.
pub(crate) fn is_lost(payload: &(dyn std::any::Any + Send)) -> bool {
    let Some(world) = world() else { return false };
    world.failed(format!("a pager's thread panicked: {}", told_by(payload)));
    true
}

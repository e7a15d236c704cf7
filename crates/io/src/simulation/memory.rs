//! The memory of a simulated run whose pages a userfaultfd has: which are present, whose touch waits, and what is told of it.
//!
//! It answers the pager's calls as the kernel does, by their numbers and structs (ioctl_userfaultfd(2)): half of a call may be
//! done and the rest be asked again, pages of a transfer can't be moved until a moment after its end, and who waits may be woken
//! for nothing. The bytes lie where the pager has mapped them. What is wrong in any case is found at once: a transfer to or from
//! a page that is absent, a page that is taken away while it is written out, more pages than there may be. What is [lent] to the
//! kernel's own mapping counts among them, with what that reads ahead.

mod asked;
mod lent;

use std::cell::RefMut;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::iovec;
use linux_raw_sys::general as raw;
use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;
use rustix::io::Errno;

pub(crate) use asked::{
    cached_pages, call, drop_cached, has_locked, is_lost, is_present, large_pages, lend, look,
    looked_at, messages, move_into, open, queue, quieten, release, ring, sleep, spare, unlock,
    unmap,
};
pub use lent::Kernel;

use super::world::World;
use lent::KernelMemory;

const PAGE: usize = PAGE_BYTES as usize;
/// A pager's thread sleeps.
const SERVING: usize = 0x600;
/// What stands in a page that was taken away.
const RUBBISH: u8 = 0xdb;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Absent,
    Present {
        is_protected: bool,
    },
    Poisoned,
    /// A page of the file, by its number there, that the kernel maps; whether it was touched since.
    Lent {
        page: u64,
        is_mapped: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Page {
    state: PageState,
    /// How often it was taken away or moved elsewhere: what is on its way to an earlier one goes nowhere.
    generation: u32,
    /// How many transfers and calls hold it.
    held: u32,
    /// How many of those write it out.
    written: u32,
    /// The kernel lets go of it only then.
    held_until: u64,
    is_locked: bool,
    /// The part of memory that it belongs to: some calls take pages of one alone.
    part: u32,
}

impl Page {
    fn absent() -> Page {
        Page {
            state: PageState::Absent,
            generation: 0,
            held: 0,
            written: 0,
            held_until: 0,
            is_locked: false,
            part: 0,
        }
    }
}

/// A range that a userfaultfd has.
struct RegisteredRange {
    uffd: RawFd,
    pages: Vec<Page>,
}

/// A touch that waits.
#[derive(Clone, Copy, Debug)]
struct WaitingTouch {
    uffd: RawFd,
    address: usize,
    flags: u32,
    task: u32,
    is_told: bool,
}

/// A page that a transfer holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct PinnedTransferPage {
    address: usize,
    generation: u32,
    op: Op,
}

/// A touch ends in a bus error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bus;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Memory {
    /// By their first address.
    areas: BTreeMap<usize, RegisteredRange>,
    touches: Vec<WaitingTouch>,
    /// Those that ring.
    bells: Vec<RawFd>,
    present: u64,
    /// How many are being written out, or wait for that.
    written: u64,
    /// How many were, and may have to be again, or the pager doesn't know yet that it is over.
    written_before: u64,
    /// So many pages may be present, and one for each that is written out.
    pub(super) pages_max: u64,
    pub(super) lent: KernelMemory,
}

impl Memory {
    fn page(&mut self, address: usize) -> Option<&mut Page> {
        let (&base, area) = self.areas.range_mut(..=address).next_back()?;
        area.pages.get_mut((address - base) / PAGE)
    }

    fn uffd_of(&self, address: usize) -> Option<RawFd> {
        let (&base, area) = self.areas.range(..=address).next_back()?;
        (address - base < area.pages.len() * PAGE).then_some(area.uffd)
    }

    fn set(&mut self, address: usize, state: PageState) {
        let page = self.page(address).expect("of an area");
        let before = std::mem::replace(&mut page.state, state);
        let is_present = |state| matches!(state, PageState::Present { .. });
        if is_present(before) && !is_present(state) {
            *page = Page {
                generation: page.generation + 1,
                held: 0,
                written: 0,
                held_until: 0,
                ..*page
            };
            self.present -= 1;
        }
        self.present += u64::from(!is_present(before) && is_present(state));
    }

    /// Puts a page in place that a call has room for.
    fn put(&mut self, address: usize, uffd: RawFd, state: PageState) -> Result<(), Errno> {
        let is_its_own = self.uffd_of(address) == Some(uffd);
        let page = self.page(address).filter(|_| is_its_own).ok_or(Errno::NOENT)?;
        if matches!(page.state, PageState::Lent { .. }) {
            // Nobody watches it.
            return Err(Errno::NOENT);
        }
        if page.state != PageState::Absent {
            return Err(Errno::EXIST);
        }
        self.set(address, state);
        Ok(())
    }

    fn is_waited_for(&self, uffd: RawFd) -> bool {
        self.touches.iter().any(|touch| touch.uffd == uffd && !touch.is_told)
            || self.has_untold_move(uffd)
    }
}

impl World {
    fn memory(&self) -> RefMut<'_, Memory> {
        self.memory.borrow_mut()
    }

    /// The calling task touches a page. Until it passes another [point](World::point) it may use its bytes.
    pub(super) fn touch(&self, address: usize, is_written: bool) -> Result<(), Bus> {
        let address = address - address % PAGE;
        loop {
            self.point();
            let mut memory = self.memory();
            let state = memory.page(address).map(|page| page.state);
            let mut flags = if is_written { raw::UFFD_PAGEFAULT_FLAG_WRITE } else { 0 };
            match state {
                Some(PageState::Present { is_protected }) if is_protected && is_written => {
                    flags |= raw::UFFD_PAGEFAULT_FLAG_WP;
                }
                Some(PageState::Present { .. }) => return Ok(()),
                Some(PageState::Poisoned) | None => return Err(Bus),
                Some(PageState::Lent { .. }) => {
                    drop(memory);
                    match self.touch_lent(address) {
                        Some(touched) => return touched,
                        None => continue,
                    }
                }
                Some(PageState::Absent) => {}
            }
            let uffd = memory.uffd_of(address).expect("it is one of an area");
            let task = self.task().0;
            memory.touches.push(WaitingTouch { uffd, address, flags, task, is_told: false });
            drop(memory);
            self.wake_all(SERVING);
            // A signal comes.
            let wakes = self.disk.borrow().faults().wakes;
            let until = self.one_of(wakes).then(|| self.now_ns() + self.below(200_000));
            self.block(address, until);
            self.memory().touches.retain(|touch| touch.task != task);
        }
    }

    /// A system call of the program holds a page that it has touched, until it is [let go](World::let_go).
    pub(super) fn hold(&self, address: usize) -> PinnedTransferPage {
        let mut memory = self.memory();
        let page = memory.page(address).expect("of an area");
        page.held += 1;
        PinnedTransferPage { address, generation: page.generation, op: Op::Read }
    }

    /// Whether a page that is held is still where it was.
    pub(super) fn is_there(&self, held: &PinnedTransferPage) -> bool {
        self.memory().page(held.address).is_some_and(|page| page.generation == held.generation)
    }

    /// Whether what a transfer that holds these pages brings to an address comes there.
    pub(super) fn takes(&self, all: &[PinnedTransferPage], address: usize) -> bool {
        let page = address - address % PAGE;
        all.iter().find(|held| held.address == page).is_none_or(|held| self.is_there(held))
    }

    /// Pages are to be written out, or others in their place.
    pub(super) fn count_written(&self, segments: &[iovec]) {
        let mut memory = self.memory();
        if !memory.areas.is_empty() {
            memory.written += segments.iter().flat_map(pages_of).count() as u64;
        }
    }

    /// A transfer of these pieces begins: the kernel holds their pages.
    pub(super) fn hold_all(&self, op: Op, segments: &[iovec]) -> Vec<PinnedTransferPage> {
        let mut all = Vec::new();
        if self.memory().areas.is_empty() {
            return all;
        }
        for address in segments.iter().flat_map(pages_of) {
            let mut memory = self.memory();
            let Some(page) = memory.page(address) else {
                if op == Op::Write {
                    all.push(PinnedTransferPage { address, generation: 0, op });
                }
                continue;
            };
            let is_usable = match page.state {
                PageState::Present { is_protected } => op == Op::Write || !is_protected,
                _ => false,
            };
            page.held += 1;
            let held = PinnedTransferPage { address, generation: page.generation, op };
            page.written += u32::from(op == Op::Write);
            drop(memory);
            if !is_usable {
                self.failed(format!("a transfer ({op:?}) of a page that can't be touched"));
            }
            all.push(held);
        }
        all
    }

    /// A transfer has ended; the kernel lets go of its pages now, or in a moment.
    pub(super) fn let_go(&self, all: &[PinnedTransferPage]) {
        for held in all {
            let until = if self.below(4) == 0 { self.now_ns() + self.below(30_000) } else { 0 };
            let mut memory = self.memory();
            memory.written -= u64::from(held.op == Op::Write);
            memory.written_before += u64::from(held.op == Op::Write);
            if let Some(page) = memory.page(held.address)
                && page.generation == held.generation
            {
                page.held -= 1;
                page.written -= u32::from(held.op == Op::Write);
                page.held_until = page.held_until.max(until);
            }
        }
    }

    /// The program locks pages in memory, or no longer.
    pub(super) fn lock(&self, address: usize, pages: u64, is_locked: bool) {
        let mut memory = self.memory();
        for at in 0..pages as usize {
            if let Some(page) = memory.page(address + at * PAGE) {
                page.is_locked = is_locked;
            }
        }
    }

    /// The pages of a range are given up (madvise(2)), by the pager or by its program.
    pub(super) fn give_up(&self, address: usize, pages: usize, is_pagers: bool) {
        for address in (address..).step_by(PAGE).take(pages) {
            let mut memory = self.memory();
            let Some(page) = memory.page(address) else { return };
            if page.written > 0 && is_pagers {
                self.failed("a page is given up while it is written out".to_owned());
            }
            if matches!(page.state, PageState::Lent { .. }) {
                // It is the file's.
                continue;
            }
            if matches!(page.state, PageState::Present { .. }) {
                // SAFETY: a page that the pager has mapped, and that nobody may look at any more.
                unsafe { std::ptr::write_bytes(address as *mut u8, RUBBISH, PAGE) };
            }
            memory.set(address, PageState::Absent);
        }
    }

    /// Has those tried again who wait for a page of the range.
    fn wake_range(&self, address: usize, bytes: usize) {
        let memory = self.memory();
        let range = address..address + bytes;
        let waits = |touch: &&WaitingTouch| range.contains(&touch.address);
        let woken: Vec<usize> = memory.touches.iter().filter(waits).map(|at| at.address).collect();
        drop(memory);
        woken.into_iter().for_each(|address| self.wake_all(address));
    }

    /// Does a call page by page, as far as it comes: how many bytes, and why it stopped.
    fn page_by_page(
        &self,
        address: u64,
        bytes: u64,
        mut each: impl FnMut(usize) -> Result<(), Errno>,
    ) -> (i64, Result<(), Errno>) {
        let stops = self.disk.borrow().faults().calls_stop;
        let mut done = 0;
        let answer = loop {
            if done == bytes {
                break Ok(());
            }
            // The memory map was being changed by somebody.
            if self.one_of(stops) {
                break Err(Errno::AGAIN);
            }
            if let Err(errno) = each((address + done) as usize) {
                break Err(errno);
            }
            done += PAGE_BYTES;
        };
        if done > 0 {
            self.wake_range(address as usize, done as usize);
        }
        match answer {
            Ok(()) => (done as i64, Ok(())),
            Err(errno) if done == 0 => (-i64::from(errno.raw_os_error()), Err(errno)),
            Err(_) => (done as i64, Err(Errno::AGAIN)),
        }
    }

    /// The pager has done what there is to be done for now.
    fn check_count(&self) {
        let memory = self.memory();
        let most = memory.pages_max + memory.written + memory.written_before + memory.kept();
        let (present, lent) = (memory.present, memory.taken_by_kernel());
        if present + lent > most {
            self.failed(format!("{present} pages are present and {lent} lent, and {most} may be"));
        }
    }

    fn register(&self, uffd: RawFd, argument: &raw::uffdio_register) -> Result<(), Errno> {
        let (start, bytes) = (argument.range.start as usize, argument.range.len as usize);
        let mut memory = self.memory();
        if memory.uffd_of(start).is_some() {
            return Err(Errno::BUSY);
        }
        let is_first = memory.areas.values().all(|area| area.uffd != uffd);
        if !is_first && self.one_of(self.disk.borrow().faults().no_parts) {
            memory.keep(bytes);
            return Err(Errno::NOMEM);
        }
        memory
            .areas
            .insert(start, RegisteredRange { uffd, pages: vec![Page::absent(); bytes / PAGE] });
        Ok(())
    }

    fn copy(&self, uffd: RawFd, argument: &mut raw::uffdio_copy) -> Result<(), Errno> {
        let shift = argument.src.wrapping_sub(argument.dst) as usize;
        let is_protected = argument.mode & u64::from(raw::UFFDIO_COPY_MODE_WP) != 0;
        let no_memory = self.disk.borrow().faults().no_memory;
        let (count, answer) = self.page_by_page(argument.dst, argument.len, |to| {
            let from = to.wrapping_add(shift);
            let mut memory = self.memory();
            let is_absent =
                |page: &mut Page| !matches!(page.state, PageState::Present { is_protected: _ });
            if memory.page(from).is_some_and(is_absent) {
                return Err(Errno::FAULT);
            }
            drop(memory);
            if self.one_of(no_memory) {
                return Err(Errno::NOMEM);
            }
            self.memory().put(to, uffd, PageState::Present { is_protected })?;
            // SAFETY: a whole page that the caller may read, and one that was absent until now.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, PAGE) };
            Ok(())
        });
        argument.copy = count;
        answer
    }

    fn zero(&self, uffd: RawFd, argument: &mut raw::uffdio_zeropage) -> Result<(), Errno> {
        let raw::uffdio_range { start, len } = argument.range;
        let (count, answer) = self.page_by_page(start, len, |to| {
            self.memory().put(to, uffd, PageState::Present { is_protected: false })?;
            // SAFETY: a page that was absent until now.
            unsafe { std::ptr::write_bytes(to as *mut u8, 0, PAGE) };
            Ok(())
        });
        argument.zeropage = count;
        answer
    }

    fn poison(&self, uffd: RawFd, argument: &mut raw::uffdio_poison) -> Result<(), Errno> {
        let raw::uffdio_range { start, len } = argument.range;
        let put = |to| self.memory().put(to, uffd, PageState::Poisoned);
        let (count, answer) = self.page_by_page(start, len, put);
        argument.updated = count;
        answer
    }

    fn move_pages(&self, uffd: RawFd, argument: &mut raw::uffdio_move) -> Result<(), Errno> {
        let shift = argument.src.wrapping_sub(argument.dst) as usize;
        {
            // Each side is of one part, both are locked or neither is, and the target is watched: else nothing is moved.
            let mut memory = self.memory();
            let pages = (argument.dst as usize..).step_by(PAGE).take(argument.len as usize / PAGE);
            let mut kind = |at| {
                let page = memory.page(at)?;
                let is_lent = matches!(page.state, PageState::Lent { .. });
                (!is_lent).then_some((page.is_locked, page.part))
            };
            let mut kinds = pages.map(|to| Some((kind(to)?, kind(to.wrapping_add(shift))?)));
            let first = kinds.next().flatten().filter(|(to, from)| to.0 == from.0);
            if first.is_none() || kinds.any(|kind| kind != first) {
                return Err(Errno::INVAL);
            }
        }
        let now = self.now_ns();
        let (count, answer) = self.page_by_page(argument.dst, argument.len, |to| {
            let from = to.wrapping_add(shift);
            let mut memory = self.memory();
            let source = *memory.page(from).ok_or(Errno::INVAL)?;
            match source.state {
                PageState::Present { .. } => {}
                PageState::Absent => return Err(Errno::NOENT),
                PageState::Poisoned => return Err(Errno::FAULT),
                PageState::Lent { .. } => return Err(Errno::INVAL),
            }
            if source.held > 0 || source.held_until > now {
                return Err(Errno::BUSY);
            }
            memory.put(to, uffd, PageState::Present { is_protected: false })?;
            memory.set(from, PageState::Absent);
            // SAFETY: a page that is the caller's to move, and one that was absent until now.
            unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, PAGE);
                std::ptr::write_bytes(from as *mut u8, RUBBISH, PAGE);
            }
            Ok(())
        });
        argument.move_ = count;
        answer
    }

    fn unprotect(&self, argument: &raw::uffdio_writeprotect) -> Result<(), Errno> {
        let stops = self.disk.borrow().faults().calls_stop;
        if self.one_of(stops) {
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

    /// Rings a bell.
    pub(super) fn ring(&self, bell: RawFd) {
        let mut memory = self.memory();
        if !memory.bells.contains(&bell) {
            memory.bells.push(bell);
        }
        drop(memory);
        self.wake_all(SERVING);
    }

    /// How many ranges somebody has mapped.
    pub(super) fn areas(&self) -> usize {
        self.memory().areas.len()
    }

    /// Nothing of what the pager has mapped is left in memory, though a run that failed lets nothing go by itself.
    pub(super) fn unmap_all(&self) {
        for (base, area) in std::mem::take(&mut self.memory().areas) {
            // SAFETY: the pager's mapping, which nobody looks at any more: no task goes on.
            unsafe { libc::munmap(base as *mut _, area.pages.len() * PAGE) };
        }
    }
}

/// The pages that a piece of memory lies in.
fn pages_of(segment: &iovec) -> impl Iterator<Item = usize> {
    let start = segment.iov_base.addr();
    (start - start % PAGE..start + segment.iov_len).step_by(PAGE)
}

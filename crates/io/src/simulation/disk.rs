//! The storage of a simulated run: files that others change, cut, lengthen and replace, and a queue of transfers whose
//! answers come late, short, in any order, or as errors.
//!
//! Every change of a file has a number, and each byte of a file says by which change it came there: a word of 8 bytes
//! holds its own place, its file, and the number of the change. So what a read has seen can be told from its bytes.
//! While a transfer is under way its memory holds rubbish: who looks too early sees it.
//!
//! A *store* is a file that the run itself writes to, and has what was written: rubbish before, and while it is written.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use libc::iovec;
use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;

use super::memory::PinnedTransferPage;
use super::world::{World, world};
use crate::backend::{Backend, BackendError, KernelAnswer, Sleep, Sleeper, Transfer};

/// What direct transfers are multiples of.
pub(super) const BLOCK: u64 = 512;
/// What the memory of a transfer holds until it is answered.
const RUBBISH: u8 = 0xdb;

/// How often what goes wrong; each is one of so many, and never if it is 0.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A transfer fails with EIO, once.
    pub fails: u64,
    /// It stops in the middle.
    pub stops: u64,
    /// It is answered "again", "interrupted" or "cancelled".
    pub again: u64,
    /// Its answer takes seconds.
    pub late: u64,
    /// A sleep ends for nothing.
    pub wakes: u64,
    /// After so many transfers the kernel exchanges none any more.
    pub dies_after: u64,
    /// A transfer fails, and the model isn't told that any does: for who tries whether a failure is found.
    pub unknown: u64,
    /// A call on memory whose faults are served stops half-way.
    pub calls_stop: u64,
    /// A page that such a call puts in place finds no memory.
    pub no_memory: u64,
    /// There is no room for one more part of memory: a window is not lent, or not taken back.
    pub no_parts: u64,
    /// A page of memory that is looked for has been swapped out by the kernel, which brings it back when it is touched.
    pub swapped: u64,
    /// Pages that can't be read: file and page.
    pub bad: Vec<(u32, u64)>,
}

/// One file, in the states that it has been in.
pub(crate) struct Inode {
    /// How often it was changed.
    pub(super) changes: u64,
    pub(super) bytes: u64,
    /// After which change it was how long.
    pub(super) lengths: Vec<(u64, u64)>,
    /// Of each page, the changes that wrote it.
    writes: Vec<Vec<u64>>,
    /// The pages of a store that were written.
    stored: Option<BTreeMap<u64, [u8; PAGE_BYTES as usize]>>,
}

impl Inode {
    fn new(bytes: u64) -> Inode {
        let pages = bytes.div_ceil(PAGE_BYTES) as usize;
        let (lengths, writes) = (vec![(0, bytes)], vec![vec![0]; pages]);
        Inode { changes: 0, bytes, lengths, writes, stored: None }
    }

    /// The changes by which a page may have what a read sees who may see it as it was after change `since`, or later.
    pub(super) fn writes_since(&self, page: u64, since: u64) -> &[u64] {
        let writes = self.writes.get(page as usize).map_or(&[][..], Vec::as_slice);
        let first = writes.iter().rposition(|&change| change <= since).unwrap_or(0);
        &writes[first..]
    }

    /// The lengths that it has had since change `since`.
    pub(super) fn lengths_since(&self, since: u64) -> impl Iterator<Item = u64> {
        let first = self.lengths.iter().rposition(|&(change, _)| change <= since).unwrap_or(0);
        self.lengths[first..].iter().map(|&(_, bytes)| bytes)
    }

    /// Fills `to` with what stands from `offset` on now; `inode` is its number, and all of it within the file.
    pub(super) fn show(&self, inode: u32, offset: u64, to: &mut [u8]) {
        let (mut at, mut rest) = (offset, to);
        while !rest.is_empty() {
            let page = at / PAGE_BYTES;
            let count = ((page + 1) * PAGE_BYTES - at).min(rest.len() as u64);
            let change = *self.writes_since(page, u64::MAX).last().expect("within the file");
            let (part, more) = rest.split_at_mut(count as usize);
            match &self.stored {
                None => fill(inode, at, change, part),
                Some(pages) => match pages.get(&page) {
                    None => part.fill(RUBBISH),
                    Some(stored) => {
                        let start = (at % PAGE_BYTES) as usize;
                        part.copy_from_slice(&stored[start..start + count as usize]);
                    }
                },
            }
            (at, rest) = (at + count, more);
        }
    }

    /// Puts bytes into a store; none: rubbish, up to `end`.
    fn keep(&mut self, offset: u64, end: u64, bytes: Option<&[u8]>) {
        let pages = self.stored.as_mut().expect("only what is a store is written to");
        let mut at = offset;
        while at < end {
            let start = (at % PAGE_BYTES) as usize;
            let count = ((end - at) as usize).min(PAGE_BYTES as usize - start);
            let page = pages.entry(at / PAGE_BYTES).or_insert([RUBBISH; PAGE_BYTES as usize]);
            let to = &mut page[start..start + count];
            let from = (at - offset) as usize;
            match bytes {
                None => to.fill(RUBBISH),
                Some(bytes) => to.copy_from_slice(&bytes[from..from + count]),
            }
            at += count as u64;
        }
    }

    fn write(&mut self, first: u64, pages: u64) {
        self.changes += 1;
        let end = ((first + pages) as usize).min(self.writes.len());
        for page in &mut self.writes[(first as usize).min(end)..end] {
            page.push(self.changes);
        }
    }

    /// Cuts it, or makes it longer: what is new has the number of this change.
    fn resize(&mut self, bytes: u64) {
        let pages = bytes.div_ceil(PAGE_BYTES) as usize;
        let grown_from = (self.bytes.min(bytes) / PAGE_BYTES) as usize;
        self.writes.resize(pages.max(self.writes.len()), Vec::new());
        self.changes += 1;
        if bytes > self.bytes {
            self.writes[grown_from..pages].iter_mut().for_each(|page| page.push(self.changes));
        }
        self.bytes = bytes;
        self.lengths.push((self.changes, bytes));
    }
}

/// The word at place `word` of a file, in a page that was written by that change: the change stands at both ends, so
/// that few bytes say nothing of it.
fn word(inode: u32, word: u64, change: u64) -> [u8; 8] {
    let change = change & 0xffff;
    (change << 48 | u64::from(inode & 0xff) << 40 | (word & 0xff_ffff) << 16 | change).to_le_bytes()
}

/// Fills `to` with the bytes of a file from `offset` on, all in pages written by that change.
pub(super) fn fill(inode: u32, offset: u64, change: u64, to: &mut [u8]) {
    let mut at = 0;
    while at < to.len() {
        let place = offset + at as u64;
        let (word, skip) = (word(inode, place / 8, change), (place % 8) as usize);
        let count = (8 - skip).min(to.len() - at);
        to[at..at + count].copy_from_slice(&word[skip..skip + count]);
        at += count;
    }
}

/// A transfer that is under way.
struct DiskTransfer {
    inode: u32,
    op: Op,
    offset: u64,
    segments: Vec<iovec>,
    is_begun: bool,
    /// The pages of a pager that it holds, from its begin on.
    held: Vec<PinnedTransferPage>,
}

/// What carries the transfers of one path.
#[derive(Default)]
struct SimulatedRing {
    /// By their names.
    jobs: BTreeMap<u64, DiskTransfer>,
    answers: Vec<KernelAnswer>,
    is_woken: bool,
    is_dead: bool,
    /// Rings for each answer.
    bell: Option<RawFd>,
}

/// A transfer is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    ring: usize,
    token: u64,
    is_cancelled: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Disk {
    pub(super) inodes: Vec<Inode>,
    /// Which of them has the name of that number now.
    pub(super) names: Vec<u32>,
    rings: Vec<SimulatedRing>,
    faults: Faults,
    carried: u64,
}

impl Disk {
    /// One with files of these lengths.
    pub(super) fn new(bytes: &[u64], faults: Faults) -> Disk {
        let inodes = bytes.iter().map(|&bytes| Inode::new(bytes)).collect();
        Disk { inodes, names: (0..bytes.len() as u32).collect(), faults, ..Disk::default() }
    }

    /// Has a file be a store.
    pub(super) fn make_store(&mut self, name: usize) {
        self.inodes[self.names[name] as usize].stored = Some(BTreeMap::new());
    }

    pub(super) fn write(&mut self, name: usize, first: u64, pages: u64) {
        let inode = self.names[name] as usize;
        self.inodes[inode].write(first, pages);
    }

    pub(super) fn resize(&mut self, name: usize, bytes: u64) {
        let inode = self.names[name] as usize;
        self.inodes[inode].resize(bytes);
    }

    /// Puts another file in the place of the one of that name, which stays for who has it open.
    pub(super) fn replace(&mut self, name: usize, bytes: u64) {
        self.names[name] = self.inodes.len() as u32;
        self.inodes.push(Inode::new(bytes));
    }

    pub(super) fn is_bad(&self, inode: u32, page: u64) -> bool {
        self.faults.bad.contains(&(inode, page))
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// A thread of a path sleeps for its ring.
const SLEEPING: usize = 0x400;

impl World {
    /// Begins what was queued: from here on its memory is the device's.
    fn hand_over(&self, ring: usize) {
        let mut disk = self.disk.borrow_mut();
        let faults = disk.faults.clone();
        let Disk { rings, carried, inodes, .. } = &mut *disk;
        let mut begun = Vec::new();
        for (&token, job) in rings[ring].jobs.iter_mut().filter(|(_, job)| !job.is_begun) {
            job.is_begun = true;
            *carried += 1;
            job.held = self.hold_all(job.op, &job.segments);
            match job.op {
                Op::Read => spoil(&job.segments),
                Op::Write => {
                    let end = job.offset + bytes_of(&job.segments);
                    inodes[job.inode as usize].keep(job.offset, end, None);
                }
            }
            begun.push(token);
        }
        if faults.dies_after > 0 && *carried > faults.dies_after {
            rings[ring].is_dead = true;
        }
        drop(disk);
        for token in begun {
            let ns = self.latency(&faults);
            self.expect(ns, Answered { ring, token, is_cancelled: false });
        }
    }

    /// How long a transfer takes.
    pub(super) fn latency(&self, faults: &Faults) -> u64 {
        match self.one_of(faults.late) {
            true => self.below(4_000_000_000),
            false => match self.below(4) {
                0 => self.below(3_000),
                1 => self.below(10_000_000),
                _ => 20_000 + self.below(100_000),
            },
        }
    }

    /// A transfer is answered.
    pub(super) fn come(&self, Answered { ring, token, is_cancelled }: Answered) {
        let job = self.disk.borrow_mut().rings[ring].jobs.remove(&token);
        // Else it was cancelled before.
        let Some(DiskTransfer { inode, op, offset, segments, held, .. }) = job else { return };
        let raw = match (is_cancelled, op) {
            (true, _) => -libc::ECANCELED,
            (false, Op::Read) => self.carried(inode, offset, &segments, &held),
            (false, Op::Write) => self.written(inode, offset, &segments),
        };
        self.let_go(&held);
        let mut disk = self.disk.borrow_mut();
        disk.rings[ring].answers.push(KernelAnswer { token, raw });
        let bell = disk.rings[ring].bell;
        drop(disk);
        self.wake_all(SLEEPING + ring);
        if let Some(bell) = bell {
            self.ring(bell);
        }
    }

    /// What a transfer of so many bytes that ends now comes to: how many of them are moved, or the kernel's error.
    fn come_to(&self, inode: u32, offset: u64, wanted: u64) -> Result<u64, i32> {
        let faults = self.disk.borrow().faults.clone();
        if self.one_of(faults.fails) || self.one_of(faults.unknown) {
            return Err(libc::EIO);
        }
        if self.one_of(faults.again) {
            return Err([libc::EAGAIN, libc::EINTR, libc::ECANCELED][self.below(3) as usize]);
        }
        let disk = self.disk.borrow();
        let there = disk.inodes[inode as usize].bytes.saturating_sub(offset).min(wanted);
        let end = (offset + there).div_ceil(PAGE_BYTES);
        if (offset / PAGE_BYTES..end).any(|page| disk.is_bad(inode, page)) {
            return Err(libc::EIO);
        }
        match there > BLOCK && self.one_of(faults.stops) {
            true => Ok((1 + self.below(there / BLOCK)) * BLOCK),
            false => Ok(there),
        }
    }

    /// Fills the memory of a transfer that ends now, as far as it comes and what it holds is still there; gives the kernel's
    /// answer.
    fn carried(
        &self,
        inode: u32,
        offset: u64,
        segments: &[iovec],
        held: &[PinnedTransferPage],
    ) -> i32 {
        let bytes = match self.come_to(inode, offset, bytes_of(segments)) {
            Ok(bytes) => bytes,
            Err(errno) => return -errno,
        };
        let disk = self.disk.borrow();
        let file = &disk.inodes[inode as usize];
        let mut at = offset;
        for segment in segments {
            let (address, end) = (segment.iov_base.addr(), offset + bytes);
            let mut from = 0;
            while from < segment.iov_len {
                let count = (PAGE_BYTES as usize - (address + from) % PAGE_BYTES as usize)
                    .min(segment.iov_len - from);
                let moved = end.saturating_sub(at).min(count as u64) as usize;
                if moved > 0 && self.takes(held, address + from) {
                    // SAFETY: memory of the transfer, which is its own until it is answered.
                    file.show(inode, at, unsafe {
                        let to = segment.iov_base.cast::<u8>().add(from);
                        std::slice::from_raw_parts_mut(to, moved)
                    });
                }
                (from, at) = (from + count, at + count as u64);
            }
        }
        bytes as i32
    }

    /// Takes the bytes of a write that ends now into the store, as far as it comes; gives the kernel's answer.
    fn written(&self, inode: u32, offset: u64, segments: &[iovec]) -> i32 {
        let moved = self.come_to(inode, offset, bytes_of(segments));
        let mut bytes = Vec::new();
        for segment in segments {
            // SAFETY: memory of the transfer, which nobody takes away until it is answered.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(segment.iov_base.cast::<u8>(), segment.iov_len)
            });
        }
        // One that fails has come anywhere.
        let count = moved.unwrap_or_else(|_| self.below(bytes.len() as u64 / BLOCK) * BLOCK);
        let mut disk = self.disk.borrow_mut();
        disk.inodes[inode as usize].keep(offset, offset + count, Some(&bytes));
        moved.map_or_else(|errno| -errno, |bytes| bytes as i32)
    }
}

/// How many bytes the pieces of a transfer have.
fn bytes_of(segments: &[iovec]) -> u64 {
    segments.iter().map(|segment| segment.iov_len as u64).sum()
}

/// Fills the memory of a transfer with rubbish.
fn spoil(segments: &[iovec]) {
    for segment in segments {
        // SAFETY: memory of the transfer, which is its own until it is answered.
        unsafe { std::ptr::write_bytes(segment.iov_base.cast::<u8>(), RUBBISH, segment.iov_len) };
    }
}

/// Carries a transfer on the calling task; `None` where no simulation runs.
pub(crate) fn carry(fd: i32, op: Op, offset: u64, segments: &[iovec]) -> Option<i32> {
    let world = world()?;
    assert_eq!(op, Op::Read, "nothing is written through a simulation");
    spoil(segments);
    let faults = world.disk.borrow().faults.clone();
    world.pause(world.latency(&faults));
    Some(world.carried(fd as u32, offset, segments, &[]))
}

/// A backend of the simulation that runs, with what sleeps for it; `None` where none does.
pub(crate) fn backend() -> Option<(Box<dyn Backend>, Arc<dyn Sleeper>)> {
    let ring = new_ring(None)?;
    Some((Box::new(SimulatedBackend { ring }), Arc::new(SimulatedSleeper { ring })))
}

/// The same for one who sleeps elsewhere, and is rung for.
pub(crate) fn backend_with_bell(bell: BorrowedFd<'_>) -> Option<Box<dyn Backend>> {
    let ring = new_ring(Some(bell.as_raw_fd()))?;
    Some(Box::new(SimulatedBackend { ring }))
}

fn new_ring(bell: Option<RawFd>) -> Option<usize> {
    let world = world()?;
    let mut disk = world.disk.borrow_mut();
    disk.rings.push(SimulatedRing { bell, ..SimulatedRing::default() });
    Some(disk.rings.len() - 1)
}

const OUTSIDE: &str = "what a simulation made is used in it";

struct SimulatedBackend {
    ring: usize,
}

impl Backend for SimulatedBackend {
    unsafe fn queue(&mut self, transfer: Transfer<'_>) {
        let world = world().expect(OUTSIDE);
        let job = DiskTransfer {
            inode: transfer.fd as u32,
            op: transfer.op,
            offset: transfer.offset,
            segments: transfer.segments.to_vec(),
            is_begun: false,
            held: Vec::new(),
        };
        if transfer.op == Op::Write {
            world.count_written(transfer.segments);
        }
        let before = world.disk.borrow_mut().rings[self.ring].jobs.insert(transfer.token, job);
        if before.is_some() {
            world.wrong(format!("two transfers of one name are under way: {}", transfer.token));
        }
    }

    fn cancel(&mut self, token: u64) {
        let world = world().expect(OUTSIDE);
        if world.below(2) == 0 {
            world.expect(0, Answered { ring: self.ring, token, is_cancelled: true });
        }
    }

    fn collect(&mut self, answers: &mut Vec<KernelAnswer>) -> Result<bool, BackendError> {
        let world = world().expect(OUTSIDE);
        answers.append(&mut world.disk.borrow_mut().rings[self.ring].answers);
        Ok(false)
    }

    fn exchange(
        &mut self,
        sleep: Sleep,
        answers: &mut Vec<KernelAnswer>,
    ) -> Result<(), BackendError> {
        let world = world().expect(OUTSIDE);
        world.sleep(self.ring, sleep, false)?;
        self.collect(answers).map(drop)
    }
}

impl Drop for SimulatedBackend {
    /// Waits for what is under way, whose memory is the device's still.
    fn drop(&mut self) {
        let Some(world) = world() else { return };
        world.hand_over(self.ring);
        while !world.disk.borrow().rings[self.ring].jobs.is_empty() {
            world.block(SLEEPING + self.ring, None);
        }
    }
}

impl World {
    fn sleep(&self, ring: usize, sleep: Sleep, ends_by_wake: bool) -> Result<bool, BackendError> {
        self.hand_over(ring);
        if self.disk.borrow().rings[ring].is_dead {
            return Err(BackendError::Exchange { errno: libc::EPERM });
        }
        let wakes = self.disk.borrow().faults.wakes;
        let until = match sleep {
            Sleep::Never => return Ok(false),
            Sleep::AtMost(span) => Some(self.now_ns() + span.as_nanos() as u64),
            Sleep::UntilAnswered => None,
        };
        let is_demand = self.disk.borrow().rings[ring].answers.is_empty();
        loop {
            let mut disk = self.disk.borrow_mut();
            let place = &mut disk.rings[ring];
            let is_woken = ends_by_wake && std::mem::take(&mut place.is_woken);
            let is_idle = !ends_by_wake && place.jobs.is_empty();
            if is_woken || is_idle || !place.answers.is_empty() || self.one_of(wakes) {
                return Ok(is_demand);
            }
            drop(disk);
            if until.is_some_and(|until| until <= self.now_ns()) {
                return Ok(is_demand);
            }
            self.block(SLEEPING + ring, until);
        }
    }
}

struct SimulatedSleeper {
    ring: usize,
}

impl Sleeper for SimulatedSleeper {
    fn sleep(&self, sleep: Sleep) -> Result<bool, BackendError> {
        let world = world().expect(OUTSIDE);
        world.point();
        let slept = world.sleep(self.ring, sleep, true);
        world.point();
        slept
    }

    fn wake(&self) {
        let Some(world) = world() else { return };
        world.disk.borrow_mut().rings[self.ring].is_woken = true;
        world.wake_all(SLEEPING + self.ring);
    }
}

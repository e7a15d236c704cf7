//! Storage of a simulated run: files that other programs change, truncate, extend and replace, and
//! a queue of transfers whose answers are late, short, in any order, or errors.
//!
//! A *ring* is the queue of transfers of one path. An *inode* is a file, with or without a name. A
//! *token* is the number by which an answer names its transfer.
//!
//! Every change of a file has a number. Each byte of a file shows the change that wrote it: a word
//! of 8 bytes contains its own position, its file, and the number of the change. The bytes of a
//! read therefore show the state that the read has seen. While a transfer is in flight its memory
//! contains garbage, which a read that is too early would see.
//!
//! A *store* is a file that the run writes to. Its bytes are garbage before and during a write.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use libc::iovec;
use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;

use super::memory::PinnedPage;
use super::world::{World, world};
use crate::backend::KernelAnswer;

mod rings;

pub(crate) use rings::{backend, backend_with_event_fd};

/// Alignment unit of direct transfers in bytes.
pub(super) const BLOCK: u64 = 512;
/// Byte value of a transfer's memory until its answer.
const GARBAGE_BYTE: u8 = 0xdb;

/// Frequencies of faults. A value n means one event of n; 0 means never.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A transfer fails with EIO, once.
    pub error_one_in: u64,
    /// A transfer stops early.
    pub short_one_in: u64,
    /// A transfer is answered with EAGAIN, EINTR or ECANCELED.
    pub retry_one_in: u64,
    /// An answer takes seconds.
    pub delay_one_in: u64,
    /// A sleep ends spuriously.
    pub spurious_wake_one_in: u64,
    /// Number of transfers (no frequency) after which the storage fails as a whole: each further
    /// submission or sleep is an error. 0 for no limit.
    pub dies_after: u64,
    /// A transfer fails, and the model does not expect any failure. It tests that failures are
    /// found.
    pub unexpected_error_one_in: u64,
    /// A call on memory with served faults stops early.
    pub short_call_one_in: u64,
    /// A page that such a call fills finds no memory.
    pub out_of_memory_one_in: u64,
    /// The limit of mappings is reached: a window cannot be delegated or taken back.
    pub mapping_limit_one_in: u64,
    /// The kernel has swapped out a page of memory when its presence is checked, and brings it back
    /// when it is touched.
    pub swapped_out_one_in: u64,
    /// Unreadable pages: file and page.
    pub bad_pages: Vec<(u32, u64)>,
}

/// A file with its history: its lengths, and the changes that wrote each page.
pub(crate) struct Inode {
    /// Number of changes so far, which is also the number of the last change.
    pub(super) changes: u64,
    /// Current length in bytes.
    pub(super) bytes: u64,
    /// Number of each change that set a length, with the length in bytes, in ascending order.
    pub(super) lengths: Vec<(u64, u64)>,
    /// Numbers of the changes that wrote each page, in ascending order, by page number.
    writes: Vec<Vec<u64>>,
    /// Written pages of a store, which keeps its bytes; `None` for files with calculated bytes.
    stored_pages: Option<BTreeMap<u64, [u8; PAGE_BYTES as usize]>>,
}

impl Inode {
    /// Creates a file of `bytes` bytes, all written by change 0.
    fn new(bytes: u64) -> Inode {
        let pages = bytes.div_ceil(PAGE_BYTES) as usize;
        let (lengths, writes) = (vec![(0, bytes)], vec![vec![0]; pages]);
        Inode { changes: 0, bytes, lengths, writes, stored_pages: None }
    }

    /// Returns the changes whose bytes of page number `page` a read may see, if the read may see
    /// the state after change `since` or any later state. The first is the last write up to
    /// `since`, or the first of all for a page that was added later. Empty for a page never in the
    /// file.
    pub(super) fn writes_since(&self, page: u64, since: u64) -> &[u64] {
        let writes = self.writes.get(page as usize).map_or(&[][..], Vec::as_slice);
        let first = writes.iter().rposition(|&change| change <= since).unwrap_or(0);
        &writes[first..]
    }

    /// Returns the lengths of the file in bytes in the state after change `since` and in all later
    /// states.
    pub(super) fn lengths_since(&self, since: u64) -> impl Iterator<Item = u64> {
        // There is always such a length: the first is of change 0.
        let first = self.lengths.iter().rposition(|&(change, _)| change <= since).unwrap_or(0);
        self.lengths[first..].iter().map(|&(_, bytes)| bytes)
    }

    /// Fills `buffer` with the current bytes from `offset` on. `inode` is the file's number. The
    /// range lies within the file. Pages of a store that were never written read as garbage.
    pub(super) fn read_current(&self, inode: u32, offset: u64, buffer: &mut [u8]) {
        let (mut position, mut unfilled) = (offset, buffer);
        while !unfilled.is_empty() {
            let page = position / PAGE_BYTES;
            let count = ((page + 1) * PAGE_BYTES - position).min(unfilled.len() as u64);
            // The last change that wrote the page.
            let change = *self.writes_since(page, u64::MAX).last().expect("a page of the file");
            let (part, after) = unfilled.split_at_mut(count as usize);
            match &self.stored_pages {
                None => fill_content(inode, position, change, part),
                Some(pages) => match pages.get(&page) {
                    None => part.fill(GARBAGE_BYTE),
                    Some(stored) => {
                        let start = (position % PAGE_BYTES) as usize;
                        part.copy_from_slice(&stored[start..start + count as usize]);
                    }
                },
            }
            (position, unfilled) = (position + count, after);
        }
    }

    /// Writes `bytes` to a store from byte `offset` up to `end` (exclusive), or garbage for `None`.
    /// Panics if the file is not a store.
    fn store_bytes(&mut self, offset: u64, end: u64, bytes: Option<&[u8]>) {
        let pages = self.stored_pages.as_mut().expect("the file is a store");
        let mut position = offset;
        while position < end {
            let start = (position % PAGE_BYTES) as usize;
            let count = ((end - position) as usize).min(PAGE_BYTES as usize - start);
            let page =
                pages.entry(position / PAGE_BYTES).or_insert([GARBAGE_BYTE; PAGE_BYTES as usize]);
            let target = &mut page[start..start + count];
            let start_in_bytes = (position - offset) as usize;
            match bytes {
                None => target.fill(GARBAGE_BYTE),
                Some(bytes) => {
                    target.copy_from_slice(&bytes[start_in_bytes..start_in_bytes + count])
                }
            }
            position += count as u64;
        }
    }

    /// Counts a change and records its number for `pages` pages from page `first_page` on, as far
    /// as the file has had them.
    fn write(&mut self, first_page: u64, pages: u64) {
        self.changes += 1;
        let end = ((first_page + pages) as usize).min(self.writes.len());
        for page_writes in &mut self.writes[(first_page as usize).min(end)..end] {
            page_writes.push(self.changes);
        }
    }

    /// Truncates or extends the file to `bytes` bytes. New bytes, from the page of the old end on,
    /// have the number of this change. Pages that are cut off keep their numbers, because a read
    /// may still see them.
    fn resize(&mut self, bytes: u64) {
        let pages = bytes.div_ceil(PAGE_BYTES) as usize;
        let first_grown_page = (self.bytes.min(bytes) / PAGE_BYTES) as usize;
        self.writes.resize(pages.max(self.writes.len()), Vec::new());
        self.changes += 1;
        if bytes > self.bytes {
            let grown_pages = &mut self.writes[first_grown_page..pages];
            grown_pages.iter_mut().for_each(|page_writes| page_writes.push(self.changes));
        }
        self.bytes = bytes;
        self.lengths.push((self.changes, bytes));
    }
}

/// Word number `word` of the file `inode`, in a page written by `change`. From the low end it has
/// 16 bits of the change, 24 of the word's number, 8 of the file, and 16 of the change again. The
/// change is at both ends, so that even a few bytes show it. Only the low bits of each number are
/// stored.
fn content_word(inode: u32, word: u64, change: u64) -> [u8; 8] {
    let change = change & 0xffff;
    (change << 48 | u64::from(inode & 0xff) << 40 | (word & 0xff_ffff) << 16 | change).to_le_bytes()
}

/// Fills `buffer` with the bytes of the file `inode` from `offset` on, all in pages written by
/// `change`.
pub(super) fn fill_content(inode: u32, offset: u64, change: u64, buffer: &mut [u8]) {
    let mut filled = 0;
    while filled < buffer.len() {
        let position = offset + filled as u64;
        let (word, skip) = (content_word(inode, position / 8, change), (position % 8) as usize);
        let count = (8 - skip).min(buffer.len() - filled);
        buffer[filled..filled + count].copy_from_slice(&word[skip..skip + count]);
        filled += count;
    }
}

/// A queued transfer, or one in flight: a read or write of a file. The *pager* is the library's
/// server of page faults.
struct DiskTransfer {
    /// Number of the file.
    inode: u32,
    /// Read or write.
    op: Op,
    /// First byte in the file.
    offset: u64,
    /// Pieces of memory, in the order of the file's bytes.
    segments: Vec<iovec>,
    /// True once its memory belongs to the device, and its answer is scheduled.
    is_started: bool,
    /// Pages of a pager that the transfer uses, from its start on.
    pinned_pages: Vec<PinnedPage>,
}

/// Transfers of one path.
#[derive(Default)]
struct SimulatedRing {
    /// By token.
    transfers: BTreeMap<u64, DiskTransfer>,
    /// Answers that were not taken yet, in the order of their arrival.
    answers: Vec<KernelAnswer>,
    /// True after a wake-up of the ring's sleeper that has ended no sleep yet.
    is_woken: bool,
    /// True once each submission and each sleep fails. Started transfers still end.
    is_dead: bool,
    /// Eventfd that is signalled for each answer.
    event_fd: Option<RawFd>,
}

/// Event: a transfer is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Index of the ring.
    ring: usize,
    /// The transfer in that ring.
    token: u64,
    /// True if the answer is ECANCELED, whatever the transfer has done.
    is_cancelled: bool,
}

/// See the [module](self).
#[derive(Default)]
pub struct Disk {
    /// By inode number.
    pub(super) inodes: Vec<Inode>,
    /// Inode number of the current file of each name. A name is an index in this list.
    pub(super) names: Vec<u32>,
    /// Rings of all paths, in the order of their creation.
    rings: Vec<SimulatedRing>,
    /// Frequencies of the faults of this run.
    faults: Faults,
    /// Number of transfers started, of all rings.
    transfers_started: u64,
}

impl Disk {
    /// Creates a disk with files of the lengths `file_bytes`. File i has the name i.
    pub fn new(file_bytes: &[u64], faults: Faults) -> Disk {
        let inodes = file_bytes.iter().map(|&bytes| Inode::new(bytes)).collect();
        Disk { inodes, names: (0..file_bytes.len() as u32).collect(), faults, ..Disk::default() }
    }

    /// Makes the file with index `name` in `names` a store, without written pages.
    pub(super) fn make_store(&mut self, name: usize) {
        self.inodes[self.names[name] as usize].stored_pages = Some(BTreeMap::new());
    }

    /// Changes `pages` pages of the file of a name, from page `first_page` on.
    pub(super) fn write(&mut self, name: usize, first_page: u64, pages: u64) {
        let inode = self.names[name] as usize;
        self.inodes[inode].write(first_page, pages);
    }

    /// Truncates or extends the file of a name to `bytes` bytes.
    pub(super) fn resize(&mut self, name: usize, bytes: u64) {
        let inode = self.names[name] as usize;
        self.inodes[inode].resize(bytes);
    }

    /// Replaces the file of a name by a new file of `bytes` bytes. Open handles keep the old file.
    pub(super) fn replace(&mut self, name: usize, bytes: u64) {
        self.names[name] = self.inodes.len() as u32;
        self.inodes.push(Inode::new(bytes));
    }

    /// True if reads of this page of the file end in EIO: it is in `bad_pages`.
    pub(super) fn is_bad(&self, inode: u32, page: u64) -> bool {
        self.faults.bad_pages.contains(&(inode, page))
    }

    /// Frequencies of the run's faults.
    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }
}

/// Base of the wait keys of threads that sleep for a ring: the ring's index is added. A wait key is
/// the number by which the world wakes sleeping tasks.
const SLEEP_KEY: usize = 0x400;

impl World {
    /// Starts the queued transfers of a ring, and schedules an answer of each at a random time.
    /// From here on the memory of a read belongs to the device and contains garbage. A write makes
    /// its part of the store garbage until its end. The ring is dead after more than `dies_after`
    /// transfers of all rings.
    fn start_queued_transfers(&self, ring: usize) {
        let mut disk = self.disk.borrow_mut();
        let faults = disk.faults.clone();
        let Disk { rings, transfers_started, inodes, .. } = &mut *disk;
        let mut started_tokens = Vec::new();
        let queued = rings[ring].transfers.iter_mut().filter(|(_, transfer)| !transfer.is_started);
        for (&token, transfer) in queued {
            transfer.is_started = true;
            *transfers_started += 1;
            // Until the transfer ends, these pages cannot be moved. An unusable one fails the run.
            transfer.pinned_pages = self.begin_transfer(transfer.op, &transfer.segments);
            match transfer.op {
                Op::Read => fill_with_garbage(&transfer.segments),
                Op::Write => {
                    let end = transfer.offset + transfer_bytes(&transfer.segments);
                    let garbage = None;
                    inodes[transfer.inode as usize].store_bytes(transfer.offset, end, garbage);
                }
            }
            started_tokens.push(token);
        }
        if faults.dies_after > 0 && *transfers_started > faults.dies_after {
            rings[ring].is_dead = true;
        }
        drop(disk);
        for token in started_tokens {
            let ns = self.random_latency_ns(&faults);
            self.schedule(ns, Answered { ring, token, is_cancelled: false });
        }
    }

    /// Random service time of a transfer in ns: below 4 s for a delayed one. Half of the others
    /// take 20 to 120 µs, a quarter less than 3 µs, and a quarter up to 10 ms.
    pub(super) fn random_latency_ns(&self, faults: &Faults) -> u64 {
        match self.happens_one_in(faults.delay_one_in) {
            true => self.random_below(4_000_000_000),
            false => match self.random_below(4) {
                0 => self.random_below(3_000),
                1 => self.random_below(10_000_000),
                _ => 20_000 + self.random_below(100_000),
            },
        }
    }

    /// Ends a transfer and adds its answer to its ring. Wakes the threads that sleep for the ring,
    /// and signals its eventfd, if it has one. No effect if the transfer has ended before.
    pub(super) fn on_answered(&self, Answered { ring, token, is_cancelled }: Answered) {
        let transfer = self.disk.borrow_mut().rings[ring].transfers.remove(&token);
        // The transfer is gone if its cancellation came first, or its answer.
        let Some(DiskTransfer { inode, op, offset, segments, pinned_pages, .. }) = transfer else {
            return;
        };
        let raw = match (is_cancelled, op) {
            (true, _) => -libc::ECANCELED,
            (false, Op::Read) => self.finish_read(inode, offset, &segments, &pinned_pages),
            (false, Op::Write) => self.finish_write(inode, offset, &segments),
        };
        self.end_use(&pinned_pages);
        let mut disk = self.disk.borrow_mut();
        disk.rings[ring].answers.push(KernelAnswer { token, raw });
        let event_fd = disk.rings[ring].event_fd;
        drop(disk);
        self.wake_all(SLEEP_KEY + ring);
        if let Some(event_fd) = event_fd {
            self.signal_event_fd(event_fd);
        }
    }

    /// Result of a transfer of `requested_bytes` bytes from `offset` on that ends now. It is the
    /// number of bytes, or the kernel's error as in `errno(3)`. The number is smaller at the end of
    /// the file, 0 behind it. The fault `short_one_in` leaves whole blocks, at least one. A page in
    /// `bad_pages` fails the whole transfer, as do the faults `error_one_in` and
    /// `unexpected_error_one_in`, all with `EIO`. The fault `retry_one_in` fails it with an error
    /// after which a caller may repeat it.
    fn transfer_result(&self, inode: u32, offset: u64, requested_bytes: u64) -> Result<u64, i32> {
        let faults = self.disk.borrow().faults.clone();
        if self.happens_one_in(faults.error_one_in)
            || self.happens_one_in(faults.unexpected_error_one_in)
        {
            return Err(libc::EIO);
        }
        if self.happens_one_in(faults.retry_one_in) {
            return Err([libc::EAGAIN, libc::EINTR, libc::ECANCELED][self.random_below(3) as usize]);
        }
        let disk = self.disk.borrow();
        let bytes_in_file =
            disk.inodes[inode as usize].bytes.saturating_sub(offset).min(requested_bytes);
        let end_page = (offset + bytes_in_file).div_ceil(PAGE_BYTES);
        if (offset / PAGE_BYTES..end_page).any(|page| disk.is_bad(inode, page)) {
            return Err(libc::EIO);
        }
        match bytes_in_file > BLOCK && self.happens_one_in(faults.short_one_in) {
            true => Ok((1 + self.random_below(bytes_in_file / BLOCK)) * BLOCK),
            false => Ok(bytes_in_file),
        }
    }

    /// Fills the memory of a read from `offset` on that ends now, as far as its pages are still
    /// there. Returns the number of bytes read, or a negative errno.
    fn finish_read(
        &self,
        inode: u32,
        offset: u64,
        segments: &[iovec],
        pinned_pages: &[PinnedPage],
    ) -> i32 {
        let bytes = match self.transfer_result(inode, offset, transfer_bytes(segments)) {
            Ok(bytes) => bytes,
            Err(errno) => return -errno,
        };
        let disk = self.disk.borrow();
        let file = &disk.inodes[inode as usize];
        let mut position = offset;
        for segment in segments {
            let (address, end_offset) = (segment.iov_base.addr(), offset + bytes);
            // Page by page of the memory, because each may have been moved away.
            let mut segment_offset = 0;
            while segment_offset < segment.iov_len {
                let count = (PAGE_BYTES as usize
                    - (address + segment_offset) % PAGE_BYTES as usize)
                    .min(segment.iov_len - segment_offset);
                let moved_bytes = end_offset.saturating_sub(position).min(count as u64) as usize;
                if moved_bytes > 0 && self.does_write_arrive(pinned_pages, address + segment_offset)
                {
                    // SAFETY: the transfer owns its memory until it is answered.
                    file.read_current(inode, position, unsafe {
                        let target = segment.iov_base.cast::<u8>().add(segment_offset);
                        std::slice::from_raw_parts_mut(target, moved_bytes)
                    });
                }
                (segment_offset, position) = (segment_offset + count, position + count as u64);
            }
        }
        bytes as i32
    }

    /// Writes the bytes of a write at `offset` that ends now to the store. After an error only some
    /// blocks from its start are written, or none. Returns the number of bytes written, or a
    /// negative errno.
    fn finish_write(&self, inode: u32, offset: u64, segments: &[iovec]) -> i32 {
        let result = self.transfer_result(inode, offset, transfer_bytes(segments));
        let mut bytes = Vec::new();
        for segment in segments {
            // SAFETY: the memory stays until the transfer is answered.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(segment.iov_base.cast::<u8>(), segment.iov_len)
            });
        }
        let count =
            result.unwrap_or_else(|_| self.random_below(bytes.len() as u64 / BLOCK) * BLOCK);
        let mut disk = self.disk.borrow_mut();
        disk.inodes[inode as usize].store_bytes(offset, offset + count, Some(&bytes));
        result.map_or_else(|errno| -errno, |written_bytes| written_bytes as i32)
    }
}

/// Number of bytes of a transfer.
fn transfer_bytes(segments: &[iovec]) -> u64 {
    segments.iter().map(|segment| segment.iov_len as u64).sum()
}

/// Fills the memory of a transfer with garbage.
fn fill_with_garbage(segments: &[iovec]) {
    for segment in segments {
        // SAFETY: the transfer owns its memory until it is answered.
        unsafe {
            std::ptr::write_bytes(segment.iov_base.cast::<u8>(), GARBAGE_BYTE, segment.iov_len)
        };
    }
}

/// Executes a read on the calling task, which sleeps in virtual time. Returns the number of bytes
/// read or a negative errno; `None` outside a simulation. `fd` is the inode number in the simulated
/// disk, and `offset` is in bytes. `op` must be a read.
pub(crate) fn execute_transfer(fd: i32, op: Op, offset: u64, segments: &[iovec]) -> Option<i32> {
    let world = world()?;
    assert_eq!(op, Op::Read, "a simulated file is read-only");
    fill_with_garbage(segments);
    let faults = world.disk.borrow().faults.clone();
    world.pause(world.random_latency_ns(&faults));
    // The caller's memory is no page of a pager.
    let no_pinned_pages = [];
    Some(world.finish_read(fd as u32, offset, segments, &no_pinned_pages))
}

//! Calls of the machine: transfers of requests, and completed reads.
//!
//! The *machine* is the state machine of the cache. It has a number of *frames*, one page each. The
//! device's bytes arrive in the *shadow*, an area as long as the file. A page is *evicted* if its
//! memory is given back, and *poisoned* if a touch of it is a bus error.

use readpath_core::machine::{Buffer, Done, Driver, IoBackend, Machine};
use readpath_core::request::{Completion, DeviceRequest, Op};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, SECTOR_BYTES, Time};

use super::{Areas, FAULT_TAG, PagePresence, ReadPiece, Resident};
use crate::transfers::{self, TransferStart};

impl IoBackend for Areas {
    /// Starts the transfer. Other pages that the request's frames contained have been dropped by
    /// the machine and are evicted here.
    fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
        // The file begins at sector 0.
        let range =
            PageRange::new(request.start / PAGE_SECTORS, u64::from(request.sectors) / PAGE_SECTORS);
        let (frame_pages, resident, evicted) =
            (&mut self.frame_pages, &mut self.resident, &mut self.page_scratch);
        // The request's pages and its frames have the same order.
        let mut page = range.first;
        machine.request_buffers(request.id, |buffer| {
            let Buffer::Frame(frame) = buffer else { unreachable!("every read fills frames") };
            // The frame's page is `page` from here on. Its previous page is evicted if it is still
            // in this frame.
            let previous_page = frame_pages[frame.0 as usize].replace(page);
            let is_in_frame = |previous_page: &u64| {
                resident
                    .get(previous_page)
                    .is_some_and(|resident_page| resident_page.frame == frame.0)
            };
            if let Some(previous_page) =
                previous_page.filter(|&previous_page| previous_page != page).filter(is_in_frame)
            {
                evicted.push(previous_page);
            }
            if resident.contains_key(&page) {
                // The machine had dropped the page and reads it again.
                evicted.push(page);
            }
            page += 1;
        });
        self.evict();
        // The request's pages are in the frames now.
        let mut page = range.first;
        let resident = &mut self.resident;
        machine.request_buffers(request.id, |buffer| {
            if let Buffer::Frame(frame) = buffer {
                resident.insert(page, Resident { frame: frame.0, presence: PagePresence::Filling });
                page += 1;
            }
        });
        self.make_present(range);
        let start = TransferStart {
            id: request.id,
            file: transfers::TransferFile::from_target(&self.target),
            op: Op::Read,
            offset: request.start * SECTOR_BYTES,
            bytes: u64::from(request.sectors) * SECTOR_BYTES,
        };
        let segment = libc::iovec {
            iov_base: self.shadow.address(range.first) as *mut _,
            iov_len: start.bytes as usize,
        };
        // `range` comes back with the ended transfer. SAFETY: pages of the shadow, which outlives
        // the transfers. No other thread accesses them while they are `Filling`.
        unsafe { self.transfers.start(start, range, |_, segments| segments.push(segment)) };
    }

    /// Removes the next ended transfer, updates its pages, and returns its completion. `None` if
    /// none has ended.
    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let ended = self.transfers.next_ended()?;
        self.on_transfer_end(ended.context, ended.completion.outcome);
        Some(ended.completion)
    }
}

impl Driver for Areas {
    /// Ends a read while its pages are pinned. The tag `FAULT_TAG` means a fault, whose page is
    /// mapped or poisoned. Any other tag is the slot of the owner's command, which is answered. The
    /// release then unpins the pages.
    fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        let offset = machine.offset(done.read);
        match (done.tag, done.result) {
            (FAULT_TAG, Ok(_)) => self.map_around(machine, offset / PAGE_BYTES),
            (FAULT_TAG, Err(_)) => self.poison(offset / PAGE_BYTES),
            (slot, result) => {
                let owner_read =
                    self.owner_reads[slot as usize].take().expect("a command's slot is its own");
                let piece = result.and_then(|bytes| {
                    let copied = match owner_read.wants_bytes {
                        true => self.copy_completed(offset, bytes)?,
                        false => Vec::new(),
                    };
                    Ok(ReadPiece { bytes, copy: copied })
                });
                // A caller that no longer waits needs no answer.
                let _ = owner_read.reply.send(piece);
            }
        }
        machine.release(now, done.read);
    }
}

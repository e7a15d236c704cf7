//! Swap-in: what is read beyond the page that a fault on swapped-out memory
//! waits for, and why.
//!
//! A law sees each fault that must read, and each that finds a page which was
//! read ahead; it answers with a range, by slot of the swap area or by address.
//! It may look at what is swapped out, and at what the device costs ([`SwappedPageQueries`]).
//! The machine reads of that range what holds swapped-out memory and is not in
//! memory already; the page of the fault itself it reads whatever the law says.
//! All but that page are *marked*; the first fault on a marked page takes the
//! mark off and is a *hit*, on which a law may go on reading.
//!
//! # How a world drives memory
//! The machine is [`Machine`](crate::machine::Machine), over the same cache,
//! frames and budget as for files:
//!
//! 1. [`add_swap`](crate::machine::Machine::add_swap) names the swap area once,
//!    [`add_memory`](crate::machine::Machine::add_memory) each mapping.
//! 2. A page fault: [`fault`](crate::machine::Machine::fault), with read or
//!    write. A write fault on a page that is mapped read-only makes it dirty.
//! 3. [`poll_unmap`](crate::machine::Machine::poll_unmap) until it gives none: take the page out
//!    of the program's address space, then answer with
//!    [`handle_unmapped`](crate::machine::Machine::handle_unmapped) before any other call, and say
//!    whether the page was written since it was mapped (a world that takes write
//!    faults says no, it has told of them; one that looks at dirty bits says what
//!    it found). After the answer nobody can change the page without a fault.
//! 4. [`poll_request`](crate::machine::Machine::poll_request) and
//!    [`handle_completion`](crate::machine::Machine::handle_completion) as for files;
//!    [`request_buffers`](crate::machine::Machine::request_buffers) names the
//!    frames, which a write request takes its bytes from.
//! 5. [`poll_faulted`](crate::machine::Machine::poll_faulted) until it gives
//!    none: map the frame (or fill it with zeros first, where it says so),
//!    writable only where it says so, let the program go on, and
//!    [`release`](crate::machine::Machine::release).
//!
//! A world that sees accessed bits, as the modelled one does, tells of every
//! touch of a mapped page by [`touch`](crate::machine::Machine::touch). One
//! that doesn't gives [`second_chance_pages`](crate::machine::SwapConfig): so
//! many pages wait, unmapped, before they go, and one that is used again is
//! mapped without a read.

use alloc::boxed::Box;

use crate::policy::{self, Policy, Spec, SpecError};
use crate::readahead::DeviceEvidence;
use crate::unit::PageRange;

mod adaptive;
mod cluster;
mod hits;
mod none;
mod vma;

pub use adaptive::AdaptiveSwapin;
pub use cluster::Cluster;
pub use hits::Hits;
pub use none::NoSwapReadahead;
pub use vma::Vma;

/// Names a mapping of memory: 0 up, in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub u32);

/// A fault on swapped-out memory, as a law sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapFault {
    /// Which mapping.
    pub memory: MemoryId,
    /// The page, from the start of the mapping.
    pub page: u64,
    /// How many pages the mapping has.
    pub memory_pages: u64,
    /// The slot of the swap area that holds the page.
    pub slot: u64,
    /// How many slots there are.
    pub slots: u64,
    /// Whether the mapping is shared memory, whose pages have no address of
    /// their own: each process maps them where it likes.
    pub is_shared: bool,
}

/// What to read. It may reach past the last slot or page: the machine cuts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapRead {
    /// What these slots hold.
    Slots(PageRange),
    /// These pages of the mapping, wherever their slots are.
    Pages(PageRange),
}

/// What is swapped out, as a law sees it.
pub trait SwappedPageQueries {
    /// Whether the page is neither in memory nor on its way there, but in a slot.
    /// `page` lies in the mapping.
    fn absent_slot(&self, memory: MemoryId, page: u64) -> Option<u64>;

    /// Which such page the slot holds. `slot` lies in the area.
    fn absent_page(&self, slot: u64) -> Option<(MemoryId, u64)>;

    /// How many of so many pages can be read ahead now, while half of what is
    /// kept ready for faults stays: none while reads or faults wait for memory.
    /// What is lacking is made ready beside that, for the next time.
    fn room_for(&mut self, pages: u64) -> u64;

    /// How many faults wait now, this one included.
    fn waiting_faults(&self) -> u64;

    /// How many pages that were read ahead have left memory unused, since the start.
    fn wasted_pages(&self) -> u64;

    /// What is known of the device, and of the pages that stand read ahead; and the
    /// log, for a law that tells why.
    fn evidence(&mut self) -> &mut DeviceEvidence;
}

/// A swap-in law; one for all mappings over a swap area.
pub trait SwapinPolicy: Send {
    /// A fault found its page in memory, marked as read ahead: what is to be read
    /// now, ahead of the next ones?
    fn hit(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> Option<SwapRead>;

    /// A fault must read: what else is to be read with its page?
    fn miss(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> SwapRead;

    /// Whether it tells what it reads ahead, and why, in [`DeviceEvidence::log`].
    fn keeps_log(&self) -> bool {
        false
    }
}

/// The laws by name, each with one line on what it does.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "none",
        line: "reads the page of the fault alone",
        source: include_str!("swapin/none.rs"),
    },
    Policy {
        name: "cluster",
        line: "Linux until 3.7: the whole aligned block of slots, whether that was of use or not",
        source: include_str!("swapin/cluster.rs"),
    },
    Policy {
        name: "hits",
        line: "Linux since 3.8: a block of slots as large as reading ahead was of use lately",
        source: include_str!("swapin/hits.rs"),
    },
    Policy {
        name: "vma",
        line: "Linux since 4.14: by address and direction, for each mapping; `hits` for shared memory",
        source: include_str!("swapin/vma.rs"),
    },
    Policy {
        name: "adaptive",
        line: "as far along a run, of addresses or of slots, as runs were seen to go on",
        source: include_str!("swapin/adaptive.rs"),
    },
];

/// Builds the law that `spec` names, over a device that has a head to move or not.
///
/// # Errors
/// The name or a parameter is unknown, or a value can't be used.
pub fn build(spec: &Spec, is_rotational: bool) -> Result<Box<dyn SwapinPolicy>, SpecError> {
    Ok(match spec.name.as_str() {
        "none" => {
            spec.only(&[])?;
            Box::new(NoSwapReadahead)
        }
        "cluster" => Box::new(Cluster::from_spec(spec)?),
        "hits" => Box::new(Hits::from_spec(spec)?),
        "vma" => Box::new(Vma::from_spec(spec, is_rotational)?),
        "adaptive" => Box::new(AdaptiveSwapin::from_spec(spec)?),
        _ => return Err(policy::unknown("swap-in policy", &spec.name, POLICIES)),
    })
}

/// The most pages that are read at once: `1 << page_cluster`, the parameter by
/// the name that it has in `/proc/sys/vm`, default 3.
fn pages_max(spec: &Spec) -> Result<u64, SpecError> {
    Ok(1 << spec.integer("page_cluster", 3, 0..=10)?)
}

/// The aligned block of `pages` (a power of two) slots that holds `slot`.
const fn block(slot: u64, pages: u64) -> SwapRead {
    SwapRead::Slots(PageRange::new(slot / pages * pages, pages))
}

#[cfg(test)]
mod testing {
    //! Faults as the tests of the laws need them.

    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::{DeviceEvidence, MemoryId, SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries};

    /// On a private mapping and an area of 1,000 pages each.
    pub(super) fn fault(page: u64, slot: u64) -> SwapFault {
        SwapFault {
            memory: MemoryId(0),
            page,
            memory_pages: 1000,
            slot,
            slots: 1000,
            is_shared: false,
        }
    }

    /// A hit, for a law that looks at nothing and answers nothing.
    pub(super) fn hit(policy: &mut dyn SwapinPolicy, fault: SwapFault) {
        assert_eq!(policy.hit(&fault, &mut NoQueries), None);
    }

    /// A miss, for a law that looks at nothing.
    pub(super) fn miss(policy: &mut dyn SwapinPolicy, fault: SwapFault) -> SwapRead {
        policy.miss(&fault, &mut NoQueries)
    }

    struct NoQueries;

    impl SwappedPageQueries for NoQueries {
        fn absent_slot(&self, _memory: MemoryId, _page: u64) -> Option<u64> {
            panic!("the policy looks at nothing")
        }

        fn absent_page(&self, _slot: u64) -> Option<(MemoryId, u64)> {
            panic!("the policy looks at nothing")
        }

        fn room_for(&mut self, _pages: u64) -> u64 {
            panic!("the policy looks at nothing")
        }

        fn waiting_faults(&self) -> u64 {
            panic!("the policy looks at nothing")
        }

        fn wasted_pages(&self) -> u64 {
            panic!("the policy looks at nothing")
        }

        fn evidence(&mut self) -> &mut DeviceEvidence {
            panic!("the policy looks at nothing")
        }
    }
    /// One mapping, all of it swapped out, over a device of which nothing is known.
    pub(super) struct TestSwapArea {
        slots: Vec<u64>,
        pages: Vec<u64>,
        /// By slot.
        absent: BTreeSet<u64>,
        /// Pages that are there and marked.
        ahead: BTreeSet<u64>,
        pub(super) room_pages: u64,
        wasted_pages: u64,
        evidence: DeviceEvidence,
        pub(super) hits: u32,
        pub(super) misses: u32,
        pub(super) last_read: Option<SwapRead>,
    }

    impl TestSwapArea {
        /// Each page in the slot of its own number.
        pub(super) fn in_order(pages: u64) -> TestSwapArea {
            TestSwapArea::new(pages, |page| page)
        }

        /// Each page in a slot of its own, below `pages`.
        pub(super) fn new(pages: u64, slot_of: impl Fn(u64) -> u64) -> TestSwapArea {
            let slots: Vec<u64> = (0..pages).map(slot_of).collect();
            let mut pages_of = alloc::vec![0; pages as usize];
            (0..).zip(&slots).for_each(|(page, &slot)| pages_of[slot as usize] = page);
            TestSwapArea {
                absent: slots.iter().copied().collect(),
                slots,
                pages: pages_of,
                ahead: BTreeSet::new(),
                room_pages: u64::MAX,
                wasted_pages: 0,
                evidence: DeviceEvidence { memory_pages: 8000, ..DeviceEvidence::default() },
                hits: 0,
                misses: 0,
                last_read: None,
            }
        }

        /// A fault; gives the pages that were read beside its own, in order.
        pub(super) fn fault(&mut self, policy: &mut dyn SwapinPolicy, page: u64) -> Vec<u64> {
            let count = self.slots.len() as u64;
            let slot = self.slots[page as usize];
            let (memory_pages, slots) = (count, count);
            let fault = SwapFault { memory_pages, slots, ..fault(page, slot) };
            let wanted = if self.absent.remove(&slot) {
                self.misses += 1;
                Some(policy.miss(&fault, self))
            } else if self.ahead.remove(&page) {
                self.hits += 1;
                policy.hit(&fault, self)
            } else {
                return Vec::new();
            };
            self.last_read = wanted;
            let mut read: Vec<u64> = match wanted {
                None => Vec::new(),
                Some(SwapRead::Slots(range)) => {
                    range.pages().map(|slot| self.pages[slot as usize]).collect()
                }
                Some(SwapRead::Pages(range)) => range.pages().collect(),
            };
            read.retain(|&page| self.absent.remove(&self.slots[page as usize]));
            self.ahead.extend(&read);
            read.sort_unstable();
            read
        }

        /// What was read ahead leaves memory unused; gives how many pages.
        pub(super) fn waste_all(&mut self) -> u64 {
            let pages = core::mem::take(&mut self.ahead);
            self.absent.extend(pages.iter().map(|&page| self.slots[page as usize]));
            self.wasted_pages += pages.len() as u64;
            pages.len() as u64
        }
    }

    impl SwappedPageQueries for TestSwapArea {
        fn absent_slot(&self, _memory: MemoryId, page: u64) -> Option<u64> {
            Some(self.slots[page as usize]).filter(|slot| self.absent.contains(slot))
        }

        fn absent_page(&self, slot: u64) -> Option<(MemoryId, u64)> {
            self.absent.contains(&slot).then(|| (MemoryId(0), self.pages[slot as usize]))
        }

        fn room_for(&mut self, pages: u64) -> u64 {
            pages.min(self.room_pages)
        }

        fn waiting_faults(&self) -> u64 {
            1
        }

        fn wasted_pages(&self) -> u64 {
            self.wasted_pages
        }

        fn evidence(&mut self) -> &mut DeviceEvidence {
            &mut self.evidence
        }
    }
}

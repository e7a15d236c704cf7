//! Swap-in: the pages to read with the page of a fault on swapped-out memory, and the reasons.
//!
//! A policy sees each fault that must read, and each fault that finds a prefetched page. It returns
//! a range, by slot of the swap area or by address. It can query the swapped-out pages and the
//! costs of the device ([`SwappedPageQueries`]). The machine reads the slots in use of that range
//! whose pages are not in memory. The page of the fault itself is always read. All other pages are
//! *marked*. The first fault on a marked page clears the mark and is a *hit*, at which a policy may
//! read more.
//!
//! # Driving memory from an environment
//! An *environment* is the code that runs the programs: it sees their page faults and changes their
//! address spaces. The machine is [`Machine`](crate::machine::Machine), with the same cache, frames
//! and budget as for files:
//!
//! 1. Call [`add_swap`](crate::machine::Machine::add_swap) once for the swap area, and
//!    [`add_memory`](crate::machine::Machine::add_memory) for each mapping.
//! 2. At a page fault, call [`fault`](crate::machine::Machine::fault) with read or write. A write
//!    fault on a page that is mapped read-only makes it dirty.
//! 3. Call [`poll_unmap`](crate::machine::Machine::poll_unmap) until it returns none. Remove the
//!    page from the program's address space, then answer with
//!    [`handle_unmapped`](crate::machine::Machine::handle_unmapped) before any other call. The
//!    answer includes a flag: the page was written since it was mapped. An environment with write
//!    faults passes false, because it has reported them. An environment with dirty bits passes the
//!    bit. After the answer the page can't change without a fault.
//! 4. Call [`poll_request`](crate::machine::Machine::poll_request) and
//!    [`handle_completion`](crate::machine::Machine::handle_completion) as for files.
//!    [`request_buffers`](crate::machine::Machine::request_buffers) returns the frames, from which
//!    a write request takes its data.
//! 5. Call [`poll_faulted`](crate::machine::Machine::poll_faulted) until it returns none. Map the
//!    frame (or fill it with zeros first, if requested), writable only if requested. Resume the
//!    program, and call [`release_fault`](crate::machine::Machine::release_fault).
//!
//! An environment with access bits, such as the modelled one, reports every touch of a mapped page
//! with [`touch`](crate::machine::Machine::touch). Without access bits it sets
//! [`second_chance_pages`](crate::machine::SwapConfig). Pages then stay unmapped for some time
//! before eviction, up to this number. A page that is used again in this time is mapped without a
//! read.

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

/// Identifies a mapping of memory: counted from 0 in the order of registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub u32);

/// A fault on swapped-out memory, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapFault {
    /// The mapping of the page.
    pub memory: MemoryId,
    /// The page, counted from the start of the mapping.
    pub page: u64,
    /// Number of pages of the mapping.
    pub memory_pages: u64,
    /// The slot of the swap area that holds the page.
    pub slot: u64,
    /// Number of slots of the swap area.
    pub slots: u64,
    /// True for shared memory, whose pages have no single address: each process maps them
    /// elsewhere.
    pub is_shared: bool,
}

/// Pages to read. The range may reach past the last slot or page: the machine clips it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapRead {
    /// The pages in these slots.
    Slots(PageRange),
    /// These pages of the mapping, in any slots.
    Pages(PageRange),
}

/// The swapped-out pages, as a policy sees them.
pub trait SwappedPageQueries {
    /// The slot of `page` if it is neither in memory nor being read; `None` otherwise, or without a
    /// slot. `page` lies in the mapping.
    fn absent_slot(&self, memory: MemoryId, page: u64) -> Option<u64>;

    /// Returns the mapping and the page whose data is in the slot, if the page is neither in memory
    /// nor being read. `None` otherwise, or for a free slot. `slot` lies in the area.
    fn absent_page(&self, slot: u64) -> Option<(MemoryId, u64)>;

    /// Number of pages, up to `pages`, that can be prefetched now. Half of the frames reserved for
    /// faults stay free, and the result is 0 while the queue of the device is congested. If the
    /// result is less than `pages`, for either reason, more frames are freed for the next calls.
    fn prefetch_room(&mut self, pages: u64) -> u64;

    /// Number of waiting faults, including this one. The more faults wait, the less the wait of one
    /// of them costs.
    fn waiting_faults(&self) -> u64;

    /// Total number of prefetched pages that left memory unused.
    fn wasted_pages(&self) -> u64;

    /// Evidence of the device and of the prefetched pages, with the decision log.
    fn evidence(&mut self) -> &mut DeviceEvidence;
}

/// A swap-in policy. One instance serves all mappings of a swap area.
pub trait SwapinPolicy: Send {
    /// Handles a fault that found its page in memory, marked as prefetched. Returns the pages to
    /// read ahead of the next faults; `None` to read nothing.
    fn hit(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> Option<SwapRead>;

    /// Handles a fault that must read. Returns the pages to read with its page. They may include
    /// that page or not: the machine reads it in any case.
    fn miss(&mut self, fault: &SwapFault, swapped: &mut dyn SwappedPageQueries) -> SwapRead;

    /// True for a policy that asks [`SwappedPageQueries::evidence`] for the costs of requests.
    fn uses_costs(&self) -> bool {
        true
    }

    /// Returns true if the policy logs its decisions and reasons in [`DeviceEvidence::log`].
    fn keeps_log(&self) -> bool {
        false
    }
}

/// The policies by name, each with a one-line description.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "none",
        line: "reads only the faulting page",
        source: include_str!("swapin/none.rs"),
    },
    Policy {
        name: "cluster",
        line: "Linux until 3.7: always reads the aligned block of slots",
        source: include_str!("swapin/cluster.rs"),
    },
    Policy {
        name: "hits",
        line: "Linux since 3.8: aligned block of slots, sized by recent readahead hits",
        source: include_str!("swapin/hits.rs"),
    },
    Policy {
        name: "vma",
        line: "Linux since 4.14: window by virtual address in each mapping; `hits` for shared memory",
        source: include_str!("swapin/vma.rs"),
    },
    Policy {
        name: "adaptive",
        line: "reads along a run of addresses or slots, as far as earlier runs continued",
        source: include_str!("swapin/adaptive.rs"),
    },
];

/// Builds the policy that `spec` names. `is_rotational`: the device has a moving head.
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of range.
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
        _ => return Err(policy::unknown("swap-in policy", &spec.name, POLICIES.iter())),
    })
}

/// Returns the most pages read at once: `1 << page_cluster`. The parameter has the name that it has
/// in `/proc/sys/vm`; default 3. Fails if it is no number, or above 10 (4 MiB).
fn pages_max(spec: &Spec) -> Result<u64, SpecError> {
    Ok(1 << spec.integer("page_cluster", 3, 0..=10)?)
}

/// The aligned block of `pages` (a power of two) slots that holds `slot`. As in the kernel, the
/// block does not move with the fault.
const fn aligned_block(slot: u64, pages: u64) -> SwapRead {
    SwapRead::Slots(PageRange::new(slot / pages * pages, pages))
}

#[cfg(test)]
mod testing {
    //! Faults for the tests of the policies.

    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::{DeviceEvidence, MemoryId, SwapFault, SwapRead, SwapinPolicy, SwappedPageQueries};

    /// A fault on a private mapping of 1,000 pages and a swap area of 1,000 slots.
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

    /// Reports a hit to a policy that queries nothing and reads nothing at hits.
    pub(super) fn hit(policy: &mut dyn SwapinPolicy, fault: SwapFault) {
        assert_eq!(policy.hit(&fault, &mut NoQueries), None);
    }

    /// Reports a miss to a policy that queries nothing.
    pub(super) fn miss(policy: &mut dyn SwapinPolicy, fault: SwapFault) -> SwapRead {
        policy.miss(&fault, &mut NoQueries)
    }

    /// Swapped-out pages that no policy may query.
    struct NoQueries;

    impl SwappedPageQueries for NoQueries {
        fn absent_slot(&self, _memory: MemoryId, _page: u64) -> Option<u64> {
            panic!("the policy looks at nothing")
        }

        fn absent_page(&self, _slot: u64) -> Option<(MemoryId, u64)> {
            panic!("the policy looks at nothing")
        }

        fn prefetch_room(&mut self, _pages: u64) -> u64 {
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

    /// One mapping, all of it swapped out, on a device without measurements.
    pub(super) struct TestSwapArea {
        /// Slot of each page.
        slots: Vec<u64>,
        /// Page of each slot.
        pages: Vec<u64>,
        /// Slots of the pages that are not in memory.
        absent: BTreeSet<u64>,
        /// Prefetched pages that were not used yet.
        prefetched: BTreeSet<u64>,
        /// Most pages that may be prefetched at once: the result of `prefetch_room`.
        pub(super) room_pages: u64,
        /// Number of prefetched pages that were evicted unused.
        wasted_pages: u64,
        evidence: DeviceEvidence,
        /// Number of faults on prefetched pages.
        pub(super) hits: u32,
        /// Number of faults on absent pages.
        pub(super) misses: u32,
        /// Answer of the policy to the last hit or miss.
        pub(super) last_read: Option<SwapRead>,
    }

    impl TestSwapArea {
        /// Creates an area with each page in the slot of its own number.
        pub(super) fn in_order(pages: u64) -> TestSwapArea {
            TestSwapArea::new(pages, |page| page)
        }

        /// Creates an area with `pages` pages and slots, where page `n` is in slot `slot_of(n)`. No
        /// two pages may have the same slot.
        pub(super) fn new(pages: u64, slot_of: impl Fn(u64) -> u64) -> TestSwapArea {
            let slots: Vec<u64> = (0..pages).map(slot_of).collect();
            let mut pages_of = alloc::vec![0; pages as usize];
            (0..).zip(&slots).for_each(|(page, &slot)| pages_of[slot as usize] = page);
            TestSwapArea {
                absent: slots.iter().copied().collect(),
                slots,
                pages: pages_of,
                prefetched: BTreeSet::new(),
                room_pages: u64::MAX,
                wasted_pages: 0,
                evidence: DeviceEvidence { memory_pages: 8000, ..DeviceEvidence::default() },
                hits: 0,
                misses: 0,
                last_read: None,
            }
        }

        /// Handles a fault as a miss, a hit, or a use of a page in memory. Returns the pages that
        /// were read in addition to the page of the fault, in ascending order.
        pub(super) fn fault(&mut self, policy: &mut dyn SwapinPolicy, page: u64) -> Vec<u64> {
            let count = self.slots.len() as u64;
            let slot = self.slots[page as usize];
            let (memory_pages, slots) = (count, count);
            let fault = SwapFault { memory_pages, slots, ..fault(page, slot) };
            let policy_read = if self.absent.remove(&slot) {
                self.misses += 1;
                Some(policy.miss(&fault, self))
            } else if self.prefetched.remove(&page) {
                self.hits += 1;
                policy.hit(&fault, self)
            } else {
                return Vec::new();
            };
            self.last_read = policy_read;
            let mut read: Vec<u64> = match policy_read {
                None => Vec::new(),
                Some(SwapRead::Slots(range)) => {
                    range.pages().map(|slot| self.pages[slot as usize]).collect()
                }
                Some(SwapRead::Pages(range)) => range.pages().collect(),
            };
            read.retain(|&page| self.absent.remove(&self.slots[page as usize]));
            self.prefetched.extend(&read);
            read.sort_unstable();
            read
        }

        /// Evicts all prefetched, unused pages. Returns their number.
        pub(super) fn evict_unused(&mut self) -> u64 {
            let pages = core::mem::take(&mut self.prefetched);
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

        fn prefetch_room(&mut self, pages: u64) -> u64 {
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

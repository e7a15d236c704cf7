//! Swap-in: what is read beyond the page that a fault on swapped-out memory
//! waits for, and why.
//!
//! A law sees each fault that must read, and each that finds a page which was
//! read ahead; it answers with a range, by slot of the swap area or by address.
//! The machine reads of that range what holds swapped-out memory and is not in
//! memory already; the page of the fault itself it reads whatever the law says.
//! All but that page are *marked*; the first fault on a marked page takes the
//! mark off and is a *hit*.
//!
//! # How a world drives memory
//! The machine is [`ReadPath`](crate::machine::ReadPath), over the same cache,
//! frames and budget as for files:
//!
//! 1. [`add_swap`](crate::machine::ReadPath::add_swap) names the swap area once,
//!    [`add_memory`](crate::machine::ReadPath::add_memory) each mapping.
//! 2. A page fault: [`fault`](crate::machine::ReadPath::fault), with read or
//!    write. A write fault on a page that is mapped read-only makes it dirty.
//! 3. [`poll_unmap`](crate::machine::ReadPath::poll_unmap) until it gives none: take the page out
//!    of the program's address space, then answer with
//!    [`handle_unmapped`](crate::machine::ReadPath::handle_unmapped) before any other call, and say
//!    whether the page was written since it was mapped (a world that takes write
//!    faults says no, it has told of them; one that looks at dirty bits says what
//!    it found). After the answer nobody can change the page without a fault.
//! 4. [`poll_request`](crate::machine::ReadPath::poll_request) and
//!    [`handle_completion`](crate::machine::ReadPath::handle_completion) as for files;
//!    [`request_buffers`](crate::machine::ReadPath::request_buffers) names the
//!    frames, which a write request takes its bytes from.
//! 5. [`poll_faulted`](crate::machine::ReadPath::poll_faulted) until it gives
//!    none: map the frame (or fill it with zeros first, where it says so),
//!    writable only where it says so, let the program go on, and
//!    [`release`](crate::machine::ReadPath::release).
//!
//! A world that sees accessed bits, as the modelled one does, tells of every
//! touch of a mapped page by [`touch`](crate::machine::ReadPath::touch). One
//! that doesn't gives [`second_chance_pages`](crate::machine::SwapConfig): so
//! many pages wait, unmapped, before they go, and one that is used again is
//! mapped without a read.

use alloc::boxed::Box;

use crate::law::{self, Law, Spec, SpecError};
use crate::unit::PageRange;

mod cluster;
mod hits;
mod none;
mod vma;

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

/// A swap-in law; one for all mappings over a swap area.
pub trait SwapinLaw: Send {
    /// A fault found its page in memory, marked as read ahead.
    fn hit(&mut self, fault: &SwapFault);

    /// A fault must read: what else is to be read with its page?
    fn miss(&mut self, fault: &SwapFault) -> SwapRead;
}

/// The laws by name, each with one line on what it does.
pub const LAWS: &[Law] = &[
    Law {
        name: "none",
        line: "reads the page of the fault alone",
        source: include_str!("swapin/none.rs"),
    },
    Law {
        name: "cluster",
        line: "Linux until 3.7: the whole aligned block of slots, whether that was of use or not",
        source: include_str!("swapin/cluster.rs"),
    },
    Law {
        name: "hits",
        line: "Linux since 3.8: a block of slots as large as reading ahead was of use lately",
        source: include_str!("swapin/hits.rs"),
    },
    Law {
        name: "vma",
        line: "Linux since 4.14: by address and direction, for each mapping; `hits` for shared memory",
        source: include_str!("swapin/vma.rs"),
    },
];

/// Builds the law that `spec` names, over a device that has a head to move or not.
///
/// # Errors
/// The name or a parameter is unknown, or a value can't be used.
pub fn build(spec: &Spec, is_rotational: bool) -> Result<Box<dyn SwapinLaw>, SpecError> {
    Ok(match spec.name.as_str() {
        "none" => {
            spec.only(&[])?;
            Box::new(NoSwapReadahead)
        }
        "cluster" => Box::new(Cluster::from_spec(spec)?),
        "hits" => Box::new(Hits::from_spec(spec)?),
        "vma" => Box::new(Vma::from_spec(spec, is_rotational)?),
        _ => return Err(law::unknown("swap-in law", &spec.name, LAWS)),
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
    //! A fault as the tests of the laws need it.

    use super::{MemoryId, SwapFault};

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
}

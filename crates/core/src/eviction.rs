//! Eviction: the pages that stay in memory, and the page that goes when memory is short.
//!
//! A policy keeps the pages of a cache in an order, and selects the next victim. It sees frames by
//! number, and pages by a key, but not their contents.
//!
//! # Reporting of uses
//! A read that finds its page in memory takes no lock and moves no list: it sets two access bits of
//! the page. Uses therefore reach a policy in two ways. If the reader holds the cache's lock anyway
//! (it missed other pages, or it is simulated), the use is reported at once:
//! [`used`](EvictionPolicy::used). All other uses are found when the policy reads the access bits:
//! [`AccessBits::uses`] returns the number of uses since the last call, up to two. A policy reads
//! the bits before it evicts a page, and then handles the uses late. A [`Simulation`] of a trace
//! reports all uses at once, and its access bits are always zero. One code thus serves both: exact
//! in a simulation, and as exact as two bits allow in the cache.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::page::{FileId, FrameId};
use crate::policy::{self, Policy, RegisterError, Registry, Spec, SpecError};
use crate::splitmix;

mod adaptive;
mod arc;
mod clock2q;
mod frame_heap;
mod frame_lists;
mod frequency_sketch;
mod ghosts;
mod lirs;
mod lru;
mod lru_k;
mod mglru;
mod queues;
mod s3fifo;
mod s4fifo;
mod sieve;
mod simulation;
mod slru;
mod two_lists;
mod two_queues;
mod w_tinylfu;

pub use adaptive::AdaptiveEviction;
pub use arc::Arc;
pub use clock2q::Clock2Q;
pub use frame_lists::{FrameLists, List};
pub use ghosts::{GhostList, Ghosts};
pub use lirs::Lirs;
pub use lru::Lru;
pub use lru_k::LruK;
pub use mglru::MgLru;
pub use s3fifo::S3Fifo;
pub use s4fifo::S4Fifo;
pub use sieve::Sieve;
pub use simulation::Simulation;
pub use slru::Slru;
pub use two_lists::TwoLists;
pub(crate) use two_lists::refill;
pub use two_queues::TwoQueues;
pub use w_tinylfu::WTinyLfu;

/// The eviction policies by name, each with a one-line description.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "two-lists",
        line: "Linux's two LRU lists: pages used again move to a protected list",
        source: include_str!("eviction/two_lists.rs"),
    },
    Policy {
        name: "lru",
        line: "evicts the least recently used page",
        source: include_str!("eviction/lru.rs"),
    },
    Policy {
        name: "lru-k",
        line: "evicts the page whose last use but one is the oldest; pages used once leave before",
        source: include_str!("eviction/lru_k.rs"),
    },
    Policy {
        name: "slru",
        line: "two LRU lists: a use moves a page to the protected one, with four fifths of the memory",
        source: include_str!("eviction/slru.rs"),
    },
    Policy {
        name: "w-tinylfu",
        line: "`slru` that a new page enters if its use count exceeds the count of the page to leave",
        source: include_str!("eviction/w_tinylfu.rs"),
    },
    Policy {
        name: "2q",
        line: "a queue for new pages; pages that return after they left it get an LRU list",
        source: include_str!("eviction/two_queues.rs"),
    },
    Policy {
        name: "sieve",
        line: "one queue; a hand clears the marks of used pages and evicts the first without one",
        source: include_str!("eviction/sieve.rs"),
    },
    Policy {
        name: "s3fifo",
        line: "three FIFO queues: pages used once leave from a small first queue",
        source: include_str!("eviction/s3fifo.rs"),
    },
    Policy {
        name: "s4fifo",
        line: "`s3fifo` with parameters for the sizes, the thresholds and a correlation window",
        source: include_str!("eviction/s4fifo.rs"),
    },
    Policy {
        name: "arc",
        line: "splits memory between recent and frequent pages, and adapts the split to the misses",
        source: include_str!("eviction/arc.rs"),
    },
    Policy {
        name: "lirs",
        line: "keeps pages with short reuse distance; keeps part of a loop larger than memory",
        source: include_str!("eviction/lirs.rs"),
    },
    Policy {
        name: "mglru",
        line: "Linux's generations: tiers by use count are protected by their refault rates",
        source: include_str!("eviction/mglru.rs"),
    },
    Policy {
        name: "clock2q",
        line: "`s3fifo` that ignores repeated uses shortly after the first",
        source: include_str!("eviction/clock2q.rs"),
    },
    Policy {
        name: "adaptive",
        line: "follows the policy with the fewest simulated misses on a sample of the pages",
        source: include_str!("eviction/adaptive.rs"),
    },
];

/// Key of a page for a policy: pseudo-random bits, unique for each page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey(pub(crate) u64);

impl PageKey {
    /// The key of a page of a file; unique for files of less than 2^40 pages, and 2^24 of them. The
    /// file's number takes the bits from 40 on.
    pub const fn of(file: FileId, page: u64) -> PageKey {
        PageKey::from_number((file.0 as u64) << 40 ^ page)
    }

    /// Key of the page or block with this number, for callers without files. Different numbers
    /// have different keys.
    pub const fn from_number(number: u64) -> PageKey {
        PageKey(splitmix::mixed(number))
    }
}

/// The way in which a page enters the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOrigin {
    /// A reader requests it, which counts as its first use.
    Demand,
    /// The page is prefetched and not used yet. Only policies with
    /// [`enters_unused`](EvictionPolicy::enters_unused) receive such pages.
    Prefetch,
}

/// Queries about the cache's pages during the search for a victim.
pub trait AccessBits {
    /// Returns the number of unreported uses of the page: 0, 1, or 2 for more. The call resets it
    /// to 0.
    fn uses(&mut self, frame: FrameId) -> u8;

    /// The key of the page in a frame that is on a list.
    fn page(&self, frame: FrameId) -> PageKey;

    /// Number of victims that were taken from this policy and are not evicted yet. They are on no
    /// list. Freeing several pages at once takes several victims.
    fn taken(&self) -> u32;
}

/// An eviction policy: selects the page to evict.
///
/// Its pages are on the [lists of a policy](List::OF_POLICY), and on no other. A page may leave
/// them without notice (it is dropped, or pinned while it was to be evicted). A pinned page returns
/// by [`restore_victim`](EvictionPolicy::restore_victim).
pub trait EvictionPolicy: fmt::Debug + Send {
    /// Records that a page has entered the frame, which is on no list.
    fn enter(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, origin: PageOrigin);

    /// Records another use of the page, now. The page may be pinned and off its list.
    fn used(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey);

    /// Removes the next victim from its list; `None` if the policy's lists are empty. The caller
    /// then calls [`evicted`](EvictionPolicy::evicted) or
    /// [`restore_victim`](EvictionPolicy::restore_victim), or drops the page without notice.
    fn victim(
        &mut self,
        lists: &mut FrameLists,
        access_bits: &mut dyn AccessBits,
    ) -> Option<FrameId>;

    /// Records that the victim has left; the policy may remember it. The default does not.
    fn evicted(&mut self, _lists: &mut FrameLists, _frame: FrameId, _page: PageKey) {}

    /// The frame that the policy will check next for a victim; `None` without a page. The frame
    /// stays on its list. The cache compares its age with the ages of pages outside the policy.
    fn oldest(&mut self, lists: &mut FrameLists) -> Option<FrameId>;

    /// Announces that an absent page will enter next, after the next victim has left. A policy can
    /// remove the page's ghost before the victim's ghost displaces it. A [`Simulation`] calls this;
    /// the page cache does not.
    fn demand(&mut self, _page: PageKey) {}

    /// Returns a victim that did not leave, because it is in use or was pinned. Its frame is on no
    /// list. By default it enters as a new page does.
    fn restore_victim(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.enter(lists, frame, page, PageOrigin::Demand);
    }

    /// Takes over a page from another policy. Pages arrive in that policy's order of eviction, the
    /// first victim first. `was_reused` is true if that policy counted the page as reused: see
    /// [`give_up`](EvictionPolicy::give_up). By default the flag is ignored, and each page enters
    /// as a new one.
    fn adopt(&mut self, lists: &mut FrameLists, frame: FrameId, page: PageKey, was_reused: bool) {
        let _ = was_reused;
        self.enter(lists, frame, page, PageOrigin::Demand);
    }

    /// Sets the size of the cache in pages. The policy keeps its state and its lists: excess pages
    /// have left before, or leave gradually.
    fn resize(&mut self, _lists: &mut FrameLists, _bits: &dyn AccessBits, _pages: u32) {}

    /// Removes all pages from the policy's lists, for another policy to adopt. They are in the
    /// order of eviction, as far as it is known without reading access bits. The flag is true for
    /// pages that the policy counts as reused. By default, these are the pages on [`List::REUSED`].
    fn give_up(&mut self, lists: &mut FrameLists) -> Vec<(FrameId, bool)> {
        lists.take_policy()
    }

    /// Takes over another policy's ghosts of evicted pages, once all pages are adopted. Returns
    /// `None` if it takes them. By default it keeps no ghosts, and returns them unchanged.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        Some(ghosts)
    }

    /// Releases its ghosts for another policy to inherit; `None` if it keeps none, as by default.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        None
    }

    /// Returns true if prefetched pages reach the policy before their first use. Otherwise they
    /// enter at their first use, and the cache keeps them until then.
    fn enters_unused(&self) -> bool {
        false
    }

    /// Returns true if memory that programs map has separate lists next to this policy's, as in
    /// Linux. Otherwise this policy holds its pages like all others.
    fn has_memory_apart(&self) -> bool {
        false
    }
}

/// Number of pages on the policy's lists, without victims that are taken and not yet evicted.
fn policy_pages(lists: &FrameLists) -> u32 {
    List::OF_POLICY.into_iter().map(|list| lists.pages(list)).sum()
}

/// Constructor of a registered eviction policy, for a cache of this number of pages.
pub type BuildEviction = fn(&Spec, u32) -> Result<Box<dyn EvictionPolicy>, SpecError>;

/// Eviction policies of other crates, added by [`register`].
static REGISTERED: Registry<BuildEviction> = Registry::new();

/// Registers an eviction policy of another crate. Its name is then valid wherever an eviction
/// policy is named: in models, traces, the library and the command.
///
/// A path calls the policy under its lock. A panic of the policy there ends the process.
///
/// # Errors
/// The name is malformed or taken.
pub fn register(policy: Policy, build: BuildEviction) -> Result<(), RegisterError> {
    REGISTERED.register(policy, build, POLICIES)
}

/// The policies of this crate, then the registered ones.
pub fn policies() -> impl Iterator<Item = &'static Policy> {
    POLICIES.iter().chain(REGISTERED.policies())
}

/// Builds the policy that `spec` names, for a cache of `pages` pages (at least one).
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of range. Only `s4fifo` has parameters.
pub fn build(spec: &Spec, pages: u32) -> Result<Box<dyn EvictionPolicy>, SpecError> {
    let policy: Box<dyn EvictionPolicy> = match spec.name.as_str() {
        "two-lists" => Box::new(TwoLists),
        "lru" => Box::new(Lru),
        "lru-k" => Box::new(LruK::new(pages)),
        "slru" => Box::new(Slru::new(pages)),
        "w-tinylfu" => Box::new(WTinyLfu::new(pages)),
        "2q" => Box::new(TwoQueues::new(pages)),
        "sieve" => Box::new(Sieve::new()),
        "s3fifo" => Box::new(S3Fifo::new(pages)),
        "s4fifo" => return Ok(Box::new(S4Fifo::from_spec(spec, pages)?)),
        "arc" => Box::new(Arc::new(pages)),
        "lirs" => Box::new(Lirs::new(pages)),
        "mglru" => Box::new(MgLru::new(pages)),
        "clock2q" => Box::new(Clock2Q::new(pages)),
        "adaptive" => Box::new(AdaptiveEviction::new(pages)),
        name => match REGISTERED.find(name) {
            Some(build) => return build(spec, pages),
            None => return Err(policy::unknown("eviction policy", name, policies())),
        },
    };
    // The policies above have no parameters.
    spec.only(&[])?;
    Ok(policy)
}

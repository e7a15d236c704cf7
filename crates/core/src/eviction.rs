//! Reclaim: what stays in memory, and what goes when memory is short.
//!
//! A law keeps the pages of a cache in an order, and names the one that goes next. It sees frames
//! by number, and pages by a key; it knows nothing of what they hold.
//!
//! # When it hears of a use
//! A read that finds its page in memory takes no lock and moves no list: it sets two bits of the
//! page. So a law is told of uses in two ways. Where the reader came by with the cache's lock (it
//! missed other pages; it is simulated), the law is told at once: [`used`](EvictionPolicy::used). All
//! others it learns of when it looks at a page: [`AccessBits::uses`] gives how often the page was used
//! since somebody last looked, up to two. A law looks before it lets a page go, and does then what
//! it would have done at the use. A [`Simulation`] of a trace tells of all uses at once, and there
//! is nothing to see when the law looks. So one code is the law of both, exact in the one and as
//! near as two bits come to it in the other.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::cache::{FileId, FrameId};
use crate::policy::{self, Policy, Spec, SpecError};
use crate::splitmix;

mod adaptive;
mod arc;
mod clock2q;
mod ghosts;
mod lirs;
mod lru;
mod places;
mod queues;
mod s3fifo;
mod simulation;
mod two_lists;

pub use adaptive::AdaptiveEviction;
pub use arc::Arc;
pub use clock2q::Clock2Q;
pub use ghosts::{GhostList, Ghosts};
pub use lirs::Lirs;
pub use lru::Lru;
pub use places::{FrameLists, List};
pub use s3fifo::S3Fifo;
pub use simulation::Simulation;
pub use two_lists::TwoLists;
pub(crate) use two_lists::refill;

/// The reclaim laws by name, each with one line on what it does.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "two-lists",
        line: "pages that are used once flow through, pages that are used again stay",
        source: include_str!("eviction/two_lists.rs"),
    },
    Policy {
        name: "lru",
        line: "what was used longest ago goes first",
        source: include_str!("eviction/lru.rs"),
    },
    Policy {
        name: "s3fifo",
        line: "a small queue filters out what is used once",
        source: include_str!("eviction/s3fifo.rs"),
    },
    Policy {
        name: "arc",
        line: "finds by trial how much memory pages used once get beside those used again",
        source: include_str!("eviction/arc.rs"),
    },
    Policy {
        name: "lirs",
        line: "what comes back soonest stays: a part of a loop that is larger than memory",
        source: include_str!("eviction/lirs.rs"),
    },
    Policy {
        name: "clock2q",
        line: "as s3fifo, and uses soon after the first one count for nothing",
        source: include_str!("eviction/clock2q.rs"),
    },
    Policy {
        name: "adaptive",
        line: "the one of the others that would have missed least of a sample of the pages",
        source: include_str!("eviction/adaptive.rs"),
    },
];

/// Names a page for a law: bits that are as good as random, and two pages never the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageKey(pub(crate) u64);

impl PageKey {
    /// The key of a page of a file; of files of less than 2^40 pages, 2^24 of them.
    pub const fn of(file: FileId, page: u64) -> PageKey {
        PageKey::numbered((file.0 as u64) << 40 ^ page)
    }

    /// The key of the page or block with a number.
    pub const fn numbered(number: u64) -> PageKey {
        PageKey(splitmix::mixed(number))
    }
}

/// How a page comes to a law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOrigin {
    /// Somebody uses it: that use is told by this alone.
    Asked,
    /// It is read ahead, and nobody has used it yet. Only a law that says so gets such pages
    /// ([`enters_unused`](EvictionPolicy::enters_unused)).
    Ahead,
}

/// What a law can find out of the cache's pages while it looks for a victim.
pub trait AccessBits {
    /// How often the page was used since this was last asked, as far as the law wasn't told: 0, 1,
    /// or 2 for more.
    fn uses(&mut self, frame: FrameId) -> u8;

    /// The key of the page in a frame that is on a list.
    fn page(&self, frame: FrameId) -> PageKey;

    /// How many victims of this law were taken and haven't gone yet: what makes room for several
    /// pages at a time takes several.
    fn taken(&self) -> u32;
}

/// A reclaim law: which page goes next.
///
/// Its pages are on the two [lists of a law](List::OF_POLICY), and on no other. A page may leave them
/// without a word (it is dropped, or pinned while it was to go); what is pinned comes back by
/// [`put_back`](EvictionPolicy::put_back).
pub trait EvictionPolicy: fmt::Debug + Send {
    /// A page has come into the frame, which is on no list.
    fn enter(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey, entry: PageOrigin);

    /// The page is used once more, now. It may be off its list, pinned.
    fn used(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey);

    /// Takes the page that goes next off its list; `None` when there is none on the law's lists.
    fn victim(&mut self, places: &mut FrameLists, looks: &mut dyn AccessBits) -> Option<FrameId>;

    /// The victim has gone: the law may remember it.
    fn evicted(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey);

    /// The page that the law will look at next.
    fn oldest(&mut self, places: &mut FrameLists) -> Option<FrameId>;

    /// The page is asked for and absent; it comes when one has gone for it. Told where that is
    /// known before.
    fn demand(&mut self, _page: PageKey) {}

    /// A victim didn't go, because it is in use, or was pinned, and is on no list.
    fn put_back(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey) {
        self.enter(places, frame, page, PageOrigin::Asked);
    }

    /// Takes over a page from another law. They come in the order in which that would have let them
    /// go, the first to go first; `is_kept` where it had it among those that it keeps.
    fn adopt(&mut self, places: &mut FrameLists, frame: FrameId, page: PageKey, is_kept: bool) {
        let _ = is_kept;
        self.enter(places, frame, page, PageOrigin::Asked);
    }

    /// The cache is to have so many pages from now on. What the law has learned stays, and what is on
    /// its lists: pages that are too many have left before, or leave by and by.
    fn resize(&mut self, _places: &mut FrameLists, _looks: &dyn AccessBits, _pages: u32) {}

    /// Gives up its pages, for another law to adopt: in the order in which it would let them go, as far
    /// as it knows that without a look at them, each with whether it is among those that it keeps.
    fn give_up(&mut self, places: &mut FrameLists) -> Vec<(FrameId, bool)> {
        places.take_policy()
    }

    /// Takes over what another law remembers of pages that have left, once all pages are adopted;
    /// gives it back if this law remembers nothing.
    fn inherit(&mut self, ghosts: Ghosts) -> Option<Ghosts> {
        Some(ghosts)
    }

    /// Gives up what it remembers of pages that have left, for another law to inherit.
    fn release_ghosts(&mut self) -> Option<Ghosts> {
        None
    }

    /// Whether pages that are read ahead come to the law before anybody has used them. Else they
    /// come with their first use, and the cache keeps them until then.
    fn enters_unused(&self) -> bool {
        false
    }

    /// Whether memory that programs map has lists of its own beside this law's, as in Linux. Else
    /// its pages are this law's like all others.
    fn has_memory_apart(&self) -> bool {
        false
    }
}

/// How many pages a law has.
fn policy_pages(places: &FrameLists) -> u32 {
    List::OF_POLICY.into_iter().map(|list| places.pages(list)).sum()
}

/// Builds the law that `spec` names, for a cache of so many pages, one at least.
///
/// # Errors
/// The name is unknown, or there is a parameter: these laws have none.
pub fn build(spec: &Spec, pages: u32) -> Result<Box<dyn EvictionPolicy>, SpecError> {
    let policy: Box<dyn EvictionPolicy> = match spec.name.as_str() {
        "two-lists" => Box::new(TwoLists),
        "lru" => Box::new(Lru),
        "s3fifo" => Box::new(S3Fifo::new(pages)),
        "arc" => Box::new(Arc::new(pages)),
        "lirs" => Box::new(Lirs::new(pages)),
        "clock2q" => Box::new(Clock2Q::new(pages)),
        "adaptive" => Box::new(AdaptiveEviction::new(pages)),
        _ => return Err(policy::unknown("eviction policy", &spec.name, POLICIES)),
    };
    spec.only(&[])?;
    Ok(policy)
}

//! Readahead: what is read beyond the request, and why.
//!
//! A law watches the reads of one open file and says which pages to add to the
//! cache ahead of need. It never decides how what *was* asked reaches the
//! device: whatever the law leaves absent, the machine reads in as few and as
//! large requests as the device takes. The one exception is a law that has it
//! read [page by page](Demand::Page), a fault of 2003 that is kept to be measured.
//!
//! State belongs to the open file, as in the kernel: each handle has a law of
//! its own, built by [`build`].

use alloc::boxed::Box;

use crate::policy::{self, Policy, Spec, SpecError};
use crate::unit::{PAGE_BYTES, PageRange};

mod adaptive;
mod advised;
mod credit;
mod evidence;
mod none;
mod ondemand;
mod page_table;
mod readahead_state;
mod recording;
mod runs;
mod window;
mod window_fixed;

pub use adaptive::AdaptiveReadahead;
pub use advised::{KernelCachedPages, KernelPageView};
pub use credit::Credit;
pub use evidence::{
    DeviceEvidence, Era, Evidence, FileEvidence, RunBegin, RunLengths, StreamCounts, WindowTarget,
};
pub(crate) use evidence::{STREAMS_MAX, WINDOW_COST_FACTOR};
pub use none::NoReadahead;
pub use ondemand::{OnDemand, first_window_pages};
pub use page_table::PageTable;
pub use readahead_state::{LatestReadahead, ReadaheadState};
pub use recording::{HandleStep, Recording};
pub use runs::RunsPolicy;
pub use window::Window;
pub use window_fixed::WindowFixed;

/// What a program said about how it will read (`posix_fadvise(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Nothing is known.
    #[default]
    Normal,
    /// In order, soon.
    Sequential,
    /// At places that can't be guessed.
    Random,
    /// The range will be needed: read it now.
    WillNeed,
    /// The range is not needed any more: drop it.
    DontNeed,
}

/// A block of `1 << order` pages, aligned to its size, that was added to the cache as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Folio {
    /// Its first page, a multiple of its size.
    pub first: u64,
    /// The binary logarithm of its size in pages.
    pub order: u8,
}

impl Folio {
    /// The folio of `order` that holds `page`.
    pub const fn holding(page: u64, order: u8) -> Folio {
        Folio { first: page >> order << order, order }
    }

    /// Its pages.
    pub const fn range(self) -> PageRange {
        PageRange::new(self.first, 1 << self.order)
    }
}

/// The pages of one file, as a law sees and extends them.
pub trait PageView {
    /// Whether the page is in the cache, or on its way into it.
    fn is_cached(&self, page: u64) -> bool;

    /// Whether the page is in the cache and its bytes are there.
    fn is_filled(&self, page: u64) -> bool;

    /// Whether the page was read ahead, and nobody has used it yet.
    fn is_unused(&self, page: u64) -> bool;

    /// What is known beside the pages: of the device, and of the file.
    fn evidence(&mut self) -> Evidence<'_>;

    /// The block that `page` came in as, if it is cached. A cache of single
    /// pages leaves this as it is.
    fn folio(&self, page: u64) -> Option<Folio> {
        self.is_cached(page).then_some(Folio { first: page, order: 0 })
    }

    /// What is added from here on belongs to another window: it reaches the
    /// device in requests of its own, which the scheduler may still merge with
    /// their neighbours. Only the laws of 2003 call it, to be measured as they were.
    fn begin_window(&mut self) {}

    /// The folio of `page`, if it carries the readahead mark.
    fn marked(&self, page: u64) -> Option<Folio>;

    /// Takes the readahead mark off.
    fn clear_mark(&mut self, folio: Folio);

    /// Adds a folio, none of whose pages is cached, and has it read.
    ///
    /// Adjacent folios that are added during one call of the law reach the
    /// device together. Returns false when memory is short: nothing was added,
    /// and the law had better stop.
    fn add(&mut self, folio: Folio, is_marked: bool) -> bool;

    /// Adds the absent pages of a range, each as a folio, the first of them marked if
    /// `is_marked`. Returns false when memory is short: then those before were added.
    fn add_absent(&mut self, range: PageRange, is_marked: bool) -> bool {
        let mut marks = is_marked;
        for page in range.pages() {
            if self.is_cached(page) {
                continue;
            }
            if !self.add(Folio::holding(page, 0), marks) {
                return false;
            }
            marks = false;
        }
        true
    }

    /// How many pages directly before `page` are cached, counted up to `most`.
    fn cached_run_before(&self, page: u64, most: u64) -> u64 {
        (1..=most.min(page))
            .find(|&back| !self.is_cached(page - back))
            .map_or(most.min(page), |back| back - 1)
    }
}

/// One read, as a law sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The first byte asked for.
    pub offset: u64,
    /// How many bytes are asked for; may reach past the end of the file.
    pub bytes: u64,
    /// The length of the file in bytes.
    pub file_bytes: u64,
    /// Whether the device's queue is so full that reading ahead would only add to the wait.
    pub is_congested: bool,
}

impl ReadRequest {
    /// The pages asked for, past the end of the file too.
    pub const fn request(&self) -> PageRange {
        PageRange::covering(self.offset, self.bytes)
    }

    /// How many pages the file has.
    pub const fn file_pages(&self) -> u64 {
        self.file_bytes.div_ceil(PAGE_BYTES)
    }
}

/// How a read goes on with what was asked and is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// All of it is read now, in as few requests as the device takes.
    Whole,
    /// One page is read now, in a request of its own; once it is there, the law is asked again.
    Page,
}

/// A readahead law: it watches the reads of one open file.
///
/// Order of calls: any of `read`, `fault`, `advise`, in the order in which the
/// program made them, and `demand` after each `read` or `fault`. `passed` is called
/// only when [`sees_every_hit`] is false.
///
/// [`sees_every_hit`]: ReadaheadLaw::sees_every_hit
pub trait ReadaheadPolicy: Send {
    /// A read came. The law adds to `pages` what should be read now; whatever
    /// it leaves absent of the request, the machine adds afterwards.
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView);

    /// A memory-mapped access touched `page`, cached or not. As [`read`](ReadaheadPolicy::read).
    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView);

    /// The program gave a hint. `WillNeed` and `DontNeed` name a range and are
    /// carried out by the machine; the law hears of them all the same.
    fn advise(&mut self, advice: Advice);

    /// The read has come to `page`, cached or not: how it goes on. Asked first after
    /// [`read`](ReadaheadPolicy::read) or [`fault`](ReadaheadPolicy::fault), for the first page, and
    /// after each [`Demand::Page`] for the next one, when the pages before it are there.
    fn demand(&mut self, _page: u64, _ask: &ReadRequest, _pages: &mut dyn PageView) -> Demand {
        Demand::Whole
    }

    /// Whether the law tells the log of the [`Evidence`] what it reads ahead, and why.
    fn keeps_log(&self) -> bool {
        false
    }

    /// Whether the machine holds the law to what its pages have [earned](Credit). The laws of Linux are
    /// left as they were.
    fn is_on_credit(&self) -> bool {
        true
    }

    /// Whether [`read`](ReadaheadPolicy::read) must be called for a read that finds
    /// every page cached and none marked. A law that can do without makes such
    /// reads cheaper where many threads share a cache; it is then told of the
    /// last of them with [`passed`](ReadaheadPolicy::passed).
    fn sees_every_hit(&self) -> bool {
        true
    }

    /// Reads found all their pages cached and unmarked, and were not shown; the
    /// last of them ended at byte `end` of the file.
    fn passed(&mut self, _end: u64) {}

    /// The file, of so many pages, was closed: nothing more is read through this handle. The last
    /// page that was is `last_page`, where that is known.
    fn closed(&mut self, _last_page: Option<u64>, _file_pages: u64, _device: &mut DeviceEvidence) {}
}

/// What a readahead law may know of the device that it reads ahead from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadaheadLimits {
    /// The most pages to read ahead (`read_ahead_kb` / 4).
    pub window_pages_max: u64,
    /// The device's largest request in pages.
    pub request_pages_max: u64,
}

impl Default for ReadaheadLimits {
    /// The kernel's defaults: 128 KiB of readahead, and requests of up to 1280 KiB.
    fn default() -> ReadaheadLimits {
        ReadaheadLimits { window_pages_max: 32, request_pages_max: 320 }
    }
}

/// The laws by name, each with one line on what it does.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "none",
        line: "reads what was asked, whole, and nothing beyond it",
        source: include_str!("readahead/none.rs"),
    },
    Policy {
        name: "window",
        line: "Linux 2.6.0-test2-mm4: a window by pages hit and missed, with the fault of 2003",
        source: include_str!("readahead/window.rs"),
    },
    Policy {
        name: "window-fixed",
        line: "`window` with the repair of 2003: no read is ever cut into single pages",
        source: include_str!("readahead/window_fixed.rs"),
    },
    Policy {
        name: "ondemand",
        line: "Linux since 2.6.23: windows that double as a stream goes on, up to a maximum",
        source: include_str!("readahead/ondemand.rs"),
    },
    Policy {
        name: "runs",
        line: "for mapped files: learns how long the runs are that faults show, and reads one whole",
        source: include_str!("readahead/runs.rs"),
    },
    Policy {
        name: "adaptive",
        line: "what the evidence says will be used, as far ahead as the device needs",
        source: include_str!("readahead/adaptive.rs"),
    },
];

/// Builds the law that `spec` names, for one open file.
///
/// # Errors
/// The name or a parameter is unknown, or a value can't be used.
pub fn build(spec: &Spec, limits: &ReadaheadLimits) -> Result<Box<dyn ReadaheadPolicy>, SpecError> {
    Ok(match spec.name.as_str() {
        "none" => {
            spec.only(&[])?;
            Box::new(NoReadahead)
        }
        "window" => Box::new(Window::from_spec(spec, limits)?),
        "window-fixed" => Box::new(WindowFixed::from_spec(spec, limits)?),
        "ondemand" => Box::new(OnDemand::from_spec(spec, limits)?),
        "runs" => Box::new(RunsPolicy::from_spec(spec, limits)?),
        "adaptive" => Box::new(AdaptiveReadahead::from_spec(spec)?),
        _ => return Err(policy::unknown("readahead policy", &spec.name, POLICIES)),
    })
}

/// The largest window in pages: the parameter `read_ahead_kb` (default: the device's).
fn window_pages(spec: &Spec, limits: &ReadaheadLimits) -> Result<u64, SpecError> {
    let page_kib = PAGE_BYTES / 1024;
    let kib = spec.integer("read_ahead_kb", limits.window_pages_max * page_kib, 0..=1 << 20)?;
    Ok(kib / page_kib)
}

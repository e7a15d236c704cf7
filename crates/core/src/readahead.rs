//! Readahead: the pages to read beyond the request, and the reasons.
//!
//! A policy observes the reads of one open file and selects pages to add to the cache before they
//! are needed. It has no influence on the way the *requested* pages reach the device. The machine
//! reads all requested pages that the policy leaves absent, in as few and as large requests as the
//! device accepts. The one exception is a policy that requests reading [page by
//! page](Demand::Page), a fault of 2003 that is kept to be measured.
//!
//! State belongs to the open file, as in the kernel: each handle has its own policy, built by
//! [`build`].

use alloc::boxed::Box;

use crate::policy::{self, Policy, RegisterError, Registry, Spec, SpecError};
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

/// Access pattern that a program declared (`posix_fadvise(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Advice {
    /// No declaration.
    #[default]
    Normal,
    /// Sequential access.
    Sequential,
    /// Random access.
    Random,
    /// The range will be needed: read it now.
    WillNeed,
    /// The range is not needed any more: drop it.
    DontNeed,
}

/// A block of `1 << order` pages, aligned to its size, that was added to the cache as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Folio {
    /// The first page, a multiple of the folio's size.
    pub first: u64,
    /// The binary logarithm of the folio's size in pages.
    pub order: u8,
}

/// Order of the folio of a single page.
const SINGLE_PAGE_ORDER: u8 = 0;

impl Folio {
    /// The folio of `order` that holds `page`.
    pub const fn holding(page: u64, order: u8) -> Folio {
        Folio { first: page >> order << order, order }
    }

    /// The pages of the folio.
    pub const fn range(self) -> PageRange {
        PageRange::new(self.first, 1 << self.order)
    }
}

/// The pages of one file, as a policy sees and extends them.
///
/// A *readahead mark* is a flag of a prefetched page. The policy sets it where the use of the page
/// should start the next readahead.
pub trait PageView {
    /// Returns true if the page is in the cache, or being read into it.
    fn is_cached(&self, page: u64) -> bool;

    /// Returns true if the page is in the cache and its data has arrived.
    fn is_filled(&self, page: u64) -> bool;

    /// Returns true if the page was prefetched and is not used yet.
    fn is_unused(&self, page: u64) -> bool;

    /// Evidence of the device and of the file.
    fn evidence(&mut self) -> Evidence<'_>;

    /// The folio that `page` belongs to; `None` if the page is not cached. The default is for a
    /// cache of single pages.
    fn folio(&self, page: u64) -> Option<Folio> {
        self.is_cached(page).then_some(Folio { first: page, order: SINGLE_PAGE_ORDER })
    }

    /// Starts a new window: pages added from here on reach the device in separate requests. The
    /// scheduler may still merge these with their neighbours. Only the policies of 2003 call it.
    fn begin_window(&mut self) {}

    /// The folio of `page`, if it carries the readahead mark; `None` otherwise.
    fn marked(&self, page: u64) -> Option<Folio>;

    /// Removes the readahead mark from the pages of the folio.
    fn clear_mark(&mut self, folio: Folio);

    /// Marks a cached page, so that its next use is reported to the policy. No effect on an absent
    /// page, nor by default: the next use is then reported only if its reader waits.
    fn mark(&mut self, _page: u64) {}

    /// Adds a folio, none of whose pages is cached, and submits its read.
    ///
    /// Adjacent folios that are added during one call of the policy reach the device together.
    /// Returns false when memory is short: the folio was not added, and the policy should stop.
    fn add(&mut self, folio: Folio, is_marked: bool) -> bool;

    /// Adds the absent pages of a range, each as a folio. Marks the first of them if `is_marked`.
    /// Returns false when memory is short: the pages before that point were added.
    fn add_absent(&mut self, range: PageRange, is_marked: bool) -> bool {
        let mut is_next_marked = is_marked;
        for page in range.pages() {
            if self.is_cached(page) {
                continue;
            }
            if !self.add(Folio::holding(page, SINGLE_PAGE_ORDER), is_next_marked) {
                return false;
            }
            is_next_marked = false;
        }
        true
    }

    /// Stops counting unused prefetched pages of a range as prefetched, because their reader has
    /// passed them. No effect in a cache that evicts such pages itself.
    fn forget_unused(&mut self, _range: PageRange) {}

    /// Number of cached pages directly before `page`, without a gap; at most `pages_max`.
    fn cached_run_before(&self, page: u64, pages_max: u64) -> u64 {
        (1..=pages_max.min(page))
            .find(|&distance| !self.is_cached(page - distance))
            .map_or(pages_max.min(page), |distance| distance - 1)
    }
}

/// One read, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The first requested byte.
    pub offset: u64,
    /// Number of requested bytes; may reach past the end of the file.
    pub bytes: u64,
    /// The length of the file in bytes.
    pub file_bytes: u64,
    /// True if the device's queue is so full that readahead would only add to the wait.
    pub is_congested: bool,
}

impl ReadRequest {
    /// The requested pages, past the end of the file too.
    pub const fn request(&self) -> PageRange {
        PageRange::covering(self.offset, self.bytes)
    }

    /// Number of pages of the file.
    pub const fn file_pages(&self) -> u64 {
        self.file_bytes.div_ceil(PAGE_BYTES)
    }
}

/// Way in which the machine reads the absent part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// All absent pages now, in as few requests as the device accepts.
    Whole,
    /// One page now, in a request of its own. `demand` is called again when it has arrived.
    Page,
}

/// A readahead policy: it observes the reads of one open file.
///
/// Order of calls: any of `read`, `fault`, `advise`, in the order of the program's calls, and
/// `demand` after each `read` or `fault`. `record_cached_reads` is called only when
/// [`needs_every_hit`](ReadaheadPolicy::needs_every_hit) returns false.
pub trait ReadaheadPolicy: Send {
    /// Handles a read. The policy adds to `pages` the pages to be read now. The machine then adds
    /// all pages of the request that are still absent.
    fn read(&mut self, request: &ReadRequest, pages: &mut dyn PageView);

    /// Handles a memory-mapped access to `page`, cached or not. The policy adds pages as in
    /// [`read`](ReadaheadPolicy::read).
    fn fault(&mut self, page: u64, request: &ReadRequest, pages: &mut dyn PageView);

    /// Handles the program's advice. For `WillNeed` and `DontNeed`, which name a range, the machine
    /// does the work, and the call only informs the policy.
    fn advise(&mut self, advice: Advice);

    /// Returns the way to continue a read at `page`, cached or not. Called after
    /// [`read`](ReadaheadPolicy::read) or [`fault`](ReadaheadPolicy::fault) for the first page.
    /// After each [`Demand::Page`] it is called for the next page, once the pages before it have
    /// arrived.
    fn demand(&mut self, _page: u64, _request: &ReadRequest, _pages: &mut dyn PageView) -> Demand {
        Demand::Whole
    }

    /// Returns true if the policy logs its decisions and reasons in the log of the [`Evidence`].
    fn keeps_log(&self) -> bool {
        false
    }

    /// Returns true if the machine limits the policy by its [`Credit`]. The policies of Linux are
    /// exempt.
    fn is_limited_by_credit(&self) -> bool {
        true
    }

    /// Returns true if request costs influence the policy: through the [`Evidence`], or through
    /// the limit by its [`Credit`]. A machine without such a policy need not measure them
    /// ([`Config::learns_unused_costs`](crate::machine::Config::learns_unused_costs)).
    fn uses_costs(&self) -> bool {
        true
    }

    /// Returns true if [`read`](ReadaheadPolicy::read) must be called even for a read that finds
    /// every page cached and none marked. False makes such reads cheaper where many threads share a
    /// cache. The policy then receives only the end of the last of them, in
    /// [`record_cached_reads`](ReadaheadPolicy::record_cached_reads).
    fn needs_every_hit(&self) -> bool {
        true
    }

    /// Records that reads were skipped because all their pages were cached and unmarked. The last
    /// of them ended at byte `end_byte` of the file.
    fn record_cached_reads(&mut self, end_byte: u64) {
        let _ = end_byte;
    }

    /// Records that this handle was closed. The file has `file_pages` pages; `last_page` is the
    /// last page read, if known.
    fn on_close(&mut self, last_page: Option<u64>, file_pages: u64, device: &mut DeviceEvidence) {
        let _ = (last_page, file_pages, device);
    }
}

/// Limits of the device for a readahead policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadaheadLimits {
    /// Most pages to read ahead (`read_ahead_kb` / 4).
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

/// The policies of this crate by name, each with a one-line description.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "none",
        line: "no readahead: reads the requested pages only, in one request",
        source: include_str!("readahead/none.rs"),
    },
    Policy {
        name: "window",
        line: "Linux 2.6.0-test2-mm4: window sized by hits and misses, with the collapse of 2003",
        source: include_str!("readahead/window.rs"),
    },
    Policy {
        name: "window-fixed",
        line: "`window` with the repair of 2003: large reads stay whole when the window is off",
        source: include_str!("readahead/window_fixed.rs"),
    },
    Policy {
        name: "ondemand",
        line: "Linux since 2.6.23: window doubles along a sequential stream, up to a maximum",
        source: include_str!("readahead/ondemand.rs"),
    },
    Policy {
        name: "runs",
        line: "for mapped files: learns run lengths from page faults, and reads whole runs",
        source: include_str!("readahead/runs.rs"),
    },
    Policy {
        name: "adaptive",
        line: "predicts pages from recorded runs; window sized by measured device costs",
        source: include_str!("readahead/adaptive.rs"),
    },
];

/// Constructor of a registered readahead policy.
pub type BuildReadahead =
    fn(&Spec, &ReadaheadLimits) -> Result<Box<dyn ReadaheadPolicy>, SpecError>;

static REGISTERED: Registry<BuildReadahead> = Registry::new();

/// Registers a readahead policy of another crate. Its name is then valid wherever a readahead
/// policy is named: in models, traces, the library and the command.
///
/// A path calls the policy under its lock. A panic of the policy there ends the process.
///
/// # Errors
/// The name is malformed or taken.
pub fn register(policy: Policy, build: BuildReadahead) -> Result<(), RegisterError> {
    REGISTERED.register(policy, build, POLICIES)
}

/// The policies of this crate, then the registered ones.
pub fn policies() -> impl Iterator<Item = &'static Policy> {
    POLICIES.iter().chain(REGISTERED.policies())
}

/// Builds the policy that `spec` names, for one open file.
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of range.
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
        // A policy of another crate.
        name => match REGISTERED.find(name) {
            Some(build) => return build(spec, limits),
            None => return Err(policy::unknown("readahead policy", name, policies())),
        },
    })
}

/// The largest window in pages: the parameter `read_ahead_kb`, by default the limit of the device;
/// at most 1 GiB.
fn window_pages(spec: &Spec, limits: &ReadaheadLimits) -> Result<u64, SpecError> {
    let page_kib = PAGE_BYTES / 1024;
    let kib = spec.integer("read_ahead_kb", limits.window_pages_max * page_kib, 0..=1 << 20)?;
    Ok(kib / page_kib)
}

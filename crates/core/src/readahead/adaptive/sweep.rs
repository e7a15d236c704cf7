//! Whole-file prefetch: reads all of a file, or a region of it, that is under random access.
//!
//! The decision follows ski rental. A cost in pages is the time in which the device transfers that
//! number of pages. The *marginal cost* of a request is the time that one more request costs the
//! waiting readers. A request that continues no stream and misses pages adds its marginal cost to
//! `cost_paid_pages`. Its own pages are not counted, because they must be read in any case. If the
//! device is limited by bandwidth alone, there is therefore nothing to save. A request that finds
//! all its pages adds its marginal cost to `cost_avoided_pages`. The benefit of reading the rest is
//! unknown in advance, because the program may end with its next request. It becomes visible as
//! avoided cost.
//!
//! How it works:
//!
//! - *Budget.* The pages read this way are at most a sixteenth of the cost paid, plus twice the
//!   cost avoided. A file whose other pages are never used therefore costs at most a sixteenth
//!   more. A file whose pages are used increases its budget, and is read in a few steps that double
//!   in size.
//! - *Whole file.* Prefetch begins once a 64th of the file was requested and the cost paid equals
//!   half of its pages. The file is read from its first page, in pieces at least as large as the
//!   cost of a request. The file must fit into a quarter of the memory, or into all of it once an
//!   eighth of the file was requested. A lone reader with long waits has a file that fits into the
//!   memory read into free frames before that.
//! - *Spare memory.* A larger file may fill memory that would stay free
//!   ([`spare_pages`](DeviceEvidence::spare_pages)), for a lone reader: next to other reads the
//!   prefetch takes bandwidth that they need. The pages read are then at most a sixteenth of the
//!   cost paid, plus the cost avoided, so the prefetch never costs more than a sixteenth in all.
//! - *Region.* A region qualifies if it received at least three times the average number of
//!   requests per page, not counting the first few. Coincidence does not explain such a density.
//!   The expected number of future requests equals the number so far. The region is read once the
//!   cost paid in it, or the budget from other regions, equals its pages.

use super::super::{DeviceEvidence, Evidence, FileEvidence, PageView, WINDOW_COST_FACTOR};
use super::{AccessContext, LatestReadahead, record_window};
use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};
use crate::unit::PageRange;

/// Reciprocal of the share of a file that must be requested before the rest is read, if the file is
/// larger than a quarter of the memory. Without this rule such files were never read whole: random
/// 16 KiB reads of half of a 128 MiB file in 256 MiB of memory reached 0.47 of the best result
/// (held-out set).
const REQUESTED_SHARE_DIVISOR: u64 = 8;

/// Least price of a page of the spare memory in picoseconds: the time at 1 GB/s, and the processor
/// time of the kernel that adds it. Random reads of one size do not separate the cost of a request
/// from the cost of its bytes. On a disk with 1 GB/s, reads of 16 KiB made a page seem to take 1.1
/// µs. For waits of 54 µs a read, 223 MiB were then prefetched in 0.3 s. Advice for 256 MiB takes
/// 0.08 s of processor time (`bench/notes/access-patterns.md`).
const SPARE_PAGE_PS: u64 = 5_300_000;

/// Reason of a whole-file prefetch in the decision log.
const WHOLE_FILE: &str = "asked";

/// Reason of the prefetch of a dense region in the decision log.
const REGION: &str = "region";

/// Accounts for a request that continues no stream, and prefetches the next piece of the file if
/// the budget allows it. A reader that moves over the file in one direction (`is_one_pass`) does
/// not return, so no piece is read for it.
///
/// Early prefetch for a lone reader applies to files of at most `whole_file_pages_max` pages, if
/// its waits are long enough to pay for it (`is_lone_paid`).
///
/// The costs of the request are recorded in every case. The pages read this way
/// (`whole_file_pages`) have a budget for each file (`budget_pages`). The whole-file prefetch
/// begins once the cost paid is half of the file's pages (`is_cost_paid`). A dense region is
/// considered only while the whole-file prefetch has not begun. The next piece of the file is read
/// only if it is at least as large as the cost of a request, or is the rest of the file.
pub(super) fn sweep(
    access: AccessContext,
    is_one_pass: bool,
    whole_file_pages_max: u64,
    pages: &mut dyn PageView,
) {
    let AccessContext { request, file_pages, is_touch, .. } = access;
    let absent_pages = request.pages().filter(|&page| !pages.is_cached(page)).count() as u64;
    let Evidence { device, file } = pages.evidence();
    let marginal_cost_pages = device.marginal_cost_pages(request.count());
    record_cost(absent_pages, marginal_cost_pages, device, file);
    if is_one_pass {
        return;
    }
    let cost_paid_pages = file.cost_paid_pages;
    let is_share_requested = file.has_requested_share(REQUESTED_SHARE_DIVISOR, file_pages);
    let is_lone_paid = file_pages <= whole_file_pages_max
        && is_lone(device, file)
        && latency_pays(device, request.count());
    // Pages that fit into the policy's own memory come before the spare one.
    let room_pages = room_pages(device, is_lone_paid, is_share_requested, file_pages);
    let fills_spare = room_pages == 0 && device.spare_pages > 0;
    let budget_pages = match fills_spare {
        true => {
            in_spare_pages(device, cost_paid_pages / WINDOW_COST_FACTOR + file.cost_avoided_pages)
        }
        false => cost_paid_pages / WINDOW_COST_FACTOR + 2 * file.cost_avoided_pages,
    };
    let budget_left_pages = budget_pages.saturating_sub(file.whole_file_pages);
    let read_end = file.whole_file_end.unwrap_or(0);
    let is_cost_paid = match fills_spare {
        true => 2 * in_spare_pages(device, cost_paid_pages) >= file_pages,
        false => 2 * cost_paid_pages >= file_pages,
    };
    let may_begin_prefetch = file.has_requested_share(DECAY_WINDOW, file_pages) && is_cost_paid;
    if read_end == 0
        && absent_pages > 0
        && let Some((region, region_cost_pages)) =
            dense_region(request, marginal_cost_pages, file_pages, budget_left_pages, device, file)
    {
        return read_marked(region, REGION, region_cost_pages, is_touch, pages);
    }
    if read_end >= file_pages {
        if absent_pages > 0 {
            // The whole file was read and pages are missing, so they were evicted. Accounting
            // starts again.
            *file = FileEvidence { newest: file.newest, ..FileEvidence::new(file.number) };
        }
        return;
    }
    let may_fill = match fills_spare {
        true => is_lone_paid && file_pages <= device.spare_pages,
        false => room_pages > 0,
    };
    if !may_fill || (read_end == 0 && !may_begin_prefetch) {
        return;
    }
    let request_cost_pages = device.estimate.request_cost_pages();
    let chunk_pages = budget_left_pages
        .min(WINDOW_COST_FACTOR * request_cost_pages)
        .min(read_pages_max(device))
        .min(if fills_spare { u64::MAX } else { room_pages });
    if chunk_pages >= marginal_cost_pages.min(file_pages - read_end) {
        let chunk = PageRange::new(read_end, chunk_pages).clipped(file_pages);
        // While it is set, the view counts added pages in the spare memory.
        pages.evidence().file.fills_spare = fills_spare;
        read_marked(chunk, WHOLE_FILE, cost_paid_pages, is_touch, pages);
        pages.evidence().file.fills_spare = false;
    }
}

/// Adds the marginal cost of a request, which misses `absent_pages` pages, to the costs that the
/// file has paid. A request without a missing page avoided its cost, and is counted nowhere else.
/// *Scattered* requests continue no stream and miss pages; *crowded* ones were made while another
/// read was open.
fn record_cost(
    absent_pages: u64,
    marginal_cost_pages: u64,
    device: &DeviceEvidence,
    file: &mut FileEvidence,
) {
    if absent_pages == 0 {
        file.cost_avoided_pages += marginal_cost_pages;
        return;
    }
    file.scattered_requests += 1;
    // The open reads include this one.
    file.crowded_requests += u64::from(device.open_reads > 1);
    file.scattered_pages += absent_pages;
    file.cost_paid_pages += marginal_cost_pages;
}

/// Returns true if a file has one reader at a time: no other read is open, and at most one of
/// [`WINDOW_COST_FACTOR`] scattered requests was made next to another read. Next to other reads,
/// the prefetch would take their bandwidth.
fn is_lone(device: &DeviceEvidence, file: &FileEvidence) -> bool {
    device.open_reads <= 1 && file.crowded_requests * WINDOW_COST_FACTOR <= file.scattered_requests
}

/// Number of pages of a file that may be prefetched into the policy's own memory.
///
/// The result is unlimited (`u64::MAX`) for a file of up to a quarter of the memory, and of up to
/// all of it once a share of 1 / [`REQUESTED_SHARE_DIVISOR`] was requested. Before that, a file
/// that fits has the free frames, if it has a lone reader with long waits (`is_lone_paid`): nothing
/// is evicted for it. 0 for any other file.
fn room_pages(
    device: &DeviceEvidence,
    is_lone_paid: bool,
    is_share_requested: bool,
    file_pages: u64,
) -> u64 {
    let memory_divisor = if is_share_requested { 1 } else { 4 };
    if file_pages <= device.memory_pages / memory_divisor {
        return u64::MAX;
    }
    match is_lone_paid && file_pages <= device.memory_pages {
        true => device.free_pages,
        false => 0,
    }
}

/// Returns true if a request of `request_pages` pages costs at least [`WINDOW_COST_FACTOR`] pages
/// of the spare memory without its bytes. Shorter waits don't pay: on a disk with 30 to 60 µs a
/// read, a lone reader took 1.05 to 1.2 times as long with the prefetch; at 180 µs 0.65, and at 1.1
/// ms 0.22.
fn latency_pays(device: &DeviceEvidence, request_pages: u64) -> bool {
    let page_ps = device.estimate.page_ps();
    let request_ps = device.estimate.request_ns() * 1000 + request_pages * page_ps;
    request_ps >= (request_pages + WINDOW_COST_FACTOR) * page_ps.max(SPARE_PAGE_PS)
}

/// Number of pages of the spare memory that cost as much as `cost_pages` pages of the device.
fn in_spare_pages(device: &DeviceEvidence, cost_pages: u64) -> u64 {
    let page_ps = device.estimate.page_ps();
    let price_ps = page_ps.max(SPARE_PAGE_PS);
    (u128::from(cost_pages) * u128::from(page_ps) / u128::from(price_ps)) as u64
}

/// Prefetches the range and marks each page, so that its first use is reported. In a mapping
/// (`is_touch`) each report costs a fault, so only one of 4 pages ([`MIN_SAMPLES`]) is marked.
/// `why` ([`WHOLE_FILE`] or [`REGION`]) and `cost_paid_pages` are for the log. The end of the
/// whole-file prefetch is moved. The read ends earlier if memory is short.
fn read_marked(
    range: PageRange,
    why: &'static str,
    cost_paid_pages: u64,
    is_touch: bool,
    pages: &mut dyn PageView,
) {
    let is_marked = |page: u64| !is_touch || page.is_multiple_of(MIN_SAMPLES);
    let add_page = |page: &u64| pages.add_absent(PageRange::new(*page, 1), is_marked(*page));
    let count = range.pages().take_while(add_page).count() as u64;
    let file = &mut *pages.evidence().file;
    file.whole_file_pages += count;
    if why == WHOLE_FILE {
        file.whole_file_end = Some(range.first + count);
    }
    if count > 0 {
        let added = range.clipped(range.first + count);
        record_window(
            pages,
            LatestReadahead {
                range: added,
                shape: "sweep",
                why,
                behind: cost_paid_pages,
                size: count,
            },
        );
    }
}

/// Maximum number of pages in one prefetch: an eighth of the memory. Independent of the number of
/// unused pages, which limits windows: that number is known late, and would make the result depend
/// on the time of the check.
fn read_pages_max(device: &DeviceEvidence) -> u64 {
    device.memory_pages / 8
}

/// Returns the region of the request and the cost paid in it, if the region qualifies for being
/// read. A region qualifies if it is dense, paid for, and has at most [`read_pages_max`] pages.
/// Counts the request in the region, with its marginal cost. Resets the counts if the region
/// qualifies.
///
/// `budget_left_pages` is the rest of the file's budget. The cost paid in the region or this budget
/// must cover the region, and the budget must not be used up.
fn dense_region(
    request: PageRange,
    marginal_cost_pages: u64,
    file_pages: u64,
    budget_left_pages: u64,
    device: &DeviceEvidence,
    file: &mut FileEvidence,
) -> Option<(PageRange, u64)> {
    // The region with the first page of the request; its other pages may lie in the next one.
    let (region, counts) = file.regions.region_at(request.first, file_pages);
    counts.cost_paid_pages = counts.cost_paid_pages.saturating_add(marginal_cost_pages as u32);
    counts.requests += 1;
    // The first 4 requests of a region (`MIN_SAMPLES`) are no evidence.
    let counted_requests = u64::from(counts.requests).saturating_sub(MIN_SAMPLES);
    // At least three times the file's average number of requests per page.
    let is_dense = counted_requests * file_pages >= 3 * file.scattered_requests * region.count();
    let cost_paid_pages = u64::from(counts.cost_paid_pages);
    let is_paid = budget_left_pages > 0 && cost_paid_pages.max(budget_left_pages) >= region.count();
    if !(is_dense && is_paid && region.count() <= read_pages_max(device)) {
        return None;
    }
    // The region must be paid for again before it is read again.
    *counts = Default::default();
    Some((region, cost_paid_pages))
}

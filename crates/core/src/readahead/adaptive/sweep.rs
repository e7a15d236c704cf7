//! Whole-file prefetch: reads all of a file, or a region of it, that is under random access.
//!
//! The decision follows ski rental. A request that continues no stream and misses pages adds the
//! marginal cost of its request to `cost_paid_pages`. Its own pages are not counted, because they
//! must be read in any case. If the device is limited by bandwidth alone, there is therefore
//! nothing to save. A request that finds all its pages adds its marginal cost to
//! `cost_avoided_pages`. The benefit of reading the rest is unknown in advance, because the program
//! may end with its next request. It becomes visible as avoided cost.
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
//!   eighth of the file was requested.
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
const SHARE_ASKED: u64 = 8;

/// Least price of a page of the spare memory in picoseconds: the time at 1 GB/s, and the processor
/// time of the kernel that adds it. Random reads of one size do not separate the cost of a request
/// from the cost of its bytes. On a disk with 1 GB/s, reads of 16 KiB made a page seem to take 1.1
/// µs. For waits of 54 µs a read, 223 MiB were then prefetched in 0.3 s. Advice for 256 MiB takes
/// 0.08 s of processor time (`bench/notes/access-patterns.md`).
const SPARE_PAGE_PS: u64 = 5_300_000;

/// Accounts for a request that continues no stream, and prefetches the next piece of the file if
/// the budget allows it. A reader that moves over the file in one direction (`passes`) does not
/// return, so nothing is read for it.
pub(super) fn sweep(access: AccessContext, passes: bool, pages: &mut dyn PageView) {
    let AccessContext { request, file_pages, is_touch, .. } = access;
    let absent_pages = request.pages().filter(|&page| !pages.is_cached(page)).count() as u64;
    let Evidence { device, file } = pages.evidence();
    let marginal_cost = device.marginal_cost_pages(request.count());
    if absent_pages > 0 {
        file.scattered_requests += 1;
        file.scattered_pages += absent_pages;
        file.cost_paid_pages += marginal_cost;
    } else {
        file.cost_avoided_pages += marginal_cost;
    }
    let cost_paid_pages = file.cost_paid_pages;
    let is_much_asked = file.is_asked(SHARE_ASKED, file_pages);
    let fits = file_pages <= device.memory_pages / if is_much_asked { 1 } else { 4 };
    let fills_spare = !fits && device.spare_pages > 0;
    let may_be_read = match fills_spare {
        true => {
            at_spare_price(device, cost_paid_pages / WINDOW_COST_FACTOR + file.cost_avoided_pages)
        }
        false => cost_paid_pages / WINDOW_COST_FACTOR + 2 * file.cost_avoided_pages,
    };
    let budget_earned = may_be_read.saturating_sub(file.whole_file_pages);
    let read_end = file.whole_file_end.unwrap_or(0);
    let is_spent = match fills_spare {
        true => 2 * at_spare_price(device, cost_paid_pages) >= file_pages,
        false => 2 * cost_paid_pages >= file_pages,
    };
    let may_begin = file.is_asked(DECAY_WINDOW, file_pages) && is_spent;
    if passes {
        return;
    }
    if read_end == 0
        && absent_pages > 0
        && let Some((region, cost_paid_pages)) =
            dense_region(request, marginal_cost, file_pages, budget_earned, device, file)
    {
        return read(region, "region", cost_paid_pages, is_touch, pages);
    }
    if read_end >= file_pages {
        if absent_pages > 0 {
            // The whole file was read and pages are missing, so they were evicted. Accounting
            // starts again.
            *file = FileEvidence { newest: file.newest, ..FileEvidence::new(file.number) };
        }
        return;
    }
    let fits_spare = device.open_reads <= 1
        && file_pages <= device.spare_pages
        && latency_pays(device, request.count());
    let may_fill = if fills_spare { fits_spare } else { read_end > 0 || fits };
    if !may_fill || (read_end == 0 && !may_begin) {
        return;
    }
    let cost_pages = device.estimate.request_cost_pages();
    let chunk_pages = budget_earned.min(WINDOW_COST_FACTOR * cost_pages).min(pages_max(device));
    if chunk_pages >= marginal_cost.min(file_pages - read_end) {
        let chunk = PageRange::new(read_end, chunk_pages).clipped(file_pages);
        pages.evidence().file.fills_spare = fills_spare;
        read(chunk, "asked", cost_paid_pages, is_touch, pages);
        pages.evidence().file.fills_spare = false;
    }
}

/// Returns true if a request of `pages` pages costs at least [`WINDOW_COST_FACTOR`] pages of the
/// spare memory without its bytes. On a disk with 30 to 60 µs a read, a lone reader took 1.05 to
/// 1.2 times as long with the prefetch; at 180 µs 0.65, and at 1.1 ms 0.22.
fn latency_pays(device: &DeviceEvidence, pages: u64) -> bool {
    let page_ps = device.estimate.page_ps();
    let request_ps = device.estimate.request_ns() * 1000 + pages * page_ps;
    request_ps >= (pages + WINDOW_COST_FACTOR) * page_ps.max(SPARE_PAGE_PS)
}

/// Number of pages of the spare memory that cost as much as `cost_pages` pages of the device.
fn at_spare_price(device: &DeviceEvidence, cost_pages: u64) -> u64 {
    let page_ps = device.estimate.page_ps();
    let price_ps = page_ps.max(SPARE_PAGE_PS);
    (u128::from(cost_pages) * u128::from(page_ps) / u128::from(price_ps)) as u64
}

/// Prefetches the range and marks each page, so that its first use is reported. In a mapping each
/// report costs a fault, so only one of [`MIN_SAMPLES`] pages is marked.
fn read(
    range: PageRange,
    why: &'static str,
    cost_paid_pages: u64,
    is_touch: bool,
    pages: &mut dyn PageView,
) {
    let is_marked = |page: u64| !is_touch || page.is_multiple_of(MIN_SAMPLES);
    let is_added = |page: &u64| pages.add_absent(PageRange::new(*page, 1), is_marked(*page));
    let count = range.pages().take_while(is_added).count() as u64;
    let file = &mut *pages.evidence().file;
    file.whole_file_pages += count;
    if why == "asked" {
        file.whole_file_end = Some(range.first + count);
    }
    if count > 0 {
        let range = range.clipped(range.first + count);
        record_window(
            pages,
            LatestReadahead { range, shape: "sweep", why, behind: cost_paid_pages, size: count },
        );
    }
}

/// Maximum number of pages read at once. Independent of the number of unused pages, which limits
/// windows: that number is known late, and would make the result depend on the time of the check.
fn pages_max(device: &DeviceEvidence) -> u64 {
    device.memory_pages / 8
}

/// Returns the region of the request and the cost paid in it, if the region qualifies for being
/// read. Adds `cost_pages` to the region's cost, and resets its counters if it qualifies.
fn dense_region(
    request: PageRange,
    cost_pages: u64,
    file_pages: u64,
    budget_earned: u64,
    device: &DeviceEvidence,
    file: &mut FileEvidence,
) -> Option<(PageRange, u64)> {
    let (region, access) = file.regions.at(request.first, file_pages);
    access.cost_paid_pages = access.cost_paid_pages.saturating_add(cost_pages as u32);
    access.requests += 1;
    let more = u64::from(access.requests).saturating_sub(MIN_SAMPLES);
    let is_denser = more * file_pages >= 3 * file.scattered_requests * region.count();
    let cost_paid_pages = u64::from(access.cost_paid_pages);
    let is_paid = budget_earned > 0 && cost_paid_pages.max(budget_earned) >= region.count();
    if !(is_denser && is_paid && region.count() <= pages_max(device)) {
        return None;
    }
    *access = Default::default();
    Some((region, cost_paid_pages))
}

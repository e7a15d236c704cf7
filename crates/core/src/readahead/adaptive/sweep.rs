//! What is being used up at random is read whole: all of a file, or a part of it.
//!
//! A request that continues no stream and finds pages absent pays *rent*: the price of one more
//! request at that moment. Its pages are no rent, for they would have had to be read all the same;
//! so where the device is busy with bytes alone, there is nothing to be spared. One that finds all
//! its pages has *saved* what it would have paid. When reading the rest pays nobody can know, for
//! any program may end with its next request; but what was read can be seen to pay for itself. The
//! law in words:
//!
//! - *On what was earned.* In all no more is read so than a sixteenth of the rent, with which it is
//!   tried, and twice what that has saved since. So a file of which nobody wants more costs a
//!   sixteenth more; one that is used up goes on to earn, and is read in a few steps that double.
//! - *A file* is begun with once a 64th of it was asked for and half of the price of its pages was
//!   paid. It is read from its first page on, in pieces that cost no less than a request. And it
//!   must fit: into a quarter of the memory, or into all of it once an eighth of the file was asked
//!   for.
//! - *A part* counts for itself in which more than three times as many requests fell as in the
//!   others on average, a few aside: no chance does that. It is taken to be asked for as much again
//!   as it was. So it is read once the price of its pages was paid there, or was earned by others.

use super::super::{DeviceEvidence, Evidence, FileEvidence, PageView, WINDOW_COST_FACTOR};
use super::{AccessContext, LatestReadahead, say};
use crate::observed::{DECAY_WINDOW, MIN_SAMPLES};
use crate::unit::PageRange;

/// The share of a file larger than a quarter of the memory that was asked for before the rest is
/// read. Without, such files were never read whole: half of 128 MiB by 16 KiB in 256 MiB of memory
/// had 0.47 of the best, held out.
const SHARE_ASKED: u64 = 8;

/// A request that continues no stream was seen: it counts, and the sweep goes on. A reader
/// that `passes` over the file in one direction does not come back, and has no part read whole.
pub(super) fn sweep(seen: AccessContext, passes: bool, pages: &mut dyn PageView) {
    let AccessContext { request, file_pages, is_touch, .. } = seen;
    let absent = request.pages().filter(|&page| !pages.is_cached(page)).count() as u64;
    let Evidence { device, file } = pages.evidence();
    let marginal_cost = device.marginal_cost_pages(request.count());
    if absent > 0 {
        file.scattered_requests += 1;
        file.scattered_pages += absent;
        file.cost_paid_pages += marginal_cost;
    } else {
        file.cost_avoided_pages += marginal_cost;
    }
    let cost_paid_pages = file.cost_paid_pages;
    let may_be_read = cost_paid_pages / WINDOW_COST_FACTOR + 2 * file.cost_avoided_pages;
    let budget_earned = may_be_read.saturating_sub(file.whole_file_pages);
    let read_end = file.whole_file_end.unwrap_or(0);
    if passes {
        return;
    }
    if read_end == 0
        && absent > 0
        && let Some((region, cost_paid_pages)) =
            dense_region(request, marginal_cost, file_pages, budget_earned, device, file)
    {
        return read(region, "region", cost_paid_pages, is_touch, pages);
    }
    if read_end >= file_pages {
        if absent > 0 {
            // It was read whole and still pages are missing: they were evicted. What is spent
            // from here on counts anew.
            *file = FileEvidence { newest: file.newest, ..FileEvidence::new(file.number) };
        }
        return;
    }
    let is_asked = |share: u64| share * file.scattered_pages >= file_pages;
    let fits = file_pages <= device.memory_pages / if is_asked(SHARE_ASKED) { 1 } else { 4 };
    let is_spent = 2 * cost_paid_pages >= file_pages;
    let begins = is_asked(DECAY_WINDOW) && is_spent && fits;
    if read_end == 0 && !begins {
        return;
    }
    let cost_pages = device.estimate.request_cost_pages();
    let chunk_pages = budget_earned.min(WINDOW_COST_FACTOR * cost_pages).min(pages_max(device));
    if chunk_pages >= marginal_cost.min(file_pages - read_end) {
        let chunk = PageRange::new(read_end, chunk_pages).clipped(file_pages);
        read(chunk, "asked", cost_paid_pages, is_touch, pages);
    }
}

/// Reads the range, of which each page tells when it is used; of a mapping, where that takes a
/// fault each, one of a few.
fn read(
    range: PageRange,
    why: &'static str,
    behind: u64,
    is_touch: bool,
    pages: &mut dyn PageView,
) {
    let tells = |page: u64| !is_touch || page.is_multiple_of(MIN_SAMPLES);
    let is_there = |page: &u64| pages.add_absent(PageRange::new(*page, 1), tells(*page));
    let count = range.pages().take_while(is_there).count() as u64;
    let file = &mut *pages.evidence().file;
    file.whole_file_pages += count;
    if why == "asked" {
        file.whole_file_end = Some(range.first + count);
    }
    if count > 0 {
        let range = range.clipped(range.first + count);
        say(pages, LatestReadahead { range, shape: "sweep", why, behind, size: count });
    }
}

/// How much is read at a time, at the most. It doesn't go by what stands unused, as windows do:
/// that is known late, and a part would be read whole or not by when it was looked at.
fn pages_max(device: &DeviceEvidence) -> u64 {
    device.memory_pages / 8
}

/// The region in which the request fell and cost so much, if it is being used up for itself, and
/// what was paid for it. It counts anew then.
fn dense_region(
    request: PageRange,
    cost_pages: u64,
    file_pages: u64,
    budget_earned: u64,
    device: &DeviceEvidence,
    file: &mut FileEvidence,
) -> Option<(PageRange, u64)> {
    let (region, seen) = file.regions.at(request.first, file_pages);
    seen.cost_paid_pages = seen.cost_paid_pages.saturating_add(cost_pages as u32);
    seen.requests += 1;
    let more = u64::from(seen.requests).saturating_sub(MIN_SAMPLES);
    let is_denser = more * file_pages >= 3 * file.scattered_requests * region.count();
    let cost_paid_pages = u64::from(seen.cost_paid_pages);
    let is_paid = budget_earned > 0 && cost_paid_pages.max(budget_earned) >= region.count();
    if !(is_denser && is_paid && region.count() <= pages_max(device)) {
        return None;
    }
    *seen = Default::default();
    Some((region, cost_paid_pages))
}

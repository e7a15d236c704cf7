//! A file that is being used up at random is read whole.
//!
//! Reading all of a file costs so many random requests as its bytes cost. Once
//! half as many were spent on it, reading the rest at most triples what was spent,
//! and may save nearly all that would still be: the rule of who rents skis, and
//! buys when the rent has come to the price. Two more conditions keep it from
//! reading what is not wanted: an eighth of the file was asked for by now, and
//! the file fits in memory.

use super::super::{Evidence, FileEvidence, Pages};
use super::{Ahead, say};
use crate::unit::PageRange;

/// The share of the file that was asked for before the rest is read.
const SHARE_ASKED: u64 = 8;

/// A request that continues no stream was seen: it counts, and the sweep goes on.
pub(super) fn sweep(request: PageRange, file_pages: u64, pages: &mut dyn Pages) {
    let absent = request.pages().filter(|&page| !pages.is_cached(page)).count() as u64;
    let Evidence { device, file } = pages.evidence();
    if absent > 0 {
        file.scattered_pages += absent;
        file.scattered_requests += 1;
    }
    let is_asked = file.scattered_pages >= file_pages.div_ceil(SHARE_ASKED);
    if file.swept_end.is_none() && !is_asked {
        return;
    }
    let spent_pages = file.scattered_requests * device.price_pages() + file.scattered_pages;
    let is_spent = 2 * spent_pages >= file_pages;
    let fits = file_pages <= device.memory_pages;
    if file.swept_end.is_none() && !(is_spent && fits) {
        return;
    }
    let first = file.swept_end.unwrap_or(0);
    let cost_pages = device.estimate.request_cost_pages();
    let chunk_pages = (16 * cost_pages).min(device.window_share_pages());
    if first >= file_pages {
        // It was read whole and still pages are missing: they were evicted. What was
        // spent since counts anew.
        *file = FileEvidence { number: file.number, ..FileEvidence::default() };
        return;
    }
    if first > 0 && pages.is_cached(first - 1) && !pages.is_filled(first - 1) {
        return;
    }
    let chunk = PageRange::new(first, chunk_pages).clipped(file_pages);
    if pages.add_absent(chunk, false) {
        pages.evidence().file.swept_end = Some(chunk.end);
        let (behind, size) = (spent_pages, chunk.count());
        say(pages, Ahead { range: chunk, shape: "sweep", why: "asked", behind, size });
    }
}

//! What is being used up at random is read whole: all of a file, or a part of it.
//!
//! Reading all of it costs so many random requests as its bytes cost. Once
//! half as many were spent on it, reading the rest at most triples what was spent,
//! and may save nearly all that would still be: the rule of who rents skis, and
//! buys when the rent has come to the price. Two more conditions keep it from
//! reading what is not wanted: an eighth of the file was asked for by now, and
//! it fits in memory.
//!
//! Most programs use some parts of a file more than others. A part in which so many more requests fell
//! than in the others that it is no chance is taken to go on as it began: it will be asked as
//! much again as it was. So it is read once its requests have cost twice what reading it whole would, whatever share of
//! it they asked for: should it end there, half again of what it cost was spent in vain.

use super::super::{DeviceEvidence, Evidence, FileEvidence, Pages, REQUESTS_SHARE};
use super::{Ahead, say};
use crate::unit::PageRange;

/// The share that was asked for before the rest is read.
const SHARE_ASKED: u64 = 8;

/// A part counts for itself in which more requests fell than would in any other by so many times what chance varies them by.
/// At four times some part of a thousand has as many by chance (geometric mean on the developed cells 1.561, 104 of them below 0.95); at six
/// none (1.553, 97), nor at eight (1.546, 96).
const DEVIATIONS: u64 = 6;

/// A request that continues no stream was seen: it counts, and the sweep goes on.
pub(super) fn sweep(request: PageRange, file_pages: u64, pages: &mut dyn Pages) {
    let absent = request.pages().filter(|&page| !pages.is_cached(page)).count() as u64;
    let Evidence { device, file } = pages.evidence();
    if absent > 0 {
        file.scattered_pages += absent;
        file.scattered_requests += 1;
    }
    if file.swept_end.is_none()
        && absent > 0
        && let Some((region, spent_pages)) = dense_region(request, absent, file_pages, device, file)
    {
        pages.add_absent(region, false);
        let (behind, size) = (spent_pages, region.count());
        say(pages, Ahead { range: region, shape: "sweep", why: "region", behind, size });
        return;
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
    let chunk_pages = (REQUESTS_SHARE * cost_pages).min(pages_max(device));
    if first >= file_pages {
        // It was read whole and still pages are missing: they were evicted. What was
        // spent since counts anew.
        *file = FileEvidence { newest: file.newest, ..FileEvidence::new(file.number) };
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

/// How much is read at a time, at the most. It doesn't go by what stands unused, as windows do: that is known late, and a part
/// would be read whole or not by when it was looked at.
fn pages_max(device: &DeviceEvidence) -> u64 {
    device.memory_pages / 8
}

/// The region in which the request found so many pages absent, if it is being used up for itself, and
/// what was spent on it, in pages. It counts anew then.
fn dense_region(
    request: PageRange,
    absent: u64,
    file_pages: u64,
    device: &DeviceEvidence,
    file: &mut FileEvidence,
) -> Option<(PageRange, u64)> {
    let file_requests = file.scattered_requests;
    let (region, seen) = file.regions.at(request.first, file_pages);
    seen.pages += absent as u32;
    seen.requests += 1;
    let (asked, requests) = (u64::from(seen.pages), u64::from(seen.requests));
    let by_chance = (file_requests * region.count()).div_ceil(file_pages.max(1));
    // What chance makes differs from its mean by the root of it, and from a small one by more.
    let more = requests.saturating_sub(by_chance);
    let is_denser = more * more >= DEVIATIONS * DEVIATIONS * (by_chance + 1);
    let spent_pages = requests * device.price_pages() + asked;
    let is_spent = spent_pages >= 2 * region.count();
    let fits = region.count() <= pages_max(device);
    if !(is_denser && is_spent && fits) {
        return None;
    }
    *seen = Default::default();
    Some((region, spent_pages))
}

//! `adaptive`: reads ahead what the evidence says will be used, as far ahead as the device needs.
//!
//! Ideally a reader never waits for a page that could have been foreseen, and no page is read that
//! nobody uses. The law in words:
//!
//! - *Streams, not descriptors.* A handle may carry many streams: forward, backward, strided. A
//!   request that continues none may begin one; the next request that continues it (a third one,
//!   for a stride) shows that it did. A stride is one in bytes, or in pages (`adaptive/stride.rs`).
//! - *How far it goes* is learned (`length_distribution.rs`): of the runs that came to a length,
//!   how many went on. It is learned apart for runs that begin with their file, for strides, and
//!   for requests anywhere, by their sizes; for in these a program's pieces differ. And apart for
//!   what goes on with a request of another size, more than twice as large or less than half: a
//!   header and what it names. A run has ended when its reader goes elsewhere, or closes the file
//!   before its end. While nothing is known a run comes to twice its length as likely as not, and a
//!   request anywhere is not expected to go on.
//! - *The window is what costs least.* Too small a window is paid for in requests, too large a one
//!   in pages that nobody uses. The price is that of one more request, in pages
//!   (`DeviceEvidence::window`). No knob, and no window that a device would have to be told: a
//!   disk's requests are dear, a solid-state drive's are cheap, and both are measured.
//! - *The price is that of the moment.* What a request occupies of the device is taken from all who
//!   wait: nearly all of it on a disk, next to nothing on many drives. The rest, its latency, one
//!   reader waits for: of `n` that wait it is an `n`-th of what they get done meanwhile. It costs
//!   no more than the device has nothing to do for the others: nothing where they are so many that
//!   it is never idle (`estimate.rs`).
//! - *The next window* is read when the reader has to wait for a page; and when it comes to the
//!   middle of the newest, if that it goes on to its end is likely enough to make a request for
//!   which nobody waits. Of a run that has not gone on yet it isn't known where it goes: wherever
//!   in its window the reader is next, the law hears of it.
//! - *Of a mapping* it hears of each touch of a page that was not used before and that whoever
//!   serves the mapping has left for it to hear of. It decides at the same places, and learns from
//!   all of them how far runs go.
//! - *It is bounded by what it risks.* No more is ahead than will still be in memory when the
//!   reader comes to it, by the part that the stream has of all that is asked for: at first that of
//!   one among as many as there are. Nor is it more than such a part of the memory that is not read
//!   ahead into yet. A page that was read ahead and is gone halves the window, and what is left of
//!   it is gone through anew.
//! - *Round ends.* Windows end at multiples of a power of two: servers, stripes and drives take
//!   bytes so.
//! - *A gap is read through* when it is smaller than the block before it and costs less than a
//!   request occupies; else the blocks of a stride are read one by one.
//! - *A file that is being used up at random is read whole*, and so is a part in which far more
//!   requests fall than in the others: on a sixteenth of what such requests have cost, and then on
//!   what that has saved (`adaptive/sweep.rs`).
//! - *Anything else is read as it was asked.* A request that finds all its pages filled, none of
//!   them marked, costs nothing but that look.
//!
//! Hints are where belief starts: after `SEQUENTIAL` each request begins a run that is told to go
//! on, as at the begin of a file; after `RANDOM` nothing is read ahead of a request that continues
//! none, until one went on, nor of a stride, and nothing is read whole. What is seen later of runs
//! outweighs both.

use alloc::collections::VecDeque;

use super::{
    Advice, DeviceEvidence, Evidence, LatestReadahead, PageView, ReadRequest, ReadaheadPolicy,
    RunBegin, STREAMS_MAX,
};
use crate::decision::Decision;
use crate::observed::EWMA_WINDOW;
use crate::policy::{Spec, SpecError};
use crate::unit::{PAGE_BYTES, PageRange};

mod reaches;
mod run;
mod stream;
mod stride;
mod sweep;

use reaches::Reaches;
use stream::ReadStream;
use stride::RandomAccess;

/// The law `adaptive`, for one open file.
#[derive(Clone, Debug, Default)]
pub struct AdaptiveReadahead {
    /// The streams, the one that was seen last at the end.
    streams: VecDeque<ReadStream>,
    /// What a request must touch to continue each of them.
    reaches: Reaches,
    /// The last request that continued none.
    last_scattered: Option<RandomAccess>,
    /// How many such requests in a row lay above the one before, or below it.
    rises: u64,
    falls: u64,
    advice: Advice,
    /// Whether the last stream that went on went down.
    goes_down: bool,
    /// Whether a request has continued another since that advice.
    has_gone_on: bool,
}

/// A request, and what it finds.
#[derive(Clone, Copy, Debug)]
struct AccessContext {
    request: PageRange,
    /// The same in bytes: where it begins, and how many.
    offset: u64,
    bytes: u64,
    file_pages: u64,
    /// Whether a page of it isn't there, so that the reader waits.
    waits: bool,
    /// Whether a page of it is not even on its way: no guess had it.
    misses: bool,
    /// Whether a page of it is marked.
    is_marked: bool,
    /// Whether it is a touch of a mapping: then the law hears of the first touch of any page,
    /// marked or not.
    is_touch: bool,
}

impl AccessContext {
    fn by(
        request: PageRange,
        ask: &ReadRequest,
        is_touch: bool,
        pages: &dyn PageView,
    ) -> AccessContext {
        let (mut waits, mut misses, mut is_marked) = (false, false, false);
        for page in request.pages() {
            waits |= !pages.is_filled(page);
            misses |= !pages.is_cached(page);
            is_marked |= pages.marked(page).is_some();
        }
        let (offset, bytes) = match is_touch {
            true => (request.first * PAGE_BYTES, PAGE_BYTES),
            false => (ask.offset, ask.bytes),
        };
        let file_pages = ask.file_pages();
        AccessContext { request, offset, bytes, file_pages, waits, misses, is_marked, is_touch }
    }

    /// Whether it is the time to see whether more is to be read.
    fn is_due(&self) -> bool {
        self.waits || self.is_marked
    }
}

impl AdaptiveReadahead {
    /// Parses `adaptive`: it has no parameter.
    ///
    /// # Errors
    /// A parameter is given.
    pub fn from_spec(spec: &Spec) -> Result<AdaptiveReadahead, SpecError> {
        spec.only(&[])?;
        Ok(AdaptiveReadahead::default())
    }

    /// How many pages are worth reading ahead of the run that was seen last, where that began at a
    /// place of which nothing was known; `None` where it began with its file, as a stride, or where
    /// it was told to go on.
    pub fn wanted_anywhere(&self) -> Option<u64> {
        self.streams.back()?.wanted_anywhere()
    }

    /// A request that finds a page absent, or marked, or touches one that was read ahead.
    fn seen(&mut self, seen: AccessContext, pages: &mut dyn PageView) {
        for page in seen.request.pages() {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        }
        match self.continued_by(&seen, pages) {
            Some(at) => {
                self.reaches.remove(at);
                let mut stream = self.streams.remove(at).expect("it was found there");
                let is_due = seen.is_due() || !stream.has_gone_on();
                stream.advance(&seen, pages);
                self.goes_down = stream.is_backward();
                // Who jumps as it has said may jump as far four times.
                let is_random = self.advice == Advice::Random && stream.is_strided();
                self.has_gone_on |= !is_random;
                if is_due && !is_random {
                    stream.read_ahead(seen, pages);
                }
                self.push(stream);
            }
            None => self.random_access(seen, pages),
        }
    }

    /// The stream that the request continues, the one that was seen last first.
    fn continued_by(&self, seen: &AccessContext, pages: &dyn PageView) -> Option<usize> {
        let request = seen.request;
        self.reaches.last(request, |at| {
            let reach = self.streams[at].reach();
            let touches = reach.first <= request.end && request.first <= reach.end;
            touches && self.streams[at].is_continued_by(seen, pages)
        })
    }

    /// The stream was seen last.
    fn push(&mut self, stream: ReadStream) {
        self.reaches.push(stream.reach());
        self.streams.push_back(stream);
    }

    /// A request that continues no stream: it may begin one.
    fn random_access(&mut self, seen: AccessContext, pages: &mut dyn PageView) {
        let request = seen.request;
        if let Some(stream) = self.streams.back_mut() {
            stream.left(pages);
        }
        let random_access = RandomAccess::after(self.last_scattered, &seen);
        let stride = random_access.stride(self.last_scattered);
        let (is_above, is_below) = random_access.way();
        self.rises = if is_above { self.rises + 1 } else { 0 };
        self.falls = if is_below { self.falls + 1 } else { 0 };
        self.last_scattered = Some(random_access);
        let begun_at = pages.evidence().device.requested_pages();
        let is_random = self.advice == Advice::Random && (stride.is_some() || !self.has_gone_on);
        let begin = match self.advice {
            _ if stride.is_some() => RunBegin::Stride,
            Advice::Sequential => RunBegin::Told,
            _ if request.first == 0 && !is_random => RunBegin::Told,
            _ => RunBegin::Request { pages: request.count() },
        };
        let mut stream = match (stride, begin) {
            (Some(stride), _) => ReadStream::strided(request, stride, begun_at),
            (None, RunBegin::Told) => ReadStream::begun(request, begin, begun_at),
            _ => ReadStream::begun(request, begin, begun_at).taken_to_go(self.goes_down),
        };
        if !is_random {
            stream.read_ahead(seen, pages);
            // A reader that passes over the file in one direction leaves behind what it did not ask
            // for.
            let passes = self.rises.max(self.falls) >= EWMA_WINDOW;
            if matches!(begin, RunBegin::Request { .. }) && self.advice != Advice::Random {
                sweep::sweep(seen, passes, pages);
            }
        }
        if self.streams.len() == STREAMS_MAX
            && let Some(mut forgotten) = self.streams.pop_front()
        {
            self.reaches.remove(0);
            forgotten.leave(pages.evidence().device);
        }
        self.push(stream);
    }
}

impl ReadaheadPolicy for AdaptiveReadahead {
    fn read(&mut self, ask: &ReadRequest, pages: &mut dyn PageView) {
        let seen = AccessContext::by(ask.request().clipped(ask.file_pages()), ask, false, pages);
        if seen.is_due() {
            self.seen(seen, pages);
        }
    }

    fn fault(&mut self, page: u64, ask: &ReadRequest, pages: &mut dyn PageView) {
        let seen = AccessContext::by(PageRange::new(page, 1), ask, true, pages);
        if seen.is_due() || pages.is_unused(page) {
            self.seen(seen, pages);
        }
    }

    fn advise(&mut self, advice: Advice) {
        if matches!(advice, Advice::Normal | Advice::Sequential | Advice::Random) {
            self.advice = advice;
            self.has_gone_on = false;
        }
    }

    fn keeps_log(&self) -> bool {
        true
    }

    fn closed(&mut self, last_page: Option<u64>, file_pages: u64, device: &mut DeviceEvidence) {
        self.streams.drain(..).for_each(|mut stream| stream.closed(last_page, file_pages, device));
    }

    /// [`read`](ReadaheadPolicy::read) passes over a request that finds everything.
    fn sees_every_hit(&self) -> bool {
        false
    }
}

/// Says what was read ahead, and what is known that bears on it.
fn say(pages: &mut dyn PageView, ahead: LatestReadahead) {
    let Evidence { device, file } = pages.evidence();
    file.newest = Some(ahead);
    if !device.log.is_on() {
        return;
    }
    let LatestReadahead { range, shape, why, behind, size } = ahead;
    let decision = Decision::ReadAhead {
        file: file.number,
        first: range.first,
        pages: range.count(),
        shape,
        why,
        behind,
        size,
        readers: device.reads_under_way,
        request_pages: device.estimate.request_cost_pages(),
        service_pages: device.estimate.request_service_pages(),
        unused_pages: device.standing_pages,
    };
    device.log.say(device.now, || decision);
}

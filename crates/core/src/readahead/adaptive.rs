//! `adaptive`: reads ahead what the evidence says will be used, as far ahead as the device needs.
//!
//! Ideally a reader never waits for a page that could have been foreseen, and
//! no page is read that nobody uses. The law in words:
//!
//! - *Streams, not descriptors.* A handle may carry many streams: forward,
//!   backward, strided. A request that continues none begins one; the next
//!   request that continues it (a third one, for a stride) proves it.
//! - *The window is what costs least.* Of a stream that has gone on for `b` pages nothing is
//!   known but its age, so it ends within the next `w` with a chance of about `w ÷ (b + w)`.
//!   Too small a window is paid for in requests, too large a one in pages that nobody
//!   uses; the sum is least at `w² = 2 × price × b`, where the price is that of one
//!   more request, in pages (`DeviceEvidence::window`). No knob, and no window that a
//!   device would have to be told: a disk's requests are dear, a solid-state drive's
//!   are cheap, and both are measured.
//! - *The price is that of the moment.* A device with time to spare is waited for, so a
//!   request costs what it takes. Once the readers that wait keep it busy with bytes, what is
//!   read ahead for one comes out of the others' time and hides nothing: from there on a
//!   request costs only what it occupies, and on many drives that is next to nothing.
//! - *The next window* is read when the reader comes to the middle of the newest, or has
//!   to wait for a page.
//! - *Ages.* How many streams of an age came to twice that age, and how many ended before, says by
//!   what the age counts for more or for less in `b`: the next of many short files needn't show anew that
//!   it will be read to its end.
//! - *It is bounded by what it risks.* A stream that was continued but once may be chance: it
//!   has 64 KiB ahead of it at most, and nothing, where about as many go on as would by chance. No more
//!   is ahead than will still be in memory when the reader comes to it, by the part that the stream has of
//!   all that is asked for: at first that of one among as many as there are. Nor is it more than such a
//!   part of the memory that is not read ahead into yet. A page that was read ahead and is gone halves the
//!   window, and what is left of it is gone through anew.
//! - *Round ends.* Windows end at multiples of a power of two: servers, stripes and drives take bytes so.
//! - *A gap is read through* when it is no larger than the block before it and
//!   costs less than a request occupies; else the blocks of a stride are read one by one.
//! - *Pieces.* Programs that jump about often read pieces of one size. When the last four pieces began
//!   with a request of this size and were all at least so long, the next is read in one.
//! - *A file that is being used up at random is read whole* once an eighth of it
//!   was asked for, the requests have cost half of what reading it would, and it
//!   fits in memory. So is a part of it, in which far more requests fall than in the others, once they have
//!   cost twice as much (`adaptive/sweep.rs`).
//! - *Anything else is read as it was asked.* A request that finds all its pages
//!   filled, none of them marked, costs nothing but that look.
//!
//! Hints are where belief starts: after `SEQUENTIAL` the first request is a
//! stream, after `RANDOM` a stream must be proven three times. What is seen later
//! outweighs both.

use alloc::collections::VecDeque;

use super::{Advice, Ahead, Ask, DeviceEvidence, Evidence, Pages, ReadaheadLaw};
use crate::decision::Decision;
use crate::law::{Spec, SpecError};
use crate::unit::PageRange;

mod reaches;
mod stream;
mod sweep;

use reaches::Reaches;
use stream::{Shape, Stream};

/// How many streams one handle may carry. Beyond it the one that was not seen
/// longest is forgotten. Sixty-four interleaved ones, and as many requests that
/// may turn out to be the begin of one.
const STREAMS_MAX: usize = 128;

/// How many requests must have continued a stream before it is believed, after `RANDOM`.
const PROOFS_AFTER_RANDOM: u32 = 3;

/// A stream that was continued so often is no chance.
const PROOFS_BEYOND_CHANCE: u32 = 2;

/// What a stream that may be chance has ahead of it at most, for each page behind it: the kernel
/// reads four pages of a file whose first page is asked for.
const AHEAD_PER_PAGE_BEHIND: u64 = 4;

/// What is read ahead at most of a file whose first page is asked for: 128 KiB, the kernel's window.
const START_PAGES: u64 = 32;

/// One request in [`Chance`].
const CHANCE_ONE: u64 = 1 << 16;

/// Where few are expected, more than the root of so many times that are no chance: one where a
/// thirty-second was expected, two where an eighth was.
const CHANCE_MARGIN: u64 = 32;

/// After so many requests the older ones begin to be forgotten.
const CHANCE_LIMIT: u64 = 64;

/// The law `adaptive`, for one open file.
#[derive(Clone, Debug, Default)]
pub struct Adaptive {
    /// The streams, the one that was seen last at the end.
    streams: VecDeque<Stream>,
    /// What a request must touch to continue each of them.
    reaches: Reaches,
    /// How many of them have not been continued.
    waiting: u64,
    /// The last request that continued none, and how far it was from the one before.
    last_scattered: Option<Scattered>,
    chance: Chance,
    advice: Advice,
}

/// How many requests continued a stream that had not been continued before, and
/// how many would have if all of them went anywhere.
#[derive(Clone, Copy, Debug, Default)]
struct Chance {
    continued: u64,
    /// In parts of [`CHANCE_ONE`].
    expected: u64,
}

impl Chance {
    /// A request came that continues such a stream, or none: of the places in the file each
    /// of the streams that wait beside it to be continued has two.
    ///
    /// Pieces lie at multiples of their size, as requests do: of so many places it has one.
    fn came(&mut self, piece_pages: u64, waiting: u64, file_pages: u64, is_continued: bool) {
        self.expected += 2 * waiting * piece_pages * CHANCE_ONE / file_pages.max(1);
        self.continued += u64::from(is_continued);
        if self.continued + self.expected / CHANCE_ONE > CHANCE_LIMIT {
            (self.continued, self.expected) = (self.continued / 2, self.expected / 2);
        }
    }

    /// What a stream may have ahead of it at most: where no more than twice as many go on as by
    /// chance it may be chance here too, and then it is no more than what is left of a piece.
    fn pages_max(&self, stream: &Stream, piece_left: u64) -> u64 {
        let Chance { continued, expected } = *self;
        let is_rare = continued * continued * CHANCE_ONE >= CHANCE_MARGIN * expected;
        if stream.proofs() >= PROOFS_BEYOND_CHANCE {
            return u64::MAX;
        }
        let is_chance = !is_rare || continued * CHANCE_ONE <= 2 * expected;
        let by_age = AHEAD_PER_PAGE_BEHIND * stream.behind();
        if is_chance { piece_left } else { by_age.max(START_PAGES / 2) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Scattered {
    request: PageRange,
    distance: i64,
}

impl Adaptive {
    /// Parses `adaptive`: it has no parameter.
    ///
    /// # Errors
    /// A parameter is given.
    pub fn from_spec(spec: &Spec) -> Result<Adaptive, SpecError> {
        spec.only(&[])?;
        Ok(Adaptive::default())
    }

    /// A request for pages of the file, at least one of which is not there yet, or marked.
    fn seen(&mut self, request: PageRange, file_pages: u64, pages: &mut dyn Pages) {
        for page in request.pages() {
            if let Some(folio) = pages.marked(page) {
                pages.clear_mark(folio);
            }
        }
        match self.continued_by(request, pages) {
            Some(at) => {
                self.reaches.remove(at);
                let mut stream = self.streams.remove(at).expect("it was found there");
                stream.advance(request, pages);
                let piece_pages = piece_pages(request, pages);
                if stream.proofs() == 1 {
                    self.waiting -= 1;
                    self.chance.came(piece_pages, self.waiting, file_pages, true);
                }
                if stream.proofs() >= self.proofs_needed() {
                    let pages_max = self.chance.pages_max(&stream, piece_pages - request.count());
                    stream.read_ahead(request, file_pages, pages_max, pages);
                }
                self.push(stream);
            }
            None => self.scattered(request, file_pages, pages),
        }
    }

    /// The stream that the request continues, the one that was seen last first.
    fn continued_by(&self, request: PageRange, pages: &dyn Pages) -> Option<usize> {
        self.reaches.last(request, |at| {
            let reach = self.streams[at].reach();
            let touches = reach.first <= request.end && request.first <= reach.end;
            touches && self.streams[at].is_continued_by(request, pages)
        })
    }

    /// The stream was seen last.
    fn push(&mut self, stream: Stream) {
        self.reaches.push(stream.reach());
        self.streams.push_back(stream);
    }

    fn proofs_needed(&self) -> u32 {
        if self.advice == Advice::Random { PROOFS_AFTER_RANDOM } else { 1 }
    }

    /// A request that continues no stream: it may begin one.
    fn scattered(&mut self, request: PageRange, file_pages: u64, pages: &mut dyn Pages) {
        if let Some(at) = self.streams.iter().rposition(|stream| stream.is_newest) {
            self.streams[at].is_newest = false;
            let piece = self.streams[at].piece(pages);
            pages.evidence().device.pieces.ended(piece);
        }
        if let Some(stream) = self.streams.back_mut() {
            stream.left(pages);
        }
        self.chance.came(piece_pages(request, pages), self.waiting, file_pages, false);
        let distance = self
            .last_scattered
            .map_or(0, |last| request.first.wrapping_sub(last.request.first) as i64);
        let is_stride = distance != 0
            && self.last_scattered.is_some_and(|last| {
                last.distance == distance && last.request.count() == request.count()
            });
        self.last_scattered = Some(Scattered { request, distance });
        let begun_at = pages.evidence().device.asked_pages();
        let mut stream = match is_stride {
            true => Stream::strided(request, distance, begun_at),
            false => Stream::begun(request, begun_at),
        };
        if is_stride && self.advice != Advice::Random {
            let pages_max = AHEAD_PER_PAGE_BEHIND * stream.behind();
            stream.read_ahead(request, file_pages, pages_max, pages);
        } else if self.advice == Advice::Sequential || request.first == 0 {
            // The start of a file is mostly the start of a stream.
            stream.believe(Shape::Forward);
            stream.read_ahead(request, file_pages, START_PAGES, pages);
        } else if self.advice != Advice::Random {
            stream.read_piece(request, file_pages, pages);
            sweep::sweep(request, file_pages, pages);
        }
        if self.streams.len() == STREAMS_MAX
            && let Some(mut forgotten) = self.streams.pop_front()
        {
            self.reaches.remove(0);
            self.waiting -= u64::from(forgotten.proofs() == 0);
            forgotten.leave(pages.evidence().device);
        }
        self.waiting += u64::from(stream.proofs() == 0);
        self.push(stream);
    }
}

/// How long the piece is at least that begins with this request.
fn piece_pages(request: PageRange, pages: &mut dyn Pages) -> u64 {
    let expected = pages.evidence().device.pieces.expected_pages(request.count());
    expected.max(request.count())
}

impl ReadaheadLaw for Adaptive {
    fn read(&mut self, ask: &Ask, pages: &mut dyn Pages) {
        let request = ask.request().clipped(ask.file_pages());
        let is_quiet = |page| pages.is_filled(page) && pages.marked(page).is_none();
        if !request.pages().all(is_quiet) {
            self.seen(request, ask.file_pages(), pages);
        }
    }

    fn fault(&mut self, page: u64, ask: &Ask, pages: &mut dyn Pages) {
        if !pages.is_filled(page) || pages.marked(page).is_some() {
            self.seen(PageRange::new(page, 1), ask.file_pages(), pages);
        }
    }

    fn advise(&mut self, advice: Advice) {
        if matches!(advice, Advice::Normal | Advice::Sequential | Advice::Random) {
            self.advice = advice;
        }
    }

    fn keeps_log(&self) -> bool {
        true
    }

    fn closed(&mut self, device: &mut DeviceEvidence) {
        self.streams.drain(..).for_each(|mut stream| stream.leave(device));
    }

    /// [`read`](ReadaheadLaw::read) passes over a request that finds everything.
    fn sees_every_hit(&self) -> bool {
        false
    }
}

/// Says what was read ahead, and what is known that bears on it.
fn say(pages: &mut dyn Pages, ahead: Ahead) {
    let Evidence { device, file } = pages.evidence();
    file.newest = Some(ahead);
    if !device.log.is_on() {
        return;
    }
    let Ahead { range, shape, why, behind, size } = ahead;
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
        occupies_pages: device.estimate.request_occupies_pages(),
        unused_pages: device.standing_pages,
    };
    device.log.say(device.now, || decision);
}

//! `adaptive`: reads ahead what the evidence says will be used, as far ahead as the device needs.
//!
//! Ideally a reader never waits for a page that could have been foreseen, and
//! no page is read that nobody uses. The law in words:
//!
//! - *Streams, not descriptors.* A handle may carry many streams: forward,
//!   backward, strided. A request that continues none begins one; the next
//!   request that continues it (a third one, for a stride) proves it.
//! - *The window grows when it was late.* A proven stream reads a window ahead,
//!   and the next one when the reader comes to the middle of the newest, or has
//!   to wait for a page. If it had to wait, the window doubles; if not, the window
//!   is large enough and stays. So it settles at the device's latency × the
//!   reader's rate, and neither has to be told.
//! - *It is bounded by what it risks.* A stream never has more ahead of it than
//!   half of what it has behind it (twice, up to 128 KiB), and what costs a quarter
//!   of a request (or four times what it has behind it, if that is less). A window
//!   is no smaller than sixteen times what a request occupies, and no larger
//!   than sixteen times what one takes: so the device is busy with bytes, not with
//!   requests, for 94 % of the time. Nor is it larger than a quarter of what is
//!   left of half of the memory. A page that was read ahead and is gone when the
//!   reader comes halves the window for good.
//! - *A gap is read through* when it is no larger than the block before it and
//!   costs less than a request; else the blocks of a stride are read one by one.
//! - *Pieces.* Programs that jump about often read pieces of one size. When the
//!   last four pieces were all at least so long, the next is read in one.
//! - *A file that is being used up at random is read whole* once an eighth of it
//!   was asked for, the requests have cost half of what reading it would, and it
//!   fits in memory.
//! - *Anything else is read as it was asked.* A request that finds all its pages
//!   filled, none of them marked, costs nothing but that look.
//!
//! Hints are where belief starts: after `SEQUENTIAL` the first request is a
//! stream, after `RANDOM` a stream must be proven three times. What is seen later
//! outweighs both.

use alloc::vec::Vec;

use super::{Advice, Ask, Folio, Pages, ReadaheadLaw};
use crate::law::{Spec, SpecError};
use crate::unit::PageRange;

mod stream;
mod sweep;

use stream::{Shape, Stream};

/// How many streams one handle may carry. Beyond it the one that was not seen
/// longest is forgotten. Sixty-four interleaved ones, and as many requests that
/// may turn out to be the begin of one.
const STREAMS_MAX: usize = 128;

/// How many requests must have continued a stream before it is believed, after `RANDOM`.
const PROOFS_AFTER_RANDOM: u32 = 3;

/// The law `adaptive`, for one open file.
#[derive(Clone, Debug, Default)]
pub struct Adaptive {
    /// The streams, the one that was seen last at the end.
    streams: Vec<Stream>,
    /// The last request that continued none, and how far it was from the one before.
    last_scattered: Option<Scattered>,
    advice: Advice,
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
        let continued =
            self.streams.iter().rposition(|stream| stream.is_continued_by(request, pages));
        match continued {
            Some(at) => {
                let mut stream = self.streams.remove(at);
                stream.advance(request, pages);
                if stream.proofs() >= self.proofs_needed() {
                    stream.read_ahead(request, file_pages, pages);
                }
                self.streams.push(stream);
            }
            None => self.scattered(request, file_pages, pages),
        }
    }

    fn proofs_needed(&self) -> u32 {
        if self.advice == Advice::Random { PROOFS_AFTER_RANDOM } else { 1 }
    }

    /// A request that continues no stream: it may begin one.
    fn scattered(&mut self, request: PageRange, file_pages: u64, pages: &mut dyn Pages) {
        if let Some(at) = self.streams.iter().rposition(|stream| stream.is_newest) {
            self.streams[at].is_newest = false;
            let piece = self.streams[at].pages_used(pages);
            pages.evidence().device.pieces.ended(piece);
        }
        let distance = self
            .last_scattered
            .map_or(0, |last| request.first.wrapping_sub(last.request.first) as i64);
        let is_stride = distance != 0
            && self.last_scattered.is_some_and(|last| {
                last.distance == distance && last.request.count() == request.count()
            });
        self.last_scattered = Some(Scattered { request, distance });
        let mut stream =
            if is_stride { Stream::strided(request, distance) } else { Stream::begun(request) };
        if is_stride && self.advice != Advice::Random {
            stream.read_ahead(request, file_pages, pages);
        } else if self.advice == Advice::Sequential || request.first == 0 {
            // The start of a file is mostly the start of a stream.
            stream.believe(Shape::Forward);
            stream.read_ahead(request, file_pages, pages);
        } else if self.advice != Advice::Random {
            stream.read_piece(request, file_pages, pages);
            sweep::sweep(request, file_pages, pages);
        }
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(stream);
    }
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

    /// [`read`](ReadaheadLaw::read) passes over a request that finds everything.
    fn sees_every_hit(&self) -> bool {
        false
    }
}

/// Adds the absent pages of a range, the first of them marked if `is_marked`;
/// gives the page that it marked, and false when memory ran short.
fn add_range(range: PageRange, is_marked: bool, pages: &mut dyn Pages) -> (Option<u64>, bool) {
    let mut marked = None;
    for page in range.pages() {
        if pages.is_cached(page) {
            continue;
        }
        let marks = is_marked && marked.is_none();
        if !pages.add(Folio::holding(page, 0), marks) {
            return (marked, false);
        }
        if marks {
            marked = Some(page);
        }
    }
    (marked, true)
}

//! Which frame holds which page of one file.
//!
//! A two-level table: pages are grouped in chunks of 512 (2 MiB of file), a
//! chunk exists while it holds a page. A lookup is two array accesses; a scan
//! skips empty chunks.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use super::FrameId;
use crate::unit::PageRange;

const CHUNK_PAGES: u64 = 512;
const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
struct Chunk {
    present: u32,
    frames: [u32; CHUNK_PAGES as usize],
}

/// The table of one file. It takes 8 bytes per 2 MiB of file up to the last
/// page that was ever cached, and 2 KiB per chunk in use.
#[derive(Debug, Default)]
pub(super) struct FileTable {
    chunks: Vec<Option<Box<Chunk>>>,
    pages: u64,
}

impl FileTable {
    pub(super) fn is_empty(&self) -> bool {
        self.pages == 0
    }

    #[inline]
    pub(super) fn find(&self, page: u64) -> Option<FrameId> {
        let chunk = self.chunks.get((page / CHUNK_PAGES) as usize)?.as_ref()?;
        let frame = chunk.frames[(page % CHUNK_PAGES) as usize];
        (frame != ABSENT).then_some(FrameId(frame))
    }

    /// The places of absent pages, from the first of `range` on to the end of its chunk at
    /// the most: all of them to be given a frame.
    pub(super) fn places(&mut self, range: PageRange) -> &mut [u32] {
        let at = (range.first / CHUNK_PAGES) as usize;
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || None);
        }
        let chunk = self.chunks[at].get_or_insert_with(|| {
            Box::new(Chunk { present: 0, frames: [ABSENT; CHUNK_PAGES as usize] })
        });
        let places = &mut chunk.frames[in_chunk(range)];
        chunk.present += places.len() as u32;
        self.pages += places.len() as u64;
        places
    }

    /// The frames of cached pages that all are there, in slices.
    pub(super) fn frames(&self, range: PageRange) -> impl Iterator<Item = &[u32]> {
        let mut left = range;
        core::iter::from_fn(move || {
            let places = in_chunk(left);
            let chunk = self.chunks.get((left.first / CHUNK_PAGES) as usize)?.as_ref()?;
            left.first += places.len() as u64;
            (!places.is_empty()).then(|| &chunk.frames[places])
        })
    }

    /// The first run of pages of the range that are absent.
    pub(super) fn absent_run(&self, range: PageRange) -> Option<PageRange> {
        let first = range.pages().find(|&page| self.find(page).is_none())?;
        let end = self.first_from(first, range.end).map_or(range.end, |(page, _)| page);
        Some(PageRange { first, end })
    }

    pub(super) fn remove(&mut self, page: u64) {
        let slot = &mut self.chunks[(page / CHUNK_PAGES) as usize];
        let chunk = slot.as_mut().expect("a cached page has a chunk");
        chunk.frames[(page % CHUNK_PAGES) as usize] = ABSENT;
        chunk.present -= 1;
        self.pages -= 1;
        if chunk.present == 0 {
            *slot = None;
        }
    }

    /// The first cached page from `first` on, before `end` (exclusive).
    pub(super) fn first_from(&self, first: u64, end: u64) -> Option<(u64, FrameId)> {
        let mut page = first;
        while page < end {
            let next_chunk = (page / CHUNK_PAGES + 1) * CHUNK_PAGES;
            match self.chunks.get((page / CHUNK_PAGES) as usize)? {
                None => page = next_chunk,
                Some(chunk) => {
                    let found = (page..next_chunk.min(end))
                        .map(|page| (page, chunk.frames[(page % CHUNK_PAGES) as usize]))
                        .find(|&(_, frame)| frame != ABSENT);
                    match found {
                        Some((page, frame)) => return Some((page, FrameId(frame))),
                        None => page = next_chunk,
                    }
                }
            }
        }
        None
    }
}

/// The places, in the chunk of its first page, of the pages of the range that it has.
fn in_chunk(range: PageRange) -> Range<usize> {
    let first = range.first % CHUNK_PAGES;
    first as usize..(first + range.count()).min(CHUNK_PAGES) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(table: &mut FileTable, page: u64, frame: u32) {
        table.places(PageRange::new(page, 1)).copy_from_slice(&[frame]);
    }

    #[test]
    fn pages_are_found_until_they_are_removed_and_empty_chunks_go() {
        let mut table = FileTable::default();
        insert(&mut table, 5, 1);
        insert(&mut table, 5_000_000, 2);
        assert_eq!(table.find(5), Some(FrameId(1)));
        assert_eq!(table.find(6), None);
        assert_eq!(table.first_from(6, u64::MAX), Some((5_000_000, FrameId(2))));
        assert_eq!(table.first_from(6, 5_000_000), None);
        table.remove(5_000_000);
        assert_eq!(table.find(5_000_000), None);
        assert!(table.chunks.iter().skip(1).all(Option::is_none));
    }

    #[test]
    fn runs_go_over_the_ends_of_chunks() {
        let mut table = FileTable::default();
        let range = PageRange { first: 510, end: 1026 };
        let mut left = range;
        let mut lengths = Vec::new();
        while !left.is_empty() {
            let places = table.places(left);
            lengths.push(places.len());
            places.iter_mut().zip(left.first as u32..).for_each(|(place, page)| *place = page);
            left.first += places.len() as u64;
        }
        assert_eq!(lengths, [2, 512, 2]);
        assert!(table.frames(range).flatten().copied().eq(510..1026));
        assert!(table.frames(PageRange { first: 512, end: 512 }).next().is_none());
        table.remove(600);
        let all = PageRange { first: 500, end: 2000 };
        assert_eq!(table.absent_run(all), Some(PageRange { first: 500, end: 510 }));
        let rest = PageRange { first: 510, ..all };
        assert_eq!(table.absent_run(rest), Some(PageRange { first: 600, end: 601 }));
        let rest = PageRange { first: 601, ..all };
        assert_eq!(table.absent_run(rest), Some(PageRange { first: 1026, end: 2000 }));
        assert_eq!(table.absent_run(PageRange { first: 601, end: 1026 }), None);
    }
}

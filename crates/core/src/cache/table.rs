//! Which frame holds which page of one file.
//!
//! A two-level table: pages are grouped in chunks of 512 (2 MiB of file), a
//! chunk exists while it holds a page. A lookup is two array accesses; a scan
//! skips empty chunks.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::FrameId;

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

    pub(super) fn insert(&mut self, page: u64, frame: FrameId) {
        let at = (page / CHUNK_PAGES) as usize;
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || None);
        }
        let chunk = self.chunks[at].get_or_insert_with(|| {
            Box::new(Chunk { present: 0, frames: [ABSENT; CHUNK_PAGES as usize] })
        });
        chunk.frames[(page % CHUNK_PAGES) as usize] = frame.0;
        chunk.present += 1;
        self.pages += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_until_they_are_removed_and_empty_chunks_go() {
        let mut table = FileTable::default();
        table.insert(5, FrameId(1));
        table.insert(5_000_000, FrameId(2));
        assert_eq!(table.find(5), Some(FrameId(1)));
        assert_eq!(table.find(6), None);
        assert_eq!(table.first_from(6, u64::MAX), Some((5_000_000, FrameId(2))));
        assert_eq!(table.first_from(6, 5_000_000), None);
        table.remove(5_000_000);
        assert_eq!(table.find(5_000_000), None);
        assert!(table.chunks.iter().skip(1).all(Option::is_none));
    }
}

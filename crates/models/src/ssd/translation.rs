//! Flash translation layer: valid pages per erase block, and garbage collection.
//!
//! Flash is not overwritten in place. A written page goes to the open block, and its old copy
//! becomes invalid. If too few blocks are free, the closed block with the fewest valid pages is
//! collected (greedy collection, as in Bux and Iliadis 2010 and Desnoyers 2012). Its valid pages
//! are read and programmed elsewhere, and the block becomes free. The cost of collection is thus no
//! parameter: it results from the fill level of the drive and the write pattern.
//!
//! The block of each page written during the simulation is known. For older pages only the number
//! per block is known. A drive in use before the simulation holds old data everywhere, written by
//! requests like the simulated ones (the preconditioning of SNIA's performance test specification).
//! Therefore:
//!
//! - The old copy of a page is assumed in a random block, weighted by valid old pages.
//! - The old copies of pages that are written in sequence are assumed to be in sequence too. A
//!   stream thus empties one block after another and causes no collection.
//! - The initial fill level is the steady state of greedy collection under random writes: the n-th
//!   fullest block holds q^n of its pages.
//!
//! The work of a collection is spread over the writes that fill the freed block. All host writes
//! are slowed evenly, and none waits for a whole block. The die of a block is not tracked: programs
//! rotate over the dies.

use std::collections::VecDeque;

use readpath_core::unit::PageRange;

use super::written::WrittenPages;
use crate::random::SeededRng;

/// Maximum number of blocks, chosen, that are counted separately. On a larger drive several blocks
/// count as one.
const BLOCKS_MAX: u64 = 1 << 16;

/// Number of streams whose position is tracked: at least as many as a drive detects.
const STREAMS: usize = 64;

/// Division of a drive's flash. All pages have 4 KiB, unlike the flash pages of a row.
#[derive(Clone, Copy, Debug)]
pub struct FlashDivision {
    /// Number of 4 KiB pages visible to the host.
    pub pages: u64,
    /// Additional flash for collection, in percent of the visible pages.
    pub spare_percent: u64,
    /// Blocks that collection keeps free, in percent.
    pub free_percent: u64,
    /// Pages in an erase block, on all planes of its die.
    pub block_pages: u64,
    /// Pages in a row: a flash page on each plane, sensed and programmed together.
    pub row_pages: u64,
    /// True if all pages were written before the simulation.
    pub is_used: bool,
}

/// Rows that the collection moves in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MovedRows {
    /// Rows to read.
    pub reads: u64,
    /// Rows to program.
    pub programs: u64,
}

/// The mapping from pages to blocks, and the garbage collection.
///
/// Invariants: a block is free, open or closed. Its `valid_pages` is the sum of its `old_pages`
/// and of the entries in `written` that name it.
#[derive(Debug)]
pub struct Translation {
    /// Sizes of the drive.
    division: FlashDivision,
    /// Pages per counted block, which can be several blocks of the drive.
    block_pages: u64,
    /// Number of free blocks below which collection starts. 0 until the blocks exist.
    free_blocks_min: usize,
    /// Blocks, by number. Empty until the first write.
    blocks: Vec<FlashBlock>,
    /// Numbers of the free blocks, the next one to open first.
    free_blocks: VecDeque<u32>,
    /// Open block for writes of the host.
    host_block: OpenBlock,
    /// Open block for pages that the collection moves.
    moved_block: OpenBlock,
    /// Block of each page that was written during the simulation.
    written: WrittenPages,
    /// Sequential streams of writes, the oldest first.
    streams: VecDeque<WriteStream>,
    /// Choice of blocks with old pages. The seed is fixed, so every simulation is repeatable.
    rng: SeededRng,
    /// Collection work that is still to be distributed over host writes.
    work: CollectionWork,
}

/// A sequential stream of writes.
#[derive(Clone, Copy, Debug)]
struct WriteStream {
    /// Page after the last one written.
    next_page: u64,
    /// Block with the old copy of the page before `next_page`.
    old_block: u32,
}

/// An erase block.
#[derive(Clone, Debug, Default)]
struct FlashBlock {
    /// Number of valid pages.
    valid_pages: u64,
    /// Number of valid pages written before the simulation.
    old_pages: u64,
    /// Pages written here during the simulation, including pages overwritten since.
    pages: Vec<u64>,
    /// True if the block is full and can be collected.
    is_closed: bool,
}

/// A block that receives pages.
#[derive(Clone, Copy, Debug, Default)]
struct OpenBlock {
    /// Number of the block.
    block: u32,
    /// Pages that it can still receive.
    free_pages: u64,
}

/// Collection work that is spread over the writes to the host's open block.
#[derive(Clone, Copy, Debug, Default)]
struct CollectionWork {
    /// Pages to read for this block.
    read_pages: u64,
    /// Pages to program for this block.
    moved_pages: u64,
    /// Parts of a row that are still to be read. A row has block pages × row pages parts.
    read_row_parts: u64,
    /// Parts of a row that are still to be programmed.
    moved_row_parts: u64,
}

impl Translation {
    /// Creates the mapping of a drive. The first write creates its blocks.
    pub fn new(division: FlashDivision) -> Translation {
        let block_pages =
            division.block_pages.max((division.pages / BLOCKS_MAX).next_power_of_two());
        Translation {
            division,
            block_pages,
            free_blocks_min: 0,
            blocks: Vec::new(),
            free_blocks: VecDeque::new(),
            host_block: OpenBlock::default(),
            moved_block: OpenBlock::default(),
            written: WrittenPages::default(),
            streams: VecDeque::new(),
            rng: SeededRng::new(0),
            work: CollectionWork::default(),
        }
    }

    /// Records a host write of `pages`. Returns the collection work that is due with the write.
    pub fn write(&mut self, pages: PageRange) -> MovedRows {
        if self.blocks.is_empty() {
            self.create_blocks();
        }
        let mut moved_rows = MovedRows::default();
        // Block with the old copy of the page written last, where a stream's next page is expected.
        let mut last_old_block = self.take_continued_stream_block(pages);
        for page in pages.pages() {
            // Collection comes first, because it relies on the current mapping. It runs once for
            // each block that the host fills.
            if self.host_block.free_pages == 0 {
                self.collect();
                self.host_block = self.replace_open_block(self.host_block.block);
            }
            match self.written.get(page) {
                Some(old_block) => self.blocks[old_block as usize].valid_pages -= 1,
                None if self.division.is_used => {
                    last_old_block = self.invalidate_old_page(last_old_block)
                }
                None => {}
            }
            let flash_block = &mut self.blocks[self.host_block.block as usize];
            flash_block.valid_pages += 1;
            flash_block.pages.push(page);
            self.host_block.free_pages -= 1;
            self.written.set(page, self.host_block.block);
            let due_rows = self.work.take_due_rows(self.block_pages, self.division.row_pages);
            moved_rows.reads += due_rows.reads;
            moved_rows.programs += due_rows.programs;
        }
        // The next write may continue this one, so every write begins or extends a stream.
        if let Some(old_block) = last_old_block {
            self.streams.push_back(WriteStream { next_page: pages.end, old_block });
        }
        moved_rows
    }

    /// Removes the stream that a write of `pages` continues. Returns the block with the old copy of
    /// its last page; `None` without such a stream. Also drops the oldest stream if there is no
    /// room for the one that the write adds.
    fn take_continued_stream_block(&mut self, pages: PageRange) -> Option<u32> {
        let index = self.streams.iter().position(|stream| stream.next_page == pages.first);
        let stream = index.and_then(|index| self.streams.remove(index));
        if self.streams.len() >= STREAMS {
            self.streams.pop_front();
        }
        stream.map(|stream| stream.old_block)
    }

    /// Invalidates one old page: in the block `last_old_block` if it has any, otherwise in a random
    /// block. A stream thus empties one block before it takes the next. Returns that block; `None`
    /// if no old page is left.
    fn invalidate_old_page(&mut self, last_old_block: Option<u32>) -> Option<u32> {
        let block = match last_old_block {
            Some(block) if self.blocks[block as usize].old_pages > 0 => block,
            _ => self.draw_block_with_old_pages()?,
        };
        let flash_block = &mut self.blocks[block as usize];
        flash_block.old_pages -= 1;
        flash_block.valid_pages -= 1;
        Some(block)
    }

    /// Draws a block at random, weighted by its old pages. Returns `None` if no old page is left.
    fn draw_block_with_old_pages(&mut self) -> Option<u32> {
        let count = self.blocks.len() as u64;
        // Rejection sampling: most draws succeed soon, except when few old pages are left. The
        // number of tries is chosen.
        for _ in 0..64 {
            let block = self.rng.below(count);
            if self.rng.below(self.block_pages) < self.blocks[block as usize].old_pages {
                return Some(block as u32);
            }
        }
        // A random old page is selected by its number, and the pages before it are skipped. Without
        // old pages no block is found: the bound 1 only keeps the draw valid.
        let mut pages_before =
            self.rng.below(self.blocks.iter().map(|block| block.old_pages).sum::<u64>().max(1));
        let index =
            self.blocks.iter().position(|block| match pages_before.checked_sub(block.old_pages) {
                Some(rest) => {
                    pages_before = rest;
                    false
                }
                None => true,
            });
        index.map(|index| index as u32)
    }

    /// Collects blocks until `free_blocks_min` blocks are free or all closed blocks are full of
    /// valid pages. Sets `work` to the pages that this reads and programs.
    fn collect(&mut self) {
        (self.work.read_pages, self.work.moved_pages) = (0, 0);
        while self.free_blocks.len() < self.free_blocks_min {
            let closed = self.blocks.iter().enumerate().filter(|(_, block)| block.is_closed);
            let Some((victim, block)) = closed.min_by_key(|(_, block)| block.valid_pages) else {
                return;
            };
            // A full block would only be moved, and gain no room.
            if block.valid_pages >= self.block_pages {
                return;
            }
            let valid_pages = block.valid_pages;
            self.move_pages(victim as u32);
            self.work.moved_pages += valid_pages;
            // Each valid page may be in a row of its own, which is read as a whole. No row is read
            // twice.
            self.work.read_pages += self.block_pages.min(valid_pages * self.division.row_pages);
        }
    }

    /// Moves the valid pages of `victim` to the open block for moved pages, and frees `victim`.
    fn move_pages(&mut self, victim: u32) {
        let FlashBlock { old_pages: mut old_pages_left, pages, .. } =
            std::mem::take(&mut self.blocks[victim as usize]);
        for page in pages {
            // A page that was written again lies elsewhere, or has been moved already.
            if self.written.get(page) == Some(victim) {
                let (target, _) = self.reserve_moved_pages(1);
                let block = &mut self.blocks[target as usize];
                block.valid_pages += 1;
                block.pages.push(page);
                self.written.set(page, target);
            }
        }
        while old_pages_left > 0 {
            let (target, count) = self.reserve_moved_pages(old_pages_left);
            let block = &mut self.blocks[target as usize];
            block.valid_pages += count;
            block.old_pages += count;
            old_pages_left -= count;
        }
        self.free_blocks.push_back(victim);
    }

    /// Reserves room for up to `count` moved pages in their open block; a full block is replaced
    /// first. Returns the number of the block, and the number of pages reserved, at least 1.
    fn reserve_moved_pages(&mut self, count: u64) -> (u32, u64) {
        if self.moved_block.free_pages == 0 {
            self.moved_block = self.replace_open_block(self.moved_block.block);
        }
        let count = count.min(self.moved_block.free_pages);
        self.moved_block.free_pages -= count;
        (self.moved_block.block, count)
    }

    /// Closes the block `full_block`, and takes the first free block as the open one.
    fn replace_open_block(&mut self, full_block: u32) -> OpenBlock {
        self.blocks[full_block as usize].is_closed = true;
        let block = self.free_blocks.pop_front().expect("collection keeps blocks free");
        OpenBlock { block, free_pages: self.block_pages }
    }

    /// Divides the flash into blocks: the free reserve, two open blocks, and closed blocks. A drive
    /// in use starts one free block short, so its first write triggers collection.
    fn create_blocks(&mut self) {
        let division = self.division;
        let data_blocks = division.pages.div_ceil(self.block_pages);
        let blocks_wanted = (data_blocks * (100 + division.spare_percent)).div_ceil(100);
        // At least two: each of the two open blocks can need a successor.
        self.free_blocks_min = (blocks_wanted * division.free_percent / 100).max(2) as usize;
        // A very small drive gets extra blocks: collection needs one more than the data.
        let two_open_and_one_extra = 3;
        let block_count_min = data_blocks + self.free_blocks_min as u64 + two_open_and_one_extra;
        let block_count = blocks_wanted.max(block_count_min) as usize;
        self.blocks = vec![FlashBlock::default(); block_count];
        // The others are two open blocks, and one free block less than the reserve.
        let used_blocks = match division.is_used {
            true => block_count - self.free_blocks_min - 1,
            false => 0,
        };
        let valid_counts = steady_valid_pages(used_blocks, self.block_pages, division.pages);
        for (block, valid_pages) in self.blocks.iter_mut().zip(valid_counts) {
            *block = FlashBlock {
                valid_pages,
                old_pages: valid_pages,
                pages: Vec::new(),
                is_closed: true,
            };
        }
        self.free_blocks = (used_blocks as u32..block_count as u32).collect();
        let mut open_block = || {
            let block = self
                .free_blocks
                .pop_front()
                .expect("at least two blocks are free for the open blocks");
            OpenBlock { block, free_pages: self.block_pages }
        };
        (self.host_block, self.moved_block) = (open_block(), open_block());
        self.collect();
    }
}

impl CollectionWork {
    /// Returns the rows that are due with one page written by the host: 1 / `block_pages` of the
    /// work for a block. A remainder below one row stays for the next call.
    fn take_due_rows(&mut self, block_pages: u64, row_pages: u64) -> MovedRows {
        let parts_per_row = block_pages * row_pages;
        let take_rows = |pages: u64, row_parts: &mut u64| {
            *row_parts += pages;
            let rows = *row_parts / parts_per_row;
            *row_parts %= parts_per_row;
            rows
        };
        MovedRows {
            reads: take_rows(self.read_pages, &mut self.read_row_parts),
            programs: take_rows(self.moved_pages, &mut self.moved_row_parts),
        }
    }
}

/// Returns the number of valid pages of each of `block_count` closed blocks under steady random
/// writes. The counts form a geometric sequence with the sum `pages`, from `block_pages` on, or
/// from `pages` on if that is less. The blocks must have room for `pages`. Without a block the
/// result is empty.
fn steady_valid_pages(block_count: usize, block_pages: u64, pages: u64) -> Vec<u64> {
    let first_count = block_pages.min(pages) as f64;
    let counts_for = |ratio: f64| {
        let next_count = move |count: &f64| Some(count * ratio);
        std::iter::successors(Some(first_count), next_count).take(block_count)
    };
    // Bisection of the ratio between successive counts, beyond the precision of an f64.
    let (mut ratio_min, mut ratio_max) = (0.0, 1.0);
    for _ in 0..60 {
        let ratio = (ratio_min + ratio_max) / 2.0;
        match counts_for(ratio).sum::<f64>() < pages as f64 {
            true => ratio_min = ratio,
            false => ratio_max = ratio,
        }
    }
    let mut counts: Vec<u64> = counts_for(ratio_max).map(|count| count as u64).collect();
    // The rounding has lost less than one page per block.
    let mut missing_pages = pages.saturating_sub(counts.iter().sum());
    for count in &mut counts {
        let added = missing_pages.min(block_pages - *count);
        *count += added;
        missing_pages -= added;
        if missing_pages == 0 {
            break;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive of 1,024 blocks of data.
    const DIVISION: FlashDivision = FlashDivision {
        pages: 1 << 17,
        spare_percent: 15,
        free_percent: 0,
        block_pages: 128,
        row_pages: 8,
        is_used: true,
    };

    /// Writes `count` pages, the n-th of them to the page `page_of(n)`. Returns the number of rows
    /// programmed by the collection per row written by the host.
    fn moved_per_written_row(
        drive: &mut Translation,
        count: u64,
        mut page_of: impl FnMut(u64) -> u64,
    ) -> f64 {
        let programs = (0..count).map(|n| drive.write(PageRange::new(page_of(n), 1)).programs);
        programs.sum::<u64>() as f64 * DIVISION.row_pages as f64 / count as f64
    }

    /// Returns a source of random pages below `pages`.
    fn random_page(pages: u64) -> impl FnMut(u64) -> u64 {
        let mut rng = SeededRng::new(5);
        move |_| rng.below(pages)
    }

    /// Published (Desnoyers 2012): if a collected block has a share u of valid pages, the fill
    /// level of the drive is (u − 1) / ln u. By hand: u = 0.75 gives 0.869, or 15 % spare. Each row
    /// written then moves 0.75 / 0.25 = 3 rows.
    #[test]
    fn random_writes_have_the_theoretical_amplification_from_the_start() {
        let (mut drive, mut page_of) = (Translation::new(DIVISION), random_page(DIVISION.pages));
        for span in 0..4 {
            let rows = moved_per_written_row(&mut drive, 50_000, &mut page_of);
            assert!((2.7..3.15).contains(&rows), "{rows} in span {span}");
        }
    }

    /// An initially empty drive reaches the same steady state after enough writes.
    #[test]
    fn empty_drive_moves_nothing_until_full_and_then_reaches_steady_state() {
        let mut drive = Translation::new(FlashDivision { is_used: false, ..DIVISION });
        assert_eq!(moved_per_written_row(&mut drive, DIVISION.pages, |n| n), 0.0);
        moved_per_written_row(&mut drive, 4 * DIVISION.pages, random_page(DIVISION.pages));
        let rows =
            moved_per_written_row(&mut drive, 2 * DIVISION.pages, random_page(DIVISION.pages));
        assert!((2.7..3.15).contains(&rows), "{rows}");
    }

    /// Four streams, each over its own quarter of the drive. Each empties the old blocks one after
    /// another, so the collection finds blocks without valid pages. The first 64 blocks of writes
    /// are not counted.
    #[test]
    fn parallel_streams_move_almost_no_pages() {
        let mut drive = Translation::new(DIVISION);
        let stream_page = |n: u64| n % 4 * DIVISION.pages / 4 + n / 4 % (DIVISION.pages / 4);
        moved_per_written_row(&mut drive, 64 * DIVISION.block_pages, stream_page);
        let rows = moved_per_written_row(&mut drive, 2 * DIVISION.pages, stream_page);
        assert!(rows < 0.1, "{rows}");
    }

    /// Random writes of 1 to 40 pages. All blocks together then have the written pages, and on a
    /// used drive also the pages that are not yet overwritten. The second drive is smaller than a
    /// block.
    #[test]
    fn every_page_stays_in_exactly_one_block() {
        for (is_used, pages, writes) in
            [(false, 4_000, 20_000), (true, 4_000, 20_000), (true, 50, 1), (true, 50, 1_000)]
        {
            let division =
                FlashDivision { pages, spare_percent: 1, block_pages: 64, is_used, ..DIVISION };
            let mut drive = Translation::new(division);
            let mut rng = SeededRng::new(9);
            for _ in 0..writes {
                let first = rng.below(pages);
                drive.write(PageRange { first, end: (first + rng.below(40) + 1).min(pages) });
            }
            let valid_pages: u64 = drive.blocks.iter().map(|block| block.valid_pages).sum();
            let old_pages: u64 = drive.blocks.iter().map(|block| block.old_pages).sum();
            let written_pages = drive.written.count() as u64;
            assert_eq!(valid_pages, written_pages + old_pages);
            assert_eq!(old_pages, if is_used { pages - written_pages } else { 0 });
            assert!(drive.blocks.iter().all(|block| block.valid_pages <= 64));
        }
    }
}

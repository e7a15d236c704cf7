//! Strides whose blocks are read in several requests. The expected pages are the blocks that the
//! test itself defines.

use readpath_core::readahead::PageView;
use readpath_core::unit::PageRange;

use super::adaptive_trajectory::PolicyDriver;

/// A driver whose pages are unused until they are read.
fn driver() -> PolicyDriver {
    let mut alone = PolicyDriver::new();
    alone.pages.track_uses();
    alone
}

/// Blocks of 64 pages, 320 pages apart, each read a page at a time, in either order. From the third
/// block on each prefetched range is the rest of that block or a whole block, and no page between
/// blocks is read. Only the first page of a block is ever awaited.
#[test]
fn stride_of_blocks_with_several_requests_has_whole_blocks() {
    const BLOCK: u64 = 64;
    const DISTANCE: u64 = 320;
    for (descends, is_read_down) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut alone = driver();
        let mut prefetched = 0;
        for nth in 0..24 {
            let first = DISTANCE * if descends { 99 - nth } else { 1 + nth };
            for at in 0..BLOCK {
                let page = first + if is_read_down { BLOCK - 1 - at } else { at };
                let is_absent = !alone.pages.is_cached(page);
                assert!(!is_absent || nth < 2 || at == 0, "block {nth}, page {at}");
                for (range_first, count) in alone.read(page, 1) {
                    let in_block = range_first % DISTANCE;
                    let is_whole = in_block == 0 && count == BLOCK;
                    let is_rest = range_first / DISTANCE == first / DISTANCE && count == BLOCK - 1;
                    assert!(nth < 2 || is_whole || is_rest, "{range_first} + {count}");
                    prefetched += u64::from(nth >= 2) * count;
                }
            }
        }
        assert!(prefetched >= 21 * BLOCK, "{prefetched} pages of 22 blocks");
    }
}

/// Blocks of 67,584 bytes whose offsets lie anywhere in their pages, up and down, read 4 KiB at a
/// time. From the fourth block on, at most one of the 17 requests misses, at an edge page. No more
/// than two pages elsewhere are prefetched for each block.
#[test]
fn stride_of_blocks_at_unaligned_offsets_goes_on() {
    const BYTES: u64 = 67_584;
    for (descends, is_read_down) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut alone = driver();
        let (mut others, mut misses) = (0, 0);
        let begin = |nth: u64| (1 << 21) + 2100 + nth * ((1 << 20) + 500);
        let blocks: Vec<u64> = (0..300).map(begin).collect();
        for nth in 0..60 {
            let offset = begin(if descends { 180 - nth } else { 100 + nth });
            let pieces = BYTES.div_ceil(4096);
            for at in 0..pieces {
                let at = if is_read_down { pieces - 1 - at } else { at };
                let bytes = (BYTES - at * 4096).min(4096);
                let request = PageRange::covering(offset + at * 4096, bytes);
                let is_absent = request.pages().any(|page| !alone.pages.is_cached(page));
                misses += u64::from(is_absent && nth >= 3);
                for (first, count) in alone.read_bytes(offset + at * 4096, bytes) {
                    let in_block = |page: u64| {
                        let in_it = |&begin: &u64| {
                            PageRange::covering(begin, BYTES).pages().contains(&page)
                        };
                        blocks.iter().any(in_it)
                    };
                    let outside = (first..first + count).filter(|&page| !in_block(page)).count();
                    others += if nth >= 2 { outside } else { 0 };
                }
            }
        }
        let case = (descends, is_read_down);
        assert!(misses <= 57, "{misses} requests missed: {case:?}");
        assert!(others <= 2 * 78, "{others} pages elsewhere: {case:?}");
    }
}

/// A table of row groups read column by column: the second column's chunk lies behind the first
/// one's, which is still cached. Each chunk is one request, so the pages of a stride are chunks of
/// that column alone.
#[test]
fn pages_of_an_earlier_pass_are_no_part_of_a_block() {
    const GROUP: u64 = 256;
    const CHUNK: u64 = 16;
    let mut alone = driver();
    for group in 0..20 {
        alone.read(GROUP * (group + 1), CHUNK);
    }
    let mut chunks = 0;
    for group in 0..40 {
        for (first, count) in alone.read(GROUP * (group + 1) + CHUNK, CHUNK) {
            if group >= 22 {
                assert_eq!((first % GROUP, count), (CHUNK, CHUNK), "{first} + {count}");
                chunks += 1;
            }
        }
    }
    assert!(chunks >= 15, "{chunks} chunks");
}

/// Two blocks are read whole, then one page of each block. The stride ends: few whole blocks are
/// read for one page.
#[test]
fn blocks_left_after_one_page_end_the_stride() {
    const BLOCK: u64 = 64;
    let mut alone = driver();
    let mut prefetched = 0;
    for nth in 0..200 {
        let pages = if nth < 3 { BLOCK } else { 1 };
        for at in 0..pages {
            let added = alone.read(320 * (nth + 1) + at, 1);
            prefetched += added.iter().map(|&(_, count)| count).sum::<u64>();
        }
    }
    // Three windows of at most eight blocks.
    assert!(prefetched <= 24 * BLOCK, "{prefetched} pages for 200 blocks");
}

//! The golden trajectory of the policy `ondemand`: its additions, read by read.
//!
//! Every row was decided by Linux 6.18 on ext4, cold, and recorded from its trace of the page
//! cache. A row is one read in pages, and the added range `FIRST..END`, in folios of the number of
//! pages after `x`. Reads that are not listed added no pages.

use readpath_core::readahead::{
    Folio, OnDemand, PageTable, ReadRequest, ReadaheadLimits, ReadaheadPolicy,
};
use readpath_core::unit::PAGE_BYTES;

/// A disk with `read_ahead_kb` 8192 and `max_sectors_kb` 4096.
const WIDE: ReadaheadLimits = ReadaheadLimits { window_pages_max: 2048, request_pages_max: 1024 };

/// A loop device: `read_ahead_kb` 128 and `max_sectors_kb` 1280.
const NARROW: ReadaheadLimits = ReadaheadLimits { window_pages_max: 32, request_pages_max: 320 };

const FILE_PAGES: u64 = 65_536;

/// Plays reads (first page, pages) and lists those that added pages.
fn trajectory(limits: &ReadaheadLimits, reads: impl Iterator<Item = (u64, u64)>) -> Vec<String> {
    let mut policy = OnDemand::new(limits);
    let mut pages = PageTable::default();
    let mut rows = Vec::new();
    for (first, count) in reads {
        let ask = ReadRequest {
            offset: first * PAGE_BYTES,
            bytes: count * PAGE_BYTES,
            file_bytes: FILE_PAGES * PAGE_BYTES,
            is_congested: false,
        };
        policy.read(&ask, &mut pages);
        let added: Vec<Folio> = pages.take_added().into_iter().map(|(folio, _)| folio).collect();
        if !added.is_empty() {
            rows.push(format!("{first}+{count}: {}", runs(&added)));
        }
    }
    rows
}

/// Formats folios as ranges of equal folio size.
fn runs(folios: &[Folio]) -> String {
    let follows = |a: &Folio, b: &Folio| a.order == b.order && a.range().end == b.first;
    let run = |run: &[Folio]| {
        format!("{}..{}x{}", run[0].first, run[run.len() - 1].range().end, 1 << run[0].order)
    };
    folios.chunk_by(follows).map(run).collect::<Vec<_>>().join(" ")
}

#[test]
fn windows_of_one_sequential_stream_grow_to_the_maximum() {
    let rows = trajectory(&WIDE, (0..3000).map(|page| (page, 1)));
    let expected = [
        "0+1: 0..4x1",
        "1+1: 4..20x4",
        "4+1: 20..24x4 24..32x8 32..80x16",
        "20+1: 80..96x16 96..128x32 128..320x64",
        "80+1: 320..384x64 384..512x128 512..768x256",
        "320+1: 768..1024x256",
        "768+1: 1024..1536x512",
        "1024+1: 1536..2048x512",
        "1536+1: 2048..3072x512",
        "2048+1: 3072..4096x512",
    ];
    assert_eq!(rows, expected);

    let rows = trajectory(&NARROW, (0..130).map(|page| (page, 1)));
    let expected = [
        "0+1: 0..4x1",
        "1+1: 4..12x4",
        "4+1: 12..16x4",
        "12+1: 16..24x8",
        "16+1: 24..32x8",
        "24+1: 32..48x16",
        "32+1: 48..64x16",
        "48+1: 64..96x32",
        "64+1: 96..128x32",
        "96+1: 128..160x32",
        "128+1: 160..192x32",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn requests_larger_than_the_window_prefetch_their_own_size() {
    let rows = trajectory(&NARROW, (0..5).map(|read| (read * 64, 64)));
    let expected = [
        "0+64: 0..64x1 64..128x4",
        "64+64: 128..192x16",
        "128+64: 192..256x64",
        "192+64: 256..320x64",
        "256+64: 320..384x64",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn golden_trajectory_of_two_streams_on_one_handle() {
    let reads = (0..40).flat_map(|page| [(page, 1), (10_000 + page, 1)]);
    let expected = [
        "0+1: 0..4x1",
        "10000+1: 10000..10001x1",
        "1+1: 4..12x4",
        "10001+1: 10001..10002x1",
        "10002+1: 10002..10005x1",
        "4+1: 13..14x1 14..16x2 16..32x4",
        "10004+1: 10005..10006x1 10006..10008x2 10008..10009x1",
        "10005+1: 10009..10010x1 10010..10012x2 10012..10016x4",
        "10009+1: 10016..10024x8 10024..10028x4 10028..10030x2",
        "12+1: 12..13x1",
        "13+1: 32..64x4",
        "10016+1: 10031..10032x1 10032..10048x16",
        "10030+1: 10030..10031x1 10048..10060x1",
        "10031+1: 10060..10092x4",
    ];
    assert_eq!(trajectory(&NARROW, reads), expected);
}

#[test]
fn strides_are_missed_or_read_with_their_gaps() {
    // 16 KiB every 64 KiB from the start: with a wide window the first two windows happen to bridge
    // the gaps.
    let strided = || (0..8).map(|read| (read * 16, 4));
    let wide = ["0+4: 0..16x1", "16+4: 16..52x1", "48+4: 52..196x4"];
    assert_eq!(trajectory(&WIDE, strided()), wide);
    let narrow = trajectory(&NARROW, strided());
    assert_eq!(narrow[..3], ["0+4: 0..8x1", "16+4: 16..20x1", "32+4: 32..36x1"]);
    assert_eq!(narrow.len(), 8);
}

#[test]
fn backward_reads_get_exactly_their_request() {
    let rows = trajectory(&WIDE, (493..=500).rev().map(|page| (page, 1)));
    assert_eq!(rows.len(), 8);
    assert_eq!(rows[0], "500+1: 500..501x1");
    assert_eq!(rows[7], "493+1: 493..494x1");
}

//! Shortest forms of failures that runs have found. Each failed before its repair, and the doc
//! comment says how. The numbers are those that the shortening left, and have no other meaning.
//!
//! Arguments, as in [`Action`]: a range to read is file, offset and number of bytes. Then follow:
//! - `Batch`: the number of reads to wait for (all reads if it is larger), and a range to read
//!   meanwhile;
//! - `Futures`: the number of rounds of polls, and the number of the call that panics, both 0 for
//!   none;
//! - `Stream`: the number of bytes of a line.
//!
//! Other arguments begin with a file: `Write` continues with first page and number of pages,
//! `Resize` and `Replace` with the new length in bytes, `Hold` with an offset, and `Advise` with
//! the number of the advice. `Pause` has microseconds only.

use super::disk::Faults;
use super::scenario::{Action, Scenario, Settings};
use crate::target::Coherence;

use Action::{
    Advise, Batch, Futures, Hold, Invalidate, Open, Pause, Prefetch, Read, ReadVectored, Reopen,
    Replace, Resize, Revalidate, Stream, Write,
};

mod paged;

/// Returns all scenarios. Each must run without a failure.
pub fn regressions() -> Vec<Scenario> {
    let mut regressions = vec![
        failed_batch_reads_during_another_read(),
        guards_of_more_threads_than_pages(),
        page_in_flight_during_an_invalidation(),
        invalidations_of_a_bad_page(),
        file_closed_during_its_invalidation(),
        vectored_read_during_eviction(),
        bad_page_read_while_a_thread_is_frozen(),
        prefetch_waiting_for_the_time_slice_of_a_dropped_handle(),
        failed_prefetch_of_a_page_in_full_memory(),
        prefetch_held_back_for_a_dropped_handle(),
        reader_of_a_file_that_shrinks(),
    ];
    regressions.extend(paged::regressions());
    regressions
}

/// Settings without faults, which the scenarios change. Guards may pin `held_pages` pages. A rate
/// n means one event of n, and 0 none: one step of 16 switches to another thread.
fn settings_without_faults() -> Settings {
    Settings {
        memory_pages: 16,
        held_pages: 4,
        readahead: "none",
        scheduler: "noop",
        eviction: "two-lists",
        depth: 8,
        can_execute_inline: true,
        coherence: Coherence::WhenOpened,
        switch_one_in: 16,
        freeze_one_in: 0,
        refuse_thread_one_in: 0,
        paged: None,
    }
}

/// Failed reads of the `Batch`, of the bad page 0, kept their pages reserved. The batch's own
/// thread then read the last argument's range and got no page.
fn failed_batch_reads_during_another_read() -> Scenario {
    Scenario {
        server: None,
        seed: 2824,
        settings: Settings {
            memory_pages: 8,
            held_pages: 1,
            scheduler: "deadline",
            eviction: "arc",
            depth: 3,
            coherence: Coherence::EachRead,
            switch_one_in: 300,
            ..settings_without_faults()
        },
        files: vec![3772],
        faults: Faults { bad_pages: vec![(0, 0)], ..Faults::default() },
        threads: vec![
            vec![Batch(
                vec![
                    (0, 2527, 0),
                    (0, 8040, 4096),
                    (0, 3770, 4096),
                    (0, 721, 4096),
                    (0, 2576, 4096),
                    (0, 301, 4096),
                    (0, 2173, 1786),
                    (0, 6129, 3765),
                    (0, 2196, 2),
                    (0, 3130, 4053),
                    (0, 0, 12288),
                ],
                17,
                Some((0, 0, 432)),
            )],
            vec![
                Resize(0, 70984),
                Futures(vec![(0, 2132, 76)], 0, 0),
                Stream((0, 338, 16384), 1690),
                Futures(vec![(0, 0, 6), (0, 10019, 16384)], 3, 2),
            ],
        ],
    }
}

/// Three threads each read a page by `Stream`, which pins it as one guard. The page was evicted
/// before the thread could pin it, and read again, without end: the memory has two pages.
fn guards_of_more_threads_than_pages() -> Scenario {
    let stream_from_page = |page: u64| vec![Stream((0, page * 4096, 8192), 100); 4];
    Scenario {
        server: None,
        seed: 1,
        settings: Settings {
            memory_pages: 2,
            held_pages: 1,
            depth: 3,
            ..settings_without_faults()
        },
        files: vec![69_275],
        faults: Faults::default(),
        threads: vec![stream_from_page(0), stream_from_page(5), stream_from_page(10)],
    }
}

/// The `Stream` began after the `Invalidate`. It shared a page that was in flight since before the
/// `Write`, prefetched after the `Read`, and got the old bytes.
fn page_in_flight_during_an_invalidation() -> Scenario {
    Scenario {
        server: None,
        seed: 1424,
        settings: Settings {
            memory_pages: 40,
            held_pages: 20,
            readahead: "adaptive",
            eviction: "lru",
            depth: 3,
            ..settings_without_faults()
        },
        files: vec![4096, 25_628],
        faults: Faults { short_one_in: 2, ..Faults::default() },
        threads: vec![vec![
            Read((1, 24_576, 4096)),
            Write(1, 0, 8),
            Invalidate((1, 59, 8192)),
            Stream((1, 1874, 4096), 2686),
        ]],
    }
}

/// An `Invalidate` waits for pages of its range that are in flight. Each wait for the bad page 2,
/// which the `Futures` reads, caused another read of it, for which the other threads waited, and so
/// on.
fn invalidations_of_a_bad_page() -> Scenario {
    Scenario {
        server: None,
        seed: 5874,
        settings: Settings {
            memory_pages: 2,
            held_pages: 1,
            readahead: "adaptive",
            eviction: "arc",
            depth: 2,
            can_execute_inline: false,
            switch_one_in: 4,
            ..settings_without_faults()
        },
        files: vec![12_288],
        faults: Faults { bad_pages: vec![(0, 2)], ..Faults::default() },
        threads: vec![
            vec![Invalidate((0, 4944, 16_384))],
            vec![Invalidate((0, 7121, 4096))],
            vec![Futures(vec![(0, 8350, 971)], 0, 0), Invalidate((0, 4096, 12_288))],
            vec![Invalidate((0, 7822, 1887))],
        ],
    }
}

/// A *version* is the file as one opening has found it. The `Invalidate` of one thread also waits
/// for pages of other versions. After the `Write`, the other thread opened a new version by `Hold`,
/// the action that takes a guard on a page. The thread then ended, which closed the last handle of
/// this version. The wait then used the closed handle, and panicked.
fn file_closed_during_its_invalidation() -> Scenario {
    Scenario {
        server: None,
        seed: 1_000_394,
        settings: Settings {
            memory_pages: 8,
            held_pages: 2,
            readahead: "ondemand",
            scheduler: "cfq",
            eviction: "s3fifo",
            depth: 32,
            can_execute_inline: false,
            ..settings_without_faults()
        },
        files: vec![1581],
        faults: Faults::default(),
        threads: vec![vec![Invalidate((0, 461, 16_384))], vec![Write(0, 1, 10), Hold(0, 1537)]],
    }
}

/// The first buffers of the `ReadVectored` were filled from the cache with the state before the
/// `Write`. The last, whose page was evicted, was filled with the state after it.
fn vectored_read_during_eviction() -> Scenario {
    Scenario {
        server: None,
        seed: 3137,
        settings: Settings {
            memory_pages: 4,
            held_pages: 2,
            scheduler: "deadline",
            eviction: "adaptive",
            depth: 32,
            can_execute_inline: false,
            coherence: Coherence::EachMiss,
            switch_one_in: 2,
            ..settings_without_faults()
        },
        files: vec![12_288],
        faults: Faults::default(),
        threads: vec![
            vec![Batch(vec![(0, 5341, 4053)], 19, Some((0, 8192, 0))), Write(0, 0, 19)],
            vec![Stream((0, 2968, 1977), 346), ReadVectored((0, 1646, 12_288))],
        ],
    }
}

/// Threads are frozen at random. The error of the last `Read`, of the pages 1 and 2 of file 1,
/// named the first byte of the read, although only page 2 is bad.
fn bad_page_read_while_a_thread_is_frozen() -> Scenario {
    Scenario {
        server: None,
        seed: 530,
        settings: Settings {
            memory_pages: 64,
            held_pages: 16,
            readahead: "window",
            eviction: "arc",
            depth: 2,
            coherence: Coherence::EachRead,
            freeze_one_in: 300,
            ..settings_without_faults()
        },
        files: vec![16_384, 13_507],
        faults: Faults { bad_pages: vec![(1, 2), (0, 1), (0, 0), (1, 0)], ..Faults::default() },
        threads: vec![
            vec![Hold(0, 8192), Read((0, 0, 1183)), Read((1, 9209, 4096))],
            vec![
                Revalidate(0),
                Open(0),
                Invalidate((0, 5175, 16_384)),
                Revalidate(1),
                Read((0, 8192, 8192)),
                Read((1, 6012, 4096)),
            ],
        ],
    }
}

/// A `Prefetch` waited for the end of another handle's time slice in the scheduler. The handle was
/// dropped, as its thread ended, and the prefetch was never submitted.
fn prefetch_waiting_for_the_time_slice_of_a_dropped_handle() -> Scenario {
    Scenario {
        server: None,
        seed: 5_029_614,
        settings: Settings {
            memory_pages: 4,
            held_pages: 1,
            readahead: "adaptive",
            scheduler: "adaptive",
            eviction: "s3fifo",
            can_execute_inline: false,
            coherence: Coherence::EachRead,
            switch_one_in: 4,
            ..settings_without_faults()
        },
        files: vec![16_384],
        faults: Faults {
            error_one_in: 20,
            short_one_in: 20,
            retry_one_in: 50,
            delay_one_in: 100,
            ..Faults::default()
        },
        threads: vec![
            vec![],
            vec![
                Futures(vec![(0, 12_288, 4096), (0, 8192, 17_818)], 2, 0),
                Write(0, 0, 15),
                Futures(vec![(0, 3275, 243_037)], 0, 0),
            ],
            vec![
                Read((0, 4814, 252_410)),
                Pause(14_262),
                Replace(0, 1_215_897),
                Read((0, 3983, 2478)),
                Pause(2889),
                Read((0, 4096, 3)),
                Futures(vec![(0, 8192, 4096), (0, 0, 281_734)], 4, 0),
                Write(0, 0, 7),
                Futures(vec![(0, 14_379, 3631)], 4, 0),
                Pause(234),
                Prefetch((0, 0, 16_384)),
            ],
            vec![
                Read((0, 2726, 4207)),
                Invalidate((0, 1660, 270_569)),
                Futures(vec![(0, 2497, 3946), (0, 12_260, 800)], 0, 0),
                Read((0, 5143, 211_064)),
                Futures(vec![(0, 0, 133_959)], 2, 0),
                Read((0, 4096, 12_288)),
                Pause(18_254),
                Invalidate((0, 6503, 2948)),
                Futures(vec![(0, 10_892, 736), (0, 3002, 2071), (0, 4764, 92_053)], 2, 0),
                Invalidate((0, 12_074, 103_942)),
                Revalidate(0),
                Advise(0, 3),
                Futures(vec![(0, 12_288, 88_713), (0, 12_123, 304_180)], 0, 0),
                Prefetch((0, 15_008, 3)),
            ],
        ],
    }
}

/// Readahead fetched a good page together with one of `bad_pages`, before any action read it. A
/// later action, which read page by page, found no frame for another attempt, because the memory
/// was full.
fn failed_prefetch_of_a_page_in_full_memory() -> Scenario {
    Scenario {
        server: None,
        seed: 6_006_378,
        settings: Settings {
            memory_pages: 64,
            held_pages: 1,
            readahead: "window",
            scheduler: "cfq",
            eviction: "adaptive",
            depth: 2,
            switch_one_in: 2,
            ..settings_without_faults()
        },
        files: vec![653_204, 489],
        faults: Faults {
            bad_pages: vec![(0, 107), (0, 145), (0, 141), (0, 77)],
            ..Faults::default()
        },
        threads: vec![vec![
            Read((0, 1812, 322)),
            Hold(0, 398_123),
            Futures(vec![(0, 458_612, 58_926), (0, 578_340, 2745), (0, 57_792, 2221)], 0, 0),
            Batch(
                vec![(0, 171_798, 8192), (0, 213_064, 4419), (0, 462_848, 27_116)],
                15,
                Some((0, 8849, 2368)),
            ),
        ]],
    }
}

/// The last read of a handle ended after the handle was dropped. The scheduler then kept the device
/// idle for its next read. It held back the prefetch of another file, which stayed open.
fn prefetch_held_back_for_a_dropped_handle() -> Scenario {
    Scenario {
        server: None,
        seed: 1842,
        settings: Settings {
            memory_pages: 24,
            held_pages: 1,
            readahead: "adaptive",
            scheduler: "adaptive",
            eviction: "adaptive",
            can_execute_inline: false,
            switch_one_in: 64,
            ..settings_without_faults()
        },
        files: vec![134_397, 903_369],
        faults: Faults { delay_one_in: 100, ..Faults::default() },
        threads: vec![vec![
            Stream((0, 53_913, 291_028), 1465),
            Prefetch((0, 9872, 7)),
            Reopen(0),
            Prefetch((0, 27_538, 8192)),
            Prefetch((1, 8456, 2012)),
        ]],
    }
}

/// A `Stream` returned the bytes before the new end of a file that had shrunk since its opening.
/// The simulation demanded all bytes of the opened length.
fn reader_of_a_file_that_shrinks() -> Scenario {
    Scenario {
        server: None,
        seed: 55,
        settings: Settings {
            memory_pages: 8,
            held_pages: 1,
            scheduler: "cfq",
            eviction: "adaptive",
            switch_one_in: 64,
            ..settings_without_faults()
        },
        files: vec![364_424, 46_521, 4096],
        faults: Faults::default(),
        threads: vec![vec![
            Batch(
                vec![(1, 25_894, 336), (0, 169_559, 4096), (0, 249_606, 8192), (2, 6431, 1852)],
                8,
                None,
            ),
            Resize(2, 2633),
            Stream((2, 120, 4096), 2602),
        ]],
    }
}

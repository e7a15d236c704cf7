//! What runs have found, as short as it gets: each failed before it was repaired.

use super::disk::Faults;
use super::scenario::{Action, Scenario, Settings};
use crate::path::Coherence;

use Action::{
    Batch, Futures, Hold, Invalidate, Open, Read, ReadVectored, Resize, Revalidate, Stream, Write,
};

/// All of them.
pub fn found() -> Vec<Scenario> {
    vec![
        failed_reads_of_a_batch_beside_a_read(),
        guards_of_more_threads_than_pages(),
        a_page_on_its_way_when_it_is_invalidated(),
        invalidations_of_a_bad_page(),
        a_file_that_is_closed_as_it_is_invalidated(),
        a_vectored_read_of_what_leaves(),
        a_bad_page_behind_a_stopped_thread(),
    ]
}

fn quiet() -> Settings {
    Settings {
        memory_pages: 16,
        held_pages: 4,
        readahead: "none",
        scheduler: "noop",
        reclaim: "two-lists",
        depth: 8,
        lets_carry: true,
        coherence: Coherence::WhenOpened,
        switch_part: 16,
        freeze_part: 0,
        refuse_thread_part: 0,
    }
}

/// Failed reads of a batch kept their pages from the thread that had them lent, and read something else.
fn failed_reads_of_a_batch_beside_a_read() -> Scenario {
    Scenario {
        seed: 2824,
        settings: Settings {
            memory_pages: 8,
            held_pages: 1,
            scheduler: "deadline",
            reclaim: "arc",
            depth: 3,
            coherence: Coherence::EachRead,
            switch_part: 300,
            ..quiet()
        },
        files: vec![3772],
        faults: Faults { bad: vec![(0, 0)], ..Faults::default() },
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

/// Each of three threads brought its page in, and found it gone again before it could hold it, for ever.
fn guards_of_more_threads_than_pages() -> Scenario {
    let stream = |page: u64| vec![Stream((0, page * 4096, 8192), 100); 4];
    Scenario {
        seed: 1,
        settings: Settings { memory_pages: 2, held_pages: 1, depth: 3, ..quiet() },
        files: vec![69_275],
        faults: Faults::default(),
        threads: vec![stream(0), stream(5), stream(10)],
    }
}

/// A read that began after an invalidation shared a page that was on its way before, with the old bytes.
fn a_page_on_its_way_when_it_is_invalidated() -> Scenario {
    Scenario {
        seed: 1424,
        settings: Settings {
            memory_pages: 40,
            held_pages: 20,
            readahead: "adaptive",
            reclaim: "lru",
            depth: 3,
            ..quiet()
        },
        files: vec![4096, 25_628],
        faults: Faults { stops: 2, ..Faults::default() },
        threads: vec![vec![
            Read((1, 24_576, 4096)),
            Write(1, 0, 8),
            Invalidate((1, 59, 8192)),
            Stream((1, 1874, 4096), 2686),
        ]],
    }
}

/// Who waited for a page on its way had it read anew by that, and so had others who waited for it.
fn invalidations_of_a_bad_page() -> Scenario {
    Scenario {
        seed: 5874,
        settings: Settings {
            memory_pages: 2,
            held_pages: 1,
            readahead: "adaptive",
            reclaim: "arc",
            depth: 2,
            lets_carry: false,
            switch_part: 4,
            ..quiet()
        },
        files: vec![12_288],
        faults: Faults { bad: vec![(0, 2)], ..Faults::default() },
        threads: vec![
            vec![Invalidate((0, 4944, 16_384))],
            vec![Invalidate((0, 7121, 4096))],
            vec![Futures(vec![(0, 8350, 971)], 0, 0), Invalidate((0, 4096, 12_288))],
            vec![Invalidate((0, 7822, 1887))],
        ],
    }
}

/// The last handle of a state of the file went while an invalidation waited for its pages.
fn a_file_that_is_closed_as_it_is_invalidated() -> Scenario {
    Scenario {
        seed: 1_000_394,
        settings: Settings {
            memory_pages: 8,
            held_pages: 2,
            readahead: "ondemand",
            scheduler: "cfq",
            reclaim: "s3fifo",
            depth: 32,
            lets_carry: false,
            ..quiet()
        },
        files: vec![1581],
        faults: Faults::default(),
        threads: vec![vec![Invalidate((0, 461, 16_384))], vec![Write(0, 1, 10), Hold(0, 1537)]],
    }
}

/// Its first buffers were filled from the cache, as the file was, and the last, whose page had left, as it was by then.
fn a_vectored_read_of_what_leaves() -> Scenario {
    Scenario {
        seed: 3137,
        settings: Settings {
            memory_pages: 4,
            held_pages: 2,
            scheduler: "deadline",
            reclaim: "adaptive",
            depth: 32,
            lets_carry: false,
            coherence: Coherence::EachMiss,
            switch_part: 2,
            ..quiet()
        },
        files: vec![12_288],
        faults: Faults::default(),
        threads: vec![
            vec![Batch(vec![(0, 5341, 4053)], 19, Some((0, 8192, 0))), Write(0, 0, 19)],
            vec![Stream((0, 2968, 1977), 346), ReadVectored((0, 1646, 12_288))],
        ],
    }
}

/// The error named the first byte of the read, though it was another page that could not be read.
fn a_bad_page_behind_a_stopped_thread() -> Scenario {
    Scenario {
        seed: 530,
        settings: Settings {
            memory_pages: 64,
            held_pages: 16,
            readahead: "window",
            reclaim: "arc",
            depth: 2,
            coherence: Coherence::EachRead,
            freeze_part: 300,
            ..quiet()
        },
        files: vec![16_384, 13_507],
        faults: Faults { bad: vec![(1, 2), (0, 1), (0, 0), (1, 0)], ..Faults::default() },
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

//! What runs have found, as short as it gets: each failed before it was repaired.

use super::disk::Faults;
use super::scenario::{Action, Scenario, Settings};
use crate::path::Coherence;

use Action::{Batch, Futures, Resize, Stream};

/// All of them.
pub fn found() -> Vec<Scenario> {
    vec![failed_reads_of_a_batch_beside_a_read()]
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

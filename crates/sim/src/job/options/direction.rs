//! Reads or writes, one after the other or at random.

use super::{FioOption, honoured};
use crate::job::draft::{Direction, Flow};
use crate::job::value::{Expected, Value};
use crate::job::{Sequence, Sequencer};

pub const TABLE: &[FioOption] = &[
    honoured(
        "rw",
        &["readwrite"],
        "read, randread, write, randwrite, rw, randrw (read); :N behind a random one draws a place \
         for each N operations, behind another one leaves gaps of N bytes",
        |draft, value| {
            match flow(value)? {
                Some((flow, sequence)) => {
                    draft.flow = Some(flow);
                    draft.job.sequence = Sequence { kind: draft.job.sequence.kind, ..sequence };
                }
                None => draft.refused = Some("no device here takes discards"),
            }
            Ok(())
        },
    ),
    honoured(
        "rw_sequencer",
        &[],
        "what operations between random places do: sequential, identical (sequential)",
        |draft, value| {
            let words =
                [("sequential", Sequencer::Sequential), ("identical", Sequencer::Identical)];
            value.one_of(&words).map(|kind| draft.job.sequence.kind = kind)
        },
    ),
    honoured("rwmixread", &[], "percentage of reads in a mix (50)", |draft, value| {
        value.integer(0..=100).map(|n| draft.reads_percent_of_mix = n)
    }),
    honoured("rwmixwrite", &[], "percentage of writes in a mix (50)", |draft, value| {
        value.integer(0..=100).map(|n: u8| draft.reads_percent_of_mix = 100 - n)
    }),
];

/// `None`: fio would send discards.
fn flow(value: Value<'_>) -> Result<Option<(Flow, Sequence)>, Expected> {
    const TRIMS: [&str; 4] = ["trim", "randtrim", "trimwrite", "randtrimwrite"];
    let (word, behind) = match value.text.split_once(':') {
        Some((word, behind)) => (word.trim(), Some(value.part(behind))),
        None => (value.text, None),
    };
    if TRIMS.contains(&word) {
        return Ok(None);
    }
    let (is_random, direction) = value.part(word).one_of(&[
        ("read", (false, Direction::Read)),
        ("randread", (true, Direction::Read)),
        ("write", (false, Direction::Write)),
        ("randwrite", (true, Direction::Write)),
        ("rw", (false, Direction::Mix)),
        ("readwrite", (false, Direction::Mix)),
        ("randrw", (true, Direction::Mix)),
    ])?;
    let sequence = match (behind, is_random) {
        (None, _) => Sequence::default(),
        (Some(every), true) => {
            Sequence { every: every.integer(1..=u32::MAX)?, ..Sequence::default() }
        }
        (Some(skip), false) => {
            let skip_bytes = skip.signed_bytes().ok_or("a gap in bytes behind the colon")?;
            Sequence { skip_bytes, ..Sequence::default() }
        }
    };
    Ok(Some((Flow { is_random, direction }, sequence)))
}

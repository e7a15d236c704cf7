//! Options about direction and order: reads or writes, sequential or random.

use super::{FioOption, supported};
use crate::job::draft::{ReadWriteOption, TransferDirection};
use crate::job::value::{ExpectedForm, OptionValue};
use crate::job::{RandomSequence, Sequencer};

pub const TABLE: &[FioOption] = &[
    supported(
        "rw",
        &["readwrite"],
        "read, randread, write, randwrite, rw, randrw (read); :N behind a random one draws a place \
         for each N operations, behind another one leaves gaps of N bytes",
        |draft, value| {
            match parse_rw(value)? {
                Some((read_write, sequence)) => {
                    draft.read_write = Some(read_write);
                    draft.job.sequence =
                        RandomSequence { kind: draft.job.sequence.kind, ..sequence };
                }
                None => draft.rejection = Some("no device here takes discards"),
            }
            Ok(())
        },
    ),
    supported(
        "rw_sequencer",
        &[],
        "what operations between random places do: sequential, identical (sequential)",
        |draft, value| {
            let words =
                [("sequential", Sequencer::Sequential), ("identical", Sequencer::Identical)];
            value.one_of(&words).map(|kind| draft.job.sequence.kind = kind)
        },
    ),
    supported("rwmixread", &[], "percentage of reads in a mix (50)", |draft, value| {
        value.integer(0..=100).map(|n| draft.reads_percent_of_mix = n)
    }),
    supported("rwmixwrite", &[], "percentage of writes in a mix (50)", |draft, value| {
        value.integer(0..=100).map(|n: u8| draft.reads_percent_of_mix = 100 - n)
    }),
];

/// Parses the value of `rw`, such as `randread:8` or `read:4k`: the direction, and the number
/// behind the colon. For a random order that is the number of operations per random position, at
/// least 1, otherwise the gap in bytes. The sequence has the default `kind`, which the caller
/// replaces. Returns `None` for discards, which are not supported. Any other word or number is an
/// error.
fn parse_rw(
    value: OptionValue<'_>,
) -> Result<Option<(ReadWriteOption, RandomSequence)>, ExpectedForm> {
    /// Values of `rw` that send discards.
    const TRIMS: [&str; 4] = ["trim", "randtrim", "trimwrite", "randtrimwrite"];
    let (word, suffix) = match value.text.split_once(':') {
        Some((word, suffix)) => (word.trim(), Some(value.part(suffix))),
        None => (value.text, None),
    };
    if TRIMS.contains(&word) {
        return Ok(None);
    }
    let (is_random, direction) = value.part(word).one_of(&[
        ("read", (false, TransferDirection::Read)),
        ("randread", (true, TransferDirection::Read)),
        ("write", (false, TransferDirection::Write)),
        ("randwrite", (true, TransferDirection::Write)),
        ("rw", (false, TransferDirection::Mix)),
        ("readwrite", (false, TransferDirection::Mix)),
        ("randrw", (true, TransferDirection::Mix)),
    ])?;
    let sequence = match (suffix, is_random) {
        (None, _) => RandomSequence::default(),
        (Some(every), true) => {
            RandomSequence { every: every.integer(1..=u32::MAX)?, ..RandomSequence::default() }
        }
        (Some(skip), false) => {
            let skip_bytes = skip.signed_bytes().ok_or("a gap in bytes behind the colon")?;
            RandomSequence { skip_bytes, ..RandomSequence::default() }
        }
    };
    Ok(Some((ReadWriteOption { is_random, direction }, sequence)))
}

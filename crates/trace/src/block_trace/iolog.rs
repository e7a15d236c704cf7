//! Parser of fio's own traces ("Trace file format" in its manual), versions 2 and 3.

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::fields::{checked_range, first_words, parse_time, whole_number};
use super::{Event, RawRequest, TraceLine};

/// Nanoseconds per µs, the unit of the times in version 3.
const NS_PER_US: u64 = 1_000;
/// Nanoseconds per ms, the unit of the waits in version 2.
const NS_PER_MS: u64 = 1_000_000;

/// State of a parser.
#[derive(Debug, Default)]
pub struct IologState {
    /// Version of the trace. `None` before its first line.
    version: Option<IologVersion>,
    /// Time of the last line. In version 2, the latest time of a `wait` line so far.
    now: Time,
    /// Number of syncs (`sync`, `datasync`) so far.
    syncs: u64,
    /// Number of trims so far.
    trims: u64,
}

/// Version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IologVersion {
    /// Lines have no time; `wait` lines separate them.
    Two,
    /// Each line begins with its time.
    Three,
}

impl IologState {
    /// Returns a note with the number of syncs and trims so far, which are no requests of the
    /// trace. `None` without any.
    pub fn left_out_note(&self) -> Option<String> {
        (self.syncs + self.trims > 0).then(|| {
            let IologState { syncs, trims, .. } = self;
            format!("left out of the trace: syncs ({syncs}) and trims ({trims})")
        })
    }

    /// Returns true if a wait before the first request delays it: the times count from the start.
    pub fn counts_from_start(&self) -> bool {
        self.version == Some(IologVersion::Two)
    }

    /// Parses a line. The first line sets the version. Returns `None` for a line of another form.
    pub fn parse_line<'a>(&mut self, text: &'a [u8]) -> Option<TraceLine<'a>> {
        let Some(version) = self.version else {
            self.version = match text {
                b"fio version 2 iolog" => Some(IologVersion::Two),
                b"fio version 3 iolog" => Some(IologVersion::Three),
                _ => return None,
            };
            return Some(TraceLine::Nothing);
        };
        let (words, count) = first_words::<5>(text);
        let mut words = words[..count].iter().copied();
        if version == IologVersion::Three {
            // In microseconds, as fio 3.33 writes and replays it. The manual does not state the
            // unit.
            self.now = parse_time(words.next()?, NS_PER_US)?;
        }
        let device = words.next()?;
        let action = words.next()?;
        let (first, second) = (words.next(), words.next());
        let op = match action {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"wait" if version == IologVersion::Two => {
                // The number is a time in milliseconds since the start, as in fio 3.33. The manual
                // of fio has microseconds since the last wait. With the waits 1000 and 1500, a
                // job of fio takes 1,392 ms, and with 2000 and 500 it takes 1,891 ms. The start
                // is about 100 ms before the job.
                self.now = self.now.max(parse_time(first?, NS_PER_MS)?);
                return Some(TraceLine::Nothing);
            }
            // `wait` in version 3: the time of the next line includes it.
            b"add" | b"open" | b"close" | b"sync" | b"datasync" | b"trim" | b"wait" => {
                self.syncs += u64::from(matches!(action, b"sync" | b"datasync"));
                self.trims += u64::from(action == b"trim");
                return Some(TraceLine::Nothing);
            }
            _ => return None,
        };
        let (offset, bytes) = checked_range(whole_number(first?)?, whole_number(second?)?)?;
        Some(match bytes {
            0 => TraceLine::Nothing,
            bytes => {
                let (at, event) = (self.now, Event::Queued);
                TraceLine::Request(RawRequest { at, device, op, offset, bytes, event })
            }
        })
    }
}

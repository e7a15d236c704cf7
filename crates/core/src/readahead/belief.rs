//! What is believed of an open file at the moment, to be shown to a person.

use super::{Credit, DeviceEvidence, FileEvidence};
use crate::unit::PageRange;

/// What was read ahead, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The pages; of a stride, the gaps among them.
    pub range: PageRange,
    /// What they are ahead of: `forward`, `backward`, `strided`; a `piece`; or a `sweep`.
    pub shape: &'static str,
    /// What made it as large as it is, and no larger; see
    /// [`Decision::ReadAhead`](crate::decision::Decision::ReadAhead).
    pub why: &'static str,
    /// Pages that the stream has behind it; of a sweep, what its requests have cost.
    pub behind: u64,
    /// Pages that may be ahead of the reader.
    pub size: u64,
}

/// What is believed of an open file, and of the device that it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belief {
    /// What a request costs beside its bytes, in nanoseconds.
    pub request_ns: u64,
    /// What a page costs at the device's best rate, in picoseconds.
    pub page_ps: u64,
    /// The price: so many pages cost as much as one more request would now.
    pub price_pages: u64,
    /// What came of what was read ahead of the file; `None` where nobody keeps count of that.
    pub credit: Option<Credit>,
    /// The newest window of the file; `None` while nothing was read ahead.
    pub newest: Option<Ahead>,
}

impl Belief {
    /// As the evidence has it.
    pub fn of(device: &DeviceEvidence, file: &FileEvidence, credit: Option<Credit>) -> Belief {
        Belief {
            request_ns: device.estimate.request_ns(),
            page_ps: device.estimate.page_ps(),
            price_pages: device.price_pages(1),
            credit,
            newest: file.newest,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::{Access, Config, Machine, Transfer};
    use crate::request::{DeviceCaps, ProcessId};
    use crate::unit::{PAGE_SECTORS, PageRange, Time};

    /// At first a request is taken to cost 1 ms, or 122 pages. With `n = w + 1`, the likelihood `1 ÷ n` and
    /// `1 + 1 ÷ 2 + … + 1 ÷ n` pages used, `n` times that is at most 122 + n up to n = 37: a window of 36
    /// pages, to the round 32nd page of the file. None of them is used yet.
    #[test]
    fn a_file_that_was_begun_is_believed_to_go_on() {
        let caps = DeviceCaps {
            sectors: 1024 * PAGE_SECTORS,
            request_sectors_max: 64 * PAGE_SECTORS as u32,
            depth_max: 4,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let mut machine = Machine::new(Config {
            readahead: crate::law::Spec::plain("adaptive"),
            ..Config::new(caps)
        })
        .unwrap();
        let file = machine.add_file(1 << 20, 0).unwrap();
        let handle = machine.open(file);
        assert_eq!(machine.belief(handle).newest, None);
        let process = ProcessId(0);
        let transfer = Transfer { handle, process, offset: 0, bytes: 4096, tag: 0 };
        machine.read(Time::ZERO, Access::Buffered, transfer).unwrap();
        let belief = machine.belief(handle);
        assert_eq!((belief.request_ns, belief.price_pages), (1_000_000, 122));
        let newest = belief.newest.unwrap();
        assert_eq!((newest.shape, newest.behind), ("forward", 1));
        assert_eq!(newest.range, PageRange::new(1, 31));
        let credit = belief.credit.unwrap();
        assert_eq!((credit.standing_pages(), credit.used_percent()), (31, None));
    }
}

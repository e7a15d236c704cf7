//! What is believed of an open file at the moment, to be shown to a person.

use super::{Credit, DeviceEvidence, FileEvidence};
use crate::unit::PageRange;

/// What was read ahead, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatestReadahead {
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
pub struct ReadaheadState {
    /// What a request costs beside its bytes, in nanoseconds.
    pub request_ns: u64,
    /// What a page costs at the device's best rate, in picoseconds.
    pub page_ps: u64,
    /// The price: so many pages cost as much as one more request would now.
    pub marginal_cost_pages: u64,
    /// What came of what was read ahead of the file; `None` where nobody keeps count of that.
    pub credit: Option<Credit>,
    /// The newest window of the file; `None` while nothing was read ahead.
    pub newest: Option<LatestReadahead>,
}

impl ReadaheadState {
    /// As the evidence has it.
    pub fn of(
        device: &DeviceEvidence,
        file: &FileEvidence,
        credit: Option<Credit>,
    ) -> ReadaheadState {
        ReadaheadState {
            request_ns: device.estimate.request_ns(),
            page_ps: device.estimate.page_ps(),
            marginal_cost_pages: device.marginal_cost_pages(1),
            credit,
            newest: file.newest,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::{Config, Machine, ReadAccess, Transfer};
    use crate::request::{DeviceCaps, ProcessId};
    use crate::unit::{PAGE_SECTORS, PageRange, Time};

    /// At first a request is taken to cost 1 ms, or 122 pages. With `n = w + 1`, the likelihood `1 ÷ n` and
    /// `1 + 1 ÷ 2 + … + 1 ÷ n` pages used, `n` times that is at most 122 + n up to n = 37: a window of 36
    /// pages, to the round 32nd page of the file. None of them is used yet.
    #[test]
    fn a_started_file_is_expected_to_go_on() {
        let caps = DeviceCaps {
            sectors: 1024 * PAGE_SECTORS,
            request_sectors_max: 64 * PAGE_SECTORS as u32,
            depth_max: 4,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let mut machine = Machine::new(Config {
            readahead: crate::policy::Spec::plain("adaptive"),
            ..Config::new(caps)
        })
        .unwrap();
        let file = machine.add_file(1 << 20, 0).unwrap();
        let handle = machine.open(file);
        assert_eq!(machine.readahead_state(handle).newest, None);
        let process = ProcessId(0);
        let transfer = Transfer { handle, process, offset: 0, bytes: 4096, tag: 0 };
        machine.read(Time::ZERO, ReadAccess::Buffered, transfer).unwrap();
        let readahead_state = machine.readahead_state(handle);
        assert_eq!(
            (readahead_state.request_ns, readahead_state.marginal_cost_pages),
            (1_000_000, 122)
        );
        let newest = readahead_state.newest.unwrap();
        assert_eq!((newest.shape, newest.behind), ("forward", 1));
        assert_eq!(newest.range, PageRange::new(1, 31));
        let credit = readahead_state.credit.unwrap();
        assert_eq!((credit.standing_pages(), credit.used_percent()), (31, None));
    }
}

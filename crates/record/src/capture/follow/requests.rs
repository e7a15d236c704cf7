//! Device requests and the tasks that caused them.
//!
//! A *block range* is a range of sectors that a task has queued. The kernel makes requests of such
//! ranges, and may merge several into one. A request has the task of the range with its first
//! sector.
//!
//! A `task` is the kernel's number of a thread. Times are nanoseconds since the start of the
//! recording. A *queued* record is written once no earlier record can follow.

use std::collections::{BTreeMap, HashMap};

use readpath_core::unit::SECTOR_BYTES;
use readpath_trace::recording::{DeviceOperation, OthersRequests, Record, RequestRecord};

use super::super::names::FileNames;
use super::TaskTracker;

/// Maximum number of block ranges that wait for their requests, chosen. All are discarded beyond
/// it.
const BLOCK_RANGES_MAX: usize = 1 << 16;

/// Maximum number of tasks of other programs that are kept, chosen.
const OTHERS_MAX: usize = 1 << 10;

/// Request that a device has begun and not yet completed.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    /// Time at which the device received it.
    pub(super) begin_ns: u64,
    /// Size of the request.
    pub(super) bytes: u64,
    /// Operation: read, write or another one.
    pub(super) work: DeviceOperation,
    /// True for a request of the kernel's readahead.
    pub(super) is_ahead: bool,
    /// Task that requested it. `None` if that is not known.
    pub(super) task: Option<u32>,
}

/// Tasks that are not recorded, and their requests.
#[derive(Debug, Default)]
pub(super) struct OtherTasks {
    /// Name of each task, by number.
    names: HashMap<u32, String>,
    /// Completed requests, by device, operation and name of the task.
    requests: BTreeMap<(u64, DeviceOperation, String), OthersRequests>,
}

/// Entry of the block ranges: disk and first sector, then the exclusive end and the task.
type BlockRange<'a> = (&'a (u64, u64), &'a (u64, u32));

impl OtherTasks {
    /// Counts a completed request of `bytes` bytes. A task without a name is left out. Tasks of the
    /// same name have one count, with the number of the first.
    fn count_request(&mut self, task: u32, device: u64, work: DeviceOperation, bytes: u64) {
        let Some(name) = self.names.get(&task) else { return };
        let entry = self.requests.entry((device, work, name.clone()));
        let requests = entry.or_insert_with(|| OthersRequests {
            device,
            work,
            task,
            name: name.clone(),
            ..OthersRequests::default()
        });
        requests.count += 1;
        requests.bytes += bytes;
    }
}

impl<N: FileNames> TaskTracker<N> {
    /// Records the start of a request at a device. `start` is its disk and first sector, `flags`
    /// the kernel's text of its kind. The issuing task may act for another one, so the task that
    /// submitted its first sector counts.
    pub(super) fn on_issue(&mut self, at_ns: u64, start: (u64, u64), bytes: u64, flags: &str) {
        // The letter F in front stands for a flush before the request.
        let work = match flags.chars().find(|flag| *flag != 'F') {
            Some('R') => DeviceOperation::Read,
            Some('W') => DeviceOperation::Write,
            _ => DeviceOperation::Other,
        };
        // The letter A marks readahead.
        let is_ahead = flags.contains('A');
        let task = self.block_range_at(start).map(|(_, (_, task))| *task);
        self.issued.insert(start, Issued { begin_ns: at_ns, bytes, work, is_ahead, task });
    }

    /// Sets the name of a task that is not recorded. At most `OTHERS_MAX` tasks have a name.
    pub(super) fn set_other_name(&mut self, task: u32, name: String) {
        let names = &mut self.others.names;
        if names.len() < OTHERS_MAX || names.contains_key(&task) {
            names.insert(task, name);
        }
    }

    /// Records that `task` requested `sectors` sectors (512 bytes). `start` is their disk and first
    /// sector. All older ranges are discarded if there are `BLOCK_RANGES_MAX`.
    pub(super) fn on_queue(&mut self, task: u32, start: (u64, u64), sectors: u64) {
        if self.block_ranges.len() >= BLOCK_RANGES_MAX {
            self.block_ranges.clear();
        }
        let (_, first_sector) = start;
        self.block_ranges.insert(start, (first_sector + sectors, task));
    }

    /// Returns one record per device, operation and program with the requests of other programs,
    /// and resets their counts. The records have the time `at_ns`.
    pub fn take_others(&mut self, at_ns: u64) -> Vec<Record> {
        let others = std::mem::take(&mut self.others.requests).into_values();
        others
            .map(|requests| Record::OthersRequests(OthersRequests { at_ns, ..requests }))
            .collect()
    }

    /// Queues the record of a device request of which `sectors` sectors are complete. A completed
    /// read may count as a wait of its task. Zero sectors complete the whole request. The rest of a
    /// partial completion remains in progress. A request whose start was not recorded is ignored.
    /// `device` is a whole disk, as in all events of requests.
    pub(super) fn on_complete(&mut self, at_ns: u64, device: u64, sector: u64, sectors: u64) {
        let Some(issued) = self.issued.remove(&(device, sector)) else { return };
        // The start may have been reported with a later time, by another processor.
        let begin_ns = issued.begin_ns.min(at_ns);
        // The completed part, and the rest as a request of its own.
        let bytes = match sectors * SECTOR_BYTES {
            0 => issued.bytes,
            completed => completed.min(issued.bytes),
        };
        if bytes < issued.bytes {
            let rest = Issued { bytes: issued.bytes - bytes, ..issued.clone() };
            self.issued.insert((device, sector + sectors), rest);
        }
        let end_sector = sector + bytes / SECTOR_BYTES;
        self.on_aio_completion(at_ns, device, sector, end_sector);
        // A recorded task has a number in the recording, any other one is of another program.
        let thread = issued.task.and_then(|task| self.thread_number(task));
        if let Some(task) = issued.task.filter(|_| issued.work == DeviceOperation::Read) {
            self.on_own_completion(at_ns, task, begin_ns);
        }
        self.forget_block_ranges(device, sector, end_sector);
        // The first request of a disk also queues the disk's name record.
        let device = self.disk_number(device);
        if let Some(other) = issued.task.filter(|_| thread.is_none()) {
            self.others.count_request(other, device, issued.work, bytes);
        }
        let request = RequestRecord {
            end_ns: at_ns,
            begin_ns,
            thread: thread.map(u64::from),
            device,
            work: issued.work,
            is_ahead: issued.is_ahead,
            place: sector * SECTOR_BYTES,
            bytes,
        };
        self.out.put(at_ns, Record::Request(request));
    }

    /// Returns the block range that contains a disk's sector, if there is one.
    fn block_range_at(&self, place: (u64, u64)) -> Option<BlockRange<'_>> {
        let (disk, sector) = place;
        let last = self.block_ranges.range(..=place).next_back();
        last.filter(|((range_disk, _), (range_end, _))| *range_disk == disk && *range_end > sector)
    }

    /// Removes the block ranges that end within the sectors of a completed request: the one that
    /// contains its first sector, and the ones that the kernel merged into it.
    fn forget_block_ranges(&mut self, device: u64, sector: u64, end_sector: u64) {
        let starting = self.block_range_at((device, sector));
        // A request without sectors has merged none. A map panics on a range that ends before its
        // start.
        let merged =
            self.block_ranges.range((device, sector + 1)..(device, end_sector.max(sector + 1)));
        let candidates = starting.into_iter().chain(merged);
        let completed = candidates
            .filter(|((disk, _), (range_end, _))| *disk == device && *range_end <= end_sector);
        let keys: Vec<(u64, u64)> = completed.map(|(key, _)| *key).collect();
        for key in keys {
            self.block_ranges.remove(&key);
        }
    }

    /// Records that a device worked on a read request of `task` from `since_ns` to `at_ns`, which
    /// is no earlier. The call in progress keeps the longest such time, which may stand for its
    /// wait. Without a call the fault in progress gets the request, unless the task sleeps: then
    /// the sleep is the wait. Only a call or a fault that had begun before the request can have
    /// caused it.
    fn on_own_completion(&mut self, at_ns: u64, task: u32, since_ns: u64) {
        let Some(state) = self.tasks.get_mut(&task) else { return };
        state.last_completion_ns = at_ns;
        if let Some(call) = state.call.as_mut().filter(|call| call.begin_ns <= since_ns) {
            call.device_ns = call.device_ns.max(at_ns - since_ns);
        } else if state.sleep_since_ns.is_none()
            && let Some(fault) = state.fault.as_mut()
            && fault.begin_ns <= since_ns
        {
            fault.record_request(since_ns, at_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::Record;

    use super::super::super::event::{EventData, SystemCall};
    use super::super::tests::{DISK, enter, reads, records};

    /// A request without a range, such as one that was queued before the recording, completes
    /// first.
    #[test]
    fn request_keeps_its_task_while_another_one_behind_it_completes() {
        let records = records(vec![
            (10, EventData::Queue { device: DISK, sector: 0, sectors: 8, name: String::new() }),
            (
                20,
                EventData::Issue { device: DISK, sector: 100, bytes: 4096, flags: "R".to_owned() },
            ),
            (30, EventData::Complete { device: DISK, sector: 100, sectors: 8 }),
            (40, EventData::Issue { device: DISK, sector: 0, bytes: 4096, flags: "R".to_owned() }),
            (50, EventData::Complete { device: DISK, sector: 0, sectors: 8 }),
        ]);
        let requests = records.iter().filter_map(|record| match record {
            Record::Request(request) => Some((request.place, request.thread)),
            _ => None,
        });
        assert_eq!(requests.collect::<Vec<_>>(), [(100 * 512, None), (0, Some(0))]);
    }

    /// The start of a request is reported with a later time than its end, 40. The device then has
    /// worked for no time.
    #[test]
    fn request_that_ends_before_its_start_took_no_time() {
        let records = records(vec![
            (10, enter(SystemCall::Pread, [5, 0, 4096, 0])),
            (20, EventData::Queue { device: DISK, sector: 0, sectors: 8, name: String::new() }),
            (50, EventData::Issue { device: DISK, sector: 0, bytes: 4096, flags: "R".to_owned() }),
            (40, EventData::Complete { device: DISK, sector: 0, sectors: 8 }),
            (60, EventData::Exit(SystemCall::Pread, 4096)),
        ]);
        let waits: Vec<u64> = reads(&records).iter().map(|read| read.waited_ns).collect();
        assert_eq!(waits, [0]);
    }
}

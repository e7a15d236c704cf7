//! Device requests and the tasks that caused them.

use std::collections::{BTreeMap, HashMap};

use readpath_trace::recording::{DeviceOperation, OthersRequests, Record, RequestRecord};

use super::super::names::FileNames;
use super::{Issued, TaskTracker};

/// Maximum number of queued block ranges. All are discarded beyond it.
const QUEUED_MAX: usize = 1 << 16;

/// Maximum number of tasks of other programs that are kept.
const OTHERS_MAX: usize = 1 << 10;

/// Tasks that are not recorded, and their requests.
#[derive(Debug, Default)]
pub(super) struct OtherTasks {
    names: HashMap<u32, String>,
    /// By device, operation and name.
    requests: BTreeMap<(u64, DeviceOperation, String), OthersRequests>,
}

impl OtherTasks {
    /// Counts a request of a task. A task without a name is left out.
    fn count(&mut self, task: u32, device: u64, work: DeviceOperation, bytes: u64) {
        let Some(name) = self.names.get(&task) else { return };
        let requests = self.requests.entry((device, work, name.clone()));
        let requests = requests.or_insert_with(|| OthersRequests {
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
    /// Records a request. The issuing task may act for another one, so the task that queued its
    /// first sector counts.
    pub(super) fn issue(&mut self, at: u64, place: (u64, u64), bytes: u64, flags: &str) {
        let work = match flags.chars().find(|flag| *flag != 'F') {
            Some('R') => DeviceOperation::Read,
            Some('W') => DeviceOperation::Write,
            _ => DeviceOperation::Other,
        };
        let is_ahead = flags.contains('A');
        let asked = self.queued.range(..=place).next_back();
        let asked = asked.filter(|((disk, _), (end, _))| *disk == place.0 && *end > place.1);
        let task = asked.map(|(_, (_, task))| *task);
        self.issued.insert(place, Issued { begin_ns: at, bytes, work, is_ahead, task });
    }

    /// Keeps the name of a task that is not recorded.
    pub(super) fn name_other(&mut self, task: u32, name: String) {
        let names = &mut self.others.names;
        if names.len() < OTHERS_MAX || names.contains_key(&task) {
            names.insert(task, name);
        }
    }

    /// Keeps the task that requested a block range. `place`: disk and first sector.
    pub(super) fn queue(&mut self, task: u32, place: (u64, u64), sectors: u64) {
        if self.queued.len() >= QUEUED_MAX {
            self.queued.clear();
        }
        self.queued.insert(place, (place.1 + sectors, task));
    }

    /// Returns the requests of other programs, as records of the time `at_ns`.
    pub fn take_others(&mut self, at_ns: u64) -> Vec<Record> {
        let others = std::mem::take(&mut self.others.requests).into_values();
        others.map(|it| Record::OthersRequests(OthersRequests { at_ns, ..it })).collect()
    }

    /// Processes the completion of a device request, which may be partial.
    pub(super) fn complete(&mut self, at: u64, device: u64, sector: u64, sectors: u64) {
        let Some(issued) = self.issued.remove(&(device, sector)) else { return };
        let bytes = match sectors * 512 {
            0 => issued.bytes,
            done => done.min(issued.bytes),
        };
        if bytes < issued.bytes {
            let rest = Issued { bytes: issued.bytes - bytes, ..issued.clone() };
            self.issued.insert((device, sector + sectors), rest);
        }
        self.on_aio_completion(at, device, sector, sector + bytes / 512);
        let thread = issued.task.and_then(|task| self.thread(task));
        if let Some(number) = issued.task.filter(|_| issued.work == DeviceOperation::Read) {
            self.is_answered(at, number, issued.begin_ns);
        }
        let done = sector + bytes / 512;
        self.forget_queued(device, sector, done);
        let device = self.disk(device);
        if let Some(other) = issued.task.filter(|_| thread.is_none()) {
            self.others.count(other, device, issued.work, bytes);
        }
        let request = RequestRecord {
            end_ns: at,
            begin_ns: issued.begin_ns.min(at),
            thread: thread.map(u64::from),
            device,
            work: issued.work,
            is_ahead: issued.is_ahead,
            place: sector * 512,
            bytes,
        };
        self.out.put(at, Record::Request(request));
    }

    /// Removes the queued ranges that end within the sectors of a completed request: the one at its
    /// beginning, and the ones that the kernel merged into it.
    fn forget_queued(&mut self, device: u64, sector: u64, end: u64) {
        let first = self.queued.range(..=(device, sector)).next_back();
        let merged = self.queued.range((device, sector + 1)..(device, end.max(sector + 1)));
        let all = first.into_iter().chain(merged);
        let done = all.filter(|((disk, _), (to, _))| *disk == device && *to <= end);
        let keys: Vec<(u64, u64)> = done.map(|(key, _)| *key).collect();
        for key in keys {
            self.queued.remove(&key);
        }
    }

    /// Records the completion of a task's request. If no sleep of its call or fault is reported,
    /// the time counts as a wait when the task cannot continue without the result.
    fn is_answered(&mut self, at: u64, number: u32, since: u64) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        task.answered_ns = at;
        if let Some(entered) = task.call.as_mut().filter(|entered| entered.begin_ns <= since) {
            entered.device_ns = entered.device_ns.max(at - since);
        } else if task.waits_since.is_none()
            && let Some(fault) = task.fault.as_mut()
            && fault.begin_ns <= since
        {
            fault.answer(since, at);
        }
    }
}

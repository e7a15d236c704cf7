//! Device requests and the tasks that caused them.

use readpath_trace::recording::{DeviceOperation, Record, RequestRecord};

use super::super::names::FileNames;
use super::{Issued, TaskTracker};

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
        let place = (device, sector);
        let asked = self.queued.range(..=place).next_back().map(|(key, (end, _))| (*key, *end));
        let done = sector + bytes / 512;
        if let Some((key, _)) = asked.filter(|((disk, _), end)| *disk == device && *end <= done) {
            self.queued.remove(&key);
        }
        let device = self.disk(device);
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

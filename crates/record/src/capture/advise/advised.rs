//! State of advised files and devices, and the choice of the files.
//!
//! The *ledger* contains the pages prefetched and not yet used, by numbers of files. The *evidence*
//! of a device holds the estimates of its costs. A *short* file has at most one readahead window of
//! the kernel.

use std::collections::BTreeMap;

use readpath_core::readahead::{
    AdaptiveReadahead, DeviceEvidence, KernelCachedPages, ReadaheadPolicy,
};
use readpath_core::request::RequestId;
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};

use super::hand::AdviceTarget;
use super::unadvised::SHORT_BYTES_MAX;
use super::used_up::FileUse;
use super::{Advisor, FILES_MAX, FileNames, Inode, STALE_NS};

/// A file with absent pages whose next reads are predicted.
#[derive(Debug)]
pub(super) struct AdvisedFile {
    /// Number of the file in the ledger.
    pub(super) number: u32,
    /// Number of the file's device.
    pub(super) disk: u64,
    /// Way to its pages.
    pub(super) advice_target: AdviceTarget,
    /// Readahead policy of the file, for all its readers.
    pub(super) policy: AdaptiveReadahead,
    /// Pages that the policy knows as cached.
    pub(super) advised: KernelCachedPages,
    /// Pages that the program used, and the state of a whole-file prefetch.
    pub(super) file_use: FileUse,
    /// Time of the last read or fault of the file.
    pub(super) last_read_ns: u64,
    /// True once pages of the file were prefetched.
    pub(super) is_helped: bool,
}

/// Range of pages that a task has requested by a read or a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedRange {
    /// File of the request.
    pub(super) inode: Inode,
    /// Its pages, or the rest of them that the kernel reported last.
    pub(super) range: PageRange,
    /// True once a prefetch of this large request was attempted.
    pub(super) is_prefetched: bool,
}

/// Costs of a device, learned from its requests or from the waits of reads.
#[derive(Debug, Default)]
pub(super) struct AdvisedDevice {
    /// Estimates of the device, which the policies of its files share.
    pub(super) evidence: DeviceEvidence,
    /// Requests in progress by their first sectors.
    pub(super) requests_in_progress: BTreeMap<u64, RequestId>,
    /// Numbers of completed requests, for reuse.
    pub(super) free_ids: Vec<RequestId>,
    /// Latest end of a read so far, on a device without request events. Reads that are left out
    /// of the estimate count too, because a later read may have waited for them.
    pub(super) learned_until_ns: u64,
}

impl AdvisedFile {
    /// Resets the state of the file's readahead: no page is known as cached, and the policy starts
    /// again. `devices` are all devices by their numbers.
    pub(super) fn forget_all(&mut self, devices: &mut BTreeMap<u64, AdvisedDevice>) {
        let device = devices.entry(self.disk).or_default();
        // The old policy takes its open runs out of the estimates of the device. With a size of 0 a
        // forward run counts as cut off by the end of the file, not as ended: it may go on.
        // The last page read is not known here (`None`).
        self.policy.on_close(None, 0, &mut device.evidence);
        self.policy = AdaptiveReadahead::default();
        // Ends at the last page with an offset in 64 bits.
        let all = PageRange { first: 0, end: u64::MAX / PAGE_BYTES };
        self.advised.on_evicted(all, &mut device.evidence);
        self.advised = KernelCachedPages::new(self.number);
    }
}

impl Advisor {
    /// Opens and adds a file that `task` uses. A short, unopenable or excess file gets no advice,
    /// and its waits do not count: the advice cannot change them. `missed`: pages that were absent.
    pub(super) fn add_file(
        &mut self,
        task: u32,
        (inode, missed): (Inode, PageRange),
        names: &mut impl FileNames,
        at_ns: u64,
    ) {
        // Without a reported open, neither path nor length is known.
        let named = names.file(inode).unwrap_or_default();
        // The kernel reads a short file as a whole, and it is not even opened here. The length is
        // the one at its open: the file may have grown.
        let is_short = |bytes: u64| bytes.max(missed.end * PAGE_BYTES) <= SHORT_BYTES_MAX;
        if named.bytes.is_some_and(is_short) {
            return self.leave_out_short(inode);
        }
        if self.files.len() >= FILES_MAX {
            self.forget_files(at_ns);
        }
        let target = match self.files.len() {
            FILES_MAX.. => None,
            _ => {
                let path = Some(named.path.as_str()).filter(|path| !path.is_empty());
                AdviceTarget::open_file_of_task(task, inode, path)
            }
        };
        let Some(target) = target else { return self.unadvised.add(inode) };
        if is_short(target.pages() * PAGE_BYTES) {
            return self.leave_out_short(inode);
        }
        // The whole disk of a partition, as in the events of requests.
        let device = names.disk(inode.device);
        let disk = device.device;
        // The requests of a device without a name, such as a server's, are not reported.
        let has_requests = self.sees_requests && !device.name.is_empty();
        self.request_events.insert(inode, (disk, has_requests));
        let number = self.next_number;
        self.next_number += 1;
        self.inodes.insert(number, inode);
        // The policies fill at most half of this memory with unused pages: the budget.
        self.devices.entry(disk).or_default().evidence.memory_pages = 2 * self.budget_pages;
        let file_use = FileUse::new(target.pages());
        let file = AdvisedFile {
            number,
            disk,
            advice_target: target,
            policy: AdaptiveReadahead::default(),
            advised: KernelCachedPages::new(number),
            file_use,
            last_read_ns: at_ns,
            is_helped: false,
        };
        self.files.insert(inode, file);
    }

    /// Counts a short file with absent pages. It gets no advice.
    fn leave_out_short(&mut self, inode: Inode) {
        self.short_files += 1;
        self.unadvised.add_short(inode);
    }

    /// Removes the files that were not read for `STALE_NS` and have no unused prefetched pages.
    fn forget_files(&mut self, at_ns: u64) {
        let unused: Vec<u32> = self.ledger.unused_ranges().map(|unused| unused.file).collect();
        let (inodes, devices) = (&mut self.inodes, &mut self.devices);
        self.files.retain(|_, file| {
            let is_kept = file.last_read_ns + STALE_NS > at_ns || unused.contains(&file.number);
            if !is_kept {
                inodes.remove(&file.number);
                file.forget_all(devices);
            }
            is_kept
        });
    }
}

impl RequestedRange {
    /// Returns true if `range` is the rest of this request. The kernel reports the rest at each
    /// continuation.
    pub(super) fn continues_request(&self, inode: Inode, range: PageRange) -> bool {
        self.inode == inode && self.range.end == range.end && self.range.first < range.first
    }
}

impl AdvisedDevice {
    /// Records that the device began a request at `sector`. A second start of the same sector is
    /// ignored.
    pub(super) fn record_issued(&mut self, at: Time, sector: u64) {
        if self.requests_in_progress.contains_key(&sector) {
            return;
        }
        // Without a free number, the requests in progress have all numbers below this one.
        let next = RequestId(self.requests_in_progress.len() as u32);
        let id = self.free_ids.pop().unwrap_or(next);
        self.requests_in_progress.insert(sector, id);
        // Without its sectors (`None`), the request does not show if it continues the last one.
        self.evidence.estimate.on_dispatch(at, id, None);
    }

    /// Records that the device completed `bytes` bytes of the request at `sector`, which then
    /// counts as complete. A request whose start was not recorded is ignored.
    pub(super) fn record_completed(&mut self, at: Time, sector: u64, bytes: u64) {
        if let Some(id) = self.requests_in_progress.remove(&sector) {
            self.free_ids.push(id);
            // The time of the completion is exact: it is both its latest and its
            // earliest time.
            self.evidence.estimate.on_completion(at, at, id, bytes);
        }
    }

    /// Adds a read of `bytes` bytes to the cost estimate, as if it were one request. A read
    /// that began before the latest end of an earlier read is left out: its time may include a
    /// wait for that one. Its own end counts for the reads that follow.
    pub(super) fn learn_from_read(&mut self, begin_ns: u64, end_ns: u64, bytes: u64) {
        if begin_ns >= self.learned_until_ns {
            // One read at a time is in the estimate, so all have the same number. The time
            // of the completion is exact: it is both its latest and its earliest time.
            self.evidence.estimate.on_dispatch(Time(begin_ns), RequestId(0), None);
            self.evidence.estimate.on_completion(Time(end_ns), Time(end_ns), RequestId(0), bytes);
        }
        self.learned_until_ns = self.learned_until_ns.max(end_ns);
    }
}

#[cfg(test)]
mod tests {
    use readpath_trace::recording::{DeviceRecord, ReadOutcome, ReadRecord, Record};

    use super::super::super::maps::{MappedPage, Mapping};
    use super::super::super::names::{NamedFile, OpenFile};
    use super::super::CalledRead;
    use super::super::worth::AdviceState;
    use super::*;

    /// Names of files of one page. Every question but the one for the length of a file fails: it
    /// would cost system calls.
    struct ShortFiles;

    impl FileNames for ShortFiles {
        fn file(&mut self, _: Inode) -> Option<NamedFile> {
            Some(NamedFile { path: String::new(), bytes: Some(PAGE_BYTES) })
        }

        fn open_file(&mut self, _: u32, _: u64) -> Option<OpenFile> {
            panic!("a descriptor was searched")
        }

        fn mappings(&mut self, _: u32) -> Vec<(u64, Mapping, NamedFile)> {
            panic!("mappings were read")
        }

        fn pages_mapped_around(&mut self, _: &MappedPage) -> Option<PageRange> {
            panic!("a page table was read")
        }

        fn disk(&mut self, _: u64) -> DeviceRecord {
            panic!("a disk was searched")
        }

        fn is_without_storage(&self, _: u64) -> bool {
            false
        }
    }

    /// A program waits 1 ms for each of 10,000 files of one page. The advisor keeps none of them,
    /// and these 10 s do not start the advice.
    #[test]
    fn many_short_files_cost_no_lookup_and_start_no_advice() {
        let mut advisor = Advisor::new(256 << 20);
        for number in 0..10_000_u32 {
            let inode = Inode { device: 7, number: u64::from(number) };
            let range = PageRange::new(0, 1);
            let call = CalledRead { task: 5, inode, range, has_waited: true };
            let at_ns = u64::from(number) * 1_000_000;
            advisor.on_file(number, inode);
            advisor.on_call(call, &mut ShortFiles, at_ns);
            advisor.on_record(&Record::Read(ReadRecord {
                begin_ns: at_ns,
                end_ns: at_ns + 1_000_000,
                waited_ns: 1_000_000,
                file: number,
                asked_bytes: PAGE_BYTES,
                outcome: ReadOutcome::Bytes(PAGE_BYTES),
                ..ReadRecord::default()
            }));
            advisor.continue_whole_files(at_ns);
        }
        assert_eq!((advisor.files.len(), advisor.inodes.len()), (0, 0));
        assert_eq!(advisor.credit.state_at(10_000_000_000), AdviceState::Measure);
    }

    /// Names of files without a length, on partitions of one disk without a name.
    struct UnknownLengths(String);

    impl FileNames for UnknownLengths {
        fn file(&mut self, _: Inode) -> Option<NamedFile> {
            Some(NamedFile { path: self.0.clone(), bytes: None })
        }

        fn open_file(&mut self, _: u32, _: u64) -> Option<OpenFile> {
            None
        }

        fn mappings(&mut self, _: u32) -> Vec<(u64, Mapping, NamedFile)> {
            Vec::new()
        }

        fn pages_mapped_around(&mut self, _: &MappedPage) -> Option<PageRange> {
            None
        }

        fn disk(&mut self, _: u64) -> DeviceRecord {
            DeviceRecord { device: 7, ..DeviceRecord::default() }
        }

        fn is_without_storage(&self, _: u64) -> bool {
            false
        }
    }

    /// Returns an advisor that has opened a file of `pages` pages, with the file's inode. The file
    /// is removed.
    fn advisor_of_a_file(name_prefix: &str, pages: usize) -> (Advisor, Inode) {
        let name = format!("{name_prefix}-{}", std::process::id());
        let path = std::env::current_exe().unwrap().with_file_name(name);
        std::fs::write(&path, vec![7; 4096 * pages]).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let inode = super::super::super::mounts::inode_at(&path, &metadata);
        let mut names = UnknownLengths(path.to_str().unwrap().to_owned());
        let mut advisor = Advisor::new(256 << 20);
        let missed = (inode, PageRange::new(0, 1));
        advisor.add_file(std::process::id(), missed, &mut names, 1);
        std::fs::remove_file(&path).unwrap();
        (advisor, inode)
    }

    /// The files 0 and 1 of the recording have one inode number, on two partitions of a disk. Only
    /// the first one is advised.
    #[test]
    fn reads_of_another_partition_count_for_no_advised_file() {
        let (mut advisor, inode) = advisor_of_a_file("advised-partition", 33);
        advisor.on_file(0, inode);
        advisor.on_file(1, Inode { device: inode.device + 1, ..inode });
        for (file, waited_ns) in [(0, 100), (1, 900)] {
            let outcome = ReadOutcome::Bytes(PAGE_BYTES);
            let read = ReadRecord { waited_ns, file, outcome, ..ReadRecord::default() };
            advisor.on_record(&Record::Read(read));
        }
        assert_eq!(advisor.credit.waits_without_and_with().0.waited_ns, 100);
    }

    /// Files of 32 pages, the longest short one, and of 33 pages. Their lengths are known only
    /// after they were opened.
    #[test]
    fn file_without_a_known_length_counts_as_short_once_it_is_opened() {
        for (pages, short_files) in [(32, 1), (33, 0)] {
            let (advisor, _inode) = advisor_of_a_file(&format!("advised-{pages}"), pages);
            assert_eq!(advisor.short_files(), short_files, "{pages} pages");
        }
    }
}

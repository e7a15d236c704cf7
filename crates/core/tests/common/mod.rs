//! A test environment: a device whose every sector holds its own number, and memory whose frames
//! receive the delivered data.

use std::collections::{BTreeMap, BTreeSet};

use readpath_core::machine::{
    Buffer, Config, Done, HandleId, Machine, ReadAccess, ReadError, Transfer,
};
use readpath_core::policy::Spec;
use readpath_core::readahead::ReadaheadLimits;
use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, ProcessId,
};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES, Time};

pub const DEVICE_PAGES: u64 = 4096;
pub const REQUEST_PAGES_MAX: u64 = 16;

/// A machine with its device and memory.
pub struct FileEnvironment {
    pub path: Machine,
    pub now: Time,
    /// The number of the device page that each frame holds.
    memory: Vec<Option<u64>>,
    pub in_device: Vec<DeviceRequest>,
    /// Device pages that can't be read.
    pub bad_pages: BTreeSet<u64>,
    /// Received data of each direct read: (tag, byte) → sector.
    direct: BTreeMap<(u64, u64), u64>,
    /// Open reads by tag: access, transfer, first device page and size of the file.
    asked: BTreeMap<u64, (ReadAccess, Transfer, u64, u64)>,
    /// All requests sent to the device.
    pub issued: Vec<DeviceRequest>,
    /// First device page that was cut off by truncation after the files were opened.
    pub end_page: u64,
}

pub fn config(readahead: &str, scheduler: &str, memory_pages: u64) -> Config {
    let caps = DeviceCaps {
        sectors: DEVICE_PAGES * PAGE_SECTORS,
        request_sectors_max: (REQUEST_PAGES_MAX * PAGE_SECTORS) as u32,
        depth_max: 4,
        is_rotational: true,
        alignment_sectors: 1,
    };
    Config {
        memory_bytes: memory_pages * PAGE_BYTES,
        readahead: Spec::parse(readahead).unwrap(),
        limits: ReadaheadLimits { window_pages_max: 32, request_pages_max: REQUEST_PAGES_MAX },
        scheduler: Spec::parse(scheduler).unwrap(),
        ..Config::new(caps)
    }
}

impl FileEnvironment {
    pub fn new(config: Config) -> FileEnvironment {
        let frames = (config.memory_bytes / PAGE_BYTES) as usize;
        FileEnvironment {
            path: Machine::new(config).unwrap(),
            now: Time::ZERO,
            memory: vec![None; frames],
            in_device: Vec::new(),
            bad_pages: BTreeSet::new(),
            direct: BTreeMap::new(),
            asked: BTreeMap::new(),
            issued: Vec::new(),
            end_page: u64::MAX,
        }
    }

    /// The number of the device page that a frame holds.
    #[allow(dead_code, reason = "for the tests with shared pages")]
    pub fn content(&self, frame: u32) -> Option<u64> {
        self.memory[frame as usize]
    }

    /// A file of `bytes` bytes from device page `start_page` on.
    pub fn open(&mut self, bytes: u64, start_page: u64) -> HandleId {
        let file = self.path.add_file(bytes, start_page * PAGE_SECTORS).unwrap();
        self.path.open(file)
    }

    pub fn read(
        &mut self,
        access: ReadAccess,
        handle: HandleId,
        start_page: u64,
        offset: u64,
        bytes: u64,
        tag: u64,
    ) -> Result<(), ReadError> {
        let transfer = Transfer { handle, process: ProcessId(tag as u32 % 3), offset, bytes, tag };
        let file_bytes = self.path.file_bytes(handle);
        self.path.read(self.now, access, transfer)?;
        self.asked.insert(tag, (access, transfer, start_page, file_bytes));
        Ok(())
    }

    /// Sends all requests that the device accepts.
    pub fn issue(&mut self) {
        while let Some(request) = self.path.poll_request(self.now) {
            assert!(request.start + u64::from(request.sectors) <= DEVICE_PAGES * PAGE_SECTORS);
            self.issued.push(request);
            self.in_device.push(request);
        }
        assert!(self.in_device.len() as u32 <= self.path.depth_max());
    }

    /// Completes the request at this position of the device's queue.
    pub fn finish(&mut self, at: usize) {
        let request = self.in_device.remove(at);
        self.now += Time::from_us(100);
        let pages = request.start / PAGE_SECTORS..request.end().div_ceil(PAGE_SECTORS);
        let is_bad = pages.clone().any(|page| self.bad_pages.contains(&page));
        let outcome = if is_bad {
            Outcome::Failed(DeviceError::Medium)
        } else if pages.end > self.end_page {
            let bytes = (self.end_page * PAGE_SECTORS).saturating_sub(request.start) * SECTOR_BYTES;
            Outcome::Short { bytes }
        } else {
            Outcome::Done
        };
        if request.op == Op::Read {
            self.deliver(&request, outcome);
        }
        self.path.handle_completion(self.now, Completion::at(self.now, request.id, outcome));
    }

    /// Copies the data of a completed read into its buffers.
    fn deliver(&mut self, request: &DeviceRequest, outcome: Outcome) {
        let good_bytes = match outcome {
            Outcome::Done => request.sectors as u64 * SECTOR_BYTES,
            Outcome::Short { bytes } => bytes,
            Outcome::Failed(_) => 0,
        };
        let end = request.start * SECTOR_BYTES + good_bytes;
        let mut sector = request.start;
        let mut buffers = Vec::new();
        self.path.request_buffers(request.id, |buffer| buffers.push(buffer));
        for buffer in buffers {
            match buffer {
                Buffer::Frame(frame) => {
                    let page = sector / PAGE_SECTORS;
                    sector += PAGE_SECTORS;
                    let is_good = sector * SECTOR_BYTES <= end;
                    self.memory[frame.0 as usize] = is_good.then_some(page);
                }
                Buffer::Caller { read, offset, bytes } => {
                    for at in (offset..offset + bytes).step_by(SECTOR_BYTES as usize) {
                        self.direct.insert((self.path.tag(read), at), sector);
                        sector += 1;
                    }
                }
            }
        }
        assert_eq!(sector, request.end(), "the buffers are as long as the request");
    }

    /// Takes completed reads, checks their data, and releases them.
    pub fn collect(&mut self) -> Vec<Done> {
        let mut all = Vec::new();
        while let Some(done) = self.path.poll_done() {
            let (access, transfer, start_page, file_bytes) = self.asked.remove(&done.tag).unwrap();
            if let Ok(bytes) = done.result {
                let due = transfer.bytes.min(file_bytes.saturating_sub(transfer.offset));
                assert_eq!(bytes, due, "a read gives all that there is");
                if access == ReadAccess::Direct {
                    self.check_direct(&transfer, start_page, bytes);
                } else if bytes > 0 {
                    let first = start_page + transfer.offset / PAGE_BYTES;
                    let end = start_page + (transfer.offset + bytes).div_ceil(PAGE_BYTES);
                    let got: Vec<Option<u64>> = self
                        .path
                        .read_frames(done.read)
                        .iter()
                        .map(|frame| self.memory[frame.0 as usize])
                        .collect();
                    let want: Vec<Option<u64>> = (first..end).map(Some).collect();
                    assert_eq!(got, want, "the frames hold the pages that were asked for");
                }
            }
            self.path.release(self.now, done.read);
            all.push(done);
        }
        all
    }

    fn check_direct(&self, transfer: &Transfer, start_page: u64, bytes: u64) {
        for at in (0..bytes).step_by(SECTOR_BYTES as usize) {
            let want = start_page * PAGE_SECTORS + (transfer.offset + at) / SECTOR_BYTES;
            assert_eq!(self.direct.get(&(transfer.tag, at)), Some(&want));
        }
    }

    /// Runs until no request is left; the device serves its queue in order.
    pub fn run(&mut self) -> Vec<Done> {
        let mut all = self.collect();
        loop {
            self.issue();
            if !self.in_device.is_empty() {
                self.finish(0);
            } else if let Some(time) = self.path.next_wake() {
                self.now = self.now.max(time);
            } else {
                break;
            }
            all.extend(self.collect());
        }
        assert!(self.path.is_idle(), "nothing is left reserved or open");
        all
    }
}

//! A machine over a file on a server: starts several reads at once, and collects their results.

use std::collections::BTreeMap;

use readpath::inside::{Clock, NfsStorage, NfsTarget};
use readpath::nfs::NfsError;
use readpath::nfs::NfsUrl;
use readpath_core::machine::{
    Buffer, Config, Done, Driver, HandleId, IoBackend, Machine, ReadAccess, ReadError, Transfer,
};
use readpath_core::policy::Spec;
use readpath_core::readahead::Advice;
use readpath_core::request::{Completion, DeviceRequest, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PageRange, Time};

use crate::device::Device;

const PAGE: usize = PAGE_BYTES as usize;
const MEMORY_BYTES: u64 = 4 << 20;
const CACHE_FRAMES: u32 = (MEMORY_BYTES / PAGE_BYTES) as u32;
/// Number of direct reads at once. Each tag has a buffer of this many frames behind the cache's
/// frames.
const BUFFERS: u32 = 16;
const BUFFER_FRAMES: u32 = 256;

/// Finds `data/file` on the server of this port, with the options of a URL.
pub fn find(port: u16, options: &str) -> Result<NfsTarget, NfsError> {
    let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/data/file?{options}")).unwrap();
    NfsTarget::open(&url, Clock::start())
}

/// An open file with a machine and a readahead policy.
pub struct Rig {
    machine: Machine,
    desk: Desk,
    handle: HandleId,
    /// Offset and length of each read, by tag.
    asked: BTreeMap<u64, (u64, u64)>,
}

/// Executes requests and collects the results of reads.
struct Desk {
    device: Device<NfsStorage>,
    ended: Vec<(u64, Result<Vec<u8>, ReadError>)>,
    came: Vec<Completion>,
}

impl IoBackend for Desk {
    fn submit(&mut self, machine: &Machine, _now: Time, request: DeviceRequest) {
        let mut pieces = Vec::new();
        machine.request_buffers(request.id, |buffer| {
            pieces.push(match buffer {
                Buffer::Frame(frame) => (frame.0 as usize * PAGE, PAGE),
                Buffer::Caller { read, offset, bytes } => {
                    let first = first_of_buffer(machine.tag(read));
                    (first as usize * PAGE + offset as usize, bytes as usize)
                }
            });
        });
        self.device.submit_pieces(request, pieces.into_iter());
    }

    fn poll_completion(&mut self, _now: Time) -> Option<Completion> {
        let completion = self.device.poll();
        self.came.extend(completion);
        completion
    }
}

fn first_of_buffer(tag: u64) -> u32 {
    assert!(tag < BUFFERS.into());
    CACHE_FRAMES + tag as u32 * BUFFER_FRAMES
}

impl Driver for Desk {
    fn on_done(&mut self, machine: &mut Machine, now: Time, done: Done) {
        let bytes = done.result.map(|count| {
            let mut frames: Vec<u32> =
                machine.read_frames(done.read).iter().map(|frame| frame.0).collect();
            let mut skip = machine.offset(done.read) as usize % PAGE;
            if frames.is_empty() && count > 0 {
                let first = first_of_buffer(done.tag);
                (frames, skip) = ((first..first + BUFFER_FRAMES).collect(), 0);
            }
            let bytes = frames.iter().flat_map(|&frame| self.device.frame(frame));
            bytes.skip(skip).take(count as usize).copied().collect()
        });
        self.ended.push((done.tag, bytes));
        machine.release(now, done.read);
    }
}

impl Rig {
    /// Opens `data/file` on the server of this port, with a readahead policy.
    pub fn open(port: u16, options: &str, policy: &str) -> Rig {
        let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/data/file?{options}")).unwrap();
        let clock = Clock::start();
        let target = NfsTarget::open(&url, clock).unwrap_or_else(|error| panic!("{error}"));
        let file_bytes = target.bytes();
        let frames = CACHE_FRAMES + BUFFERS * BUFFER_FRAMES;
        let device = Device::over(NfsStorage::for_one_thread(target), frames, clock);
        let config = Config {
            memory_bytes: MEMORY_BYTES,
            readahead: Spec::parse(policy).unwrap(),
            scheduler: Spec::plain("deadline"),
            ..Config::new(device.caps())
        };
        let mut machine = Machine::new(config).unwrap();
        let file = machine.add_file(file_bytes, 0).unwrap();
        let handle = machine.open(file);
        let desk = Desk { device, ended: Vec::new(), came: Vec::new() };
        Rig { machine, desk, handle, asked: BTreeMap::new() }
    }

    pub fn storage(&mut self) -> &mut NfsStorage {
        self.desk.device.storage_mut()
    }

    pub fn now(&self) -> Time {
        self.desk.device.now()
    }

    /// Completions of the storage since the last call.
    pub fn take_completions(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.desk.came)
    }

    /// Starts a read. Its tag must not be in use.
    pub fn read(&mut self, access: ReadAccess, offset: u64, bytes: u64, tag: u64) {
        let transfer = Transfer { handle: self.handle, process: ProcessId(0), offset, bytes, tag };
        self.machine.read(self.desk.device.now(), access, transfer).unwrap();
        self.asked.insert(tag, (offset, bytes));
    }

    pub fn advise(&mut self, advice: Advice, pages: PageRange) {
        self.machine.advise(self.desk.device.now(), self.handle, ProcessId(0), advice, pages);
    }

    fn turn(&mut self) {
        while self.machine.step(self.desk.device.now(), &mut self.desk) {}
    }

    /// Waits for completions, and processes them.
    fn wait(&mut self) {
        let until = self.machine.next_wake();
        let is_demand = until.is_some() || self.machine.meter().in_device() > 0;
        assert!(is_demand, "the machine waits for something, and nothing is on its way");
        self.desk.device.wait(until).unwrap();
    }

    /// Sends the requests of started reads without waiting for them.
    pub fn send(&mut self) {
        self.turn();
        self.desk.device.flush().unwrap();
    }

    /// Runs until all reads have ended, and returns their results with their bytes.
    pub fn finish(&mut self) -> Vec<(u64, Result<Vec<u8>, ReadError>)> {
        loop {
            self.turn();
            if self.desk.ended.len() == self.asked.len() {
                self.asked.clear();
                return std::mem::take(&mut self.desk.ended);
            }
            self.wait();
        }
    }

    /// Runs until no request is in flight, including prefetches.
    pub fn settle(&mut self) {
        self.turn();
        while self.machine.meter().in_device() > 0 {
            self.wait();
            self.turn();
        }
    }

    /// Waits without a limit while nothing is in flight: this returns at once.
    pub fn wait_for_nothing(&mut self) {
        self.settle();
        self.desk.device.wait(None).unwrap();
    }

    /// Finishes all reads and compares their bytes with the file.
    pub fn check(&mut self, content: &[u8]) {
        let asked = self.asked.clone();
        for (tag, result) in self.finish() {
            let (offset, bytes) = asked[&tag];
            let start = (offset as usize).min(content.len());
            let end = ((offset + bytes) as usize).min(content.len());
            let got = result.unwrap_or_else(|error| panic!("{bytes} bytes at {offset}: {error}"));
            assert!(got == content[start..end], "{bytes} bytes at {offset}");
        }
    }

    /// One buffered read alone.
    pub fn one(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, ReadError> {
        self.read(ReadAccess::Buffered, offset, bytes, 0);
        self.finish().remove(0).1
    }
}

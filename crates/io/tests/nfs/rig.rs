//! The machine over a file on a server: reads that are started together, and
//! what they give.

use std::collections::BTreeMap;

use readpath::carrier::{Carrier, CarrierMemory};
use readpath::clock::Clock;
use readpath::nfs::error::NfsError;
use readpath::nfs::storage::NfsStorage;
use readpath::nfs::target::NfsTarget;
use readpath::nfs::url::NfsUrl;
use readpath_core::law::Spec;
use readpath_core::machine::{Access, Config, HandleId, ReadError, ReadPath, Transfer};
use readpath_core::readahead::Advice;
use readpath_core::request::ProcessId;
use readpath_core::unit::{PageRange, Time};

pub const MEMORY_BYTES: u64 = 4 << 20;
const BUFFERS: u32 = 16;
const BUFFER_BYTES: u64 = 1 << 20;

/// A file opened over the wire, under a law.
pub struct Rig {
    pub machine: ReadPath,
    pub carrier: Carrier<NfsStorage>,
    handle: HandleId,
    /// By tag: what was asked.
    asked: BTreeMap<u64, (u64, u64)>,
}

/// Finds `data/file` behind this port; `options` as in a URL.
pub fn find(port: u16, options: &str) -> Result<NfsTarget, NfsError> {
    let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/data/file?{options}")).unwrap();
    NfsTarget::open(&url, Clock::start())
}

impl Rig {
    pub fn open(port: u16, options: &str, law: &str) -> Rig {
        let url = NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/data/file?{options}")).unwrap();
        let clock = Clock::start();
        let target = NfsTarget::open(&url, clock).unwrap_or_else(|error| panic!("{error}"));
        let bytes = target.bytes();
        let memory = CarrierMemory {
            cache_bytes: MEMORY_BYTES,
            buffers: BUFFERS,
            buffer_bytes: BUFFER_BYTES,
        };
        let carrier = Carrier::over(NfsStorage::one(target), memory, clock).unwrap();
        let config = Config {
            memory_bytes: MEMORY_BYTES,
            readahead: Spec::parse(law).unwrap(),
            scheduler: Spec::plain("deadline"),
            ..Config::new(carrier.caps())
        };
        let mut machine = ReadPath::new(config).unwrap();
        let file = machine.add_file(bytes, 0).unwrap();
        let handle = machine.open(file);
        Rig { machine, carrier, handle, asked: BTreeMap::new() }
    }

    /// Starts a read; its tag is free until it is finished.
    pub fn read(&mut self, access: Access, offset: u64, bytes: u64, tag: u64) {
        let transfer = Transfer { handle: self.handle, process: ProcessId(0), offset, bytes, tag };
        self.machine.read(self.carrier.now(), access, transfer).unwrap();
        self.asked.insert(tag, (offset, bytes));
    }

    pub fn advise(&mut self, advice: Advice, pages: PageRange) {
        let now = self.carrier.now();
        self.machine.advise(now, self.handle, ProcessId(0), advice, pages);
    }

    /// Runs until all reads have ended; gives each result, with its bytes.
    pub fn finish(&mut self) -> Vec<(u64, Result<Vec<u8>, ReadError>)> {
        let mut ended = Vec::new();
        let mut completions = Vec::new();
        loop {
            while let Some(request) = self.machine.poll_request(self.carrier.now()) {
                self.carrier.submit(&self.machine, request);
            }
            while let Some(done) = self.machine.poll_done() {
                let mut bytes = Vec::new();
                self.carrier.bytes_of(&self.machine, &done, |part| bytes.extend_from_slice(part));
                self.machine.release(self.carrier.now(), done.read);
                ended.push((done.tag, done.result.map(|_| bytes)));
            }
            if self.asked.len() == ended.len() {
                self.asked.clear();
                return ended;
            }
            self.carrier.wait(self.machine.next_wake(), &mut completions).unwrap();
            let now = self.carrier.now();
            completions.drain(..).for_each(|done| self.machine.handle_completion(now, done));
        }
    }

    /// Runs until nothing is on its way any more, read ahead or not.
    pub fn settle(&mut self) {
        let mut completions = Vec::new();
        loop {
            while let Some(request) = self.machine.poll_request(self.carrier.now()) {
                self.carrier.submit(&self.machine, request);
            }
            if self.machine.meter().in_device() == 0 {
                return;
            }
            self.carrier.wait(None, &mut completions).unwrap();
            let now = self.carrier.now();
            completions.drain(..).for_each(|done| self.machine.handle_completion(now, done));
        }
    }

    /// All that was started ends with the file's bytes.
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

    /// One read, buffered, alone.
    pub fn one(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, ReadError> {
        self.read(Access::Buffered, offset, bytes, 0);
        self.finish().remove(0).1
    }

    /// How long the run has lasted.
    pub fn now(&self) -> Time {
        self.carrier.now()
    }
}

/// Numbers below a bound, from a seed.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

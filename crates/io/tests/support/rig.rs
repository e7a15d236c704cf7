//! The machine over a file of whatever storage: reads that are started together, and
//! what they give.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;

use readpath::carrier::Carrier;
use readpath::storage::Storage;
use readpath_core::law::Spec;
use readpath_core::machine::{Access, Config, HandleId, Machine, ReadError, Transfer};
use readpath_core::readahead::Advice;
use readpath_core::request::ProcessId;
use readpath_core::unit::{PageRange, Time};

/// A file that is open, under a law.
pub struct Rig<S: Storage> {
    pub machine: Machine,
    pub carrier: Carrier<S>,
    handle: HandleId,
    /// By tag: what was asked.
    asked: BTreeMap<u64, (u64, u64)>,
}

impl<S: Storage> Rig<S> {
    /// The carrier's file of so many bytes, with so much memory for its pages.
    pub fn over(
        carrier: Carrier<S>,
        file_bytes: u64,
        memory_bytes: u64,
        law: &str,
        scheduler: &str,
    ) -> Rig<S> {
        let config = Config {
            memory_bytes,
            readahead: Spec::parse(law).unwrap(),
            scheduler: Spec::parse(scheduler).unwrap(),
            ..Config::new(carrier.caps())
        };
        let mut machine = Machine::new(config).unwrap();
        let file = machine.add_file(file_bytes, 0).unwrap();
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

    /// Has the requests of what was started on their way, and waits for none of them.
    pub fn send(&mut self) {
        self.hand_in();
        self.take_in(Some(self.now()));
    }

    fn hand_in(&mut self) {
        while let Some(request) = self.machine.poll_request(self.carrier.now()) {
            self.carrier.submit(&self.machine, request);
        }
    }

    /// Takes in what has come, or comes until then.
    fn take_in(&mut self, until: Option<Time>) {
        let is_awaited = until.is_some() || self.machine.meter().in_device() > 0;
        assert!(is_awaited, "the machine waits for something, and nothing is on its way");
        let mut completions = Vec::new();
        self.carrier.wait(until, &mut completions).unwrap();
        let now = self.carrier.now();
        completions.drain(..).for_each(|done| self.machine.handle_completion(now, done));
    }

    /// Runs until all reads have ended; gives each result, with its bytes.
    pub fn finish(&mut self) -> Vec<(u64, Result<Vec<u8>, ReadError>)> {
        let mut ended = Vec::new();
        loop {
            self.hand_in();
            while let Some(done) = self.machine.poll_done() {
                let mut bytes = Vec::new();
                self.carrier.bytes_of(&self.machine, &done, |part| bytes.extend_from_slice(part));
                self.machine.release(self.carrier.now(), done.read);
                ended.push((done.tag, done.result.map(|_| bytes)));
            }
            if self.asked.len() == ended.len() {
                self.asked.clear();
                assert!(
                    self.machine.next_wake().is_some() || self.machine.is_idle() || {
                        // What was read ahead is still on its way.
                        self.machine.meter().in_device() > 0
                    }
                );
                return ended;
            }
            self.take_in(self.machine.next_wake());
        }
    }

    /// Runs until nothing is on its way any more, read ahead or not.
    pub fn settle(&mut self) {
        loop {
            self.hand_in();
            if self.machine.meter().in_device() == 0 {
                return;
            }
            self.take_in(None);
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

//! A test environment for memory: frames and a device that record the stored version of each page,
//! and a program's address space with a reference.

use std::collections::{BTreeMap, BTreeSet};

use readpath_core::machine::{
    Buffer, Config, HandleId, Machine, MemoryAccess, MemoryFault, MemoryKind, PageSource,
    ReadAccess, ReadError, SwapConfig, Transfer, Unmap,
};
use readpath_core::policy::Spec;
use readpath_core::request::{
    Completion, DeviceCaps, DeviceError, DeviceRequest, Op, Outcome, ProcessId,
};
use readpath_core::swapin::MemoryId;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, Time};

pub const SWAP_PAGE: u64 = 1000;
pub const FILE_PAGE: u64 = 100;
pub const FILE_PAGES: u64 = 60;

/// Content of a frame or of a page of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    Memory {
        memory: u32,
        page: u64,
        version: u32,
    },
    File {
        page: u64,
    },
    /// Never written, or a failed transfer.
    Rubbish,
}

/// Way in which an environment observes programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Every touch, as in the modelled environment.
    Touches,
    /// Faults only; pages are mapped read-only until a write faults.
    WriteFaults,
    /// Faults only; the dirty bit is read when a page is unmapped.
    DirtyBits,
}

/// A mapped page.
#[derive(Clone, Copy, Debug)]
struct MappedPage {
    frame: u32,
    is_writable: bool,
    was_written: bool,
}

pub struct MemoryEnvironment {
    pub path: Machine,
    pub now: Time,
    pub sight: Observation,
    memory: Vec<PageContent>,
    /// Content of each page of the device.
    pub device: BTreeMap<u64, PageContent>,
    in_device: Vec<(DeviceRequest, Vec<PageContent>)>,
    mapped: BTreeMap<(u32, u64), MappedPage>,
    /// Expected version of each page: the number of its writes.
    versions: BTreeMap<(u32, u64), u32>,
    /// Open faults by tag.
    under_way: BTreeMap<u64, MemoryFault>,
    next_tag: u64,
    pub file: HandleId,
    file_reads: u64,
    /// Device pages that can't be read.
    pub bad_reads: BTreeSet<u64>,
    /// Device pages that can't be written.
    pub bad_writes: BTreeSet<u64>,
    pub write_error: DeviceError,
    /// Number of unmaps polled before the first is answered, as when neighbours are unmapped with
    /// one call.
    pub unmaps_at_once: usize,
    /// True if a page that is mapped again during its write does not reach the device, which
    /// receives garbage.
    pub keeps_mapped: bool,
    pub errors: Vec<ReadError>,
    pub issued: Vec<DeviceRequest>,
    pub sources: Vec<PageSource>,
}

impl MemoryEnvironment {
    pub fn new(
        memory_pages: u64,
        swap: &SwapConfig,
        sight: Observation,
        mappings: &[(u64, MemoryKind)],
    ) -> MemoryEnvironment {
        let caps = DeviceCaps {
            sectors: 4000 * PAGE_SECTORS,
            request_sectors_max: 16 * PAGE_SECTORS as u32,
            depth_max: 4,
            is_rotational: false,
            alignment_sectors: 8,
        };
        let mut path =
            Machine::new(Config { memory_bytes: memory_pages * PAGE_BYTES, ..Config::new(caps) })
                .unwrap();
        path.add_swap(swap).unwrap();
        for (nth, &(pages, kind)) in mappings.iter().enumerate() {
            assert_eq!(path.add_memory(pages, kind), Ok(MemoryId(nth as u32)));
        }
        let file = path.add_file(FILE_PAGES * PAGE_BYTES, FILE_PAGE * PAGE_SECTORS).unwrap();
        let file = path.open(file);
        let device = (0..FILE_PAGES).map(|page| (FILE_PAGE + page, PageContent::File { page }));
        MemoryEnvironment {
            path,
            now: Time::ZERO,
            sight,
            memory: vec![PageContent::Rubbish; memory_pages as usize],
            device: device.collect(),
            in_device: Vec::new(),
            mapped: BTreeMap::new(),
            versions: BTreeMap::new(),
            under_way: BTreeMap::new(),
            next_tag: 0,
            file,
            file_reads: 0,
            bad_reads: BTreeSet::new(),
            bad_writes: BTreeSet::new(),
            write_error: DeviceError::Medium,
            unmaps_at_once: 1,
            keeps_mapped: false,
            errors: Vec::new(),
            issued: Vec::new(),
            sources: Vec::new(),
        }
    }

    pub fn swap(policy: &str, slots: u64) -> SwapConfig {
        SwapConfig {
            policy: Spec::parse(policy).unwrap(),
            ..SwapConfig::new(SWAP_PAGE * PAGE_SECTORS, slots)
        }
    }

    /// A program reads or writes a page.
    pub fn touch(&mut self, memory: u32, page: u64, access: MemoryAccess) {
        self.start_touch(memory, page, access);
        self.settle();
    }

    /// As [`touch`](MemoryEnvironment::touch), for one of several concurrent programs.
    pub fn start_touch(&mut self, memory: u32, page: u64, access: MemoryAccess) {
        let mapped = self.mapped.get_mut(&(memory, page));
        if self.sight == Observation::Touches {
            let is_mapped = self.path.touch(MemoryId(memory), page, access);
            assert_eq!(is_mapped, mapped.is_some(), "the machine knows what is mapped");
        }
        let is_write = access == MemoryAccess::Write;
        match mapped {
            Some(mapped)
                if !is_write || mapped.is_writable || self.sight != Observation::WriteFaults =>
            {
                mapped.was_written |= is_write;
                let frame = mapped.frame;
                self.carry_out(memory, page, frame, is_write);
            }
            _ => {
                let tag = self.next_tag;
                self.next_tag += 1;
                let process = ProcessId(tag as u32 % 3);
                let fault = MemoryFault { memory: MemoryId(memory), page, access, process, tag };
                self.under_way.insert(tag, fault);
                self.path.fault(self.now, fault).unwrap();
            }
        }
    }

    /// The program checks the content of the frame, and overwrites it for a write.
    fn carry_out(&mut self, memory: u32, page: u64, frame: u32, is_write: bool) {
        let version = self.versions.entry((memory, page)).or_default();
        let due = PageContent::Memory { memory, page, version: *version };
        assert_eq!(self.memory[frame as usize], due, "the page holds what was last written to it");
        *version += u32::from(is_write);
        self.memory[frame as usize] = PageContent::Memory { memory, page, version: *version };
    }

    pub fn read_file(&mut self, page: u64, pages: u64) {
        let (offset, bytes) = (page * PAGE_BYTES, pages * PAGE_BYTES);
        let transfer =
            Transfer { handle: self.file, process: ProcessId(0), offset, bytes, tag: page };
        self.path.read(self.now, ReadAccess::Buffered, transfer).unwrap();
        self.file_reads += 1;
        self.settle();
    }

    /// Discards pages, as `MADV_DONTNEED` does; busy ones stay.
    pub fn discard(&mut self, memory: u32, page: u64) {
        let range = readpath_core::unit::PageRange::new(page, 1);
        if self.path.discard(self.now, MemoryId(memory), range) == 0 {
            self.mapped.remove(&(memory, page));
            self.versions.remove(&(memory, page));
        }
        self.settle();
    }

    /// Prefetches pages. Returns the first page that was not processed.
    pub fn will_need(&mut self, memory: u32, page: u64, pages: u64) -> u64 {
        let range = readpath_core::unit::PageRange::new(page, pages);
        let reached = self.path.will_need(self.now, MemoryId(memory), range, ProcessId(1));
        assert!((page..=page + pages).contains(&reached));
        self.settle();
        reached
    }

    /// Does all work that needs no completion of the device.
    pub fn settle(&mut self) {
        loop {
            let mut is_done = true;
            let polled = std::iter::from_fn(|| self.path.poll_unmap()).take(self.unmaps_at_once);
            let unmaps: Vec<Unmap> = polled.collect();
            is_done &= unmaps.is_empty();
            for unmap in unmaps {
                let mapped = self.mapped.remove(&(unmap.memory.0, unmap.page)).unwrap();
                assert_eq!(mapped.frame, unmap.frame.0);
                let was_written = self.sight == Observation::DirtyBits && mapped.was_written;
                self.path.handle_unmapped(self.now, unmap, was_written);
            }
            while let Some(request) = self.path.poll_request(self.now) {
                is_done = false;
                self.issue(request);
            }
            while let Some(done) = self.path.poll_done() {
                is_done = false;
                self.file_reads -= 1;
                match done.result {
                    Err(error) => self.errors.push(error),
                    Ok(_) => {
                        for (nth, frame) in self.path.read_frames(done.read).iter().enumerate() {
                            let due = PageContent::File { page: done.tag + nth as u64 };
                            assert_eq!(self.memory[frame.0 as usize], due);
                        }
                    }
                }
                self.path.release(self.now, done.read);
            }
            while let Some(faulted) = self.path.poll_faulted() {
                is_done = false;
                let fault = self.under_way.remove(&faulted.tag).expect("a fault ends once");
                assert_eq!((faulted.memory, faulted.page), (fault.memory, fault.page));
                match faulted.result {
                    Err(error) => self.errors.push(error),
                    Ok((frame, source)) => self.map(fault, frame.0, source, faulted.is_writable),
                }
                self.path.release_fault(self.now, faulted.fault);
            }
            if is_done {
                return;
            }
        }
    }

    /// Maps the page of a completed fault.
    fn map(&mut self, fault: MemoryFault, frame: u32, source: PageSource, is_writable: bool) {
        let (memory, page) = (fault.memory.0, fault.page);
        self.sources.push(source);
        if source == PageSource::Zero {
            self.assert_unseen(frame);
            self.memory[frame as usize] = PageContent::Memory { memory, page, version: 0 };
        }
        let is_write = fault.access == MemoryAccess::Write;
        assert!(is_writable || !is_write);
        // A page that was mapped by another fault meanwhile keeps its state.
        let before = self.mapped.get(&(memory, page)).copied();
        assert!(before.is_none_or(|before| before.frame == frame), "a page has one frame");
        let was_written = is_write || before.is_some_and(|before| before.was_written);
        let is_writable = is_writable || before.is_some_and(|before| before.is_writable);
        self.mapped.insert((memory, page), MappedPage { frame, is_writable, was_written });
        self.carry_out(memory, page, frame, is_write);
    }

    /// Checks that the frame that is about to be filled is not mapped.
    fn assert_unseen(&self, frame: u32) {
        assert!(self.mapped.values().all(|mapped| mapped.frame != frame), "the frame is mapped");
    }

    /// The frames of a request.
    fn frames(&self, request: &DeviceRequest) -> Vec<u32> {
        let mut frames = Vec::new();
        self.path.request_buffers(request.id, |buffer| match buffer {
            Buffer::Frame(frame) => frames.push(frame.0),
            Buffer::Caller { .. } => unreachable!("nothing here is direct"),
        });
        assert_eq!(frames.len() as u64 * PAGE_SECTORS, u64::from(request.sectors));
        frames
    }

    /// The contents of the frames of a request.
    fn contents(&self, request: &DeviceRequest) -> Vec<PageContent> {
        self.frames(request).iter().map(|&frame| self.memory[frame as usize]).collect()
    }

    /// Sends a request to the device, and checks that it conflicts with no other.
    fn issue(&mut self, request: DeviceRequest) {
        let pages = request.start / PAGE_SECTORS..request.end() / PAGE_SECTORS;
        assert!(
            self.in_device.iter().all(|(other, _)| {
                let both_read = other.op == Op::Read && request.op == Op::Read;
                both_read || other.end() <= request.start || request.end() <= other.start
            }),
            "nothing is written while it is read or written: {pages:?}"
        );
        if request.op == Op::Read {
            self.frames(&request).iter().for_each(|&frame| self.assert_unseen(frame));
        }
        let mut contents = self.contents(&request);
        if self.keeps_mapped && request.op == Op::Write {
            for (frame, content) in self.frames(&request).into_iter().zip(&mut contents) {
                let mut mapped = self.mapped.iter();
                if let Some((&(memory, page), _)) = mapped.find(|(_, at)| at.frame == frame) {
                    *content = PageContent::Rubbish;
                    self.path.handle_written(MemoryId(memory), page);
                }
            }
        }
        self.issued.push(request);
        self.in_device.push((request, contents));
        assert!(self.in_device.len() as u32 <= self.path.depth_max());
    }

    pub fn in_device(&self) -> usize {
        self.in_device.len()
    }

    /// Completes the request at this position of the device's queue. The data of a write is taken
    /// from memory at its start or at its end: changes meanwhile may be included or not.
    pub fn finish(&mut self, at: usize) {
        let (request, at_start) = self.in_device.remove(at);
        self.now += Time::from_us(100);
        let pages = request.start / PAGE_SECTORS..request.end() / PAGE_SECTORS;
        let (bad, is_write) = match request.op {
            Op::Read => (&self.bad_reads, false),
            Op::Write => (&self.bad_writes, true),
        };
        let is_bad = pages.clone().any(|page| bad.contains(&page));
        let outcome = match (is_bad, is_write) {
            (false, _) => Outcome::Done,
            (true, false) => Outcome::Failed(DeviceError::Medium),
            (true, true) => Outcome::Failed(self.write_error),
        };
        if is_write {
            let at_end =
                if at.is_multiple_of(2) { at_start.clone() } else { self.contents(&request) };
            for (page, (before, content)) in pages.zip(at_start.into_iter().zip(at_end)) {
                let is_rubbish = is_bad || before == PageContent::Rubbish;
                let content = if is_rubbish { PageContent::Rubbish } else { content };
                self.device.insert(page, content);
            }
        } else {
            let frames = self.frames(&request);
            for (page, frame) in pages.zip(frames) {
                self.assert_unseen(frame);
                let content = self.device.get(&page).copied().unwrap_or(PageContent::Rubbish);
                self.memory[frame as usize] = if is_bad { PageContent::Rubbish } else { content };
            }
        }
        self.path.handle_completion(self.now, Completion::at(self.now, request.id, outcome));
        self.settle();
    }

    /// Runs until no request is left.
    pub fn run(&mut self) {
        self.settle();
        while !self.in_device.is_empty() {
            self.finish(0);
        }
        assert!(self.under_way.is_empty(), "every fault ends: {:?}", self.under_way);
        assert_eq!(self.file_reads, 0, "every read ends");
        assert!(self.path.is_idle(), "nothing is left reserved or open");
    }

    /// Reads every page that was ever written, one at a time.
    pub fn read_all(&mut self) {
        let pages: Vec<(u32, u64)> = self.versions.keys().copied().collect();
        for (memory, page) in pages {
            self.touch(memory, page, MemoryAccess::Read);
            self.run();
        }
    }
}

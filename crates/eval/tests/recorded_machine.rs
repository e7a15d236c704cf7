//! The whole read path, compared with recordings of the running kernel: the pages requested from
//! the device in each step must equal the pages read by Linux 6.18.
//!
//! `recorded_kernel.rs` drives the policy alone. Here it runs in the machine, with cache, plug and
//! requests, over a device that answers at once.

use readpath_core::machine::{Config, HandleId, Machine, ReadAccess, Transfer};
use readpath_core::readahead::{Advice, HandleStep, Recording};
use readpath_core::request::{Completion, DeviceCaps, Outcome, ProcessId};
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, PageRange, Time};
use readpath_eval::check_kernel::{format_step, kernel_policy, parse_recording};

const RECORDINGS: [(&str, &str); 7] = [
    ("read_ahead_kb 128, seed 12", include_str!("recorded/read_ahead_kb-128-seed-12.txt")),
    ("read_ahead_kb 8192, seed 12", include_str!("recorded/read_ahead_kb-8192-seed-12.txt")),
    ("read_ahead_kb 100", include_str!("recorded/read_ahead_kb-100.txt")),
    ("read_ahead_kb 0", include_str!("recorded/read_ahead_kb-0.txt")),
    ("no large folios", include_str!("recorded/no-large-folios.txt")),
    ("touches", include_str!("recorded/touches.txt")),
    ("corners", include_str!("recorded/corners.txt")),
];

#[test]
fn machine_requests_the_pages_that_linux_read() {
    for (name, text) in RECORDINGS {
        let (steps, kernel) = parse_recording(text).unwrap();
        let mut path = Path::new(&kernel);
        for (index, (step, added)) in std::iter::zip(&steps, &kernel.added).enumerate() {
            let file_pages = kernel.file_bytes.div_ceil(PAGE_BYTES);
            let mut linux: Vec<u64> =
                added.iter().flat_map(|folio| folio.range().clipped(file_pages).pages()).collect();
            linux.sort_unstable();
            let asked = path.play(step);
            assert_eq!(asked, linux, "{name}, step {}: {}", index + 1, format_step(step));
        }
    }
}

/// One file on a device that answers at once, with memory for the whole file.
struct Path {
    machine: Machine,
    file: readpath_core::cache::FileId,
    handle: HandleId,
    kernel: Recording,
}

impl Path {
    fn new(kernel: &Recording) -> Path {
        let file_pages = kernel.file_bytes.div_ceil(PAGE_BYTES);
        let caps = DeviceCaps {
            sectors: file_pages * PAGE_SECTORS,
            request_sectors_max: (kernel.limits.request_pages_max * PAGE_SECTORS) as u32,
            depth_max: 128,
            is_rotational: false,
            alignment_sectors: 1,
        };
        let config = Config {
            memory_bytes: 2 * file_pages * PAGE_BYTES,
            readahead: kernel_policy(kernel),
            limits: kernel.limits,
            ..Config::new(caps)
        };
        let mut machine = Machine::new(config).unwrap();
        let file = machine.add_file(kernel.file_bytes, 0).unwrap();
        let handle = machine.open(file);
        Path { machine, file, handle, kernel: kernel.clone() }
    }

    /// Pages read in one step, sorted by number.
    fn play(&mut self, step: &HandleStep) -> Vec<u64> {
        match *step {
            HandleStep::Read { offset, bytes } => self.read(ReadAccess::Buffered, offset, bytes),
            HandleStep::Touch { offset } => self.read(ReadAccess::Fault, offset, 1),
            HandleStep::Advise(advice) => self.advise(advice),
            HandleStep::Reopen => self.handle = self.machine.open(self.file),
        }
        self.serve()
    }

    fn read(&mut self, access: ReadAccess, offset: u64, bytes: u64) {
        let (handle, process) = (self.handle, ProcessId(0));
        let transfer = Transfer { handle, process, offset, bytes, tag: 0 };
        self.machine.read(Time::ZERO, access, transfer).unwrap();
    }

    fn advise(&mut self, advice: Advice) {
        let whole = PageRange::covering(0, self.kernel.file_bytes);
        self.machine.advise(Time::ZERO, self.handle, ProcessId(0), advice, whole);
    }

    /// Serves the device until no work is left.
    fn serve(&mut self) -> Vec<u64> {
        let mut pages = Vec::new();
        while let Some(request) = self.machine.poll_request(Time::ZERO) {
            let first = request.start / PAGE_SECTORS;
            pages.extend(first..first + u64::from(request.sectors) / PAGE_SECTORS);
            let completion = Completion::at(Time::ZERO, request.id, Outcome::Done);
            self.machine.handle_completion(Time::ZERO, completion);
        }
        while let Some(done) = self.machine.poll_done() {
            done.result.unwrap();
            self.machine.release(Time::ZERO, done.read);
        }
        pages.sort_unstable();
        pages
    }
}

//! Cost of a fault by the way in which it is served, without a pager: the lower bound for
//! the pager.
//!
//! ```text
//! cargo bench -p readpath-dst --no-default-features --bench fault_ways -- [ROUNDS]
//! ```
//!
//! One thread, pinned to a core, touches every page, or every 8th or 16th, of an absent range of 16
//! MiB. Each fault is served with that number of pages, copied or moved from filled memory. All
//! ways run one after the other in each round. The output is the median over rounds in microseconds
//! per fault:
//!
//! - `signal`: in the faulting thread, by a handler of `SIGBUS`;
//! - `same core`: by a thread on the faulting thread's core;
//! - `other core`: by a thread that sleeps on another core;
//! - `anywhere`: by a thread placed by the kernel's scheduler;
//! - `each core`: by one thread on each core;
//! - `mapping`: by `readpath::Mapping` with the pages in its memory: its whole cost.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use readpath_dst::Mapping;
use readpath_dst::inside::{RangeRegistration, Uffd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const PAGE: usize = 4096;
const BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Signal,
    SameCore,
    OtherCore,
    Anywhere,
    EachCore,
    Mapping,
}

const WAYS: [Way; 6] =
    [Way::Signal, Way::SameCore, Way::OtherCore, Way::Anywhere, Way::EachCore, Way::Mapping];

/// Way to place pages.
#[derive(Clone, Copy, Debug)]
enum Fill {
    Copy,
    Move,
}

fn main() {
    let rounds: usize = std::env::args()
        .skip(1)
        .find(|word| word != "--bench")
        .map_or(5, |text| text.parse().expect("ROUNDS"));
    println!("{:12} {:>5} {:>6} {:>8}", "way", "fill", "pages", "us");
    for fill in [Fill::Move, Fill::Copy] {
        for pages in [1, 8, 16] {
            let mut spent = vec![Vec::new(); WAYS.len()];
            for _ in 0..rounds {
                for (way, spent) in WAYS.iter().zip(&mut spent) {
                    spent.push(measure(*way, fill, pages));
                }
            }
            for (way, mut spent) in WAYS.iter().zip(spent) {
                spent.sort_unstable_by(f64::total_cmp);
                let name = format!("{way:?}");
                println!("{name:12} {fill:>5?} {pages:6} {:8.2}", spent[rounds / 2]);
            }
        }
    }
}

/// Microseconds per fault.
fn measure(way: Way, fill: Fill, pages: usize) -> f64 {
    let (range, source) = (map(), map());
    // SAFETY: memory owned by this function.
    unsafe { std::ptr::write_bytes(source as *mut u8, 7, BYTES) };
    let server = Server { range, source, bytes: pages * PAGE, fill };
    let free = sched_getaffinity(None).expect("this thread has a set of cores");
    pin(0);
    let spent = match way {
        Way::Signal => by_signal(&server),
        Way::Mapping => by_mapping(server.bytes),
        _ => by_threads(&server, way, &free),
    };
    sched_setaffinity(None, &free).expect("the cores that this thread had");
    for address in [range, source] {
        // SAFETY: mapped by this function, and no longer in use.
        unsafe { libc::munmap(address as *mut _, BYTES) };
    }
    spent * 1e6 / (BYTES / (pages * PAGE)) as f64
}

#[derive(Clone, Copy)]
struct Server {
    range: usize,
    source: usize,
    bytes: usize,
    fill: Fill,
}

impl Server {
    fn serve(&self, uffd: &Uffd, address: usize) {
        let at = (address - self.range) / self.bytes * self.bytes;
        let (to, from) = (self.range + at, self.source + at);
        // SAFETY: both are ranges of `measure` without references.
        let done = unsafe {
            match self.fill {
                Fill::Copy => uffd.copy(to, from, self.bytes, false),
                Fill::Move => uffd.move_pages(to, from, self.bytes),
            }
        };
        done.expect("the page is absent, and its source is there");
    }

    /// Touches one page per fault. Returns the time in seconds.
    fn touch_all(&self) -> f64 {
        let start = Instant::now();
        for at in (0..BYTES).step_by(self.bytes) {
            // SAFETY: within the range, which is served.
            let byte = unsafe { ((self.range + at) as *const u8).read_volatile() };
            assert_eq!(byte, 7);
        }
        start.elapsed().as_secs_f64()
    }
}

fn by_threads(server: &Server, way: Way, free: &CpuSet) -> f64 {
    let uffd = Uffd::open().expect("userfaultfd");
    // SAFETY: the range belongs to `measure`.
    unsafe { uffd.register(server.range, BYTES, RangeRegistration::Missing) }
        .expect("the range is new");
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let (threads, is_over) = (if way == Way::EachCore { cores } else { 1 }, AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (uffd, is_over) = (&uffd, &is_over);
            scope.spawn(move || {
                match way {
                    Way::Anywhere => sched_setaffinity(None, free).expect("any core"),
                    Way::OtherCore => pin(1),
                    _ => pin(thread),
                }
                let mut faults = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let span = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                    let mut fds = [PollFd::from_borrowed_fd(uffd.as_fd(), PollFlags::IN)];
                    let _ = poll(&mut fds, Some(&span));
                    uffd.take_faults(&mut faults).expect("faults can be read");
                    faults.drain(..).for_each(|fault| server.serve(uffd, fault.address));
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        let spent = server.touch_all();
        is_over.store(true, Ordering::Relaxed);
        spent
    })
}

/// Touches slices of `bytes` bytes with gaps of the same size. They are loaded into the mapping's
/// memory first, so that a fault finds one slice and waits for no device.
fn by_mapping(bytes: usize) -> f64 {
    let path = std::env::temp_dir().join(format!("readpath-fault-ways-{}", std::process::id()));
    std::fs::write(&path, vec![7; 2 * BYTES]).expect("a file in the folder for temporary files");
    // SAFETY: no other program uses the file.
    let mapping = unsafe { Mapping::builder().readahead("none").open(&path) };
    let mapping = mapping.expect("a mapping");
    std::fs::remove_file(&path).expect("it was made just now");
    let places = || (0..2 * BYTES).step_by(2 * bytes);
    places().for_each(|at| mapping.load(at as u64, bytes as u64).expect("it can be read"));
    let start = Instant::now();
    for at in places() {
        assert_eq!(std::hint::black_box(mapping.as_slice())[at], 7);
    }
    let spent = start.elapsed().as_secs_f64();
    assert_eq!(mapping.stats().faults, (BYTES / bytes) as u64);
    spent
}

/// Arguments of the signal handler: a pointer to a [`Server`], and the descriptor.
static SERVER: AtomicUsize = AtomicUsize::new(0);
static DESCRIPTOR: AtomicUsize = AtomicUsize::new(0);

fn by_signal(server: &Server) -> f64 {
    let fd = open_with_signal();
    let mut register = [server.range as u64, BYTES as u64, 1, 0];
    // SAFETY: UFFDIO_REGISTER takes a range, a mode (missing is 1), and a result.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), 0xC020_AA00, &mut register) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    SERVER.store(std::ptr::from_ref(server) as usize, Ordering::SeqCst);
    DESCRIPTOR.store(fd.as_raw_fd() as usize, Ordering::SeqCst);
    // SAFETY: the handler makes one system call, on objects that outlive its installation.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &action, &mut before);
        let spent = server.touch_all();
        libc::sigaction(libc::SIGBUS, &before, std::ptr::null_mut());
        spent
    }
}

extern "C" fn on_bus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: `by_signal` keeps the server alive while this handler is set, and the kernel passes a
    // valid `info`.
    let (server, address) = unsafe {
        (&*(SERVER.load(Ordering::Relaxed) as *const Server), (*info).si_addr() as usize)
    };
    let fd = DESCRIPTOR.load(Ordering::Relaxed) as i32;
    let at = (address - server.range) / server.bytes * server.bytes;
    let mut argument =
        [(server.range + at) as u64, (server.source + at) as u64, server.bytes as u64, 0, 0];
    let call = match server.fill {
        Fill::Copy => 0xC028_AA03,
        Fill::Move => 0xC028_AA05,
    };
    // SAFETY: as in `Server::serve`. Both calls take target, source, length, mode, result.
    unsafe { libc::ioctl(fd, call, &mut argument) };
}

/// A userfaultfd that sends `SIGBUS` instead of fault messages.
fn open_with_signal() -> OwnedFd {
    // SAFETY: a system call that takes flags, and one that takes version, features, result.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let mut api = [0xAA_u64, 128 | 65_536, 0];
        let answer = libc::ioctl(fd, 0xC018_AA3F, &mut api);
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).expect("there is such a core");
}

fn map() -> usize {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address chosen by the kernel.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    address as usize
}

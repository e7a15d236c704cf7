//! Slices of a mapped file, touched page by page: `readpath::Mapping` and the kernel's mapping.
//!
//! ```text
//! cargo bench -p readpath-eval --bench mapping_speed -- \
//!     FILE [SLICES [ROUNDS [SLICE_KIB [ORDER [cached]]]]]
//! ```
//!
//! FILE is a file or block device, preferably on a slow device (`bench/mapping.py` creates one).
//! ORDER is one of
//!
//! - `random`: slices at random offsets, each forward (default);
//! - `up`, `down`: all slices in order, each forward; or all backward;
//! - `copy`: all slices in order, each copied to memory with the same offset in a page. The GNU C
//!   library copies slices of 512 KiB and more backward.
//!
//! Each round runs all ways over the same offsets. Before each, the file is dropped from the kernel
//! page cache, or with `cached` read into it:
//!
//! - `ours`: `readpath::Mapping` with its defaults, no hint;
//! - `ours runs`: the same with the policy `runs` and its default windows;
//! - `ours willneed`: each slice advised before it is touched;
//! - `kernel`: `mmap`, no hint;
//! - `kernel random`: `mmap` and `MADV_RANDOM`;
//! - `kernel willneed`: `mmap`, each slice advised before it is touched.
//!
//! Prints a line of JSON per way with medians over the rounds.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use readpath::Mapping;
use readpath_core::readahead::Advice;
use readpath_core::splitmix;
use readpath_eval::usage::storage_read_bytes;
use rustix::fs::Advice as FileAdvice;
use rustix::mm::{self, Advice as MemoryAdvice, MapFlags, ProtFlags};

const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Ours,
    OursRuns,
    OursWillNeed,
    Kernel,
    KernelRandom,
    KernelWillNeed,
}

const WAYS: [Way; 6] = [
    Way::Ours,
    Way::OursRuns,
    Way::OursWillNeed,
    Way::Kernel,
    Way::KernelRandom,
    Way::KernelWillNeed,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Random,
    Up,
    Down,
    Copy,
}

/// Parameters of a measurement.
struct Work<'a> {
    path: &'a Path,
    bytes: usize,
    slice_bytes: usize,
    places: Vec<usize>,
    order: Order,
    is_cached: bool,
}

/// Cost of one way in one round.
#[derive(Clone, Copy, Debug)]
struct Cost {
    us_per_slice: f64,
    read_bytes: u64,
    /// Device requests. `None` for a file that is not a block device.
    requests: Option<u64>,
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|word| word != "--bench");
    let path = args.next().expect("FILE");
    let mut number = |default| args.next().map_or(default, |text| text.parse().expect("a number"));
    let (slices, rounds, slice_bytes) = (number(500), number(5), number(64) << 10);
    let order = match args.next().as_deref() {
        None | Some("random") => Order::Random,
        Some("up") => Order::Up,
        Some("down") => Order::Down,
        Some("copy") => Order::Copy,
        Some(other) => panic!("no order `{other}`; it is random, up, down or copy"),
    };
    let is_cached = args.next().is_some_and(|word| word == "cached");
    let path = Path::new(&path);
    let bytes = rustix::fs::seek(File::open(path).expect("FILE"), rustix::fs::SeekFrom::End(0))
        .expect("its length") as usize;
    let places = match order {
        Order::Random => places(bytes / slice_bytes, slices),
        Order::Up | Order::Copy => (0..(bytes / slice_bytes).min(slices)).collect(),
        Order::Down => (0..(bytes / slice_bytes).min(slices)).rev().collect(),
    };
    let work = Work { path, bytes, slice_bytes, places, order, is_cached };
    let slices = work.places.len();
    let mut costs = vec![Vec::new(); WAYS.len()];
    for _ in 0..rounds {
        for (way, costs) in WAYS.iter().zip(&mut costs) {
            costs.push(measure(*way, &work));
        }
    }
    for (way, costs) in WAYS.iter().zip(costs) {
        let median = |of: &dyn Fn(&Cost) -> f64| {
            let mut values: Vec<f64> = costs.iter().map(of).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let requests = costs[0].requests.map(|_| median(&|cost| cost.requests.unwrap_or(0) as f64));
        let requests = requests.map_or("null".to_owned(), |requests| requests.to_string());
        println!(
            "{{\"way\": \"{way:?}\", \"order\": \"{order:?}\", \"cached\": {is_cached}, \
             \"slices\": {slices}, \"slice_kib\": {}, \"us_per_slice\": {:.1}, \
             \"read_bytes\": {}, \"requests\": {requests}}}",
            slice_bytes >> 10,
            median(&|cost| cost.us_per_slice),
            median(&|cost| cost.read_bytes as f64),
        );
    }
}

/// Distinct slice numbers in an unpredictable order.
fn places(all: usize, count: usize) -> Vec<usize> {
    let mut state = 7u64;
    let mut places: Vec<usize> = (0..all).collect();
    for at in 0..count.min(all) {
        places.swap(at, at + splitmix::next(&mut state) as usize % (all - at));
    }
    places.truncate(count);
    places
}

fn measure(way: Way, work: &Work<'_>) -> Cost {
    let (path, slice_bytes) = (work.path, work.slice_bytes);
    let mut file = File::open(path).expect("FILE");
    if work.is_cached {
        std::io::copy(&mut file, &mut std::io::sink()).expect("the file can be read");
    } else {
        rustix::fs::fadvise(&file, 0, None, FileAdvice::DontNeed).expect("it can be dropped");
    }
    let read_bytes = || storage_read_bytes().expect("/proc/self/io");
    let before = (read_bytes(), requests(&file));
    let us_per_slice = match way {
        Way::Ours | Way::OursRuns | Way::OursWillNeed => {
            // SAFETY: the measured file does not change.
            let builder = match way {
                Way::OursRuns => Mapping::builder().readahead("runs").window_bytes_max(32 << 20),
                _ => Mapping::builder(),
            };
            // SAFETY: the measured file does not change.
            let mapping = unsafe { builder.open(path) }.expect("a mapping");
            touch_slices(work, |offset| {
                if way == Way::OursWillNeed {
                    mapping.advise(Advice::WillNeed, offset as u64, slice_bytes as u64);
                }
                &mapping.as_slice()[offset..offset + slice_bytes]
            })
        }
        _ => by_kernel(way, &file, work),
    };
    let after = (read_bytes(), requests(&file));
    Cost {
        us_per_slice,
        read_bytes: after.0 - before.0,
        requests: after.1.zip(before.1).map(|(after, before)| after - before),
    }
}

fn by_kernel(way: Way, file: &File, work: &Work<'_>) -> f64 {
    let &Work { bytes, slice_bytes, .. } = work;
    // SAFETY: a new mapping of a file that does not change.
    let address = unsafe {
        mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)
            .expect("a mapping")
    };
    let advise = |at: usize, bytes: usize, advice: MemoryAdvice| {
        // SAFETY: within the mapping; the advice changes no bytes.
        unsafe { mm::madvise(address.wrapping_byte_add(at), bytes, advice) }.expect("advice");
    };
    if way == Way::KernelRandom {
        advise(0, bytes, MemoryAdvice::Random);
    }
    // SAFETY: as above.
    let memory = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) };
    let spent = touch_slices(work, |offset| {
        if way == Way::KernelWillNeed {
            advise(offset, slice_bytes, MemoryAdvice::WillNeed);
        }
        &memory[offset..offset + slice_bytes]
    });
    // SAFETY: mapped above, without references.
    unsafe { mm::munmap(address, bytes) }.expect("it was mapped");
    spent
}

/// Microseconds per slice.
fn touch_slices<'a>(work: &Work<'_>, slice: impl Fn(usize) -> &'a [u8]) -> f64 {
    let mut room = vec![1u8; work.slice_bytes + PAGE];
    let to_page = room.as_ptr().align_offset(PAGE);
    let first_byte = |page: &[u8]| u64::from(std::hint::black_box(page)[0]);
    let (start, mut sum) = (Instant::now(), 0u64);
    for place in &work.places {
        let slice = slice(place * work.slice_bytes);
        sum += match work.order {
            Order::Random | Order::Up => slice.chunks(PAGE).map(first_byte).sum(),
            Order::Down => slice.rchunks(PAGE).map(first_byte).sum(),
            Order::Copy => {
                room[to_page..to_page + slice.len()].copy_from_slice(slice);
                first_byte(&room[to_page..])
            }
        };
    }
    std::hint::black_box(sum);
    start.elapsed().as_secs_f64() * 1e6 / work.places.len() as f64
}

/// Number of completed reads of a block device (its `stat` in sysfs). `None` for other files.
fn requests(file: &File) -> Option<u64> {
    let metadata = file.metadata().ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

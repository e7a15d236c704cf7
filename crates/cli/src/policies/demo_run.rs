//! Demo run of a policy, small enough to be drawn. All policies of a kind have the same run, which
//! makes their pictures comparable.
//!
//! - *Readahead*: one program reads 3 MiB of a file in order, then at random offsets. (Policy
//!   `runs`: records of 64 KiB of a mapped file, touched at random.)
//! - *Swap-in*: memory that is a tenth too small, swept in order, then touched at random.
//! - *Scheduler*: four programs, each reading another part of one disk in order, without readahead.
//! - *Raw*: one transfer of 4 MiB from two striped disks.
//! - *Eviction*: a loop larger than memory, a hot set, and a scan of blocks used once.
//! - *Admission*: the same references, to objects: the scan's have eight times the size.

use readpath_core::eviction::{self, PageKey, Simulation};
use readpath_core::policy::{Spec, SpecError};
use readpath_core::unit::{PAGE_BYTES, SECTOR_BYTES};
use readpath_sim::job::JobFile;
use readpath_sim::load::{self, LoadSetup, MemoryLoad, observe_load};
use readpath_sim::observe::{Events, Observer, RequestEvent};
use readpath_sim::report::ResultRow;
use readpath_sim::run::{ProgressAnswer, RunObserver};
use readpath_sim::simulate::{Participants, SimulationSetup, simulate_with};
use readpath_trace::objects::{Admission, ObjectCache, ObjectOutcome, ObjectReference};
use readpath_trace::references::{BlockTrace, belady};

use super::PolicyKind;
use super::picture::{Colour, Mark, Scene};

/// Name of a demo run in its row of results. No picture shows it.
const RUN_NAME: &str = "lesson";

/// Maximum number of recorded events of each kind. The demo runs have fewer.
const EVENTS_MAX: usize = 1 << 16;

/// Bytes in a MiB.
const MIB: f64 = (1 << 20) as f64;

/// Job: a sequential stream, then random reads.
const STREAM_THEN_RANDOM: &str = "[global]\nfilename=one\nioengine=psync\n\
    [stream]\nrw=read\nbs=16k\nsize=3m\nfilesize=8m\n\
    [random]\nstonewall\nrw=randread\nbs=16k\noffset=4m\nsize=4m\nio_size=320k\n";

/// Job: records of a mapped file, each 16 adjacent faults.
const MAPPED_RECORDS: &str =
    "[records]\nfilename=one\nrw=randread\nbs=64k\nsize=8m\nio_size=1536k\nioengine=mmap\n";

/// Job: four programs, each with a sequential stream over its own file.
const FOUR_STREAMS: &str =
    "[four]\nrw=read\nbs=64k\nsize=2g\nio_size=8m\nioengine=psync\nnumjobs=4\n";
/// Length of each stream's file, which identifies the program of a request.
const STREAM_BYTES: u64 = 2 << 30;

/// Job: one large transfer that bypasses the cache.
const TRANSFER: &str = "[transfer]\nfilename=one\nioengine=raw\nrw=read\nbs=4m\nsize=4m\n";

/// Runs the demo of this kind with a policy of that kind.
///
/// # Errors
/// An eviction policy cannot be built from its name alone.
///
/// # Panics
/// A policy of another kind cannot be built from its name alone.
pub fn draw(kind: PolicyKind, policy: &str) -> Result<Scene, SpecError> {
    let policy = Spec::plain(policy);
    match kind {
        PolicyKind::Readahead => Ok(draw_readahead(policy)),
        PolicyKind::SwapIn => Ok(draw_swap_in(policy)),
        PolicyKind::Scheduler => Ok(draw_scheduler(policy)),
        PolicyKind::Chunking => Ok(draw_chunking(policy)),
        PolicyKind::Eviction => draw_eviction(policy),
        PolicyKind::Admission => Ok(draw_admission(&policy.name)),
    }
}

/// Simulates a job and returns its row and its events.
fn simulate_job(job: &str, setup: &SimulationSetup) -> (ResultRow, Events) {
    let job = JobFile::parse(job).expect("the job of a demo run is well formed");
    let observer = Observer::new(EVENTS_MAX);
    // The readahead policy is the one that the setup names, not one made by a program.
    let participants = Participants { observer: Some(observer.clone()), policy_maker: None };
    let row = simulate_with(
        RUN_NAME,
        &job,
        setup,
        participants,
        RunObserver::progress(&mut |_| ProgressAnswer::Continue),
    )
    .expect("a policy by its name alone, and a device that is there");
    (row, observer.take())
}

/// Converts nanoseconds to milliseconds.
fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Returns the start and the end, in ms, of the time in which a request was in the device.
fn ms_in_device(request: &RequestEvent) -> (f64, f64) {
    let done_ns = request.done_ns.expect("a run ends when all requests are done");
    (milliseconds(request.issued_ns), milliseconds(done_ns))
}

/// Returns the start and the end, in MiB, of the range of the device that a request moved.
fn device_range_mib(request: &RequestEvent) -> (f64, f64) {
    let start = request.sector * SECTOR_BYTES;
    let end = start + u64::from(request.sectors) * SECTOR_BYTES;
    (start as f64 / MIB, end as f64 / MIB)
}

/// Draws the device's reads over time: used and unused bytes, and the program's reads. Offsets on
/// the device equal offsets in the file.
fn draw_readahead(policy: Spec) -> Scene {
    let job = if policy.name == "runs" { MAPPED_RECORDS } else { STREAM_THEN_RANDOM };
    let name = policy.to_string();
    let setup = SimulationSetup { readahead: policy, ..SimulationSetup::new(Spec::plain("hdd")) };
    let (_row, events) = simulate_job(job, &setup);
    let used_flags = used_pages_of(&events);
    let mut marks = Vec::new();
    let (mut used_pages, mut unused_pages) = (0u64, 0u64);
    for request in &events.requests {
        let first_page = request.sector * SECTOR_BYTES / PAGE_BYTES;
        let request_bytes = u64::from(request.sectors) * SECTOR_BYTES;
        let end_page = first_page + request_bytes.div_ceil(PAGE_BYTES);
        let pages: Vec<u64> = (first_page..end_page).collect();
        // Each run of pages that are all used, or all unused, is one mark.
        let have_equal_use =
            |left: &u64, right: &u64| used_flags[*left as usize] == used_flags[*right as usize];
        for run in pages.chunk_by(have_equal_use) {
            let is_used = used_flags[run[0] as usize];
            *if is_used { &mut used_pages } else { &mut unused_pages } += run.len() as u64;
            let mib = |page: u64| (page * PAGE_BYTES) as f64 / MIB;
            let colour = if is_used { Colour::Read } else { Colour::Waste };
            marks.push(Mark {
                x: ms_in_device(request),
                y: (mib(run[0]), mib(run[run.len() - 1] + 1)),
                colour,
            });
        }
    }
    marks.extend(events.reads.iter().map(|read| Mark {
        x: (milliseconds(read.issued_ns), milliseconds(read.done_ns)),
        // A thin line, so that the device's read for it stays visible.
        y: (read.offset as f64 / MIB, read.offset as f64 / MIB),
        colour: Colour::Requested,
    }));
    let last_done_ns = events.reads.iter().map(|read| read.done_ns).max().unwrap_or(0);
    Scene {
        title: format!("readahead {name}, on hdd"),
        x_name: "ms",
        y_name: "MiB of the file",
        legend: vec![
            (Colour::Requested, "a read of the program, while it waits"),
            (Colour::Read, "read by the device, and used"),
            (Colour::Waste, "read and never used"),
        ],
        figures_line: format!(
            "{} reads, {} requests, {} KiB used, {} KiB not, {:.0} ms",
            events.reads.len(),
            events.requests.len(),
            used_pages * PAGE_BYTES / 1024,
            unused_pages * PAGE_BYTES / 1024,
            milliseconds(last_done_ns)
        ),
        marks,
    }
}

/// Returns for each page of the device, up to the end of the last request, whether the program has
/// read it.
fn used_pages_of(events: &Events) -> Vec<bool> {
    let end_sectors =
        events.requests.iter().map(|request| request.sector + u64::from(request.sectors));
    let end_byte = end_sectors.max().unwrap_or(0) * SECTOR_BYTES;
    let mut used_flags = vec![false; end_byte.div_ceil(PAGE_BYTES) as usize];
    for read in &events.reads {
        let bytes = read.bytes.expect("a modelled disk without faults completes every read");
        // The file starts at the device's first byte: offsets in both are equal.
        for page in read.offset / PAGE_BYTES..(read.offset + bytes).div_ceil(PAGE_BYTES) {
            // A page beyond the last request is not drawn.
            if let Some(is_used) = used_flags.get_mut(page as usize) {
                *is_used = true;
            }
        }
    }
    used_flags
}

/// Draws the swap area's requests of a sweep and of random touches.
fn draw_swap_in(policy: Spec) -> Scene {
    let name = policy.to_string();
    let setup = LoadSetup {
        swapin: policy,
        scheduler: Spec::plain("deadline"),
        // Under this eviction policy a loop always misses, and the swap-in policy becomes visible.
        eviction: Spec::plain("two-lists"),
        ..LoadSetup::new(Spec::plain("ssd"))
    };
    let mut marks = Vec::new();
    let mut lines = Vec::new();
    // Start of the next run on the horizontal axis. A run is drawn from its first request on.
    let mut scene_ms = 0.0;
    for (pattern, touches, order_text) in [
        (load::TouchPattern::Sequential, 1100, "in order"),
        (load::TouchPattern::Random, 1000, "at random"),
    ] {
        // A mapping of 1,100 pages with memory for 1,000, filled before the events begin. In order,
        // each page is touched once.
        let load = MemoryLoad {
            pattern,
            touches,
            ..MemoryLoad::new(RUN_NAME, 1100 * PAGE_BYTES, 1000 * PAGE_BYTES)
        };
        let (row, events) = observe_load(&load, &setup, EVENTS_MAX)
            .expect("a policy by its name alone, and a device that is there");
        let first_ms = events.requests.first().map_or(0.0, |request| ms_in_device(request).0);
        let mut last_ms: f64 = 0.0;
        for request in &events.requests {
            let (from, to) = ms_in_device(request);
            let shifted = |ms: f64| ms - first_ms + scene_ms;
            last_ms = last_ms.max(shifted(to));
            let colour = if request.is_write { Colour::Written } else { Colour::Read };
            let x = (shifted(from), shifted(to));
            marks.push(Mark { x, y: device_range_mib(request), colour });
        }
        // A gap separates the two runs. Its length, 3 % of the first, is chosen by eye.
        scene_ms = last_ms * 1.03;
        let reads = events.requests.iter().filter(|request| !request.is_write).count();
        let pages_in = row.pages_in.unwrap_or(0);
        lines.push(format!("{order_text}: {reads} reads of {pages_in} pages"));
    }
    Scene {
        title: format!("swap-in {name}, on ssd: in order, then at random"),
        x_name: "ms",
        y_name: "MiB of the swap area",
        legend: vec![(Colour::Read, "pages brought in"), (Colour::Written, "pages written out")],
        figures_line: lines.join("; "),
        marks,
    }
}

/// Draws the requests of four programs in the order of the scheduler.
fn draw_scheduler(policy: Spec) -> Scene {
    let name = policy.to_string();
    let readahead = Spec::plain("none");
    let setup = SimulationSetup {
        scheduler: policy,
        readahead,
        ..SimulationSetup::new(Spec::plain("hdd"))
    };
    let (row, events) = simulate_job(FOUR_STREAMS, &setup);
    let marks = events.requests.iter().map(|request| {
        // The files of the programs lie one after the other on the disk.
        let process = request.sector * SECTOR_BYTES / STREAM_BYTES;
        let (from, to) = device_range_mib(request);
        Mark {
            x: ms_in_device(request),
            y: (from / 1024.0, to / 1024.0),
            colour: Colour::of_program(process),
        }
    });
    let last_done_ns = events.reads.iter().map(|read| read.done_ns).max().unwrap_or(0);
    Scene {
        title: format!("scheduler {name}, on hdd"),
        x_name: "ms",
        y_name: "GiB of the disk",
        legend: (0..4).map(|process| (Colour::of_program(process), "")).collect(),
        figures_line: format!(
            "{} requests of four programs, {:.1} MiB/s, {:.0} ms",
            events.requests.len(),
            row.mib_per_s.unwrap_or(0.0),
            milliseconds(last_done_ns)
        ),
        marks: marks.collect(),
    }
}

/// Draws the chunks of one raw transfer: for each chunk its time in flight and its bytes. The
/// transfer begins at the first byte of the array.
fn draw_chunking(policy: Spec) -> Scene {
    let name = policy.to_string();
    let disks = Spec::parse("raid0:2xhdd").expect("a device that is there");
    let setup = SimulationSetup { chunking: policy, ..SimulationSetup::new(disks) };
    let (_row, events) = simulate_job(TRANSFER, &setup);
    let marks = events.requests.iter().map(|request| Mark {
        x: ms_in_device(request),
        y: device_range_mib(request),
        colour: Colour::Read,
    });
    let last_done_ns =
        events.requests.iter().filter_map(|request| request.done_ns).max().unwrap_or(0);
    Scene {
        title: format!("raw {name}, on two disks side by side"),
        x_name: "ms",
        y_name: "MiB of the transfer",
        legend: vec![(Colour::Read, "a chunk, while it is in flight")],
        figures_line: format!(
            "{} chunks, {:.1} ms",
            events.requests.len(),
            milliseconds(last_done_ns)
        ),
        marks: marks.collect(),
    }
}

/// Blocks of the demo trace that its scan references once each.
const SCANNED_BLOCKS: std::ops::Range<u32> = 60..180;

/// Size of the memory in the demo of eviction, in blocks.
const CACHE_BLOCKS: u32 = 100;

/// Returns four rounds of a loop over 130 blocks, then 150 references to a hot set of 60. A scan of
/// 120 follows, with a reference to the hot set after each block.
fn demo_trace() -> BlockTrace {
    // Pseudorandom numbers below `end`, from a linear congruential generator (Knuth's MMIX).
    let mut state = 1u64;
    let mut random_below = |end: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The low bits of such a generator repeat soon.
        ((state >> 33) % end) as u32
    };
    // Blocks 0 to 59 are the hot set, `SCANNED_BLOCKS` the scan, 180 to 309 the loop.
    let mut references: Vec<u32> = (0..4).flat_map(|_| 180..310).collect();
    references.extend((0..150).map(|_| random_below(60)));
    for block in SCANNED_BLOCKS {
        references.extend([block, random_below(60)]);
    }
    BlockTrace { references, blocks: 310, note: None }
}

/// Draws the references of the demo trace in their order: each as a hit or a miss at its block.
fn draw_eviction(policy: Spec) -> Result<Scene, SpecError> {
    let trace = demo_trace();
    let mut cache = Simulation::new(eviction::build(&policy, CACHE_BLOCKS)?, CACHE_BLOCKS);
    let mut misses = 0u64;
    let marks = trace.references.iter().enumerate().map(|(index, &block)| {
        let is_hit = cache.reference(PageKey::from_number(block.into()));
        misses += u64::from(!is_hit);
        let colour = if is_hit { Colour::Hit } else { Colour::Waste };
        let (index, block) = (index as f64, f64::from(block));
        Mark { x: (index, index + 1.0), y: (block, block + 1.0), colour }
    });
    let marks: Vec<Mark> = marks.collect();
    Ok(Scene {
        title: format!("eviction {policy}: {CACHE_BLOCKS} blocks of memory"),
        x_name: "references",
        y_name: "block",
        legend: vec![(Colour::Hit, "was there"), (Colour::Waste, "missed")],
        figures_line: format!(
            "{misses} of {} references missed; the least possible is {}",
            trace.references.len(),
            belady(&trace, CACHE_BLOCKS)
        ),
        marks,
    })
}

/// Size of an object in the demo of admission, in bytes.
const OBJECT_BYTES: u64 = 4_096;
/// Size of an object of the scan, in bytes.
const SCANNED_BYTES: u64 = 8 * OBJECT_BYTES;

/// Values of the admission policies that need some: of the demo's two sizes `size` admits the
/// smaller one. `adaptsize` is tuned after each round of the loop.
const ADMISSION_TEXTS: [(&str, &str); 4] = [
    ("size", "size:16KiB"),
    ("probability", "probability:0.25"),
    ("size-probability", "size-probability:8KiB"),
    ("adaptsize", "adaptsize:130"),
];

/// Draws the references of the demo trace to objects under `lru`: each as a hit, a miss that
/// enters, or a miss that does not enter.
fn draw_admission(name: &str) -> Scene {
    let text = ADMISSION_TEXTS.into_iter().find(|(known, _)| *known == name);
    let text = text.map_or(name, |(_, text)| text);
    let admission = Admission::parse(text).expect("the values of a known policy");
    let trace = demo_trace();
    let cache_bytes = u64::from(CACHE_BLOCKS) * OBJECT_BYTES;
    let mut cache = ObjectCache::new("lru", &admission, trace.blocks, cache_bytes)
        .expect("lru works with every admission policy");
    let (mut misses, mut entered) = (0u64, 0u64);
    let marks = trace.references.iter().enumerate().map(|(index, &object)| {
        let bytes = if SCANNED_BLOCKS.contains(&object) { SCANNED_BYTES } else { OBJECT_BYTES };
        let outcome = cache.reference(ObjectReference { object, bytes });
        misses += u64::from(outcome != ObjectOutcome::Hit);
        entered += u64::from(outcome == ObjectOutcome::Entered);
        let colour = match outcome {
            ObjectOutcome::Hit => Colour::Hit,
            ObjectOutcome::Entered => Colour::Waste,
            ObjectOutcome::NotAdmitted => Colour::Read,
        };
        let (index, object) = (index as f64, f64::from(object));
        Mark { x: (index, index + 1.0), y: (object, object + 1.0), colour }
    });
    let marks: Vec<Mark> = marks.collect();
    Scene {
        title: format!("admission {text}, lru: {CACHE_BLOCKS} objects of memory"),
        x_name: "references",
        y_name: "object",
        legend: vec![
            (Colour::Hit, "was there"),
            (Colour::Waste, "missed, and entered"),
            (Colour::Read, "missed, and did not enter"),
        ],
        figures_line: format!(
            "{misses} of {} references missed, and {entered} objects entered",
            trace.references.len()
        ),
        marks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the 310 blocks misses at least once. The trace has 150 references to the hot set,
    /// 240 of the mixed scan, and 4 rounds of the loop over the blocks 180 to 309.
    #[test]
    fn eviction_policies_miss_at_least_as_often_as_the_optimum() {
        let trace = demo_trace();
        assert_eq!(trace.references.len(), 150 + 240 + 4 * 130);
        let misses_min = belady(&trace, CACHE_BLOCKS);
        assert!(misses_min >= 310, "each block is missed once at least: {misses_min}");
        for policy in eviction::POLICIES {
            let scene = draw_eviction(Spec::plain(policy.name)).unwrap();
            let misses = scene.marks.iter().filter(|mark| mark.colour == Colour::Waste).count();
            assert!(misses as u64 >= misses_min, "{}", policy.name);
        }
        let lru = draw_eviction(Spec::plain("lru")).unwrap();
        // `lru` never hits in a loop larger than memory.
        let loop_marks = lru.marks.iter().filter(|mark| mark.y.0 >= 180.0);
        assert!(
            loop_marks.clone().count() == 520
                && loop_marks.into_iter().all(|mark| mark.colour == Colour::Waste)
        );
    }

    /// With a limit of 16 KiB the 120 objects of the scan, of 32 KiB, miss and do not enter. All
    /// others enter: four rounds of a loop over 130 objects, in memory for 100, miss under `lru`,
    /// and the 60 objects of the hot set once.
    #[test]
    fn admission_by_size_rejects_the_scan_alone() {
        let scene = draw_admission("size");
        let count = |colour| scene.marks.iter().filter(|mark| mark.colour == colour).count();
        assert_eq!(count(Colour::Read), 120);
        assert_eq!(count(Colour::Waste), 4 * 130 + 60);
    }

    /// With 100 blocks, `lirs` keeps 99 (all but a hundredth) for the blocks with the shortest
    /// reuse distance. Each later round of the loop therefore misses 130 - 99 = 31 blocks.
    #[test]
    fn lirs_keeps_the_part_of_the_loop_that_fits() {
        let scene = draw_eviction(Spec::plain("lirs")).unwrap();
        let is_missed = |mark: &&Mark| mark.colour == Colour::Waste;
        assert_eq!(scene.marks[130..520].iter().filter(is_missed).count(), 3 * 31);
    }

    /// Without readahead the device reads only the requested bytes: 3 MiB ÷ 16 KiB = 192 reads in
    /// order, and 320 KiB ÷ 16 KiB = 20 at random.
    #[test]
    fn readahead_none_transfers_no_unused_bytes() {
        let scene = draw_readahead(Spec::plain("none"));
        assert!(scene.marks.iter().all(|mark| mark.colour != Colour::Waste));
        assert!(scene.figures_line.starts_with("212 reads, 2"), "{}", scene.figures_line);
    }

    /// A transfer of 4 MiB in chunks of 512 KiB: `ring` has several of them in flight.
    #[test]
    fn ring_policy_overlaps_chunks_in_flight() {
        let overlaps = |policy: &str| {
            let scene = draw_chunking(Spec::plain(policy));
            let mut flight_times_ms: Vec<(f64, f64)> =
                scene.marks.iter().map(|mark| mark.x).collect();
            flight_times_ms.sort_by(|left, right| left.0.total_cmp(&right.0));
            flight_times_ms.windows(2).any(|pair| pair[1].0 < pair[0].1)
        };
        assert!(overlaps("ring"));
    }
}

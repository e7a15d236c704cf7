//! Device requests of a mapping by access order: ascending, descending, both ends first, and
//! random. The counts are the same on every machine, except for the arrival times of pages.

mod support;

use readpath::Mapping;
use readpath::pager::MappingStats;
use support::{TempFile, can_serve, splitmix};

const PAGE: usize = 4096;
const SLICE: usize = 1 << 20;
const SLICES: usize = 32;

fn map(file: &TempFile, memory_bytes: u64) -> Mapping {
    // SAFETY: the file belongs to the test, which does not change it.
    unsafe { Mapping::builder().kernel_cache(false).memory(memory_bytes).open(&file.path) }.unwrap()
}

fn touch(mapping: &Mapping, pages: impl Iterator<Item = usize>) {
    let touched: u64 = pages.map(|page| u64::from(mapping.as_slice()[page * PAGE])).sum();
    std::hint::black_box(touched);
}

/// Copies slice after slice, in order, to memory with the same offset in a page, which the GNU C
/// library copies backwards.
fn copy_slices(mapping: &Mapping, content: &[u8], slices: std::ops::Range<usize>) {
    let mut room = vec![0u8; SLICE + PAGE];
    let source = &mapping.as_slice()[slices.start * SLICE..slices.end * SLICE];
    let to_page = room.as_ptr().align_offset(PAGE);
    for (at, slice) in slices.zip(source.chunks(SLICE)) {
        room[to_page..to_page + SLICE].copy_from_slice(slice);
        assert!(room[to_page..to_page + SLICE] == content[at * SLICE..(at + 1) * SLICE]);
    }
}

fn since(mapping: &Mapping, before: MappingStats) -> Counts {
    let now = mapping.stats();
    let pages = (now.device_read_bytes - before.device_read_bytes) / PAGE as u64;
    let counts = (now.device_reads - before.device_reads, pages, now.faults - before.faults);
    println!("{} requests for {} pages, {} faults", counts.0, counts.1, counts.2);
    counts
}

type Counts = (u64, u64, u64);

/// Smallest and largest counts of three runs. Window sizes depend on the measured request cost,
/// which varies under other load.
fn of_three(run: impl Fn() -> Counts) -> (Counts, Counts) {
    let mut all = [run(), run(), run()];
    all.sort();
    (all[0], all[2])
}

/// Largest number of requests for a slice of 256 pages, on any storage: windows have at least as
/// many pages as the kernel maps around a fault. The exact number depends on the measured cost of a
/// request. `slices_of_a_mapping_cost_at_most_four_requests_each` checks it on modelled devices.
const REQUESTS_PER_SLICE_MAX: u64 = 16;

/// A slice of 256 pages costs few requests and faults, and hardly any page is read twice or wasted,
/// with memory for the whole file and for a quarter.
#[test]
fn copies_of_whole_slices_cost_a_few_requests_each() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(SLICES * SLICE);
    let content = std::fs::read(&file.path).unwrap();
    let slices = SLICES as u64 - 2;
    // A window is at most an eighth of the remaining memory: with eight slices of memory less than
    // one slice.
    for memory_bytes in [256 << 20, 8 << 20] {
        let ((requests, pages, faults), _) = of_three(|| {
            let mapping = map(&file, memory_bytes);
            copy_slices(&mapping, &content, 0..2);
            let before = mapping.stats();
            copy_slices(&mapping, &content, 2..SLICES);
            since(&mapping, before)
        });
        assert!(requests <= REQUESTS_PER_SLICE_MAX * slices, "{requests} requests");
        assert!(pages <= 266 * slices, "{pages} pages");
        assert!(faults <= 16 * slices, "{faults} faults");
    }
}

#[test]
fn descending_touches_cost_no_more_requests_than_ascending_ones() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(SLICES * SLICE);
    let pages_of_file = SLICES * SLICE / PAGE;
    for memory_bytes in [256 << 20, 8 << 20] {
        let counts = |is_down: bool| {
            of_three(|| {
                let mapping = map(&file, memory_bytes);
                match is_down {
                    true => touch(&mapping, (0..pages_of_file).rev()),
                    false => touch(&mapping, 0..pages_of_file),
                }
                since(&mapping, MappingStats::default())
            })
        };
        let ((_, up), (down, _)) = (counts(false), counts(true));
        // Allowance for the detection of the direction: the first run, and the pages above.
        assert!(down.0 <= up.0 + up.0 / 4 + 8, "{down:?} after {up:?} requests");
        assert!(down.1 <= pages_of_file as u64 + 16, "{down:?} pages");
        assert!(down.2 <= up.2 + up.2 / 4 + 32, "{down:?} after {up:?} faults");
    }
}

/// Random pages: each is a read of its own, with hardly any further page. (At the start 4 each,
/// until the policy has learned that one is enough.)
#[test]
fn random_pages_are_read_alone() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(2 * SLICES * SLICE);
    // Without this limit the file may be read whole, depending on the latency of the disk.
    let builder = Mapping::builder().kernel_cache(false).memory(256 << 20);
    let builder = builder.readahead("adaptive,whole_file_mib=0");
    // SAFETY: as in `map`.
    let mapping = unsafe { builder.open(&file.path) }.unwrap();
    let mut state = 1;
    let count = 400;
    touch(
        &mapping,
        (0..count).map(|_| splitmix(&mut state) as usize % (2 * SLICES * SLICE / PAGE)),
    );
    let (_, pages, _) = since(&mapping, MappingStats::default());
    assert!(pages <= count + count / 10 + 16, "{pages} pages for {count}");
}

#[test]
fn concurrent_streams_of_different_directions_cost_few_requests() {
    if !can_serve() {
        return;
    }
    let file = TempFile::new(SLICES * SLICE);
    let content = std::fs::read(&file.path).unwrap();
    let mapping = map(&file, 8 << 20);
    std::thread::scope(|scope| {
        for (third, is_down) in [true, false, true].into_iter().enumerate() {
            let (mapping, content) = (&mapping, &content);
            scope.spawn(move || {
                let (first, count) = (third * 2_700, 2_700);
                for at in 0..count {
                    let page = if is_down { first + count - 1 - at } else { first + at };
                    let range = page * PAGE..(page + 1) * PAGE;
                    assert!(mapping.as_slice()[range.clone()] == content[range]);
                }
            });
        }
    });
    let (requests, pages, _) = since(&mapping, MappingStats::default());
    assert!(requests < 8_100 / 8, "{requests} requests for 8100 pages");
    assert!(pages < 8_100 * 3 / 2, "{pages} pages read for 8100");
}

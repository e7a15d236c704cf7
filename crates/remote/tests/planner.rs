//! The planner against the bytes of the files: scenarios worked by hand, and random ones.

use std::collections::{BTreeMap, BTreeSet};

use readpath_core::splitmix;
use readpath_remote::planner::{
    Advice, Arrival, Event, FILE_BYTES_MAX, Fetch, FileId, HandleId, Planner, PlannerError,
    PlannerOptions, ReadFailure, ReadId, Time,
};

#[path = "content/mod.rs"]
mod content;

use content::content;

const PAGE: u64 = 4096;

/// The bytes of a range of version `version` of a file. Any two versions differ in most places.
fn bytes(file: u64, version: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    content(version ^ file << 32, range)
}

/// A planner that reads only the requested pages.
fn planner(memory_pages: u64, part_pages: u64, fetches_max: u32) -> Planner {
    let options = PlannerOptions {
        memory_bytes: memory_pages * PAGE,
        part_bytes: part_pages * PAGE,
        fetches_max,
        readahead: "none".to_owned(),
        ..PlannerOptions::default()
    };
    Planner::new(&options).unwrap()
}

fn open(planner: &mut Planner, pages: u64) -> (FileId, HandleId) {
    let file = planner.open_file(pages * PAGE, "0").unwrap();
    (file, planner.open(file).unwrap())
}

/// All events that are due.
fn poll_all(planner: &mut Planner) -> Vec<Event> {
    std::iter::from_fn(|| planner.poll(Time::ZERO)).collect()
}

/// The fetches that are due, each with its first page and its number of pages.
fn fetches(planner: &mut Planner) -> Vec<(Fetch, u64, u64)> {
    let fetches = poll_all(planner).into_iter().map(|event| match event {
        Event::Fetch(fetch) => fetch,
        Event::Ended(read) => panic!("{read:?} has ended"),
    });
    let pages = |fetch: Fetch| {
        let range = fetch.range.clone();
        (fetch, range.start / PAGE, (range.end - range.start).div_ceil(PAGE))
    };
    fetches.map(pages).collect()
}

/// Delivers a fetch of version 0 of file 0.
fn deliver(planner: &mut Planner, fetch: &Fetch) -> Arrival {
    assert_eq!(
        planner.fill(Time::ZERO, fetch.id, &bytes(0, 0, fetch.range.clone())),
        Arrival::Accepted
    );
    planner.finish(Time::ZERO, fetch.id)
}

fn read(planner: &mut Planner, handle: HandleId, offset: u64, bytes: u64) -> ReadId {
    planner.start(Time::ZERO, handle, offset, bytes).unwrap()
}

#[test]
fn two_reads_of_one_page_cause_one_fetch() {
    let mut planner = planner(64, 16, 8);
    let (_, handle) = open(&mut planner, 10);
    let first = read(&mut planner, handle, 100, 200);
    let due = fetches(&mut planner);
    assert_eq!((due.len(), due[0].1, due[0].2), (1, 0, 1));
    let second = read(&mut planner, handle, 4000, 96);
    assert_eq!(poll_all(&mut planner), []);
    assert_eq!(deliver(&mut planner, &due[0].0), Arrival::Accepted);
    assert_eq!(poll_all(&mut planner), [Event::Ended(first), Event::Ended(second)]);
    assert_eq!(planner.take(Time::ZERO, first), Some(Ok(bytes(0, 0, 100..300))));
    assert_eq!(planner.take(Time::ZERO, second), Some(Ok(bytes(0, 0, 4000..4096))));
    assert_eq!(planner.take(Time::ZERO, second), None);
    assert!(planner.is_idle());
}

/// A read of 40 pages is cut into parts of 16, 16 and 8, which arrive in any order.
#[test]
fn large_read_is_cut_into_parallel_parts() {
    let mut planner = planner(128, 16, 8);
    let (_, handle) = open(&mut planner, 100);
    let whole = read(&mut planner, handle, 2 * PAGE, 40 * PAGE);
    let due = fetches(&mut planner);
    let ranges: Vec<(u64, u64)> = due.iter().map(|&(_, first, pages)| (first, pages)).collect();
    assert_eq!(ranges, [(2, 16), (18, 16), (34, 8)]);
    for index in [2, 0, 1] {
        assert_eq!(planner.result(whole), None);
        deliver(&mut planner, &due[index].0);
        poll_all(&mut planner);
    }
    let mut buffer = vec![0; 50 * PAGE as usize];
    assert_eq!(planner.take_into(Time::ZERO, whole, &mut buffer), Some(Ok(40 * PAGE)));
    assert_eq!(buffer[..40 * PAGE as usize], bytes(0, 0, 2 * PAGE..42 * PAGE));
}

/// A prefetch of 30 pages waits in parts of 2 for the eight fetches, of which it may use seven. A
/// demand read then leaves at once.
#[test]
fn demand_does_not_wait_for_prefetches() {
    let mut planner = planner(256, 2, 8);
    let (_, handle) = open(&mut planner, 100);
    planner.advise(Time::ZERO, handle, Advice::WillNeed, 0..30 * PAGE).unwrap();
    assert_eq!(fetches(&mut planner).len(), 7);
    read(&mut planner, handle, 90 * PAGE, 10);
    let due = fetches(&mut planner);
    assert_eq!((due.len(), due[0].1), (1, 90));
}

/// The read of 80 pages, of 128 pages of memory, takes a buffer of its own. Both ends lie within a
/// sector, and the file ends within one.
#[test]
fn read_of_half_of_the_memory_bypasses_the_cache() {
    let mut planner = planner(128, 16, 8);
    let file = planner.open_file(80 * PAGE + 77, "0").unwrap();
    let handle = planner.open(file).unwrap();
    for _ in 0..2 {
        let whole = read(&mut planner, handle, 5, 1 << 40);
        let due = fetches(&mut planner);
        assert_eq!(due.len(), 6);
        due.iter()
            .rev()
            .for_each(|(fetch, ..)| assert_eq!(deliver(&mut planner, fetch), Arrival::Accepted));
        assert_eq!(poll_all(&mut planner), [Event::Ended(whole)]);
        let taken = planner.take(Time::ZERO, whole).unwrap().unwrap();
        assert_eq!(taken.capacity(), taken.len());
        assert!(taken == bytes(0, 0, 5..80 * PAGE + 77));
    }
    assert!(planner.is_idle());
}

#[test]
fn changed_generation_fails_reads_in_progress_and_drops_pages() {
    let mut planner = planner(64, 16, 8);
    let (file, handle) = open(&mut planner, 10);
    let taken = read(&mut planner, handle, 0, 10);
    let due = fetches(&mut planner);
    deliver(&mut planner, &due[0].0);
    assert_eq!(poll_all(&mut planner), [Event::Ended(taken)]);
    let waiting = read(&mut planner, handle, PAGE, 10);
    let late = fetches(&mut planner).remove(0).0;
    assert_eq!(planner.set_generation(Time::ZERO, file, 10 * PAGE, "0"), Ok(false));
    assert_eq!(planner.set_generation(Time::ZERO, file, 5 * PAGE, "1"), Ok(true));
    assert_eq!(poll_all(&mut planner), [Event::Ended(waiting)]);
    assert_eq!(planner.take(Time::ZERO, waiting), Some(Err(ReadFailure::Changed)));
    assert_eq!(planner.fill(Time::ZERO, late.id, b"old"), Arrival::Ignored);
    assert_eq!(planner.finish(Time::ZERO, late.id), Arrival::Ignored);
    // A read that had ended before keeps its bytes.
    assert_eq!(planner.take(Time::ZERO, taken), Some(Ok(bytes(0, 0, 0..10))));
    // The page is fetched again, in the new generation and its size.
    let again = read(&mut planner, handle, 0, 1 << 30);
    let due = fetches(&mut planner);
    assert_eq!((due[0].0.generation.as_str(), due[0].1, due[0].2), ("1", 0, 5));
    deliver(&mut planner, &due[0].0);
    poll_all(&mut planner);
    assert_eq!(planner.result(again), Some(Ok(5 * PAGE)));
}

#[test]
fn answers_of_wrong_length_fail_their_reads() {
    let mut planner = planner(64, 16, 8);
    let (_, handle) = open(&mut planner, 10);
    for extra in [-1, 1] {
        let failing = read(&mut planner, handle, 50, 100);
        let fetch = fetches(&mut planner).remove(0).0;
        let data = vec![0; (PAGE as i64 + extra) as usize];
        let filled = planner.fill(Time::ZERO, fetch.id, &data);
        let finished = planner.finish(Time::ZERO, fetch.id);
        let expected = match extra {
            1 => [Arrival::WrongLength, Arrival::Ignored],
            _ => [Arrival::Accepted, Arrival::WrongLength],
        };
        assert_eq!([filled, finished], expected);
        assert_eq!(poll_all(&mut planner), [Event::Ended(failing)]);
        let failure = Err(ReadFailure::WrongLength { offset: 50 });
        assert_eq!(planner.take(Time::ZERO, failing), Some(failure));
    }
    let failing = read(&mut planner, handle, 50, 100);
    let fetch = fetches(&mut planner).remove(0).0;
    assert_eq!(planner.fail(Time::ZERO, fetch.id, 42), Arrival::Accepted);
    poll_all(&mut planner);
    let failure = Err(ReadFailure::Fetch { offset: 50, reason: 42 });
    assert_eq!(planner.take(Time::ZERO, failing), Some(failure));
    assert!(planner.is_idle());
}

/// The file of ten pages has become shorter: 6,000 bytes are left. The read of the whole page has
/// its bytes. The others fail at the first missing byte or behind it.
#[test]
fn reads_past_the_end_of_a_shorter_file_fail_alone() {
    let mut planner = planner(64, 16, 8);
    let (_, handle) = open(&mut planner, 10);
    let [within, across, behind] = [(0, 4000), (5000, 2000), (30_000, 10)]
        .map(|(offset, count)| read(&mut planner, handle, offset, count));
    for (fetch, first, _) in fetches(&mut planner) {
        let end = fetch.range.end.min(6000).max(fetch.range.start);
        planner.fill(Time::ZERO, fetch.id, &bytes(0, 0, first * PAGE..end));
        assert_eq!(planner.finish_at_file_end(Time::ZERO, fetch.id), Arrival::Accepted);
    }
    // A fetch for several readers that ends early is tried again for each of them.
    while !poll_all(&mut planner).iter().all(|event| matches!(event, Event::Ended(_))) {}
    assert!(planner.take(Time::ZERO, within) == Some(Ok(bytes(0, 0, 0..4000))));
    for (read, range) in [(across, 6000..7000), (behind, 30_000..30_010)] {
        match planner.take(Time::ZERO, read) {
            Some(Err(ReadFailure::Shrunk { offset })) => assert!(range.contains(&offset)),
            other => panic!("{:?}", other.map(|bytes| bytes.map(|bytes| bytes.len()))),
        }
    }
    assert!(planner.is_idle());
}

/// The upper read starts first. Without `begin_started` the lower one begins first.
#[test]
fn reads_begin_in_the_order_of_their_starts_on_request() {
    for is_ordered in [false, true] {
        let mut planner = planner(24, 16, 8);
        let (_, handle) = open(&mut planner, 100);
        for page in [50, 0] {
            read(&mut planner, handle, page * PAGE, 10 * PAGE);
            if is_ordered {
                planner.begin_started(Time::ZERO);
            }
        }
        let begun: Vec<u64> = fetches(&mut planner).iter().map(|fetch| fetch.1).collect();
        assert_eq!(begun, if is_ordered { [50, 0] } else { [0, 50] });
    }
}

/// The abandoned read ends later than it was abandoned, and the other one gets the page.
#[test]
fn abandoned_read_leaves_its_fetch_to_others() {
    let mut planner = planner(64, 16, 8);
    let (_, handle) = open(&mut planner, 10);
    let [abandoned, other] = [0, 1].map(|offset| read(&mut planner, handle, offset, 10));
    let fetch = fetches(&mut planner).remove(0).0;
    planner.abandon(Time::ZERO, abandoned);
    planner.close(handle).unwrap();
    deliver(&mut planner, &fetch);
    assert_eq!(poll_all(&mut planner), [Event::Ended(other)]);
    planner.abandon(Time::ZERO, other);
    assert!(planner.is_idle());
}

#[test]
fn commands_with_bad_arguments_are_errors() {
    let with = |options: PlannerOptions| Planner::new(&options).unwrap_err();
    let options = PlannerOptions::default;
    let error = with(PlannerOptions { memory_bytes: 65_535, ..options() });
    assert_eq!(error, PlannerError::MemoryTooSmall { memory_bytes: 65_535 });
    for part_bytes in [0, 4097, 1 << 31] {
        let error = with(PlannerOptions { part_bytes, ..options() });
        assert_eq!(error, PlannerError::BadPartSize { part_bytes });
    }
    let error = with(PlannerOptions { readahead: "magic".to_owned(), ..options() });
    assert!(matches!(error, PlannerError::Config(_)), "{error}");
    let bytes = 1 << 62;
    let error = with(PlannerOptions { memory_bytes: bytes, ..options() });
    assert_eq!(error, PlannerError::OutOfMemory { bytes });
    let mut planner = planner(64, 16, 8);
    let file_bytes = FILE_BYTES_MAX + 1;
    let error = planner.open_file(file_bytes, "0").unwrap_err();
    assert_eq!(error, PlannerError::FileTooLarge { file_bytes });
    let (file, handle) = open(&mut planner, 1);
    assert_eq!(planner.close_file(Time::ZERO, file), Err(PlannerError::HasHandles));
    planner.close(handle).unwrap();
    assert_eq!(planner.close(handle), Err(PlannerError::NotOpen));
    assert_eq!(planner.start(Time::ZERO, handle, 0, 1), Err(PlannerError::NotOpen));
    assert_eq!(planner.close_file(Time::ZERO, file), Ok(()));
    assert_eq!(planner.close_file(Time::ZERO, file), Err(PlannerError::NotOpen));
}

/// Random commands and arrivals. The model has the version of each file, and of each open read.
struct Model {
    state: u64,
    planner: Planner,
    files: Vec<ModelFile>,
    fetches: Vec<Fetch>,
    reads: BTreeMap<ReadId, ModelRead>,
    ended: BTreeSet<ReadId>,
    now: Time,
    counts: [u64; 4],
}

struct ModelFile {
    id: FileId,
    handles: Vec<HandleId>,
    version: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct ModelRead {
    file: usize,
    version: u64,
    offset: u64,
    bytes: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut state = seed;
        let readahead = ["adaptive", "none", "ondemand"][splitmix::next(&mut state) as usize % 3];
        let options = PlannerOptions {
            memory_bytes: (16 + splitmix::next(&mut state) % 300) * PAGE,
            part_bytes: (1 + splitmix::next(&mut state) % 20) * PAGE,
            fetches_max: 1 + (splitmix::next(&mut state) % 12) as u32,
            reads_max: 40,
            readahead: readahead.to_owned(),
        };
        println!("seed {seed}: {options:?}");
        let mut planner = Planner::new(&options).unwrap();
        let files = (0..3).map(|_| {
            let (version, bytes) = (0, splitmix::next(&mut state) % (400 * PAGE));
            let id = planner.open_file(bytes, "0").unwrap();
            let handles = (0..2).map(|_| planner.open(id).unwrap()).collect();
            ModelFile { id, handles, version, bytes }
        });
        let files = files.collect();
        let (fetches, reads, ended) = Default::default();
        Model { state, planner, files, fetches, reads, ended, now: Time::ZERO, counts: [0; 4] }
    }

    fn below(&mut self, limit: u64) -> u64 {
        splitmix::next(&mut self.state) % limit.max(1)
    }

    fn poll(&mut self) {
        while let Some(event) = self.planner.poll(self.now) {
            match event {
                Event::Fetch(fetch) => self.fetches.push(fetch),
                Event::Ended(read) => assert!(self.ended.insert(read), "{read:?} ends once"),
            }
        }
    }

    fn start(&mut self) {
        let file = self.below(3) as usize;
        let (offset, size) = (self.below(self.files[file].bytes * 9 / 8), self.below(60 * PAGE));
        let which = self.below(2) as usize;
        let handle = self.files[file].handles[which];
        match self.planner.start(self.now, handle, offset, size) {
            Ok(id) => {
                let ModelFile { version, bytes: file_bytes, .. } = self.files[file];
                let bytes = size.min(file_bytes.saturating_sub(offset));
                self.reads.insert(id, ModelRead { file, version, offset, bytes });
            }
            Err(error) => assert_eq!(error, PlannerError::TooManyReads { reads_max: 40 }),
        }
    }

    /// Ends a fetch: mostly with its bytes in pieces, sometimes with a failure or a wrong length.
    fn arrive(&mut self) {
        if self.fetches.is_empty() {
            return;
        }
        let index = self.below(self.fetches.len() as u64) as usize;
        let fetch = self.fetches.swap_remove(index);
        let file = self.files.iter().position(|file| file.id == fetch.file);
        let file = file.map_or(0, |file| file as u64);
        let version: u64 = fetch.generation.as_str().parse().unwrap();
        let mut data = bytes(file, version, fetch.range.clone());
        match self.below(12) {
            0 => {
                self.planner.fail(self.now, fetch.id, 7);
                return;
            }
            1 => data.truncate(data.len() / 2),
            2 => data.push(0),
            _ => {}
        }
        let split = self.below(data.len() as u64) as usize;
        self.planner.fill(self.now, fetch.id, &data[..split]);
        self.planner.fill(self.now, fetch.id, &data[split..]);
        self.planner.finish(self.now, fetch.id);
    }

    fn change(&mut self) {
        let index = self.below(3) as usize;
        let bytes = self.below(400 * PAGE);
        let file = &mut self.files[index];
        (file.version, file.bytes) = (file.version + 1, bytes);
        let generation = file.version.to_string();
        let changed = self.planner.set_generation(self.now, file.id, bytes, generation.as_str());
        assert_eq!(changed, Ok(true));
    }

    /// Closes one handle, or a whole file, and opens another in its place.
    fn reopen(&mut self) {
        let index = self.below(3) as usize;
        let is_whole = self.below(4) == 0;
        let file = &mut self.files[index];
        for handle in file.handles.drain(if is_whole { 0.. } else { 1.. }) {
            self.planner.close(handle).unwrap();
        }
        if is_whole {
            self.planner.close_file(self.now, file.id).unwrap();
            file.version += 1;
            file.id =
                self.planner.open_file(file.bytes, file.version.to_string().as_str()).unwrap();
        }
        while file.handles.len() < 2 {
            file.handles.push(self.planner.open(file.id).unwrap());
        }
    }

    /// Takes the bytes of an ended read, and compares them with its version of the file.
    fn take(&mut self) {
        let Some(id) = self.ended.pop_first() else { return };
        let read = self.reads.remove(&id).unwrap();
        let ModelRead { file, version, offset, bytes: count, .. } = read;
        let is_current = version == self.files[file].version;
        match self.planner.take(self.now, id).unwrap() {
            Ok(data) => {
                assert!(data == bytes(file as u64, version, offset..offset + count), "{read:?}");
                self.counts[0] += 1;
            }
            Err(ReadFailure::Changed | ReadFailure::Closed) => {
                assert!(!is_current, "{read:?}");
                self.counts[1] += 1;
            }
            Err(ReadFailure::Fetch { offset, reason: 7 } | ReadFailure::WrongLength { offset }) => {
                assert!((read.offset..read.offset + count).contains(&offset), "{read:?}");
                self.counts[2] += 1;
            }
            Err(other) => panic!("{read:?}: {other}"),
        }
    }

    fn abandon(&mut self) {
        let index = self.below(self.reads.len() as u64) as usize;
        if let Some(&id) = self.reads.keys().nth(index) {
            self.planner.abandon(self.now, id);
            self.reads.remove(&id);
            self.ended.remove(&id);
            self.counts[3] += 1;
        }
    }

    fn step(&mut self) {
        self.now = Time(self.now.0 + self.below(20_000_000));
        match self.below(100) {
            0..40 => self.start(),
            40..70 => self.arrive(),
            70..93 => self.take(),
            93..96 => self.abandon(),
            96..98 => self.reopen(),
            98 => {
                let file = self.below(3) as usize;
                let (first, count) = (self.below(100 * PAGE), self.below(50 * PAGE));
                let advice = [Advice::WillNeed, Advice::DontNeed][self.below(2) as usize];
                let handle = self.files[file].handles[0];
                self.planner.advise(self.now, handle, advice, first..first + count).unwrap();
            }
            _ => self.change(),
        }
        if self.below(3) > 0 {
            self.poll();
        }
    }
}

/// Every read returns the bytes of its version, or fails for a reason that the model has too. At
/// the end all reads end, and the planner has nothing in flight.
#[test]
fn random_reads_arrivals_and_changes_return_no_wrong_byte() {
    let mut counts = [0; 4];
    for seed in 0..60 {
        let mut model = Model::new(seed);
        (0..2_000).for_each(|_| model.step());
        model.poll();
        while !model.fetches.is_empty() || !model.ended.is_empty() {
            model.arrive();
            model.take();
            model.poll();
        }
        assert!(model.reads.is_empty(), "{:?}", model.reads);
        assert!(model.planner.is_idle());
        (0..4).for_each(|index| counts[index] += model.counts[index]);
    }
    println!("right, changed, failed, abandoned: {counts:?}");
    assert!(counts.iter().all(|&count| count > 1_000), "{counts:?}");
}

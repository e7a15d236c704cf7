//! Random operations of several tasks, compared with the history of the objects.
//!
//! Each write has a version of its own, from which all bytes of the object follow. A get must
//! return bytes of one version that the object may have had. That version is not older than the
//! newest write through the store that ended before the get. Nor is it older than the version
//! `max_age` before it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use readpath_core::splitmix;
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
use tokio::time::Instant;

use crate::support::{Faults, TestStore, bytes_of, content};

/// Number of objects, of tasks, and of operations of each task.
const OBJECTS: usize = 4;
const TASKS: u64 = 6;
const OPERATIONS: u64 = 150;

/// A write of an object.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// Size of the object; `None` after a delete.
    bytes: Option<u64>,
    version: u64,
    /// True if it passed the store under test.
    is_through: bool,
    /// Time and number of the event at its end; `None` while it is in progress.
    end: Option<(Instant, u64)>,
}

/// A world of objects: a store under test, and the history of each object.
struct World {
    seed: u64,
    max_age: Duration,
    store: ReadpathStore<TestStore<InMemory>>,
    histories: [RefCell<Vec<Write>>; OBJECTS],
    /// One writer of an object at a time.
    writers: [tokio::sync::Mutex<()>; OBJECTS],
    events: Cell<u64>,
    versions: Cell<u64>,
    /// Right answers, and errors by faults.
    counts: [Cell<u64>; 2],
}

/// A generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        splitmix::next(&mut self.0) % limit.max(1)
    }
}

fn path_of(object: usize) -> Path {
    Path::from(format!("object-{object}"))
}

fn next(counter: &Cell<u64>) -> u64 {
    counter.set(counter.get() + 1);
    counter.get()
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let every = |random: &mut Random| [0, 5, 7, 11][random.below(4) as usize];
        let faults = Faults {
            errors: every(&mut random),
            truncations: every(&mut random),
            extra_bytes: every(&mut random),
            breaks: every(&mut random),
            changes: 0,
        };
        let readahead = ["adaptive", "none"][random.below(2) as usize].to_owned();
        let planner = PlannerOptions {
            memory_bytes: (16 + random.below(150)) * 4096,
            part_bytes: (1 + random.below(16)) * 4096,
            fetches_max: 1 + random.below(10) as u32,
            readahead,
            ..PlannerOptions::default()
        };
        let max_age = Duration::from_millis([0, 100, 10_000][random.below(3) as usize]);
        let objects_max = [2, 100][random.below(2) as usize];
        let (retries_max, defaults) = (3, StoreOptions::default());
        let options = StoreOptions { planner, max_age, retries_max, objects_max, ..defaults };
        println!("seed {seed}: {options:?}, {faults:?}");
        let test_store = TestStore {
            latency: Duration::from_millis(20),
            jitter: Duration::from_millis(30),
            faults,
            ..TestStore::new(InMemory::new())
        };
        World {
            seed,
            max_age,
            store: ReadpathStore::new(test_store, options, TokioRuntime::current()).unwrap(),
            histories: Default::default(),
            writers: Default::default(),
            events: Cell::new(0),
            versions: Cell::new(0),
            counts: Default::default(),
        }
    }

    /// Writes or deletes an object, through the store under test or past it.
    async fn write(&self, object: usize, bytes: Option<u64>, is_through: bool, in_parts: bool) {
        let _writer = self.writers[object].lock().await;
        let (path, version) = (path_of(object), next(&self.versions));
        let write = Write { bytes, version, is_through, end: None };
        self.histories[object].borrow_mut().push(write);
        let under: &dyn ObjectStore = match is_through {
            true => &self.store,
            false => self.store.inner(),
        };
        match bytes {
            Some(bytes) if in_parts => {
                let mut upload = under.put_multipart(&path).await.unwrap();
                let half = bytes / 2;
                upload.put_part(content(version, 0..half).into()).await.unwrap();
                upload.put_part(content(version, half..bytes).into()).await.unwrap();
                upload.complete().await.unwrap();
            }
            Some(bytes) => {
                under.put(&path, content(version, 0..bytes).into()).await.unwrap();
            }
            None => under.delete(&path).await.unwrap(),
        }
        let end = (Instant::now(), next(&self.events));
        self.histories[object].borrow_mut().last_mut().unwrap().end = Some(end);
    }

    /// The versions that a get may return that began at this time and event, and ends now.
    fn allowed(&self, object: usize, (time, event): (Instant, u64)) -> Vec<Write> {
        let history = self.histories[object].borrow();
        let is_certain = |write: &Write| {
            write.end.is_some_and(|(end_time, end_event)| {
                write.is_through && end_event < event || end_time + self.max_age < time
            })
        };
        let oldest = history.iter().rposition(is_certain).unwrap_or(0);
        history[oldest..].to_vec()
    }

    /// Compares the bytes of ranges with the allowed versions: all must be of one.
    fn check(
        &self,
        object: usize,
        start: (Instant, u64),
        size: Option<u64>,
        got: &[(Range<u64>, Vec<u8>)],
    ) {
        let allowed = self.allowed(object, start);
        let is_of = |write: &&Write| {
            let Some(bytes) = write.bytes else { return false };
            size.is_none_or(|size| size == bytes)
                && got.iter().all(|(range, data)| {
                    // A range ends at the end of the object, at the latest.
                    let range = range.start..range.end.min(bytes);
                    !range.is_empty() && *data == content(write.version, range)
                })
        };
        let is_right = allowed.iter().any(|write| is_of(&write));
        let ranges: Vec<_> = got.iter().map(|(range, _)| range).collect();
        assert!(is_right, "seed {}: {object} {ranges:?} of {size:?}: {allowed:?}", self.seed);
        next(&self.counts[0]);
    }

    /// Checks that an error has its reason in an allowed version, or in the faults.
    fn check_error(&self, object: usize, start: (Instant, u64), first: u64, error: &Error) {
        let allowed = self.allowed(object, start);
        let is_right = match error {
            Error::NotFound { .. } => allowed.iter().any(|write| write.bytes.is_none()),
            Error::Generic { .. } => {
                let is_short = |write: &Write| write.bytes.is_some_and(|bytes| bytes <= first);
                let text = error.to_string();
                let is_fault = ["is busy", "broke", "longer", "ended at"];
                if is_fault.iter().any(|part| text.contains(part)) {
                    next(&self.counts[1]);
                    true
                } else {
                    allowed.iter().any(is_short)
                }
            }
            _ => false,
        };
        assert!(is_right, "seed {}: {object} from {first}: {error}: {allowed:?}", self.seed);
    }

    /// A get of one or more ranges, or of the whole object.
    async fn get(&self, object: usize, random: &mut Random) {
        let (path, start) = (path_of(object), (Instant::now(), next(&self.events)));
        let first = random.below(200_000);
        let range = first..first + 16 + random.below(60_000);
        match random.below(4) {
            0 => {
                let ranges: Vec<Range<u64>> = (0..1 + random.below(5))
                    .map(|_| {
                        let first = random.below(100_000);
                        first..first + 16 + random.below(9_000)
                    })
                    .collect();
                let last = ranges.iter().map(|range| range.start).max().unwrap();
                match self.store.get_ranges(&path, &ranges).await {
                    Ok(all) => {
                        let all = all.into_iter().map(|data| data.to_vec());
                        let got: Vec<_> = ranges.into_iter().zip(all).collect();
                        self.check(object, start, None, &got);
                    }
                    Err(error) => self.check_error(object, start, last, &error),
                }
            }
            kind => {
                let asked = match kind {
                    1 => None,
                    2 => Some(GetRange::Bounded(range)),
                    _ => Some(GetRange::Suffix(16 + random.below(60_000))),
                };
                let first = if kind == 2 { first } else { 0 };
                let options = GetOptions::new().with_range(asked);
                let result = match self.store.get_opts(&path, options).await {
                    Ok(result) => result,
                    Err(error) => return self.check_error(object, start, first, &error),
                };
                let (size, range) = (result.meta.size, result.range.clone());
                match bytes_of(result).await {
                    Ok(data) => self.check(object, start, Some(size), &[(range, data)]),
                    Err(error) => self.check_error(object, start, first, &error),
                }
            }
        }
    }

    /// The operations of a task.
    async fn task(self: Rc<World>, number: u64) {
        let mut random = Random(self.seed << 8 | number);
        for _ in 0..OPERATIONS {
            let object = random.below(OBJECTS as u64) as usize;
            match random.below(20) {
                0 => {
                    let bytes = Some(random.below(250_000)).filter(|_| random.below(6) > 0);
                    let is_through = random.below(2) == 0;
                    let in_parts = random.below(4) == 0;
                    self.write(object, bytes, is_through, in_parts).await;
                }
                1 => tokio::time::sleep(Duration::from_millis(random.below(300))).await,
                2 => {
                    // A get that is dropped at some time.
                    let limit = Duration::from_millis(random.below(60));
                    let _ = tokio::time::timeout(limit, self.get(object, &mut random)).await;
                }
                3 => {
                    let start = (Instant::now(), next(&self.events));
                    match self.store.head(&path_of(object)).await {
                        Ok(meta) => self.check(object, start, Some(meta.size), &[]),
                        Err(error) => self.check_error(object, start, 0, &error),
                    }
                }
                _ => self.get(object, &mut random).await,
            }
        }
    }
}

/// Runs the tasks of a seed. Returns the counts of right answers and of errors by faults.
fn run(seed: u64) -> [u64; 2] {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let world = Rc::new(World::new(seed));
        for object in 0..OBJECTS {
            world.write(object, Some(100_000), true, false).await;
        }
        let tasks: Vec<_> = (0..TASKS)
            .map(|number| tokio::task::spawn_local(Rc::clone(&world).task(number)))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        [world.counts[0].get(), world.counts[1].get()]
    })
}

#[test]
fn random_gets_writes_faults_and_drops_return_no_wrong_byte() {
    let mut totals = [0; 2];
    for seed in 0..40 {
        let counts = run(seed);
        (0..2).for_each(|index| totals[index] += counts[index]);
    }
    println!("right answers, errors by faults: {totals:?}");
    assert!(totals[0] > 20_000 && totals[1] < totals[0] / 20, "{totals:?}");
}

//! Access patterns in virtual time: requests, bytes and time, compared with the network.
//!
//! The store answers after 20 ms, with 100 MB/s for each connection, over a network of 125 MB/s
//! (1 Gbit/s). Each figure is of the reads after the first quarter: until then the readahead of
//! each stream grows, one round trip a step.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use readpath_core::splitmix;
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
use tokio::time::Instant;

use crate::support::{Link, TestStore, content};

const MIB: u64 = 1 << 20;
/// Size of the object.
const OBJECT_BYTES: u64 = 256 * MIB;
/// Bytes a second of the network that all connections share.
const NETWORK_BANDWIDTH: u64 = 125_000_000;
/// Largest number of requests in flight, the planner's default.
const FETCHES_MAX: u64 = 64;
/// Size of one read.
const READ_BYTES: u64 = 256 << 10;
/// Time of one read by the plain store: 20 ms, and 256 KiB at 100 MB/s.
const PLAIN_READ: Duration = Duration::from_micros(22_621);
/// Number of reads of the whole object.
const READS: u64 = OBJECT_BYTES / READ_BYTES;

/// An object in a slow store, below a planner with 32 MiB.
struct Bench {
    path: Path,
    bytes: Bytes,
    store: ReadpathStore<TestStore<InMemory>>,
}

/// Figures of a pattern.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Read bytes in MB per second of virtual time; infinite if no read waited.
    megabytes_per_second: f64,
    /// Bytes of all bodies, per read byte.
    fetched_ratio: f64,
    requests: u64,
}

impl Bench {
    async fn new() -> Arc<Bench> {
        static BYTES: OnceLock<Bytes> = OnceLock::new();
        let bytes = BYTES.get_or_init(|| content(0, 0..OBJECT_BYTES).into()).clone();
        let (path, memory) = (Path::from("object"), InMemory::new());
        memory.put(&path, bytes.clone().into()).await.unwrap();
        let slow = TestStore {
            latency: Duration::from_millis(20),
            bandwidth: Some(100_000_000),
            link: Arc::new(Link::new(Some(NETWORK_BANDWIDTH))),
            ..TestStore::new(memory)
        };
        let planner = PlannerOptions { memory_bytes: 32 * MIB, ..PlannerOptions::default() };
        let options = StoreOptions { planner, ..StoreOptions::default() };
        let store = ReadpathStore::new(slow, options, TokioRuntime::current()).unwrap();
        Arc::new(Bench { path, bytes, store })
    }

    /// Reads at an offset, and compares the bytes.
    async fn read(&self, offset: u64) {
        let range = offset..offset + READ_BYTES;
        let read = self.store.get_range(&self.path, range.clone()).await.unwrap();
        assert!(read == self.bytes.slice(range.start as usize..range.end as usize));
    }

    /// Reads at these offsets, one after the other. Returns the time of those after the first
    /// quarter.
    async fn read_in_turn(&self, offsets: Vec<u64>) -> Duration {
        let quarter = offsets.len() / 4;
        let mut start = Instant::now();
        for (index, offset) in offsets.into_iter().enumerate() {
            if index == quarter {
                start = Instant::now();
            }
            self.read(offset).await;
        }
        start.elapsed()
    }

    /// Figures of `reads` reads, of which three quarters took `time`.
    fn figures(&self, reads: u64, time: Duration) -> Figures {
        let (slow, read_bytes) = (self.store.inner(), (reads * READ_BYTES) as f64);
        let bodies_max = slow.bodies[1].load(Ordering::Relaxed);
        assert!(bodies_max <= FETCHES_MAX, "{bodies_max} bodies in flight");
        Figures {
            megabytes_per_second: read_bytes * 0.75 / time.as_secs_f64() / 1e6,
            fetched_ratio: slow.body_bytes() as f64 / read_bytes,
            requests: slow.gets() + slow.heads(),
        }
    }
}

/// Reads at these offsets by one reader, one after the other.
async fn one_reader(offsets: Vec<u64>) -> Figures {
    let (bench, reads) = (Bench::new().await, offsets.len() as u64);
    let time = bench.read_in_turn(offsets).await;
    bench.figures(reads, time)
}

/// Offsets of the reads of an eighth of the object.
fn eighth(index: u64) -> Vec<u64> {
    (0..READS / 8).map(|read| (index * READS / 8 + read) * READ_BYTES).collect()
}

/// Shuffles each `count` neighbours.
fn shuffle_windows(offsets: &mut [u64], count: usize) {
    let mut state = 1;
    for window in offsets.chunks_mut(count) {
        for index in (1..window.len()).rev() {
            window.swap(index, splitmix::next(&mut state) as usize % (index + 1));
        }
    }
}

/// Eight cursors, each in its eighth of the object, by one task in turn.
async fn cursors_of_one_task() -> Figures {
    let eighths: Vec<Vec<u64>> = (0..8).map(eighth).collect();
    let turns = (0..eighths[0].len()).flat_map(|read| eighths.iter().map(move |it| it[read]));
    one_reader(turns.collect()).await
}

/// Eight cursors, each in its eighth of the object, in tasks of their own.
async fn cursors_of_eight_tasks() -> Figures {
    let bench = Bench::new().await;
    let tasks: Vec<_> = (0..8)
        .map(|index| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move { bench.read_in_turn(eighth(index)).await })
        })
        .collect();
    let times = join_all(tasks).await.into_iter().map(Result::unwrap);
    bench.figures(READS, times.max().unwrap())
}

/// Eight reads at a time that start in a random order, and wait for each other.
async fn shuffled_arrivals() -> Figures {
    let bench = Bench::new().await;
    let mut offsets: Vec<u64> = (0..8).flat_map(eighth).collect();
    shuffle_windows(&mut offsets, 8);
    let mut start = Instant::now();
    for (index, window) in offsets.chunks(8).enumerate() {
        if index == offsets.len() / 8 / 4 {
            start = Instant::now();
        }
        join_all(window.iter().map(|&offset| bench.read(offset))).await;
    }
    bench.figures(READS, start.elapsed())
}

/// Seven reads at random places of the second half, then one of a stream in the first half. The
/// time is the stream's: a far read cannot be known before. All of them together take no longer
/// than the plain store does.
async fn stream_with_far_reads() -> Figures {
    let (bench, mut state) = (Bench::new().await, 1);
    let begin = Instant::now();
    let mut time = Duration::ZERO;
    let reads = READS / 8;
    for index in 0..reads {
        for _ in 0..7 {
            let read = READS / 2 + splitmix::next(&mut state) % (READS / 2);
            bench.read(read * READ_BYTES).await;
        }
        let start = Instant::now();
        bench.read(index * READ_BYTES).await;
        if index >= reads / 4 {
            time += start.elapsed();
        }
    }
    let (all, plain) = (begin.elapsed(), PLAIN_READ * 8 * reads as u32);
    assert!(all < plain, "{all:?}, {plain:?}");
    bench.figures(reads, time)
}

/// A reader that reads each `count` neighbours in a random order, and then the next ones.
async fn shuffled_reader(count: usize) -> Figures {
    let mut offsets: Vec<u64> = (0..8).flat_map(eighth).collect();
    shuffle_windows(&mut offsets, count);
    one_reader(offsets).await
}

/// Reads at random places, one after the other.
async fn random_reader() -> Figures {
    let mut state = 2;
    let offsets = (0..READS).map(|_| splitmix::next(&mut state) % READS * READ_BYTES);
    one_reader(offsets.collect()).await
}

/// Share of the network that the plain store has with rounds of this number of reads.
fn plain_share(round: u32) -> f64 {
    let network_read = READ_BYTES as f64 / NETWORK_BANDWIDTH as f64;
    let bytes_time = f64::from(round) * network_read;
    // The bodies of a round share the network.
    let round_time = PLAIN_READ.as_secs_f64().max(0.02 + bytes_time);
    bytes_time / round_time
}

/// A round of one read takes 22.6 ms, 0.093 of the network. A round of eight takes 20 ms and 16.8
/// ms for 2 MiB, 0.456 of the network.
#[tokio::test(start_paused = true)]
async fn plain_store_has_its_computed_share_of_the_network() {
    for (at_a_time, expected) in [(1_u32, 0.093), (8, 0.456)] {
        let bench = Bench::new().await;
        let start = Instant::now();
        for round in 0..20 {
            let reads = (0..at_a_time).map(|read| {
                let offset = (round * u64::from(at_a_time) + u64::from(read)) * READ_BYTES;
                bench.store.inner().get_range(&bench.path, offset..offset + READ_BYTES)
            });
            assert!(join_all(reads).await.iter().all(Result::is_ok));
        }
        let bytes = 20.0 * f64::from(at_a_time) * READ_BYTES as f64;
        let share = bytes / start.elapsed().as_secs_f64() / NETWORK_BANDWIDTH as f64;
        // The clock of the runtime has milliseconds.
        assert!((share / expected - 1.0).abs() < 0.07, "{at_a_time}: {share}");
        assert!((plain_share(at_a_time) - expected).abs() < 0.001, "{at_a_time}");
    }
}

/// Each row: its share of the network, its fetched bytes per read byte, and its requests. The
/// bounds are a little below the measured figures, and none is below the plain store. A share may
/// exceed 1: some bytes of the first quarter were ahead of the readers. No read of the stream among
/// far reads waits after the first one. A random read cannot be known before. Its reader gets one
/// read in the time of a plain one, 0.093 of the network, besides those that it finds in memory.
#[tokio::test(start_paused = true)]
async fn patterns_reach_their_share_of_the_network() {
    let ordered: Vec<u64> = (0..8).flat_map(eighth).collect();
    let skips = ordered.iter().copied().step_by(5).collect();
    let sequential = one_reader(ordered).await;
    // Eight tasks of the plain store have at most eight times the share of one.
    let (one, tasks, round) = (plain_share(1), 8.0 * plain_share(1), plain_share(8));
    let rows = [
        ("sequential", one, sequential, 1.0, 1.01, 300),
        ("eight tasks", tasks, cursors_of_eight_tasks().await, 0.9, 1.15, 450),
        ("eight cursors in turn", one, cursors_of_one_task().await, 0.9, 1.1, 350),
        ("one read in five", one, one_reader(skips).await, 0.95, 1.02, 250),
        ("far reads", one, stream_with_far_reads().await, 0.9, 9.2, 800),
        ("shuffled arrivals", round, shuffled_arrivals().await, 0.95, 1.02, 200),
        ("shuffled reader", one, shuffled_reader(8).await, 0.9, 1.05, 200),
        ("shuffled by 3", one, shuffled_reader(3).await, 0.9, 1.05, 200),
        ("shuffled by 20", one, shuffled_reader(20).await, 0.9, 1.05, 200),
        ("random reader", one, random_reader().await, 0.093, 1.1, 1024),
    ];
    let mut faults = Vec::new();
    for (name, plain, figures, share_min, fetched_max, requests_max) in rows {
        let share = figures.megabytes_per_second / (NETWORK_BANDWIDTH as f64 / 1e6);
        println!("{name}: {share:.2} of the network, plain {plain:.3}, {figures:?}");
        let is_good = share >= share_min
            && share >= plain
            && figures.fetched_ratio <= fetched_max
            && figures.requests <= requests_max;
        if !is_good {
            faults.push(name);
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
}

/// A read by the plain store takes a round trip: 20 ms and 2.6 ms for its bytes.
#[tokio::test(start_paused = true)]
async fn sequential_stream_is_ten_times_as_fast_as_the_plain_store() {
    let (plain, bench) = (Bench::new().await, Bench::new().await);
    let offsets: Vec<u64> = (0..200).map(|read| read * READ_BYTES).collect();
    let start = Instant::now();
    for &offset in &offsets[50..] {
        let range = offset..offset + READ_BYTES;
        plain.store.inner().get_range(&plain.path, range).await.unwrap();
    }
    let plain_time = start.elapsed();
    let time = bench.read_in_turn(offsets).await;
    println!("plain {plain_time:?}, planned {time:?}");
    assert!(plain_time > 10 * time, "{plain_time:?}, {time:?}");
}

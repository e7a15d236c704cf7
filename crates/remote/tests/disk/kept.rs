//! Blocks that are kept: bytes, requests, versions, budget, and admission.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use readpath_core::splitmix;
use readpath_remote::disk::{DiskOptions, DiskTier};
use readpath_remote::store::{ReadpathStore, TokioRuntime};

use crate::place::{Place, options, read, run_alone, started};
use crate::support::{KIB, MIB, TestStore, content};

type Counting = Arc<TestStore<InMemory>>;

/// Not a whole number of pages.
const OBJECT_BYTES: u64 = 3 * MIB + 5;

/// A store that counts, with version 0 of the object.
async fn counting() -> (Counting, Path) {
    let (store, path) = (TestStore::new(InMemory::new()), Path::from("folder/object"));
    store.store.put(&path, content(0, 0..OBJECT_BYTES).into()).await.unwrap();
    (Arc::new(store), path)
}

fn reset(store: &Counting) {
    for counter in [&store.gets, &store.heads, &store.body_bytes] {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Reads the object in pieces of 100,000 bytes, and compares it with the version.
async fn read_all<S: ObjectStore>(store: &ReadpathStore<S>, path: &Path, version: u64) {
    for start in (0..OBJECT_BYTES).step_by(100_000) {
        let range = start..(start + 100_000).min(OBJECT_BYTES);
        assert!(read(store, path, range.clone()).await == content(version, range));
    }
}

/// The later start has an empty memory, as another process: one request for the version.
#[tokio::test]
async fn second_start_requests_no_kept_bytes() {
    let place = Place::new();
    let (store, path) = counting().await;
    let tier = place.tier(8 * MIB);
    read_all(&started(Arc::clone(&store), &tier), &path, 0).await;
    tier.flush();
    drop(tier);
    reset(&store);
    let tier = place.tier(8 * MIB);
    read_all(&started(Arc::clone(&store), &tier), &path, 0).await;
    assert_eq!((store.gets(), store.heads(), store.body_bytes()), (0, 1, 0));
    let counters = tier.counters();
    // Pages that two pieces share come from memory, so the folder returns each byte once or more.
    assert!(counters.hit_bytes >= OBJECT_BYTES, "{counters:?}");
    assert_eq!((counters.misses, counters.writes, counters.off), (0, 0, None));
}

/// The memory has a third of the object.
#[tokio::test]
async fn pages_that_left_memory_come_from_the_folder() {
    let place = Place::new();
    let (store, path) = counting().await;
    let tier = place.tier(8 * MIB);
    let planned = started(Arc::clone(&store), &tier);
    read_all(&planned, &path, 0).await;
    tier.flush();
    reset(&store);
    for _ in 0..3 {
        read_all(&planned, &path, 0).await;
    }
    assert_eq!((store.gets(), store.heads(), store.body_bytes()), (0, 0, 0));
}

/// Pages 0 and 1, and 14 and 15, are in the folder: a read of 16 pages requests the other 12.
#[tokio::test]
async fn one_request_is_for_the_absent_part() {
    let place = Place::new();
    let (store, path) = counting().await;
    let tier = place.tier(8 * MIB);
    let planned = started(Arc::clone(&store), &tier);
    read(&planned, &path, 0..8192).await;
    read(&planned, &path, 57_344..65_536).await;
    tier.flush();
    reset(&store);
    let planned = started(Arc::clone(&store), &tier);
    let bytes = read(&planned, &path, 100..65_536).await;
    assert!(bytes == content(0, 100..65_536));
    assert_eq!((store.gets(), store.heads(), store.body_bytes()), (1, 1, 12 * 4096));
}

/// A fetch looks up a block from both sides, but counts it once. It is a hit if it has the first or
/// the last page of the fetch, and a miss otherwise.
#[tokio::test]
async fn block_of_a_fetch_is_one_hit_or_one_miss() {
    let (first, middle, last) = (0..8192, 16_384..20_480, 57_344..65_536);
    let other_block = MIB..MIB + 4096;
    for (ranges, counts) in [
        (vec![first.clone(), last.clone()], (1, 0)),
        (vec![first], (1, 0)),
        (vec![last], (1, 0)),
        (vec![middle], (0, 1)),
        (vec![other_block], (0, 1)),
    ] {
        let place = Place::new();
        let (store, path) = counting().await;
        let tier = place.tier(8 * MIB);
        for range in &ranges {
            read(&started(Arc::clone(&store), &tier), &path, range.clone()).await;
            tier.flush();
        }
        let before = tier.counters();
        let bytes = read(&started(store, &tier), &path, 0..65_536).await;
        assert!(bytes == content(0, 0..65_536));
        let after = tier.counters();
        assert_eq!((after.hits - before.hits, after.misses - before.misses), counts, "{ranges:?}");
    }
}

#[tokio::test]
async fn changed_object_never_returns_older_bytes() {
    let place = Place::new();
    let (store, path) = counting().await;
    let tier = place.tier(16 * MIB);
    for version in 0..4 {
        store.store.put(&path, content(version, 0..OBJECT_BYTES).into()).await.unwrap();
        for pass in 0..2 {
            reset(&store);
            read_all(&started(Arc::clone(&store), &tier), &path, version).await;
            tier.flush();
            assert_eq!(store.gets() == 0, pass == 1, "version {version}");
        }
    }
    // A store of another name with an equal location and ETag.
    reset(&store);
    let other = readpath_remote::store::StoreOptions {
        disk: Some(tier.store("test://other")),
        ..options(&tier)
    };
    let runtime = TokioRuntime::current();
    let planned = ReadpathStore::new(Arc::clone(&store), other, runtime);
    read_all(&planned.unwrap(), &path, 3).await;
    assert!(store.body_bytes() >= OBJECT_BYTES);
}

/// Without a strong ETag nothing is written.
#[tokio::test]
async fn object_without_a_strong_tag_is_not_written() {
    for (hides, is_weak) in [([true, false], false), ([false; 2], true)] {
        let place = Place::new();
        let age = Duration::from_secs(3600);
        let store = TestStore { hides, is_weak, age, ..TestStore::new(InMemory::new()) };
        let path = Path::from("folder/object");
        store.store.put(&path, content(0, 0..OBJECT_BYTES).into()).await.unwrap();
        let tier = place.tier(8 * MIB);
        read_all(&started(store, &tier), &path, 0).await;
        tier.flush();
        let counters = tier.counters();
        assert!(counters.unversioned > 0, "{counters:?}");
        assert_eq!((counters.writes, place.entries().len()), (0, 0));
    }
}

/// Blocks of 256 KiB, the last one of 240 KiB, fill the budget with their heads of a page. Their
/// files are removed, as another process does, or cannot be removed, like folders. The next write
/// evicts no entry.
#[tokio::test]
async fn entry_is_evicted_only_if_it_was_removed() {
    for is_removable in [true, false] {
        let place = Place::new();
        let (store, path) = counting().await;
        let tier = place.tier(MIB);
        let planned = started(Arc::clone(&store), &tier);
        read(&planned, &path, 0..(3 * 256 + 240) * KIB).await;
        tier.flush();
        assert_eq!((place.entries().len(), tier.counters().evicted), (4, 0));
        for entry in place.entries() {
            std::fs::remove_file(&entry).unwrap();
            if !is_removable {
                std::fs::create_dir(&entry).unwrap();
            }
        }
        read(&planned, &path, 4 * 256 * KIB..5 * 256 * KIB).await;
        tier.flush();
        let counters = tier.counters();
        assert_eq!(counters.evicted, 0, "{counters:?}");
        assert_eq!(counters.off.is_none(), is_removable, "{counters:?}");
        assert_eq!(place.entries().len(), if is_removable { 1 } else { 4 });
    }
}

/// Random ranges of 24 MiB under a budget of 2 MiB, which holds them in whole and in part.
#[tokio::test]
async fn folder_stays_within_the_budget() {
    let place = Place::new();
    let inner = InMemory::new();
    let path = |object: u64| Path::from(format!("object-{object}"));
    for object in 0..8 {
        inner.put(&path(object), content(object, 0..OBJECT_BYTES).into()).await.unwrap();
    }
    let budget = 2 * MIB;
    let tier = place.tier(budget);
    let planned = started(inner, &tier);
    let mut seed = 1;
    for turn in 0..600 {
        let object = splitmix::next(&mut seed) % 8;
        let start = splitmix::next(&mut seed) % OBJECT_BYTES;
        let bytes = [100, 5_000, 300_000][turn % 3];
        let range = start..(start + bytes).min(OBJECT_BYTES);
        assert!(read(&planned, &path(object), range.clone()).await == content(object, range));
        if turn % 20 == 0 {
            tier.flush();
            place.assert_counted(budget, &tier);
        }
    }
    let counters = tier.counters();
    assert!(counters.evicted > 100 && counters.hits > 10, "{counters:?}");
    // A smaller budget holds from the opening on.
    tier.flush();
    drop((planned, tier));
    let tier = place.tier(MIB);
    place.assert_counted(MIB, &tier);
    assert!(place.used_bytes().0 > MIB / 2);
}

/// A block that is read between others stays: the policy sees its hits. `lru` would keep it too;
/// an order of arrival alone would not.
#[tokio::test]
async fn block_that_is_hit_outlives_others() {
    let place = Place::new();
    let (store, path) = counting().await;
    let tier = place.tier(MIB);
    for block in 1..11 {
        for block in [0, block] {
            let start = block * 256 * KIB;
            // An empty memory each time.
            let planned = started(Arc::clone(&store), &tier);
            read(&planned, &path, start..start + 256 * KIB).await;
            tier.flush();
        }
    }
    reset(&store);
    read(&started(Arc::clone(&store), &tier), &path, 0..256 * KIB).await;
    assert_eq!(store.gets(), 0);
    assert!(tier.counters().evicted >= 7, "{:?}", tier.counters());
}

/// By default a read of 5 s is worth a write of its page, and one from memory is not. The time of
/// the store is virtual.
#[tokio::test(start_paused = true)]
async fn slow_store_is_written_and_a_fast_one_is_not() {
    for (latency, is_written) in [(Duration::from_secs(5), true), (Duration::ZERO, false)] {
        let place = Place::new();
        let store = TestStore { latency, ..TestStore::new(InMemory::new()) };
        let path = Path::from("folder/object");
        store.store.put(&path, content(0, 0..OBJECT_BYTES).into()).await.unwrap();
        let tier = DiskTier::open(&DiskOptions::new(&place.0, 8 * MIB)).unwrap();
        let planned = started(store, &tier);
        let mut seed = 3;
        for _ in 0..40 {
            let start = splitmix::next(&mut seed) % OBJECT_BYTES;
            read(&planned, &path, start..(start + 8).min(OBJECT_BYTES)).await;
            tier.flush();
        }
        let counters = tier.counters();
        match is_written {
            true => assert!(counters.writes >= 20, "{counters:?}"),
            false => assert!(counters.rejected >= 30, "{counters:?}"),
        }
    }
}

/// Lines with the numbers of context switches of the threads of all tiers.
fn thread_switches() -> Vec<String> {
    let mut switches = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        #[expect(clippy::disallowed_methods, reason = "the kernel counts in a file")]
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        if status.contains("readpath-disk") {
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            switches.extend(lines.map(str::to_owned));
        }
    }
    switches.sort();
    switches
}

#[test]
fn idle_threads_are_not_woken() {
    run_alone("kept::child_has_idle_threads");
}

/// Threads of the tier sleep until the next job. Their last steps before may take a moment.
#[tokio::test]
#[ignore = "alone in its process; started by the test above"]
async fn child_has_idle_threads() {
    let place = Place::new();
    let (store, path) = counting().await;
    let tier = place.tier(8 * MIB);
    read_all(&started(store, &tier), &path, 0).await;
    tier.flush();
    let pause = |ms| {
        #[expect(clippy::disallowed_methods, reason = "idle time is real")]
        std::thread::sleep(Duration::from_millis(ms));
        thread_switches()
    };
    let before = pause(200);
    assert!(before.len() >= 4, "one thread reads, and one writes: {before:?}");
    assert_eq!(pause(500), before);
}

/// Block 0 is whole in the index of `one`, and has one page after `other` has removed and written
/// it. Its removal by `one` frees two pages of the disk. Expected: the ledger is not too small.
#[tokio::test]
async fn entry_that_another_process_wrote_smaller_counts_as_it_is() {
    let place = Place::new();
    let (store, path) = counting().await;
    let block = 256 * KIB;
    let one = place.tier(MIB);
    read(&started(Arc::clone(&store), &one), &path, 0..block).await;
    one.flush();
    let other = place.tier(MIB);
    let planned = started(Arc::clone(&store), &other);
    for index in 1..7 {
        read(&planned, &path, index * block..(index + 1) * block).await;
        other.flush();
    }
    read(&started(Arc::clone(&store), &other), &path, 0..4096).await;
    other.flush();
    assert!(other.counters().evicted > 0);
    place.assert_within(MIB, &other);
    read(&started(store, &one), &path, 8 * block..9 * block).await;
    one.flush();
    assert!(one.counters().evicted > 0);
    place.assert_within(MIB, &one);
}

/// One fetch of 33 MiB is larger than the limit of the queue, 32 MiB. The queue is empty.
#[tokio::test]
async fn fetch_larger_than_the_queue_is_kept() {
    let (place, path) = (Place::new(), Path::from("large"));
    let store = TestStore::new(InMemory::new());
    store.store.put(&path, vec![7; 34 << 20].into()).await.unwrap();
    let tier = place.tier(64 * MIB);
    let mut options = options(&tier);
    (options.planner.memory_bytes, options.planner.part_bytes) = (256 * MIB, 64 * MIB);
    let planned = ReadpathStore::new(store, options, TokioRuntime::current()).unwrap();
    let first = 0..33 * MIB;
    planned.get_ranges(&path, std::slice::from_ref(&first)).await.unwrap();
    tier.flush();
    let counters = tier.counters();
    assert_eq!((counters.written_bytes, counters.dropped), (33 * MIB, 0));
}

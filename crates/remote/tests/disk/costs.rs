//! Costs of the store, as the admission measures them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use readpath_remote::disk::{DiskOptions, DiskTier};
use readpath_remote::store::{ReadpathStore, Runtime, TokioRuntime};

use crate::place::{Place, options, read};
use crate::support::{KIB, MIB, TestStore, content, ranged};

/// A clock that moves by `step` with each get of a store, and stands still between.
#[derive(Debug)]
struct Clock {
    runtime: TokioRuntime,
    /// Number of gets of the store.
    gets: Arc<AtomicU64>,
    step: Arc<Mutex<Duration>>,
    /// The time, and the number of gets until then.
    now: Mutex<(Duration, u64)>,
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        let (gets, step) = (self.gets.load(Ordering::Relaxed), *self.step.lock().unwrap());
        let (now, seen) = &mut *self.now.lock().unwrap();
        *now += step * (gets - *seen) as u32;
        *seen = gets;
        *now
    }

    fn unix_time(&self) -> Duration {
        self.runtime.unix_time()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }
}

/// Each request takes 100 s, far more than a write. Then the object is forgotten in 100 requests
/// after the first of four chunks, while the clock stands still: they measure nothing. Recorded
/// with all their bytes, they would make the store free of cost, and no page would be written.
#[tokio::test(start_paused = true)]
async fn ignored_answers_do_not_count_as_cheap_requests() {
    const BLOCK: u64 = 256 * KIB;
    let (inner, path) = (InMemory::new(), Path::from("object"));
    inner.put(&path, content(0, 0..4 * MIB).into()).await.unwrap();
    // The chunks of a body arrive one after the other.
    let slow = Arc::new(TestStore { bandwidth: Some(MIB), ..TestStore::new(inner) });
    let place = Place::new();
    let tier = DiskTier::open(&DiskOptions::new(&place.0, 8 * MIB)).unwrap();
    let step = Arc::new(Mutex::new(Duration::from_secs(100)));
    let clock = Clock {
        runtime: TokioRuntime::current(),
        gets: Arc::clone(&slow.gets),
        step: Arc::clone(&step),
        now: Mutex::default(),
    };
    let planned = ReadpathStore::new(Arc::clone(&slow), options(&tier), clock).unwrap();
    let page = |block: u64| block * BLOCK..block * BLOCK + 4096;
    for block in 0..13 {
        read(&planned, &path, page(block)).await;
        tier.flush();
    }
    *step.lock().unwrap() = Duration::ZERO;
    for _ in 0..100 {
        // The object is known again.
        read(&planned, &path, page(0)).await;
        let before = slow.body_bytes();
        let reading = tokio::spawn({
            let (planned, path) = (planned.clone(), path.clone());
            async move { planned.get_opts(&path, ranged(13 * BLOCK..14 * BLOCK)).await.map(drop) }
        });
        while slow.body_bytes() == before {
            tokio::task::yield_now().await;
        }
        planned.forget(&path);
        reading.abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let before = tier.counters();
    read(&planned, &path, page(14)).await;
    tier.flush();
    let after = tier.counters();
    assert_eq!((after.writes - before.writes, after.rejected), (1, 0), "{after:?}");
}

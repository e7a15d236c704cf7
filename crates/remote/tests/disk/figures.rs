//! Times of starts with and without a disk tier, in real time.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use readpath_core::splitmix;
use readpath_remote::disk::{Admit, DiskOptions, DiskTier};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
use tokio::time::Instant;

use crate::place::Place;
use crate::support::{KIB, Link, MIB, TestStore, bytes_of, content, ranged};

const OBJECT_BYTES: u64 = 64 * MIB;

/// Ranges of a pattern.
fn ranges(pattern: &str) -> Vec<std::ops::Range<u64>> {
    let mut seed = 9;
    let random = |_| splitmix::next(&mut seed) % (OBJECT_BYTES / 4096) * 4096;
    match pattern {
        "stream of 256 KiB" => {
            (0..OBJECT_BYTES).step_by(256 << 10).map(|start| start..start + 256 * KIB).collect()
        }
        _ => (0..100).map(random).map(|start| start..start + 4096).collect(),
    }
}

/// Reads the ranges one after the other with an empty memory. Returns the time in ms, the number of
/// requests, and the bytes of all bodies in MiB.
async fn run(inner: &Arc<InMemory>, pattern: &str, tier: Option<&DiskTier>) -> (u64, u64, u64) {
    let slow = Arc::new(TestStore {
        latency: Duration::from_millis(20),
        bandwidth: Some(100_000_000),
        link: Arc::new(Link::new(Some(125_000_000))),
        ..TestStore::new(Arc::clone(inner))
    });
    let planner = PlannerOptions { memory_bytes: 20 * MIB, ..PlannerOptions::default() };
    let disk = tier.map(|tier| tier.store("test://bucket"));
    let options = StoreOptions { planner, disk, ..StoreOptions::default() };
    let store = ReadpathStore::new(Arc::clone(&slow), options, TokioRuntime::current()).unwrap();
    let path = Path::from("object");
    let start = Instant::now();
    for range in ranges(pattern) {
        let result = object_store::ObjectStore::get_opts(&store, &path, ranged(range.clone()))
            .await
            .unwrap();
        let bytes = bytes_of(result).await.unwrap();
        assert_eq!(bytes.len() as u64, range.end - range.start);
        assert!(bytes[..8] == content(0, range.start..range.start + 8));
    }
    let ms = start.elapsed().as_millis() as u64;
    if let Some(tier) = tier {
        tier.flush();
    }
    (ms, slow.gets() + slow.heads(), slow.body_bytes() / MIB)
}

#[tokio::test]
#[ignore = "a minute: times for the book"]
async fn figures_of_starts() {
    let inner = Arc::new(InMemory::new());
    inner.put(&Path::from("object"), content(0, 0..OBJECT_BYTES).into()).await.unwrap();
    for pattern in ["stream of 256 KiB", "100 random reads of 4 KiB"] {
        println!("{pattern}: none {:?}", run(&inner, pattern, None).await);
        for admission in [Admit::All, Admit::ByCost] {
            let place = Place::new();
            let options = DiskOptions { admission, ..DiskOptions::new(&place.0, 256 * MIB) };
            for start in 1..=3 {
                let tier = DiskTier::open(&options).unwrap();
                let figures = run(&inner, pattern, Some(&tier)).await;
                let written = tier.counters().written_bytes / KIB;
                println!("{pattern}: {admission:?}, start {start}: {figures:?}, {written} KiB");
            }
        }
    }
}

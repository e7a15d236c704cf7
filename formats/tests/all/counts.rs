//! Requests, bytes and virtual time of each pattern, next to the plain store.
//!
//! The store answers after 20 ms, with 100 MB/s for each connection, over a network of 125 MB/s.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use readpath_formats::columns::Requests;
use readpath_formats::patterns::{self, Pattern};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};
use tokio::time::Instant;

use crate::support::{Link, MIB, TestStore};

/// Figures of a pattern over a store.
#[derive(Clone, Copy, Debug)]
struct Figures {
    requests: u64,
    /// Bytes of all bodies in KiB, rounded down.
    kib: u64,
    /// Virtual time in milliseconds, rounded down.
    ms: u64,
}

/// Reads a pattern over the plain or the planned store.
async fn figures(objects: &[(String, Bytes)], pattern: Pattern, is_planned: bool) -> Figures {
    let memory = InMemory::new();
    for (name, bytes) in objects {
        memory.put(&Path::from(name.as_str()), bytes.clone().into()).await.unwrap();
    }
    let slow = Arc::new(TestStore {
        latency: Duration::from_millis(20),
        bandwidth: Some(100_000_000),
        link: Arc::new(Link::new(Some(125_000_000))),
        ..TestStore::new(memory)
    });
    let (store, requests): (Arc<dyn ObjectStore>, _) = match is_planned {
        false => (slow.clone(), Requests::Coalesced),
        true => {
            let planner = PlannerOptions { memory_bytes: 20 * MIB, ..PlannerOptions::default() };
            let options = StoreOptions { planner, ..StoreOptions::default() };
            let runtime = TokioRuntime::current();
            let store = ReadpathStore::new(slow.clone(), options, runtime).unwrap();
            (Arc::new(store), Requests::EachRange)
        }
    };
    let start = Instant::now();
    pattern.read(&store, requests).await.unwrap();
    Figures {
        ms: start.elapsed().as_millis() as u64,
        requests: slow.gets() + slow.heads(),
        kib: slow.body_bytes() >> 10,
    }
}

/// Each row has the requests of the plain store, worked by hand, and three bounds of the planned
/// store, a little beyond its figures. These are requests, KiB of bodies, and its time in percent
/// of the plain store's.
///
/// The plain store has one request for the head of the table, one for its footer, and one for each
/// row group. An array has one request for its metadata, and two for each chunk in a box: its head
/// and a range. The number of chunks in the random boxes was not worked by hand.
#[tokio::test(start_paused = true)]
async fn planned_store_has_fewer_bytes_and_takes_less_time() {
    let rows = [
        (Pattern::WholeTable, Some(1 + 1 + 24), [22, 24_800, 45]),
        (Pattern::TwoColumns, Some(1 + 1 + 24), [60, 7_000, 85]),
        (Pattern::SomeGroups, Some(1 + 1 + 6), [10, 900, 85]),
        (Pattern::TwoQueries, Some(2 * (1 + 1 + 24)), [60, 7_000, 45]),
        (Pattern::Planes, Some(1 + 64 * 16 * 2), [290, 16_500, 16]),
        (Pattern::Points, Some(1 + 16 * 8 * 2), [50, 650, 10]),
        (Pattern::Boxes, None, [70, 16_500, 13]),
    ];
    let objects = patterns::objects().await.unwrap();
    let mut faults = Vec::new();
    for (pattern, plain_requests, [requests_max, kib_max, percent_max]) in rows {
        let plain = figures(&objects, pattern, false).await;
        let planned = figures(&objects, pattern, true).await;
        println!("{pattern:?}: plain {plain:?}, planned {planned:?}");
        let is_good = plain_requests.is_none_or(|requests| requests == plain.requests)
            && planned.requests <= requests_max
            && planned.kib <= kib_max
            && planned.ms * 100 <= plain.ms * percent_max;
        if !is_good {
            faults.push(pattern);
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
}

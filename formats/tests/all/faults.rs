//! The readers over a local server with delay, jitter and faults: right values, or a clear error
//! after a bounded number of requests.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use parquet::errors::ParquetError;
use readpath_formats::arrays::{open_array, read_box};
use readpath_formats::columns::{Requests, has_changed, read_columns};
use readpath_formats::http_client::PlainHttp;
use readpath_formats::patterns::{box_values, check_table};
use readpath_formats::samples::{self, COLUMNS, GROUP_ROWS};
use readpath_formats::server::{Faults, Network, Server};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

use crate::support::MIB;

/// Number of row groups: 4 MiB.
const GROUPS: usize = 4;
/// Retries of the client for one request.
const CLIENT_RETRIES: usize = 4;
/// Retries of the planned store for one fetch: several may have a fault one after the other, as
/// fetches are concurrent.
const RETRIES: u32 = 8;

/// A server with all samples in two versions.
async fn server() -> Server {
    let delay = Duration::from_millis(2);
    let network = Network { delay, jitter: delay, bandwidth: Some(200_000_000) };
    let server = Server::start(network).unwrap();
    let tables = [1, 2].map(|version| samples::table(version, GROUPS).unwrap());
    server.add("table.parquet", tables.into());
    for (name, is_sharded) in [("chunks", false), ("shards", true)] {
        let first = samples::array(name, 1, is_sharded).await.unwrap();
        let second = samples::array(name, 2, is_sharded).await.unwrap();
        for ((name, first), (other, second)) in first.into_iter().zip(second) {
            assert_eq!(name, other);
            server.add(&name, vec![first, second]);
        }
    }
    server
}

/// The planned store over the server, in 2 MiB of memory.
fn planned(server: &Server) -> Arc<dyn ObjectStore> {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(10),
        ..BackoffConfig::default()
    };
    let retry_timeout = Duration::from_secs(60);
    let http = HttpBuilder::new()
        .with_url(server.url())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(RetryConfig { backoff, max_retries: CLIENT_RETRIES, retry_timeout })
        .with_http_connector(PlainHttp)
        .build();
    let planner = PlannerOptions { memory_bytes: 2 * MIB, ..PlannerOptions::default() };
    let options = StoreOptions { planner, retries_max: RETRIES, ..StoreOptions::default() };
    Arc::new(ReadpathStore::new(http.unwrap(), options, TokioRuntime::current()).unwrap())
}

/// Reads all columns of the table.
async fn read_all(store: &Arc<dyn ObjectStore>) -> Result<Vec<RecordBatch>, ParquetError> {
    let names: Vec<String> = (0..COLUMNS).map(|column| format!("c{column}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let path = Path::from("table.parquet");
    read_columns(store.clone(), &path, Requests::EachRange, &names, None).await
}

/// Compares all columns of the table with a version.
fn check_all(batches: &[RecordBatch], version: u8) {
    let columns: Vec<usize> = (0..COLUMNS).collect();
    check_table(batches, version, &columns, 0..GROUPS * GROUP_ROWS);
}

/// Each fault alone, and all of them. The periods have no common factor.
const FAULTS: [Faults; 5] = [
    Faults { busy: 3, resets: 0, breaks: 0, truncations: 0, changes: 0 },
    Faults { busy: 0, resets: 3, breaks: 0, truncations: 0, changes: 0 },
    Faults { busy: 0, resets: 0, breaks: 3, truncations: 0, changes: 0 },
    Faults { busy: 0, resets: 0, breaks: 0, truncations: 3, changes: 0 },
    Faults { busy: 5, resets: 7, breaks: 11, truncations: 13, changes: 0 },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_are_right_with_each_fault() {
    for faults in FAULTS {
        let server = server().await;
        server.set_faults(faults);
        let read = read_all(&planned(&server)).await;
        check_all(&read.unwrap_or_else(|error| panic!("{faults:?}: {error}")), 1);
        assert!(server.faults() > 0, "{faults:?} has happened");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boxes_are_right_with_each_fault() {
    let ranges = [[3..21, 40..140, 60..190], [7..8, 0..256, 0..256], [0..64, 9..10, 99..100]];
    for faults in FAULTS {
        let server = server().await;
        server.set_faults(faults);
        let store = planned(&server);
        for name in ["/chunks", "/shards"] {
            let array = open_array(Arc::clone(&store), name).await.unwrap();
            for ranges in &ranges {
                let read = read_box(&array, ranges).await;
                let read = read.unwrap_or_else(|error| panic!("{faults:?}: {name}: {error}"));
                assert!(read == box_values(1, ranges), "{faults:?}: {name}: {ranges:?}");
            }
        }
        assert!(server.faults() > 0, "{faults:?} has happened");
    }
}

/// The third request comes after the footer, in the middle of the columns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_that_changes_is_an_error_and_then_the_new_version() {
    let server = server().await;
    let store = planned(&server);
    server.set_faults(Faults { changes: 3, ..Faults::default() });
    let error = read_all(&store).await.expect_err("the table has changed");
    assert!(has_changed(&error), "{error}");
    server.set_faults(Faults::default());
    check_all(&read_all(&store).await.unwrap(), 2);
}

/// Each second request changes its object. Every chunk is of one version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_chunk_that_changes_is_of_one_version() {
    let server = server().await;
    let store = planned(&server);
    let array = open_array(store, "/chunks").await.unwrap();
    server.set_faults(Faults { changes: 2, ..Faults::default() });
    let mut versions = [0; 2];
    for x in 0..4 {
        for y in 0..4 {
            let ranges = [0..8, y * 64..y * 64 + 64, x * 64..x * 64 + 64];
            let read = read_box(&array, &ranges).await.unwrap();
            let version = read.first().map_or(0, |element| element >> 24);
            assert!(read == box_values(version as u8, &ranges), "{ranges:?}: {version}");
            versions[version as usize - 1] += 1;
        }
    }
    assert!(versions.iter().all(|&count| count > 0), "{versions:?}");
}

/// The object's head has no fault. The fetch of the footer has up to 9 gets, each with up to 5
/// requests of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_server_is_an_error_after_a_bounded_number_of_requests() {
    let server = server().await;
    let store = planned(&server);
    server.set_faults(Faults { busy: 1, ..Faults::default() });
    let error = read_all(&store).await.expect_err("the server is busy").to_string();
    assert!(error.contains("503"), "{error}");
    let requests_max = 1 + u64::from(1 + RETRIES) * (1 + CLIENT_RETRIES as u64);
    assert!(server.requests() <= requests_max, "{}", server.requests());
}

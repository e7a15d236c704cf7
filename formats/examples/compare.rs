//! Times of each pattern over the plain and the planned store, from a local server.
//!
//!     cargo run --release --example compare -- [DELAY_MS [ROUNDS]]
//!
//! The server answers after the delay (20 ms) and up to a quarter of it more, with 100 MB/s for
//! each connection. Prints the median time of the rounds (5), the requests, and the bytes of all
//! bodies. Each round has both stores in alternating order, with an empty cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::http::{HttpBuilder, HttpStore};
use object_store::{ClientOptions, ObjectStore};
use readpath_formats::columns::Requests;
use readpath_formats::http_client::PlainHttp;
use readpath_formats::patterns::{self, Pattern, PatternError};
use readpath_formats::server::{Network, Server};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

/// Time, requests, and bytes of bodies of a run.
type Run = (Duration, u64, u64);

#[tokio::main]
async fn main() -> Result<(), PatternError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: u64| match arguments.get(index) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    let (delay, rounds) = (Duration::from_millis(argument(0, 20)?), argument(1, 5)?.max(1));
    let network = Network { delay, jitter: delay / 4, bandwidth: Some(100_000_000) };
    let server = Server::start(network)?;
    for (name, bytes) in patterns::objects().await? {
        server.add(&name, vec![bytes]);
    }
    println!("{:45} {:>24} {:>24} {:>6}", "", "plain ms, requests, MB", "planned", "ratio");
    for (pattern, name) in Pattern::ALL {
        let mut runs: [Vec<Run>; 2] = Default::default();
        for round in 0..rounds {
            for turn in 0..2 {
                let is_planned = (round + turn) % 2 == 1;
                runs[usize::from(is_planned)].push(run(&server, pattern, is_planned).await?);
            }
        }
        let [plain, planned] = runs.map(median);
        let ratio = plain.0.as_secs_f64() / planned.0.as_secs_f64();
        println!("{name:45} {:>24} {:>24} {ratio:6.2}", cell(plain), cell(planned));
    }
    Ok(())
}

/// Reads a pattern with an empty cache.
async fn run(server: &Server, pattern: Pattern, is_planned: bool) -> Result<Run, PatternError> {
    let http = client(server)?;
    let (store, requests): (Arc<dyn ObjectStore>, _) = match is_planned {
        false => (Arc::new(http), Requests::Coalesced),
        true => {
            let planner = PlannerOptions { memory_bytes: 20 << 20, ..PlannerOptions::default() };
            let options = StoreOptions { planner, ..StoreOptions::default() };
            let store = ReadpathStore::new(http, options, TokioRuntime::current())?;
            (Arc::new(store), Requests::EachRange)
        }
    };
    let (requests_before, bytes_before) = (server.requests(), server.body_bytes());
    let start = Instant::now();
    pattern.read(&store, requests).await?;
    let time = start.elapsed();
    Ok((time, server.requests() - requests_before, server.body_bytes() - bytes_before))
}

/// A store of the server's objects.
fn client(server: &Server) -> object_store::Result<HttpStore> {
    HttpBuilder::new()
        .with_url(server.url())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_http_connector(PlainHttp)
        .build()
}

/// The run with the median time.
fn median(mut runs: Vec<Run>) -> Run {
    runs.sort();
    runs[runs.len() / 2]
}

/// Time, requests and bytes of a run in one cell of the table.
fn cell((time, requests, bytes): Run) -> String {
    format!("{}, {requests}, {:.1}", time.as_millis(), bytes as f64 / 1e6)
}

//! Times of each pattern without a disk tier, and at the first and second start with one, from a
//! local server.
//!
//!     cargo run --release --example disk_tier -- FOLDER [DELAY_MS [ROUNDS]]
//!
//! The server answers after the delay (20 ms) and up to a quarter of it more, with 100 MB/s for
//! each connection. Prints the median time of the rounds (5), the requests, and the bytes of all
//! bodies. A start has an empty memory; the second one has the folder of the first. The columns
//! are: no disk tier, then two starts for each rule of admission. FOLDER is created, and removed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore};
use readpath_formats::columns::Requests;
use readpath_formats::http_client::PlainHttp;
use readpath_formats::patterns::{self, Pattern, PatternError};
use readpath_formats::server::{Network, Server};
use readpath_remote::disk::{Admit, DiskOptions, DiskTier};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

/// Time, requests, and bytes of bodies of a run.
type Run = (Duration, u64, u64);

#[tokio::main]
async fn main() -> Result<(), PatternError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("give a folder that does not exist")?;
    let argument = |index: usize, default: u64| match arguments.get(index) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    let (delay, rounds) = (Duration::from_millis(argument(1, 20)?), argument(2, 5)?.max(1));
    let network = Network { delay, jitter: delay / 4, bandwidth: Some(100_000_000) };
    let server = Server::start(network)?;
    for (name, bytes) in patterns::objects().await? {
        server.add(&name, vec![bytes]);
    }
    println!("ms, requests, MB: without; all, first and second start; by cost, the same");
    for (pattern, name) in Pattern::ALL {
        let mut runs: [Vec<Run>; 5] = Default::default();
        for _ in 0..rounds {
            runs[0].push(run(&server, pattern, None).await?);
            for (admission, first) in [(Admit::All, 1), (Admit::ByCost, 3)] {
                for start in [first, first + 1] {
                    let disk = Some((Path::new(folder), admission));
                    runs[start].push(run(&server, pattern, disk).await?);
                }
                std::fs::remove_dir_all(folder)?;
            }
        }
        let cells = runs.map(|runs| format!("{:>20}", cell(median(runs))));
        println!("{name:45} {}", cells.join(""));
    }
    Ok(())
}

/// Reads a pattern with an empty memory. The time does not have the writes that wait at its end.
async fn run(
    server: &Server,
    pattern: Pattern,
    disk: Option<(&Path, Admit)>,
) -> Result<Run, PatternError> {
    let http = HttpBuilder::new()
        .with_url(server.url())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_http_connector(PlainHttp)
        .build()?;
    let planner = PlannerOptions { memory_bytes: 20 << 20, ..PlannerOptions::default() };
    let mut options = StoreOptions { planner, ..StoreOptions::default() };
    let tier = match disk {
        None => None,
        Some((folder, admission)) => {
            let options = DiskOptions { admission, ..DiskOptions::new(folder, 1 << 30) };
            Some(DiskTier::open(&options)?)
        }
    };
    options.disk = tier.as_ref().map(|tier| tier.store("http://server"));
    let store = ReadpathStore::new(http, options, TokioRuntime::current())?;
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let (requests_before, bytes_before) = (server.requests(), server.body_bytes());
    let start = Instant::now();
    pattern.read(&store, Requests::EachRange).await?;
    let time = start.elapsed();
    if let Some(tier) = tier {
        tier.flush();
    }
    Ok((time, server.requests() - requests_before, server.body_bytes() - bytes_before))
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

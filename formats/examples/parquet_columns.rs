//! Reads columns of a Parquet object on an HTTP server.
//!
//!     cargo run --example parquet_columns -- http://HOST/FOLDER/ NAME COLUMN ...
//!
//! Prints the number of rows, and of requests. If the object changes meanwhile, it is read again.

use std::error::Error;
use std::sync::Arc;

use object_store::ClientOptions;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use readpath_formats::columns::{Requests, has_changed, read_columns};
use readpath_formats::http_client::PlainHttp;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

/// Number of versions of the object that are tried.
const TRIES: usize = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, columns @ ..] = &arguments[..] else {
        return Err("usage: parquet_columns URL NAME COLUMN ...".into());
    };
    let http = HttpBuilder::new()
        .with_url(url)
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_http_connector(PlainHttp)
        .build()?;
    let store = ReadpathStore::new(http, StoreOptions::default(), TokioRuntime::current())?;
    let (shared, path) = (Arc::new(store.clone()), Path::parse(name)?);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut tries = 0;
    let batches = loop {
        tries += 1;
        let read = read_columns(shared.clone(), &path, Requests::EachRange, &columns, None);
        match read.await {
            Err(error) if has_changed(&error) && tries < TRIES => {}
            result => break result?,
        }
    };
    let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    println!("{rows} rows in {} fetches", store.counters().fetches);
    Ok(())
}

//! Reads a box of a Zarr array of 32-bit unsigned numbers on an HTTP server.
//!
//!     cargo run --example zarr_box -- http://HOST/FOLDER/ /ARRAY 0..8 0..64 0..64
//!
//! Prints the number of elements, their sum, and the number of requests.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use object_store::ClientOptions;
use object_store::http::HttpBuilder;
use readpath_formats::arrays::{open_array, read_box};
use readpath_formats::http_client::PlainHttp;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, ranges @ ..] = &arguments[..] else {
        return Err("usage: zarr_box URL ARRAY START..END ...".into());
    };
    let http = HttpBuilder::new()
        .with_url(url)
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_http_connector(PlainHttp)
        .build()?;
    let store = ReadpathStore::new(http, StoreOptions::default(), TokioRuntime::current())?;
    let array = open_array(Arc::new(store.clone()), name).await?;
    let ranges = ranges.iter().map(|text| parse_range(text)).collect::<Result<Vec<_>, _>>()?;
    let elements = read_box(&array, &ranges).await?;
    let sum: u64 = elements.iter().map(|&element| u64::from(element)).sum();
    println!("{} elements, sum {sum}, {} fetches", elements.len(), store.counters().fetches);
    Ok(())
}

/// A range of one dimension, such as `0..8`.
fn parse_range(text: &str) -> Result<Range<u64>, Box<dyn Error + Send + Sync>> {
    let (start, end) = text.split_once("..").ok_or("a range is START..END")?;
    Ok(start.parse()?..end.parse()?)
}

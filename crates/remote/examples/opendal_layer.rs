//! Reads a file by an operator of OpenDAL with the layer, 64 KiB at a time.
//!
//!     cargo run -p readpath-remote --features opendal --example opendal_layer -- FILE
//!
//! Prints the number of bytes, their sum, and the number of fetches. Any other service takes the
//! place of `Fs`, such as `S3`.

use std::error::Error;
use std::path::Path;

use opendal::Operator;
use opendal::services::Fs;
use readpath_remote::opendal::ReadpathLayer;
use readpath_remote::store::{StoreOptions, TokioRuntime};

/// Bytes of a read.
const READ_BYTES: u64 = 64 << 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("give the path of a file")?;
    let file = Path::new(&file).canonicalize()?;
    let folder = file.parent().and_then(Path::to_str).ok_or("the file has no folder")?;
    let name = file.file_name().and_then(|name| name.to_str()).ok_or("the file has no name")?;

    let layer = ReadpathLayer::new(StoreOptions::default(), TokioRuntime::current())?;
    let operator = Operator::new(Fs::default().root(folder))?.layer(layer.clone()).finish();

    let length = operator.stat(name).await?.content_length();
    let reader = operator.reader(name).await?;
    let mut sum = 0;
    for start in (0..length).step_by(READ_BYTES as usize) {
        let bytes = reader.read(start..length.min(start + READ_BYTES)).await?;
        sum += bytes.flatten().map(u64::from).sum::<u64>();
    }
    println!("{length} bytes, sum {sum}, {} fetches", layer.counters().fetches);
    Ok(())
}

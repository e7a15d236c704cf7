//! Checks of the answers of the underlying store, against the ranges that they are for.
//!
//! They concern the requests that pass straight to the store. A request of the cache is checked
//! where its bytes arrive, in [`fetching`](super::fetching).

use std::ops::Range;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, GetResultPayload, Result};

use super::errors::{other_range, too_long, too_short};

/// The answer of a get, with a body that ends with an error if its length is wrong.
///
/// # Errors
/// The answer is for another range than the requested one.
pub(super) fn checked(
    location: &Path,
    options: &GetOptions,
    result: GetResult,
) -> Result<GetResult> {
    let (meta, range) = (result.meta.clone(), result.range.clone());
    let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
    let body = if options.head {
        // Some stores add a body all the same.
        stream::empty().boxed()
    } else {
        let requested = match &options.range {
            // A range that the object does not have is not compared.
            Some(range) => range.as_range(meta.size).ok(),
            None => Some(0..meta.size),
        };
        if let Some(requested) = requested.filter(|requested| *requested != range) {
            return Err(other_range(location, &requested, &range));
        }
        checked_body(location.clone(), range.clone(), body_of(result))
    };
    let payload = GetResultPayload::Stream(body);
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

/// The body of an answer. The stream of a local file yields empty chunks without end when the file
/// is shorter than the range: here it ends.
pub(crate) fn body_of(result: GetResult) -> BoxStream<'static, Result<Bytes>> {
    let is_stream = matches!(result.payload, GetResultPayload::Stream(_));
    let body = result.into_stream();
    match is_stream {
        true => body,
        false => {
            let is_end = |chunk: &Result<Bytes>| chunk.as_ref().is_ok_and(Bytes::is_empty);
            body.take_while(move |chunk| future::ready(!is_end(chunk))).boxed()
        }
    }
}

/// The body of an answer for a range. It ends with an error if its length is wrong.
fn checked_body(
    location: Path,
    range: Range<u64>,
    body: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    // The state of the stream: the next byte, and the body; `None` after an error.
    let start = (range.start, Some(body));
    stream::unfold(start, move |(at, body)| {
        let (location, range) = (location.clone(), range.clone());
        async move {
            let mut body = body?;
            match body.next().await {
                Some(Ok(chunk)) if chunk.len() as u64 > range.end - at => {
                    Some((Err(too_long(&location, &range)), (at, None)))
                }
                Some(Ok(chunk)) => {
                    let at = at + chunk.len() as u64;
                    Some((Ok(chunk), (at, Some(body))))
                }
                Some(Err(error)) => Some((Err(error), (at, None))),
                None if at < range.end => Some((Err(too_short(&location, &range, at)), (at, None))),
                None => None,
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use object_store::{Attributes, ObjectMeta};

    use super::*;

    /// A file that was cut after its store had opened it. The stream of `object_store` itself
    /// has no end then.
    #[tokio::test]
    async fn body_of_a_cut_file_ends_with_an_error() {
        let name = format!("remote-cut-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::OpenOptions::new();
        options.create(true).truncate(true).read(true).write(true);
        let mut file = options.open(&path).unwrap();
        file.write_all(&[7; 20_000]).unwrap();
        let meta = ObjectMeta {
            location: Path::from("cut"),
            last_modified: Default::default(),
            size: 50_000,
            e_tag: None,
            version: None,
        };
        let result = GetResult {
            payload: GetResultPayload::File(file, path.clone()),
            range: 0..meta.size,
            meta,
            attributes: Attributes::default(),
            extensions: Default::default(),
        };
        let checked = checked(&Path::from("cut"), &GetOptions::default(), result).unwrap();
        let chunks: Vec<_> = checked.into_stream().take(100).collect().await;
        std::fs::remove_file(path).unwrap();
        let (last, data) = chunks.split_last().unwrap();
        assert_eq!(data.iter().flatten().map(Bytes::len).sum::<usize>(), 20_000);
        let text = last.as_ref().unwrap_err().to_string();
        assert!(text.contains("cut: ") && text.contains("ended at byte 20000"), "{text}");
    }
}

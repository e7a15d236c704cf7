//! Operations through the layer against the same operations of a plain operator.

use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::try_join_all;
use opendal::services::{Fs, Memory};
use opendal::{ErrorKind, Operator, Result};
use readpath_core::splitmix;
use readpath_remote::store::StoreOptions;

use crate::support::{KIB, Watch, content, layer, options, over_memory, shared_memory};

/// Names with characters that an encoding may change.
const PATHS: [&str; 6] = ["a", "folder/b c", "folder/ä%20日", "folder/%2F", "x/y/z#?&=+", "~[1]"];

/// Outcome of an operation: bytes or text, or the kind of the error.
type Outcome = std::result::Result<Vec<u8>, ErrorKind>;

fn outcome<T>(result: Result<T>, show: impl Fn(T) -> Vec<u8>) -> Outcome {
    result.map(show).map_err(|error| error.kind())
}

/// One random operation.
async fn step(operator: &Operator, draw: u64, has_renames: bool) -> Outcome {
    let part = |shift: u64, count: u64| (splitmix::mixed(draw ^ shift)) % count;
    let path = PATHS[part(1, 6) as usize];
    let other = PATHS[part(2, 6) as usize];
    let bytes = content(draw, 0..part(3, 300 * KIB) * part(4, 2));
    let (start, count) = (part(5, 300 * KIB), part(6, 100 * KIB));
    let size = async || operator.stat(path).await.map_or(0, |metadata| metadata.content_length());
    match part(7, 14) {
        0 | 1 => outcome(operator.write(path, bytes).await, |meta| {
            meta.content_length().to_string().into_bytes()
        }),
        2 => {
            let writing = async {
                let mut writer = operator.writer(path).await?;
                for chunk in bytes.chunks(50_000) {
                    writer.write(chunk.to_vec()).await?;
                }
                // Reads during the write may return either version: none here.
                writer.close().await
            };
            outcome(writing.await, |_| Vec::new())
        }
        3 => outcome(operator.delete(path).await, |()| Vec::new()),
        4 if has_renames => outcome(operator.rename(path, other).await, |()| Vec::new()),
        4 | 5 => outcome(operator.copy(path, other).await, |_| Vec::new()),
        6 => outcome(operator.stat(path).await, |metadata| {
            format!("{} {:?}", metadata.content_length(), metadata.mode()).into_bytes()
        }),
        7 => outcome(operator.list_with("folder/").recursive(true).await, |entries| {
            entries.iter().map(|entry| entry.path().to_owned() + "\n").collect::<String>().into()
        }),
        8 => outcome(operator.read(path).await, |buffer| buffer.to_vec()),
        // At random places: some begin or end past the end.
        9 | 10 => {
            let read = operator.read_with(path).range(start..start + count).await;
            outcome(read, |buffer| buffer.to_vec())
        }
        11 => outcome(operator.read_with(path).range(start..).await, |buffer| buffer.to_vec()),
        // Exactly to the end, and a byte further.
        12 => {
            let end = size().await;
            let from = end.saturating_sub(count);
            let read = operator.read_with(path).range(from..end).await;
            let past = operator.read_with(path).range(from..end + 1).await;
            let past = match past {
                Ok(buffer) => buffer.to_vec(),
                Err(error) => error.kind().to_string().into_bytes(),
            };
            outcome(read, |buffer| [buffer.to_vec(), past.clone()].concat())
        }
        _ => {
            let ranges = [start..start + 10, 0..count, 5..6];
            let reading = async { operator.reader(path).await?.fetch(ranges.to_vec()).await };
            outcome(reading.await, |buffers| {
                buffers.into_iter().flat_map(|buffer| buffer.to_vec()).collect()
            })
        }
    }
}

/// Random operations on both operators have equal outcomes.
async fn compare(name: &str, layered: &Operator, plain: &Operator, has_renames: bool) {
    let mut read_bytes = 0;
    for number in 0..600 {
        let draw = splitmix::mixed(number);
        let expected = step(plain, draw, has_renames).await;
        let outcome = step(layered, draw, has_renames).await;
        assert!(outcome == expected, "{name}, step {number}: {:?}", outcome.map(|it| it.len()));
        read_bytes += outcome.map_or(0, |bytes| bytes.len());
    }
    assert!(read_bytes > 1 << 20, "{name}: {read_bytes} bytes");
}

#[tokio::test]
async fn memory_has_the_outcomes_of_a_plain_operator() {
    for tags_reads in [false, true] {
        let watch = Watch { tags_reads, ..Watch::default() };
        let (layered, layer) = over_memory(&watch, options());
        let plain = Operator::new(Memory::default()).unwrap().finish();
        compare(&format!("memory {tags_reads}"), &layered, &plain, false).await;
        let counters = layer.counters();
        assert!(counters.fetches > 50 && counters.hit_bytes > 0, "{counters:?}");
    }
}

/// An operator over files of a folder.
fn files(folder: &Path) -> opendal::OperatorBuilder<impl opendal::raw::Access> {
    Operator::new(Fs::default().root(folder.to_str().unwrap())).unwrap()
}

#[tokio::test]
async fn local_files_have_the_outcomes_of_a_plain_operator() {
    let name = format!("opendal-files-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let layer = layer(options());
    let layered = files(&folder.join("layered")).layer(layer.clone()).finish();
    compare("files", &layered, &files(&folder.join("plain")).finish(), true).await;
    let counters = layer.counters();
    assert!(counters.fetches > 50 && counters.hit_bytes > 0, "{counters:?}");
    layered.delete_with("/").recursive(true).await.unwrap();
    for path in PATHS {
        assert_eq!(layered.read(path).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Tasks that read while others write: each read has the bytes of one version.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_next_to_writes_have_bytes_of_one_version() {
    for (tags_reads, is_other) in [(false, false), (true, false), (false, true)] {
        let watch = Watch { tags_reads, ..Watch::default() };
        // The version is asked for before each read.
        let options = StoreOptions { max_age: Duration::ZERO, ..options() };
        let (operator, _layer, other) = shared_memory(&watch, options);
        operator.write("a", content(0, 0..200 * KIB)).await.unwrap();
        // The layer does not know about the writes of another client.
        let writer = if is_other { other } else { operator.clone() };
        let writing = async move {
            for version in 1..=30 {
                writer.write("a", content(version, 0..200 * KIB)).await?;
                tokio::task::yield_now().await;
            }
            Ok::<(), opendal::Error>(())
        };
        let reading = (0..4).map(|task| {
            let operator = operator.clone();
            tokio::spawn(async move {
                for read in 0..60 {
                    let start = splitmix::mixed(task << 32 | read) % (100 * KIB);
                    let range = start..start + 90 * KIB;
                    let bytes = operator.read_with("a").range(range.clone()).await?.to_vec();
                    let is_version =
                        (0..=30).any(|version| bytes == content(version, range.clone()));
                    assert!(is_version, "task {task}, read {read}");
                }
                Ok::<(), opendal::Error>(())
            })
        });
        let reading: Vec<_> = reading.collect();
        let writing = tokio::spawn(writing);
        for task in try_join_all(reading).await.unwrap() {
            task.unwrap();
        }
        writing.await.unwrap().unwrap();
        assert_eq!(operator.read("a").await.unwrap().to_vec(), content(30, 0..200 * KIB));
    }
}

/// A write takes effect when its writer is closed; one that is dropped is forgotten, too.
#[tokio::test]
async fn write_takes_effect_at_its_close() {
    let watch = Watch { tags_reads: true, ..Watch::default() };
    let (operator, layer) = over_memory(&watch, options());
    operator.write("a", content(0, 0..KIB)).await.unwrap();
    let read = async || operator.read("a").await.unwrap().to_vec();
    assert!(read().await == content(0, 0..KIB));
    let mut writer = operator.writer("a").await.unwrap();
    writer.write(content(1, 0..KIB)).await.unwrap();
    assert!(read().await == content(0, 0..KIB));
    writer.close().await.unwrap();
    assert!(read().await == content(1, 0..KIB));
    watch.take();
    let mut writer = operator.writer("a").await.unwrap();
    writer.write(content(2, 0..KIB)).await.unwrap();
    writer.abort().await.unwrap();
    drop(writer);
    assert!(read().await == content(1, 0..KIB));
    // Its outcome is unknown to the layer: the object is read again.
    assert_eq!(watch.take(), (1, 0));
    layer.forget("/a");
    assert!(read().await == content(1, 0..KIB));
    assert_eq!(watch.take(), (1, 0));
    assert!(read().await == content(1, 0..KIB));
    assert_eq!(watch.take(), (0, 0));
}

/// A rename has taken effect when its future is dropped: both objects are forgotten.
#[tokio::test]
async fn dropped_rename_is_forgotten() {
    let name = format!("opendal-rename-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let watch = Watch { tags_reads: true, hangs_renames: true, ..Watch::default() };
    let operator = files(&folder).layer(watch).layer(layer(options())).finish();
    for (version, path) in ["a", "b"].into_iter().enumerate() {
        let bytes = content(version as u64, 0..KIB);
        operator.write(path, bytes.clone()).await.unwrap();
        assert!(operator.read(path).await.unwrap().to_vec() == bytes);
    }
    let mut rename = Box::pin(operator.rename("a", "b"));
    while folder.join("a").exists() {
        assert!((&mut rename).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    drop(rename);
    assert!(operator.read("b").await.unwrap().to_vec() == content(0, 0..KIB));
    assert_eq!(operator.read("a").await.unwrap_err().kind(), ErrorKind::NotFound);
    std::fs::remove_dir_all(folder).unwrap();
}

/// A refused write changes nothing: the version is asked for, and the pages stay.
#[tokio::test]
async fn refused_write_keeps_the_pages() {
    let watch = Watch { tags_reads: true, ..Watch::default() };
    let (operator, _layer) = over_memory(&watch, options());
    operator.write("a", content(0, 0..KIB)).await.unwrap();
    operator.read("a").await.unwrap();
    let refused = operator.write_with("a", "x").if_not_exists(true).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConditionNotMatch);
    watch.take();
    assert!(operator.read("a").await.unwrap().to_vec() == content(0, 0..KIB));
    assert_eq!(watch.take(), (0, 1));
}

/// An empty object is read from the storage each time: its length may be unknown.
#[tokio::test]
async fn empty_object_is_not_cached() {
    let watch = Watch { tags_reads: true, ..Watch::default() };
    let (operator, layer) = over_memory(&watch, options());
    operator.write("a", "").await.unwrap();
    for _ in 0..2 {
        assert!(operator.read("a").await.unwrap().is_empty());
        assert!(operator.read_with("a").range(0..0).await.unwrap().is_empty());
        assert!(operator.read_with("a").range(0..).await.unwrap().is_empty());
        assert_eq!(operator.stat("a").await.unwrap().content_length(), 0);
    }
    assert_eq!(layer.counters().fetches, 0);
}

/// An option out of its bounds is an error of the layer, not a panic of the operator.
#[tokio::test]
async fn layer_refuses_options_out_of_bounds() {
    use readpath_remote::opendal::ReadpathLayer;
    use readpath_remote::store::TokioRuntime;
    let mut options = options();
    options.planner.part_bytes = 5;
    let error = ReadpathLayer::new(options, TokioRuntime::current()).unwrap_err();
    assert!(error.to_string().contains('5'), "{error}");
}

/// A read between a failed close and the next one caches the object again. The plain operator
/// answers with `NotFound` after that close.
#[tokio::test]
async fn delete_by_a_second_close_is_forgotten() {
    let watch = Watch { tags_reads: true, fails_first_close: true, ..Watch::default() };
    let (operator, _layer) = over_memory(&watch, options());
    operator.write("a", content(0, 0..100)).await.unwrap();
    operator.read("a").await.unwrap();
    let mut deleter = operator.deleter().await.unwrap();
    deleter.delete("a").await.unwrap();
    deleter.close().await.unwrap_err();
    assert!(operator.read("a").await.unwrap().to_vec() == content(0, 0..100));
    deleter.close().await.unwrap();
    assert_eq!(operator.read("a").await.unwrap_err().kind(), ErrorKind::NotFound);
}

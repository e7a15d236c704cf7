//! Damaged files: flipped bits, other lengths, exchanged files.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use readpath_core::splitmix;

use crate::place::{Place, read, started};
use crate::support::{MIB, TestStore, content};

/// Three blocks in whole, and one in part.
const OBJECT_BYTES: u64 = 800_001;

type Counting = Arc<TestStore<InMemory>>;

async fn counting() -> (Counting, Path) {
    let (store, path) = (TestStore::new(InMemory::new()), Path::from("folder/object"));
    store.store.put(&path, content(0, 0..OBJECT_BYTES).into()).await.unwrap();
    (Arc::new(store), path)
}

/// Reads the whole object with an empty memory, which writes absent blocks. Returns the number of
/// removed entries, and of requests.
async fn read_all(place: &Place, store: &Counting, path: &Path) -> (u64, u64) {
    let gets = store.gets();
    let tier = place.tier(4 * MIB);
    let bytes = read(&started(Arc::clone(store), &tier), path, 0..OBJECT_BYTES).await;
    assert!(bytes == content(0, 0..OBJECT_BYTES));
    tier.flush();
    assert_eq!(tier.counters().off, None);
    (tier.counters().damaged, store.gets() - gets)
}

fn opened(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[tokio::test]
async fn flipped_bits_are_found_and_the_block_is_fetched() {
    let (store, path) = counting().await;
    let place = Place::new();
    assert_eq!(read_all(&place, &store, &path).await.0, 0);
    assert_eq!(read_all(&place, &store, &path).await, (0, 0));
    let mut seed = 5;
    for turn in 0..100 {
        let entries = place.entries();
        assert_eq!(entries.len(), 4);
        let file = opened(&entries[turn % 4]);
        let bytes = file.metadata().unwrap().len();
        // A third of the flips is in the head.
        let at = splitmix::next(&mut seed) % if turn % 3 == 0 { 4096 } else { bytes };
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 1 << (splitmix::next(&mut seed) % 8);
        file.write_all_at(&byte, at).unwrap();
        drop(file);
        let (damaged, gets) = read_all(&place, &store, &path).await;
        assert_eq!(damaged, 1, "byte {at} of {bytes}");
        assert!(gets > 0);
        // Pages of the block that were read before the damaged one are absent now.
        assert_eq!(read_all(&place, &store, &path).await.0, 0);
    }
}

#[tokio::test]
async fn files_of_other_lengths_are_found() {
    let (store, path) = counting().await;
    let place = Place::new();
    read_all(&place, &store, &path).await;
    let mut seed = 6;
    for turn in 0..40 {
        let entry = &place.entries()[turn % 4];
        let file = opened(entry);
        let bytes = file.metadata().unwrap().len();
        // Without the bytes that a turn before has added.
        file.set_len(splitmix::next(&mut seed) % (bytes - 10_000)).unwrap();
        let (damaged, gets) = read_all(&place, &store, &path).await;
        assert_eq!(damaged, 1);
        assert!(gets > 0);
        // Pages of the block that were read before the damaged one are absent now.
        assert_eq!(read_all(&place, &store, &path).await.0, 0);
        // A longer file has the same pages.
        let file = opened(&place.entries()[turn % 4]);
        file.set_len(file.metadata().unwrap().len() + 10_000).unwrap();
        assert_eq!(read_all(&place, &store, &path).await, (0, 0));
    }
}

/// Whole files under other names, with valid checksums: of another block, and of another version.
#[tokio::test]
async fn exchanged_files_are_not_used() {
    let (store, path) = counting().await;
    let place = Place::new();
    read_all(&place, &store, &path).await;
    let entries = place.entries();
    std::fs::copy(&entries[0], &entries[1]).unwrap();
    assert_eq!(read_all(&place, &store, &path).await.0, 1);
    // The next version: its entries get the bytes of the older one.
    let older = place.entries();
    store.store.put(&path, content(1, 0..OBJECT_BYTES).into()).await.unwrap();
    let tier = place.tier(4 * MIB);
    read(&started(Arc::clone(&store), &tier), &path, 0..OBJECT_BYTES).await;
    tier.flush();
    for newer in place.entries().iter().filter(|entry| !older.contains(entry)) {
        // The last 16 digits of a name are the number of the block.
        let block = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name[name.len() - 16..].to_owned()
        };
        let same = older.iter().find(|older| block(older) == block(newer)).unwrap();
        std::fs::copy(same, newer).unwrap();
    }
    let bytes = read(&started(Arc::clone(&store), &tier), &path, 0..OBJECT_BYTES).await;
    assert!(bytes == content(1, 0..OBJECT_BYTES));
}

/// The ledger is counted again when it is damaged, removed files included.
#[tokio::test]
async fn damaged_ledger_is_counted_again() {
    let (store, path) = counting().await;
    let place = Place::new();
    let tier = place.tier(4 * MIB);
    let planned = started(Arc::clone(&store), &tier);
    read(&planned, &path, 0..300_000).await;
    tier.flush();
    opened(&place.0.join("ledger")).write_all_at(&[0xff; 7], 3).unwrap();
    std::fs::remove_file(&place.entries()[0]).unwrap();
    read(&planned, &path, 300_000..OBJECT_BYTES).await;
    tier.flush();
    place.assert_counted(4 * MIB, &tier);
}

//! Objects as files, with a disk tier.

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use readpath::{File, ReadPath};
use readpath_remote::disk::DiskTier;
use readpath_remote::file::{FileOptions, open_object, register_with};

use crate::place::Place;
use crate::support::{MIB, TestStore, content};

const OBJECT_BYTES: u64 = 3 * MIB + 5;

fn options(tier: &DiskTier) -> FileOptions {
    let disk = Some(tier.store("test://bucket"));
    FileOptions { path: ReadPath::builder().memory(MIB), disk, ..FileOptions::default() }
}

fn read_all(file: &File, version: u64) {
    let mut bytes = vec![0; 100_000];
    for start in (0..OBJECT_BYTES).step_by(100_000) {
        let count = file.read_at(&mut bytes, start).unwrap();
        assert!(bytes[..count] == content(version, start..start + count as u64));
    }
}

#[test]
fn second_opening_requests_no_kept_bytes() {
    let place = Place::new();
    let store = Arc::new(TestStore::new(InMemory::new()));
    let path = Path::from("folder/object");
    let put = |version| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = content(version, 0..OBJECT_BYTES).into();
        runtime.block_on(store.store.put(&path, bytes)).unwrap();
    };
    put(0);
    let open = |tier: &DiskTier| {
        let store: Arc<dyn ObjectStore> = Arc::clone(&store) as _;
        open_object(store, &path, options(tier)).unwrap()
    };
    let tier = place.tier(8 * MIB);
    let file = open(&tier);
    // One byte shows that the server has ranges.
    assert_eq!((store.gets(), store.heads(), store.body_bytes()), (1, 0, 1));
    read_all(&file, 0);
    tier.flush();
    assert!(store.body_bytes() >= OBJECT_BYTES);
    let before = (store.gets(), store.body_bytes());
    read_all(&open(&place.tier(8 * MIB)), 0);
    assert_eq!((store.gets(), store.body_bytes()), before);
    assert_eq!(store.heads(), 1);
    put(1);
    read_all(&open(&tier), 1);
    assert!(store.body_bytes() >= before.1 + OBJECT_BYTES);
}

/// A local object stands for all stores: the others need a server.
#[test]
fn files_by_url_have_the_disk_tier() {
    let place = Place::new();
    let object = Place::new();
    #[expect(clippy::disallowed_methods, reason = "the object is a local file")]
    std::fs::write(&object.0, content(0, 0..OBJECT_BYTES)).unwrap();
    let tier = place.tier(8 * MIB);
    register_with(FileOptions { disk: Some(tier.store("")), ..FileOptions::default() });
    let url = format!("file://{}", object.0.display());
    for pass in 0..2 {
        read_all(&ReadPath::builder().memory(MIB).open(&url).unwrap(), 0);
        tier.flush();
        let counters = tier.counters();
        assert!(counters.written_bytes >= OBJECT_BYTES, "{counters:?}");
        assert_eq!(counters.hit_bytes >= OBJECT_BYTES, pass == 1, "{counters:?}");
    }
    std::fs::remove_file(&object.0).unwrap();
}

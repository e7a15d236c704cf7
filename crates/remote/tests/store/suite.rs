//! The suite that `object_store` has for stores, plain and with faults.

use object_store::integration::*;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use readpath_remote::planner::PlannerOptions;
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

use crate::support::{Faults, TestStore};

/// The faults of one run.
const FAULTS: [Faults; 4] = [
    Faults { errors: 0, truncations: 0, extra_bytes: 0, breaks: 0, changes: 0 },
    Faults { errors: 3, truncations: 0, extra_bytes: 0, breaks: 0, changes: 0 },
    Faults { errors: 0, truncations: 3, extra_bytes: 5, breaks: 7, changes: 0 },
    Faults { errors: 5, truncations: 7, extra_bytes: 11, breaks: 13, changes: 100 },
];

/// A store over `store`, with a memory of 64 MiB and fetches of 256 KiB.
fn cached<S: ObjectStore>(store: S, faults: Faults) -> ReadpathStore<TestStore<S>> {
    let planner = PlannerOptions { part_bytes: 256 << 10, ..PlannerOptions::default() };
    // More than half of the answers have a fault in one of the runs, and five tasks write one
    // object in turn. A get that passes straight to the store would have the faults of its body.
    let (retries_max, repeats_max) = (20, 200);
    let options = StoreOptions { planner, retries_max, repeats_max, ..StoreOptions::default() };
    let store = TestStore { faults, ..TestStore::new(store) };
    ReadpathStore::new(store, options, TokioRuntime::current()).unwrap()
}

/// Runs the part of the suite that every store supports.
async fn pass_common_suite(store: &impl ObjectStore) {
    put_get_delete_list(store).await;
    list_with_offset_exclusivity(store).await;
    get_opts(store).await;
    list_uses_directories_correctly(store).await;
    list_with_delimiter(store).await;
    rename_and_copy(store).await;
    copy_if_not_exists(store).await;
    copy_rename_nonexistent_object(store).await;
    stream_get(store).await;
}

#[tokio::test]
async fn suite_passes_over_memory_plain_and_with_faults() {
    for faults in FAULTS {
        println!("{faults:?}");
        let store = cached(InMemory::new(), faults);
        pass_common_suite(&store).await;
        put_opts(&store, true).await;
        put_get_attributes(&store).await;
        multipart_out_of_order(&store).await;
        multipart_race_condition(&store, true).await;
        get_nonexistent_object(&store, None).await.unwrap_err();
        let counters = store.counters();
        assert!(counters.fetches > 200 && counters.hit_bytes > 0, "{counters:?}");
    }
}

#[tokio::test]
async fn suite_passes_over_local_files_plain_and_with_faults() {
    for (index, faults) in FAULTS.into_iter().enumerate() {
        println!("{faults:?}");
        let name = format!("remote-suite-{}-{index}", std::process::id());
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        // The local store has no attributes.
        let faults = Faults { changes: 0, ..faults };
        let store = cached(LocalFileSystem::new_with_prefix(&folder).unwrap(), faults);
        pass_common_suite(&store).await;
        put_opts(&store, false).await;
        multipart_out_of_order(&store).await;
        get_nonexistent_object(&store, None).await.unwrap_err();
        let left = object_store::path::Path::from("left");
        store.put(&left, "x".into()).await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

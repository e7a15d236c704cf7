//! Folders of the tests, and stores over them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use object_store::ObjectStore;
use object_store::path::Path as Location;
use readpath_remote::disk::{Admit, DiskOptions, DiskTier};
use readpath_remote::store::{ReadpathStore, StoreOptions, TokioRuntime};

use crate::support::{self, MIB, ranged};

/// A folder that is removed at the end.
pub struct Place(pub PathBuf);

static PLACES: AtomicU64 = AtomicU64::new(0);

impl Place {
    pub fn new() -> Place {
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("readpath-disk-{}-{number}", std::process::id());
        Place(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    /// A tier that writes everything.
    pub fn tier(&self, budget_bytes: u64) -> DiskTier {
        let options = DiskOptions::new(&self.0, budget_bytes);
        DiskTier::open(&DiskOptions { admission: Admit::All, ..options }).unwrap()
    }

    /// The files with blocks.
    pub fn entries(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.0).unwrap().map(|file| file.unwrap().path());
        let mut entries: Vec<PathBuf> =
            files.filter(|path| path.file_name().unwrap() != "ledger").collect();
        entries.sort();
        entries
    }

    /// Asserts that the folder is within the budget, and its ledger not too small. A file system
    /// may need a block more for an entry with many holes. After kills the ledger may be too large:
    /// an entry may have pages that its head does not name.
    pub fn assert_within(&self, budget_bytes: u64, tier: &DiskTier) {
        let (used, own) = self.used_bytes();
        let (holes, counted) = (4096 * self.entries().len() as u64, tier.counters().used_bytes);
        assert!(used <= budget_bytes + own + holes, "{used} of {budget_bytes}");
        assert!(own <= 64 << 10, "{own}");
        assert!(counted <= budget_bytes && counted + holes >= used - own, "{counted} of {used}");
    }

    /// Asserts in addition that the ledger is not too large.
    pub fn assert_counted(&self, budget_bytes: u64, tier: &DiskTier) {
        self.assert_within(budget_bytes, tier);
        let (used, own) = self.used_bytes();
        assert!(tier.counters().used_bytes <= used - own);
    }

    /// Allocated bytes of the folder and all its files, as `du` counts them, and the part of the
    /// folder itself and its ledger.
    pub fn used_bytes(&self) -> (u64, u64) {
        let allocated = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.blocks() * 512);
        let entries = self.entries();
        let own = allocated(&self.0) + allocated(&self.0.join("ledger"));
        (entries.iter().map(|entry| allocated(entry)).sum::<u64>() + own, own)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A tier may still write blocks that no test waits for.
        for _ in 0..1000 {
            if std::fs::remove_dir_all(&self.0).is_ok() || !self.0.exists() {
                break;
            }
            std::thread::yield_now();
        }
    }
}

/// Options with a small memory, without readahead.
pub fn options(tier: &DiskTier) -> StoreOptions {
    let mut options = support::options().with_disk(tier.store("test://bucket"));
    options.planner.memory_bytes = MIB;
    options.planner.part_bytes = 256 << 10;
    options
}

/// A store over `store` with an empty memory.
pub fn started<S: ObjectStore>(store: S, tier: &DiskTier) -> ReadpathStore<S> {
    ReadpathStore::new(store, options(tier), TokioRuntime::current()).unwrap()
}

/// The bytes of a range, in gets of up to 400,000 bytes: larger ones would pass the cache.
pub async fn read<S: ObjectStore>(
    store: &ReadpathStore<S>,
    path: &Location,
    range: std::ops::Range<u64>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for start in range.clone().step_by(400_000) {
        let part = ranged(start..range.end.min(start + 400_000));
        let result = store.get_opts(path, part).await.unwrap();
        bytes.extend(support::bytes_of(result).await.unwrap());
    }
    bytes
}

/// Runs an ignored test of this program in a process of its own, which must succeed.
pub fn run_alone(test: &str) {
    let own = std::env::current_exe().unwrap();
    let output = std::process::Command::new(own)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("running 1 test"), "{text}");
}

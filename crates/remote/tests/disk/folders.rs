//! Folders that are refused, and folders that fail.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use readpath_remote::disk::{DiskError, DiskOff, DiskOptions, DiskTier};

use crate::place::{Place, read, started};
use crate::support::{MIB, content};

const OBJECT_BYTES: u64 = 3 * MIB + 5;

fn path() -> Path {
    Path::from("folder/object")
}

async fn memory() -> Arc<InMemory> {
    let store = InMemory::new();
    store.put(&path(), content(0, 0..OBJECT_BYTES).into()).await.unwrap();
    Arc::new(store)
}

fn refusal(folder: &std::path::Path, budget_bytes: u64) -> DiskError {
    DiskTier::open(&DiskOptions::new(folder, budget_bytes)).unwrap_err()
}

#[test]
fn folder_is_created_for_its_user_alone() {
    let place = Place::new();
    let inner = Place(place.0.join("a/b"));
    place.tier(MIB);
    assert_eq!(inner.tier(MIB).counters().off, None);
    for folder in [&place.0, &inner.0] {
        assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o7777, 0o700);
    }
}

#[test]
fn foreign_folders_are_refused() {
    let place = Place::new();
    place.tier(MIB);
    assert!(matches!(refusal(&place.0, 4096), DiskError::SmallBudget { budget_bytes: 4096 }));
    let link = Place::new();
    symlink(&place.0, &link.0).unwrap();
    let refused = refusal(&link.0, MIB);
    std::fs::remove_file(&link.0).unwrap();
    assert!(matches!(refused, DiskError::NoFolder { .. }), "{refused}");
    std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(0o750)).unwrap();
    let refused = refusal(&place.0, MIB);
    assert!(matches!(refused, DiskError::OpenMode { mode: 0o750, .. }), "{refused}");
    assert!(refused.to_string().contains("chmod 0700"), "{refused}");
    std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(DiskTier::open(&DiskOptions::new(&place.0, MIB)).is_ok());
    // Only the superuser can give a folder away.
    if std::os::unix::fs::chown(&place.0, Some(1), None).is_ok() {
        let refused = refusal(&place.0, MIB);
        assert!(matches!(refused, DiskError::OtherOwner { owner: 1, .. }), "{refused}");
    }
}

/// A file in place of the folder, and a link in place of an entry.
#[tokio::test]
async fn links_within_the_folder_are_not_followed() {
    let (place, other) = (Place::new(), Place::new());
    let store = memory().await;
    let tier = place.tier(8 * MIB);
    read(&started(Arc::clone(&store), &tier), &path(), 0..OBJECT_BYTES).await;
    tier.flush();
    std::fs::create_dir(&other.0).unwrap();
    for entry in place.entries() {
        let moved = other.0.join(entry.file_name().unwrap());
        std::fs::rename(&entry, &moved).unwrap();
        symlink(moved, entry).unwrap();
    }
    let hits = tier.counters().hits;
    let bytes = read(&started(store, &tier), &path(), 0..OBJECT_BYTES).await;
    assert!(bytes == content(0, 0..OBJECT_BYTES));
    assert_eq!(tier.counters().hits, hits);
    std::fs::remove_dir_all(&place.0).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a file stands in the way")]
    std::fs::write(&place.0, "file").unwrap();
    assert!(matches!(refusal(&place.0, MIB), DiskError::NoFolder { .. }));
    std::fs::remove_file(&place.0).unwrap();
}

/// The reads go on, and the reason is in the counters.
#[tokio::test]
async fn deleted_folder_turns_the_tier_off() {
    let place = Place::new();
    let store = memory().await;
    let tier = place.tier(8 * MIB);
    let planned = started(store, &tier);
    read(&planned, &path(), 0..MIB).await;
    tier.flush();
    assert_eq!(tier.counters().off, None);
    std::fs::remove_dir_all(&place.0).unwrap();
    for _ in 0..2 {
        assert!(read(&planned, &path(), 0..OBJECT_BYTES).await == content(0, 0..OBJECT_BYTES));
        tier.flush();
    }
    let counters = tier.counters();
    assert_eq!((counters.off, counters.failures), (Some(DiskOff::FolderDeleted), 1));
    assert!(!place.0.exists());
    assert_eq!(place.tier(MIB).counters().off, None);
}

/// A folder below a file: nothing can be created there.
#[tokio::test]
async fn folder_that_cannot_be_created_turns_the_tier_off() {
    let place = Place::new();
    #[expect(clippy::disallowed_methods, reason = "a file stands in the way")]
    std::fs::write(&place.0, "file").unwrap();
    // `open` reports `ENOTDIR` here, as for a file in the last place.
    assert!(matches!(refusal(&place.0.join("below"), MIB), DiskError::NoFolder { .. }));
    std::fs::remove_file(&place.0).unwrap();
    let tier = DiskTier::open(&DiskOptions::new("/proc/readpath", MIB)).unwrap();
    let counters = tier.counters();
    assert_eq!((counters.off, counters.failures), (Some(DiskOff::FolderDeleted), 1));
    assert!(read(&started(memory().await, &tier), &path(), 5..50_000).await.len() == 49_995);
    assert_eq!(tier.counters().hits + tier.counters().misses, 0);
}

/// Runs the child below in namespaces of its own. In the mode `full` it has a file system of 1 MiB
/// at the folder, which ends with the child. Otherwise it is a user without privileges: the rights
/// of the folder hold for it. No effect if the system has no such namespaces for this user.
fn run_on_failing_disk(mode: &str) {
    let place = Place::new();
    std::fs::create_dir(&place.0).unwrap();
    std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    let script = match mode {
        "full" => r#"mount -t tmpfs -o size=1m,mode=0700 none "$1" && exec "$2" $3"#,
        _ => r#"exec "$2" $3"#,
    };
    let user = if mode == "full" { "--map-root-user" } else { "--map-user=1000" };
    let test = "--exact folders::child_reads_on_a_failing_disk --ignored --nocapture";
    let mut command = Command::new("unshare");
    command.args(["--user", user, "--mount", "sh", "-c", script, "sh"]).arg(&place.0);
    command.arg(std::env::current_exe().unwrap()).arg(test);
    command.env("DISK_FOLDER", &place.0).env("DISK_MODE", mode);
    let Ok(output) = command.output() else { return println!("no `unshare` here") };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if !text.contains("running 1 test") {
        return println!("no such namespace here: {text}");
    }
    assert!(output.status.success(), "{mode}: {text}");
}

#[test]
fn full_and_read_only_disks_turn_the_tier_off() {
    for mode in ["full", "read-only", "read-only at its start"] {
        run_on_failing_disk(mode);
    }
}

#[tokio::test]
#[ignore = "needs namespaces; started by the test above"]
async fn child_reads_on_a_failing_disk() {
    #[expect(clippy::disallowed_methods, reason = "arguments of a child")]
    let [folder, mode] = ["DISK_FOLDER", "DISK_MODE"].map(|name| std::env::var(name).unwrap());
    let place = std::mem::ManuallyDrop::new(Place(folder.into()));
    let set_mode = |mode| {
        std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    if mode == "read-only at its start" {
        set_mode(0o500);
    }
    let tier = place.tier(64 * MIB);
    let planned = started(memory().await, &tier);
    assert!(read(&planned, &path(), 0..500_000).await == content(0, 0..500_000));
    tier.flush();
    if mode == "read-only" {
        assert!(tier.counters().writes > 0);
        set_mode(0o500);
    }
    assert!(read(&planned, &path(), 0..OBJECT_BYTES).await == content(0, 0..OBJECT_BYTES));
    tier.flush();
    let counters = tier.counters();
    let reason = if mode == "full" { DiskOff::DiskFull } else { DiskOff::ReadOnly };
    assert_eq!((counters.off, counters.failures), (Some(reason), 1), "{counters:?}");
    // The next start finds a folder that is as good as its entries.
    let planned = started(memory().await, &place.tier(64 * MIB));
    assert!(read(&planned, &path(), 0..OBJECT_BYTES).await == content(0, 0..OBJECT_BYTES));
    set_mode(0o700);
}

/// A process holds the lock and does not end, as a child made by `fork` that inherited it.
#[test]
#[ignore = "waits for 30 s"]
fn tier_is_off_if_the_lock_stays_taken() {
    let place = Place::new();
    assert_eq!(place.tier(MIB).counters().off, None);
    let ledger = place.0.join("ledger");
    let mut command = Command::new("flock");
    let mut holder = command.arg("--no-fork").arg(&ledger).args(["sleep", "100"]).spawn().unwrap();
    let is_free = || Command::new("flock").arg("-n").arg(&ledger).arg("true").status().unwrap();
    while is_free().success() {
        assert!(holder.try_wait().unwrap().is_none(), "the lock was not taken");
    }
    let off = place.tier(MIB).counters().off;
    holder.kill().unwrap();
    holder.wait().unwrap();
    // EWOULDBLOCK
    assert_eq!(off, Some(DiskOff::Failed { errno: 11 }));
    assert_eq!(place.tier(MIB).counters().off, None);
}

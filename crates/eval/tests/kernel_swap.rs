//! Swap areas and memory cgroups on the running system. Without them a test prints the reason and
//! is skipped.

use std::fs;
use std::path::{Path, PathBuf};

use readpath_eval::kernel_swap::area::SwapArea;
use readpath_eval::kernel_swap::group::{MemoryGroup, Version};
use readpath_eval::kernel_swap::{SwapError, SwapLock};

const MIB: u64 = 1 << 20;

/// A folder below the build directory (a real file system), removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("kernel-swap-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits for the exclusive right to swap. `None` where swap is unavailable.
fn turn(test: &str) -> Option<SwapLock> {
    loop {
        match SwapLock::take() {
            Ok(Some(turn)) => return Some(turn),
            Ok(None) => std::thread::sleep(std::time::Duration::from_millis(20)),
            Err(error) => {
                println!("skipped: {test}: {error}");
                return None;
            }
        }
    }
}

/// Size in KiB and priority of an area in `/proc/swaps`.
fn listed(path: &Path) -> Option<(u64, i32)> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let line = swaps.lines().find(|line| line.starts_with(path.to_str().unwrap()))?;
    let columns: Vec<_> = line.split_whitespace().collect();
    Some((columns[2].parse().unwrap(), columns[4].parse().unwrap()))
}

#[test]
fn swap_area_has_the_requested_size_and_is_removed_with_its_file() {
    let test = "swap_area_has_the_requested_size_and_is_removed_with_its_file";
    let Some(_turn) = turn(test) else { return };
    let folder = Folder::new("size");
    // One file of a killed run, and two with similar names.
    for name in ["readpath-4194304-0.swap", "readpath-notes.swap", "readpath-7-0.swap.bak"] {
        fs::write(folder.0.join(name), "").unwrap();
    }
    let (area, cleanup_journal) = match SwapArea::on(&folder.0, 10 * MIB) {
        Ok(made) => made,
        Err(error) => return println!("skipped: {test}: {error}"),
    };
    assert_eq!(cleanup_journal.len(), 1);
    assert_eq!(cleanup_journal[0].path, folder.0.join("readpath-4194304-0.swap"));
    // The kernel counts the pages after the header: the requested size.
    assert_eq!(listed(area.path()), Some((10 * 1024, 32_767)));
    assert_eq!(area.device(), None);
    // A second run in the same folder does not affect the first one's file.
    let (second, cleanup_journal) = SwapArea::on(&folder.0, MIB).unwrap();
    assert_eq!((cleanup_journal.len(), listed(second.path())), (0, Some((1024, 32_767))));
    let path = area.path().to_path_buf();
    drop((area, second));
    assert_eq!(listed(&path), None);
    assert_eq!(folder.names(), ["readpath-7-0.swap.bak", "readpath-notes.swap"]);
}

#[test]
fn unsuitable_swap_file_is_refused_and_unchanged() {
    let test = "unsuitable_swap_file_is_refused_and_unchanged";
    let Some(_turn) = turn(test) else { return };
    let folder = Folder::new("given");
    let path = folder.0.join("data");
    fs::write(&path, vec![7u8; MIB as usize]).unwrap();
    let refused = SwapArea::on(&path, MIB).unwrap_err();
    assert!(matches!(refused, SwapError::TooSmall { bytes: MIB, .. }), "{refused}");
    assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 7), "nothing was written");
    assert!(matches!(
        SwapArea::check(Path::new("/dev/null"), MIB),
        Err(SwapError::NotStorage { .. })
    ));
    // Holes have no blocks on the device. The message names the remedy.
    let file = fs::File::create(&path).unwrap();
    file.set_len(2 * MIB).unwrap();
    let refused = SwapArea::on(&path, MIB).unwrap_err().to_string();
    assert!(refused.contains("no holes"), "{refused}");
    assert_eq!(folder.names(), ["data"]);
}

#[test]
fn memory_group_has_its_limit_and_is_removed() {
    let test = "memory_group_has_its_limit_and_is_removed";
    let (group, _) = match MemoryGroup::new(8 * MIB) {
        Ok(made) => made,
        Err(error) => return println!("skipped: {test}: {error}"),
    };
    let path = group.path().to_path_buf();
    let knob = match group.version() {
        Version::One => "memory.limit_in_bytes",
        Version::Two => "memory.max",
    };
    assert_eq!(fs::read_to_string(path.join(knob)).unwrap().trim(), (8 * MIB).to_string());
    assert_eq!(group.counts().oom_kills, 0);
    // A second group, as of another run, does not affect this empty one.
    let (second, cleanup_journal) = MemoryGroup::new(8 * MIB).unwrap();
    assert!(cleanup_journal.iter().all(|cleanup_entry| cleanup_entry.path != path));
    drop(second);
    assert!(path.exists());
    drop(group);
    assert!(!path.exists());
}

//! Window of a mapping.

use super::*;

/// A file in memory (tmpfs(5)) has no device. The kernel's default is 32 pages
/// (`VM_READAHEAD_PAGES`).
#[test]
fn mapping_window_is_the_devices_or_the_kernels_default() {
    // Windows in bytes: of a mapping of a file in the folder, and of the folder's device.
    let windows_in = |folder: &Path| {
        let path = folder.join(format!("readpath-window-{}", std::process::id()));
        std::fs::write(&path, [1]).unwrap();
        let target = Target::open(&path, OpenOptions::default());
        std::fs::remove_file(&path).unwrap();
        let target = target.unwrap();
        (device_window_bytes(&target), target.queue().map_or(0, |queue| queue.read_ahead_bytes))
    };
    let (mapping_bytes, device_bytes) = windows_in(Path::new(env!("CARGO_MANIFEST_DIR")));
    let default_bytes = 32 * 4_096;
    assert_eq!(mapping_bytes, if device_bytes > 0 { device_bytes } else { default_bytes });
    let folder_in_memory = Path::new("/dev/shm");
    if folder_in_memory.is_dir() {
        assert_eq!(windows_in(folder_in_memory), (default_bytes, 0));
    }
}

//! The process takes no more memory than the limit and the documented overhead. The only test of
//! its program, since it measures the whole process.

mod support;

use readpath::ReadPath;
use support::TempFile;

const FILE_BYTES: usize = 96 << 20;
const MEMORY_BYTES: u64 = 24 << 20;

/// Resident memory of this process in bytes (proc_pid_statm(5)).
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn path_memory_stays_within_the_limit() {
    let temp = TempFile::new(FILE_BYTES);
    let mut buffer = vec![1; 1 << 20];
    let before = resident();
    let path = ReadPath::builder().kernel_cache(false).memory(MEMORY_BYTES).build().unwrap();
    let file = path.open(&temp.path).unwrap();
    let mut most = 0;
    for _ in 0..3 {
        for offset in (0..FILE_BYTES as u64).step_by(1 << 20) {
            file.read_at(&mut buffer, offset).unwrap();
            most = most.max(resident());
        }
        let mut batch = path.batch();
        for at in 0..3000 {
            batch.read(&file, at * 7_919_000 % FILE_BYTES as u64, 16_384, at).unwrap();
            if at >= 64 {
                batch.wait().unwrap();
            }
        }
        most = most.max(resident());
    }
    let grown = most.saturating_sub(before);
    // 160 bytes per page and 1.3 MiB, as documented by `Builder::memory`. The last huge page may
    // reach 2 MiB further.
    let allowed = MEMORY_BYTES + MEMORY_BYTES / 4096 * 160 + (1 << 20) + (310 << 10) + (2 << 20);
    println!("grown by {} KiB of {} KiB", grown >> 10, allowed >> 10);
    assert!(grown >= MEMORY_BYTES / 2, "the cache is in use, or the figure is not what it seems");
    assert!(grown <= allowed, "grown by {grown} bytes; {allowed} at most");
}

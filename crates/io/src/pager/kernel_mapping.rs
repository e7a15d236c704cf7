//! Selects the files that the kernel's own mapping reads no slower than a user-space server.
//!
//! A page served in user space is cleared, filled and moved, which takes some microseconds of
//! processor time. The kernel serves a fault with the surrounding pages (`read_ahead_kb` of the
//! device) for a tenth of that time. It does not hide the device's service time of each such
//! window. The kernel is therefore no slower if a window arrives within the time that user space
//! would need for its pages. Disks, network servers and most small windows do not meet this
//! condition.
//!
//! The pages that the kernel reads and the program never touches are limited by two conditions on
//! the file. It has at most [`KERNEL_MISSES_MAX`] windows, the number after which the kernel stops
//! to read around a fault. It also fits into half of the free memory. In a larger file with random
//! access the kernel would first read many times the touched bytes, and then page by page.
//! Readahead policies serve those files better.

use std::time::Duration;

use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;

use crate::backend::execute_transfer;
use crate::os::raw_memory::RawMemory;
use crate::os::sync::now;
use crate::os::system_memory::SystemMemory;
use crate::target::{Mode, Target};

/// Excess of misses over hits after which the kernel reads only the touched page (`MMAP_LOTSAMISS`
/// in mm/filemap.c; confirmed on the running kernel).
const KERNEL_MISSES_MAX: u64 = 100;

/// Processor time of one page served in user space. A stream of 256 MiB in pieces of 64 KiB took
/// 0.17 s, and 0.02 s by the kernel (row `map/stream/64KiB` of the benchmark `readpath bench`).
const SERVICE_TIME_PER_PAGE: Duration = Duration::from_nanos(2_500);

/// Number of test reads. The shortest one counts: another program can only make a read longer. The
/// number is chosen, not measured.
const TEST_READS: u64 = 2;

/// True if the kernel's own mapping of the file is no slower than a served one: the file meets both
/// conditions of the module, and the [device is fast](is_device_fast). False without direct I/O,
/// and if the device or the free memory is not known. Makes test reads if the conditions are met.
pub(super) fn is_kernel_mapping_as_fast(target: &Target) -> bool {
    let Some(queue) = target.queue().filter(|_| target.mode() == Mode::Direct) else {
        return false;
    };
    target.bytes() <= KERNEL_MISSES_MAX * queue.read_ahead_bytes
        && SystemMemory::measure()
            .is_some_and(|memory| target.bytes() <= memory.available_bytes / 2)
        && is_device_fast(target)
}

/// True if the device returns a readahead window of the kernel within the serving time of its
/// pages. False without direct I/O, if the window is not known, and if a test read fails.
pub(super) fn is_device_fast(target: &Target) -> bool {
    let window_bytes = target.queue().map_or(0, |queue| queue.read_ahead_bytes);
    target.mode() == Mode::Direct
        && page_read_time(target)
            .is_some_and(|request_time| is_within_service_time(request_time, window_bytes))
}

/// True if a request of this duration takes no longer than serving the pages of a window of
/// `window_bytes` bytes in user space.
fn is_within_service_time(request_time: Duration, window_bytes: u64) -> bool {
    request_time
        <= SERVICE_TIME_PER_PAGE * u32::try_from(window_bytes / PAGE_BYTES).unwrap_or(u32::MAX)
}

/// Shortest duration of the device's test reads of one page each. Returns `None` if a read fails.
fn page_read_time(target: &Target) -> Option<Duration> {
    let mut page = RawMemory::new(PAGE_BYTES as usize).ok()?;
    // Whole pages. A file of less than a page is read at offset 0.
    let pages = target.bytes() / PAGE_BYTES;
    let time_test_read = |test_read: u64| {
        let offset = test_read_offset(pages, test_read);
        let segment = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: page.len() };
        let started = now();
        // SAFETY: the memory belongs to this function, and the target is open.
        let bytes = unsafe { execute_transfer(target.transfer_fd(), Op::Read, offset, &[segment]) };
        // A negative number is an error.
        (bytes >= 0).then(|| now().duration_since(started))
    };
    // The `None` of a failed read is less than any duration.
    (0..TEST_READS).map(time_test_read).min().flatten()
}

/// Offset in bytes of the test read number `test_read`, from 0, in a file of `pages` pages. It is
/// the page start in the middle of this one of [`TEST_READS`] equal parts.
fn test_read_offset(pages: u64, test_read: u64) -> u64 {
    pages * (2 * test_read + 1) / (2 * TEST_READS) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Direct, OpenOptions};

    /// By hand: serving the 32 pages of the kernel's default of 128 KiB takes 80 µs, and the 2,048
    /// pages of 8 MiB take 5.12 ms.
    #[test]
    fn window_is_hidden_if_read_within_its_pages_service_time() {
        let cases = [(80, 128 << 10, true), (81, 128 << 10, false), (5_120, 8 << 20, true)];
        for (request_us, window_bytes, is_within) in cases {
            let request_time = Duration::from_micros(request_us);
            assert_eq!(is_within_service_time(request_time, window_bytes), is_within);
        }
        // A device without readahead has no window.
        assert!(!is_within_service_time(Duration::from_micros(1), 0));
    }

    /// By hand: the middle pages of the halves of 1,001 pages are the 250th and the 750th.
    #[test]
    fn probe_offsets_are_the_middles_of_the_file_halves() {
        let offsets_in = |pages: u64| [0, 1].map(|test_read| test_read_offset(pages, test_read));
        assert_eq!(offsets_in(1_001), [1_024_000, 3_072_000]);
        assert_eq!(offsets_in(0), [0, 0]);
    }

    /// A sparse file returns each window at once. Even so, the kernel would read unused windows at
    /// more offsets than its limit of misses.
    #[test]
    fn file_with_too_many_windows_is_served_in_user_space() {
        let name = format!("{}/left-to-kernel-{}", env!("CARGO_MANIFEST_DIR"), std::process::id());
        let file = std::fs::File::create_new(&name).unwrap();
        let options = OpenOptions { direct: Direct::Preferred, is_writable: false };
        let target_of_length = |bytes: u64| {
            file.set_len(bytes).unwrap();
            Target::open(name.as_ref(), options).unwrap()
        };
        let small_target = target_of_length(PAGE_BYTES);
        let window_bytes = small_target.queue().map_or(128 << 10, |queue| queue.read_ahead_bytes);
        let target = target_of_length(KERNEL_MISSES_MAX * window_bytes + PAGE_BYTES);
        std::fs::remove_file(&name).unwrap();
        assert!(!is_kernel_mapping_as_fast(&target));
    }
}

//! Which files are left to the kernel's own mapping, since it brings them in no slower than a server of ours could.
//!
//! A page that we serve is cleared, filled and moved to where it was touched: that costs some microseconds of a
//! processor. The kernel serves a fault with the pages around it, as many as it reads ahead on the device (`read_ahead_kb`), for a
//! tenth of that; what it can't hide is how long the device takes for each such window. So it is no slower where a window
//! comes within the time that we take for its pages; a disk's, a server's and most small windows don't.
//!
//! What it brings in that nobody touches is bounded by the file: one that has no more than the [`MISSES_MAX`] windows by which
//! the kernel finds out that reading around is in vain, and that fits into half of the memory that is free. Of a larger file touched at
//! random it would bring in many times what is used, and then page after page; that is what the laws are for.

use std::time::Duration;

use readpath_core::request::Op;
use readpath_core::unit::PAGE_BYTES;

use crate::backend::carry;
use crate::raw::RawMemory;
use crate::spare_memory::SpareMemory;
use crate::sync::now;
use crate::target::{Mode, Target};

/// After so many misses more than hits the kernel reads no more than the page that is touched (`MMAP_LOTSAMISS`; the
/// running kernel shows the same).
const MISSES_MAX: u64 = 100;

/// What one page costs that is served: a stream of 256 MiB by 64 KiB took 0.17 s of processor time, and the kernel's 0.02
/// (`readpath everyday`, row `map/stream/64KiB`).
const SERVED_PAGE: Duration = Duration::from_nanos(2_500);

/// So often the device is asked how long it takes; the best counts.
const PROBES: u64 = 2;

/// Whether the kernel's own mapping of the file is no slower than one that is served.
pub(super) fn suits(target: &Target) -> bool {
    let Some(queue) = target.queue().filter(|_| target.mode() == Mode::Direct) else {
        return false;
    };
    target.bytes() <= MISSES_MAX * queue.read_ahead_bytes
        && SpareMemory::now().is_some_and(|memory| target.bytes() <= memory.available / 2)
        && is_swift(target)
}

/// Whether the device gives a window of the kernel's readahead within the time that its pages would take to be served.
pub(super) fn is_swift(target: &Target) -> bool {
    let window_bytes = target.queue().map_or(0, |queue| queue.read_ahead_bytes);
    target.mode() == Mode::Direct
        && request_time(target).is_some_and(|took| is_hidden(took, window_bytes))
}

/// Whether a window comes within the time that its pages would take to be served.
fn is_hidden(request: Duration, window_bytes: u64) -> bool {
    request <= SERVED_PAGE * u32::try_from(window_bytes / PAGE_BYTES).unwrap_or(u32::MAX)
}

/// How long the device takes for a page of the file, at least; `None` where it fails.
fn request_time(target: &Target) -> Option<Duration> {
    let mut page = RawMemory::new(PAGE_BYTES as usize).ok()?;
    let pages = target.bytes() / PAGE_BYTES;
    let probe = |nth: u64| {
        let offset = offset_to_probe(pages, nth);
        let segment = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: page.len() };
        let begun = now();
        // SAFETY: memory of our own, and the target is open.
        let bytes = unsafe { carry(target.transfer_fd(), Op::Read, offset, &[segment]) };
        (bytes >= 0).then(|| now().duration_since(begun))
    };
    (0..PROBES).map(probe).min().flatten()
}

/// Where a file of `pages` pages is read for a probe: each in the middle of a part of its own, and at a page's begin.
fn offset_to_probe(pages: u64, nth: u64) -> u64 {
    pages * (2 * nth + 1) / (2 * PROBES) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Direct, OpenOptions};

    /// By hand: the 32 pages of the kernel's default of 128 KiB take 80 us to be served, the 2,048 of 8 MiB 5.12 ms.
    #[test]
    fn a_window_is_hidden_by_the_time_that_its_pages_would_take() {
        let cases = [(80, 128 << 10, true), (81, 128 << 10, false), (5_120, 8 << 20, true)];
        for (micros, window_bytes, is) in cases {
            assert_eq!(is_hidden(Duration::from_micros(micros), window_bytes), is);
        }
        assert!(!is_hidden(Duration::from_micros(1), 0));
    }

    /// By hand: of the two halves of 1,001 pages the page in the middle of each, the 250th and the 750th.
    #[test]
    fn each_half_of_a_file_is_probed_in_its_middle() {
        assert_eq!([0, 1].map(|nth| offset_to_probe(1_001, nth)), [1_024_000, 3_072_000]);
        assert_eq!([0, 1].map(|nth| offset_to_probe(0, nth)), [0, 0]);
    }

    /// Of a file without bytes on the device each window comes at once; and still the kernel would read in vain around
    /// each of more places than it takes to find that out.
    #[test]
    fn a_file_of_more_windows_than_the_kernel_reads_in_vain_is_served_however_swift() {
        let name = format!("{}/left-to-kernel-{}", env!("CARGO_MANIFEST_DIR"), std::process::id());
        let file = std::fs::File::create_new(&name).unwrap();
        let options = OpenOptions { direct: Direct::Preferred, is_writable: false };
        let of = |bytes: u64| {
            file.set_len(bytes).unwrap();
            Target::open(name.as_ref(), options).unwrap()
        };
        let window_bytes = of(PAGE_BYTES).queue().map_or(128 << 10, |queue| queue.read_ahead_bytes);
        let target = of(MISSES_MAX * window_bytes + PAGE_BYTES);
        std::fs::remove_file(&name).unwrap();
        assert!(!suits(&target));
    }
}

//! Readahead windows of a device, compared by direct reads of one file.
//!
//! The kernel requests the next window when a program reaches the one before. A program that reads
//! in order thus has two windows in flight. Direct reads of the size of a window, two at a time, do
//! the same and leave the page cache alone. Each round tries the windows in turn, at positions that
//! no other try has read. A window that is far behind is not tried again.
//!
//! A program may instead wait for one request of its own at a time. Its requests are compared with
//! larger ones.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use readpath_core::unit::PAGE_BYTES;

use crate::direct_reads::{Request, seconds_per_read};
use crate::median::middle;

/// Number of rounds, chosen.
const ROUNDS: usize = 3;

/// Number of windows in flight in a program that reads in order.
const WINDOWS_IN_FLIGHT: usize = 2;

/// Windows that are compared with the present one, in bytes. Chosen.
const WINDOWS: [u64; 4] = [128 << 10, 512 << 10, 2 << 20, 8 << 20];

/// Largest window that is read, in bytes. Chosen.
const WINDOW_BYTES_MAX: u64 = 16 << 20;

/// Least number of bytes that a try reads, chosen.
const TRY_BYTES: u64 = 2 << 20;

/// Least number of windows that a try reads, chosen.
const TRY_WINDOWS: u64 = 8;

/// Number of requests of a try after which its rate is known well enough to limit the rest. Chosen.
const FIRST_REQUESTS: usize = 16;

/// Part of the time of a limited round that requests of the present size may take, if they are at
/// least twice [`FIRST_REQUESTS`]. Chosen: the others move most of the bytes.
const PRESENT_PART_MAX: f64 = 0.3;

/// Length in bytes that a file needs: each try of the largest window has its own positions.
pub const FILE_BYTES_MIN: u64 = 64 << 20;

/// Number of ranges of a file that are looked at, chosen.
const SEEKS_MAX: usize = 10_000;

/// Time of a window relative to the fastest, up to which a smaller window is preferred. Chosen.
const NEARLY_FASTEST_RATIO: f64 = 1.1;

/// Time of a window relative to the fastest, from which on it is not tried again. Chosen.
const FAR_BEHIND_RATIO: f64 = 1.5;

/// A window and the rate of reads with it.
#[derive(Clone, Debug, PartialEq)]
pub struct TriedWindow {
    /// Window in bytes.
    pub bytes: u64,
    /// Number of requests of all rounds.
    pub requests: u64,
    /// Seconds for each byte, one value per round, in ascending order.
    pub seconds_per_byte: Vec<f64>,
}

impl TriedWindow {
    /// Median of the rounds, in seconds per byte.
    pub fn median(&self) -> f64 {
        middle(&self.seconds_per_byte)
    }
}

/// Windows that were compared.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowTrial {
    /// The present window, then others.
    pub tried: Vec<TriedWindow>,
    /// Index of the present window if it is as fast as the fastest one, within 10 %. Otherwise,
    /// index of the smallest window that is.
    pub chosen: usize,
    /// False if windows were left out for lack of time.
    pub is_complete: bool,
}

/// Compares the present window with others by reads of a file that is open for direct reads, from a
/// position on. Only written data is read: a hole needs no device request. A present window of 0
/// bytes means that readahead is off; it reads single pages. The rounds take as long as the device
/// needs. Returns `None` if `should_continue` returned false.
///
/// # Errors
/// A read failed, or the file has less than [`FILE_BYTES_MIN`] bytes of written data in ranges of
/// at least the largest window (`InvalidInput`).
pub fn compare(
    file: &File,
    offset: u64,
    present_bytes: u64,
    should_continue: &mut dyn FnMut() -> bool,
) -> io::Result<Option<WindowTrial>> {
    compare_sizes(file, offset, &ComparedSizes::windows(present_bytes), should_continue)
}

/// Sizes of requests that are compared, and their numbers in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComparedSizes {
    /// Present size in bytes. 0 means single pages.
    pub present_bytes: u64,
    /// Number of requests of the present size in flight.
    pub present_in_flight: usize,
    /// Size in bytes above which others are compared with it.
    pub larger_than_bytes: u64,
    /// Number of requests of the other sizes in flight.
    pub in_flight: usize,
    /// Time of a round, beyond which no request of it begins. `None` without a limit.
    pub round_time_max: Option<Duration>,
}

impl ComparedSizes {
    /// Returns the sizes for a comparison of a present readahead window in bytes with the others,
    /// without a limit of time.
    pub fn windows(present_bytes: u64) -> ComparedSizes {
        ComparedSizes {
            present_bytes,
            present_in_flight: WINDOWS_IN_FLIGHT,
            larger_than_bytes: 0,
            in_flight: WINDOWS_IN_FLIGHT,
            round_time_max: None,
        }
    }
}

/// Compares request sizes as [`compare`] does. With a limit of time, a size whose first try is not
/// complete in its round is left out, with all larger ones.
///
/// # Errors
/// As of [`compare`]. Requests of the present size took longer than a round may (`TimedOut`).
pub(crate) fn compare_sizes(
    file: &File,
    offset: u64,
    sizes: &ComparedSizes,
    should_continue: &mut dyn FnMut() -> bool,
) -> io::Result<Option<WindowTrial>> {
    let ranges = written_ranges(file)?;
    if total_bytes(&ranges) < FILE_BYTES_MIN {
        let problem = "too little of it is written, without holes";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let read =
        |request: &Request, memory: &mut [u8]| file.read_at(memory, request.offset).map(drop);
    compare_in_ranges(&ranges, offset, sizes, &read, should_continue)
}

/// Performs one request into memory of its length.
type ReadFn<'a> = dyn Fn(&Request, &mut [u8]) -> io::Result<()> + Sync + 'a;

/// Compares request sizes within ranges of a file. `ranges`: as of [`written_ranges`].
fn compare_in_ranges(
    ranges: &[Range<u64>],
    offset: u64,
    sizes: &ComparedSizes,
    read: &ReadFn,
    should_continue: &mut dyn FnMut() -> bool,
) -> io::Result<Option<WindowTrial>> {
    let mut others = compared_windows(sizes.present_bytes);
    let present = others.next();
    let others = others.filter(|bytes| *bytes > sizes.larger_than_bytes);
    let mut tried: Vec<TriedWindow> = present
        .into_iter()
        .chain(others)
        .map(|bytes| TriedWindow { bytes, requests: 0, seconds_per_byte: Vec::new() })
        .collect();
    let compared_count = tried.len();
    let mut position = offset / PAGE_BYTES * PAGE_BYTES;
    for _ in 0..ROUNDS {
        let deadline = sizes.round_time_max.map(|time| Instant::now() + time);
        // Fastest time per byte of the first round. Infinite during that round.
        let fastest_per_byte = tried
            .iter()
            .filter_map(|window| window.seconds_per_byte.first().copied())
            .fold(f64::INFINITY, f64::min);
        for index in 0..tried.len() {
            if !should_continue() {
                return Ok(None);
            }
            let window = &tried[index];
            // The present window is compared in each round.
            let is_behind = window
                .seconds_per_byte
                .first()
                .is_some_and(|per_byte| *per_byte > FAR_BEHIND_RATIO * fastest_per_byte);
            if is_behind && index > 0 {
                continue;
            }
            let mut requests = requests_of_try(window.bytes, ranges, &mut position);
            let in_flight = if index == 0 { sizes.present_in_flight } else { sizes.in_flight };
            // Only requests of at most 64 KiB reach this number. They can only have the present
            // size. The first ones are not counted. If they are late, the rest is late as well.
            if let Some(time) = sizes.round_time_max
                && requests.len() >= 2 * FIRST_REQUESTS
            {
                let first = try_requests(read, &requests[..FIRST_REQUESTS], in_flight, deadline)?;
                let count_max = time.as_secs_f64() * PRESENT_PART_MAX / first.unwrap_or(f64::MAX);
                requests.drain(..FIRST_REQUESTS);
                requests.truncate((count_max as usize).max(FIRST_REQUESTS));
            }
            let Some(seconds) = try_requests(read, &requests, in_flight, deadline)? else {
                if index == 0 {
                    let problem = "the device is too slow for a measurement";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
                }
                // Larger ones move more bytes. In a later round a size has times of its own.
                tried.retain(|window| !window.seconds_per_byte.is_empty());
                break;
            };
            let window = &mut tried[index];
            window.requests += requests.len() as u64;
            // All requests of a try have the same size.
            window.seconds_per_byte.push(seconds / requests[0].bytes as f64);
        }
    }
    let is_complete = tried.len() == compared_count;
    Ok(Some(choose_window(tried, is_complete)))
}

/// Performs the requests of a try, and returns the seconds per request. `None` if one of them would
/// have begun after the deadline.
///
/// # Errors
/// As of [`seconds_per_read`].
fn try_requests(
    read: &ReadFn,
    requests: &[Request],
    in_flight: usize,
    deadline: Option<Instant>,
) -> io::Result<Option<f64>> {
    let is_late = AtomicBool::new(false);
    let read_in_time = |request: &Request, memory: &mut [u8]| {
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            is_late.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::TimedOut.into());
        }
        read(request, memory)
    };
    match seconds_per_read(read_in_time, requests, in_flight) {
        // An error of the storage is not taken for the end of the round.
        Err(error) if error.kind() == io::ErrorKind::TimedOut && is_late.into_inner() => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Returns the present window, limited to [`WINDOW_BYTES_MAX`], and the others that are compared
/// with it, in bytes.
fn compared_windows(present_bytes: u64) -> impl Iterator<Item = u64> {
    let present_window =
        present_bytes.next_multiple_of(PAGE_BYTES).clamp(PAGE_BYTES, WINDOW_BYTES_MAX);
    [present_window]
        .into_iter()
        .chain(WINDOWS.into_iter().filter(move |bytes| *bytes != present_window))
}

/// Returns the ranges of written data of at least [`WINDOW_BYTES_MAX`], each rounded inwards to
/// whole pages, as begin and end in bytes. At most [`SEEKS_MAX`] ranges are looked at. Moves the
/// file position.
///
/// Holes are left out, with preallocated space (`fallocate(2)`), which ext4, XFS and Btrfs report
/// as holes. A block device, or a file system without this report, is one range.
fn written_ranges(file: &File) -> io::Result<Vec<Range<u64>>> {
    // The metadata of a block device has no length.
    let file_bytes = rustix::fs::seek(file, SeekFrom::End(0))?;
    let (mut ranges, mut position) = (Vec::new(), 0);
    for _ in 0..SEEKS_MAX {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(position)) {
            Ok(begin) => begin,
            // The rest of the file is a hole, or the file has ended.
            Err(Errno::NXIO) => break,
            Err(_) => position,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(begin)).unwrap_or(file_bytes);
        // At least one byte further, so that the loop advances.
        position = end.max(begin + 1);
        let range = begin.next_multiple_of(PAGE_BYTES)..end / PAGE_BYTES * PAGE_BYTES;
        if range.end >= range.start + WINDOW_BYTES_MAX {
            ranges.push(range);
        }
        if position >= file_bytes {
            break;
        }
    }
    Ok(ranges)
}

/// Returns the total length of the ranges.
fn total_bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Returns the number of bytes of a file that [`compare`] can read: its written data, in ranges of
/// at least the largest window. Moves the file position.
///
/// # Errors
/// The file cannot be positioned.
pub fn comparable_bytes(file: &File) -> io::Result<u64> {
    Ok(total_bytes(&written_ranges(file)?))
}

/// Returns the requests of one try in order, from `position` on, and advances `position`. Each lies
/// in one of the ranges, of which there is at least one, of at least a window. The first range
/// follows the last one.
fn requests_of_try(window_bytes: u64, ranges: &[Range<u64>], position: &mut u64) -> Vec<Request> {
    let count = TRY_WINDOWS.max(TRY_BYTES / window_bytes);
    let request = |_| {
        let has_room = |range: &&Range<u64>| range.start.max(*position) + window_bytes <= range.end;
        let range = ranges.iter().find(has_room);
        let offset = range.map_or(ranges[0].start, |range| range.start.max(*position));
        *position = offset + window_bytes;
        // There is one file, and each request is one read.
        Request { file: 0, offset, bytes: window_bytes, reads: 1.0 }
    };
    (0..count).map(request).collect()
}

/// Sorts the times of each window and chooses a window by the rule of [`WindowTrial::chosen`].
/// `tried`: the present window first.
fn choose_window(mut tried: Vec<TriedWindow>, is_complete: bool) -> WindowTrial {
    for window in &mut tried {
        window.seconds_per_byte.sort_by(f64::total_cmp);
    }
    let fastest = tried.iter().map(TriedWindow::median).fold(f64::INFINITY, f64::min);
    let is_nearly_fastest = |index: usize| tried[index].median() <= NEARLY_FASTEST_RATIO * fastest;
    let nearly_fastest = (0..tried.len()).filter(|index| is_nearly_fastest(*index));
    let smallest = nearly_fastest.min_by_key(|index| tried[*index].bytes).unwrap_or(0);
    let chosen = if is_nearly_fastest(0) { 0 } else { smallest };
    WindowTrial { tried, chosen, is_complete }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Requests of a device with one request at a time: 1 ms, and 10 ms for each MiB.
    fn serial_device() -> impl Fn(&Request, &mut [u8]) -> io::Result<()> + Sync {
        let device = std::sync::Mutex::new(());
        move |request, _| {
            let _turn = device.lock().unwrap();
            std::thread::sleep(Duration::from_micros(1000 + request.bytes * 10_000 / (1 << 20)));
            Ok(())
        }
    }

    /// By hand: 32 requests of 64 KiB take 52 ms, 16 of 128 KiB 36 ms, 8 of 512 KiB 48 ms and 8 of
    /// 2 MiB 168 ms. The last of 8 requests of 8 MiB would begin after 870 ms, beyond a round of
    /// 600 ms. Without a limit all sizes are tried.
    #[test]
    fn size_that_takes_longer_than_a_round_is_left_out() {
        let ranges = [Range { start: 0, end: 64 << 20 }];
        let device = serial_device();
        let sizes_kib = |round_time_max| {
            let sizes = ComparedSizes { round_time_max, ..ComparedSizes::windows(64 * KIB) };
            let trial = compare_in_ranges(&ranges, 0, &sizes, &device, &mut || true).unwrap();
            let WindowTrial { tried, is_complete, .. } = trial.unwrap();
            let sizes: Vec<u64> = tried.iter().map(|window| window.bytes / KIB).collect();
            (sizes, is_complete)
        };
        let round_time = Some(Duration::from_millis(600));
        assert_eq!(sizes_kib(round_time), (vec![64, 128, 512, 2048], false));
        assert_eq!(sizes_kib(None), (vec![64, 128, 512, 2048, 8192], true));
    }

    /// A device of 1 ms a request completes no 16 of them in 5 ms.
    #[test]
    fn present_size_that_takes_longer_than_a_round_is_an_error() {
        let ranges = [Range { start: 0, end: 64 << 20 }];
        let round_time_max = Some(Duration::from_millis(5));
        let sizes = ComparedSizes { round_time_max, ..ComparedSizes::windows(128 * KIB) };
        let error = compare_in_ranges(&ranges, 0, &sizes, &serial_device(), &mut || true);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// The present window comes first, then the four fixed ones. A window of 0 means single pages.
    #[test]
    fn present_window_is_compared_with_others() {
        let windows_kib = |present_kib: u64| {
            compared_windows(present_kib * KIB).map(|bytes| bytes / KIB).collect::<Vec<u64>>()
        };
        assert_eq!(windows_kib(128), [128, 512, 2048, 8192]);
        assert_eq!(windows_kib(4096), [4096, 128, 512, 2048, 8192]);
        assert_eq!(windows_kib(0), [4, 128, 512, 2048, 8192]);
    }

    /// By hand: 16 requests of 128 KiB, from 256 KiB before the end on. The third begins at 0.
    #[test]
    fn requests_continue_at_the_start_of_the_file() {
        let end = 64 << 20;
        let mut position = end - 256 * KIB;
        let requests = requests_of_try(128 * KIB, &[Range { start: 0, end }], &mut position);
        let offsets: Vec<u64> = requests.iter().map(|request| request.offset / KIB).collect();
        assert_eq!(offsets[..4], [end / KIB - 256, end / KIB - 128, 0, 128]);
        assert_eq!((requests.len(), position), (16, 14 * 128 * KIB));
    }

    /// By hand: 2.05 is within 10 % of 2.0. The smaller window of the two is chosen. A present
    /// window of 2.15 stays.
    #[test]
    fn smallest_of_the_fastest_windows_is_chosen() {
        let window = |bytes, times: [f64; 3]| TriedWindow {
            bytes,
            requests: 0,
            seconds_per_byte: times.to_vec(),
        };
        let tried = vec![
            window(1, [4.0, 5.0, 6.0]),
            window(3, [2.0, 2.0, 1.9]),
            window(2, [2.1, 2.05, 1.9]),
        ];
        let trial = choose_window(tried.clone(), true);
        assert_eq!(trial.chosen, 2);
        assert_eq!(trial.tried[2].seconds_per_byte, [1.9, 2.05, 2.1]);
        let present = [window(4, [2.15; 3])].into_iter().chain(tried).collect();
        assert_eq!(choose_window(present, true).chosen, 0);
    }

    /// A file of 1 GiB with 20 MiB of data at 100 MiB, and 40 MiB of preallocated space at 200 MiB.
    /// Only the data is read: the second request of 16 MiB has no room behind the first.
    #[test]
    fn holes_and_preallocated_space_are_not_read() {
        let path = std::env::temp_dir().join(format!("readpath-holes-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(&path).unwrap();
        let mib = 1 << 20;
        file.set_len(1 << 30).unwrap();
        assert_eq!(comparable_bytes(&file).unwrap(), 0);
        file.write_all_at(&vec![1; 20 << 20], 100 * mib).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        if rustix::fs::fallocate(&file, flags, 200 * mib, 40 * mib).is_err() {
            println!("not checked: preallocated space, which the file system lacks");
        }
        file.sync_all().unwrap();
        let ranges = written_ranges(&file).unwrap();
        assert_eq!(ranges, [Range { start: 100 * mib, end: 120 * mib }]);
        let mut position = 0;
        let requests = requests_of_try(16 * mib, &ranges, &mut position);
        assert!(requests.iter().all(|request| request.offset == 100 * mib), "{requests:?}");
    }
}

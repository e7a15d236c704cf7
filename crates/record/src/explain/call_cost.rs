//! Processor time of small reads by system calls, measured without the recorder.
//!
//! The recorded duration of a call includes the cost of its record, and the time in which another
//! thread had the processor. On the test machine, reads of one byte took 0.45 µs, and 1.5 µs while
//! tracepoints recorded them. The reads are therefore repeated in memory, one by one and as a whole
//! block. A buffer saves the difference for each read.
//!
//! Reads without an order also wait for memory outside of the processor's cache: 0.8 µs in a file
//! of 1 GiB on that machine. They are repeated at offsets drawn from their range, and compared with
//! copies out of as many pages. These take 40 to 50 MiB of memory.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;

use readpath_core::splitmix;
use readpath_core::unit::{PAGE_BYTES, PageRange};
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};
use rustix::time::{ClockId, clock_gettime};

use super::gain::{Gain, open_recorded};
use super::gather::BUFFER_BYTES;
use super::{Finding, REPORTED_SHARE_MIN, SampledFile};
use crate::cold::residency_flags;
use crate::median::median;

/// Number of rounds, chosen.
const ROUNDS: usize = 5;

/// Number of small reads in a round, chosen: about 1 ms.
const ROUND_READS: u64 = 2000;

/// Minimum number of reads without an order in a round, chosen: about 0.1 ms.
const DRAWN_READS_MIN: usize = 100;

/// Maximum number of drawn offsets, chosen. A small part of a large file may be in memory.
const DRAWS_MAX: u64 = 100_000;

/// Number of looks at pages outside of memory, chosen, after which no further page is looked for.
const FAILED_LOOKS_MAX: u32 = 64;

/// Small reads by system calls, for a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallCalls {
    /// File with most of them.
    pub file: SampledFile,
    /// Offset in bytes of the last one.
    pub offset: u64,
    /// Smallest and largest offset in bytes, if they have no order.
    pub unordered: Option<(u64, u64)>,
    /// Number of all of them.
    pub count: u64,
    /// Mean number of bytes that they returned, at least 1.
    pub read_bytes: u64,
    /// Remedy without its gain.
    pub remedy: String,
    /// Short text for the remedy: "a buffer".
    pub remedy_name: &'static str,
}

/// Measured processor times of a read in seconds, one value per round.
#[derive(Default)]
struct ReadTimes {
    /// By a system call.
    by_call: Vec<f64>,
    /// Saved by a buffer, or by a mapping.
    saved: Vec<f64>,
    /// Number of repeated reads.
    requests: u64,
}

/// Measures the small reads of a finding, and reduces its time to their time without the
/// recorder. Returns false if that is below the reported share. If the reads cannot be repeated in
/// memory, the gain is unknown and the time is an upper bound.
pub(super) fn measure(calls: &SmallCalls, finding: &mut Finding) -> bool {
    let mut times = match open_recorded(&calls.file, |path| File::open(path)).and_then(|file| {
        match calls.unordered {
            Some(range) => repeat_drawn(&file, calls, range),
            None => repeat_block(&file, calls),
        }
    }) {
        Ok(times) => times,
        Err(error) => {
            finding.gain = Some(Gain::Unknown(format!("the reads cannot be repeated: {error}")));
            return true;
        }
    };
    let total_seconds = |seconds: f64| (seconds * calls.count as f64).min(finding.seconds);
    let read_seconds = median(&mut times.by_call);
    let (seconds, saved_seconds) =
        (total_seconds(read_seconds), total_seconds(median(&mut times.saved)));
    // The median has sorted the values. The least and the greatest of the rounds are left out.
    let [low, high] = [times.saved[1], times.saved[ROUNDS - 2]].map(total_seconds);
    finding.share *= seconds / finding.seconds;
    finding.seconds = seconds;
    finding.evidence += &format!(
        "; without the recorder a read takes {:.2} µs of processor time, {seconds:.2} s in all",
        read_seconds * 1e6
    );
    finding.remedy.clone_from(&calls.remedy);
    finding.gain = Some(Gain::Measured {
        with: calls.remedy_name.to_owned(),
        saved_seconds,
        low,
        high,
        requests: times.requests,
    });
    finding.share >= REPORTED_SHARE_MIN
}

/// Repeats small reads of pages in memory, one by one and as a block.
///
/// # Errors
/// The pages are not in memory, or cannot be read.
fn repeat_block(file: &File, calls: &SmallCalls) -> io::Result<ReadTimes> {
    let mut block = vec![0; BUFFER_BYTES.max(calls.read_bytes) as usize];
    // The whole block with the last small read, or the bytes from that read on if the start of the
    // block is not in memory.
    let begin = calls.offset / BUFFER_BYTES * BUFFER_BYTES;
    let begin = if resident_bytes(file, begin, &mut block)? >= calls.read_bytes {
        begin
    } else {
        calls.offset
    };
    let block_bytes = resident_bytes(file, begin, &mut block)?;
    if block_bytes < calls.read_bytes {
        return Err(io::Error::other("the pages are no longer in memory"));
    }
    let reads_per_block = block_bytes / calls.read_bytes;
    let mut times = ReadTimes::default();
    for _ in 0..ROUNDS {
        let start = thread_seconds();
        for read in 0..ROUND_READS {
            let offset = begin + read % reads_per_block * calls.read_bytes;
            file.read_at(&mut block[..calls.read_bytes as usize], offset)?;
        }
        let call_seconds = (thread_seconds() - start) / ROUND_READS as f64;
        // As many blocks as have a measurable time.
        let (start, blocks) = (thread_seconds(), 16);
        for _ in 0..blocks {
            file.read_at(&mut block[..block_bytes as usize], begin)?;
        }
        let block_seconds = (thread_seconds() - start) / f64::from(blocks);
        let buffered_seconds = block_seconds * calls.read_bytes as f64 / block_bytes as f64;
        times.by_call.push(call_seconds);
        times.saved.push((call_seconds - buffered_seconds).max(0.0));
        times.requests += ROUND_READS;
    }
    Ok(times)
}

/// Repeats small reads at offsets drawn from `first` to `last`, one by one and as copies of pages
/// that this process keeps. Pages outside of memory are left out. No read waits for a device, but
/// each failed look at a page starts a device read, so there are at most [`FAILED_LOOKS_MAX`].
///
/// # Errors
/// Too few pages are in memory, or they cannot be read.
fn repeat_drawn(
    file: &File,
    calls: &SmallCalls,
    (first, last): (u64, u64),
) -> io::Result<ReadTimes> {
    let draws = ROUNDS as u64 * ROUND_READS;
    let read_bytes = calls.read_bytes as usize;
    // One page for each read, in which it has its offset.
    let page_bytes = PAGE_BYTES as usize + read_bytes;
    let mut kept = vec![0; draws as usize * page_bytes];
    let (mut reads, mut failed_looks) = (Vec::new(), 0);
    for draw in 0..DRAWS_MAX {
        if reads.len() as u64 == draws {
            break;
        }
        let offset = first + splitmix::mixed(draw) % (last - first + 1);
        // To users without the right to write, the kernel shows all pages as if in memory.
        let pages = PageRange::covering(offset, calls.read_bytes);
        if residency_flags(file, pages)?.contains(&false) {
            continue;
        }
        let begin = reads.len() * page_bytes + (offset % PAGE_BYTES) as usize;
        if resident_bytes(file, offset, &mut kept[begin..][..read_bytes])? == calls.read_bytes {
            reads.push((offset, begin));
            continue;
        }
        failed_looks += 1;
        if failed_looks == FAILED_LOOKS_MAX {
            break;
        }
    }
    if reads.len() < ROUNDS * DRAWN_READS_MIN {
        return Err(io::Error::other("too few of its pages are still in memory"));
    }
    let round_reads = reads.len() / ROUNDS;
    let mut bytes = vec![0; read_bytes];
    let mut times = ReadTimes::default();
    for round in reads.chunks_exact(round_reads).take(ROUNDS) {
        let start = thread_seconds();
        for &(offset, _) in round {
            if resident_bytes(file, offset, &mut bytes)? < calls.read_bytes {
                return Err(io::Error::other("the pages are no longer in memory"));
            }
        }
        let call_seconds = (thread_seconds() - start) / round_reads as f64;
        let start = thread_seconds();
        for &(_, begin) in round {
            bytes.copy_from_slice(&kept[begin..][..read_bytes]);
            black_box(&mut bytes);
        }
        let copy_seconds = (thread_seconds() - start) / round_reads as f64;
        times.by_call.push(call_seconds);
        times.saved.push((call_seconds - copy_seconds).max(0.0));
        times.requests += round_reads as u64;
    }
    Ok(times)
}

/// Returns the number of bytes from `offset` on that are in memory, at most the length of `block`.
/// Reads them without a wait. Without the first one, the kernel starts a device read.
fn resident_bytes(file: &File, offset: u64, block: &mut [u8]) -> io::Result<u64> {
    match preadv2(file, &mut [IoSliceMut::new(block)], offset, ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(count as u64),
        Err(rustix::io::Errno::AGAIN) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Returns the processor time of this thread in seconds.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::WaitCause;

    /// A finding of 100 s.
    fn recorded_finding() -> Finding {
        Finding {
            cause: WaitCause::Calls,
            seconds: 100.0,
            share: 1.0,
            title: String::new(),
            evidence: "1000000 reads".to_owned(),
            remedy: "up to 100 s are saved".to_owned(),
            gain: None,
        }
    }

    /// Reads without an order in a file of 64 MiB. With all pages in memory, a read takes as long
    /// as by the clock of this thread. With one block in memory, the reads in it stand for no
    /// others, and no page of the others is read from the device.
    #[test]
    fn reads_without_an_order_are_measured_in_their_range() {
        const BYTES: u64 = 64 << 20;
        let path = std::env::temp_dir().join(format!("readpath-unordered-{}", std::process::id()));
        std::fs::write(&path, vec![1; BYTES as usize]).unwrap();
        let file = File::open(&path).unwrap();
        let calls = SmallCalls {
            file: SampledFile {
                path: path.to_str().unwrap().to_owned(),
                device: 0,
                inode: 0,
                bytes: Some(BYTES),
            },
            offset: 70_000,
            unordered: Some((0, BYTES - 100)),
            count: 1_000_000,
            read_bytes: 100,
            remedy: "map the file".to_owned(),
            remedy_name: "a mapping",
        };
        let mut bytes = [0; 100];
        let start = thread_seconds();
        for number in 0..10_000_u64 {
            let offset = number * 7_368_787 % (BYTES - 100);
            assert_eq!(file.read_at(&mut bytes, offset).unwrap(), 100);
        }
        let million_seconds = (thread_seconds() - start) * 100.0;
        let mut finding = recorded_finding();
        measure(&calls, &mut finding);
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let resident = || {
            let flags = residency_flags(&file, PageRange::new(0, BYTES / PAGE_BYTES));
            flags.unwrap().into_iter().filter(|is_resident| *is_resident).count()
        };
        let is_evicted = resident() == 0;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        file.read_exact_at(&mut vec![0; 128 << 10], 0).unwrap();
        let resident_before = resident();
        let mut unknown = recorded_finding();
        measure(&calls, &mut unknown);
        let resident_after = resident();
        std::fs::remove_file(&path).unwrap();
        let ratio = finding.seconds / million_seconds;
        assert!((0.4..2.5).contains(&ratio), "{} of {million_seconds} s", finding.seconds);
        let Some(Gain::Measured { saved_seconds, requests, .. }) = finding.gain else {
            panic!("{finding:?}")
        };
        assert!(saved_seconds <= finding.seconds && saved_seconds > 0.5 * finding.seconds);
        assert_eq!(requests, 10_000);
        if !is_evicted {
            return println!("skipped: the file system keeps its pages");
        }
        assert!(matches!(&unknown.gain, Some(Gain::Unknown(_))), "{unknown:?}");
        assert_eq!(resident_after, resident_before);
    }

    /// A million reads of one byte, recorded with 3 s. By the clock of this thread, 10,000 of them
    /// take a part of that.
    #[test]
    fn time_of_the_recorder_is_no_gain_of_a_buffer() {
        let path = std::env::temp_dir().join(format!("readpath-calls-{}", std::process::id()));
        std::fs::write(&path, vec![1; 256 << 10]).unwrap();
        let start = thread_seconds();
        let file = File::open(&path).unwrap();
        let mut byte = [0];
        (0..10_000).for_each(|offset| assert_eq!(file.read_at(&mut byte, offset).unwrap(), 1));
        let million_seconds = (thread_seconds() - start) * 100.0;
        let sampled = SampledFile {
            path: path.to_str().unwrap().to_owned(),
            device: 0,
            inode: 0,
            bytes: Some(256 << 10),
        };
        let calls = SmallCalls {
            file: sampled,
            offset: 70_000,
            unordered: None,
            count: 1_000_000,
            read_bytes: 1,
            remedy: "read through a buffer".to_owned(),
            remedy_name: "a buffer",
        };
        let mut finding = recorded_finding();
        let is_reported = measure(&calls, &mut finding);
        std::fs::remove_file(&path).unwrap();
        let ratio = finding.seconds / million_seconds;
        assert!((0.4..2.5).contains(&ratio), "{} of {million_seconds} s", finding.seconds);
        assert_eq!(is_reported, finding.seconds >= 5.0);
        assert_eq!(finding.remedy, "read through a buffer");
        let Some(Gain::Measured { saved_seconds, .. }) = finding.gain else {
            panic!("{finding:?}")
        };
        assert!(saved_seconds <= finding.seconds && saved_seconds > 0.5 * finding.seconds);

        // The reads of a file that is gone are not measured.
        let (seconds, mut gone) = (finding.seconds, Finding { gain: None, ..finding });
        assert!(measure(&calls, &mut gone));
        assert!(matches!(gone.gain, Some(Gain::Unknown(_))) && gone.seconds == seconds);
    }
}

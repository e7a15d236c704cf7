//! Processor time of small reads by system calls, measured without the recorder.
//!
//! The recorded duration of a call includes the cost of its record, and the time in which another
//! thread had the processor. On the test machine, reads of one byte took 0.45 µs, and 1.5 µs while
//! tracepoints recorded them. The reads are therefore repeated in memory, one by one and as a whole
//! block. A buffer saves the difference for each read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};
use rustix::time::{ClockId, clock_gettime};

use super::gain::{Gain, open_recorded};
use super::gather::BUFFER_BYTES;
use super::{Finding, REPORTED_SHARE_MIN, SampledFile};
use crate::median::median;

/// Number of rounds, chosen.
const ROUNDS: usize = 5;

/// Number of small reads in a round, chosen: about 1 ms.
const ROUND_READS: u64 = 2000;

/// Small reads by system calls, for a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallCalls {
    /// File with most of them.
    pub file: SampledFile,
    /// Offset in bytes of the last one.
    pub offset: u64,
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
struct ReadTimes {
    /// By a system call.
    by_call: Vec<f64>,
    /// Saved by a buffer.
    saved: Vec<f64>,
}

/// Measures the small reads of a finding, and reduces its time to their time without the
/// recorder. Returns false if that is below the reported share. If the reads cannot be repeated in
/// memory, the gain is unknown and the time is an upper bound.
pub(super) fn measure(calls: &SmallCalls, finding: &mut Finding) -> bool {
    let mut times = match open_recorded(&calls.file, |path| File::open(path))
        .and_then(|file| repeat(&file, calls))
    {
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
        requests: ROUNDS as u64 * ROUND_READS,
    });
    finding.share >= REPORTED_SHARE_MIN
}

/// Repeats small reads of pages in memory, one by one and as a block.
///
/// # Errors
/// The pages are not in memory, or cannot be read.
fn repeat(file: &File, calls: &SmallCalls) -> io::Result<ReadTimes> {
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
    let mut times = ReadTimes { by_call: Vec::new(), saved: Vec::new() };
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
    }
    Ok(times)
}

/// Returns the number of bytes from `offset` on that are in memory, at most the length of `block`.
/// Reads them without a wait.
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
            count: 1_000_000,
            read_bytes: 1,
            remedy: "read through a buffer".to_owned(),
            remedy_name: "a buffer",
        };
        let mut finding = Finding {
            cause: WaitCause::Calls,
            seconds: 100.0,
            share: 1.0,
            title: String::new(),
            evidence: "1000000 reads".to_owned(),
            remedy: "up to 100 s are saved".to_owned(),
            gain: None,
        };
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

//! Sample of the reads that waited, to measure the gain of a remedy.

use super::depth_sweep::Depth;
use crate::thinned::ThinnedList;

/// Largest number of runs that a sample keeps, chosen.
const RUNS_MAX: usize = 1 << 10;

/// Largest run of several reads in bytes, chosen. A longer one continues as another run.
const RUN_BYTES_MAX: u64 = 256 << 10;

/// Reads of a file, each from the end of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Number of the file in the recording.
    pub file: u32,
    /// Offset of the first read in bytes.
    pub offset: u64,
    /// Bytes of all reads together.
    pub bytes: u64,
    /// Number of reads.
    pub reads: u64,
}

/// Runs at equal distances in the order of the recording. Its memory is bounded.
#[derive(Clone, Debug)]
pub(super) struct RunSample {
    /// Sampled runs that have ended.
    runs: ThinnedList<Run>,
    /// Run in progress.
    current_run: Option<Run>,
    /// Number of reads that waited, also beyond the sample.
    pub waits: u64,
    /// Sum of their waits in nanoseconds.
    pub waited_ns: u64,
    /// Requests in flight during these waits.
    pub depth: Depth,
}

impl Default for RunSample {
    /// Returns a sample without reads, of at most [`RUNS_MAX`] runs.
    fn default() -> RunSample {
        RunSample {
            runs: ThinnedList::new(RUNS_MAX),
            current_run: None,
            waits: 0,
            waited_ns: 0,
            depth: Depth::default(),
        }
    }
}

impl RunSample {
    /// Adds a read of `bytes` bytes that waited `waited_ns`. A read at the end of the run in
    /// progress extends it, up to `RUN_BYTES_MAX`. Any other read begins a run.
    pub fn add_read(&mut self, file: u32, offset: u64, bytes: u64, waited_ns: u64) {
        self.waits += 1;
        self.waited_ns += waited_ns;
        if let Some(run) = &mut self.current_run
            && (run.file, run.offset + run.bytes) == (file, offset)
            && run.bytes + bytes <= RUN_BYTES_MAX
        {
            run.bytes += bytes;
            run.reads += 1;
            return;
        }
        self.end_run();
        self.current_run = Some(Run { file, offset, bytes, reads: 1 });
    }

    /// Ends the run in progress, which then may be sampled.
    pub fn end_run(&mut self) {
        if let Some(run) = self.current_run.take() {
            self.runs.push(run);
        }
    }

    /// Returns the sampled runs that have ended, in the order of the recording.
    pub fn runs(&self) -> &[Run] {
        self.runs.items()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: three reads in a row are one run, the fourth lies elsewhere.
    #[test]
    fn reads_in_a_row_are_one_run() {
        let mut sample = RunSample::default();
        for (offset, bytes) in [(0, 4096), (4096, 4096), (8192, 512), (65536, 4096)] {
            sample.add_read(3, offset, bytes, 100);
        }
        assert_eq!((sample.waits, sample.waited_ns), (4, 400));
        let run = |offset, bytes, reads| Run { file: 3, offset, bytes, reads };
        sample.end_run();
        assert_eq!(sample.runs(), [run(0, 8704, 3), run(65536, 4096, 1)]);
    }

    /// By hand: the 1025th run halves the list to 513, every second run. Then one of two is added.
    #[test]
    fn many_runs_are_thinned_evenly() {
        let mut sample = RunSample::default();
        (0..=1026).for_each(|number| sample.add_read(0, number * 8192, 4096, 1));
        sample.end_run();
        let offsets: Vec<u64> = sample.runs().iter().map(|run| run.offset / 8192).collect();
        let expected: Vec<u64> = (0..=1026).step_by(2).collect();
        assert_eq!(offsets, expected);
    }

    /// By hand: four reads of 64 KiB fill a run of 256 KiB. 24 of them are six runs.
    #[test]
    fn long_run_continues_as_another_one() {
        let mut sample = RunSample::default();
        (0..24).for_each(|number| sample.add_read(0, number * 65536, 65536, 1));
        sample.end_run();
        assert_eq!(
            sample.runs().iter().map(|run| run.reads).collect::<Vec<u64>>(),
            [4, 4, 4, 4, 4, 4]
        );
    }
}

//! The workloads of the matrix for real storage, with results in the form of the cells.
//!
//! A *cell* is one workload with a number of processes on one device. The results of the classic
//! policies are its *baselines*.

use readpath_core::policy::Spec;

use super::workloads::{ReadPattern, WORKLOADS};
use super::{JudgedCell, MatrixResult, READAHEADS, has_parts};
use readpath_sim::report::ResultRow;
use readpath_sim::workload::Workload;

/// Numbers of processes on real storage, limited for small machines.
pub const PROCESSES: &[u32] = &[1, 4, 16];

/// Returns the classic readahead policies.
pub fn classic_readaheads() -> impl Iterator<Item = Spec> {
    READAHEADS.iter().map(|policy| Spec::plain(policy))
}

/// One workload with a number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixWorkload {
    /// Name of the workload in the matrix.
    pub workload: &'static str,
    /// Access pattern of its processes.
    pattern: ReadPattern,
    /// Number of processes.
    pub processes: u32,
}

/// Returns the workloads whose name `workload/processes` contains each of `parts`, in the order of
/// the matrix. Direct reads, mapped reads and workloads with several reads in flight per process
/// are excluded, because they have other baselines.
pub fn work(parts: &[&str]) -> Vec<MatrixWorkload> {
    let plain_patterns = WORKLOADS.iter().filter(|(_, pattern)| pattern.is_plain());
    let workloads = plain_patterns.flat_map(|&(workload, pattern)| {
        PROCESSES.iter().map(move |&processes| MatrixWorkload { workload, pattern, processes })
    });
    workloads.filter(|work| has_parts(&work.name(), parts)).collect()
}

impl MatrixWorkload {
    /// Returns `workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.workload, self.processes)
    }

    /// Returns the workload with its files placed contiguously. `work_divisor` divides the work.
    pub fn workload(&self, seed: u64, work_divisor: u64) -> Workload {
        self.pattern.workload_packed(self.processes.into(), work_divisor, seed)
    }

    /// Builds the result on `storage` from the rows of all rounds, per contender, the policy under
    /// test first. Each contender is represented by its median throughput. The ratios compare with
    /// the contender of the highest one, as in the simulated matrix.
    ///
    /// # Panics
    /// Panics with fewer than two contenders, or with a contender without rows.
    pub fn judge(&self, storage: &str, contenders: Vec<Vec<ResultRow>>) -> JudgedCell {
        let mut runs: Vec<MatrixResult> =
            contenders.iter().map(|rows| MatrixResult::median(rows)).collect();
        let adaptive = runs.remove(0);
        runs.sort_by(|left, right| right.mib_per_s.total_cmp(&left.mib_per_s));
        JudgedCell {
            device: storage.to_owned(),
            workload: self.workload.to_owned(),
            processes: self.processes,
            ratio: adaptive.mib_per_s / runs[0].mib_per_s,
            p99_ratio: adaptive.p99_ratio(&runs[0]),
            // The cause of a regret is found by two more simulations with exchanged policies. Real
            // storage has no such runs.
            cause: None,
            adaptive,
            baselines: runs,
        }
    }
}

impl MatrixResult {
    /// Returns the row with the median throughput, with the throughputs of all rounds. For an even
    /// number of rounds it is the higher of the two in the middle.
    ///
    /// # Panics
    /// Panics without rows.
    fn median(rows: &[ResultRow]) -> MatrixResult {
        let throughput =
            |row: &ResultRow| row.mib_per_s.expect("the work moves bytes in more than 0 seconds");
        let mut rows: Vec<&ResultRow> = rows.iter().collect();
        rows.sort_by(|left, right| throughput(left).total_cmp(&throughput(right)));
        let is_direct = false;
        let run = MatrixResult::from_row(rows[rows.len() / 2], is_direct);
        MatrixResult { mib_per_s_by_seed: rows.iter().map(|row| throughput(row)).collect(), ..run }
    }
}

//! The workloads of the matrix without a device: for real storage, where the same
//! are read by whoever drives it, and judged as the cells are.

use readpath_core::policy::Spec;

use super::workloads::{ReadPattern, WORKLOADS};
use super::{JudgedCell, MatrixResult, READAHEADS, has_parts};
use crate::report::ResultRow;
use crate::workload::Workload;

/// How many processes share the work on real storage: no more than a small machine drives at once.
pub const PROCESSES: &[u32] = &[1, 4, 16];

/// The classic readahead laws.
pub fn classic_readaheads() -> impl Iterator<Item = Spec> {
    READAHEADS.iter().map(|policy| Spec::plain(policy))
}

/// One workload of so many processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixWorkload {
    /// The workload's name in the matrix.
    pub workload: &'static str,
    pattern: ReadPattern,
    /// How many processes.
    pub processes: u32,
}

/// The work whose name `workload/processes` contains each of `parts`, in the
/// matrix's order. Without what goes past the cache, through a mapping, or keeps
/// several reads of one process under way: they have peers of their own.
pub fn work(parts: &[&str]) -> Vec<MatrixWorkload> {
    let plain = WORKLOADS.iter().filter(|(_, pattern)| pattern.is_plain());
    let all = plain.flat_map(|&(workload, pattern)| {
        PROCESSES.iter().map(move |&processes| MatrixWorkload { workload, pattern, processes })
    });
    all.filter(|work| has_parts(&work.name(), parts)).collect()
}

impl MatrixWorkload {
    /// `workload/processes`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.workload, self.processes)
    }

    /// The files, side by side, and the processes; `part` divides the work.
    pub fn workload(&self, seed: u64, part: u64) -> Workload {
        self.pattern.workload_packed(self.processes.into(), part, seed)
    }

    /// What was measured of it on `storage`: of each contender the rows of all rounds,
    /// the law under test first. A contender has its median throughput.
    ///
    /// # Panics
    /// There are fewer than two contenders, or one without a row.
    pub fn judged(&self, storage: &str, contenders: Vec<Vec<ResultRow>>) -> JudgedCell {
        let mut runs: Vec<MatrixResult> =
            contenders.iter().map(|rows| MatrixResult::median(rows)).collect();
        let adaptive = runs.remove(0);
        runs.sort_by(|one, two| two.mib_per_s.total_cmp(&one.mib_per_s));
        JudgedCell {
            device: storage.to_owned(),
            workload: self.workload.to_owned(),
            processes: self.processes,
            ratio: adaptive.mib_per_s / runs[0].mib_per_s,
            cause: None,
            adaptive,
            baselines: runs,
        }
    }
}

impl MatrixResult {
    /// The row of the median throughput; the throughputs of all rounds stand beside it.
    fn median(rows: &[ResultRow]) -> MatrixResult {
        let rate = |row: &ResultRow| row.mib_per_s.expect("work moves bytes, and that takes time");
        let mut rows: Vec<&ResultRow> = rows.iter().collect();
        rows.sort_by(|one, two| rate(one).total_cmp(&rate(two)));
        let run = MatrixResult::of_row(rows[rows.len() / 2], false);
        MatrixResult { mib_per_s_by_seed: rows.iter().map(|row| rate(row)).collect(), ..run }
    }
}

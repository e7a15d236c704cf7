//! Verification of written data (`verify`).
//!
//! A *pass* is one repetition of the job's work. With a *backlog* (`verify_backlog`), writes are
//! verified during the pass, as soon as enough of them wait. Without it, the pass is repeated with
//! the same random choices, and the written data is read. The caller restores the random choices:
//! this module counts the operations, and keeps the backlog.
//!
//! In the rule, `at_end` demands verification after all writes (`do_verify`). A `backlog` of 0
//! means none, and a `backlog_batch` of 0 the whole backlog at once. With `is_only` the job
//! verifies data of an earlier run and writes none (`verify_only`). A [`GivenRead`] is the position
//! of an operation: file, offset and bytes.

use std::collections::VecDeque;

use super::GivenRead;
use crate::job::VerifyRule;

/// State of the verification of a process's writes.
#[derive(Debug)]
pub struct Verification {
    /// The rule, or `None` if the job verifies nothing.
    rule: Option<VerifyRule>,
    /// True if the job's pattern has writes, even if `is_only` turns them into reads.
    writes: bool,
    /// Writes that wait for verification, if the rule has a backlog.
    backlog: VecDeque<GivenRead>,
    /// Present activity.
    activity: VerificationActivity,
    /// Number of operations in this pass.
    pass_operations: u64,
    /// Number of writes in this pass.
    pass_writes: u64,
}

/// Activity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerificationActivity {
    /// The work of the job.
    Work,
    /// Verification of the backlog, with the number of reads left.
    Backlog { left: usize },
    /// Repetition of the pass for verification, with the number of operations left.
    Pass { left: u64 },
}

impl Verification {
    /// Creates the verification of a process. `writes` is true if the pattern of its job has
    /// writes.
    pub fn new(rule: Option<VerifyRule>, writes: bool) -> Verification {
        let backlog = VecDeque::new();
        Verification {
            rule,
            writes,
            backlog,
            activity: VerificationActivity::Work,
            pass_operations: 0,
            pass_writes: 0,
        }
    }

    /// Returns true if the job verifies data.
    pub fn is_on(&self) -> bool {
        self.rule.is_some()
    }

    /// Returns true if writes are verified in a backlog.
    pub fn has_backlog(&self) -> bool {
        self.rule.is_some_and(|rule| rule.backlog > 0)
    }

    /// Returns true if the present reads are verifications. In a job that verifies, that is
    /// during the backlog and the repeated pass. For a job that only reads (or `verify_only`)
    /// it is always.
    pub fn is_checking(&self) -> bool {
        let only_reads = !self.writes || self.rule.is_some_and(|rule| rule.is_only);
        self.is_on() && (only_reads || self.activity != VerificationActivity::Work)
    }

    /// Counts an operation of the job's work. A write joins the backlog, if the rule has one.
    /// Without a rule nothing is recorded.
    pub fn record_issue(&mut self, position: GivenRead, is_write: bool) {
        let Some(rule) = self.rule else { return };
        self.pass_operations += 1;
        self.pass_writes += u64::from(is_write);
        if is_write && rule.backlog > 0 {
            self.backlog.push_back(position);
        }
    }

    /// Returns true if the backlog is large enough for a verification.
    pub fn is_backlog_full(&self) -> bool {
        let backlog_max = self.rule.map_or(0, |rule| rule.backlog as usize);
        backlog_max > 0
            && self.activity == VerificationActivity::Work
            && self.backlog.len() >= backlog_max
    }

    /// Returns true if the backlog is not empty and must be verified after all writes.
    pub fn is_backlog_left(&self) -> bool {
        self.rule.is_some_and(|rule| rule.at_end) && !self.backlog.is_empty()
    }

    /// Starts the verification of the backlog, or of its first batch. If it is in progress, returns
    /// to the job's work. The caller waits for all operations in flight first.
    pub fn toggle_backlog_check(&mut self) {
        self.activity = match self.activity {
            VerificationActivity::Work => {
                let whole = self.backlog.len();
                match self.rule.map_or(0, |rule| rule.backlog_batch as usize) {
                    0 => VerificationActivity::Backlog { left: whole },
                    batch => VerificationActivity::Backlog { left: batch.min(whole) },
                }
            }
            VerificationActivity::Backlog { .. } | VerificationActivity::Pass { .. } => {
                VerificationActivity::Work
            }
        };
    }

    /// Returns true during the verification of the backlog.
    pub fn is_in_backlog(&self) -> bool {
        matches!(self.activity, VerificationActivity::Backlog { .. })
    }

    /// Removes and returns the next write of the backlog, which is to be read. `None` at the end of
    /// the batch, and if no verification of the backlog is in progress.
    pub fn take_backlog_write(&mut self) -> Option<GivenRead> {
        let VerificationActivity::Backlog { left } = &mut self.activity else { return None };
        *left = left.checked_sub(1)?;
        self.backlog.pop_front()
    }

    /// Starts the repetition of the pass if the job demands it: option do_verify of fio, without a
    /// backlog. Returns false otherwise, and if the job has not written in this pass or repeats it
    /// already.
    pub fn begin_repeated_pass(&mut self) -> bool {
        let is_due =
            self.rule.is_some_and(|rule| rule.at_end && rule.backlog == 0 && !rule.is_only);
        let begins = is_due && self.activity == VerificationActivity::Work && self.pass_writes > 0;
        if begins {
            self.activity = VerificationActivity::Pass { left: self.pass_operations };
        }
        begins
    }

    /// Returns true during the repetition of the pass.
    pub fn is_repeating_pass(&self) -> bool {
        matches!(self.activity, VerificationActivity::Pass { .. })
    }

    /// Counts an operation of the repeated pass, read or write. Returns false if all its operations
    /// were counted, and if no pass is repeated.
    pub fn count_repeated_operation(&mut self) -> bool {
        let VerificationActivity::Pass { left } = &mut self.activity else { return false };
        let is_left = *left > 0;
        *left -= u64::from(is_left);
        is_left
    }

    /// Returns to the job's work for another pass, with the counts at 0.
    pub fn end_pass(&mut self) {
        self.activity = VerificationActivity::Work;
        (self.pass_operations, self.pass_writes) = (0, 0);
    }
}

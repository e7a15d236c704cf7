//! Reading back what was written (`verify`).

use std::collections::VecDeque;

use super::GivenRead;
use crate::job::VerifyRule;

/// What of a process's writes is read back, and when.
#[derive(Debug)]
pub struct Verification {
    rule: Option<VerifyRule>,
    writes: bool,
    /// Writes that wait for being read back, where that is not done at the end.
    backlog: VecDeque<GivenRead>,
    /// What is done now.
    now: VerificationActivity,
    /// The operations of this pass, and those of them that were writes.
    operations: u64,
    written: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerificationActivity {
    /// The work of the job.
    Work,
    /// So many of the backlog are still to be read.
    Backlog { left: usize },
    /// The pass is gone through once more, and so many of its operations are left.
    Pass { left: u64 },
}

impl Verification {
    pub fn new(rule: Option<VerifyRule>, writes: bool) -> Verification {
        let backlog = VecDeque::new();
        Verification {
            rule,
            writes,
            backlog,
            now: VerificationActivity::Work,
            operations: 0,
            written: 0,
        }
    }

    /// Whether anything is ever compared.
    pub fn is_on(&self) -> bool {
        self.rule.is_some()
    }

    /// Whether reads are of what was written before.
    pub fn is_checking(&self) -> bool {
        let only_reads = !self.writes || self.rule.is_some_and(|rule| rule.is_only);
        self.is_on() && (only_reads || self.now != VerificationActivity::Work)
    }

    /// An operation of the job's work is issued.
    pub fn issued(&mut self, reading: GivenRead, is_write: bool) {
        let Some(rule) = self.rule else { return };
        self.operations += 1;
        self.written += u64::from(is_write);
        if is_write && rule.backlog > 0 {
            self.backlog.push_back(reading);
        }
    }

    /// Whether so much was written that some of it is to be read back now.
    pub fn is_backlog_full(&self) -> bool {
        let most = self.rule.map_or(0, |rule| rule.backlog as usize);
        most > 0 && self.now == VerificationActivity::Work && self.backlog.len() >= most
    }

    /// Whether anything is left of the backlog, which is read when all is written.
    pub fn is_backlog_left(&self) -> bool {
        self.rule.is_some_and(|rule| rule.at_end) && !self.backlog.is_empty()
    }

    /// Nothing is in flight: the backlog is read now, or as much of it as the job says; or it has
    /// been, and the work goes on.
    pub fn toggle_backlog(&mut self) {
        self.now = match self.now {
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

    /// Whether the backlog is what is read now.
    pub fn is_in_backlog(&self) -> bool {
        matches!(self.now, VerificationActivity::Backlog { .. })
    }

    /// The next place of the backlog.
    pub fn next_of_backlog(&mut self) -> Option<GivenRead> {
        let VerificationActivity::Backlog { left } = &mut self.now else { return None };
        *left = left.checked_sub(1)?;
        self.backlog.pop_front()
    }

    /// Goes through the pass once more, if the job says so and anything was written.
    pub fn begin_pass(&mut self) -> bool {
        let is_due =
            self.rule.is_some_and(|rule| rule.at_end && rule.backlog == 0 && !rule.is_only);
        let begins = is_due && self.now == VerificationActivity::Work && self.written > 0;
        if begins {
            self.now = VerificationActivity::Pass { left: self.operations };
        }
        begins
    }

    /// Whether the pass is gone through once more.
    pub fn is_in_pass(&self) -> bool {
        matches!(self.now, VerificationActivity::Pass { .. })
    }

    /// One more operation of the pass is gone through; gives whether there was one left.
    pub fn next_of_pass(&mut self) -> bool {
        let VerificationActivity::Pass { left } = &mut self.now else { return false };
        let is_left = *left > 0;
        *left -= u64::from(is_left);
        is_left
    }

    /// Another pass of the job's work begins.
    pub fn end_pass(&mut self) {
        self.now = VerificationActivity::Work;
        (self.operations, self.written) = (0, 0);
    }
}

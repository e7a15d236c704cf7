//! Conformance check: compares the policy `ondemand` with the running kernel, read by read.
//!
//! The kernel (module [`oracle`](crate::oracle)) and the policy ([`run_policy`]) execute the same
//! list of [`HandleStep`]s. The list comes from a file ([`parse_steps`]) or is generated
//! ([`generate`], [`generate_mapped`]). Both return a [`Recording`]: the folios added to the page
//! cache in each step. [`compare`] compares two recordings. A step is equal if the same folios were
//! added in the same order. Equal pages are not sufficient, because the size of a folio determines
//! the position of the next readahead mark.
//!
//! Recordings can be stored as text ([`format_recording`], [`parse_recording`]), so the policy can
//! be tested where the kernel cannot be traced.

use std::fmt;

use readpath_core::policy::{Spec, SpecError};
use readpath_core::readahead::{
    self, Advice, Folio, HandleStep, PageTable, PageView, ReadRequest, Recording,
};
use readpath_core::unit::PAGE_BYTES;

mod generate;

pub use generate::{generate, generate_mapped};
pub use readpath_trace::read_list::{
    FolioRuns, format_recording, format_step, parse_recording, parse_steps,
};

/// Executes `steps` under the policy `spec`, with the limits and the file size of `kernel`, on a
/// cache without eviction. Requested pages that the policy does not add are added as single pages.
/// A reopened file has a new policy state, and its pages stay cached.
///
/// # Errors
/// Fails if the policy does not exist or has an invalid parameter.
pub fn run_policy(
    spec: &Spec,
    steps: &[HandleStep],
    kernel: &Recording,
) -> Result<Recording, SpecError> {
    let mut policy = readahead::build(spec, &kernel.limits)?;
    let mut pages = PageTable::default();
    let mut added = Vec::with_capacity(steps.len());
    let request_at = |offset, bytes| ReadRequest {
        offset,
        bytes,
        file_bytes: kernel.file_bytes,
        // The steps run one at a time, so the device's queue is never full.
        is_congested: false,
    };
    for step in steps {
        match *step {
            HandleStep::Read { offset, bytes } => {
                let request = request_at(offset, bytes);
                policy.read(&request, &mut pages);
                add_absent(&request, &mut pages);
            }
            HandleStep::Touch { offset } => {
                let touched_bytes = 1;
                let request = request_at(offset, touched_bytes);
                policy.fault(offset / PAGE_BYTES, &request, &mut pages);
                add_absent(&request, &mut pages);
            }
            HandleStep::Advise(advice) => {
                policy.advise(advice);
                if advice == Advice::DontNeed {
                    pages.clear();
                }
            }
            HandleStep::Reopen => policy = readahead::build(spec, &kernel.limits)?,
        }
        // Readahead marks are left out, because the kernel's trace does not show them.
        added.push(pages.take_added().into_iter().map(|(folio, _)| folio).collect());
    }
    Ok(Recording { system: spec.to_string(), added, ..kernel.clone() })
}

/// Adds the absent pages of the request as single pages, as the kernel does for a page that its
/// readahead left out. A request past the end of the file adds nothing.
fn add_absent(read: &ReadRequest, pages: &mut PageTable) {
    if read.offset >= read.file_bytes {
        return;
    }
    for page in read.request().clipped(read.file_pages()).pages() {
        if !pages.is_cached(page) {
            // Only readahead sets the mark whose first access starts the next window.
            let is_marked = false;
            // A page table has no limit, so the page is always added.
            pages.add(Folio { first: page, order: 0 }, is_marked);
        }
    }
}

/// Returns the policy that models the kernel under the conditions of a recording: `ondemand` with
/// the largest folio of its file system.
pub fn kernel_policy(kernel: &Recording) -> Spec {
    let mut spec = Spec::plain("ondemand");
    spec.parameters.insert("folio_order".to_owned(), kernel.folio_order_max.to_string());
    spec
}

/// A step in which two recordings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepDifference {
    /// Index of the step, from 0.
    pub index: usize,
    /// The step.
    pub step: HandleStep,
    /// Folios that the kernel added.
    pub kernel: Vec<Folio>,
    /// Folios that the policy added.
    pub policy: Vec<Folio>,
}

impl fmt::Display for StepDifference {
    /// Writes the number of the step, from 1, and the folios that each side added.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kernel, policy) = (FolioRuns(&self.kernel), FolioRuns(&self.policy));
        write!(f, "step {}: {}: ", self.index + 1, format_step(&self.step))?;
        write!(f, "the kernel read {kernel}, the policy {policy}")
    }
}

/// Result of a comparison of two recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformanceReport {
    /// Number of reads and touches. Advice and reopening are not counted.
    pub reads: usize,
    /// Number of reads and touches with equal folios.
    pub equal: usize,
    /// The steps that differ. A list of [`parse_steps`] has no advice that adds folios, so they are
    /// reads and touches. After the first difference the states differ too, so later
    /// differences may be consequences.
    pub differences: Vec<StepDifference>,
    /// Total number of pages that the kernel added.
    pub kernel_pages: u64,
    /// Total number of pages that the policy added.
    pub policy_pages: u64,
}

/// Compares the folios added by `policy` with the folios added by `kernel`, step by step.
///
/// # Panics
/// Panics if the three lists have different lengths, because they then belong to different lists of
/// steps.
pub fn compare(steps: &[HandleStep], kernel: &Recording, policy: &Recording) -> ConformanceReport {
    assert_eq!(steps.len(), kernel.added.len(), "the kernel's recording is of another list");
    assert_eq!(steps.len(), policy.added.len(), "the policy's recording is of another list");
    let differences: Vec<StepDifference> = (0..steps.len())
        .filter(|&index| kernel.added[index] != policy.added[index])
        .map(|index| StepDifference {
            index,
            step: steps[index],
            kernel: kernel.added[index].clone(),
            policy: policy.added[index].clone(),
        })
        .collect();
    let reads = steps
        .iter()
        .filter(|step| matches!(step, HandleStep::Read { .. } | HandleStep::Touch { .. }))
        .count();
    let pages = |recording: &Recording| -> u64 {
        recording.added.iter().flatten().map(|folio| folio.range().count()).sum()
    };
    // Every difference is a read or a touch (see `differences`).
    ConformanceReport {
        reads,
        equal: reads - differences.len(),
        kernel_pages: pages(kernel),
        policy_pages: pages(policy),
        differences,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel adds 4 pages in the first read and 8 in the second, as `ondemand` does. The
    /// policy `none` adds the requested page of each.
    #[test]
    fn a_difference_is_reported_with_both_page_ranges() {
        let text = "read_ahead_kb 128\nmax_sectors_kb 1280\nfile_bytes 1000000\n\
                    folio_order_max 9\n0 4096 -> 0..4\nadvice normal -> nothing\n\
                    4096 4096 -> 4..12x4\n";
        let (steps, kernel) = parse_recording(text).unwrap();
        let same = compare(
            &steps,
            &kernel,
            &run_policy(&kernel_policy(&kernel), &steps, &kernel).unwrap(),
        );
        assert_eq!((same.reads, same.equal, same.kernel_pages), (2, 2, 12));
        let none =
            compare(&steps, &kernel, &run_policy(&Spec::plain("none"), &steps, &kernel).unwrap());
        assert_eq!((none.reads, none.equal, none.policy_pages), (2, 0, 2));
        assert_eq!(
            none.differences[1].to_string(),
            "step 3: 4096 4096: the kernel read 4..12x4, the policy 1..2"
        );
    }

    /// The file has two pages. Only the first read begins within it.
    #[test]
    fn read_past_the_end_of_the_file_adds_no_pages() {
        let text = "file_bytes 5000\n4096 10 -> 1..2\n5000 10 -> nothing\n8192 1 -> nothing\n";
        let (steps, kernel) = parse_recording(text).unwrap();
        let policy = run_policy(&Spec::plain("none"), &steps, &kernel).unwrap();
        assert_eq!(policy.added, kernel.added);
    }
}

//! Conformance: the law `ondemand` held against the running kernel, read by read.
//!
//! A list of [`Step`]s (from a file: [`parse_steps`]; made: [`generate`],
//! [`generate_mapped`]) is
//! played by the kernel (crate `readpath`, module `oracle`) and by our law
//! ([`play`]). Each gives a [`Recording`]: for each step the folios that came
//! into the cache. [`compare`] holds one against the other. A step is equal
//! when the same folios came in the same order: not only the same pages, but in
//! the same blocks, since the size of a block decides where the next mark lies.
//!
//! Recordings can be kept as text ([`format_recording`], [`parse_recording`]),
//! so that a test of the law lives where the kernel can't be traced.

use std::fmt;

use readpath_core::law::{Spec, SpecError};
use readpath_core::readahead::{self, Advice, Ask, Folio, PageTable, Pages, Recording, Step};
use readpath_core::unit::PAGE_BYTES;

mod generate;
mod text;

pub use generate::{generate, generate_mapped};
pub use text::{FolioRuns, TextError, format_recording, format_step, parse_recording, parse_steps};

/// Plays `steps` to the law `spec` under the conditions of `kernel` (its
/// limits, its file), on a cache without eviction. What the law leaves absent of
/// a request is added in single pages.
///
/// # Errors
/// There is no such law, or a parameter can't be used.
pub fn play(spec: &Spec, steps: &[Step], kernel: &Recording) -> Result<Recording, SpecError> {
    let mut law = readahead::build(spec, &kernel.limits)?;
    let mut pages = PageTable::default();
    let mut added = Vec::with_capacity(steps.len());
    let ask =
        |offset, bytes| Ask { offset, bytes, file_bytes: kernel.file_bytes, is_congested: false };
    for step in steps {
        match *step {
            Step::Read { offset, bytes } => {
                let ask = ask(offset, bytes);
                law.read(&ask, &mut pages);
                add_absent(&ask, &mut pages);
            }
            Step::Touch { offset } => {
                let ask = ask(offset, 1);
                law.fault(offset / PAGE_BYTES, &ask, &mut pages);
                add_absent(&ask, &mut pages);
            }
            Step::Advise(advice) => {
                law.advise(advice);
                if advice == Advice::DontNeed {
                    pages.clear();
                }
            }
            Step::Reopen => law = readahead::build(spec, &kernel.limits)?,
        }
        added.push(pages.take_added().into_iter().map(|(folio, _)| folio).collect());
    }
    Ok(Recording { system: spec.to_string(), added, ..kernel.clone() })
}

/// Adds what is still absent of the request; one past the end of the file gets nothing.
fn add_absent(ask: &Ask, pages: &mut PageTable) {
    if ask.offset >= ask.file_bytes {
        return;
    }
    for page in ask.request().clipped(ask.file_pages()).pages() {
        if !pages.is_cached(page) {
            pages.add(Folio { first: page, order: 0 }, false);
        }
    }
}

/// The law that stands for the kernel under the conditions of a recording.
pub fn kernel_law(kernel: &Recording) -> Spec {
    let mut spec = Spec::plain("ondemand");
    spec.parameters.insert("folio_order".to_owned(), kernel.folio_order_max.to_string());
    spec
}

/// One step in which two recordings differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which step, counted from 0.
    pub index: usize,
    /// The step.
    pub step: Step,
    /// What the kernel added.
    pub kernel: Vec<Folio>,
    /// What our law added.
    pub law: Vec<Folio>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kernel, law) = (FolioRuns(&self.kernel), FolioRuns(&self.law));
        write!(f, "step {}: {}: ", self.index + 1, format_step(&self.step))?;
        write!(f, "the kernel read {kernel}, the law {law}")
    }
}

/// How two recordings of one list compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many reads and touches there were; advice and reopening are not counted.
    pub reads: usize,
    /// How many of them brought in the same folios.
    pub equal: usize,
    /// The steps that differ. After the first, the states have parted: what
    /// follows may be its consequence.
    pub differences: Vec<Difference>,
    /// Pages that the kernel added in all.
    pub kernel_pages: u64,
    /// Pages that the law added in all.
    pub law_pages: u64,
}

/// Holds what `law` added against what `kernel` added, step by step.
///
/// # Panics
/// When the three lists have different lengths: they belong to different runs.
pub fn compare(steps: &[Step], kernel: &Recording, law: &Recording) -> Report {
    assert_eq!(steps.len(), kernel.added.len(), "the kernel's recording is of another list");
    assert_eq!(steps.len(), law.added.len(), "the law's recording is of another list");
    let differences: Vec<Difference> = (0..steps.len())
        .filter(|&index| kernel.added[index] != law.added[index])
        .map(|index| Difference {
            index,
            step: steps[index],
            kernel: kernel.added[index].clone(),
            law: law.added[index].clone(),
        })
        .collect();
    let reads =
        steps.iter().filter(|step| matches!(step, Step::Read { .. } | Step::Touch { .. })).count();
    let pages = |recording: &Recording| -> u64 {
        recording.added.iter().flatten().map(|folio| folio.range().count()).sum()
    };
    Report {
        reads,
        equal: reads - differences.len(),
        kernel_pages: pages(kernel),
        law_pages: pages(law),
        differences,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_reported_with_both_page_ranges() {
        let text = "read_ahead_kb 128\nmax_sectors_kb 1280\nfile_bytes 1000000\n\
                    folio_order_max 9\n0 4096 -> 0..4\nadvice normal -> nothing\n\
                    4096 4096 -> 4..12x4\n";
        let (steps, kernel) = parse_recording(text).unwrap();
        let same = compare(&steps, &kernel, &play(&kernel_law(&kernel), &steps, &kernel).unwrap());
        assert_eq!((same.reads, same.equal, same.kernel_pages), (2, 2, 12));
        let none = compare(&steps, &kernel, &play(&Spec::plain("none"), &steps, &kernel).unwrap());
        assert_eq!((none.reads, none.equal, none.law_pages), (2, 0, 2));
        assert_eq!(
            none.differences[1].to_string(),
            "step 3: 4096 4096: the kernel read 4..12x4, the law 1..2"
        );
    }

    #[test]
    fn a_read_past_the_end_gets_nothing() {
        let text = "file_bytes 5000\n4096 10 -> 1..2\n5000 10 -> nothing\n8192 1 -> nothing\n";
        let (steps, kernel) = parse_recording(text).unwrap();
        let law = play(&Spec::plain("none"), &steps, &kernel).unwrap();
        assert_eq!(law.added, kernel.added);
    }
}

//! `readpath check-kernel`: comparison of the policy `ondemand` with the running kernel, read by
//! read.

use std::path::PathBuf;

use readpath_core::readahead::{Folio, HandleStep};
use readpath_eval::check_kernel::{self, ConformanceReport, StepDifference};
use readpath_eval::oracle::{self, OracleError};
use readpath_models::input_file;
use serde::Serialize;

use crate::args::CheckKernelArgs;
use crate::exit::{CommandResult, Failure};
use crate::output::{print, print_json};
use crate::scratch_files::ScratchFiles;

/// Default number of generated reads. Chosen, not measured.
const GENERATED_READS_DEFAULT: usize = 2000;
/// Number of differences printed in the text. After the first difference the two readahead states
/// have diverged, and most later ones follow from it. The JSON document contains all.
const DIFFERENCES_PRINTED_MAX: usize = 10;
/// Size of the sparse scratch file, used when no file is named: 1 GiB. Chosen, not measured.
const SCRATCH_FILE_BYTES: u64 = 1 << 30;

/// Runs the steps on the kernel and through the policy, and prints the comparison. A difference is
/// a failure.
pub fn run(args: &CheckKernelArgs) -> CommandResult {
    let file_bytes = match &args.file {
        Some(path) => {
            let file = std::fs::metadata(path);
            file.map_err(|error| Failure::usage_of(path.display(), error))?.len()
        }
        None => SCRATCH_FILE_BYTES,
    };
    let steps = steps_to_compare(args, file_bytes)?;
    let mut scratch = ScratchFiles::default();
    let path = args.file.clone().map_or_else(|| make_scratch_file(&mut scratch), Ok)?;
    // Drops the file's cached pages first, and repeats the steps if the kernel evicts some
    // meanwhile.
    let kernel = oracle::record(&path, &steps).map_err(recording_failure)?;
    drop(scratch);
    // `ondemand` with the largest folio of the recorded kernel.
    let policy_spec = check_kernel::kernel_policy(&kernel);
    let policy = check_kernel::run_policy(&policy_spec, &steps, &kernel).map_err(Failure::usage)?;
    let report = check_kernel::compare(&steps, &kernel, &policy);
    if args.json {
        print_json(&[KernelComparison::new(&report, &kernel.system)], args.seed)?;
    } else {
        print(&report_text(&report, &kernel.system))?;
    }
    match report.differences.len() {
        0 => Ok(()),
        count => Err(Failure::Run(format!("{count} steps differ"))),
    }
}

/// Returns the steps to compare: from a list, or generated for a file of `file_bytes` bytes. With
/// `--mapped`, half of the generated patterns access a mapping.
fn steps_to_compare(args: &CheckKernelArgs, file_bytes: u64) -> Result<Vec<HandleStep>, Failure> {
    match (&args.reads, args.generate) {
        (Some(list), _) => {
            let text = input_file::text(list, input_file::LIST_BYTES_MAX)
                .map_err(|error| Failure::usage_of(list.display(), error))?;
            check_kernel::parse_steps(&text)
                .map_err(|error| Failure::usage_of(list.display(), error))
        }
        (None, count) => {
            let generate =
                if args.mapped { check_kernel::generate_mapped } else { check_kernel::generate };
            Ok(generate(count.unwrap_or(GENERATED_READS_DEFAULT), args.seed, file_bytes))
        }
    }
}

/// Converts an error of the kernel's recording to the failure of the command.
fn recording_failure(error: OracleError) -> Failure {
    match error {
        OracleError::Interrupted => Failure::Interrupted,
        error if error.is_unavailable() => Failure::Unavailable(error.to_string()),
        error => Failure::usage(error),
    }
}

/// Formats the report: counts of equal and different reads, and at most `DIFFERENCES_PRINTED_MAX`
/// differences. `system` names the kernel.
fn report_text(report: &ConformanceReport, system: &str) -> String {
    let mut text = format!(
        "{system}: {} reads, {} equal, {} different; {} pages read by the kernel, {} by the policy\n",
        report.reads,
        report.equal,
        report.differences.len(),
        report.kernel_pages,
        report.policy_pages
    );
    for difference in report.differences.iter().take(DIFFERENCES_PRINTED_MAX) {
        text += &format!("{difference}\n");
    }
    let more = report.differences.len().saturating_sub(DIFFERENCES_PRINTED_MAX);
    if more > 0 {
        text += &format!("and {more} more; --json prints them all\n");
    }
    text
}

/// Creates the sparse scratch file for the comparison, and adds it to `scratch`.
fn make_scratch_file(scratch: &mut ScratchFiles) -> Result<PathBuf, Failure> {
    let name = format!("readpath-conform-{}", std::process::id());
    let path = folder_for_large_files().join(name);
    let sized = scratch.create_empty(&path)?.set_len(SCRATCH_FILE_BYTES);
    sized.map_err(|error| Failure::usage_of(path.display(), error))?;
    Ok(path)
}

/// Returns `TMPDIR`, or else `/var/tmp`. `/tmp` is often a tmpfs, which has no readahead, and is
/// returned only if both are missing.
fn folder_for_large_files() -> PathBuf {
    let on_disk = PathBuf::from("/var/tmp");
    match std::env::var_os("TMPDIR") {
        None if on_disk.is_dir() => on_disk,
        _ => std::env::temp_dir(),
    }
}

/// Comparison in the JSON document.
#[derive(Serialize)]
struct KernelComparison {
    /// Name of the kernel.
    system: String,
    /// Number of reads and touches.
    reads: usize,
    /// Number of reads and touches with equal folios.
    equal: usize,
    /// Number of steps that differ.
    different: usize,
    /// Number of pages that the kernel added in all steps.
    kernel_pages: u64,
    /// Number of pages that the policy added in all steps.
    policy_pages: u64,
    /// The steps that differ.
    differences: Vec<PageDifference>,
}

/// One difference in the JSON document. Steps count from 1; page ranges are `[first, count]`.
#[derive(Serialize)]
struct PageDifference {
    /// Number of the read or touch.
    step: usize,
    /// The step, in the form of a list of reads.
    what: String,
    /// Folios (blocks of pages that are cached as a unit) that the kernel added in it.
    kernel: Vec<[u64; 2]>,
    /// Folios that the policy added in it.
    policy: Vec<[u64; 2]>,
}

impl KernelComparison {
    /// Converts a report; `system` names the kernel.
    fn new(report: &ConformanceReport, system: &str) -> KernelComparison {
        KernelComparison {
            system: system.to_owned(),
            reads: report.reads,
            equal: report.equal,
            different: report.differences.len(),
            kernel_pages: report.kernel_pages,
            policy_pages: report.policy_pages,
            differences: report.differences.iter().map(PageDifference::new).collect(),
        }
    }
}

impl PageDifference {
    /// Converts the difference of one step.
    fn new(difference: &StepDifference) -> PageDifference {
        let page_ranges = |folios: &[Folio]| {
            folios.iter().map(|folio| [folio.first, folio.range().count()]).collect()
        };
        PageDifference {
            step: difference.index + 1,
            what: check_kernel::format_step(&difference.step),
            kernel: page_ranges(&difference.kernel),
            policy: page_ranges(&difference.policy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 12 differences: a summary, ten of the differences, and a line that counts the other two.
    #[test]
    fn report_prints_ten_differences_and_counts_the_rest() {
        let step = HandleStep::Read { offset: 0, bytes: 1 };
        let difference =
            |index| StepDifference { index, step, kernel: Vec::new(), policy: Vec::new() };
        let differences: Vec<StepDifference> = (0..12).map(difference).collect();
        let report = ConformanceReport {
            reads: 20,
            equal: 8,
            kernel_pages: 5,
            policy_pages: 7,
            differences,
        };
        let text = report_text(&report, "Linux 6.1");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "Linux 6.1: 20 reads, 8 equal, 12 different; 5 pages read by the kernel, 7 by the policy"
        );
        assert_eq!(lines.len(), 12);
        assert!(lines[10].starts_with("step 10: 0 1: "), "{}", lines[10]);
        assert_eq!(lines[11], "and 2 more; --json prints them all");
    }
}

//! `readpath conform`: the law `ondemand` against the running kernel, read by read.

use std::path::PathBuf;

use readpath_core::readahead::{Folio, Step};
use readpath_peers::oracle::{self, OracleError};
use readpath_sim::conform::{self, Difference, Report};
use readpath_sim::input_file;
use serde::Serialize;

use crate::args::ConformArgs;
use crate::exit::{Ended, Failure};
use crate::made_files::MadeFiles;
use crate::output::{print, print_json};

/// How many reads are made when nothing is said.
const READS: usize = 2000;
/// How many differences are told in words: after the first the states have
/// parted, so that most others follow from it. The JSON document has all.
const DIFFERENCES_TOLD: usize = 10;
/// The size of the file that is made when none is named: 1 GiB, sparse.
const FILE_BYTES: u64 = 1 << 30;

/// Runs the list through both and prints how they compare.
pub fn run(args: &ConformArgs) -> Ended {
    let file_bytes = match &args.file {
        Some(path) => {
            let file = std::fs::metadata(path);
            file.map_err(|error| Failure::about(path.display(), error))?.len()
        }
        None => FILE_BYTES,
    };
    let steps = steps(args, file_bytes)?;
    let mut made = MadeFiles::default();
    let path = args.file.clone().map_or_else(|| make_file(&mut made), Ok)?;
    let kernel = oracle::record(&path, &steps).map_err(failure)?;
    drop(made);
    let law =
        conform::play(&conform::kernel_law(&kernel), &steps, &kernel).map_err(Failure::usage)?;
    let report = conform::compare(&steps, &kernel, &law);
    if args.json {
        print_json(&[Comparison::new(&report, &kernel.system)], args.seed)?;
    } else {
        print(&text(&report, &kernel.system))?;
    }
    match report.differences.len() {
        0 => Ok(()),
        count => Err(Failure::Run(format!("{count} steps differ"))),
    }
}

fn steps(args: &ConformArgs, file_bytes: u64) -> Result<Vec<Step>, Failure> {
    match (&args.reads, args.generate) {
        (Some(list), _) => {
            let text = input_file::text(list, input_file::LIST_BYTES_MAX)
                .map_err(|error| Failure::about(list.display(), error))?;
            conform::parse_steps(&text).map_err(|error| Failure::about(list.display(), error))
        }
        (None, count) => {
            let generate = if args.mapped { conform::generate_mapped } else { conform::generate };
            Ok(generate(count.unwrap_or(READS), args.seed, file_bytes))
        }
    }
}

fn failure(error: OracleError) -> Failure {
    match error {
        OracleError::Interrupted => Failure::Interrupted,
        error if error.is_unavailable() => Failure::Unavailable(error.to_string()),
        error => Failure::usage(error),
    }
}

fn text(report: &Report, system: &str) -> String {
    let mut text = format!(
        "{system}: {} reads, {} equal, {} different; {} pages read by the kernel, {} by the law\n",
        report.reads,
        report.equal,
        report.differences.len(),
        report.kernel_pages,
        report.law_pages
    );
    for difference in report.differences.iter().take(DIFFERENCES_TOLD) {
        text += &format!("{difference}\n");
    }
    let more = report.differences.len().saturating_sub(DIFFERENCES_TOLD);
    if more > 0 {
        text += &format!("and {more} more; --json tells them all\n");
    }
    text
}

/// Makes the file that is read, sparse.
fn make_file(made: &mut MadeFiles) -> Result<PathBuf, Failure> {
    let name = format!("readpath-conform-{}", std::process::id());
    let path = folder_for_large_files().join(name);
    let sized = made.begin(&path)?.set_len(FILE_BYTES);
    sized.map_err(|error| Failure::about(path.display(), error))?;
    Ok(path)
}

/// `TMPDIR`, or else `/var/tmp`: `/tmp` is memory on many systems, and nothing
/// is read ahead there.
fn folder_for_large_files() -> PathBuf {
    let on_disk = PathBuf::from("/var/tmp");
    match std::env::var_os("TMPDIR") {
        None if on_disk.is_dir() => on_disk,
        _ => std::env::temp_dir(),
    }
}

/// The comparison in the JSON document.
#[derive(Serialize)]
struct Comparison {
    system: String,
    reads: usize,
    equal: usize,
    different: usize,
    kernel_pages: u64,
    law_pages: u64,
    differences: Vec<Parted>,
}

/// One difference in the JSON document; the step counted from 1, pages as `[first, count]`.
#[derive(Serialize)]
struct Parted {
    step: usize,
    what: String,
    kernel: Vec<[u64; 2]>,
    law: Vec<[u64; 2]>,
}

impl Comparison {
    fn new(report: &Report, system: &str) -> Comparison {
        Comparison {
            system: system.to_owned(),
            reads: report.reads,
            equal: report.equal,
            different: report.differences.len(),
            kernel_pages: report.kernel_pages,
            law_pages: report.law_pages,
            differences: report.differences.iter().map(Parted::new).collect(),
        }
    }
}

impl Parted {
    fn new(difference: &Difference) -> Parted {
        let pages = |folios: &[Folio]| {
            folios.iter().map(|folio| [folio.first, folio.range().count()]).collect()
        };
        Parted {
            step: difference.index + 1,
            what: conform::format_step(&difference.step),
            kernel: pages(&difference.kernel),
            law: pages(&difference.law),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_differences_are_told_and_the_others_counted() {
        let step = Step::Read { offset: 0, bytes: 1 };
        let parted = |index| Difference { index, step, kernel: Vec::new(), law: Vec::new() };
        let differences: Vec<Difference> = (0..12).map(parted).collect();
        let report = Report { reads: 20, equal: 8, kernel_pages: 5, law_pages: 7, differences };
        let text = text(&report, "Linux 6.1");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "Linux 6.1: 20 reads, 8 equal, 12 different; 5 pages read by the kernel, 7 by the law"
        );
        assert_eq!(lines.len(), 12);
        assert!(lines[10].starts_with("step 10: 0 1: "), "{}", lines[10]);
        assert_eq!(lines[11], "and 2 more; --json tells them all");
    }
}

//! Sampling of a running process without root: counters, file positions, and the page cache of its
//! files.

use std::io;
use std::time::{Duration, Instant};

use readpath_core::unit::PAGE_BYTES;
use readpath_record::capture::preload::KernelCounts;
use readpath_record::capture::sampled::{Sampled, SampledCache, SampledFile, Samples};
use readpath_record::notice;

use super::{READ_INTERVAL, RecordPlan};
use crate::exit::{CommandResult, Failure};
use crate::output::print;
use crate::signals;
use crate::table::{self, Table};

/// Maximum number of files in the table. Chosen, not measured.
const ROWS_MAX: usize = 20;

/// Samples a process until it ends, the time is over, or a signal comes. Returns `None` if this
/// user may not inspect it. Samples are no recording: a named output is refused, and so is a caller
/// that needs one (`explain`).
pub fn run(process: u32, args: &RecordPlan, time_max: Option<Duration>) -> Option<CommandResult> {
    let mut sampled = match Sampled::start(process) {
        Ok(sampled) => sampled,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
        Err(error) => return Some(Err(Failure::usage_of(format!("process {process}"), error))),
    };
    if !args.is_output_kept {
        return Some(Err(Failure::Usage(format!(
            "--pid {process}: without root the single reads of a running process are not visible, \
                and there is no recording to explain; use `readpath record --pid {process}` for \
                samples, or run it as root"
        ))));
    }
    if let Some(path) = &args.output {
        return Some(Err(Failure::Usage(format!(
            "-o {}: without root the single reads of a running process are not visible, and \
                there is no recording; leave it out, or run it as root",
            path.display()
        ))));
    }
    notice::print(
        "not root: the process is sampled at most ten times a second; single reads with their \
            offsets and waits, its threads and its child processes are not visible, and there is \
            no recording",
    );
    let began = Instant::now();
    let is_over = || time_max.is_some_and(|time_max| began.elapsed() >= time_max);
    while !signals::is_interrupted() && !is_over() && !sampled.is_over() {
        std::thread::sleep(READ_INTERVAL);
        sampled.sample_if_due();
    }
    Some(print_samples(&sampled.finish()))
}

/// Prints the samples of a process.
pub fn print_samples(samples: &Samples) -> CommandResult {
    print(&format_samples(samples))
}

/// Formats the samples of a process: the kernel's counters, and a table of at most `ROWS_MAX` files
/// that were read or are cached. Open files for which the kernel reports nothing are listed too,
/// unless they are also mapped: `pread` moves no position. Files with the most added pages come
/// first, as in `samples`.
fn format_samples(samples: &Samples) -> String {
    let Samples { seconds, looks, counts, files, has_more } = samples;
    let is_listed = |file: &&SampledFile| match &file.cache {
        Some(cache) => file.moved_bytes + cache.last_pages + cache.removed_pages > 0,
        None => file.moved_bytes > 0 || !file.is_mapped,
    };
    let rows: Vec<SampledFile> = files.iter().filter(is_listed).take(ROWS_MAX).cloned().collect();
    let mut text = format_counters(*counts, *seconds);
    text += &format!("{looks} samples, MiB:\n\n");
    match rows.is_empty() {
        true => text += "no open file is known to have been read or to be cached\n",
        false => {
            // The first two columns are text, and the others are right-aligned.
            let numbers_from = 2;
            text += &Table::of(&rows, &COLUMNS, numbers_from).to_string();
        }
    }
    let left_out = match files.len() - rows.len() {
        0 => None,
        1 => Some("1 more file was".to_owned()),
        count => Some(format!("{count} more files were")),
    };
    if let Some(left_out) = left_out {
        text += &format!("\n{left_out} open or mapped, with smaller figures or none.\n");
    }
    if *has_more {
        text += "\nMore files were open than are sampled.\n";
    }
    text += "\n`moved`: forward moves of file positions, by read(2) or a seek; pread and touches of \
        mappings do not move them. `came` and `left`: pages of the page cache between two samples, \
        by any process, so these are lower bounds. `-`: the kernel reports it only to the file's \
        owner and to users with write permission. The requested bytes, and thus the unused \
        readahead, is not known without root.\n";
    text
}

/// Prints the kernel's counters of a process over `seconds` seconds.
pub fn print_counters(counts: KernelCounts, seconds: f64) -> CommandResult {
    print(&format_counters(counts, seconds))
}

/// Formats the kernel's counters of a process over `seconds` seconds.
fn format_counters(counts: KernelCounts, seconds: f64) -> String {
    let KernelCounts { reads, bytes, device_bytes } = counts;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "Counted by the kernel in {seconds:.2} s, of the process alone: {reads} calls that read gave \
         {:.1} MiB (pipes, sockets and terminals too); {:.1} MiB were fetched from devices.\n",
        mib(bytes),
        mib(device_bytes),
    );
    if device_bytes > bytes {
        text += &format!(
            "At least {:.1} MiB of the fetched bytes were returned by no call: touches of \
                mappings used them, or they were unused.\n",
            mib(device_bytes - bytes),
        );
    }
    text
}

/// Columns of the table of files. Sizes are in MiB.
const COLUMNS: [table::Column<SampledFile>; 9] = [
    ("file", |file| file.path.clone()),
    ("how", |file| if file.is_mapped { "mapped" } else { "open" }.to_owned()),
    ("size", |file| table::mib(Some(file.bytes))),
    ("moved", |file| table::mib(Some(file.moved_bytes))),
    ("cached first", |file| cached_mib(file, |cache| cache.first_pages)),
    ("cached last", |file| cached_mib(file, |cache| cache.last_pages)),
    ("came", |file| cached_mib(file, |cache| cache.added_pages)),
    ("in pieces of", |file| cached_mib(file, |cache| cache.added_pages / cache.added_runs.max(1))),
    ("left", |file| cached_mib(file, |cache| cache.removed_pages)),
];

/// Formats a number of cached pages in MiB; `-` if unknown.
fn cached_mib(file: &SampledFile, page_count: fn(&SampledCache) -> u64) -> String {
    table::mib(file.cache.as_ref().map(|cache| page_count(cache) * PAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text about a process that sampled files of another user, for which the kernel reports no
    /// residency, and no position that moved.
    fn text_of_unknown(files: &[(&str, bool)]) -> String {
        let file = |&(path, is_mapped): &(&str, bool)| SampledFile {
            path: path.to_owned(),
            bytes: 100 << 20,
            is_mapped,
            moved_bytes: 0,
            cache: None,
        };
        format_samples(&Samples {
            seconds: 1.0,
            looks: 10,
            counts: KernelCounts { reads: 831, bytes: 831 << 12, device_bytes: 831 << 12 },
            files: files.iter().map(file).collect(),
            has_more: false,
        })
    }

    /// A program reads a file of root with `pread`, which moves no position. The text said that the
    /// file was not read.
    #[test]
    fn open_file_without_known_figures_is_listed() {
        let text = text_of_unknown(&[("/data", false), ("/library", true)]);
        assert!(!text.contains("no open file"), "{text}");
        let row = text.lines().find(|line| line.starts_with("/data ")).expect(&text);
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["/data", "open", "100.0", "0.0", "-", "-", "-", "-", "-"]);
        assert!(text.contains("1 more file was open or mapped, with smaller figures or none."));

        let text = text_of_unknown(&[("/library", true), ("/program", true)]);
        assert!(text.contains("no open file is known to have been read or to be cached\n"));
        assert!(text.contains("2 more files were open or mapped, with smaller figures or none."));
    }
}

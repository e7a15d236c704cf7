//! `readpath advise --mount`: the readahead window of a device or file system, by measurement.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use readpath_os::queue::ReadaheadSetting;
use readpath_record::direct_reads;
use readpath_record::readahead_window::{
    FILE_BYTES_MIN, TriedWindow, WindowTrial, comparable_bytes, compare,
};
use readpath_sim::job::printable;

use crate::exit::{CommandResult, Failure};
use crate::output::print;
use crate::progress::Interrupt;
use crate::table::{self, Column, Table};

/// Time after which the search for a file ends. Chosen, not measured.
const SEARCH_TIME: Duration = Duration::from_secs(2);
/// Number of folder entries after which the search ends. Chosen, not measured.
const ENTRIES_MAX: usize = 20_000;

/// Measures the readahead window of the storage at `path_argument`, a folder, a file or a block
/// device. Prints the command that sets the best window, or why none is proposed.
pub fn run(path_argument: &Path) -> CommandResult {
    let interrupt = Interrupt::listen();
    let failure = |error| Failure::usage_of(path_argument.display(), error);
    let metadata = fs::metadata(path_argument).map_err(failure)?;
    let setting = ReadaheadSetting::from_metadata(&metadata).ok_or_else(|| {
        let problem = "the kernel shows no readahead window for it below /sys";
        Failure::Unavailable(format!("{}: {problem}", path_argument.display()))
    })?;
    let path = if metadata.is_dir() {
        longest_file(path_argument, metadata.dev())?
    } else {
        path_argument.to_owned()
    };
    let file = open_direct(&path)?;
    let should_continue = &mut || !interrupt.is_signalled();
    let start_offset = 0;
    match compare(&file, start_offset, setting.bytes, should_continue) {
        Ok(Some(trial)) => print(&trial_text(&path, &setting, &trial)),
        Ok(None) => Err(Failure::Interrupted),
        Err(error) => {
            // The hint fits a file with too little data. It follows a failed read too.
            let needed = format!("{error}; a file of {} MiB is needed", FILE_BYTES_MIN >> 20);
            Err(Failure::usage_of(path.display(), needed))
        }
    }
}

/// Opens a file or a block device for direct reads. Other objects are refused.
fn open_direct(path: &Path) -> Result<File, Failure> {
    let kind = fs::metadata(path).map_err(|error| Failure::usage_of(path.display(), error))?;
    if !kind.is_file() && !kind.file_type().is_block_device() {
        let problem = "is no folder, file or block device";
        return Err(Failure::usage_of(path.display(), problem));
    }
    direct_reads::open(path).map_err(|error| {
        let problem = format!("can't be opened for reads past the page cache: {error}");
        Failure::usage_of(path.display(), problem)
    })
}

/// Returns the readable file with the most written data that a search below `folder` finds on the
/// file system with number `device`. Holes and preallocated space do not count. The search goes
/// level by level without symbolic links. It checks its limits after each folder, so that it may
/// miss longer files.
/// A file is opened only if it has more space than the longest one has data. Less data than
/// `FILE_BYTES_MIN` is an error.
fn longest_file(folder: &Path, device: u64) -> Result<PathBuf, Failure> {
    let (began, mut entries) = (Instant::now(), 0);
    let mut longest: Option<(u64, PathBuf)> = None;
    let mut folders = VecDeque::from([folder.to_owned()]);
    while let Some(folder) = folders.pop_front() {
        // A folder without permission has files that this user cannot read either.
        let Ok(directory_entries) = fs::read_dir(&folder) else { continue };
        for entry in directory_entries.flatten() {
            entries += 1;
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                folders.push_back(entry.path());
            } else if metadata.is_file()
                && longest.as_ref().is_none_or(|(bytes, _)| allocated_bytes(&metadata) > *bytes)
                && let Ok(file) = File::open(entry.path())
                && let Ok(bytes) = comparable_bytes(&file)
                && longest.as_ref().is_none_or(|(longest, _)| bytes > *longest)
            {
                longest = Some((bytes, entry.path()));
            }
        }
        if entries >= ENTRIES_MAX || began.elapsed() >= SEARCH_TIME {
            break;
        }
    }
    match longest {
        Some((bytes, path)) if bytes >= FILE_BYTES_MIN => Ok(path),
        _ => {
            let mib = FILE_BYTES_MIN >> 20;
            let problem = format!(
                "no readable file with {mib} MiB of data was found below it, in {entries} entries; name one, \
                 or the block device"
            );
            Err(Failure::usage_of(folder.display(), problem))
        }
    }
}

/// Returns the length of a file, or less if it has less space: then it has holes. A compressed file
/// has less space too.
fn allocated_bytes(metadata: &fs::Metadata) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    metadata.len().min(metadata.blocks() * BLOCK_BYTES)
}

/// Table of the windows, and the command that sets the chosen one unless it is the present one.
fn trial_text(path: &Path, setting: &ReadaheadSetting, trial: &WindowTrial) -> String {
    let columns: [Column<&TriedWindow>; 4] = [
        ("window KiB", |window| (window.bytes >> 10).to_string()),
        ("MiB/s", |window| format_rate(window.median())),
        // The times per byte are in ascending order: the last one is the lowest rate.
        ("lowest", |window| {
            format_rate(window.seconds_per_byte[window.seconds_per_byte.len() - 1])
        }),
        ("highest", |window| format_rate(window.seconds_per_byte[0])),
    ];
    let rows: Vec<&TriedWindow> = trial.tried.iter().collect();
    // All columns are numbers, which are right-aligned.
    let numbers_from = 0;
    let table = Table::of(&rows, &columns, numbers_from);
    // Window 0 is the present one, limited to the sizes that are compared. The setting has its
    // exact size.
    let [present, chosen] =
        [0, trial.chosen].map(|window_index| trial.tried[window_index].bytes >> 10);
    // The times are in ascending order: the slowest round of the chosen window comes last.
    let [present_times, chosen_times] =
        [0, trial.chosen].map(|window_index| &trial.tried[window_index].seconds_per_byte);
    let is_clear = chosen_times.last() < present_times.first();
    let advice = match trial.chosen {
        0 => format!(
            "The present window of {present} KiB is as fast as the fastest; none is proposed."
        ),
        _ if !is_clear => format!(
            "{chosen} KiB is the smallest of the fastest, but its slowest round is not faster than\n\
             the fastest one of the present window of {present} KiB; none is proposed."
        ),
        _ => format!(
            "The present window is {} KiB. As root, this sets the smallest of the fastest:\n\n  \
             echo {chosen} > {}\n\n\
             It holds for all files on the device, until the next start of the machine. Programs with\n\
             short runs at random positions may then read more than they use.",
            setting.bytes >> 10,
            setting.path.display(),
        ),
    };
    let path = printable(&path.to_string_lossy());
    format!("Direct reads of {path}, two windows in flight:\n\n{table}\n{advice}\n")
}

/// Formats a rate in MiB/s from seconds per byte.
fn format_rate(seconds_per_byte: f64) -> String {
    table::number(Some(1.0 / seconds_per_byte / f64::from(1 << 20)), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text about three rounds of each window in KiB, the present one first. Their rates in MiB a
    /// second descend.
    fn text_of_rates(windows: &[(u64, [f64; 3])]) -> String {
        let tried = |&(kib, rates): &(u64, [f64; 3])| TriedWindow {
            bytes: kib << 10,
            requests: 24,
            seconds_per_byte: rates.map(|rate| 1.0 / rate / f64::from(1 << 20)).to_vec(),
        };
        let path = PathBuf::from("/sys/block/loop0/queue/read_ahead_kb");
        let setting = ReadaheadSetting { path, bytes: windows[0].0 << 10 };
        let tried: Vec<TriedWindow> = windows.iter().map(tried).collect();
        let trial = WindowTrial { tried, chosen: 1, is_complete: true };
        trial_text(Path::new("/data"), &setting, &trial)
    }

    /// Rates of an idle device, on which a second comparison proposed another window.
    #[test]
    fn window_that_is_faster_in_some_rounds_only_is_not_proposed() {
        let text = text_of_rates(&[
            (2560, [860.0, 615.0, 487.0]),
            (2048, [841.0, 722.0, 470.0]),
            (8192, [882.0, 776.0, 735.0]),
        ]);
        assert!(!text.contains("echo"), "{text}");
        assert!(text.contains("none is proposed"), "{text}");
        // On a device of 1 ms a request all rounds of the larger window are faster.
        let text = text_of_rates(&[(128, [240.0, 235.0, 230.0]), (2048, [1400.0, 1300.0, 241.0])]);
        assert!(text.contains("echo 2048 > /sys/block/loop0/"), "{text}");
    }
}

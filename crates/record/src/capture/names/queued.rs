//! Reports of opened files up to the present. Programs may open files faster than one thread reads
//! the reports, so that a reader of all of them would never end.

use nix::sys::fanotify::FanotifyEvent;

use super::System;

/// Size in bytes of a report in the kernel's queue (`FAN_EVENT_METADATA_LEN`).
const REPORT_BYTES: usize = size_of::<libc::fanotify_event_metadata>();

impl System {
    /// Number of reports in the kernel's queue. 0 without fanotify.
    pub fn queued_reports(&self) -> usize {
        // fanotify answers `FIONREAD` with the bytes of all reports in the queue.
        let bytes = self.fanotify.as_ref().map(rustix::io::ioctl_fionread);
        bytes.and_then(Result::ok).unwrap_or(0) as usize / REPORT_BYTES
    }

    /// Returns some of the next `reports_left` reports, and subtracts their number. The last of
    /// them may come with later ones. `None` at 0, if there is none, and if they cannot be read.
    pub fn next_queued_reports(&mut self, reports_left: &mut usize) -> Option<Vec<FanotifyEvent>> {
        if *reports_left == 0 {
            return None;
        }
        let reports = self.next_reports()?;
        *reports_left = reports_left.saturating_sub(reports.len());
        Some(reports)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;

    use super::*;

    /// A program opens two files while one report is read. The kernel merges two reports of one
    /// file in its queue, so there are 300 files.
    #[test]
    fn reports_are_read_up_to_the_present_while_files_are_opened() {
        let mut system = System::new();
        if system.fanotify.is_none() {
            return println!("skipped: the kernel refuses fanotify");
        }
        let executable = std::env::current_exe().unwrap();
        let folder = executable.with_file_name(format!("queued-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let paths = (0..300).map(|number| folder.join(number.to_string()));
        let paths: Vec<PathBuf> = paths.inspect(|path| fs::write(path, "").unwrap()).collect();
        while system.next_reports().is_some() {}
        paths.iter().for_each(|path| drop(File::open(path).unwrap()));
        // Other processes open files too.
        let queued = system.queued_reports();
        let (mut left, mut read) = (queued, 0);
        let mut to_open = paths.iter().cycle();
        while let Some(reports) = system.next_queued_reports(&mut left).filter(|_| read < 20_000) {
            read += reports.len();
            to_open.by_ref().take(2 * reports.len()).for_each(|path| drop(File::open(path)));
        }
        fs::remove_dir_all(&folder).unwrap();
        assert!(queued >= 300, "{queued}");
        assert!((queued..20_000).contains(&read), "{read} of {queued}");
    }
}

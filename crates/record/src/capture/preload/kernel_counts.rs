//! Kernel counters of read calls, which show how many calls a recording lacks.

use std::fs;
use std::io;
use std::process::{Child, ExitStatus};

use readpath_os::proc_text;

use super::super::state_samples::StateSampler;
use super::Preload;

/// Kernel counters of a program and of the children that it has waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Number of read calls, on files and other objects.
    pub reads: u64,
    /// Bytes returned by them.
    pub bytes: u64,
    /// Bytes read from devices for the program, readahead included.
    pub device_bytes: u64,
}

impl KernelCounts {
    /// Reads the counters of a process and of the children that it has waited for.
    ///
    /// # Errors
    /// The process does not exist or belongs to another user.
    pub fn of(process: u32) -> io::Result<KernelCounts> {
        KernelCounts::from_file(&format!("/proc/{process}/io"))
    }

    /// Returns the increase of the counters since an earlier reading.
    pub fn since(self, earlier: KernelCounts) -> KernelCounts {
        KernelCounts {
            reads: self.reads.saturating_sub(earlier.reads),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            device_bytes: self.device_bytes.saturating_sub(earlier.device_bytes),
        }
    }

    /// Reads the counters of this process. `None` where the kernel has none.
    pub(super) fn of_own() -> Option<KernelCounts> {
        KernelCounts::from_file("/proc/self/io").ok()
    }

    /// Reads the counters from a file `/proc/PID/io`. Fails if it cannot be read or lacks a
    /// counter.
    fn from_file(path: &str) -> io::Result<KernelCounts> {
        let text = fs::read_to_string(path)?;
        let value = |name: &str| {
            let number = proc_text::field(&text, name).and_then(|number| number.parse().ok());
            number.ok_or_else(|| io::Error::other(format!("{path}: no number after {name}")))
        };
        Ok(KernelCounts {
            reads: value("syscr:")?,
            bytes: value("rchar:")?,
            device_bytes: value("read_bytes:")?,
        })
    }
}

impl Preload {
    /// Ends the samples and waits for the program. Returns its exit status and the kernel's
    /// counters of it and of its collected children. The counters are `None` where the kernel has
    /// none. They include any reads that other threads of the caller make meanwhile, so call it
    /// once the program has ended.
    ///
    /// # Errors
    /// The wait failed.
    pub fn wait_counted(
        &mut self,
        child: &mut Child,
    ) -> io::Result<(ExitStatus, Option<KernelCounts>)> {
        // The sampling thread reads files of `/proc`.
        self.states.iter_mut().for_each(StateSampler::stop);
        // The kernel adds a child's counters to its parent's at the wait. Reading the counters
        // costs reads too. The difference of the first two readings is the cost of one, and it is
        // subtracted.
        let own_counts = [KernelCounts::of_own(), KernelCounts::of_own()];
        let status = child.wait()?;
        let counted = || {
            let ([first, second], last) = (own_counts, KernelCounts::of_own()?);
            let reading_cost = second?.since(first?);
            Some(last.since(second?).since(reading_cost))
        };
        Ok((status, counted()))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The sampling thread of the recorder reads files of `/proc` while the program waits.
    #[test]
    fn samples_end_before_a_program_is_counted() {
        let mut preload = Preload::start(&[]).unwrap();
        let mut command = Command::new("sleep");
        command.arg("0.1");
        let mut child = preload.spawn(command).unwrap();
        let is_sampled = |preload: &Preload| preload.states.as_ref().map(StateSampler::is_running);
        if is_sampled(&preload).is_none() {
            println!("skipped: the kernel denies samples");
        }
        preload.wait_counted(&mut child).unwrap();
        assert_ne!(is_sampled(&preload), Some(true));
    }
}

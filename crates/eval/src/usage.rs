//! Processor time, page faults and memory of the process, for reports.

use std::mem::MaybeUninit;
use std::time::Duration;

use readpath_os::proc_text;

/// Processor time, split by user and kernel mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time in user mode.
    pub user: Duration,
    /// Time in kernel mode.
    pub system: Duration,
}

impl CpuTime {
    /// Processor time of all threads of this process, including ended threads and the kernel
    /// workers of its rings.
    pub fn of_process() -> CpuTime {
        CpuTime::of(libc::RUSAGE_SELF)
    }

    /// Processor time of the children that have ended and were waited for.
    pub fn of_children() -> CpuTime {
        CpuTime::of(libc::RUSAGE_CHILDREN)
    }

    /// Processor time of the calling thread.
    pub fn of_thread() -> CpuTime {
        CpuTime::of(libc::RUSAGE_THREAD)
    }

    /// Time spent since `earlier`.
    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }

    /// Sum of both times in seconds.
    pub fn seconds(self) -> f64 {
        (self.user + self.system).as_secs_f64()
    }

    /// Reads the processor time of `target`: a process, its children or a thread, as for
    /// getrusage(2).
    fn of(target: i32) -> CpuTime {
        let usage = usage_of(target);
        let duration = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        CpuTime { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
    }
}

/// Number of page faults of this process that waited for a device.
pub fn major_faults() -> u64 {
    usage_of(libc::RUSAGE_SELF).ru_majflt as u64
}

/// Number of page faults of this process that did not wait for a device.
pub fn minor_faults() -> u64 {
    usage_of(libc::RUSAGE_SELF).ru_minflt as u64
}

/// Peak resident memory of this process in bytes (`VmHWM`, proc(5)). Returns `None` where the
/// kernel does not report it.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    proc_text::field_bytes(&status, "VmHWM:")
}

/// Bytes read from storage for this process, kernel readahead included (`read_bytes`, proc(5)).
/// Returns `None` where the kernel does not report it.
pub fn storage_read_bytes() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    proc_text::field(&counts, "read_bytes:")?.parse().ok()
}

/// Calls getrusage(2) for `target`.
fn usage_of(target: i32) -> libc::rusage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the struct is large enough, and all-zero is a valid value.
    unsafe {
        let result = libc::getrusage(target, usage.as_mut_ptr());
        assert_eq!(result, 0, "getrusage(2) fails only for arguments that it doesn't know");
        usage.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peak counts 64 MiB that were freed. The bound of half allows memory freed before.
    #[test]
    fn freed_memory_still_counts_in_the_peak() {
        let Some(peak_before) = peak_memory_bytes() else {
            return println!("skipped: no VmHWM in /proc/self/status");
        };
        const BYTES: usize = 64 << 20;
        drop(std::hint::black_box(vec![1u8; BYTES]));
        let grown_bytes = peak_memory_bytes().unwrap() - peak_before;
        assert!(grown_bytes > BYTES as u64 / 2, "{grown_bytes} bytes more");
    }

    #[test]
    fn cpu_time_is_counted_for_thread_and_process() {
        let (process, thread) = (CpuTime::of_process(), CpuTime::of_thread());
        let mut sum = 0u64;
        while CpuTime::of_thread().since(thread).seconds() < 0.02 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(CpuTime::of_process().since(process).seconds() >= 0.02);
    }
}

//! Present activity of a thread, from its state and its system call in `/proc`.

use std::fs;
use std::io;

use readpath_trace::recording::Activity;

use super::call_faults::{CallFaults, FaultEvidence, state_and_major_faults, wait_function};
use super::call_kind::{CallKind, call_kind};
use super::descriptor_kind::is_file;
use super::{Process, aio};

/// Present activity of a thread of a process with the properties `traits`. `None` if the thread has
/// ended, or is an idle worker of io_uring. `faults` finds page faults within system calls, by the
/// earlier samples of the thread. A page fault has the activity `fault_activity` of the process.
pub(super) fn activity(
    process: u32,
    thread: u32,
    traits: &Process,
    faults: &mut CallFaults,
) -> Option<Activity> {
    let call = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"));
    let call = match call {
        Ok(call) => call,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Some(Activity::Unknown);
        }
        Err(_) => return None,
    };
    let mut words = call.split_whitespace();
    let number = match words.next()? {
        "running" => return Some(Activity::Processor),
        number => number.parse::<i64>().ok()?,
    };
    let state = || state_and_major_faults(process, thread);
    let is_disk_sleep = || state().is_some_and(|(letter, _)| letter == 'D');
    if number < 0 {
        // -1: outside of a system call, as in a page fault.
        // A worker thread of io_uring has no stack in user space, and sleeps while it has no work.
        let is_kernel_worker = words.all(|word| word == "0x0");
        return Some(match state() {
            Some(('D', _)) if is_kernel_worker => Activity::AsyncIo,
            _ if is_kernel_worker => return None,
            Some(('D', major_faults)) => {
                faults.on_fault_outside(thread, major_faults);
                traits.fault_activity()
            }
            // Stopped by a signal or a debugger.
            Some(('T' | 't', _)) => Activity::Others,
            _ => Activity::Unknown,
        });
    }
    if !traits.has_own_numbers {
        return Some(Activity::Unknown);
    }
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let values = [argument(), argument(), argument()];
    // Descriptors have 32 bits.
    let arguments = values.map(|value| value.map(|value| value as u32));
    let values = values.map(Option::unwrap_or_default);
    let is_file = |descriptor: Option<u32>| is_file(process, descriptor);
    let kind = call_kind(number);
    let activity = match kind {
        CallKind::Known(activity) => activity,
        CallKind::Transfer(activity) if is_file(arguments[0]) => activity,
        CallKind::Transfer(_) => Activity::Others,
        // The source of `sendfile` is its second descriptor. A wait for a file is one that signals
        // do not end (D). A wait for the other side, such as a pipe, is another program's.
        CallKind::Copy { source } if is_file(arguments[source]) && is_disk_sleep() => {
            Activity::Read
        }
        CallKind::Copy { .. } => Activity::Others,
        CallKind::OpenOrClose if is_disk_sleep() => Activity::Metadata,
        CallKind::OpenOrClose => match wait_function(process, thread) {
            Some(function) => interruptible_open(&function),
            None => Activity::Unknown,
        },
        CallKind::Mapping => Activity::Unknown,
        CallKind::AioSubmission => aio::submission_activity(process, values),
        CallKind::AioResults => aio::results_activity(process, values[0]),
    };
    let evidence = fault_evidence(kind, activity);
    let is_fault = evidence.is_some_and(|evidence| faults.is_fault(process, thread, evidence));
    Some(if is_fault { traits.fault_activity() } else { activity })
}

/// Evidence by which a sleep in a call of this kind and with this activity counts as a page fault.
/// `None`: it never does. These are calls that copy little or none of the program's memory, and
/// reads of files. A read's waits for pages of the file look like faults on its buffer.
fn fault_evidence(kind: CallKind, activity: Activity) -> Option<FaultEvidence> {
    match (kind, activity) {
        (CallKind::Copy { .. } | CallKind::OpenOrClose, _) => None,
        // The kernel counts no major fault for a page of MAP_POPULATE, and only that waits for one.
        (CallKind::Mapping, _) => Some(FaultEvidence::PageWait),
        (_, Activity::Others) => Some(FaultEvidence::PageWait),
        // A write may wait for the rest of a page, and a lock on NFS for written pages.
        (_, Activity::Write | Activity::AsyncIo | Activity::Lock | Activity::Unknown) => {
            Some(FaultEvidence::MajorFault)
        }
        _ => None,
    }
}

/// Activity of a sleep in a call that opens or closes, if signals end the sleep. `function` is the
/// kernel's function that sleeps. File systems in the kernel sleep uninterruptibly. FUSE waits
/// interruptibly for the answer of its server. Any other wait is for the other end of a named pipe,
/// for a lease, or for a terminal or another device.
fn interruptible_open(function: &str) -> Activity {
    let is_of_server = function == "request_wait_answer" || function.contains("fuse_");
    if is_of_server { Activity::Metadata } else { Activity::Others }
}

/// True if a thread with the present activity `Others` is in a call that copies from a file. It
/// then waits for the receiver, such as a pipe or a socket, and not for the file.
pub(super) fn is_copying(process: u32, thread: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"));
    let number = call.ok().and_then(|call| call.split_whitespace().next()?.parse().ok());
    number.is_some_and(|number| matches!(call_kind(number), CallKind::Copy { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18: a mapping of 200 MiB with MAP_POPULATE waited for its pages and had no major
    /// fault more. A futex may wait for a page of the program's memory, which is one.
    #[test]
    fn populated_mappings_need_no_major_fault() {
        let evidence = |number| fault_evidence(call_kind(number), Activity::Unknown);
        assert_eq!(evidence(libc::SYS_mmap), Some(FaultEvidence::PageWait));
        assert_eq!(evidence(libc::SYS_futex), Some(FaultEvidence::MajorFault));
    }

    /// Functions of Linux 6.18: the open of a named pipe sleeps in the first, FUSE in the second.
    #[test]
    fn interruptible_open_waits_for_others_except_for_a_server_of_files() {
        assert_eq!(interruptible_open("wait_for_partner"), Activity::Others);
        assert_eq!(interruptible_open("request_wait_answer"), Activity::Metadata);
        assert_eq!(interruptible_open("__fuse_simple_request"), Activity::Metadata);
    }
}

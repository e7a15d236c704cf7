//! Present activity of a thread, from its state and its system call in `/proc`.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;

use readpath_os::proc_text;
use readpath_trace::recording::Activity;

use super::Process;
use super::call_kind::{CallKind, call_kind};

/// Present activity of a thread of a process with the properties `traits`. `None` if the thread has
/// ended, or is an idle worker of io_uring.
pub(super) fn activity(process: u32, thread: u32, traits: &Process) -> Option<Activity> {
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
    let is_disk_sleep = || state_letter(process, thread) == Some('D');
    if number < 0 {
        // -1: outside of a system call, as in a page fault.
        // A worker thread of io_uring has no stack in user space, and sleeps while it has no work.
        let is_kernel_worker = words.all(|word| word == "0x0");
        return Some(match state_letter(process, thread) {
            Some('D') if is_kernel_worker => Activity::AsyncIo,
            _ if is_kernel_worker => return None,
            // With memory in the swap area, the fault may be one of that memory.
            Some('D') if !traits.has_swapped => Activity::Fault,
            // Stopped by a signal or a debugger.
            Some('T' | 't') => Activity::Others,
            _ => Activity::Unknown,
        });
    }
    if !traits.has_own_numbers {
        return Some(Activity::Unknown);
    }
    let argument = |word: Option<&str>| {
        // Descriptors have 32 bits.
        u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok().map(|value| value as u32)
    };
    let arguments = [argument(words.next()), argument(words.next())];
    let is_file = |descriptor: Option<u32>| is_file(process, descriptor);
    Some(match call_kind(number) {
        CallKind::Known(activity) => activity,
        CallKind::Transfer(activity) if is_file(arguments[0]) => activity,
        CallKind::Transfer(_) => Activity::Others,
        // The source of `sendfile` is its second descriptor. A wait for a file is one that signals
        // do not end (D). A wait for the other side, such as a pipe, is another program's.
        CallKind::Copy { source } if is_file(arguments[source]) && is_disk_sleep() => {
            Activity::Read
        }
        CallKind::Copy { .. } => Activity::Others,
    })
}

/// True if a thread with the present activity `Others` is in a call that copies from a file. It
/// then waits for the receiver, such as a pipe or a socket, and not for the file.
pub(super) fn is_copying(process: u32, thread: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"));
    let number = call.ok().and_then(|call| call.split_whitespace().next()?.parse().ok());
    number.is_some_and(|number| matches!(call_kind(number), CallKind::Copy { .. }))
}

/// State of a thread as in `/proc/PID/stat`: `D` in a wait that signals do not end, `S` in another.
/// `None` if the thread has ended.
fn state_letter(process: u32, thread: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    proc_text::stat_fields(&stat)?.next()?.chars().next()
}

/// True if a descriptor belongs to a regular file or a block device.
pub(super) fn is_file(process: u32, descriptor: Option<u32>) -> bool {
    let Some(descriptor) = descriptor else { return false };
    let metadata = fs::metadata(format!("/proc/{process}/fd/{descriptor}"));
    metadata.is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_block_device())
}

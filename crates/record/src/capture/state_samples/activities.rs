//! Present activity of a thread, from its state and its system call in `/proc`.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;

use readpath_trace::recording::Activity;

use super::Process;

/// Number of the call io_pgetevents, which the crate libc lacks.
const SYS_IO_PGETEVENTS: i64 = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

/// Present activity of a thread. `None` if the thread has ended.
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
        // A worker thread of io_uring has no stack in user space, and sleeps while it has no work.
        let is_kernel_worker = words.all(|word| word == "0x0");
        return Some(match state_letter(process, thread) {
            Some('D') if is_kernel_worker => Activity::AsyncIo,
            _ if is_kernel_worker => return None,
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
        u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok().map(|value| value as u32)
    };
    let arguments = [argument(words.next()), argument(words.next())];
    let is_file = |descriptor: Option<u32>| is_file(process, descriptor);
    Some(match call_kind(number) {
        CallKind::Known(activity) => activity,
        CallKind::Transfer(activity) if is_file(arguments[0]) => activity,
        CallKind::Transfer(_) => Activity::Others,
        // The source of `sendfile` is its second descriptor. The other side may be a pipe.
        CallKind::Copy { source } if is_file(arguments[source]) && is_disk_sleep() => {
            Activity::Read
        }
        CallKind::Copy { .. } => Activity::Others,
    })
}

/// State of a thread as in `/proc/PID/stat`: `D` in a wait that signals do not end, `S` in another.
fn state_letter(process: u32, thread: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?;
    // The name before the state may contain spaces and parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// True if a descriptor belongs to a regular file or a block device.
pub(super) fn is_file(process: u32, descriptor: Option<u32>) -> bool {
    let Some(descriptor) = descriptor else { return false };
    let metadata = fs::metadata(format!("/proc/{process}/fd/{descriptor}"));
    metadata.is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_block_device())
}

/// Kind of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    /// A sleep in this call is always this activity.
    Known(Activity),
    /// A sleep is this activity if the first argument is a descriptor of a file.
    Transfer(Activity),
    /// A sleep is a read if the descriptor at this index of the arguments is a file.
    Copy { source: usize },
}

/// Kind of the system call with a number of this architecture.
fn call_kind(number: i64) -> CallKind {
    use Activity::{AsyncIo, Children, Lock, Metadata, Others, Read, Sleep, Unknown, Write};
    use CallKind::{Copy, Known, Transfer};
    match number {
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_preadv2 => Transfer(Read),
        libc::SYS_readahead | libc::SYS_fadvise64 => Known(Read),
        // Buffered AIO reads in the call that submits it.
        libc::SYS_io_submit => Known(Read),
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2 => Transfer(Write),
        libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync
        | libc::SYS_syncfs
        | libc::SYS_sync_file_range
        | libc::SYS_msync
        | libc::SYS_fallocate => Known(Write),
        libc::SYS_close => Transfer(Write),
        libc::SYS_sendfile => Copy { source: 1 },
        libc::SYS_splice | libc::SYS_copy_file_range => Copy { source: 0 },
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS | libc::SYS_io_uring_enter => Known(AsyncIo),
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_fstat
        | libc::SYS_getdents64
        | libc::SYS_unlinkat
        | libc::SYS_renameat2
        | libc::SYS_mkdirat
        | libc::SYS_linkat
        | libc::SYS_symlinkat
        | libc::SYS_readlinkat
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_execve
        | libc::SYS_execveat
        | libc::SYS_ftruncate
        | libc::SYS_truncate
        | libc::SYS_utimensat
        | libc::SYS_fchmodat
        | libc::SYS_fchownat
        | libc::SYS_getxattr
        | libc::SYS_lgetxattr
        | libc::SYS_statfs
        | libc::SYS_fstatfs => Known(Metadata),
        libc::SYS_futex
        | libc::SYS_flock
        | libc::SYS_fcntl
        | libc::SYS_semtimedop
        | libc::SYS_futex_waitv => Known(Lock),
        libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_clone | libc::SYS_clone3 => Known(Children),
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Known(Sleep),
        libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_rt_sigsuspend
        | libc::SYS_msgrcv
        | libc::SYS_msgsnd => Known(Others),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_access
        | libc::SYS_getdents
        | libc::SYS_unlink
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_mkdir
        | libc::SYS_rmdir
        | libc::SYS_link
        | libc::SYS_symlink
        | libc::SYS_readlink
        | libc::SYS_creat
        | libc::SYS_chmod
        | libc::SYS_chown => Known(Metadata),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait | libc::SYS_pause => Known(Others),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => Known(Children),
        _ => Known(Unknown),
    }
}

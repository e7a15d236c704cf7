//! Kinds of system calls, by number.

use readpath_trace::recording::Activity;

/// Kind of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A sleep in this call is always this activity.
    Known(Activity),
    /// A sleep is this activity if the first argument is a descriptor of a file.
    Transfer(Activity),
    /// A sleep is a read if the descriptor at this index of the arguments is a file.
    Copy { source: usize },
    /// The call opens or closes a file, a pipe, a terminal or another device.
    OpenOrClose,
    /// The call maps memory. With `MAP_POPULATE` it waits for the pages of a file.
    Mapping,
    /// A sleep is of the requests of AIO in the arguments: without `O_DIRECT` they are made in the
    /// call that submits them.
    AioSubmission,
    /// A sleep is for results of AIO.
    AioResults,
}

/// Kind of the system call with a number of this architecture.
pub(super) fn call_kind(number: i64) -> CallKind {
    use Activity::{AsyncIo, Children, Lock, Metadata, Others, Read, Sleep, Sync, Unknown, Write};
    use CallKind::{AioResults, AioSubmission, Copy, Known, Mapping, OpenOrClose, Transfer};
    match number {
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_preadv2 => Transfer(Read),
        libc::SYS_readahead | libc::SYS_fadvise64 => Known(Read),
        libc::SYS_mmap => Mapping,
        libc::SYS_io_submit => AioSubmission,
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS => AioResults,
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
        | libc::SYS_msync => Known(Sync),
        libc::SYS_fallocate => Known(Write),
        // The descriptor is gone when the call sleeps. The last close of a deleted file frees its
        // blocks. On NFS and CIFS a close writes data back, which counts here too.
        libc::SYS_close | libc::SYS_openat | libc::SYS_openat2 => OpenOrClose,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => OpenOrClose,
        libc::SYS_sendfile => Copy { source: 1 },
        libc::SYS_splice | libc::SYS_copy_file_range => Copy { source: 0 },
        libc::SYS_io_uring_enter => Known(AsyncIo),
        // A call of fcntl sleeps for a lock of a file only.
        libc::SYS_futex
        | libc::SYS_flock
        | libc::SYS_fcntl
        | libc::SYS_semtimedop
        | libc::SYS_futex_waitv => Known(Lock),
        // A call of clone sleeps as vfork does: until the child ends or executes a program.
        libc::SYS_wait4 | libc::SYS_waitid | libc::SYS_clone | libc::SYS_clone3 => Known(Children),
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Known(Sleep),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => Known(Children),
        _ if is_metadata_call(number) => Known(Metadata),
        _ if is_wait_for_others(number) => Known(Others),
        _ => Known(Unknown),
    }
}

/// True if the call reads or changes names, lengths or attributes of files, or executes a program.
fn is_metadata_call(number: i64) -> bool {
    match number {
        libc::SYS_newfstatat
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
        | libc::SYS_fstatfs => true,
        // Older calls, which newer architectures lack.
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat
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
        | libc::SYS_chmod
        | libc::SYS_chown => true,
        _ => false,
    }
}

/// True if a sleep in the call waits for another program, a peer or a signal.
fn is_wait_for_others(number: i64) -> bool {
    match number {
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
        | libc::SYS_msgsnd => true,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select | libc::SYS_epoll_wait | libc::SYS_pause => true,
        _ => false,
    }
}

/// Number of the call io_pgetevents, which the crate libc lacks.
const SYS_IO_PGETEVENTS: i64 = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

#[cfg(test)]
mod tests {
    use super::*;

    /// The remedy for a throttled write is another one than for a sync.
    #[test]
    fn calls_that_write_differ_from_calls_that_wait_for_written_data() {
        assert_eq!(call_kind(libc::SYS_pwrite64), CallKind::Transfer(Activity::Write));
        assert_eq!(call_kind(libc::SYS_fdatasync), CallKind::Known(Activity::Sync));
    }

    /// Linux removes a descriptor from its table before it closes the file. While a close sleeps,
    /// the descriptor is no file any more, so the activity must not depend on it.
    #[test]
    fn close_needs_no_descriptor() {
        assert_eq!(call_kind(libc::SYS_close), CallKind::OpenOrClose);
    }
}

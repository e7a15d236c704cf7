//! Activity of a sleeping thread, from the kernel's stack of its sleep.

use std::collections::HashMap;
use std::fs;
use std::thread::{Builder, JoinHandle};

use readpath_os::proc_text;
use readpath_trace::recording::Activity;

/// Activities by functions of the kernel. The first line with a function that is on the stack
/// decides. A name that ends with `_` stands for all functions that begin like it. Inner waits that
/// occur under many calls (a pipe below `read`) come before the calls. Page faults are first: any
/// call may fault on the program's memory. Names are of Linux 5.10 to 6.18.
const ACTIVITIES: [(Activity, &[&str]); 14] = [
    // On its way back from a fault, a thread may stop for a signal or a debugger.
    (Activity::Others, &["ptrace_stop", "do_signal_stop"]),
    (Activity::SwapIn, &["do_swap_page", "swap_read_folio", "swapin_"]),
    (
        Activity::Memory,
        &["try_to_free_pages", "try_to_free_mem_cgroup_pages", "mem_cgroup_handle_over_high"],
    ),
    // The first two have no exception above them if the kernel pins the memory of a call.
    (
        Activity::Fault,
        &[
            "filemap_fault",
            "handle_mm_fault",
            "exc_page_fault",
            "asm_exc_page_fault",
            "do_page_fault",
            "do_mem_abort",
        ],
    ),
    (
        Activity::Lock,
        &[
            "futex_",
            "__futex_wait",
            "locks_lock_inode_wait",
            "__do_sys_flock",
            "do_lock_file_wait",
            "flock_lock_inode_wait",
            "posix_lock_inode_wait",
            "do_semtimedop",
            "do_mq_timedreceive",
            "do_mq_timedsend",
        ],
    ),
    (
        Activity::Children,
        &["do_wait", "__do_wait", "kernel_wait4", "kernel_waitid", "wait_for_vfork_done"],
    ),
    (Activity::Sleep, &["do_nanosleep", "hrtimer_nanosleep", "common_nsleep"]),
    (
        Activity::Others,
        &[
            "pipe_read",
            "pipe_write",
            "anon_pipe_",
            "unix_stream_",
            "unix_dgram_",
            "unix_accept",
            "inet_accept",
            "inet_csk_accept",
            "inet_stream_connect",
            "tcp_recvmsg",
            "tcp_sendmsg",
            "udp_recvmsg",
            "sk_wait_data",
            "n_tty_",
            "tty_",
            "ep_poll",
            "do_epoll_wait",
            "do_poll",
            "do_sys_poll",
            "do_select",
            "eventfd_read",
            "signalfd_read",
            "timerfd_read",
            "inotify_read",
            "fanotify_read",
            "netlink_recvmsg",
            "packet_recvmsg",
            "raw_recvmsg",
            "devkmsg_read",
            "evdev_read",
            "seccomp_notify_",
            "userfaultfd_read",
            "fuse_dev_do_read",
            "do_sigtimedwait",
            "sigsuspend",
            "__do_sys_pause",
            "__ia32_sys_pause",
            "__x64_sys_pause",
            "do_msgrcv",
            "do_msgsnd",
            "virtio_vsock_",
            "vsock_",
            // An open that waits for the other end of a named pipe, for the holder of a lease, or
            // for a program that permits opens. A close that sends the rest of a connection.
            "fifo_open",
            "wait_for_partner",
            "__break_lease",
            "fanotify_get_response",
            "sk_stream_wait_close",
        ],
    ),
    (Activity::AsyncIo, &["read_events", "do_io_getevents", "io_cqring_wait"]),
    // Opening, listing, changing and executing files reads and writes inodes and folders.
    (
        Activity::Metadata,
        &[
            "do_sys_open",
            "do_sys_openat2",
            "do_filp_open",
            "vfs_statx",
            "vfs_fstatat",
            "vfs_getattr",
            "do_statx",
            "iterate_dir",
            "do_unlinkat",
            "do_renameat2",
            "do_mkdirat",
            "do_rmdir",
            "do_linkat",
            "do_symlinkat",
            "do_readlinkat",
            "do_faccessat",
            "do_truncate",
            "do_execveat_common",
            "bprm_execve",
            "user_path_at",
            "filename_lookup",
            "path_lookupat",
            "path_openat",
            "vfs_getxattr",
            "vfs_listxattr",
            "vfs_setxattr",
            "vfs_removexattr",
            "do_handle_open",
            "vfs_utimes",
            "chmod_common",
            "chown_common",
            "vfs_statfs",
            "user_statfs",
            // The last close of a deleted file frees its blocks, and discards them on the device.
            "evict",
        ],
    ),
    // A write to a file that was opened with `O_SYNC` is one, too.
    (
        Activity::Sync,
        &[
            "vfs_fsync",
            "vfs_fsync_range",
            "do_fsync",
            "ksys_sync",
            "sync_filesystem",
            "iterate_supers",
            "ksys_sync_file_range",
        ],
    ),
    (
        Activity::Write,
        &[
            "file_write_and_wait_range",
            "filemap_fdatawait",
            "__filemap_fdatawait_range",
            "filemap_write_and_wait",
            "filemap_write_and_wait_range",
            "aio_write",
            "io_write",
            "balance_dirty_pages",
            "vfs_write",
            "ksys_write",
            "vfs_writev",
            "do_pwritev",
            "do_iter_write",
            "vfs_iter_write",
            "vfs_fallocate",
            "ksys_fallocate",
            "filp_flush",
            "filp_close",
            "__fput",
        ],
    ),
    (
        Activity::Read,
        &[
            "filemap_read",
            "filemap_get_pages",
            "filemap_splice_read",
            "vfs_read",
            "ksys_read",
            "vfs_readv",
            "do_preadv",
            "vfs_iter_read",
            "page_cache_ra_",
            "page_cache_sync_ra",
            "force_page_cache_ra",
            "ksys_readahead",
            "generic_fadvise",
            "madvise_",
            "do_sendfile",
            "do_splice_",
            "do_splice",
            "process_vm_rw",
            // A submission that waits: for a free request of the device, or for the page cache.
            "aio_read",
            "io_read",
            "vfs_copy_file_range",
        ],
    ),
    // The last two are threads of io_uring without work.
    (Activity::Lock, &["rwsem_down_", "__mutex_lock", "io_sq_thread", "io_wq_worker"]),
];

/// Returns the present activity of a thread, by its state and the kernel's stack of its sleep in
/// `/proc`. It is unknown if the kernel hides the stack, or if the thread has ended.
pub(super) fn present_activity(process: u32, thread: u32) -> Activity {
    let read = |file: &str| {
        fs::read_to_string(format!("/proc/{process}/task/{thread}/{file}")).unwrap_or_default()
    };
    let stat = read("stat");
    let state = proc_text::stat_fields(&stat).and_then(|mut fields| fields.next());
    match state {
        // The thread runs, or waits for a processor. While it runs alone, the recording may have no
        // event of it for seconds. If it waits, its next event follows soon and corrects this.
        Some("R") => Activity::Processor,
        _ => activity_of(&functions_of_stack(&read("stack"))),
    }
}

/// Returns the functions of a stack in `/proc`, which has lines such as `[<0>] do_wait+0x5f/0x110`.
fn functions_of_stack(text: &str) -> Vec<&str> {
    let places = text.lines().filter_map(|line| Some(line.split_once("] ")?.1));
    places.filter_map(|place| Some(place.split_once('+')?.0)).collect()
}

/// Activities of the stacks seen so far.
#[derive(Debug, Default)]
pub(super) struct StackActivities {
    /// Activity of each stack, by its addresses.
    known: HashMap<Vec<u64>, Activity>,
    /// Thread that reads the functions of the kernel, which takes longer than the recorder may
    /// pause.
    reading: Option<JoinHandle<Functions>>,
    /// Functions of the kernel. Empty before the thread is joined.
    functions: Functions,
}

impl StackActivities {
    /// Starts a thread that reads the functions of the kernel. Without it every stack is unknown.
    pub fn start() -> StackActivities {
        let reading = Builder::new().name("readpath-stacks".to_owned()).spawn(Functions::of_kernel);
        // Without a thread, no stack is understood.
        StackActivities { reading: reading.ok(), ..StackActivities::default() }
    }

    /// Returns the activity of a thread that sleeps with this stack of the kernel. The addresses
    /// are innermost first. The first call waits until the functions are read.
    pub fn activity_of_stack(&mut self, addresses: &[u64]) -> Activity {
        if let Some(activity) = self.known.get(addresses) {
            return *activity;
        }
        if let Some(reading) = self.reading.take() {
            self.functions = reading.join().unwrap_or_default();
        }
        let functions = &self.functions;
        let names: Vec<&str> =
            addresses.iter().filter_map(|address| functions.function_at(*address)).collect();
        let activity = activity_of(&names);
        self.known.insert(addresses.to_vec(), activity);
        activity
    }
}

/// Returns the activity of a thread that sleeps in these functions of the kernel. The order of the
/// names has no effect.
fn activity_of(names: &[&str]) -> Activity {
    // The compiler adds suffixes such as `.isra.0` to the parts of a function.
    let matches = |name: &str, function: &str| match function.ends_with('_') {
        true => name.starts_with(function),
        false => name.split('.').next() == Some(function),
    };
    let is_on_stack = |functions: &[&str]| {
        names.iter().any(|name| functions.iter().any(|function| matches(name, function)))
    };
    let found = ACTIVITIES.iter().find(|(_, functions)| is_on_stack(functions));
    found.map_or(Activity::Unknown, |(activity, _)| *activity)
}

/// Functions of the kernel by their first address.
#[derive(Debug, Default)]
struct Functions {
    /// Text of `/proc/kallsyms`.
    text: String,
    /// Address of each function, and where its name begins in the text. Sorted by address.
    starts: Vec<(u64, usize)>,
}

impl Functions {
    /// Reads the functions of this kernel. The result is empty where it hides their addresses.
    fn of_kernel() -> Functions {
        Functions::parse(fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// Parses lines of `/proc/kallsyms`: address, type, name and perhaps a module. Data and hidden
    /// addresses are left out.
    fn parse(text: String) -> Functions {
        let mut starts = Vec::new();
        let mut line_begin = 0;
        for line in text.split('\n') {
            if let Some((start, name)) = Functions::parse_line(line) {
                starts.push((start, line_begin + name));
            }
            line_begin += line.len() + 1;
        }
        // The lines of the kernel itself are sorted already, and so are most of a module.
        starts.sort_by_key(|(start, _)| *start);
        Functions { text, starts }
    }

    /// Address of the function of a line, and where its name begins in the line.
    fn parse_line(line: &str) -> Option<(u64, usize)> {
        let (address, rest) = line.split_once(' ')?;
        let (kind, name) = rest.split_once(' ')?;
        if !matches!(kind, "t" | "T" | "w" | "W") {
            return None;
        }
        let start = u64::from_str_radix(address, 16).ok().filter(|start| *start > 0)?;
        Some((start, line.len() - name.len()))
    }

    /// Returns the name of the last function that begins at or before an address, or `None`. The
    /// last one in the alphabet counts if an address has several.
    fn function_at(&self, address: u64) -> Option<&str> {
        let next = self.starts.partition_point(|(start, _)| *start <= address);
        let (last, _) = self.starts.get(next.checked_sub(1)?)?;
        let of_same = self.starts[..next].iter().rev().take_while(|(start, _)| start == last);
        of_same.filter_map(|(_, name)| self.text[*name..].split_ascii_whitespace().next()).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stacks of Linux 6.18, without their innermost frames.
    #[test]
    fn stack_of_a_sleep_shows_its_activity() {
        let cases = [
            (
                "do_nanosleep hrtimer_nanosleep common_nsleep __x64_sys_clock_nanosleep",
                Activity::Sleep,
            ),
            ("anon_pipe_read vfs_read ksys_read do_syscall_64", Activity::Others),
            ("do_wait kernel_wait4 do_syscall_64", Activity::Children),
            ("futex_do_wait __futex_wait futex_wait do_futex __x64_sys_futex", Activity::Lock),
            (
                "io_schedule folio_wait_bit_common filemap_update_page filemap_get_pages \
                 filemap_read vfs_read ksys_pread64 do_syscall_64",
                Activity::Read,
            ),
            (
                "io_schedule folio_wait_bit_common filemap_fault __do_fault do_read_fault \
                 handle_mm_fault exc_page_fault asm_exc_page_fault",
                Activity::Fault,
            ),
            (
                "bit_wait_io __wait_on_bit ext4_bread __ext4_find_entry ext4_lookup path_openat \
                 do_filp_open do_sys_openat2 do_syscall_64",
                Activity::Metadata,
            ),
            (
                "folio_wait_writeback __filemap_fdatawait_range file_write_and_wait_range \
                 ext4_fsync_nojournal.constprop.0 ext4_sync_file do_fsync __x64_sys_fsync",
                Activity::Sync,
            ),
            ("do_execveat_common.isra.0 __x64_sys_execve do_syscall_64", Activity::Metadata),
            (
                "submit_bio_wait blkdev_issue_discard ext4_free_blocks ext4_evict_inode evict \
                 __dentry_kill dput __fput __x64_sys_close do_syscall_64",
                Activity::Metadata,
            ),
            ("io_cqring_wait __do_sys_io_uring_enter do_syscall_64", Activity::AsyncIo),
            ("schedule io_sq_thread ret_from_fork ret_from_fork_asm", Activity::Lock),
            ("schedule_timeout io_wq_worker ret_from_fork ret_from_fork_asm", Activity::Lock),
            // The commit of a journal for msync, and a submission to a busy device.
            (
                "jbd2_log_wait_commit ext4_sync_file vfs_fsync_range __x64_sys_msync do_syscall_64",
                Activity::Sync,
            ),
            // A write is throttled, because the device is slower than the program.
            (
                "io_schedule_timeout balance_dirty_pages balance_dirty_pages_ratelimited_flags \
                 generic_perform_write ext4_buffered_write_iter vfs_write ksys_write do_syscall_64",
                Activity::Write,
            ),
            (
                "io_schedule blk_mq_get_tag __blk_mq_alloc_requests blk_mq_submit_bio \
                 iomap_dio_bio_iter __iomap_dio_rw iomap_dio_rw ext4_file_read_iter aio_read \
                 io_submit_one __x64_sys_io_submit do_syscall_64",
                Activity::Read,
            ),
            ("__do_sys_pause do_syscall_64", Activity::Others),
            ("netlink_recvmsg sock_recvmsg __sys_recvfrom do_syscall_64", Activity::Others),
            // A wait of the kernel that begins like a wait for children.
            ("do_wait_for_common some_driver_call", Activity::Unknown),
            ("", Activity::Unknown),
        ];
        for (stack, activity) in cases {
            let names: Vec<&str> = stack.split_whitespace().collect();
            assert_eq!(activity_of(&names), activity, "{stack}");
        }
    }

    /// Stacks of Linux 6.18: calls that copy from the program's memory or pin it, and a stop of the
    /// program at the end of a fault.
    #[test]
    fn page_fault_below_a_call_is_the_activity() {
        let fault = "io_schedule folio_wait_bit_common filemap_fault __do_fault do_read_fault \
                     handle_mm_fault";
        let exception = "exc_page_fault asm_exc_page_fault";
        let calls = [
            "rep_movs_alternative _copy_from_iter skb_copy_datagram_from_iter unix_stream_sendmsg",
            "rep_movs_alternative _copy_from_iter anon_pipe_write vfs_write ksys_write",
            "rep_movs_alternative _copy_from_iter tcp_sendmsg_locked tcp_sendmsg __sys_sendto",
            "futex_get_value_locked futex_wait_setup __futex_wait futex_wait do_futex",
            "fault_in_readable generic_perform_write ext4_buffered_write_iter vfs_write",
        ];
        for call in calls {
            let names: Vec<&str> =
                [fault, exception, call].iter().flat_map(|part| part.split_whitespace()).collect();
            assert_eq!(activity_of(&names), Activity::Fault, "{call}");
        }
        let cases = [
            ("__get_user_pages pin_user_pages __iomap_dio_rw vfs_write", Activity::Fault),
            ("do_swap_page exc_page_fault _copy_from_iter anon_pipe_write", Activity::SwapIn),
        ];
        for (call, activity) in cases {
            let names: Vec<&str> =
                fault.split_whitespace().chain(call.split_whitespace()).collect();
            assert_eq!(activity_of(&names), activity, "{call}");
        }
        let stop = "ptrace_stop get_signal arch_do_signal_or_restart exc_page_fault";
        let names: Vec<&str> = stop.split_whitespace().collect();
        assert_eq!(activity_of(&names), Activity::Others);
    }

    /// The opens of a named pipe wait for the other end.
    #[test]
    fn stack_of_an_open_of_a_named_pipe_is_no_metadata() {
        let stack = "wait_for_partner fifo_open do_dentry_open vfs_open path_openat do_filp_open \
                     do_sys_openat2 __x64_sys_openat do_syscall_64";
        let names: Vec<&str> = stack.split_whitespace().collect();
        assert_eq!(activity_of(&names), Activity::Others);
    }

    /// Lines as in proc(5), of Linux 6.18.
    #[test]
    fn functions_of_a_present_stack_are_parsed() {
        let text = "[<0>] ep_poll+0x37/0x90\n[<0>] do_epoll_wait.part.0+0xa/0xb [module]\n";
        assert_eq!(functions_of_stack(text), ["ep_poll", "do_epoll_wait.part.0"]);
        assert_eq!(functions_of_stack(""), [""; 0]);
    }

    #[test]
    fn function_of_an_address_is_the_last_that_begins_before_it() {
        let text = "ffffffff81000000 T first\nffffffff81000100 d data\n\
                    ffffffff81000200 t second\t[module]\nffffffff81000200 t other\t[module]\n\
                    ffffffff80ff0000 T earlier\n0000000000000000 T hidden\n";
        let functions = Functions::parse(text.to_owned());
        assert_eq!(functions.function_at(0xffff_ffff_8100_0000), Some("first"));
        assert_eq!(functions.function_at(0xffff_ffff_8100_01ff), Some("first"));
        assert_eq!(functions.function_at(0xffff_ffff_8100_0200), Some("second"));
        assert_eq!(functions.function_at(0xffff_ffff_80ff_ffff), Some("earlier"));
        assert_eq!(functions.function_at(0xffff_ffff_80fe_ffff), None);
    }
}

//! Operations of io_uring, and the activity of a thread that waits for one.

use readpath_trace::recording::Activity;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    /// It waits for an event of a socket, a pipe, a timer or a lock, or for nothing.
    Event,
    /// It reads from a descriptor.
    Read,
    /// It writes to a descriptor.
    Write,
    /// It writes data back, or reserves space for it.
    Sync,
    /// It is about names or attributes of files.
    Metadata,
    /// Any other one, which may be for storage: a splice, advice, a command of a driver.
    Unknown,
}

use OperationKind::{Event, Metadata, Read, Sync, Write};

/// Number in `linux/io_uring.h`, name in the kernel's events, and kind. Others are unknown.
const OPERATIONS: [(u8, &str, OperationKind); 57] = [
    (0, "NOP", Event),
    (1, "READV", Read),
    (2, "WRITEV", Write),
    (3, "FSYNC", Sync),
    (4, "READ_FIXED", Read),
    (5, "WRITE_FIXED", Write),
    (6, "POLL_ADD", Event),
    (7, "POLL_REMOVE", Event),
    (8, "SYNC_FILE_RANGE", Sync),
    (9, "SENDMSG", Event),
    (10, "RECVMSG", Event),
    (11, "TIMEOUT", Event),
    (12, "TIMEOUT_REMOVE", Event),
    (13, "ACCEPT", Event),
    (14, "ASYNC_CANCEL", Event),
    (15, "LINK_TIMEOUT", Event),
    (16, "CONNECT", Event),
    (17, "FALLOCATE", Sync),
    (18, "OPENAT", Metadata),
    (19, "CLOSE", Metadata),
    (20, "FILES_UPDATE", Event),
    (21, "STATX", Metadata),
    (22, "READ", Read),
    (23, "WRITE", Write),
    (26, "SEND", Event),
    (27, "RECV", Event),
    (28, "OPENAT2", Metadata),
    (29, "EPOLL_CTL", Event),
    (31, "PROVIDE_BUFFERS", Event),
    (32, "REMOVE_BUFFERS", Event),
    (33, "TEE", Event),
    (34, "SHUTDOWN", Event),
    (35, "RENAMEAT", Metadata),
    (36, "UNLINKAT", Metadata),
    (37, "MKDIRAT", Metadata),
    (38, "SYMLINKAT", Metadata),
    (39, "LINKAT", Metadata),
    (40, "MSG_RING", Event),
    (41, "FSETXATTR", Metadata),
    (42, "SETXATTR", Metadata),
    (43, "FGETXATTR", Metadata),
    (44, "GETXATTR", Metadata),
    (45, "SOCKET", Event),
    (47, "SEND_ZC", Event),
    (48, "SENDMSG_ZC", Event),
    (49, "READ_MULTISHOT", Event),
    (50, "WAITID", Event),
    (51, "FUTEX_WAIT", Event),
    (52, "FUTEX_WAKE", Event),
    (53, "FUTEX_WAITV", Event),
    (55, "FTRUNCATE", Metadata),
    (56, "BIND", Event),
    (57, "LISTEN", Event),
    (58, "RECV_ZC", Event),
    (59, "EPOLL_WAIT", Event),
    (60, "READV_FIXED", Read),
    (61, "WRITEV_FIXED", Write),
];

impl OperationKind {
    /// Kind of the operation with a number.
    pub fn of_number(number: u8) -> OperationKind {
        let found = OPERATIONS.iter().find(|&&(known, _, _)| known == number);
        found.map_or(OperationKind::Unknown, |&(_, _, kind)| kind)
    }

    /// Kind of the operation with a name.
    pub fn of_name(name: &str) -> OperationKind {
        let found = OPERATIONS.iter().find(|&&(_, known, _)| known == name);
        found.map_or(OperationKind::Unknown, |&(_, _, kind)| kind)
    }

    /// Numbers of the operations that read from a descriptor, each with an offset in the file.
    pub fn read_numbers() -> impl Iterator<Item = u8> {
        OPERATIONS.iter().filter(|&&(_, _, kind)| kind == Read).map(|&(number, _, _)| number)
    }

    /// Activity of a thread that waits for the operation. `is_file`: its descriptor is a regular
    /// file or a block device, or is not known.
    pub fn activity(self, is_file: bool) -> Activity {
        match self {
            Event => Activity::Others,
            Read | Write if !is_file => Activity::Others,
            Read | OperationKind::Unknown => Activity::AsyncIo,
            Write => Activity::Write,
            Sync => Activity::Sync,
            Metadata => Activity::Metadata,
        }
    }
}

/// Returns true for a read into a list of buffers, READV or READV_FIXED. The lengths of the buffers
/// are in the program's memory.
pub(super) fn is_vectored_read(number: u8) -> bool {
    matches!(number, 1 | 60)
}

/// Activities of requests in flight, the first one decides: a thread that waits for several waits
/// for storage.
const ORDER: [Activity; 5] =
    [Activity::AsyncIo, Activity::Sync, Activity::Write, Activity::Metadata, Activity::Others];

/// Activity of a thread that waits for requests with these activities: the first one of `ORDER`.
/// Any other activity ranks with the first, as it may be a read. Without a request the thread waits
/// for an event, such as the next client of a server.
pub(super) fn first_activity(requests: impl Iterator<Item = Activity>) -> Activity {
    let rank = |activity: &Activity| ORDER.iter().position(|other| other == activity);
    requests.min_by_key(|activity| rank(activity).unwrap_or(0)).unwrap_or(Activity::Others)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of `linux/io_uring.h`: 22 reads and 23 writes, 3 is an `fsync`.
    #[test]
    fn activity_is_the_one_of_the_request_that_needs_storage() {
        let of = |number, is_file| OperationKind::of_number(number).activity(is_file);
        assert_eq!([of(22, true), of(22, false)], [Activity::AsyncIo, Activity::Others]);
        assert_eq!([of(23, true), of(3, true)], [Activity::Write, Activity::Sync]);
        assert_eq!(OperationKind::of_name("READ"), OperationKind::of_number(22));
        // A number of a later kernel.
        assert_eq!(of(200, true), Activity::AsyncIo);
        let all = [Activity::Others, Activity::Write, Activity::AsyncIo];
        assert_eq!(first_activity(all.into_iter()), Activity::AsyncIo);
        assert_eq!(first_activity(all[..2].iter().copied()), Activity::Write);
        assert_eq!(first_activity([].into_iter()), Activity::Others);
    }
}

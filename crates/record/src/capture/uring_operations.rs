//! Operations of io_uring that wait for an event: of sockets, pipes, timers and locks.

/// Number in `linux/io_uring.h`, and name in the kernel's events.
const EVENT_OPERATIONS: [(u8, &str); 20] = [
    (0, "NOP"),
    (6, "POLL_ADD"),
    (9, "SENDMSG"),
    (10, "RECVMSG"),
    (11, "TIMEOUT"),
    (13, "ACCEPT"),
    (15, "LINK_TIMEOUT"),
    (16, "CONNECT"),
    (26, "SEND"),
    (27, "RECV"),
    (40, "MSG_RING"),
    (47, "SEND_ZC"),
    (48, "SENDMSG_ZC"),
    (49, "READ_MULTISHOT"),
    (50, "WAITID"),
    (51, "FUTEX_WAIT"),
    (52, "FUTEX_WAKE"),
    (53, "FUTEX_WAITV"),
    (58, "RECV_ZC"),
    (59, "EPOLL_WAIT"),
];

/// True for the number of an operation that waits for an event.
pub(super) fn is_event_number(number: u8) -> bool {
    EVENT_OPERATIONS.iter().any(|&(event_number, _)| event_number == number)
}

/// True for the name of an operation that waits for an event.
pub(super) fn is_event_name(name: &str) -> bool {
    EVENT_OPERATIONS.iter().any(|&(_, event_name)| event_name == name)
}

//! Operations of AIO, by their numbers in `linux/aio_abi.h`.

use readpath_trace::recording::Activity;

/// Reads and writes with one buffer and with several, `fsync`, `fdatasync`, and polls.
pub(super) const READ: u16 = 0;
const WRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const POLL: u16 = 5;
pub(super) const READV: u16 = 7;
const WRITEV: u16 = 8;

/// Activity of a thread that waits for an operation. `None` for other numbers, and for
/// IOCB_CMD_NOOP, which has no effect. `is_file` returns true for a descriptor of a file. It is
/// asked only about reads and writes. On another object these are `Others`, as polls are.
pub(super) fn activity_of_operation(
    operation: u16,
    mut is_file: impl FnMut() -> bool,
) -> Option<Activity> {
    match operation {
        READ | READV if is_file() => Some(Activity::AsyncIo),
        WRITE | WRITEV if is_file() => Some(Activity::Write),
        FSYNC | FDSYNC => Some(Activity::Sync),
        READ | READV | WRITE | WRITEV | POLL => Some(Activity::Others),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of `linux/aio_abi.h`.
    #[test]
    fn operation_of_aio_shows_the_activity() {
        let of = |operation, is_file| activity_of_operation(operation, || is_file);
        assert_eq!([of(0, true), of(7, true)], [Some(Activity::AsyncIo); 2]);
        assert_eq!([of(1, true), of(8, true)], [Some(Activity::Write); 2]);
        assert_eq!(of(2, false), Some(Activity::Sync));
        assert_eq!([of(0, false), of(5, true)], [Some(Activity::Others); 2]);
        assert_eq!([of(6, true), of(77, true)], [None; 2]);
    }
}

//! Meaning of a raw transfer result of the kernel, decided here for all backends.
//!
//! A transfer returns a number of bytes or a negative `errno`. A short count is no error: either
//! the file ends there, or the kernel stopped early and must be asked for the rest. The rules:
//!
//! - 0 bytes: end of file.
//! - A short count that reaches the length at opening: end of file.
//! - A short count with an unaligned end, under direct I/O: end of file. Direct I/O moves whole
//!   blocks except at the end of the file, so the file has shrunk. A request for the rest would be
//!   misaligned anyway.
//! - Any other short count: request the rest, until one of the rules above applies.
//!
//! A file that shrinks while it is read is thus `Short` before its expected end. The reader decides
//! how to handle that.

use readpath_core::request::{DeviceError, Op, Outcome};

/// A transfer that the kernel has answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredTransfer {
    /// Direction.
    pub op: Op,
    /// Start in bytes from the beginning of the file.
    pub offset: u64,
    /// Total number of bytes to move.
    pub bytes: u64,
    /// Bytes moved by earlier answers.
    pub bytes_before: u64,
    /// Number of consecutive answers after which the request was repeated: `EAGAIN` and `EINTR`,
    /// and `ECANCELED` without a cancellation, which `transfers.rs` repeats.
    pub retries: u32,
    /// Length of the file at opening.
    pub file_bytes: u64,
    /// Required alignment of sizes and offsets; 1 for buffered I/O.
    pub alignment_bytes: u64,
}

/// Next step after an answer of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// The transfer has ended.
    Ended(Outcome),
    /// Request the bytes after the moved ones.
    Continue {
        /// Bytes moved by this answer; at least 1.
        bytes: u64,
    },
    /// No bytes moved, by `EINTR` or `EAGAIN`: repeat the request.
    Retry,
}

/// Largest number of consecutive repetitions of a request before the error is reported. A driver
/// that never has room (`EAGAIN`) would otherwise cause an endless loop. The number is chosen, not
/// measured.
pub(crate) const RETRIES_MAX: u32 = 64;

/// Decides the next step of `transfer` from the kernel's raw answer to its last request: a number
/// of bytes or a negative `errno`.
pub(crate) fn next_step(raw: i32, transfer: &AnsweredTransfer) -> NextStep {
    if raw < 0 {
        return match -raw {
            libc::EINTR | libc::EAGAIN if transfer.retries < RETRIES_MAX => NextStep::Retry,
            errno => NextStep::Ended(Outcome::Failed(device_error(errno))),
        };
    }
    let bytes_moved = raw as u64;
    let bytes_done = transfer.bytes_before + bytes_moved;
    let end = transfer.offset + bytes_done;
    if bytes_done >= transfer.bytes {
        return NextStep::Ended(Outcome::Done);
    }
    // The kernel moves whole blocks, except at the end of the file. A partial block is thus the
    // end. The length at opening is an end only for reads: a write may extend the file.
    let is_at_end = match transfer.op {
        Op::Read => end >= transfer.file_bytes || !end.is_multiple_of(transfer.alignment_bytes),
        Op::Write => !end.is_multiple_of(transfer.alignment_bytes),
    };
    if bytes_moved == 0 || is_at_end {
        return NextStep::Ended(Outcome::Short { bytes: bytes_done });
    }
    NextStep::Continue { bytes: bytes_moved }
}

/// Maps a positive `errno` of a transfer to the device error that the reader receives.
pub(crate) fn device_error(errno: i32) -> DeviceError {
    match errno {
        // EILSEQ: failed integrity check of the block layer. ENODATA: medium error of some drivers.
        // EREMOTEIO: error of a remote target.
        libc::EIO | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO => DeviceError::Medium,
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => DeviceError::Gone,
        libc::ENOSPC | libc::EDQUOT => DeviceError::Full,
        libc::ECANCELED => DeviceError::Cancelled,
        libc::EACCES => DeviceError::Refused,
        libc::ESTALE => DeviceError::Stale,
        libc::ETIMEDOUT => DeviceError::TimedOut,
        libc::EBADMSG => DeviceError::Garbled,
        // EINVAL (misaligned), EBADF (wrong open mode), EFAULT, ENOMEM, EFBIG, EROFS, EPERM,
        // EOPNOTSUPP and others keep their numbers.
        errno => DeviceError::Other(errno),
    }
}

/// Converts the result of a libc call to the kernel's form: the count, or the negative `errno`.
pub(crate) fn raw_result(count: isize) -> i32 {
    if count >= 0 {
        // A transfer moves at most 0x7ffff000 bytes (read(2)).
        return count as i32;
    }
    -std::io::Error::last_os_error().raw_os_error().expect("a failed call sets errno")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 KiB at 1 MiB of a file of 1 MiB + 10,000 bytes, direct I/O.
    fn transfer_64_kib() -> AnsweredTransfer {
        AnsweredTransfer {
            op: Op::Read,
            offset: 1 << 20,
            bytes: 65_536,
            bytes_before: 0,
            retries: 0,
            file_bytes: (1 << 20) + 10_000,
            alignment_bytes: 512,
        }
    }

    #[test]
    fn transfer_count_is_judged_done_short_or_continued() {
        let within_file = AnsweredTransfer { file_bytes: 1 << 30, ..transfer_64_kib() };
        // A transfer, the number of bytes that the kernel answers, and the next step.
        let cases = [
            (transfer_64_kib(), 65_536, NextStep::Ended(Outcome::Done)),
            (transfer_64_kib(), 10_000, NextStep::Ended(Outcome::Short { bytes: 10_000 })),
            (transfer_64_kib(), 0, NextStep::Ended(Outcome::Short { bytes: 0 })),
            // In the middle of the file: request the rest.
            (within_file, 4_096, NextStep::Continue { bytes: 4_096 }),
            (
                AnsweredTransfer { bytes_before: 61_440, ..within_file },
                4_096,
                NextStep::Ended(Outcome::Done),
            ),
            // The file has shrunk: to an unaligned length, then to an aligned one.
            (within_file, 5_000, NextStep::Ended(Outcome::Short { bytes: 5_000 })),
            (
                AnsweredTransfer { bytes_before: 4_096, ..within_file },
                0,
                NextStep::Ended(Outcome::Short { bytes: 4_096 }),
            ),
            // Buffered I/O may stop at any byte.
            (
                AnsweredTransfer { alignment_bytes: 1, ..within_file },
                5_000,
                NextStep::Continue { bytes: 5_000 },
            ),
        ];
        for (transfer, raw, expected) in cases {
            assert_eq!(next_step(raw, &transfer), expected, "{raw} for {transfer:?}");
        }
    }

    /// Numbers of errno(3), as Linux defines them on all usual processors.
    #[test]
    fn errno_values_map_to_named_device_errors() {
        let cases = [
            (5, DeviceError::Medium),
            (6, DeviceError::Gone),
            (19, DeviceError::Gone),
            (28, DeviceError::Full),
            (122, DeviceError::Full),
            (125, DeviceError::Cancelled),
            (13, DeviceError::Refused),
            (1, DeviceError::Other(1)),
            (30, DeviceError::Other(30)),
            (116, DeviceError::Stale),
            (110, DeviceError::TimedOut),
            (74, DeviceError::Garbled),
            (22, DeviceError::Other(22)),
        ];
        for (errno, error) in cases {
            assert_eq!(
                next_step(-errno, &transfer_64_kib()),
                NextStep::Ended(Outcome::Failed(error))
            );
        }
    }

    /// `EINTR` is 4, and `EAGAIN` is 11.
    #[test]
    fn eagain_is_retried_a_limited_number_of_times() {
        assert_eq!(next_step(-4, &transfer_64_kib()), NextStep::Retry);
        assert_eq!(next_step(-11, &transfer_64_kib()), NextStep::Retry);
        let at_retry_limit = AnsweredTransfer { retries: RETRIES_MAX, ..transfer_64_kib() };
        let failed = Outcome::Failed(DeviceError::Other(11));
        assert_eq!(next_step(-11, &at_retry_limit), NextStep::Ended(failed));
    }
}

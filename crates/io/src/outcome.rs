//! What a raw result of the kernel means: the one place where it is decided.
//!
//! A transfer ends with a number: bytes moved, or a negative `errno`. A number
//! of bytes smaller than what was asked is not an error and not yet an answer:
//! either the file ends there, or the kernel stopped early and wants to be
//! asked for the rest. The rule:
//!
//! - 0 bytes: the file ends here;
//! - some bytes, and they reach the end of the file as it was opened: it ends there;
//! - some bytes, and their end is not aligned, under direct I/O: direct I/O
//!   moves whole blocks except at the end of the file, so it ends there (the
//!   file has shrunk), and the rest couldn't be asked for anyway;
//! - some bytes otherwise: ask for the rest, until one of the rules above holds.
//!
//! A file that shrinks while it is read is therefore `Short` at a place where
//! its reader did not expect it; what to make of that is the reader's decision.

use readpath_core::request::{DeviceError, Op, Outcome};

/// A transfer that the kernel has answered, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredTransfer {
    /// The direction.
    pub op: Op,
    /// Where it starts, in bytes from the start of the file.
    pub offset: u64,
    /// How many bytes it is to move in all.
    pub bytes: u64,
    /// How many bytes earlier answers moved already.
    pub bytes_before: u64,
    /// How often in a row the kernel has answered "again".
    pub agains: u32,
    /// The length of the file when it was opened.
    pub file_bytes: u64,
    /// What sizes and offsets must be multiples of; 1 for buffered I/O.
    pub alignment_bytes: u64,
}

/// What to do about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The transfer is over.
    Over(Outcome),
    /// It moved so many bytes; ask for those after them.
    Continue {
        /// Bytes moved by this answer; at least 1.
        bytes: u64,
    },
    /// It moved nothing, through nobody's fault; ask the same again.
    Again,
}

/// How often "again" is believed before it is reported: a file whose driver
/// never has room would otherwise keep a loop busy for ever.
pub(crate) const AGAIN_MAX: u32 = 64;

/// Decides what the raw result of a transfer means.
pub(crate) fn verdict(raw: i32, asked: &AnsweredTransfer) -> Verdict {
    if raw < 0 {
        return match -raw {
            libc::EINTR | libc::EAGAIN if asked.agains < AGAIN_MAX => Verdict::Again,
            errno => Verdict::Over(Outcome::Failed(device_error(errno))),
        };
    }
    let bytes_moved = raw as u64;
    let bytes_done = asked.bytes_before + bytes_moved;
    let end = asked.offset + bytes_done;
    if bytes_done >= asked.bytes {
        return Verdict::Over(Outcome::Done);
    }
    let is_at_end = match asked.op {
        Op::Read => end >= asked.file_bytes || !end.is_multiple_of(asked.alignment_bytes),
        Op::Write => !end.is_multiple_of(asked.alignment_bytes),
    };
    if bytes_moved == 0 || is_at_end {
        return Verdict::Over(Outcome::Short { bytes: bytes_done });
    }
    Verdict::Continue { bytes: bytes_moved }
}

/// The error that a positive `errno` stands for.
pub(crate) fn device_error(errno: i32) -> DeviceError {
    match errno {
        // EILSEQ: the block layer's name for a failed integrity check;
        // ENODATA: for a medium error on some drivers; EREMOTEIO: of a target.
        libc::EIO | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO => DeviceError::Medium,
        libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => DeviceError::Gone,
        libc::ENOSPC | libc::EDQUOT => DeviceError::Full,
        libc::ECANCELED => DeviceError::Cancelled,
        libc::EACCES | libc::EPERM | libc::EROFS => DeviceError::Refused,
        libc::ESTALE => DeviceError::Stale,
        libc::ETIMEDOUT => DeviceError::TimedOut,
        libc::EBADMSG => DeviceError::Garbled,
        // EINVAL (misaligned), EBADF (not opened for that), EFAULT, ENOMEM,
        // EFBIG, EOPNOTSUPP and the rest keep their numbers.
        errno => DeviceError::Other(errno),
    }
}

/// A libc call's result as the kernel gave it: the count, or the negative `errno`.
pub(crate) fn raw_result(count: isize) -> i32 {
    if count >= 0 {
        // A transfer never moves more than 0x7ffff000 bytes (read(2)).
        return count as i32;
    }
    -std::io::Error::last_os_error().raw_os_error().expect("a failed call sets errno")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 KiB at 1 MiB of a file of 1 MiB + 10,000 bytes, direct.
    fn asked() -> AnsweredTransfer {
        AnsweredTransfer {
            op: Op::Read,
            offset: 1 << 20,
            bytes: 65_536,
            bytes_before: 0,
            agains: 0,
            file_bytes: (1 << 20) + 10_000,
            alignment_bytes: 512,
        }
    }

    #[test]
    fn a_count_is_done_short_or_to_be_continued() {
        let whole = AnsweredTransfer { file_bytes: 1 << 30, ..asked() };
        let cases = [
            (asked(), 65_536, Verdict::Over(Outcome::Done)),
            (asked(), 10_000, Verdict::Over(Outcome::Short { bytes: 10_000 })),
            (asked(), 0, Verdict::Over(Outcome::Short { bytes: 0 })),
            // In the middle of the file: the rest is asked for.
            (whole, 4_096, Verdict::Continue { bytes: 4_096 }),
            (
                AnsweredTransfer { bytes_before: 61_440, ..whole },
                4_096,
                Verdict::Over(Outcome::Done),
            ),
            // The file has shrunk: to an odd length, then to an even one.
            (whole, 5_000, Verdict::Over(Outcome::Short { bytes: 5_000 })),
            (
                AnsweredTransfer { bytes_before: 4_096, ..whole },
                0,
                Verdict::Over(Outcome::Short { bytes: 4_096 }),
            ),
            // Buffered I/O may stop anywhere.
            (
                AnsweredTransfer { alignment_bytes: 1, ..whole },
                5_000,
                Verdict::Continue { bytes: 5_000 },
            ),
        ];
        for (asked, raw, expected) in cases {
            assert_eq!(verdict(raw, &asked), expected, "{raw} for {asked:?}");
        }
    }

    #[test]
    fn every_errno_of_interest_has_its_name() {
        let cases = [
            (5, DeviceError::Medium),
            (6, DeviceError::Gone),
            (19, DeviceError::Gone),
            (28, DeviceError::Full),
            (122, DeviceError::Full),
            (125, DeviceError::Cancelled),
            (13, DeviceError::Refused),
            (1, DeviceError::Refused),
            (30, DeviceError::Refused),
            (116, DeviceError::Stale),
            (110, DeviceError::TimedOut),
            (74, DeviceError::Garbled),
            (22, DeviceError::Other(22)),
        ];
        for (errno, error) in cases {
            assert_eq!(verdict(-errno, &asked()), Verdict::Over(Outcome::Failed(error)));
        }
    }

    #[test]
    fn again_is_believed_a_limited_number_of_times() {
        assert_eq!(verdict(-4, &asked()), Verdict::Again);
        assert_eq!(verdict(-11, &asked()), Verdict::Again);
        let tired = AnsweredTransfer { agains: AGAIN_MAX, ..asked() };
        let failed = Outcome::Failed(DeviceError::Other(11));
        assert_eq!(verdict(-11, &tired), Verdict::Over(failed));
    }
}

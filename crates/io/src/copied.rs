//! Memory for a copy of what the kernel's cache holds.

use std::ops::{Deref, DerefMut};

/// Bytes of its own, from the begin of a line of the processor's cache on.
///
/// What the allocator gives begins 16 bytes into a line, and for large ones 16 bytes into a page. Copied there from a page, each load
/// looks to the processor as if it were of the bytes that were stored just before, of which it compares the place within a page alone:
/// that takes an eighth to a quarter longer (256 MiB by `pread` of 128 KiB: 42 to 47 ms for 37).
#[derive(Debug, Default)]
pub(crate) struct Copied {
    lines: Box<[AlignedLine]>,
    bytes: usize,
}

const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct AlignedLine([u8; LINE_BYTES]);

impl Copied {
    /// Room for so many bytes, in the memory of `spare` where that is large enough, with what is in there.
    pub(crate) fn room(bytes: usize, spare: Option<Copied>) -> Copied {
        let count = bytes.div_ceil(LINE_BYTES);
        let lines = match spare {
            Some(spare) if spare.lines.len() >= count => spare.lines,
            _ => vec![AlignedLine([0; LINE_BYTES]); count].into_boxed_slice(),
        };
        Copied { lines, bytes }
    }
}

impl From<&[u8]> for Copied {
    fn from(bytes: &[u8]) -> Copied {
        let mut copy = Copied::room(bytes.len(), None);
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for Copied {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: lines are bytes, side by side and without gaps, and there are as many (`Copied::room`).
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.bytes) }
    }
}

impl DerefMut for Copied {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_begins_with_a_line_and_is_made_in_the_memory_of_the_last_one() {
        for bytes in [0, 1, 64, 65, 4_096, 131_071] {
            let mut copy = Copied::room(bytes, None);
            assert_eq!((copy.len(), copy.as_ptr() as usize % 64), (bytes, 0));
            copy.fill(7);
            let begin = copy.as_ptr();
            let shorter = Copied::room(bytes / 2, Some(copy));
            assert_eq!((shorter.len(), shorter.as_ptr()), (bytes / 2, begin));
            let longer = Copied::room(bytes + 64, Some(shorter));
            assert_eq!((longer.len(), longer.iter().all(|&byte| byte == 0)), (bytes + 64, true));
        }
        assert_eq!(*Copied::from(&b"bytes"[..]), *b"bytes");
    }
}

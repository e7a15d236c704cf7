//! Advice on mapped memory, reported by the preloaded library with an address.

use std::fs;
use std::io::{self, Write};

use readpath_core::unit::PAGE_BYTES;
use readpath_trace::recording::{AdviceGiven, AdviceType, Record, RecordingWriter};

use super::super::names::parse_mapping;
use super::layout::{MEMORY_ADVICE, RingSlot};
use super::{HINTS, METHOD_MASK, Preload, get};

/// Number of the advice of a slot on memory, as in `madvise(2)`. `None` for another slot.
pub(super) fn memory_advice_number(slot: &RingSlot) -> Option<u64> {
    (get(&slot.method_and_descriptor) >> 32 & METHOD_MASK).checked_sub(MEMORY_ADVICE)
}

/// File mapping that contains an address.
#[derive(Debug, PartialEq, Eq)]
struct AdvisedMapping {
    /// Device and inode of the file.
    inode: (u64, u64),
    /// Path of the file.
    path: String,
    /// Offset in the file at the address.
    offset: u64,
    /// Bytes from the address to the end of the mapping.
    bytes: u64,
}

impl AdvisedMapping {
    /// Finds the mapping in lines of `/proc/PID/maps`. `None` for memory without a file.
    fn find(maps: &str, address: u64) -> Option<AdvisedMapping> {
        let mut mappings = maps.lines().filter_map(parse_mapping);
        let (first, mapping, named) =
            mappings.find(|(first, mapping, _)| (*first..mapping.end).contains(&address))?;
        Some(AdvisedMapping {
            inode: (mapping.inode.device, mapping.inode.number),
            path: named.path,
            offset: mapping.offset + (address - first),
            bytes: mapping.end - address,
        })
    }
}

impl Preload {
    /// Records advice on memory as advice on the file that is mapped at its address now, a few
    /// milliseconds after the call. Memory without a file has no record, nor has memory of a
    /// process that has ended. Fails if the recording cannot be written.
    pub(super) fn record_memory_advice<W: Write>(
        &mut self,
        slot: &RingSlot,
        number: u64,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<()> {
        let (task, asked_bytes) = (get(&slot.task), get(&slot.requested_bytes));
        // Advice of no bytes on memory has no effect. On a file it extends to the end.
        if asked_bytes == 0 {
            return Ok(());
        }
        let maps = fs::read_to_string(format!("/proc/{}/maps", task >> 32)).unwrap_or_default();
        let Some(mapping) = AdvisedMapping::find(&maps, get(&slot.offset)) else {
            return Ok(());
        };
        // An unknown length is passed as the largest number.
        let length = fs::metadata(&mapping.path).map_or(u64::MAX, |metadata| metadata.len());
        let file = self.file_number(mapping.inode, Some((mapping.path, length)), writer)?;
        let thread = self.thread(task, writer)?;
        let bytes = asked_bytes.min(mapping.bytes).next_multiple_of(PAGE_BYTES);
        // The first four numbers are equal to the ones of `posix_fadvise(2)`. The library reports
        // one more: `MADV_POPULATE_READ`, which reads the pages.
        let hint = HINTS.get(number as usize).copied().unwrap_or(AdviceType::WillNeed);
        let at_ns = get(&slot.end_ns).saturating_sub(self.start_ns);
        let (offset, is_of_mapping) = (mapping.offset, true);
        let advice = AdviceGiven { at_ns, thread, file, offset, bytes, hint, is_of_mapping };
        self.put_called(Record::Advice(advice), task, writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as in proc(5). Device 254:0 is 254 × 2²⁰.
    #[test]
    fn advice_has_the_file_offset_of_its_address() {
        let maps = "7f0000000000-7f0000010000 r--s 00020000 fe:00 12    /tmp/data\n\
                    7f0000010000-7f0000020000 rw-p 00000000 00:00 0\n";
        let expected = AdvisedMapping {
            inode: (254 << 20, 12),
            path: "/tmp/data".to_owned(),
            offset: 0x2_3000,
            bytes: 0xd000,
        };
        assert_eq!(AdvisedMapping::find(maps, 0x7f00_0000_3000), Some(expected));
        assert_eq!(AdvisedMapping::find(maps, 0x7f00_0001_3000), None);
        assert_eq!(AdvisedMapping::find(maps, 0x7f00_0002_0000), None);
    }
}

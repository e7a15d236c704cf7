//! Advice on mapped memory, reported by the preloaded library with an address.

use std::io::{self, Write};

use readpath_core::unit::PAGE_BYTES;
use readpath_trace::recording::{AdviceGiven, AdviceType, Record, RecordingWriter};

use super::super::maps::Mapping;
use super::super::names::{NamedFile, file_bytes, maps_text, parse_mapping};
use super::layout::{MEMORY_ADVICE, RingSlot};
use super::{HINTS, METHOD_MASK, Preload, get};

/// Number of the advice of a slot on memory, as in `madvise(2)`. `None` for another slot.
pub(super) fn memory_advice_number(slot: &RingSlot) -> Option<u64> {
    (get(&slot.method_and_descriptor) >> 32 & METHOD_MASK).checked_sub(MEMORY_ADVICE)
}

/// Mappings of files in a process: first address, mapping and file, by ascending address.
#[derive(Debug, Default)]
pub(super) struct ProcessMappings(Vec<(u64, Mapping, NamedFile)>);

impl ProcessMappings {
    /// Parses the lines of `/proc/PID/maps`, which ascend by address.
    fn parse(maps: &str) -> ProcessMappings {
        ProcessMappings(maps.lines().filter_map(parse_mapping).collect())
    }

    /// Returns the first address of the mapping at an address, the mapping, and its file. `None`
    /// for memory without a file.
    fn find(&self, address: u64) -> Option<&(u64, Mapping, NamedFile)> {
        let following = self.0.partition_point(|(first, ..)| *first <= address);
        self.0[..following].last().filter(|(_, mapping, _)| address < mapping.end)
    }
}

impl Preload {
    /// Records advice on memory as advice on the file that is mapped at its address now, a few
    /// milliseconds after the call. The range is cut at the end of this mapping, and rounded up to
    /// whole pages. Memory without a file has no record, nor has memory of a process that has
    /// ended. `number`: the advice, as in `madvise(2)`. Fails if the recording cannot be written.
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
        let (process, address) = ((task >> 32) as u32, get(&slot.offset));
        let mappings = self
            .advised_mappings
            .entry(process)
            .or_insert_with(|| ProcessMappings::parse(&maps_text(process).unwrap_or_default()));
        let Some(&(first, mapping, ref named)) = mappings.find(address) else {
            return Ok(());
        };
        let device_and_inode = (mapping.inode.device, mapping.inode.number);
        let is_new = !self.files.contains_key(&device_and_inode);
        // An unknown length is passed as the largest number.
        let named = is_new.then(|| {
            let length = file_bytes(process, first, &mapping, &named.path);
            (named.path.clone(), length.unwrap_or(u64::MAX))
        });
        let file = self.file_number(device_and_inode, named, writer)?;
        let thread = self.thread(task, writer)?;
        let bytes = asked_bytes.min(mapping.end - address).next_multiple_of(PAGE_BYTES);
        // The first four numbers are equal to the ones of `posix_fadvise(2)`. The library reports
        // one more: `MADV_POPULATE_READ`, which reads the pages.
        let hint = HINTS.get(number as usize).copied().unwrap_or(AdviceType::WillNeed);
        let at_ns = get(&slot.end_ns).saturating_sub(self.start_ns);
        let (offset, is_of_mapping) = (mapping.offset + (address - first), true);
        let advice = AdviceGiven { at_ns, thread, file, offset, bytes, hint, is_of_mapping };
        self.put_called(Record::Advice(advice), task, writer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::super::super::event::Inode;
    use super::super::super::names::tests::read_calls;
    use super::*;

    /// Lines as in proc(5). Device 254:0 is 254 × 2²⁰.
    #[test]
    fn address_has_the_mapping_around_it() {
        let maps = "7f0000000000-7f0000010000 r--s 00020000 fe:00 12    /tmp/data\n\
                    7f0000010000-7f0000020000 rw-p 00000000 00:00 0\n\
                    7f0000030000-7f0000031000 r--p 00000000 fe:00 13    /tmp/other\n";
        let mappings = ProcessMappings::parse(maps);
        let inode = Inode { device: 254 << 20, number: 12 };
        let mapping = Mapping { end: 0x7f00_0001_0000, inode, file: 0, offset: 0x2_0000 };
        let named = NamedFile { path: "/tmp/data".to_owned(), bytes: None };
        let first = 0x7f00_0000_0000;
        let expected = (first, mapping, named);
        assert_eq!(mappings.find(first), Some(&expected));
        assert_eq!(mappings.find(0x7f00_0000_ffff), Some(&expected));
        let found_first = |address| mappings.find(address).map(|(first, ..)| *first);
        assert_eq!(found_first(0x7f00_0003_0000), Some(0x7f00_0003_0000));
        for absent in [first - 1, 0x7f00_0001_0000, 0x7f00_0002_0000, 0x7f00_0003_1000] {
            assert_eq!(found_first(absent), None, "{absent:x}");
        }
    }

    /// Advice on the code of this program. 100 more reports of a round make no read call, and the
    /// next round reads the mappings again.
    #[test]
    fn mappings_are_read_once_per_round() {
        let (number, zero) = (|value| AtomicU64::new(value), || AtomicU64::new(0));
        let slot = RingSlot {
            turn: zero(),
            begin_ns: zero(),
            end_ns: zero(),
            task: number(u64::from(std::process::id()) << 32),
            method_and_descriptor: number(MEMORY_ADVICE << 32),
            device: zero(),
            inode: zero(),
            offset: number(read_calls as *const () as u64),
            requested_bytes: number(1),
            result: zero(),
        };
        let mut preload = Preload::start(&[]).unwrap();
        let mut bytes = Vec::new();
        let mut writer = RecordingWriter::new(&mut bytes).unwrap();
        preload.record_memory_advice(&slot, 0, &mut writer).unwrap();
        assert_eq!(preload.files.len(), 1);
        let own_calls = [read_calls(), read_calls()];
        let own_calls = own_calls[1] - own_calls[0];
        let before = read_calls();
        for _ in 0..100 {
            preload.record_memory_advice(&slot, 0, &mut writer).unwrap();
        }
        assert_eq!(read_calls() - before, own_calls);
        preload.record(&mut writer).unwrap();
        let before = read_calls();
        preload.record_memory_advice(&slot, 0, &mut writer).unwrap();
        assert!(read_calls() - before > own_calls);
    }
}

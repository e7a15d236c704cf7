//! Layout of the kernel's events, from their `format` files.

use std::collections::BTreeMap;

/// A field: its offset within the event and its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventField {
    /// Offset in bytes from the start of the event.
    offset: usize,
    /// Length in bytes. 0 for a field that the kernel lacks.
    bytes: usize,
}

impl EventField {
    /// Returns the value of the field in an event, as a little-endian number. A longer field counts
    /// with its first 8 bytes. Returns 0 for a missing field or a shorter event.
    pub fn value(self, event: &[u8]) -> u64 {
        let bytes = event.get(self.offset..self.offset + self.bytes.min(8)).unwrap_or_default();
        bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    /// Returns `count` numbers of 8 bytes from the field on, as far as the event contains them.
    pub fn numbers(self, event: &[u8], count: u64) -> Vec<u64> {
        let bytes = event.get(self.offset..).unwrap_or_default();
        let numbers = bytes.chunks_exact(8).take(usize::try_from(count).unwrap_or(usize::MAX));
        numbers
            .map(|number| {
                u64::from_le_bytes(number.try_into().expect("each chunk has eight bytes"))
            })
            .collect()
    }

    /// Returns the text of the field in an event, up to the first byte 0. Empty for a shorter
    /// event.
    pub fn text(self, event: &[u8]) -> String {
        let bytes = event.get(self.offset..self.offset + self.bytes).unwrap_or_default();
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Returns the text whose offset and length are stored in the field (`__data_loc`).
    pub fn located_text(self, event: &[u8]) -> String {
        let location = self.value(event);
        // Offset in the lower 16 bits, length in the upper ones.
        EventField {
            offset: (location & 0xffff) as usize,
            bytes: (location >> 16 & 0xffff) as usize,
        }
        .text(event)
    }
}

/// Layout of one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventLayout {
    /// Number of the event, stored at its start.
    pub id: u16,
    /// Fields of the event by name, common ones included.
    fields: BTreeMap<String, EventField>,
    /// Names of the fields specific to the event, in their order: the arguments of a system call.
    argument_names: Vec<String>,
}

impl EventLayout {
    /// Parses a `format` file. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<EventLayout> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID: "))?.trim().parse().ok()?;
        let mut layout = EventLayout { id, fields: BTreeMap::new(), argument_names: Vec::new() };
        for line in text.lines() {
            let Some(rest) = line.trim().strip_prefix("field:") else { continue };
            let mut parts = rest.split(';').map(str::trim);
            // The declaration is the first part, and the name its last word: `char comm[16]`,
            // `const char * filename`, `unsigned long pfn`.
            let name = parts.next()?.split(['[', ' ', '*']).rfind(|word| is_name(word))?;
            let mut number = |key| parts.find_map(|part| part.strip_prefix(key)?.parse().ok());
            let field = EventField { offset: number("offset:")?, bytes: number("size:")? };
            if !name.starts_with("common_") && name != "__syscall_nr" {
                layout.argument_names.push(name.to_owned());
            }
            layout.fields.insert(name.to_owned(), field);
        }
        Some(layout)
    }

    /// Returns a field by name. A missing field becomes an empty one with value 0.
    pub fn field(&self, name: &str) -> EventField {
        self.fields.get(name).copied().unwrap_or_default()
    }

    /// Returns the byte offsets of several fields within an event. `None` if one is missing, or
    /// beyond 32 KiB, the largest offset of a BPF instruction.
    pub fn offsets<const COUNT: usize>(&self, names: &[&str; COUNT]) -> Option<[i16; COUNT]> {
        let mut offsets = [0; COUNT];
        for (offset, name) in offsets.iter_mut().zip(names) {
            *offset = i16::try_from(self.fields.get(*name)?.offset).ok()?;
        }
        Some(offsets)
    }

    /// Returns true when all of these fields exist.
    pub fn has_fields(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.fields.contains_key(*name))
    }

    /// Returns the fields of a system call's arguments, in their order.
    pub fn arguments(&self) -> Vec<EventField> {
        self.argument_names.iter().map(|name| self.field(name)).collect()
    }
}

/// Returns true for a word of a declaration that can be its name.
fn is_name(word: &str) -> bool {
    !word.is_empty() && !word.ends_with(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Format of Linux 6.18, shortened. The test fills in the fields at these offsets.
    const FORMAT: &str = "name: block_rq_issue\nID: 2104\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:const char * filename;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:char rwbs[10];\toffset:24;\tsize:10;\tsigned:0;\n\
        \tfield:__data_loc char[] cmd;\toffset:36;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"%d\"\n";

    #[test]
    fn event_fields_are_located_by_the_format_file() {
        let layout = EventLayout::parse(FORMAT).unwrap();
        assert_eq!(layout.id, 2104);
        assert!(layout.has_fields(&["dev", "filename", "rwbs", "cmd"]));
        assert!(!layout.has_fields(&["sector"]));
        assert_eq!(layout.field("filename"), EventField { offset: 16, bytes: 8 });
        assert_eq!(layout.arguments().len(), 4);
        let mut event = [0; 44];
        event[8..12].copy_from_slice(&[1, 2, 0, 0]);
        event[24..27].copy_from_slice(b"RA\0");
        // The field contains the offset 40 and the length 4 of its text.
        event[36..40].copy_from_slice(&[40, 0, 4, 0]);
        event[40..44].copy_from_slice(b"cmd\0");
        assert_eq!(layout.field("dev").value(&event), 0x201);
        assert_eq!(layout.field("rwbs").text(&event), "RA");
        assert_eq!(layout.field("cmd").located_text(&event), "cmd");
        assert_eq!(layout.field("sector").value(&event), 0, "one of the fields is missing");
        assert_eq!(layout.field("dev").value(&[0; 9]), 0, "an event that is too short");
        assert_eq!(EventLayout::parse("name: x\n"), None);
    }
}

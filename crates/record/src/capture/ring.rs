//! Parser of the kernel's trace buffer pages (`trace_pipe_raw`).
//!
//! A page begins with a head (`events/header_page`): a time of 8 bytes and the length of the events
//! of 8 bytes. Bits of the length from 30 on are set when events before the page are missing. An
//! event begins with a head of 4 bytes (`events/header_event`): 5 bits of type and 27 bits of time
//! since the previous event.

/// Mask of the length bits in a page's length field.
const LENGTH_MASK: u64 = (1 << 30) - 1;

/// Type in an event's head of unused bytes. Values from 1 to 28 are the length of the event's data
/// in words of 4 bytes.
const PADDING: u32 = 29;

/// Type of an addition to the time of the next event, beyond its bits.
const TIME_EXTEND: u32 = 30;

/// Type of an absolute time.
const TIME_STAMP: u32 = 31;

/// Number of time bits in an event's head.
const TIME_BITS: u32 = 27;

/// Number of bits in an absolute time stamp. The higher bits come from the page's time.
const STAMP_BITS: u32 = 59;

/// Calls `on_event` with the time in nanoseconds and the bytes of each event of a page. Returns
/// `None` for malformed input. The events before the error have been reported then.
pub(super) fn for_each_event(page: &[u8], mut on_event: impl FnMut(u64, &[u8])) -> Option<()> {
    let mut now_ns = u64::from_le_bytes(page.get(..8)?.try_into().ok()?);
    let length = u64::from_le_bytes(page.get(8..16)?.try_into().ok()?) & LENGTH_MASK;
    let mut rest = page.get(16..)?.get(..usize::try_from(length).ok()?)?;
    while !rest.is_empty() {
        let event_head = word_at(rest, 0)?;
        let (kind, since_ns) = (event_head & 31, u64::from(event_head >> 5));
        // Bytes between head and event data, and the length of the data.
        let (head_bytes, data_bytes) = match kind {
            // Without a time, padding fills the rest of the page. Otherwise it is one discarded
            // event.
            PADDING if since_ns == 0 => return Some(()),
            // The word behind the head holds the length of the data, and is a part of them.
            PADDING => (4, word_at(rest, 4)? as usize),
            TIME_EXTEND => {
                now_ns += (u64::from(word_at(rest, 4)?) << TIME_BITS) + since_ns;
                rest = rest.get(8..)?;
                continue;
            }
            TIME_STAMP => {
                let stamp_ns = (u64::from(word_at(rest, 4)?) << TIME_BITS) + since_ns;
                now_ns = (now_ns >> STAMP_BITS << STAMP_BITS) | stamp_ns;
                rest = rest.get(8..)?;
                continue;
            }
            // The word behind the head holds the length of the data, and counts itself.
            0 => (8, (word_at(rest, 4)? as usize).checked_sub(4)?),
            words => (4, words as usize * 4),
        };
        now_ns += since_ns;
        let event = rest.get(head_bytes..head_bytes + data_bytes)?;
        if kind != PADDING {
            on_event(now_ns, event);
        }
        rest = rest.get((head_bytes + data_bytes).next_multiple_of(4)..)?;
    }
    Some(())
}

/// Returns the number of 4 bytes at an offset, or `None` beyond the end.
fn word_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page with the time `time_ns`, these events, and 12 bytes beyond its length. `length_bits`:
    /// the flags in the field of the length.
    fn page(time_ns: u64, length_bits: u64, words: &[u32]) -> Vec<u8> {
        let events: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = events.len() as u64 | length_bits;
        [&time_ns.to_le_bytes()[..], &length.to_le_bytes(), &events, &[0xee; 12]].concat()
    }

    /// The page has two events of two words and one of one word, worked by hand from
    /// `events/header_event`.
    #[test]
    fn trace_page_is_parsed_into_events_with_times() {
        let words = [
            2 | 5 << 5, // two words, 5 ns after the page's time
            7,
            8,
            30 | 3 << 5, // 2 << 27, and 3
            2,
            12 << 5, // the length is in the next word: 12 with itself
            12,
            9,
            10,
            29 | 1 << 5, // discarded: 8 bytes after the head, with its length
            8,
            11,
            1 | 1 << 5,
            12,
            29, // end of the page
            99,
        ];
        let mut seen = Vec::new();
        let missing_events_bits = 3 << 30;
        let bytes = page(1000, missing_events_bits, &words);
        for_each_event(&bytes, |at_ns, event| seen.push((at_ns, event.to_vec()))).unwrap();
        let extended = 1005 + (2 << 27) + 3 + 12;
        assert_eq!(
            seen,
            [
                (1005, vec![7, 0, 0, 0, 8, 0, 0, 0]),
                (extended, vec![9, 0, 0, 0, 10, 0, 0, 0]),
                (extended + 2, vec![12, 0, 0, 0]),
            ]
        );
    }

    /// Time stamp 4 + (1 << 27) in the lower 59 bits. The upper bits of the page's time stay.
    #[test]
    fn an_absolute_time_replaces_the_one_before() {
        let mut seen = Vec::new();
        let time_ns = 5 << 59 | 77;
        let bytes = page(time_ns, 0, &[31 | 4 << 5, 1, 1, 3]);
        for_each_event(&bytes, |at_ns, _| seen.push(at_ns)).unwrap();
        assert_eq!(seen, [(5 << 59) + (1 << 27) + 4]);
    }

    #[test]
    fn malformed_trace_page_is_rejected() {
        assert_eq!(for_each_event(&[0; 15], |_, _| ()), None);
        // An event of five words in a page of two.
        assert_eq!(for_each_event(&page(0, 0, &[5, 1]), |_, _| ()), None);
    }
}

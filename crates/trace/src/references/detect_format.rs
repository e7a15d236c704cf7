//! Detection of a trace's format.

use super::BlockTraceFormat;
use crate::block_trace;

/// Number of bytes of a trace that are examined. Chosen, not measured.
const DETECTION_BYTES: usize = 4096;

/// Returns the format indicated by a trace's name and first lines. Returns `None` if several are
/// possible, or none.
pub fn detect_format(name: &str, bytes: &[u8]) -> Option<BlockTraceFormat> {
    let name = name.to_ascii_lowercase();
    let has_ending = |end: &str| name.ends_with(end);
    if name.contains("oraclegeneral") {
        return Some(BlockTraceFormat::OracleGeneral);
    }
    let head = &bytes[..bytes.len().min(DETECTION_BYTES)];
    if let Some(format) = block_trace::TraceFormat::detect(head) {
        return Some(BlockTraceFormat::Requests(format));
    }
    let is_text = head
        .iter()
        // Bytes above 127 may be letters in UTF-8.
        .all(|&byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace() || byte > 127);
    if !is_text {
        let is_named = has_ending(".trace") || has_ending(".cloudphysics");
        return is_named.then_some(BlockTraceFormat::CloudPhysics);
    }
    if has_ending(".lis") {
        return Some(BlockTraceFormat::Arc);
    }
    // Traces of LIRS separate the parts of a program by lines with a `*`.
    let text = String::from_utf8_lossy(block_trace::without_byte_order_mark(head));
    let is_data = |line: &&str| !line.is_empty() && !line.starts_with('#') && *line != "*";
    let line = text.lines().map(str::trim).find(is_data)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_number = |word: &str| word.parse::<u64>().is_ok();
    match words[..] {
        // MSR Cambridge has seven columns. A malformed first line of it arrives here, and the
        // parser of the format then reports the error.
        _ if line.split(',').count() >= 7 => {
            Some(BlockTraceFormat::Requests(block_trace::TraceFormat::Msr))
        }
        [block] if is_number(block) => Some(BlockTraceFormat::Lirs),
        ["touch", _] | ["advice", _] | ["reopen"] => Some(BlockTraceFormat::Reads),
        // Two numbers are either `FIRST COUNT` or `OFFSET LENGTH`: the name decides.
        [_, _] if has_ending(".reads") => Some(BlockTraceFormat::Reads),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_detected_only_where_no_other_format_fits() {
        let detected = |name, text: &str| detect_format(name, text.as_bytes());
        assert_eq!(detected("gli.trace", "*\n12\n13\n"), Some(BlockTraceFormat::Lirs));
        assert_eq!(detected("OLTP.lis", "12 4 0 1\n"), Some(BlockTraceFormat::Arc));
        assert_eq!(detected("x", "12 4\n"), None);
        assert_eq!(detected("x", "\u{feff}12\r\n13\r\n"), Some(BlockTraceFormat::Lirs));
        assert_eq!(detected("x.reads", "# ours\n4096 512\n"), Some(BlockTraceFormat::Reads));
        assert_eq!(detected("x", "reopen\n4096 512\n"), Some(BlockTraceFormat::Reads));
        assert_eq!(
            detected("usr_0.csv", "1,usr,0,Read,4096,512,9\n"),
            Some(BlockTraceFormat::Requests(block_trace::TraceFormat::Msr))
        );
        assert_eq!(
            detected("x", "  8,0 1 1 0.0 9 Q R 8 + 8 [x]\n"),
            Some(BlockTraceFormat::Requests(block_trace::TraceFormat::Blkparse))
        );
        assert_eq!(
            detect_format("w1.oracleGeneral.bin", &[0; 24]),
            Some(BlockTraceFormat::OracleGeneral)
        );
        assert_eq!(
            detect_format("w106.trace", &[0, 0, 1, 2]),
            Some(BlockTraceFormat::CloudPhysics)
        );
        assert_eq!(detect_format("w106", &[0, 0, 1, 2]), None);
    }
}

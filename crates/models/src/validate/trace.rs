//! A trace of one drive: requests with their measured service times.
//!
//! The format is DiskSim's `validate`: `R|W  label  first-sector  sectors  service-µs gap-µs`, one
//! request per line. The label (hit, miss) is the generator's intention, not the drive's behaviour,
//! and is ignored.

use std::path::Path;

use readpath_core::request::Op;

use crate::input_file;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedRequest {
    /// Direction.
    pub op: Op,
    /// First sector.
    pub start: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// Measured service time in ns.
    pub service_ns: u64,
    /// Idle time on the line, in ns.
    pub gap_ns: u64,
    /// Line number, from 1.
    pub line: usize,
}

/// Error in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTraceError {
    /// Name of the file.
    pub file: String,
    /// Line number, from 1. 0 for the file as a whole.
    pub line: usize,
    /// Problem and expected form.
    pub problem: String,
}

impl std::fmt::Display for ServiceTraceError {
    /// Writes file, line and problem; without a line for the file as a whole.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

impl std::error::Error for ServiceTraceError {}

/// Reads the trace at `path` for a drive of `sectors` sectors.
///
/// # Errors
/// Fails if the file is unreadable or empty, if a line is malformed, and if a request extends
/// beyond the drive's last sector.
pub fn read_trace(path: &Path, sectors: u64) -> Result<Vec<TracedRequest>, ServiceTraceError> {
    let file = path.display().to_string();
    let error = |line, problem: String| ServiceTraceError { file: file.clone(), line, problem };
    let text = input_file::text(path, input_file::LIST_BYTES_MAX)
        .map_err(|problem| error(0, format!("can't be read: {problem}")))?;
    parse_trace(&text, sectors).map_err(|(line, problem)| error(line, problem))
}

/// Parses a trace for a drive of `sectors` sectors. The error contains the line number, 0 for the
/// trace as a whole, and the problem.
pub(super) fn parse_trace(text: &str, sectors: u64) -> Result<Vec<TracedRequest>, (usize, String)> {
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        if line.trim().is_empty() {
            continue;
        }
        let request = parse_line(line, line_number).map_err(|problem| (line_number, problem))?;
        let end = request.start.saturating_add(u64::from(request.sectors));
        if end > sectors {
            let last_sector = sectors.saturating_sub(1);
            let problem = format!(
                "sectors {} to {} lie beyond the drive's last sector, {last_sector}",
                request.start,
                end - 1
            );
            return Err((line_number, problem));
        }
        requests.push(request);
    }
    if requests.is_empty() {
        return Err((0, "holds no request".to_owned()));
    }
    Ok(requests)
}

/// Parses one line of a trace. `line` is its number. The error is the problem.
fn parse_line(text: &str, line: usize) -> Result<TracedRequest, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [op, _label, start, sectors, service_us, gap_us] = words[..] else {
        return Err(format!(
            "has {} fields; expected 6: R|W, label, first sector, sectors, service (µs), gap (µs)",
            words.len()
        ));
    };
    let op = match op {
        "R" | "r" => Op::Read,
        "W" | "w" => Op::Write,
        other => return Err(format!("`{other}` is not R (read) or W (write)")),
    };
    let start = start.parse().map_err(|_| format!("`{start}` is not a sector number"))?;
    let sectors = match sectors.parse() {
        Ok(count) if (1..=super::REQUEST_SECTORS_MAX).contains(&count) => count,
        _ => {
            let most = super::REQUEST_SECTORS_MAX;
            return Err(format!("`{sectors}` is not a count of sectors from 1 to {most}"));
        }
    };
    // Converts a time in µs to ns.
    let parse_ns = |text: &str, name: &str| match text.parse::<f64>() {
        Ok(us) if (0.0..=1e12).contains(&us) => Ok((us * 1000.0).round() as u64),
        _ => Err(format!("`{text}` is not a {name} in µs, 0 or more")),
    };
    let (service_ns, gap_ns) = (parse_ns(service_us, "service time")?, parse_ns(gap_us, "gap")?);
    Ok(TracedRequest { op, start, sectors, service_ns, gap_ns, line })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the line and the problem of an invalid trace for a drive of 1,000 sectors.
    fn trace_error(text: &str) -> (usize, String) {
        parse_trace(text, 1000).expect_err("a bad trace")
    }

    /// Times of 13,670.5 and 35,942 µs become ns. The empty line is skipped, and counted.
    #[test]
    fn a_line_is_read_field_by_field() {
        let requests = parse_trace("R Hit  992 8  13670.5 35942.0\n\nW Miss 0 4 1 2\n", 1000);
        let requests = requests.expect("a good trace");
        let first = TracedRequest {
            op: Op::Read,
            start: 992,
            sectors: 8,
            service_ns: 13_670_500,
            gap_ns: 35_942_000,
            line: 1,
        };
        assert_eq!(requests[0], first);
        assert_eq!((requests[1].op, requests[1].line), (Op::Write, 3));
    }

    #[test]
    fn bad_lines_are_reported_by_number() {
        let good = "R Hit 0 8 1 1\n";
        assert_eq!(
            trace_error(&format!("{good}R Hit 993 8 1 1\n")),
            (2, "sectors 993 to 1000 lie beyond the drive's last sector, 999".to_owned())
        );
        assert_eq!(trace_error("X Hit 0 8 1 1").1, "`X` is not R (read) or W (write)");
        assert_eq!(trace_error("R Hit 0 0 1 1").1, "`0` is not a count of sectors from 1 to 2560");
        assert_eq!(trace_error("R Hit 0 8 -1 1").1, "`-1` is not a service time in µs, 0 or more");
        assert!(trace_error("R Hit 0 8 1").1.starts_with("has 5 fields; expected 6"));
        assert_eq!(trace_error("\n"), (0, "holds no request".to_owned()));
    }
}

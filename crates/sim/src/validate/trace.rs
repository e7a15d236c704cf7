//! A trace of one drive: each request with the service time that was measured on it.
//!
//! The form is DiskSim's `validate`: `R|W  label  first-sector  sectors  service-µs
//! gap-µs`, one request at a time. The label (hit, miss) is what the generator meant,
//! not what the drive did, and is not used.

use std::path::Path;

use readpath_core::request::Op;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The direction.
    pub op: Op,
    /// The first sector.
    pub start: u64,
    /// How many.
    pub sectors: u32,
    /// How long the drive took, ns.
    pub service_ns: u64,
    /// The idle time that the line states, ns.
    pub gap_ns: u64,
    /// The line it stands on, from 1.
    pub line: usize,
}

/// What is wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong and what is expected.
    pub problem: String,
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

impl std::error::Error for TraceError {}

/// Reads the trace at `path`, for a drive of `sectors` sectors.
///
/// # Errors
/// The file can't be read or is empty, a line is malformed, or a request lies beyond the
/// drive's last sector.
#[allow(clippy::disallowed_methods, reason = "an input of the modelled world")]
pub fn read_trace(path: &Path, sectors: u64) -> Result<Vec<Traced>, TraceError> {
    let file = path.display().to_string();
    let error = |line, problem: String| TraceError { file: file.clone(), line, problem };
    let text = std::fs::read_to_string(path)
        .map_err(|problem| error(0, format!("can't be read: {problem}")))?;
    parse_trace(&text, sectors).map_err(|(line, problem)| error(line, problem))
}

/// Parses a trace; the line and the problem when it can't be used.
pub(super) fn parse_trace(text: &str, sectors: u64) -> Result<Vec<Traced>, (usize, String)> {
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        if line.trim().is_empty() {
            continue;
        }
        let request = parse_line(line, line_number).map_err(|problem| (line_number, problem))?;
        let end = request.start.saturating_add(u64::from(request.sectors));
        if end > sectors {
            let last = sectors.saturating_sub(1);
            let problem = format!(
                "sectors {} to {} lie beyond the drive's last sector, {last}",
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

fn parse_line(text: &str, line: usize) -> Result<Traced, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [op, _label, start, sectors, service, gap] = words[..] else {
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
    let span = |text: &str, name: &str| match text.parse::<f64>() {
        Ok(us) if (0.0..=1e12).contains(&us) => Ok((us * 1000.0).round() as u64),
        _ => Err(format!("`{text}` is not a {name} in µs, 0 or more")),
    };
    let (service_ns, gap_ns) = (span(service, "service time")?, span(gap, "gap")?);
    Ok(Traced { op, start, sectors, service_ns, gap_ns, line })
}

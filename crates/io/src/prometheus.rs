//! Counters of a path in Prometheus' text format.
//!
//! Names end in the unit, and counters in `_total`, by Prometheus' naming guide. Values that were
//! never measured have no line.

use std::fmt::Write;

use crate::path::Stats;

/// A label name that Prometheus or this crate does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelError {
    name: String,
}

impl std::fmt::Display for LabelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "`{}` is no name of a label; take letters, digits and underscores, no digit first, not two \
             underscores first, and not `backend` or `because`",
            self.name
        )
    }
}

impl std::error::Error for LabelError {}

impl Stats {
    /// Formats the counters in Prometheus' text format (version 0.0.4), each with the given labels.
    /// Labels distinguish several paths of a program. Serve the text as `text/plain;
    /// version=0.0.4`.
    ///
    /// ```
    /// let path = readpath::ReadPath::builder().memory(16 << 20).build()?;
    /// let text = path.stats().prometheus(&[("path", "weights")])?;
    /// assert!(text.contains("\nreadpath_memory_bytes{path=\"weights\"} 16777216\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A label name is not valid in Prometheus, or is used by this crate.
    pub fn prometheus(&self, labels: &[(&str, &str)]) -> Result<String, LabelError> {
        let mut common = String::new();
        for &(name, value) in labels {
            if !is_label_name(name) {
                return Err(LabelError { name: name.to_owned() });
            }
            push_label(&mut common, name, value);
        }
        let mut text = String::new();
        for (name, help, value) in self.metrics() {
            let Some(value) = value else { continue };
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            push_metric(&mut text, name, help, kind, &common, &value);
        }
        if let Some(backend) = &self.backend {
            // A text cannot be a value: it is the label of a metric that is always 1.
            let mut info_labels = common.clone();
            push_label(&mut info_labels, "backend", &backend.kind.to_string());
            let because = backend.because.as_ref().map(ToString::to_string);
            push_label(&mut info_labels, "because", &because.unwrap_or_default());
            let help = "Backend in use, and the reason for it if a better one is unavailable.";
            push_metric(&mut text, "backend_info", help, "gauge", &info_labels, "1");
        }
        Ok(text)
    }

    /// Name without the prefix `readpath_`, help text and value of each metric. A value of `None`
    /// is unknown.
    fn metrics(&self) -> [(&'static str, &'static str, Option<String>); 15] {
        let text_of = |number: u64| Some(number.to_string());
        // A number in thousandths, printed with three decimals.
        let depth_mean =
            self.depth_mean_milli.map(|milli| format!("{}.{:03}", milli / 1000, milli % 1000));
        [
            ("device_reads_total", "Requests sent to the storage.", text_of(self.device_reads)),
            (
                "device_read_bytes_total",
                "Bytes requested from the storage.",
                text_of(self.device_bytes),
            ),
            ("device_requests", "Requests in flight.", text_of(self.in_flight.into())),
            (
                "device_requests_mean",
                "Mean number of requests in flight, while there are any.",
                depth_mean,
            ),
            (
                "device_requests_max",
                "Largest number of requests in flight.",
                text_of(self.depth_max.into()),
            ),
            ("readahead_bytes_total", "Bytes prefetched.", text_of(self.readahead_bytes)),
            (
                "readahead_waste_bytes_total",
                "Prefetched bytes that left the cache unused.",
                text_of(self.waste_bytes),
            ),
            (
                "readahead_unused_bytes",
                "Prefetched bytes in the cache that are not used yet.",
                text_of(self.unused_bytes),
            ),
            ("evicted_bytes_total", "Bytes evicted from the cache.", text_of(self.evicted_bytes)),
            ("memory_bytes", "Memory for cached pages.", text_of(self.memory_bytes)),
            (
                "memory_used_bytes",
                "Memory in use for cached pages.",
                text_of(self.used_memory_bytes),
            ),
            ("kernel_waits_total", "Reads that waited for the kernel.", text_of(self.kernel_waits)),
            (
                "kernel_read_bytes_total",
                "Bytes of the reads that waited for the kernel.",
                text_of(self.kernel_read_bytes),
            ),
            (
                "kernel_advised_bytes_total",
                "Bytes that the kernel was advised to read ahead.",
                text_of(self.kernel_advised_bytes),
            ),
            (
                "kernel_whole_file_bytes_total",
                "Advised bytes of whole-file prefetch.",
                text_of(self.kernel_whole_file_bytes),
            ),
        ]
    }
}

/// Appends one metric with its help and type lines. `kind` is `counter` or `gauge`, and `labels`
/// the formatted labels without braces, possibly none.
fn push_metric(text: &mut String, name: &str, help: &str, kind: &str, labels: &str, value: &str) {
    const WRITE_CANNOT_FAIL: &str = "memory takes what is written";
    writeln!(text, "# HELP readpath_{name} {help}\n# TYPE readpath_{name} {kind}")
        .expect(WRITE_CANNOT_FAIL);
    match labels {
        "" => writeln!(text, "readpath_{name} {value}").expect(WRITE_CANNOT_FAIL),
        _ => writeln!(text, "readpath_{name}{{{labels}}} {value}").expect(WRITE_CANNOT_FAIL),
    }
}

/// Appends a label; escapes backslashes, quotes and line ends in its value.
fn push_label(labels: &mut String, name: &str, value: &str) {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let comma = if labels.is_empty() { "" } else { "," };
    write!(labels, "{comma}{name}=\"{value}\"").expect("memory takes what is written");
}

/// True for a label name that Prometheus allows and this crate does not use.
fn is_label_name(name: &str) -> bool {
    let is_letter_or_underscore = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    name.starts_with(is_letter_or_underscore)
        && !name.starts_with("__")
        && name.chars().all(|letter| is_letter_or_underscore(letter) || letter.is_ascii_digit())
        && !["backend", "because"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example of escaping from Prometheus' page on exposition formats: a path with backslashes,
    /// inner quotes and a line end.
    #[test]
    fn label_values_are_escaped_by_the_prometheus_rules() {
        let mut labels = String::new();
        push_label(&mut labels, "path", "C:\\DIR\\FILE.TXT");
        push_label(&mut labels, "error", "Cannot find file:\n\"FILE.TXT\"");
        assert_eq!(
            labels,
            "path=\"C:\\\\DIR\\\\FILE.TXT\",error=\"Cannot find file:\\n\\\"FILE.TXT\\\"\""
        );
    }

    #[test]
    fn invalid_label_names_are_refused() {
        for name in ["", "9", "__name__", "a-b", "backend"] {
            let error = Stats::default().prometheus(&[(name, "x")]).unwrap_err();
            assert!(error.to_string().contains(&format!("`{name}`")));
        }
    }

    /// Unmeasured values have no line; measured values have one line with their type.
    #[test]
    fn unmeasured_values_have_no_line() {
        let text = Stats::default().prometheus(&[]).unwrap();
        assert!(!text.contains("device_requests_mean") && !text.contains("backend_info"));
        let measured = Stats { depth_mean_milli: Some(2_050), device_reads: 7, ..Stats::default() };
        let text = measured.prometheus(&[]).unwrap();
        assert!(text.contains("\nreadpath_device_requests_mean 2.050\n"));
        assert!(text.contains(
            "# TYPE readpath_device_reads_total counter\nreadpath_device_reads_total 7\n"
        ));
    }
}

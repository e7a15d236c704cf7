//! Report of `readpath advise`: pages brought in, their use, and waits.

use readpath_record::capture::{AdviceResult, StopReason};

/// Lines of the report, without the name of the command. Waits are printed for the parts of the run
/// without and with advice in which files with absent pages were read.
pub fn report_lines(result: &AdviceResult) -> Vec<String> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if result.prefetched_bytes == 0 {
        return vec!["no page was prefetched: no read was predictable".to_owned()];
    }
    // Both figures count pages at different times. At most 100 % is reported as used.
    let used_bytes = result.used_bytes.min(result.prefetched_bytes);
    let percent = used_bytes as f64 / result.prefetched_bytes as f64 * 100.0;
    let resident_text = result
        .resident_bytes_max
        .map_or_else(String::new, |bytes| format!(", {:.1} MiB by the kernel's count", mib(bytes)));
    let mut lines = vec![format!(
        "brought in {:.1} MiB of {} {}, {:.1} MiB of it used ({percent:.0} %); at most {:.1} MiB \
            were unused at a time{resident_text}",
        mib(result.prefetched_bytes),
        result.files,
        if result.files == 1 { "file" } else { "files" },
        mib(used_bytes),
        mib(result.unused_bytes_max),
    )];
    if let Some(stop_reason) = result.stop_reason {
        lines.push(stop_line(result, stop_reason, percent));
    }
    let measured_waits = [("without", result.without), ("with", result.with)];
    for (when, waits) in measured_waits.into_iter().filter(|(_, waits)| waits.read_bytes > 0) {
        lines.push(format!(
            "{when} advice it waited {:.2} s for {:.1} MiB",
            waits.waited_ns as f64 / 1e9,
            mib(waits.read_bytes),
        ));
    }
    if measured_waits.iter().all(|(_, waits)| waits.read_bytes > 0) {
        let text = "these waits are of different parts of the run, and no measure of a gain: compare \
                    the time of a run with advice and of one without";
        lines.push(text.to_owned());
    }
    lines
}

/// Line with the reason for which advice stopped, and the number of its pauses, after each of which
/// it was tried again unless it was given up. `percent` is the used part of the prefetched bytes.
fn stop_line(result: &AdviceResult, stop_reason: StopReason, percent: f64) -> String {
    let reason = match stop_reason {
        // Over the whole run half or more was used: the verdict was about a part of the run.
        StopReason::Unused if percent >= 50.0 => "for a while less than half was used".to_owned(),
        StopReason::Unused => format!("{percent:.0} % of what was brought in was used"),
        StopReason::FewPrefetched => {
            "few of the pages that the program accessed had been brought in".to_owned()
        }
        StopReason::WaitsGrew => "the program waited longer with advice than without".to_owned(),
    };
    let pauses_text = match (result.pauses, result.is_stopped) {
        // Without a pause the credit ran out.
        (0, _) => String::new(),
        (pauses, true) => format!("; advice did not pay {pauses} times, and was given up"),
        (1, false) => "; advice did not pay and rested".to_owned(),
        (pauses, false) => format!("; advice did not pay and rested {pauses} times"),
    };
    format!("stopped: {reason}{pauses_text}")
}

#[cfg(test)]
mod tests {
    use readpath_record::capture::Waits;

    use super::*;

    /// A quarter of a MiB of 4 MiB was used: 6 %. The waits without and with advice are of
    /// different parts of the run, and the report must not present them as a gain.
    #[test]
    fn advice_without_benefit_is_reported_as_stopped() {
        let mib = 1 << 20;
        let result = AdviceResult {
            prefetched_bytes: 4 * mib,
            used_bytes: mib / 4,
            files: 1,
            pauses: 2,
            without: Waits { waited_ns: 40_000_000, read_bytes: 6 << 10 },
            with: Waits { waited_ns: 900_000_000, read_bytes: 12 * mib },
            stop_reason: Some(StopReason::Unused),
            ..AdviceResult::default()
        };
        let report = report_lines(&result).join("\n");
        assert!(report.contains("stopped: 6 % of what was brought in was used"), "{report}");
        assert!(report.contains("without advice it waited 0.04 s for 0.0 MiB"), "{report}");
        assert!(!report.contains("a MiB") && report.contains("no measure of a gain"), "{report}");
        // All of it was used, and the program accessed much more.
        let stop_reason = Some(StopReason::FewPrefetched);
        let used_bytes = result.prefetched_bytes;
        let report = report_lines(&AdviceResult { stop_reason, used_bytes, ..result }).join("\n");
        let line =
            "stopped: few of the pages that the program accessed had been brought in; advice";
        assert!(report.contains(line) && report.contains("(100 %)"), "{report}");
        let used_advice = AdviceResult { stop_reason: None, pauses: 0, ..result };
        assert!(!report_lines(&used_advice).join("\n").contains("stopped"));
    }
    /// The kernel counts the pages of a user's own files only. A count of 2 of 3 MiB is reported.
    #[test]
    fn absent_count_of_the_kernel_is_not_reported_as_zero() {
        let mib = 1 << 20;
        let counted = AdviceResult {
            prefetched_bytes: 4 * mib,
            used_bytes: 4 * mib,
            unused_bytes_max: 3 * mib,
            resident_bytes_max: Some(2 * mib),
            files: 1,
            ..AdviceResult::default()
        };
        let end = "at most 3.0 MiB were unused at a time";
        let line = report_lines(&counted).concat();
        assert!(line.ends_with(&format!("{end}, 2.0 MiB by the kernel's count")), "{line}");
        let line = report_lines(&AdviceResult { resident_bytes_max: None, ..counted }).concat();
        assert!(line.ends_with(end), "{line}");
    }
}

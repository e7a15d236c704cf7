//! Repeated runs of a row.

use readpath_sim::report::ResultRow;

/// Returns the run with the median throughput (of an even number, the lower one of the middle),
/// with the throughputs of all runs in their order. A run with failed operations is preferred, so
/// that its error is shown. `None` without a run. A single run is returned as it is.
pub fn median_run(mut runs: Vec<ResultRow>) -> Option<ResultRow> {
    if runs.len() < 2 {
        return runs.pop();
    }
    let throughputs =
        |value_of: &dyn Fn(&ResultRow) -> Option<f64>| runs.iter().map(value_of).collect();
    // `None` if one run lacks its throughput.
    let of_row: Option<Vec<f64>> = throughputs(&|run| run.mib_per_s);
    let of_sections: Vec<Option<Vec<f64>>> = (0..runs[0].sections.len())
        .map(|section_index| throughputs(&|run| run.sections.get(section_index)?.mib_per_s))
        .collect();
    // A run without a throughput comes first.
    runs.sort_by(|left, right| {
        left.mib_per_s.partial_cmp(&right.mib_per_s).expect("rates are numbers")
    });
    let failed = runs.iter().position(|run| run.errors > 0);
    let mut row = runs.swap_remove(failed.unwrap_or((runs.len() - 1) / 2));
    row.runs_mib_per_s = of_row;
    for (section, section_rates) in row.sections.iter_mut().zip(of_sections) {
        section.runs_mib_per_s = section_rates;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use readpath_core::unit::Time;
    use readpath_sim::report::ReadCounters;

    use super::*;

    /// A run of 100 MiB in `seconds` seconds.
    fn run(seconds: u64) -> ResultRow {
        let mut counters = ReadCounters::default();
        counters.bytes = 100 << 20;
        counters.last = Time::from_s(seconds);
        let mut row = ResultRow::new("job", "file:x", &counters);
        row.sections = vec![ReadCounters::section(&[counters, ReadCounters::default()], "all", 1)];
        row
    }

    /// 100 MiB in 1, 4 and 2 s: 100, 25 and 50 MiB/s.
    #[test]
    fn row_of_repeated_runs_is_the_run_with_the_median_throughput() {
        let row = median_run(vec![run(1), run(4), run(2)]).unwrap();
        assert_eq!(row.mib_per_s, Some(50.0));
        assert_eq!(row.runs_mib_per_s, Some(vec![100.0, 25.0, 50.0]));
    }

    /// The failed run has 100 MiB/s, and the others have 50 and 25 MiB/s.
    #[test]
    fn run_with_failed_operations_is_shown() {
        let failed = ResultRow { errors: 3, ..run(1) };
        let row = median_run(vec![run(2), run(4), failed]).unwrap();
        assert_eq!((row.errors, row.mib_per_s), (3, Some(100.0)));
    }

    #[test]
    fn single_run_has_no_list_of_runs() {
        assert_eq!(median_run(vec![run(2)]).unwrap().runs_mib_per_s, None);
        assert!(median_run(Vec::new()).is_none());
    }
}

//! Report of `watch --advise`: pages brought in, their use, and waits.

use readpath_record::capture::{Help, Vain};

/// The lines of the report, without the name of the command.
pub fn lines(help: &Help) -> Vec<String> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if help.brought_bytes == 0 {
        return vec!["no page was prefetched: no read was predictable".to_owned()];
    }
    let used = help.used_bytes.min(help.brought_bytes);
    let percent = used as f64 / help.brought_bytes as f64 * 100.0;
    let mut lines = vec![format!(
        "brought in {:.1} MiB of {} {}, {:.1} MiB of it used ({percent:.0} %); at most {:.1} MiB \
            were unused at a time, {:.1} MiB by the kernel's count",
        mib(help.brought_bytes),
        help.files,
        if help.files == 1 { "file" } else { "files" },
        mib(used),
        mib(help.standing_bytes_max),
        mib(help.counted_bytes_max),
    )];
    if let Some(vain) = help.vain {
        lines.push(stopped(help, vain, percent));
    }
    let spells = [("without", help.without), ("with", help.with)];
    for (when, waits) in spells.into_iter().filter(|(_, waits)| waits.read_bytes > 0) {
        lines.push(format!(
            "{when} advice it waited {:.2} s for {:.1} MiB",
            waits.waited_ns as f64 / 1e9,
            mib(waits.read_bytes),
        ));
    }
    if spells.iter().all(|(_, waits)| waits.read_bytes > 0) {
        let text = "these waits are of different parts of the run, and no measure of a gain: compare \
                    the time of a run with --advise and of one without";
        lines.push(text.to_owned());
    }
    lines
}

/// Why and how often advice stopped.
fn stopped(help: &Help, vain: Vain, percent: f64) -> String {
    let why = match vain {
        // It paid again after the rest.
        Vain::Unused if percent >= 50.0 => "for a while less than half was used".to_owned(),
        Vain::Unused => format!("{percent:.0} % of what was brought in was used"),
        Vain::WaitsGrew => "the program waited longer with advice than without".to_owned(),
    };
    let often = match (help.rests, help.is_stopped) {
        (0, _) => String::new(),
        (rests, true) => format!("; advice did not pay {rests} times, and was given up"),
        (1, false) => "; advice did not pay and rested".to_owned(),
        (rests, false) => format!("; advice did not pay and rested {rests} times"),
    };
    format!("stopped: {why}{often}")
}

#[cfg(test)]
mod tests {
    use readpath_record::capture::Waits;

    use super::*;

    /// Lookups in a database: nothing in the report reads as a gain.
    #[test]
    fn advice_that_did_not_pay_is_reported_as_stopped() {
        let mib = 1 << 20;
        let help = Help {
            brought_bytes: 4 * mib,
            used_bytes: mib / 4,
            files: 1,
            rests: 2,
            without: Waits { waited_ns: 40_000_000, read_bytes: 6 << 10 },
            with: Waits { waited_ns: 900_000_000, read_bytes: 12 * mib },
            vain: Some(Vain::Unused),
            ..Help::default()
        };
        let report = lines(&help).join("\n");
        assert!(report.contains("stopped: 6 % of what was brought in was used"), "{report}");
        assert!(report.contains("without advice it waited 0.04 s for 0.0 MiB"), "{report}");
        assert!(!report.contains("a MiB") && report.contains("no measure of a gain"), "{report}");
        let paid = Help { vain: None, rests: 0, ..help };
        assert!(!lines(&paid).join("\n").contains("stopped"));
    }
}

//! Replays all of DiskSim's validation traces in a directory on the drives described by the files
//! next to them: NAME.trace on NAME.parv or NAME.diskspecs.
//!
//! `cargo run --release -p readpath-models --example hdd_validate -- DIRECTORY [SEED]`

use std::path::{Path, PathBuf};

use readpath_core::policy::Spec;
use readpath_models::hdd::{Hdd, drive_of};
use readpath_models::validate::{ModelAccuracy, ablate, read_trace, validate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name the directory of the traces")?;
    let seed = std::env::args().nth(2).map_or(Ok(1), |text| text.parse())?;
    let directory = Path::new(&directory);
    for trace in traces(directory)? {
        // The file of a whole system also describes the bus.
        let parv = trace.with_extension("parv");
        let file = if parv.is_file() { parv } else { trace.with_extension("diskspecs") };
        let mut buses = vec![""];
        if trace.ends_with("hp_c2247a.trace") && !file.ends_with("hp_c2247a.parv") {
            buses.push(",bus_read_ns=170100,bus_write_ns=186860");
        }
        for bus in buses {
            let spec = Spec::parse(&format!("hdd,disksim={}{bus}", file.display()))?;
            let drive = drive_of(&spec)?;
            let report = validate(&trace, &drive, seed)?;
            println!("{}{bus}", file.display());
            for text in &drive.unmodelled {
                println!("  {text}");
            }
            println!("  free     {}", line(&report.free));
            println!("  observed {}", line(&report.observed));
            let coherence = report.coherence;
            println!(
                "  phase coherence over {} pairs: gap after {:.3}, before {:.3}, chance {:.3}",
                coherence.pairs,
                coherence.after,
                coherence.before,
                coherence.noise()
            );
            for at in report.by_distance {
                println!(
                    "    within {:10} cylinders: {:.3} over {} pairs (chance {:.3})",
                    at.cylinders_end,
                    at.length,
                    at.pairs,
                    1.0 / (at.pairs.max(1) as f64).sqrt()
                );
            }
            let requests = read_trace(&trace, Hdd::new(&drive, seed).sectors())?;
            for row in ablate(&requests, &drive, seed) {
                println!(
                    "  + {:14} {} {:7.1}/s at 16",
                    row.feature,
                    line(&row.validation),
                    row.requests_per_s_at_16
                );
            }
        }
    }
    Ok(())
}

/// Returns the traces in `directory`, sorted by name.
fn traces(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = directory.read_dir()?.map(|entry| Ok::<_, std::io::Error>(entry?.path()));
    let mut paths = entries.collect::<Result<Vec<_>, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "trace"));
    paths.sort();
    Ok(paths)
}

/// Formats the result of one validation.
fn line(validation: &ModelAccuracy) -> String {
    format!(
        "mean {:6.3} / {:6.3} ms, rms distance {:.3} ms ({:.1} %), error {:+.3} ± {:.3} ms, {:.0} % within 0.5 ms",
        validation.measured_mean_ms,
        validation.modelled_mean_ms,
        validation.distance_ms,
        100.0 * validation.distance_relative,
        validation.error_mean_ms,
        validation.error_deviation_ms,
        100.0 * validation.within_half_ms
    )
}

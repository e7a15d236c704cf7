//! Records the kernel's readahead in the format of the recordings in the tests of `readpath-sim`,
//! and compares the policy `ondemand` with it.
//!
//! `record_kernel FILE LIST|COUNT|COUNTm [SEED [RECORDING]]`: the file to read cold; a list of
//! steps, or the number of generated steps (`m`: with touches of the mapped file); the path of the
//! recording. Needs root and tracefs.

use std::path::Path;

use readpath_eval::check_kernel;
use readpath_eval::oracle;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, list, seed, recording) = match &arguments[..] {
        [file, list] => (file, list, 1, None),
        [file, list, seed] => (file, list, seed.parse()?, None),
        [file, list, seed, recording] => (file, list, seed.parse()?, Some(recording)),
        _ => return Err("usage: record_kernel FILE LIST|COUNT|COUNTm [SEED [RECORDING]]".into()),
    };
    let file_bytes = std::fs::metadata(file)?.len();
    let count = list.trim_end_matches('m').parse();
    let steps = match count {
        Ok(count) if list.ends_with('m') => check_kernel::generate_mapped(count, seed, file_bytes),
        Ok(count) => check_kernel::generate(count, seed, file_bytes),
        Err(_) => check_kernel::parse_steps(&std::fs::read_to_string(list)?)?,
    };
    let kernel = oracle::record(Path::new(file), &steps).map_err(|error| error.to_string())?;
    let policy = check_kernel::run_policy(&check_kernel::kernel_policy(&kernel), &steps, &kernel)?;
    let report = check_kernel::compare(&steps, &kernel, &policy);
    println!("seed {seed}: {} reads, {} equal", report.reads, report.equal);
    for difference in report.differences.iter().take(5) {
        println!("{difference}");
    }
    if let Some(recording) = recording {
        std::fs::write(recording, check_kernel::format_recording(&steps, &kernel))?;
    }
    Ok(())
}

//! Holds the law `ondemand` against the running kernel: `conform FILE COUNT SEED [RECORDING]`.

use std::path::Path;

use readpath::oracle;
use readpath_sim::conform;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, file, count, seed, rest @ ..] = &arguments[..] else {
        return Err("usage: conform FILE COUNT|LIST SEED [RECORDING]".into());
    };
    let file_bytes = std::fs::metadata(file)?.len();
    let steps = match count.parse() {
        Ok(count) => match seed.strip_prefix('m') {
            None => conform::generate(count, seed.parse()?, file_bytes),
            Some(seed) => conform::generate_mapped(count, seed.parse()?, file_bytes),
        },
        Err(_) => conform::parse_steps(&std::fs::read_to_string(count)?)?,
    };
    let kernel = oracle::record(Path::new(file), &steps)?;
    let law = conform::play(&conform::kernel_law(&kernel), &steps, &kernel)?;
    let report = conform::compare(&steps, &kernel, &law);
    println!(
        "seed {seed}: {} reads, {} equal, {} different; pages {} kernel, {} law",
        report.reads,
        report.equal,
        report.differences.len(),
        report.kernel_pages,
        report.law_pages
    );
    for difference in report.differences.iter().take(5) {
        println!("{difference}");
    }
    if let [recording] = rest {
        std::fs::write(recording, conform::format_recording(&steps, &kernel))?;
    }
    Ok(())
}

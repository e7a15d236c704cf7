//! The published tables of a 12-disk array under `deadline` (2010), next to the model's results.
//!
//! `cargo run --release -p readpath-eval --example array_tables [DEVICE [MIB]]`
//!
//! Each process reads a file of its own. There are three tables: sequential direct reads,
//! sequential buffered reads, and random 64 KiB records through a mapping. One description of the
//! array serves all tables. MIB is the amount that each process reads.

#![allow(clippy::disallowed_methods)] // The example reads its arguments.

use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::run::ProgressAnswer;
use readpath_sim::simulate::{SimulationSetup, simulate};

/// Numbers of processes: the columns of the tables.
const PROCESSES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Job options, title of the published row, and its values where they were published.
const TABLES: [(&str, &str, [Option<u32>; 7]); 3] = [
    (
        "rw=read\nsize=4g\ndirect=1\n",
        "sequential direct, MiB/s",
        [Some(271), Some(385), Some(386), Some(385), Some(384), Some(356), Some(257)],
    ),
    (
        "rw=read\nsize=4g\n",
        "sequential buffered, MiB/s",
        [Some(380), Some(381), Some(386), Some(383), Some(382), Some(370), Some(234)],
    ),
    (
        "rw=randread\nsize=4g\nioengine=mmap\n",
        "random mapped, KiB/s",
        [None, None, None, Some(3_973), None, None, None],
    ),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let device = Spec::parse(&arguments.next().unwrap_or_else(|| "array".to_owned()))?;
    let mib: u32 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    println!("{device} under deadline; published / model");
    for (job, title, published) in TABLES {
        println!("{title}");
        for (count, published) in PROCESSES.iter().zip(published) {
            let scale = if title.contains("random") { 16 } else { 1 };
            let mib = (mib / scale).max(1);
            let text = format!("[j]\nbs=64k\nnumjobs={count}\nio_size={mib}m\n{job}");
            let setup =
                SimulationSetup { memory_bytes: 1 << 30, ..SimulationSetup::new(device.clone()) };
            let row =
                simulate("d", &JobFile::parse(&text)?, &setup, &mut |_| ProgressAnswer::Continue)?;
            let unit = if scale == 1 { 1 << 20 } else { 1 << 10 };
            let model = row.bytes as f64 / row.seconds / f64::from(unit);
            let published = published.map_or("-".to_owned(), |figure| figure.to_string());
            println!("{count:>4} {published:>8} {model:>10.0}");
        }
    }
    Ok(())
}

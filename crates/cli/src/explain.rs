//! `readpath explain`: what is wrong with a program's reads.

use std::path::PathBuf;

use clap::Args;
use readpath_sim::explain::{Explainer, Explanation, Limit, Shape};

use crate::exit::{Ended, Failure};
use crate::recordings::each_record;
use crate::table::{self, Column, Table};

/// `readpath explain`.
#[derive(Debug, Args)]
#[command(
    after_help = "What counts is the time in which the program waited for a device. Each wait \
    is charged to one cause,\nand a cause that takes 5 % of the time or more is told, with what it \
    is seen by and what helps.\n\n\
    Example:\n  \
    readpath watch -o reads.rec -- COMMAND && readpath explain reads.rec"
)]
pub struct ExplainArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Print one JSON document in place of the text
    #[arg(long)]
    pub json: bool,
}

/// Explains a recording.
pub fn run(args: &ExplainArgs) -> Ended {
    let mut explainer = Explainer::default();
    each_record(&args.recording, |record| {
        explainer.take(&record);
        Ok(())
    })?;
    let explanation = explainer.finish();
    if args.json {
        let text = serde_json::to_string_pretty(&explanation).map_err(Failure::usage)?;
        println!("{text}");
    } else {
        print(&explanation);
    }
    Ok(())
}

fn print(explanation: &Explanation) {
    let Explanation { program, seconds, waited_seconds, .. } = explanation;
    let share = 100.0 * waited_seconds / seconds.max(1e-9);
    let spent = match explanation.processor_seconds {
        Some(spent) => format!("; processor time {spent:.2} s"),
        None => String::new(),
    };
    println!(
        "{program}: {seconds:.2} s, of which {waited_seconds:.2} s ({share:.0} %) waited for a \
              device{spent}"
    );
    if explanation.lost > 0 {
        println!("{} events were lost: figures are too low", explanation.lost);
    }
    println!();
    if explanation.findings.is_empty() {
        let what = match explanation.limit {
            Limit::Device => "Nothing is wrong with its reads; the device is the limit",
            Limit::Program => "Nothing is wrong with its reads; they are not what takes the time",
            Limit::Nothing => "Nothing to say",
        };
        println!("{what}: {}.", explanation.limit_text);
    } else {
        println!("What is wrong, the most costly first:");
        for (number, finding) in (1..).zip(&explanation.findings) {
            let percent = finding.share * 100.0;
            println!("\n{number}. {}: {:.2} s ({percent:.0} %)", finding.title, finding.seconds);
            println!("   Seen by: {}.", finding.evidence);
            println!("   What helps: {}.", finding.remedy);
        }
    }
    if explanation.shape.reads > 0 {
        print_shape(&explanation.shape);
    }
}

fn print_shape(shape: &Shape) {
    println!("\nThe reads");
    let ways = shape.ways.iter().map(|(way, count)| {
        let name = serde_json::to_value(way).expect("a way has a name");
        format!("{count} by {}", name.as_str().unwrap_or_default())
    });
    println!("  {}", ways.collect::<Vec<String>>().join(", "));
    println!(
        "  {:.0} % go on where one before ended; {:.1} requests at the device at a time",
        shape.sequential_part * 100.0,
        shape.depth
    );
    println!(
        "  {} MiB given; {} MiB fetched, of which {} MiB again and {} MiB not asked for",
        table::mib(Some(shape.got_bytes)),
        table::mib(Some(shape.fetched_bytes)),
        table::mib(Some(shape.again_bytes)),
        table::mib(Some(shape.unused_bytes)),
    );
    if shape.errors > 0 {
        println!("  {} failed", shape.errors);
    }
    let sizes: Vec<String> =
        shape.sizes.iter().map(|size| format!("{}: {}", unit(size.from), size.count)).collect();
    println!("  sizes from: {}", sizes.join(", "));
    let waits: Vec<String> = shape
        .waits
        .iter()
        .map(|wait| format!("{}: {}", table::duration(Some(wait.from as f64 / 1e3)), wait.count))
        .collect();
    if !waits.is_empty() {
        println!("  waits from: {}", waits.join(", "));
    }
    let strides: Vec<String> =
        shape.strides.iter().map(|stride| format!("{}: {}", stride.bytes, stride.count)).collect();
    if !strides.is_empty() {
        println!("  steps in bytes from the end of a read to the next: {}", strides.join(", "));
    }
    let reuse: Vec<String> = shape
        .reuse
        .iter()
        .map(|point| format!("{}: {:.0} %", unit(point.bytes), point.miss_ratio * 100.0))
        .collect();
    println!("  not found in a memory of: {}", reuse.join(", "));

    println!();
    let files: [Column<readpath_sim::explain::FileShape>; 5] = [
        ("file", |file| file.path.clone()),
        ("reads", |file| file.reads.to_string()),
        ("MiB given", |file| table::mib(Some(file.got_bytes))),
        ("MiB fetched", |file| table::mib(Some(file.fetched_bytes))),
        ("waited s", |file| table::number(Some(file.waited_seconds), 3)),
    ];
    print!("{}", Table::of(&shape.files, &files, 1));
    println!();
    let threads: [Column<readpath_sim::explain::ThreadShape>; 4] = [
        ("thread", |thread| format!("{} {}", thread.name, thread.task)),
        ("reads", |thread| thread.reads.to_string()),
        ("MiB given", |thread| table::mib(Some(thread.got_bytes))),
        ("waited s", |thread| table::number(Some(thread.waited_seconds), 3)),
    ];
    print!("{}", Table::of(&shape.threads, &threads, 1));
}

/// Bytes with the largest unit that leaves a whole number, roughly.
fn unit(bytes: u64) -> String {
    match bytes {
        ..1024 => bytes.to_string(),
        ..1_048_576 => format!("{} KiB", bytes >> 10),
        ..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

//! Runs the library's engine in simulated worlds, one seed after the other, until something is wrong or the time is over.
//!
//! ```text
//! cargo run --release -p readpath --features simulation --example simulate -- --minutes 10
//! cargo run --release -p readpath --features simulation --example simulate -- --seed 4711
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use readpath::inside::simulation::{Scenario, found};

const USAGE: &str = "usage: simulate [--seed N | --first N] [--seeds N | --minutes N] [--threads N] [--actions N] [--show]";

struct Arguments {
    first: u64,
    seeds: u64,
    minutes: u64,
    threads: u64,
    actions: u64,
    shows: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed =
        Arguments { first: 1, seeds: u64::MAX, minutes: 1, threads: 1, actions: 150, shows: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or_else(|| format!("{word} wants a number; {USAGE}"))?;
            value.parse().map_err(|_| format!("{word} wants a number, not `{value}`; {USAGE}"))
        };
        match word.as_str() {
            "--seed" => (parsed.first, parsed.seeds) = (number()?, 1),
            "--first" => parsed.first = number()?,
            "--seeds" => (parsed.seeds, parsed.minutes) = (number()?, u64::MAX / 60),
            "--minutes" => parsed.minutes = number()?,
            "--threads" => parsed.threads = number()?,
            "--show" => parsed.shows = true,
            "--actions" => parsed.actions = number()?,
            _ => return Err(format!("there is no option {word}; {USAGE}")),
        }
    }
    Ok(parsed)
}

fn main() -> std::process::ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return 2.into();
        }
    };
    // A panic of a simulated thread ends the run, which tells of it.
    std::panic::set_hook(Box::new(|_| {}));
    let Arguments { first, seeds, minutes, threads, actions, shows } = arguments;
    let begun = Instant::now();
    let time = Duration::from_secs(minutes * 60);
    let (next, runs, steps) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let short = AtomicU64::new(0);
    let is_wrong = AtomicBool::new(false);
    // What earlier runs have found comes first.
    let found = if seeds == 1 { Vec::new() } else { found() };
    let work = || {
        while begun.elapsed() < time && !is_wrong.load(Ordering::Relaxed) {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= seeds {
                return;
            }
            let scenario = match found.get(nth as usize) {
                Some(found) => found.clone(),
                None => Scenario::of(first + nth, actions),
            };
            if shows {
                print!("{scenario}");
            }
            let report = scenario.run();
            runs.fetch_add(1, Ordering::Relaxed);
            steps.fetch_add(report.steps, Ordering::Relaxed);
            short.fetch_add(u64::from(report.steps < 1_000), Ordering::Relaxed);
            if let Some(failure) = report.failure {
                if is_wrong.swap(true, Ordering::Relaxed) {
                    return;
                }
                let seconds = begun.elapsed().as_secs_f64();
                println!("seed {}, after {seconds:.1} s: {failure}", first + nth);
                if shows {
                    return;
                }
                let (shorter, report) = scenario.shrunk();
                println!("as short as it gets: {}", report.failure.unwrap_or_default());
                print!("{shorter}");
                println!("again: --seed {} --actions {actions}", first + nth);
            } else if seeds == 1 {
                println!("seed {first}: {} steps, hash {:016x}", report.steps, report.hash);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let [runs, steps, short] = [&runs, &steps, &short].map(|count| count.load(Ordering::Relaxed));
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{runs} runs, {steps} steps ({short} runs of fewer than 1,000), {seconds:.0} s, {:.0} runs/s",
        runs as f64 / seconds
    );
    u8::from(is_wrong.load(Ordering::Relaxed)).into()
}

//! Runs the library's engine in simulated worlds, one seed after the other, until a run fails, the
//! time is over, or the number of runs is reached.
//!
//! ```text
//! cargo run --release -p readpath-dst -- --minutes 10
//! cargo run --release -p readpath-dst -- --long-runs 1000000 --actions 20
//! cargo run --release -p readpath-dst -- --seed 4711
//! cargo run --release -p readpath-dst -- --served --minutes 10
//! ```
//!
//! - `--served`: the files are on NFS servers.
//! - `--paged`: the threads touch mappings and regions instead of reading files.
//! - `--delegated`: mappings with windows delegated to the kernel's own mapping. The number of
//!   these pages is printed.
//!
//! A run of at least 1,000 steps counts as long. A run also fails if it leaks memory, or if it
//! makes no more steps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use readpath_dst::simulation::{Report, Scenario, regressions};

const USAGE: &str = "usage: simulate [--seed N | --first N] [--seeds N | --minutes N | --long-runs N] [--threads N] \
                     [--actions N] [--served | --paged | --delegated] [--show]";

/// Number of steps from which a run counts as long.
const LONG_STEPS: u64 = 1_000;

/// Time after which a run is considered stuck. A run takes milliseconds, and ends after a maximum
/// number of steps, so a longer run makes no steps.
const STUCK: Duration = Duration::from_secs(300);

/// Allocator that counts the live bytes of each thread.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: the system's allocator fulfils the contract. Counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller guarantees the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller guarantees the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller guarantees the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a scenario on this thread alone. Also returns the number of leaked bytes.
fn run(scenario: &Scenario) -> (Report, i64) {
    let before = LIVE_BYTES.get();
    let report = scenario.run();
    let text = report.failure.as_ref().map_or(0, String::capacity);
    (report, LIVE_BYTES.get() - before - text as i64)
}

/// Runs a scenario up to three times, until it leaks no memory. The first runs may allocate memory
/// that the thread or the process keeps.
fn run_and_look(scenario: &Scenario) -> Report {
    let (mut report, mut left) = run(scenario);
    for _ in 0..2 {
        if left <= 0 || report.failure.is_some() {
            return report;
        }
        (report, left) = run(scenario);
    }
    // After the simulated kernel has failed, requests in flight stay, because the kernel owns their
    // memory.
    if left > 0 && report.failure.is_none() && scenario.faults.dies_after == 0 {
        report.failure = Some(format!("{left} bytes of it stay in memory, each time that it runs"));
    }
    report
}

struct Arguments {
    first: u64,
    seeds: u64,
    minutes: u64,
    long_runs: u64,
    threads: u64,
    actions: u64,
    shows: bool,
    /// Draws a scenario from a seed and a number of actions, with the name of its option.
    of: fn(u64, u64) -> Scenario,
    option: &'static str,
}

fn arguments() -> Result<Arguments, String> {
    const FOR_GOOD: u64 = u64::MAX / 60;
    let mut parsed = Arguments {
        first: 1,
        seeds: u64::MAX,
        minutes: 1,
        long_runs: u64::MAX,
        threads: 1,
        actions: 150,
        shows: false,
        of: Scenario::from_seed,
        option: "",
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or_else(|| format!("{word} wants a number; {USAGE}"))?;
            value.parse().map_err(|_| format!("{word} wants a number, not `{value}`; {USAGE}"))
        };
        match word.as_str() {
            "--seed" => (parsed.first, parsed.seeds) = (number()?, 1),
            "--first" => parsed.first = number()?,
            "--seeds" => (parsed.seeds, parsed.minutes) = (number()?, FOR_GOOD),
            "--minutes" => parsed.minutes = number()?,
            "--long-runs" => (parsed.long_runs, parsed.minutes) = (number()?, FOR_GOOD),
            "--threads" => parsed.threads = number()?,
            "--show" => parsed.shows = true,
            "--served" => {
                (parsed.of, parsed.option) = (Scenario::from_seed_with_server, " --served")
            }
            "--paged" => (parsed.of, parsed.option) = (Scenario::paged, " --paged"),
            "--delegated" => {
                (parsed.of, parsed.option) = (Scenario::with_delegation, " --delegated")
            }
            "--actions" => parsed.actions = number()?,
            _ => return Err(format!("there is no option {word}; {USAGE}")),
        }
    }
    Ok(parsed)
}

/// Results of all threads of the command.
#[derive(Default)]
struct Done {
    next: AtomicU64,
    runs: AtomicU64,
    steps: AtomicU64,
    long: AtomicU64,
    /// Pages delegated, pages taken back, and runs with such pages.
    delegated: AtomicU64,
    taken_back: AtomicU64,
    delegating: AtomicU64,
    is_wrong: AtomicBool,
    are_idle: AtomicBool,
    /// Current seed of each thread with its start time.
    running: Mutex<Vec<Option<(u64, Instant)>>>,
}

impl Done {
    fn print(&self, begun: Instant) {
        let [runs, steps, long] =
            [&self.runs, &self.steps, &self.long].map(|count| count.load(Ordering::Relaxed));
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{runs} runs, {steps} steps, {long} runs of at least {LONG_STEPS}, {seconds:.0} s, {:.0} runs/s",
            runs as f64 / seconds
        );
        let [delegating, delegated, taken_back] =
            [&self.delegating, &self.delegated, &self.taken_back]
                .map(|count| count.load(Ordering::Relaxed));
        if delegated > 0 {
            println!(
                "{delegating} of them delegated {delegated} pages, and took {taken_back} back"
            );
        }
    }

    /// Prints the progress every minute, and ends the process if a run is stuck.
    fn watch(&self, begun: Instant) {
        let mut said = begun;
        while !self.are_idle.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            if said.elapsed() > Duration::from_secs(60) {
                said = Instant::now();
                self.print(begun);
            }
            let running = self.running.lock().expect("no thread panics under it");
            let stuck = running.iter().flatten().find(|(_, since)| since.elapsed() > STUCK);
            if let Some((seed, _)) = stuck {
                println!("seed {seed} hangs: it has made no step for a long time");
                std::process::exit(1);
            }
        }
    }
}

fn work(thread: usize, arguments: &Arguments, found: &[Scenario], begun: Instant, done: &Done) {
    let &Arguments { first, seeds, minutes, long_runs, actions, shows, of, option, .. } = arguments;
    let time = Duration::from_secs(minutes * 60);
    let is_enough = || {
        begun.elapsed() >= time
            || done.is_wrong.load(Ordering::Relaxed)
            || done.long.load(Ordering::Relaxed) >= long_runs
    };
    let runs = |seed| {
        done.running.lock().expect("no thread panics under it")[thread] = seed;
    };
    while !is_enough() {
        let nth = done.next.fetch_add(1, Ordering::Relaxed);
        if nth >= seeds {
            break;
        }
        let scenario = match found.get(nth as usize) {
            Some(found) => found.clone(),
            None => of(first + nth, actions),
        };
        if shows {
            print!("{scenario}");
        }
        runs(Some((first + nth, Instant::now())));
        let report = run_and_look(&scenario);
        runs(None);
        done.runs.fetch_add(1, Ordering::Relaxed);
        done.steps.fetch_add(report.steps, Ordering::Relaxed);
        let (delegated, taken_back) = report.delegated_pages;
        done.delegated.fetch_add(delegated, Ordering::Relaxed);
        done.taken_back.fetch_add(taken_back, Ordering::Relaxed);
        done.delegating.fetch_add(u64::from(delegated > 0), Ordering::Relaxed);
        done.long.fetch_add(u64::from(report.steps >= LONG_STEPS), Ordering::Relaxed);
        if let Some(failure) = report.failure {
            if done.is_wrong.swap(true, Ordering::Relaxed) {
                return;
            }
            let seconds = begun.elapsed().as_secs_f64();
            println!("seed {}, after {seconds:.1} s: {failure}", first + nth);
            if shows {
                return;
            }
            let (shorter, report) = scenario.shrunk_by(&run_and_look);
            println!("as short as it gets: {}", report.failure.unwrap_or_default());
            print!("{shorter}");
            println!("again: --seed {} --actions {actions}{option}", first + nth);
        } else if seeds == 1 {
            println!("seed {first}: {} steps, hash {:016x}", report.steps, report.hash);
        }
    }
}

fn main() -> std::process::ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return 2.into();
        }
    };
    // A panic of a simulated thread ends the run, which reports it.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let threads = arguments.threads as usize;
    let done = Done { running: Mutex::new(vec![None; threads]), ..Done::default() };
    // Failures found by earlier runs come first.
    let found = if arguments.seeds == 1 { Vec::new() } else { regressions() };
    std::thread::scope(|scope| {
        scope.spawn(|| done.watch(begun));
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (arguments, found, done) = (&arguments, &found, &done);
                scope.spawn(move || work(thread, arguments, found, begun, done));
            }
        });
        done.are_idle.store(true, Ordering::Relaxed);
    });
    done.print(begun);
    u8::from(done.is_wrong.load(Ordering::Relaxed)).into()
}

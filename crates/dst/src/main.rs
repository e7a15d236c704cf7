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
    /// Allocated bytes less freed bytes of this thread; negative if it freed memory of others.
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// Adds `bytes` to the live bytes of this thread. No effect while the thread ends, when the counter
/// is gone.
fn count_live(bytes: i64) {
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// The method for reallocation stays the default, which calls these functions.
// SAFETY: the system's allocator fulfils the contract. Counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    /// Allocates memory and counts it.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_live(layout.size() as i64);
        // SAFETY: the caller guarantees the contract.
        unsafe { System.alloc(layout) }
    }

    /// Allocates zeroed memory and counts it.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_live(layout.size() as i64);
        // SAFETY: the caller guarantees the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    /// Frees memory and subtracts it from the count.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count_live(-(layout.size() as i64));
        // SAFETY: the caller guarantees the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a scenario on this thread alone. Also returns the number of leaked bytes: the growth of the
/// live bytes, without the text of the report.
fn run(scenario: &Scenario) -> (Report, i64) {
    let live_bytes_before = LIVE_BYTES.get();
    let report = scenario.run();
    let text_bytes = report.failure.as_ref().map_or(0, String::capacity);
    (report, LIVE_BYTES.get() - live_bytes_before - text_bytes as i64)
}

/// Runs a scenario up to three times, until it fails or leaks no memory. The first runs may
/// allocate memory that the thread or the process keeps, such as the list of stacks for reuse. A
/// leak in all three runs is a failure.
fn run_and_check_leaks(scenario: &Scenario) -> Report {
    let (mut report, mut leaked_bytes) = run(scenario);
    for _ in 0..2 {
        if leaked_bytes <= 0 || report.failure.is_some() {
            return report;
        }
        (report, leaked_bytes) = run(scenario);
    }
    // After the simulated kernel has failed, requests in flight stay, because the kernel owns their
    // memory.
    if leaked_bytes > 0 && report.failure.is_none() && scenario.faults.dies_after == 0 {
        let failure = format!("{leaked_bytes} bytes of it stay in memory, each time that it runs");
        report.failure = Some(failure);
    }
    report
}

/// Arguments of the command.
struct Arguments {
    /// The seed of the first run after the regressions. Each further run counts it up by one.
    first: u64,
    /// Number of runs, the ones of regressions included.
    seeds: u64,
    /// Time after which no further run begins, in minutes.
    minutes: u64,
    /// Number of long runs after which no further run begins.
    long_runs: u64,
    /// Number of worker threads, each with one run at a time.
    threads: u64,
    /// Number of actions of a scenario, approximately.
    actions: u64,
    /// True if each scenario is printed before its run.
    shows_scenarios: bool,
    /// Draws a scenario from a seed and a number of actions.
    draw_scenario: fn(u64, u64) -> Scenario,
    /// The option that selected `draw_scenario`, after a space; empty for the default.
    kind_option: &'static str,
}

/// Parses the arguments of the command. Without a limit, the command begins runs for one minute.
/// `--seeds` and `--long-runs` replace that limit. The error is a message for the user, with the
/// usage.
fn parse_arguments() -> Result<Arguments, String> {
    /// Stands for no limit of the time: as a number of seconds, it still fits into 64 bits.
    const NO_TIME_LIMIT: u64 = u64::MAX / 60;
    let mut parsed = Arguments {
        first: 1,
        seeds: u64::MAX,
        minutes: 1,
        long_runs: u64::MAX,
        threads: 1,
        actions: 150,
        shows_scenarios: false,
        draw_scenario: Scenario::from_seed,
        kind_option: "",
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
            "--seeds" => (parsed.seeds, parsed.minutes) = (number()?, NO_TIME_LIMIT),
            "--minutes" => parsed.minutes = number()?,
            "--long-runs" => (parsed.long_runs, parsed.minutes) = (number()?, NO_TIME_LIMIT),
            "--threads" => parsed.threads = number()?,
            "--show" => parsed.shows_scenarios = true,
            "--served" => {
                (parsed.draw_scenario, parsed.kind_option) =
                    (Scenario::from_seed_with_server, " --served")
            }
            "--paged" => (parsed.draw_scenario, parsed.kind_option) = (Scenario::paged, " --paged"),
            "--delegated" => {
                (parsed.draw_scenario, parsed.kind_option) =
                    (Scenario::with_delegation, " --delegated")
            }
            "--actions" => parsed.actions = number()?,
            _ => return Err(format!("there is no option {word}; {USAGE}")),
        }
    }
    Ok(parsed)
}

/// Origin of a scenario.
#[derive(Clone, Copy)]
enum Origin {
    /// Drawn from this seed.
    Seed(u64),
    /// The regression with this index.
    Regression(u64),
}

impl Origin {
    /// Options of the command that run the scenario again. A regression runs after the regressions
    /// before it. A command with a single seed runs no regression, so at least two are demanded.
    fn options(self, arguments: &Arguments) -> String {
        let Arguments { actions, kind_option, .. } = arguments;
        match self {
            Origin::Seed(seed) => format!("--seed {seed} --actions {actions}{kind_option}"),
            Origin::Regression(index) => format!("--seeds {}", (index + 1).max(2)),
        }
    }
}

impl std::fmt::Display for Origin {
    /// Formats the origin, such as `seed 7` or `regression 0`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Seed(seed) => write!(f, "seed {seed}"),
            Origin::Regression(index) => write!(f, "regression {index}"),
        }
    }
}

/// Totals of the command, and the state of its worker threads.
#[derive(Default)]
struct Totals {
    /// Number of runs that were begun: the next one has this index.
    runs_begun: AtomicU64,
    /// Number of ended runs.
    runs: AtomicU64,
    /// Steps of all ended runs.
    steps: AtomicU64,
    /// Number of ended runs with at least [`LONG_STEPS`] steps.
    long_runs: AtomicU64,
    /// Pages that the kernel's own mapping has served in all runs.
    delegated_pages: AtomicU64,
    /// Pages among them that the pager has taken back.
    taken_back_pages: AtomicU64,
    /// Number of runs with delegated pages.
    delegating_runs: AtomicU64,
    /// True once a run has failed.
    has_failed: AtomicBool,
    /// True once all workers have ended.
    are_workers_done: AtomicBool,
    /// Current run of each worker with its start time; `None` between two runs.
    running: Mutex<Vec<Option<(Origin, Instant)>>>,
}

impl Totals {
    /// Prints the totals since `start`, the start of the command.
    fn print(&self, start: Instant) {
        let [runs, steps, long_runs] =
            [&self.runs, &self.steps, &self.long_runs].map(|count| count.load(Ordering::Relaxed));
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{runs} runs, {steps} steps, {long_runs} runs of at least {LONG_STEPS}, \
             {seconds:.0} s, {:.0} runs/s",
            runs as f64 / seconds
        );
        let [delegating_runs, delegated_pages, taken_back_pages] =
            [&self.delegating_runs, &self.delegated_pages, &self.taken_back_pages]
                .map(|count| count.load(Ordering::Relaxed));
        if delegated_pages > 0 {
            println!(
                "{delegating_runs} of them delegated {delegated_pages} pages, and took \
                 {taken_back_pages} back"
            );
        }
    }

    /// Adds the numbers of a run.
    fn add_run(&self, report: &Report) {
        let (delegated_pages, taken_back_pages) = report.delegated_pages;
        for (total, count) in [
            (&self.runs, 1),
            (&self.steps, report.steps),
            (&self.long_runs, u64::from(report.steps >= LONG_STEPS)),
            (&self.delegated_pages, delegated_pages),
            (&self.taken_back_pages, taken_back_pages),
            (&self.delegating_runs, u64::from(delegated_pages > 0)),
        ] {
            total.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Prints the totals every minute until all workers have ended. Ends the process if a run is
    /// stuck: the thread of such a run cannot be ended alone. Looks every 20 ms, so that the
    /// command ends soon after its workers.
    fn watch(&self, start: Instant) {
        let mut last_print = start;
        while !self.are_workers_done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            if last_print.elapsed() > Duration::from_secs(60) {
                last_print = Instant::now();
                self.print(start);
            }
            let running = self.running.lock().expect("no thread panics under it");
            let stuck = running.iter().flatten().find(|(_, since)| since.elapsed() > STUCK);
            if let Some((origin, _)) = stuck {
                println!("{origin} hangs: it has made no step for a long time");
                std::process::exit(1);
            }
        }
    }
}

/// Runs scenarios on the worker with this number until a limit of the arguments is reached, or a
/// run of any worker has failed. The first scenarios are `regressions`, and the others are drawn
/// from the seeds. Prints the first failure, and its scenario after it is shortened. If the
/// arguments show each scenario before its run, nothing is shortened. A single run that succeeds
/// prints its steps and its hash.
fn run_worker(
    worker: usize,
    arguments: &Arguments,
    regressions: &[Scenario],
    start: Instant,
    totals: &Totals,
) {
    let &Arguments { first, seeds, minutes, long_runs, actions, shows_scenarios, .. } = arguments;
    let time_max = Duration::from_secs(minutes * 60);
    let is_over = || {
        start.elapsed() >= time_max
            || totals.has_failed.load(Ordering::Relaxed)
            || totals.long_runs.load(Ordering::Relaxed) >= long_runs
    };
    let set_running = |run: Option<(Origin, Instant)>| {
        totals.running.lock().expect("no thread panics under it")[worker] = run;
    };
    while !is_over() {
        let run_index = totals.runs_begun.fetch_add(1, Ordering::Relaxed);
        if run_index >= seeds {
            break;
        }
        let (origin, scenario) = match regressions.get(run_index as usize) {
            Some(regression) => (Origin::Regression(run_index), regression.clone()),
            None => {
                let seed = first + (run_index - regressions.len() as u64);
                (Origin::Seed(seed), (arguments.draw_scenario)(seed, actions))
            }
        };
        if shows_scenarios {
            print!("{scenario}");
        }
        set_running(Some((origin, Instant::now())));
        let report = run_and_check_leaks(&scenario);
        set_running(None);
        totals.add_run(&report);
        if let Some(failure) = report.failure {
            if totals.has_failed.swap(true, Ordering::Relaxed) {
                // Another worker has failed first, and prints its scenario.
                return;
            }
            let seconds = start.elapsed().as_secs_f64();
            println!("{origin}, after {seconds:.1} s: {failure}");
            if shows_scenarios {
                return;
            }
            let (shortest, report) = scenario.shrunk_by(&run_and_check_leaks);
            println!("as short as it gets: {}", report.failure.unwrap_or_default());
            print!("{shortest}");
            println!("again: {}", origin.options(arguments));
        } else if seeds == 1 {
            println!("{origin}: {} steps, hash {:016x}", report.steps, report.hash);
        }
    }
}

/// Runs the workers and the thread that watches them. The exit status is 1 after a failed run, and
/// 2 after wrong arguments.
fn main() -> std::process::ExitCode {
    let arguments = match parse_arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return 2.into();
        }
    };
    // A panic of a simulated thread ends the run, which reports it.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let threads = arguments.threads as usize;
    let totals = Totals { running: Mutex::new(vec![None; threads]), ..Totals::default() };
    // Failures found by earlier runs come first, unless a single seed is given.
    let regressions = if arguments.seeds == 1 { Vec::new() } else { regressions() };
    std::thread::scope(|scope| {
        scope.spawn(|| totals.watch(start));
        std::thread::scope(|scope| {
            for worker in 0..threads {
                let (arguments, regressions, totals) = (&arguments, &regressions, &totals);
                scope.spawn(move || run_worker(worker, arguments, regressions, start, totals));
            }
        });
        totals.are_workers_done.store(true, Ordering::Relaxed);
    });
    totals.print(start);
    u8::from(totals.has_failed.load(Ordering::Relaxed)).into()
}

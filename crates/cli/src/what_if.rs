//! `readpath replay RECORDING`: what a recorded program's time would be on other devices, under other
//! laws, with other memory.

use std::io::Read;
use std::path::Path;

use readpath_core::law::Spec;
use readpath_core::unit::PAGE_BYTES;
use readpath_sim::recording::MAGIC;
use readpath_sim::report::Row;
use readpath_sim::run::Watch;
use readpath_sim::simulate::Setup;
use readpath_sim::what_if::{Gathered, Recorded};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::exit::{Ended, Failure};
use crate::html::bars::{self, Bar as Drawn};
use crate::html::{Page, check_writable};
use crate::input;
use crate::output::{print, print_json};
use crate::progress::{Bar, Interrupt};
use crate::recordings::each_record;
use crate::replay::one_scheduler;
use crate::table::{Column, Table, count, mib, number};

/// What is left over of memory that is larger than all that is read.
const SPARE_BYTES: u64 = 64 << 20;

/// Whether a file is a recording.
pub fn is_recording(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == MAGIC
}

/// One row: the program as it was recorded, or as it would be.
#[derive(Debug, Serialize)]
struct Predicted {
    storage: String,
    readahead: Option<String>,
    scheduler: Option<String>,
    reclaim: Option<String>,
    memory_bytes: Option<u64>,
    /// The time of the program.
    seconds: f64,
    /// The time as recorded ÷ this.
    times_as_fast: f64,
    reads: u64,
    device_requests: Option<u64>,
    device_bytes: Option<u64>,
    amplification: Option<f64>,
    coverage: Option<f64>,
}

/// Makes the reads again, in every combination that is asked for.
pub fn run(args: &ReplayArgs) -> Ended {
    check_writable(args.html.as_deref())?;
    let devices = input::specs(&args.devices)?;
    let readaheads = input::specs(&args.readahead)?;
    let reclaims = input::specs(&args.reclaim)?;
    let scheduler = one_scheduler(args.scheduler.as_deref().unwrap_or("adaptive"))?;
    let memories: Vec<u64> =
        args.memory.iter().map(|text| input::size("--memory", text)).collect::<Result<_, _>>()?;
    let mut gathered = Gathered::default();
    each_record(&args.events, |record| {
        gathered.take(&record);
        Ok(())
    })?;
    let recorded = gathered.finish().ok_or_else(|| {
        let problem = "has no read that brought in anything: other storage would change nothing";
        Failure::about(args.events.display(), problem)
    })?;
    let memories = if memories.is_empty() { vec![usual_memory(&recorded)] } else { memories };
    let mut setups = Vec::new();
    for device in &devices {
        for readahead in &readaheads {
            for reclaim in &reclaims {
                for &memory_bytes in &memories {
                    let laws = [readahead, reclaim, &scheduler].map(Clone::clone);
                    setups.push(setup(&recorded, device, laws, memory_bytes, args.seed));
                }
            }
        }
    }
    let interrupt = Interrupt::listen();
    let mut rows = vec![as_recorded(&recorded)];
    for (setup, memory_bytes) in &setups {
        let bar = Bar::new(format!("{} {}", setup.device, setup.readahead), interrupt.clone());
        let mut tell = |progress| bar.tell(progress);
        let (row, time) = recorded
            .simulate(setup, Watch::progress(&mut tell))
            .map_err(|error| Failure::about(&setup.device, error))?;
        if interrupt.has_come() {
            return Err(Failure::Interrupted);
        }
        rows.push(predicted(&recorded, setup, *memory_bytes, &row, time.seconds()));
    }
    if let Some(path) = &args.html {
        page(&recorded, &rows).write(path)?;
    }
    if args.json {
        return print_json(&rows, args.seed);
    }
    print(&text(&recorded, &rows))
}

/// What a machine of that memory can keep; more than all that is read makes no difference.
fn usual_memory(recorded: &Recorded) -> u64 {
    match recorded.memory_bytes {
        0 => recorded.file_bytes() + SPARE_BYTES,
        bytes => bytes,
    }
}

/// The setup, and the memory that it stands for.
fn setup(
    recorded: &Recorded,
    device: &Spec,
    [readahead, reclaim, scheduler]: [Spec; 3],
    memory_bytes: u64,
    seed: u64,
) -> (Setup, u64) {
    let usual = Setup::new(device.clone());
    let window_bytes = match recorded.readahead_bytes {
        0 => usual.window_bytes,
        bytes => bytes.next_multiple_of(PAGE_BYTES),
    };
    let needed = recorded.file_bytes() + SPARE_BYTES;
    let setup = Setup {
        readahead,
        reclaim,
        scheduler,
        memory_bytes: memory_bytes.min(needed),
        window_bytes,
        seed,
        ..usual
    };
    (setup, memory_bytes)
}

fn as_recorded(recorded: &Recorded) -> Predicted {
    Predicted {
        storage: "as recorded".to_owned(),
        readahead: None,
        scheduler: None,
        reclaim: None,
        memory_bytes: (recorded.memory_bytes > 0).then_some(recorded.memory_bytes),
        seconds: recorded.total.seconds(),
        times_as_fast: 1.0,
        reads: recorded.reads + recorded.found_before,
        device_requests: None,
        device_bytes: None,
        amplification: None,
        coverage: None,
    }
}

fn predicted(
    recorded: &Recorded,
    setup: &Setup,
    memory_bytes: u64,
    row: &Row,
    seconds: f64,
) -> Predicted {
    Predicted {
        storage: setup.device.to_string(),
        readahead: Some(setup.readahead.to_string()),
        scheduler: Some(setup.scheduler.to_string()),
        reclaim: Some(setup.reclaim.to_string()),
        memory_bytes: Some(memory_bytes),
        seconds,
        times_as_fast: recorded.total.seconds() / seconds.max(1e-9),
        reads: recorded.reads,
        device_requests: row.device_requests,
        device_bytes: row.device_bytes,
        amplification: row.amplification,
        coverage: row.coverage,
    }
}

fn table(rows: &[Predicted]) -> Table {
    let columns: [Column<Predicted>; 11] = [
        ("", |row| row.storage.clone()),
        ("readahead", |row| crate::table::text(row.readahead.as_ref())),
        ("reclaim", |row| crate::table::text(row.reclaim.as_ref())),
        ("scheduler", |row| crate::table::text(row.scheduler.as_ref())),
        ("memory MiB", |row| count(row.memory_bytes.map(|bytes| bytes >> 20))),
        ("seconds", |row| number(Some(row.seconds), 2)),
        ("times as fast", |row| number(Some(row.times_as_fast), 2)),
        ("dev reqs", |row| count(row.device_requests)),
        ("dev MiB", |row| mib(row.device_bytes)),
        ("ampl", |row| number(row.amplification, 2)),
        ("cover", |row| number(row.coverage, 2)),
    ];
    Table::of(rows, &columns, 4)
}

fn text(recorded: &Recorded, rows: &[Predicted]) -> String {
    let notes: String = notes(recorded).map(|note| format!("{note}\n")).collect();
    format!("{}\n{}{notes}", program(recorded), table(rows))
}

/// What a reader must know of the rows.
fn notes(recorded: &Recorded) -> impl Iterator<Item = String> {
    let Recorded { found_before, lost, .. } = *recorded;
    let found = (found_before > 0).then(|| {
        format!(
            "{found_before} reads found what was in memory before; they find it again in every row"
        )
    });
    let lost = (lost > 0).then(|| format!("{lost} events were lost: the rows lack their reads"));
    found.into_iter().chain(lost)
}

/// The rows as a page.
fn page(recorded: &Recorded, rows: &[Predicted]) -> Page {
    let lead = "A recorded program's reads made again in virtual time: who waited for an answer waits for \
                it, and thinks between its reads for as long as it did.";
    let mut page = Page::new(program(recorded).trim_end_matches(':'), lead);
    let bar = |row: &Predicted| {
        let laws = [&row.readahead, &row.reclaim].into_iter().flatten().cloned();
        let memory = row.memory_bytes.map(|bytes| format!("{} MiB", bytes >> 20));
        let parts = std::iter::once(row.storage.clone()).chain(laws).chain(memory);
        let series = usize::from(row.readahead.is_none());
        Drawn::new(&parts.collect::<Vec<_>>().join(" · "), row.seconds, series)
    };
    let bars: Vec<Drawn> = rows.iter().map(bar).collect();
    let caption =
        "Seconds of the program, less is better: orange as recorded, blue as it would be.";
    page.picture(caption, &bars::draw("Time of the program in each row", "s", &bars));
    page.table("A row for each device, laws and memory", &table(rows));
    page.notes(notes(recorded));
    page
}

fn program(recorded: &Recorded) -> String {
    match recorded.program.as_str() {
        "" => "The time of the programs:".to_owned(),
        program => format!("The time of {program}:"),
    }
}

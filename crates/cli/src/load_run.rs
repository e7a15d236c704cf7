//! `readpath run LOAD.toml`: loads on memory, under every combination of storage and swap-in law
//! that is named, one row each.
//!
//! A file of loads is told from a job file by its name, which ends with `.toml`: fio's own files
//! may have any other.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use readpath_core::decision::Decided;
use readpath_core::law::Spec;
use readpath_core::machine::{ConfigError, SwapError};
use readpath_core::swapin;
use readpath_peers::kernel_swap::area::SwapArea;
use readpath_peers::kernel_swap::page_cluster::PAGE_CLUSTER_MAX;
use readpath_sim::load::{Load, LoadRow, LoadSetup, check_load, file, simulate_load};
use readpath_sim::run::Watch;
use readpath_sim::simulate::SimulateError;

use crate::args::RunArgs;
use crate::decision_log::{self, DecisionFile};
use crate::exit::{Ended, Failure};
use crate::input;
use crate::output;
use crate::progress::{Bar, Interrupt};
use crate::region_run::{self, RegionPlan};
use crate::run::open_log;
use crate::storage::Storage;
use crate::swap_peer::{self, PeerPlan};
use crate::table::{Table, duration, number};

/// The law that the kernel's rows have.
const KERNEL: &str = "kernel";

/// Whether a file holds loads, by its name.
pub fn is_load_file(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"))
}

/// One row to be.
struct Combination<'a> {
    load: &'a Load,
    storage: &'a Storage,
    /// None where none is named for that storage: the default, or what the kernel does.
    swapin: Option<&'a Spec>,
    /// None where the kernel has its own.
    scheduler: Option<&'a Spec>,
}

impl Combination<'_> {
    fn setup(&self, device: &Spec, seed: u64) -> LoadSetup {
        let mut setup = LoadSetup { seed, ..LoadSetup::new(device.clone()) };
        setup.swapin = self.swapin.cloned().unwrap_or(setup.swapin);
        setup.scheduler = self.scheduler.cloned().unwrap_or(setup.scheduler);
        setup
    }

    fn region_swapin(&self) -> Spec {
        self.swapin.cloned().unwrap_or_else(|| Spec::plain("adaptive"))
    }
}

/// Every storage under each of the laws that are for it. The kernel has laws of its own.
fn combinations<'a>(
    loads: &'a [Load],
    storages: &'a [Storage],
    swapins: &'a [Spec],
    schedulers: &'a [Spec],
) -> Vec<Combination<'a>> {
    let mut all = Vec::new();
    for (load, storage) in loads.iter().flat_map(|load| storages.iter().map(move |on| (load, on))) {
        let laws = some_or_default(swapins.iter().filter(|law| is_for(law, storage)));
        let schedulers = match storage {
            // A region needs none: its requests are large, and few.
            Storage::Kernel(_) | Storage::Region(_) => vec![None],
            _ => some_or_default(schedulers.iter()),
        };
        for swapin in laws {
            let row = |&scheduler| Combination { load, storage, swapin, scheduler };
            all.extend(schedulers.iter().map(row));
        }
    }
    all
}

fn some_or_default<'a>(laws: impl Iterator<Item = &'a Spec>) -> Vec<Option<&'a Spec>> {
    let named: Vec<_> = laws.map(Some).collect();
    if named.is_empty() { vec![None] } else { named }
}

/// Runs the loads everywhere and prints the rows. What can be wrong is found out before the
/// first row, so that bad input costs nobody the rows before it.
pub fn run(args: &RunArgs) -> Ended {
    refuse_options_of_jobs(args)?;
    let storages = Storage::parse_all(&args.storages)?;
    let swapins = args.swapin.as_deref().map_or(Ok(Vec::new()), input::specs)?;
    let schedulers = input::specs(&args.scheduler)?;
    let loads = read_loads(args)?;
    refuse_laws_of_nobody(&storages, &swapins)?;
    let all = combinations(&loads, &storages, &swapins, &schedulers);
    all.iter().try_for_each(|combination| check(args, combination))?;
    let log = open_log(args, &storages)?;
    let interrupt = Interrupt::listen();
    let mut rows = Vec::new();
    let failure = all
        .iter()
        .try_for_each(|combination| {
            rows.push(one(args, combination, log.as_ref(), &interrupt)?);
            Ok(())
        })
        .and_then(|()| log.as_ref().map_or(Ok(()), DecisionFile::finish))
        .err();
    if !rows.is_empty() || matches!(failure, None | Some(Failure::Interrupted)) {
        print_rows(&rows, args)?;
    }
    failure.map_or_else(|| unmeasured(&rows), Err)
}

/// What a job takes and a load doesn't.
fn refuse_options_of_jobs(args: &RunArgs) -> Ended {
    let options = [
        ("--readahead", args.readahead.is_some()),
        ("--raw", args.raw.is_some()),
        ("--create", args.create),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::Usage(format!(
            "{option} is for jobs, and {} holds loads on memory; leave it out",
            args.job.display()
        ))),
        None => Ok(()),
    }
}

fn read_loads(args: &RunArgs) -> Result<Vec<Load>, Failure> {
    let text = input::text(&args.job, "loads are text in TOML")?;
    let mut loads = file::parse(&text, &args.job).map_err(Failure::usage)?;
    if let Some(text) = &args.memory {
        let memory_bytes = input::size("--memory", text)?;
        for load in &mut loads {
            load.memory_bytes = memory_bytes;
            load.check().map_err(|error| {
                let key = error.key().name();
                Failure::Usage(format!("--memory {text}: load `{}`: {key}: {error}", load.name))
            })?;
        }
    }
    Ok(loads)
}

/// The kernel has its own law; all others are for our own path.
fn is_for(law: &Spec, storage: &Storage) -> bool {
    matches!(storage, Storage::Kernel(_)) == (law.name == KERNEL)
}

/// A law that no row would have is a slip.
fn refuse_laws_of_nobody(storages: &[Storage], swapins: &[Spec]) -> Ended {
    for law in swapins {
        if law.name == KERNEL {
            page_cluster(law)?;
        }
        if !storages.iter().any(|storage| is_for(law, storage)) {
            let on =
                if law.name == KERNEL { "kernel:PATH" } else { "a modelled device or region:PATH" };
            return Err(Failure::Usage(format!("--swapin {law} is for {on}, and --on names none")));
        }
    }
    Ok(())
}

/// What `kernel,page_cluster=N` sets; None where it sets nothing.
fn page_cluster(law: &Spec) -> Result<Option<u32>, Failure> {
    law.only(&["page_cluster"]).map_err(Failure::usage)?;
    let bounds = 0..=u64::from(PAGE_CLUSTER_MAX);
    let value = law.integer("page_cluster", 0, bounds).map_err(Failure::usage)? as u32;
    Ok(law.parameters.contains_key("page_cluster").then_some(value))
}

/// Finds out whether a row could be run, without running it.
fn check(args: &RunArgs, combination: &Combination<'_>) -> Ended {
    if args.log.is_some() {
        let setup = combination.setup(&Spec::plain("hdd"), args.seed);
        decision_log::check_load(combination.storage, &setup.swapin, &setup.scheduler)?;
    }
    match combination.storage {
        Storage::Kernel(path) => {
            may_swap_to(path, args.overwrite)?;
            SwapArea::check(path, combination.load.swap_bytes).map_err(Failure::usage)
        }
        Storage::Modelled(device) => {
            check_load(combination.load, &combination.setup(device, args.seed))
                .map_err(|error| told(combination.storage, &error))
        }
        Storage::Region(path) => {
            may_hold_a_region(path)?;
            may_swap_to(path, args.overwrite)?;
            swapin::build(&combination.region_swapin(), false).map_err(Failure::usage)?;
            region_run::check(combination.load)
        }
        storage => Err(not_here(storage)),
    }
}

/// A region overwrites no file of somebody's.
fn may_hold_a_region(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(found) if !found.is_dir() && !found.file_type().is_block_device() => {
            Err(Failure::Usage(format!(
                "{}: is neither a folder nor a block device; name a folder, in which a file is \
                 made that goes with the run, or a device that is free",
                path.display()
            )))
        }
        _ => Ok(()),
    }
}

/// A folder takes a file of ours; all else loses what it holds.
fn may_swap_to(path: &Path, may_overwrite: bool) -> Result<(), Failure> {
    let shown = path.display();
    if !path.exists() {
        return Err(Failure::Usage(format!(
            "{shown}: is not there; check the path, or name a folder or block device"
        )));
    }
    if path.is_dir() {
        return Ok(());
    }
    if may_overwrite {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{shown}: would be swapped to, and its content lost: add --overwrite if it may be, or name a \
         folder, in which a file is made that goes with the run"
    )))
}

/// What is wrong with a law is told as it is, all else of the storage.
fn told(storage: &Storage, error: &SimulateError) -> Failure {
    match error {
        SimulateError::Config(ConfigError::Law(_)) | SimulateError::Swap(SwapError::Law(_)) => {
            Failure::usage(error)
        }
        _ => Failure::about(storage, error),
    }
}

fn not_here(storage: &Storage) -> Failure {
    Failure::Usage(format!(
        "{storage}: loads on memory run on modelled devices, on region:PATH and on kernel:PATH; \
         name one of those"
    ))
}

fn one(
    args: &RunArgs,
    combination: &Combination<'_>,
    log: Option<&DecisionFile>,
    interrupt: &Interrupt,
) -> Result<LoadRow, Failure> {
    let &Combination { load, storage, swapin, .. } = combination;
    let bar = Bar::new(format!("{} {storage}", load.name), interrupt.clone());
    match storage {
        Storage::Modelled(device) => {
            let setup = combination.setup(device, args.seed);
            let mut tell = |progress| bar.tell(progress);
            let mut note = |decided: &Decided| log.expect("heard of if kept").decided(decided);
            let mut watch = Watch::progress(&mut tell);
            if let Some(log) = log {
                log.begin(&format!("{} {storage} {} {}", load.name, setup.swapin, setup.scheduler));
                watch.decided = Some(&mut note);
            }
            let row = simulate_load(load, &setup, watch).map_err(|error| told(storage, &error))?;
            if interrupt.has_come() { Err(Failure::Interrupted) } else { Ok(row) }
        }
        Storage::Region(path) => {
            let law = combination.region_swapin();
            let plan = RegionPlan { path, swapin: &law, seed: args.seed, interrupt };
            region_run::run(&plan, load)
        }
        Storage::Kernel(path) => {
            let page_cluster = swapin.map_or(Ok(None), page_cluster)?;
            swap_peer::run(&PeerPlan { path, page_cluster, seed: args.seed, interrupt }, load)
        }
        Storage::File(_) | Storage::Nfs(_) => Err(not_here(storage)),
    }
}

/// A row without figures is not nothing: the command's exit code says so.
fn unmeasured(rows: &[LoadRow]) -> Ended {
    let row = rows.iter().find(|row| row.seconds.is_none());
    row.map_or(Ok(()), |row| {
        let reason = row.note.as_deref().unwrap_or("it was not measured");
        Err(Failure::Unavailable(format!("{} on {}: {reason}", row.job, row.storage)))
    })
}

fn print_rows(rows: &[LoadRow], args: &RunArgs) -> Ended {
    if args.json {
        return output::print_json(rows, args.seed);
    }
    let header = [
        "load",
        "storage",
        "swap-in",
        "scheduler",
        "engine",
        "seconds",
        "touches/s",
        "p50",
        "p99",
        "max",
        "major faults",
        "minor faults",
        "pages in",
        "pages out",
        "dev reqs",
        "KiB/req",
        "cover",
        "waste MiB",
        "cpu s",
    ];
    let mut table = Table::new(header, 5);
    for row in rows {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let count = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |n| n.to_string());
        table.row(vec![
            row.job.clone(),
            row.storage.clone(),
            text(&row.swapin),
            text(&row.scheduler),
            text(&row.engine),
            number(row.seconds, 2),
            number(row.iops, 0),
            duration(row.latency_us.p50),
            duration(row.latency_us.p99),
            duration(row.latency_us.max),
            count(row.major_faults),
            count(row.minor_faults),
            count(row.pages_in),
            count(row.pages_out),
            count(row.device_requests),
            number(row.device_request_kib_mean, 1),
            number(row.coverage, 3),
            number(row.waste_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)), 1),
            number(row.cpu_seconds, 2),
        ]);
    }
    output::print(&table.to_string())?;
    for row in rows {
        if let Some(note) = &row.note {
            output::print(&format!("{} on {}: {note}\n", row.job, row.storage))?;
        }
    }
    Ok(())
}

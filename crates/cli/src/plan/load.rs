//! Plan of loads on memory: one row for each combination of a load, a named storage, a swap-in
//! policy and a scheduler.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use readpath_core::machine::{ConfigError, SwapError};
use readpath_core::policy::Spec;
use readpath_core::swapin;
use readpath_eval::kernel_swap::area::SwapArea;
use readpath_eval::kernel_swap::page_cluster::PAGE_CLUSTER_MAX;
use readpath_sim::load::{LoadSetup, MemoryLoad, MemorySharing, check_load, file};
use readpath_sim::simulate::SimulateError;

use super::job::eviction_policy;
use super::log;
use super::storage::Storage;
use crate::args::RunArgs;
use crate::exit::{CommandResult, Failure};
use crate::input;
use crate::output::OutputFormat;

/// Swap-in policy of the kernel's rows.
const KERNEL_POLICY: &str = "kernel";

/// Default swap-in policy of a region.
const REGION_SWAPIN_DEFAULT: &str = "adaptive";

/// Rows of loads, in the order of the table.
pub struct LoadPlan {
    /// Rows to run.
    pub rows: Vec<LoadRun>,
    /// Log of the policies' decisions.
    pub log: Option<PathBuf>,
}

/// Row to run.
pub struct LoadRun {
    /// Load to run.
    pub load: MemoryLoad,
    /// Storage as named by `--on`.
    pub storage: String,
    /// Seed of the random touches, and of a modelled device.
    pub seed: u64,
    /// Runner of the row.
    pub runner: LoadRunner,
}

/// Runner of a load's row.
pub enum LoadRunner {
    /// Simulation on a device model, in virtual time.
    Modelled(LoadSetup),
    /// Memory region of the library, backed by a folder or block device.
    Region {
        /// Folder or block device.
        path: PathBuf,
        /// Swap-in policy of the library.
        swapin: Spec,
        /// Eviction policy of the library.
        eviction: Spec,
    },
    /// Kernel's own swap, on a folder, file or block device.
    Kernel {
        /// Folder, file or block device.
        path: PathBuf,
        /// Value of `vm.page_cluster` during the run; `None`: unchanged.
        page_cluster: Option<u32>,
    },
}

impl LoadRunner {
    /// Returns the local folder, file or device of the row; `None` for a modelled device.
    pub fn path(&self) -> Option<&Path> {
        match self {
            LoadRunner::Modelled(_) => None,
            LoadRunner::Region { path, .. } | LoadRunner::Kernel { path, .. } => Some(path),
        }
    }
}

impl LoadPlan {
    /// Parses and validates the command line and the file of loads.
    pub fn of(args: &RunArgs) -> Result<LoadPlan, Failure> {
        refuse_options_of_jobs(args)?;
        let storages = Storage::parse_all(&args.storages)?;
        let swapins = args.swapin.as_deref().map_or(Ok(Vec::new()), input::parse_specs)?;
        let schedulers = input::parse_specs(args.scheduler.as_deref().unwrap_or("adaptive"))?;
        let loads = read_loads(args)?;
        refuse_unused_policies(&storages, &swapins)?;
        if args.eviction.is_some() && storages.iter().all(|on| matches!(on, Storage::Kernel(_))) {
            let reason = "--eviction is for a modelled device or region:PATH, and --on names none";
            return Err(Failure::Usage(reason.to_owned()));
        }
        let mut rows = Vec::new();
        for load in &loads {
            for storage in &storages {
                let combination = LoadOnStorage { load, storage, args };
                // A storage to which no named policy applies runs with its default.
                for swapin in
                    some_or_default(swapins.iter().filter(|policy| applies_to(policy, storage)))
                {
                    let schedulers = match storage {
                        // A region needs no scheduler: its requests are few and large.
                        Storage::Kernel(_) | Storage::Region(_) => vec![None],
                        _ => some_or_default(schedulers.iter()),
                    };
                    for scheduler in schedulers {
                        rows.push(combination.row(swapin, scheduler)?);
                    }
                }
            }
        }
        Ok(LoadPlan { rows, log: args.log.clone() })
    }
}

/// Named policies, or one `None` that stands for the default.
fn some_or_default<'a>(policies: impl Iterator<Item = &'a Spec>) -> Vec<Option<&'a Spec>> {
    let named: Vec<_> = policies.map(Some).collect();
    if named.is_empty() { vec![None] } else { named }
}

/// Combination of a load and a storage.
struct LoadOnStorage<'a> {
    /// Load to run.
    load: &'a MemoryLoad,
    /// Storage that it swaps to.
    storage: &'a Storage,
    /// Command line, for the options that apply to every row.
    args: &'a RunArgs,
}

impl LoadOnStorage<'_> {
    /// Returns the row with these policies, or the reason that it cannot run. `None` stands for the
    /// storage's default policy.
    fn row(&self, swapin: Option<&Spec>, scheduler: Option<&Spec>) -> Result<LoadRun, Failure> {
        let device = match self.storage {
            Storage::Modelled(device) => device.clone(),
            // The device of other storages is not used.
            _ => Spec::plain("hdd"),
        };
        // A modelled device uses all of it, and a region the eviction policy.
        let mut setup = LoadSetup { seed: self.args.seed, ..LoadSetup::new(device) };
        if let Some(policy) = &self.args.eviction {
            setup.eviction = eviction_policy(policy)?;
        }
        setup.swapin = swapin.cloned().unwrap_or(setup.swapin);
        setup.scheduler = scheduler.cloned().unwrap_or(setup.scheduler);
        if self.args.log.is_some() {
            // Fails for the kernel and regions, and for policies that log no decisions.
            log::check_load(self.storage, &setup.swapin, &setup.scheduler)?;
        }
        let runner = match self.storage {
            Storage::Modelled(_) => LoadRunner::Modelled(setup),
            Storage::Region(path) => {
                check_region_storage(path)?;
                check_swap_storage(path, self.args.overwrite)?;
                let default = || Spec::plain(REGION_SWAPIN_DEFAULT);
                let swapin = swapin.cloned().unwrap_or_else(default);
                // The validity of a policy does not depend on the device.
                let is_rotational = false;
                swapin::build(&swapin, is_rotational).map_err(Failure::usage)?;
                refuse_shared_region(self.load)?;
                LoadRunner::Region { path: path.clone(), swapin, eviction: setup.eviction }
            }
            Storage::Kernel(path) => {
                check_swap_storage(path, self.args.overwrite)?;
                SwapArea::check(path, self.load.swap_bytes).map_err(Failure::usage)?;
                let page_cluster = swapin.map_or(Ok(None), parse_page_cluster)?;
                LoadRunner::Kernel { path: path.clone(), page_cluster }
            }
            Storage::File(_) | Storage::Nfs(_) => {
                return Err(Failure::Usage(format!(
                    "{}: loads on memory run on modelled devices, on region:PATH and on \
                     kernel:PATH; name one of those",
                    self.storage
                )));
            }
        };
        let (load, storage) = (self.load.clone(), self.storage.to_string());
        let row = LoadRun { load, storage, seed: self.args.seed, runner };
        // Builds the device and the policies, without a simulation.
        if let LoadRunner::Modelled(setup) = &row.runner {
            check_load(&row.load, setup).map_err(|error| row.failure(&error))?;
        }
        Ok(row)
    }
}

impl LoadRun {
    /// Failure with the subject of the error in front: the policy or the storage.
    pub fn failure(&self, error: &SimulateError) -> Failure {
        match error {
            SimulateError::Config(ConfigError::Policy(_))
            | SimulateError::Swap(SwapError::Policy(_)) => Failure::usage(error),
            // The simulation makes no progress, which is no error of the user.
            SimulateError::Stuck(_) => Failure::Run(format!("{}: {error}", self.storage)),
            _ => Failure::usage_of(&self.storage, error),
        }
    }
}

/// Refuses options that apply only to jobs or traces and have no meaning for loads on memory.
fn refuse_options_of_jobs(args: &RunArgs) -> CommandResult {
    let options = [
        ("--readahead", args.readahead.is_some()),
        ("--chunking", args.chunking.is_some()),
        ("--create", args.create),
        ("--backend", args.backend.is_some()),
        ("--page-cache", args.page_cache.is_some()),
        ("--runs", args.runs.is_some()),
        ("--runtime", args.runtime.is_some()),
        ("--trace", args.trace.is_some()),
        ("--speed", args.speed.is_some()),
        ("--closed", args.closed.is_some()),
        ("--output-format fio", args.format() == OutputFormat::Fio),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::Usage(format!(
            "{option} is for jobs and traces, and {} holds loads on memory; leave it out",
            args.job.display()
        ))),
        None => Ok(()),
    }
}

/// Reads the file of loads. `--memory` replaces the memory of every load.
fn read_loads(args: &RunArgs) -> Result<Vec<MemoryLoad>, Failure> {
    let text = input::read_text(&args.job, "loads are text in TOML")?;
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

/// True if the policy applies to the storage. The kernel has only the policy `kernel`; all other
/// policies are for readpath.
fn applies_to(policy: &Spec, storage: &Storage) -> bool {
    matches!(storage, Storage::Kernel(_)) == (policy.name == KERNEL_POLICY)
}

/// Refuses a policy that no row would use, a probable typing error.
fn refuse_unused_policies(storages: &[Storage], swapins: &[Spec]) -> CommandResult {
    for policy in swapins {
        // Checks the parameters also for a policy that no row would use.
        if policy.name == KERNEL_POLICY {
            parse_page_cluster(policy)?;
        }
        if !storages.iter().any(|storage| applies_to(policy, storage)) {
            let storage_kind = if policy.name == KERNEL_POLICY {
                "kernel:PATH"
            } else {
                "a modelled device or region:PATH"
            };
            return Err(Failure::Usage(format!(
                "--swapin {policy} is for {storage_kind}, and --on names none"
            )));
        }
    }
    Ok(())
}

/// Returns the value of `page_cluster` in `kernel,page_cluster=N`; `None` without this parameter,
/// where the default is not used.
fn parse_page_cluster(policy: &Spec) -> Result<Option<u32>, Failure> {
    policy.only(&["page_cluster"]).map_err(Failure::usage)?;
    let bounds = 0..=u64::from(PAGE_CLUSTER_MAX);
    let default = 0;
    let value = policy.integer("page_cluster", default, bounds).map_err(Failure::usage)? as u32;
    Ok(policy.parameters.contains_key("page_cluster").then_some(value))
}

/// Checks that the storage of a region is a folder, a block device or missing. An existing regular
/// file would be overwritten. [`check_swap_storage`] refuses a missing one.
fn check_region_storage(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(found) if !found.is_dir() && !found.file_type().is_block_device() => {
            Err(Failure::Usage(format!(
                "{}: is neither a folder nor a block device; name a folder for a scratch file, \
                    or an unused device",
                path.display()
            )))
        }
        _ => Ok(()),
    }
}

/// Checks that the path exists, and that swapping destroys no data unless `may_overwrite` permits
/// it. A folder gets a scratch file; a file or a device loses its content.
fn check_swap_storage(path: &Path, may_overwrite: bool) -> Result<(), Failure> {
    let path_text = path.display();
    if !path.exists() {
        return Err(Failure::Usage(format!(
            "{path_text}: does not exist; check the path, or name a folder or block device"
        )));
    }
    if path.is_dir() {
        return Ok(());
    }
    if may_overwrite {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{path_text}: would be swapped to and lose its content; add --overwrite if it may be lost, \
            or name a folder for a scratch file"
    )))
}

/// Refuses a shared mapping on a region. There the processes of a load are threads, each with its
/// own part of the region.
fn refuse_shared_region(load: &MemoryLoad) -> CommandResult {
    if load.share == MemorySharing::Shared && load.processes > 1 {
        return Err(Failure::Usage(format!(
            "load `{}`: {} processes share a mapping, and a region belongs to one; run it on \
             kernel:PATH or a modelled device, or with share = \"private\"",
            load.name, load.processes
        )));
    }
    Ok(())
}

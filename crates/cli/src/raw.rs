//! `file:PATH` for raw jobs: each operation is one call on a raw file, which
//! cuts it into chunks. Each process has a thread and a raw file of its own.

use std::path::Path;

use readpath::{BackendKind, Direct, RawFile};
use readpath_core::law::Spec;
use readpath_peers::usage::CpuTime;
use readpath_sim::job::Engine;
use readpath_sim::report::Row;
use readpath_sim::workload::Process;

use crate::exit::{Ended as Checked, Failure};
use crate::peer::{Ended, Shared, run_processes};
use crate::progress::Bar;
use crate::real::{carried_by, count, join, make_cold, move_raw, notes, open, run_calls};
use crate::run::Plan;
use crate::storage::Storage;

/// Refuses what can't be run: a law of raw I/O where nothing is raw, and a file
/// with jobs of both kinds on `file:`, where they take different ways.
pub fn check(plan: &Plan<'_>, storages: &[Storage]) -> Checked {
    let job_file = plan.args.job.display();
    if !plan.job.has_raw() {
        return match plan.args.raw {
            Some(_) => Err(Failure::Usage(format!(
                "--raw is for jobs with ioengine=raw, and {job_file} has none; leave it out"
            ))),
            None => Ok(()),
        };
    }
    if let Some(storage) = storages.iter().find(|storage| matches!(storage, Storage::Nfs(_))) {
        return Err(Failure::Usage(format!(
            "{storage}: raw jobs need a device or a file of this machine; {job_file} has some: \
             set direct=1 and another ioengine there, or leave {storage} out"
        )));
    }
    let cached = plan.job.jobs.iter().find(|job| job.engine != Engine::Raw);
    let file = storages.iter().find(|storage| matches!(storage, Storage::File(_)));
    match (cached, file) {
        (Some(job), Some(storage)) => Err(Failure::Usage(format!(
            "{job_file}: on {storage} raw jobs can't run beside others, and `{}` is none; give \
             them files of their own",
            job.name
        ))),
        _ => Ok(()),
    }
}

/// Runs the job on `path` under `law`, and gives its row.
pub fn run(plan: &Plan<'_>, path: &Path, law: &Spec, bar: &Bar) -> Result<Row, Failure> {
    let (mode, workload) = open(plan, path, Direct::Preferred)?;
    let residency = make_cold(path, &mut || bar.is_wanted())?;
    let note = notes(mode, &residency);
    let backend = plan.args.backend;
    let one = RawFile::builder().backend(backend).open(path).map_err(Failure::usage)?;
    let note = join(note, carried_by(one.backend()));
    drop(one);
    let cpu = CpuTime::of_process();
    let process =
        |process: Process, shared: &Shared<'_>| run_process(process, shared, law, backend);
    let ran = run_processes(plan, path, workload, &mut |progress| bar.tell(progress), &process)?;
    let counted = ran.counted;
    let mut row = ran.measured.row(&plan.name, &format!("file:{}", path.display()), &plan.job);
    // To get a large buffer from the system costs as much as to fill it by a device.
    let cpu_seconds = CpuTime::of_process().since(cpu).seconds() - counted.memory_cpu_seconds;
    row.cpu_seconds = Some(cpu_seconds.max(0.0));
    row.raw = Some(law.to_string());
    row.device_requests = Some(counted.requests);
    row.device_bytes = Some(counted.bytes);
    if counted.requests > 0 {
        row.device_request_kib_mean = Some(counted.bytes as f64 / 1024.0 / counted.requests as f64);
    }
    row.note = join(row.note, note);
    Ok(row)
}

/// One process, from its first operation to its last.
fn run_process(
    process: Process,
    shared: &Shared<'_>,
    law: &Spec,
    backend: BackendKind,
) -> Result<Ended, Failure> {
    let builder = RawFile::builder().write(process.writes()).law(&law.to_string());
    let file = builder.backend(backend).open(shared.path).map_err(Failure::usage)?;
    let mut ended = Ended::by(Engine::Raw.name());
    run_calls(process, shared, &mut ended, |operation, offset, memory| {
        move_raw(&file, memory, operation, offset)
    })?;
    count(&mut ended, &file);
    Ok(ended)
}

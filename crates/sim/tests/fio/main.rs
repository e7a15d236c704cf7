//! fio as the oracle for the accepted job files and the operations of a job.
//!
//! Skipped with a message if fio is missing or is not version 3.33, whose rules are implemented.

#![allow(clippy::disallowed_methods, reason = "runs fio and reads what it made")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use readpath_sim::job::JobFile;
use readpath_sim::workload::{FileSource, Process, Workload};

mod clones;
mod generated;

mod deterministic_jobs;
mod options;
mod oracle;
mod rates;

use self::oracle::{Scratch, Step, has_fio, our_steps, steps_of_iolog};

fn is_read_by_fio(path: &Path) -> bool {
    let output = Command::new("fio").arg("--parse-only").arg(path).output().unwrap();
    output.status.success()
}

/// Lines accepted by both.
const READ_BY_BOTH: &[&str] = &[
    "bs=4k",
    "bs=4K",
    "bs=4kb",
    "bs=4KiB",
    "bs=4ki",
    "bs= 4k",
    "bs =4k",
    " bs=4k ",
    "bs=4k ; why",
    "bs=4k # why",
    "bs=0x1000",
    "bs=4k,8k",
    "bs=,8k",
    "bs=4k,",
    "blocksize=1m",
    "size=50%",
    "size=1g",
    "size=1p",
    "io_size=2m",
    "io_size=50%",
    "io_limit=2m",
    "offset=10%",
    "offset=4k",
    "filesize=1m",
    "numjobs=2",
    "iodepth=64",
    "iodepth_batch=0",
    "iodepth_batch_submit=8",
    "iodepth_batch_complete=8",
    "iodepth_batch_complete=0",
    "direct=1",
    "buffered=0",
    "runtime=10",
    "runtime=10s",
    "runtime=10S",
    "runtime=10ms",
    "runtime=10usec",
    "runtime=10min",
    "runtime=1d",
    "timeout=5",
    "startdelay=1s",
    "time_based=0",
    "thinktime=100",
    "thinktime=1ms",
    "thinktime_blocks=4",
    "fadvise_hint=0",
    "fadvise_hint=1",
    "fadvise_hint=random",
    "fadvise_hint=sequential",
    "randseed=5",
    "randseed=0x5",
    "random_distribution=random",
    "random_distribution=zipf",
    "random_distribution=zipf:1.2",
    "norandommap",
    "norandommap=0",
    "group_reporting",
    "group_reporting=1",
    "stonewall",
    "wait_for_previous=0",
    "description=a b",
    "name=other",
    "loops=3",
    "prio=7",
    "prioclass=1",
    "prioclass=3",
    "nrfiles=1",
    "fsync=8",
    "fdatasync=1",
    "end_fsync=1",
    "ioengine=psync",
    "ioengine=sync",
    "ioengine=libaio",
    "ioengine=io_uring",
    "ioengine=mmap",
    "rw=randread",
    "rw=write",
    "rw=randwrite",
    "rw=readwrite",
    "readwrite=randrw",
    "rwmixread=70",
    "rwmixwrite=0",
    "filename=a:b",
    r"filename=a\:b",
    "directory=/tmp",
    "bs=4k,8k,16k",
    "bsrange=4k-64k",
    "bsrange=512:1m",
    "bssplit=4k/10:64k/50:32k/",
    "bssplit=4k,8k/10:64k/90",
    "bs_unaligned",
    "filesize=1m-2m",
    "startdelay=1-2",
    "random_distribution=zipf:1.2:0.5",
    "random_distribution=pareto:0.5",
    "random_distribution=normal:10",
    "random_distribution=zoned:50/5:30/15:20/",
    "nrfiles=2",
    "ioengine=posixaio",
    "ioengine=null",
    "ioengine=pvsync2",
    "rw=read:8",
    "rw=read:-8k",
    "rw=randread:8",
    "rw_sequencer=identical",
    "thread",
    "prioclass=0",
    "time_based",
    "ioengine=mmap\ndirect=1",
    "gtod_reduce=1",
    "invalidate=0",
    "fallocate=none",
    "ramp_time=1",
    "refill_buffers",
    "buffer_pattern=0xdeadbeef",
    "lat_percentiles=1",
    "log_avg_msec=100",
    "create_on_open=1",
    "io_submit_mode=offload",
    "verify=crc32c",
    "verify=md5\nverify_backlog=1m",
    "zonemode=strided\nzonesize=1m\nzonerange=2m\nzoneskip=1m",
    "thinktime=1\nthinktime_spin=1",
    "rate=1m",
    "rate=1m,2m",
    "rate_iops=100",
    "rate_process=poisson",
    "percentage_random=50",
    "percentage_random=50,20",
    "random_generator=lfsr",
    "random_generator=tausworthe64",
    "randrepeat=0",
    "file_service_type=random",
    "file_service_type=sequential",
    "file_service_type=roundrobin:4",
    "filename_format=$jobname.$filenum",
    "offset_increment=1m",
    "number_ios=10",
    "flow=3",
    "steadystate=iops:5%",
    "ss_dur=10",
    "latency_target=10ms",
    "exitall",
    "kb_base=1000",
    "write_lat_log=x",
    "write_bw_log",
    "sync=1",
    "fill_device=1",
    "numjobs=1k",
    "# a comment",
    "; a comment",
    "",
    "[global]\nbs=8k",
    "[other]\nrw=read",
    "[global2]\nbs=8k\n[third]\nrw=randread",
];

/// Lines refused by both.
const READ_BY_NEITHER: &[&str] = &[
    "bs=\"4k\"",
    "bs=0",
    "bs",
    "bs=",
    "io_size=200%",
    "numjobs=none",
    "iodepth=0",
    "direct=2",
    "direct",
    "direct=true",
    "time_based=yes",
    "fadvise_hint=2",
    "fadvise_hint=seq",
    "randseed=abc",
    "random_distribution=zipf:1.0",
    "random_distribution=zipf:",
    "random_distribution=normal:100",
    "random_distribution=normal:-1",
    "random_distribution=uniform",
    "random_distribution=zoned:50/50",
    "thinktime_blocks_type=x",
    "norandommap=yes",
    "prio=8",
    "prioclass=4",
    "rw=RANDREAD",
    "rw=rand",
    "rw=",
    "rw",
    "rwmixread=101",
    "numjobs=${COUNT}",
    "zonk=1",
    "Direct=1",
    "filename=",
];

/// Lines accepted by fio and refused here. Their meaning in fio differs from their text (a suffix
/// dropped silently, a minus sign), or they are not supported.
const READ_BY_FIO_ONLY: &[&str] = &[
    "bs=4kk",
    "bs=4 k",
    "bs=4.5k",
    "bs=4m1k",
    "bs=1s",
    "bs=-1",
    "bs=4k-8k",
    "bs=4k:8k",
    "size=1x",
    "size=-5",
    "size=101%",
    "size=0",
    "numjobs=0",
    "numjobs=2,3",
    "runtime=1.5s",
    "runtime=10xs",
    "runtime=-1",
    "time_based=2",
    "loops=0",
    "bssplit=4k/60:8k/60",
    "rw=trim",
    "zonemode=zbd",
    "ioengine=net",
    "pre_read=1",
    "numjobs=$ncpus",
    "include other.fio",
];

#[test]
fn option_acceptance_matches_fio_as_tabulated() {
    if !has_fio() {
        return;
    }
    let scratch = Scratch::new("accepts");
    let job = |line: &str| format!("[j]\nrw=read\nsize=1m\n{line}\n");
    for (lines, is_ours) in [(READ_BY_BOTH, true), (READ_BY_FIO_ONLY, false)] {
        // One call for all lines, because fio takes a fifth of a second to start.
        let all: String = lines.iter().map(|line| job(line)).collect();
        assert!(is_read_by_fio(&scratch.write("job.fio", &all)), "fio reads {lines:?}");
        for line in lines {
            let ours = JobFile::parse(&job(line));
            assert_eq!(ours.is_ok(), is_ours, "`{line}`: {ours:?}");
        }
    }
    for line in READ_BY_NEITHER {
        let path = scratch.write("job.fio", &job(line));
        assert!(!is_read_by_fio(&path), "fio refuses `{line}`");
        assert!(JobFile::parse(&job(line)).is_err(), "`{line}` is refused");
    }
}

/// Jobs with a deterministic order. Each operation is compared.
const IN_ORDER: &[&str] = &[
    "rw=read size=1m bs=4k",
    "rw=read size=10k bs=4k",
    "rw=read size=1m bs=4KiB",
    "rw=write size=64k bs=4ki",
    "rw=write size=1mb bs=64KB",
    "rw=read size=1mib bs=0x2000",
    "rw=read size=64k offset=6k",
    "rw=read size=64k io_size=100k",
    "rw=read size=64k io_size=10k",
    "rw=read size=64k io_size=50%",
    "rw=read size=64k io_size=32k loops=3",
    "rw=read size=64k loops=3",
    "rw=read size=10k loops=2",
    "rw=read size=10k io_size=20k",
    "rw=read filesize=64k size=32k",
    "rw=read filesize=16k size=32k",
    "rw=read filesize=64k",
    "rw=read size=68k filename=two.a:two.b",
    "rw=read size=12k filename=three.a:three.b io_size=32k",
];

/// Jobs with a random order. Operations and bytes are compared, for some also the set of blocks.
const AT_RANDOM: &[&str] = &[
    "rw=randread size=64k offset=6k",
    "rw=randread size=1m bs=16k loops=2 offset=6k",
    "rw=randread size=18k",
    "rw=randread size=16k io_size=40k",
    "rw=randread size=16k io_size=40k norandommap=1",
    "rw=randread size=64k io_size=50% loops=2",
    "rw=randread filesize=128k size=16k",
    "rw=randread filesize=16k size=32k norandommap=1",
    "rw=randread size=64k filename=four.a:four.b",
    "rw=randread size=64k io_size=128k random_distribution=zipf:1.2",
    "rw=randwrite size=40k loops=2",
    "rw=randread size=256k rate_iops=500 ramp_time=50ms io_size=128k",
    "rw=randread size=64k rate_iops=500 ramp_time=50ms loops=2",
    "rw=randrw size=64k",
    "rw=rw size=64k",
];

#[test]
fn operations_match_the_iologs_of_fio() {
    if !has_fio() {
        return;
    }
    let scratch = Scratch::new("does");
    let jobs: Vec<&str> = IN_ORDER.iter().chain(AT_RANDOM).copied().collect();
    let text = |log: bool| {
        let section = |(index, job): (usize, &&str)| {
            let log = if log { format!("write_iolog=log{index}\n") } else { String::new() };
            format!("[j{index}]\nioengine=psync\n{}\n{log}", job.replace(' ', "\n"))
        };
        jobs.iter().enumerate().map(section).collect::<String>()
    };
    let path = scratch.write("job.fio", &text(true));
    let status = Command::new("fio").current_dir(&scratch.0).arg("--output=out").arg(path).status();
    assert!(status.unwrap().success(), "fio runs the table");
    let ours = JobFile::parse(&text(false)).unwrap();
    let workload = Workload::new(&ours, FileSource::Modelled, 7).unwrap();
    for file in &workload.files {
        let real_bytes = fs::metadata(scratch.0.join(&file.name)).unwrap().len();
        assert_eq!(file.bytes, real_bytes, "the size of {}", file.name);
    }
    for (index, process) in workload.processes.into_iter().enumerate() {
        let log = fs::read_to_string(scratch.0.join(format!("log{index}"))).unwrap();
        let (ours, theirs) = (our_steps(process), steps_of_iolog(&log));
        if index < IN_ORDER.len() {
            assert_eq!(ours, theirs, "{}", jobs[index]);
        } else {
            assert_eq!(totals(&ours), totals(&theirs), "{}", jobs[index]);
        }
        if jobs[index].contains("rw=rand") && jobs[index].ends_with("offset=6k") {
            assert_eq!(places(&ours), places(&theirs), "the blocks of {}", jobs[index]);
        }
    }
}

/// Number of operations and bytes.
fn totals(steps: &[Step]) -> (usize, u64) {
    (steps.len(), steps.iter().map(|step| step.2).sum())
}

/// Sorted offsets.
fn places(steps: &[Step]) -> Vec<u64> {
    let mut places: Vec<u64> = steps.iter().map(|step| step.1).collect();
    places.sort_unstable();
    places
}

/// `fio --minimal` prints one line per group. Field 6 is KiB read (fio's manual, "Terse output").
#[test]
fn processes_of_a_job_move_as_many_bytes_as_in_fio() {
    if !has_fio() {
        return;
    }
    let scratch = Scratch::new("clones");
    let text =
        "[j]\nrw=randread\nbs=4k\nsize=64k\nnumjobs=3\nfilename=x\nloops=2\ngroup_reporting\n";
    let path = scratch.write("job.fio", text);
    let output =
        Command::new("fio").current_dir(&scratch.0).arg("--minimal").arg(path).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    let kib: u64 = line.split(';').nth(5).unwrap().parse().unwrap();
    let workload = Workload::new(&JobFile::parse(text).unwrap(), FileSource::Modelled, 1).unwrap();
    let planned: u64 = workload.processes.iter().filter_map(Process::bytes_planned).sum();
    let done: u64 = workload.processes.into_iter().flat_map(our_steps).map(|step| step.2).sum();
    assert_eq!((planned, done), (kib << 10, kib << 10));
}

#[test]
fn every_example_job_is_accepted() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "fio"));
    assert!(!paths.is_empty(), "there are examples");
    let has_fio = has_fio();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("; "), "{}: the first lines say what it shows", path.display());
        let jobs =
            JobFile::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let workload = Workload::new(&jobs, FileSource::Modelled, 1).unwrap();
        assert!(!workload.processes.is_empty());
        // `ioengine=raw` exists only here. fio checks the name of an engine only when it runs.
        let is_fios = !jobs.has_raw();
        assert!(!has_fio || !is_fios || is_read_by_fio(&path), "fio and {}", path.display());
    }
}

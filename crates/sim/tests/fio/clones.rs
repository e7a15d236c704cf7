//! Processes of one job (`numjobs`) and sizes of files, held against fio itself.
//!
//! The iolog of fio has one file for all processes of a job. The places come from the latency logs
//! instead (`write_lat_log` with `log_offset`). fio makes the files, because without storage it
//! does not see how long a file is.

use std::fs;
use std::process::Command;

use readpath_sim::job::JobFile;
use readpath_sim::workload::{FileSource, Workload};

use super::oracle::{Scratch, Step, has_fio, our_steps};

/// Jobs of three processes each.
const JOBS: &[&str] = &[
    "rw=read bs=4k size=64k offset_increment=64k",
    "rw=read bs=4k filesize=256k size=50% offset_increment=64k",
    "rw=read bs=4k nrfiles=2 size=64k offset_increment=20k",
    "rw=read bs=4k filesize=300k filename=shared.a offset=1000 offset_increment=10%",
    "rw=read bs=4k filesize=300k filename=shared.b offset=10% offset_increment=1000",
    "rw=read bs=12k filesize=600k filename=shared.c offset=33% offset_increment=5%",
    "rw=read filesize=300k filename=shared.d offset=1000 offset_increment=10% offset_align=64k",
    "rw=read bs=4k,4k,512 filesize=300001 filename=shared.e offset=10%",
    "rw=read bs=4k,4k,512 filesize=300001 filename=shared.f size=50%",
    "rw=randread bs=4k size=400k norandommap randseed=42",
    "rw=randread bs=4k size=400k randseed=42 loops=2",
    "rw=randread bs=4k size=400k random_distribution=zipf:1.2",
    "rw=randread bs=4k size=400k random_distribution=zipf:1.2 randseed=42",
    "rw=randrw bsrange=4k-8k size=400k allrandrepeat=1 randseed=7 loops=2",
    "rw=randrw bsrange=4k-8k size=400k allrandrepeat=1 randrepeat=0",
    "rw=read bs=4k nrfiles=4 filesize=64k-256k",
    "rw=read bs=512 nrfiles=4 filesize=1000-128k",
    "rw=randread bs=4k,4k,512 nrfiles=4 filesize=64k-256k randseed=5",
    "rw=randread bs=4k filesize=64k-256k randrepeat=0 randseed=5",
    "rw=randwrite bs=4k nrfiles=3 filesize=64k-256k size=128k allrandrepeat=1",
];

/// Operations in a latency log of fio: `time, latency, direction, length, offset, priority`. The
/// direction is 0 for reads, 1 for writes and 2 for trims.
fn steps_of_latency_log(text: &str) -> Vec<Step> {
    let step = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |index: usize| fields[index].parse::<u64>().expect("a number");
        (number(2) == 1, number(4), number(3))
    };
    text.lines().map(step).collect()
}

#[test]
fn clones_of_a_job_have_the_offsets_of_fio() {
    if !has_fio() {
        return;
    }
    let scratch = Scratch::new("clones-offsets");
    let mut differing = Vec::new();
    for (index, job) in JOBS.iter().enumerate() {
        // The name is in the names of the files, which no two jobs share.
        let options = job.replace(' ', "\n");
        let text = format!("[j{index}]\nnumjobs=3\n{options}\n");
        let logged = format!("{text}ioengine=psync\nwrite_lat_log=l{index}\nlog_offset=1\n");
        let path = scratch.write("job.fio", &logged);
        let job_file = JobFile::parse(&text).unwrap();
        // A percentage is of a file that exists before fio starts.
        let is_made_before = !job_file.jobs[0].file_names.is_empty();
        if let ([name], Some((bytes, _))) =
            (&*job_file.jobs[0].file_names, job_file.jobs[0].file_bytes)
        {
            fs::File::create(scratch.0.join(name)).unwrap().set_len(bytes).unwrap();
        }
        let mut fio = Command::new("fio");
        let ran = fio.current_dir(&scratch.0).arg("--output=out").arg(path).status().unwrap();
        assert!(ran.success(), "fio runs {job}");
        let existing = |name: &str| Some(fs::metadata(scratch.0.join(name)).ok()?.len());
        let source = match is_made_before {
            true => FileSource::Existing(&existing),
            false => FileSource::Modelled,
        };
        let workload = Workload::new(&job_file, source, 1).unwrap();
        assert_eq!(workload.processes.len(), 3, "{job}");
        for file in &workload.files {
            let bytes = fs::metadata(scratch.0.join(&file.name)).map(|file| file.len()).ok();
            if bytes != Some(file.bytes) {
                differing.push(format!("{job}: {} has {bytes:?} in fio", file.name));
            }
        }
        for (number, process) in workload.processes.into_iter().enumerate() {
            let log = scratch.0.join(format!("l{index}_lat.{}.log", number + 1));
            let theirs = steps_of_latency_log(&fs::read_to_string(log).unwrap());
            let ours = our_steps(process);
            assert!(!theirs.is_empty(), "fio moves data in {job}");
            if ours != theirs {
                let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
                let [first, expected] = [&ours, &theirs].map(|steps| steps.get(at.unwrap_or(0)));
                differing.push(format!(
                    "{job}: process {number} has {} and {} steps, at {at:?} {first:?} {expected:?}",
                    ours.len(),
                    theirs.len()
                ));
            }
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

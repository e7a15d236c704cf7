//! Deterministic jobs of fio: equal offsets and sizes in equal order.
//!
//! Each job runs in fio without storage (`ioengine=null`), which logs its operations.

use std::fs;
use std::process::Command;

use readpath_sim::job::JobFile;
use readpath_sim::workload::{FileSource, Workload};

use super::oracle::{Scratch, has_fio, our_steps, steps_of_iolog};

/// Jobs whose offsets fio draws from its seeds.
const JOBS: &[&str] = &[
    "rw=randread bs=4k size=4m",
    "rw=randread bs=4k size=4m norandommap",
    "rw=randread bs=16k size=4m randseed=42",
    "rw=randread bs=4k size=4m randrepeat=0 randseed=42",
    "rw=randread bs=8k size=1g io_size=4m",
    "rw=randread bs=4k size=1m loops=3",
    "rw=randread bs=4k size=1m io_size=3m",
    "rw=randwrite bs=4k size=2m",
    "rw=randread bs=4k size=4m random_generator=tausworthe64",
    "rw=randread bs=4k size=3m random_generator=lfsr",
    "rw=randread bs=4k size=1m random_generator=lfsr loops=2",
    "rw=randrw bs=4k size=4m",
    "rw=randrw bs=4k size=4m rwmixread=75",
    "rw=rw bs=4k size=4m rwmixwrite=20",
    "rw=randrw bs=4k,16k size=4m norandommap",
    "rw=rw bs=4k,16k size=4m loops=2",
    "rw=randrw bssplit=4k/60:16k/40 size=4m",
    "rw=randread bs=4k filesize=16m size=1m",
    "rw=randread bs=4k size=4m percentage_random=30 norandommap",
    "rw=write bs=4k size=4m bsrange=4k-16k nrfiles=3",
    "rw=read bsrange=4k-64k size=8m",
    "rw=write bsrange=512-64k size=4m",
    "rw=read bs_unaligned bsrange=3k-20k size=1m",
    "rw=read bssplit=4k/50:64k/30:32k/20 size=8m",
    "rw=randread bssplit=4k/10:64k/50:32k/40 size=8m norandommap",
    "rw=randread bssplit=4k/60:16k/40 size=4m",
    "rw=randread bs=4k size=4m percentage_random=60",
    "rw=randread:8 bs=4k size=4m",
    "rw=randread:4 rw_sequencer=identical bs=4k size=4m norandommap number_ios=200",
    "rw=read:8k bs=4k size=4m io_size=1m",
    "rw=read:-8k bs=4k size=1m number_ios=100",
    "rw=randread bs=4k size=4m blockalign=16k norandommap",
    "rw=randread bs=4k size=4m offset=1m",
    "rw=randread bs=4k size=4m number_ios=100",
    "rw=read bs=4k size=16m zonemode=strided zonesize=64k zonerange=256k zoneskip=64k number_ios=100",
    "rw=randread bs=4k size=16m zonemode=strided zonesize=64k zonerange=256k zoneskip=64k number_ios=100 norandommap",
    "rw=randread bs=4k size=64m io_size=4m random_distribution=zoned:60/10:30/20:8/30:2/40 norandommap",
    "rw=randread bs=4k size=4m number_ios=200 random_distribution=zipf",
    "rw=randread bs=4k size=12345k number_ios=300 random_distribution=zipf:0.8",
    "rw=randread bs=4k size=1g number_ios=300 random_distribution=zipf:1.2:0.3",
    "rw=randread bs=4k size=4m number_ios=100 random_distribution=zipf randseed=42",
    "rw=randread bs=4k size=4m number_ios=100 random_distribution=zipf randrepeat=0 randseed=42",
    "rw=randread bs=4k size=64k loops=3 random_distribution=zipf:1.2",
    "rw=randrw bs=4k size=4m number_ios=200 random_distribution=zipf:1.2",
    "rw=randread bs=4k,16k size=4m number_ios=200 random_distribution=zipf:1.2",
    "rw=randread bs=4k filesize=16m size=1m random_distribution=zipf:1.2",
    "rw=randread bs=4k size=4m offset=1m number_ios=200 random_distribution=zipf:1.2",
    "rw=randread bs=4k size=4m nrfiles=3 number_ios=200 random_distribution=zipf:1.2",
    "rw=randread bs=4k size=4m directory=d number_ios=200 random_distribution=zipf:1.2",
    "rw=randread bs=4k size=4m filename=a-long-name-of-a-file.data number_ios=200 random_distribution=zipf:1.2",
    "rw=randread bs=4k size=4m number_ios=200 random_distribution=pareto",
    "rw=randread bs=4k size=12345k number_ios=200 random_distribution=pareto:0.5:0.7",
    "rw=randread bs=4k size=4m number_ios=200 random_distribution=normal:10",
    "rw=randread bs=4k size=12345k number_ios=200 random_distribution=normal:0",
    "rw=randread bs=4k size=12345k number_ios=200 random_distribution=normal:80:0.2",
    "rw=randrw bs=4k size=12345k number_ios=200 random_distribution=normal:3.5:0.9",
    "rw=randread bs=4k size=64m io_size=4m random_distribution=zoned:50/5:30/15:20/ norandommap",
    "rw=randread bs=4k size=64m io_size=4m random_distribution=zoned_abs:60/4m:40/20m norandommap",
    "rw=randread bs=4k size=64m io_size=4m random_distribution=zoned:60/10:30/20:8/30:2/40",
    "rw=randread bs=4k size=4m nrfiles=4",
    "rw=read bs=4k size=4m nrfiles=4 file_service_type=roundrobin:8",
    "rw=read bs=4k size=4m nrfiles=4 file_service_type=sequential",
    "rw=read bs=4k size=4m nrfiles=4 file_service_type=random",
    "rw=randrw bsrange=4k-8k size=1m allrandrepeat=1 loops=2",
    "rw=randrw bsrange=4k-8k size=1m allrandrepeat=1 randrepeat=0",
    "rw=randrw bsrange=4k-8k size=1m allrandrepeat=1 randseed=7",
    "rw=randrw bs=4k size=1m allrandrepeat=1 random_distribution=zipf:1.2 randseed=6",
    "rw=randrw bssplit=4k/0:8k/100 size=1m number_ios=90",
    "rw=randread bssplit=4k/100:64k/0 size=1m io_size=1100k",
    "rw=randread size=396k bs=4k random_distribution=zoned:33/33:33/33:34/34 norandommap",
    "rw=randread size=404k bs=4k random_distribution=zoned_abs:20/2k:20/6k:60/100k norandommap",
    "rw=write bs=4k nrfiles=3 size=96k fsync=1",
    "rw=randrw bs=4k nrfiles=3 size=1m fsync=3 fdatasync=2 file_service_type=random:4",
    "rw=read bs=4k nrfiles=5 size=100k openfiles=2",
    "rw=read bs=4k nrfiles=5 size=100k openfiles=2 file_service_type=random",
    "rw=randread bs=4k nrfiles=4 size=100k openfiles=3 file_service_type=roundrobin:3 loops=2",
    "rw=read bs=4k nrfiles=5 size=100k openfiles=3 file_service_type=sequential",
    "rw=write bs=4k size=1m verify=crc32c",
    "rw=randwrite bs=4k size=1m verify=md5",
];

/// Each job has three processes with different offsets.
#[test]
fn offsets_match_fio() {
    if !has_fio() {
        return;
    }
    let scratch = Scratch::new("places");
    fs::create_dir(scratch.0.join("d")).unwrap();
    // One file per job, because the number of a process is part of its seeds.
    let mut differing = Vec::new();
    for (index, job) in JOBS.iter().enumerate() {
        let options = job.replace(' ', "\n");
        let text = |log: &str| format!("[a]\n{options}\n{log}\n[b]\n{options}\n{log}\n");
        let logged = format!("ioengine=null\nwrite_iolog=log{index}");
        let mut theirs = Vec::new();
        let path = scratch.write(
            "job.fio",
            &text(&logged).replace(
                &format!("[b]\n{options}\n{logged}"),
                &format!("[b]\n{options}\nioengine=null\nwrite_iolog=second{index}"),
            ),
        );
        let run =
            Command::new("fio").current_dir(&scratch.0).arg("--output=out").arg(path).status();
        assert!(run.unwrap().success(), "fio runs {job}");
        for log in ["log", "second"] {
            let log = fs::read_to_string(scratch.0.join(format!("{log}{index}"))).unwrap();
            theirs.push(steps_of_iolog(&log));
        }
        let workload =
            Workload::new(&JobFile::parse(&text("")).unwrap(), FileSource::Modelled, 1).unwrap();
        for (process, theirs) in workload.processes.into_iter().zip(theirs) {
            let ours = our_steps(process);
            let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
            if ours != theirs {
                differing.push(format!(
                    "{job}: {} and {} steps, differ at {at:?}: {:?} {:?}",
                    ours.len(),
                    theirs.len(),
                    at.map(|at| &ours[at..ours.len().min(at + 4)]),
                    at.map(|at| &theirs[at..theirs.len().min(at + 4)]),
                ));
                break;
            }
        }
    }
    assert!(
        differing.is_empty(),
        "{} of {}:\n{}",
        differing.len(),
        JOBS.len(),
        differing.join("\n")
    );
}

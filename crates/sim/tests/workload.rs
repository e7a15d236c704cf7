//! Workloads: layouts and sequences worked by hand, and properties of any job.

use std::fmt;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use readpath_core::readahead::Advice;
use readpath_core::request::Op;
use readpath_core::unit::Time;
use readpath_sim::job::JobFile;
use readpath_sim::operation_log::{LogKind, LogSink, ProcessLog};
use readpath_sim::workload::{
    FileSource, NextAction, Process, ProcessOperation, Workload, WorkloadError, WorkloadFile,
};

fn workload(text: &str) -> Workload {
    Workload::new(&JobFile::parse(text).unwrap(), FileSource::Modelled, 1).unwrap()
}

fn process(options: &str) -> Process {
    workload(&format!("[j]\n{options}\n")).processes.remove(0)
}

/// Runs a process to its end. Operations take `service` each, all in parallel. Returns each
/// operation with its issue time, and the end time.
fn run(mut process: Process, service: Time, most: usize) -> (Vec<(Time, ProcessOperation)>, Time) {
    let (mut now, mut issued, mut ends) = (Time::ZERO, Vec::new(), Vec::<Time>::new());
    loop {
        match process.next(now) {
            NextAction::Operation(operation) => {
                issued.push((now, operation));
                ends.push(now + service);
                if issued.len() == most {
                    return (issued, now);
                }
            }
            NextAction::WaitForCompletion => {
                now = now.max(ends.remove(0));
                process.completed(now);
            }
            NextAction::WaitUntil(time) => {
                assert!(ends.is_empty() && time > now, "it sleeps with nothing in flight");
                now = time;
            }
            NextAction::Sync { .. } => unreachable!("the job never syncs"),
            NextAction::Ended => {
                assert!(ends.is_empty(), "it ends with nothing in flight");
                return (issued, now);
            }
        }
    }
}

fn operations(options: &str) -> Vec<ProcessOperation> {
    let (issued, _) = run(process(options), Time::from_us(100), 1_000_000);
    issued.into_iter().map(|(_, operation)| operation).collect()
}

fn offsets(options: &str) -> Vec<u64> {
    operations(options).iter().map(|operation| operation.offset).collect()
}

fn file(name: &str, bytes: u64) -> WorkloadFile {
    WorkloadFile { name: name.to_owned(), bytes }
}

#[test]
fn files_are_named_as_fio_names_them() {
    let own = workload("[j]\nrw=read\nsize=64k\nnumjobs=2\ndirectory=/d\n");
    assert_eq!(own.files, [file("/d/j.0.0", 65_536), file("/d/j.1.0", 65_536)]);
    let shared = workload("[j]\nrw=read\nsize=64k\nnumjobs=2\nfilename=x:y\n");
    assert_eq!(shared.files, [file("x", 32_768), file("y", 32_768)]);
    let used: Vec<Vec<u32>> =
        shared.processes.iter().map(|p| p.files().iter().map(|id| id.0).collect()).collect();
    assert_eq!(used, [[0, 1], [0, 1]]);
    let offset = workload("[j]\nrw=read\nsize=64k\noffset=8k\n");
    assert_eq!(offset.files, [file("j.0.0", 73_728)]);
}

#[test]
fn one_real_file_replaces_all_files_of_the_job() {
    let jobs = JobFile::parse("[j]\nrw=read\nfilename=x:y\nnumjobs=3\n").unwrap();
    let placement = FileSource::One { name: "real", bytes: 1 << 20 };
    let workload = Workload::new(&jobs, placement, 1).unwrap();
    assert_eq!(workload.files, [file("real", 1 << 20)]);
    assert_eq!(workload.processes[2].bytes_planned(), Some(1 << 20));
}

#[test]
fn a_job_that_does_not_fit_is_refused() {
    let lay = |options: &str, bytes: Option<u64>| {
        let jobs = JobFile::parse(&format!("[j]\nrw=read\n{options}\n")).unwrap();
        let size = move |_: &str| bytes;
        Workload::new(&jobs, FileSource::Existing(&size), 1).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(lay("size=64k", Some(65_536)), Ok(()));
    assert_eq!(
        lay("size=64k\noffset=1k", Some(65_536)).unwrap_err(),
        "job `j`: `j.0.0` has 65536 bytes, and the job uses 66560 (offset and size); \
         make `size` smaller or the file larger"
    );
    assert_eq!(
        lay("size=64k\nfilename=/x", None).unwrap_err(),
        "job `j`: there is no file `/x`; create it, or name another with `filename=`"
    );
    assert_eq!(
        lay("size=2k", Some(65_536)).unwrap_err(),
        "job `j`: a block of 4096 bytes does not fit into the 2048 bytes that it uses of \
         `j.0.0`; make `bs` smaller or `size` larger"
    );
    let jobs = JobFile::parse("[j]\nrw=read\nsize=50%\n").unwrap();
    let unknown = Workload::new(&jobs, FileSource::Modelled, 1).unwrap_err();
    assert_eq!(
        unknown,
        WorkloadError::UnknownSize { job: "j".to_owned(), file: "j.0.0".to_owned() }
    );
    let many = JobFile::parse("[j]\nrw=read\nsize=4k\nnumjobs=5000\n").unwrap();
    assert!(Workload::new(&many, FileSource::Modelled, 1).is_err());
}

/// fio 3.33 on a file of 102 400 bytes: the offsets of its iologs.
#[test]
fn percentages_are_of_the_whole_file() {
    let offsets = |options: &str| {
        let jobs = JobFile::parse(&format!("[j]\nrw=read\nbs=4k\n{options}\n")).unwrap();
        let mut workload =
            Workload::new(&jobs, FileSource::Existing(&|_| Some(102_400)), 1).unwrap();
        let (issued, _) = run(workload.processes.remove(0), Time::ZERO, 1000);
        issued.iter().map(|(_, operation)| operation.offset).collect::<Vec<_>>()
    };
    let upper_two_thirds: Vec<u64> = (9..25).map(|block| block * 4096).collect();
    assert_eq!(offsets("offset=33%"), upper_two_thirds);
    assert_eq!(offsets("offset=33%\nfilesize=100k"), upper_two_thirds);
    assert_eq!(offsets("size=50%\noffset=80%\nbs=8k"), [81_920, 90_112]);
    assert_eq!(offsets("size=100%\noffset=80%\nbs=8k"), [81_920, 90_112]);
    assert_eq!(offsets("size=33%").len(), 8);
    assert_eq!(offsets("size=33%\nrw=randread\nnorandommap").len(), 8);
}

#[test]
fn stonewalls_number_the_phases() {
    let text = "[global]\nrw=read\nsize=4k\n[a]\nstonewall\n[b]\nnumjobs=2\n[c]\nstonewall\nnumjobs=2\n[d]\nstartdelay=5\n";
    let workload = workload(text);
    let phases: Vec<u32> = workload.processes.iter().map(Process::phase).collect();
    assert_eq!(phases, [0, 0, 0, 1, 1, 1]);
    assert_eq!(workload.processes[5].start_delay(), Time::from_s(5));
    let jobs: Vec<_> = workload.processes.iter().map(|p| (p.job(), p.clone_index())).collect();
    assert_eq!(jobs, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]);
}

/// strace on fio 3.33 shows these calls.
#[test]
fn advice_matches_the_calls_of_fio() {
    let advice = |options: &str| {
        let process = process(&format!("size=64k\n{options}"));
        (process.advice(), process.mapping_advice())
    };
    use Advice::{Normal, Random, Sequential};
    assert_eq!(advice("rw=read"), (Sequential, Normal));
    assert_eq!(advice("rw=randrw"), (Random, Normal));
    assert_eq!(advice("rw=randread\nioengine=mmap"), (Random, Random));
    assert_eq!(advice("rw=read\nioengine=mmap"), (Sequential, Sequential));
    assert_eq!(advice("rw=randrw\nioengine=mmap\nfadvise_hint=sequential"), (Sequential, Random));
    assert_eq!(advice("rw=randread\nioengine=mmap\nfadvise_hint=0"), (Normal, Normal));
}

/// strace on fio 3.33 with libaio: 96k in blocks of 4k, the sizes of its `io_submit` calls.
#[test]
fn batches_are_submitted_as_fio_submits_them() {
    let submits = |options: &str| {
        let mut process =
            process(&format!("rw=read\nbs=4k\nsize=96k\nioengine=libaio\niodepth=8\n{options}"));
        let (mut sizes, mut batch, mut in_flight) = (Vec::new(), 0, 0);
        loop {
            let next = process.next(Time::ZERO);
            let is_submitted = match next {
                NextAction::Operation(operation) => {
                    batch += 1;
                    in_flight += 1;
                    operation.is_batch_end
                }
                _ => true,
            };
            if is_submitted && batch > 0 {
                sizes.push(std::mem::take(&mut batch));
            }
            match next {
                NextAction::Operation(_) => {}
                NextAction::WaitForCompletion => {
                    for _ in 0..std::mem::take(&mut in_flight) {
                        process.completed(Time::ZERO);
                    }
                }
                NextAction::WaitUntil(_) | NextAction::Sync { .. } => {
                    unreachable!("the job never pauses")
                }
                NextAction::Ended => return sizes,
            }
        }
    };
    assert_eq!(submits("iodepth_batch=4\niodepth_batch_complete=4"), [4, 4, 4, 4, 4, 4]);
    let mut one_by_one = vec![4, 4];
    one_by_one.extend([1; 16]);
    assert_eq!(submits("iodepth_batch=4"), one_by_one);
    assert_eq!(
        submits("iodepth_batch=3\niodepth_batch_complete=4"),
        [3, 3, 2, 1, 3, 3, 1, 2, 2, 1, 3]
    );
}

/// Calls of fio 3.33 in strace with `size=32k` (w: a write, s: fsync, d: fdatasync).
#[test]
fn syncs_are_issued_when_fio_issues_them() {
    let calls = |options: &str| {
        let mut process = process(&format!("rw=write\nbs=4k\nsize=32k\n{options}"));
        let mut calls = String::new();
        loop {
            match process.next(Time::ZERO) {
                NextAction::Operation(_) => calls.push('w'),
                NextAction::WaitForCompletion => process.completed(Time::ZERO),
                NextAction::Sync { is_data_enough } => {
                    calls.push(if is_data_enough { 'd' } else { 's' });
                    process.synced(Time::ZERO);
                }
                NextAction::WaitUntil(_) => unreachable!("the job never pauses"),
                NextAction::Ended => return calls,
            }
        }
    };
    for (options, expected) in [
        ("fsync=1", "wswswswswswswsw"),
        ("fsync=3", "wwwswwwsww"),
        ("fdatasync=2", "wwdwwdwwdww"),
        ("fsync=4\nfdatasync=2", "wwdwwswwdww"),
        ("fsync=8", "wwwwwwww"),
        ("end_fsync=1", "wwwwwwwws"),
        ("fsync=2\nend_fsync=1", "wwswwswwswws"),
        ("fsync=3\nioengine=libaio\niodepth=4", "wwwswwwsww"),
        ("fsync=3\nioengine=libaio\niodepth=4\ndirect=1", "wwwswwwsww"),
        ("end_fsync=1\nioengine=libaio\niodepth=4", "wwwwwwwws"),
        ("rw=read\nfsync=1\nend_fsync=1", "wwwwwwww"),
    ] {
        assert_eq!(calls(options), expected, "{options}");
    }
}

/// Lines of a log, kept in memory.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl LogSink for Lines {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0.lock().unwrap().push(line.to_string());
    }

    fn time_base(&mut self, now: Time) -> Time {
        now
    }
}

/// Returns the iolog of a job of 24 writes with these options.
fn iolog_of_writes(options: &str) -> Vec<String> {
    let text = format!("[j]\nrw=write\nbs=4k\nsize=96k\nfsync=4\nwrite_iolog=log\n{options}\n");
    let jobs = JobFile::parse(&text).unwrap();
    let mut workload = Workload::new(&jobs, FileSource::Modelled, 1).unwrap();
    let mut process = workload.processes.remove(0);
    let lines = Lines::default();
    let sinks: Vec<(LogKind, Box<dyn LogSink>)> = vec![(LogKind::Trace, Box::new(lines.clone()))];
    let log = ProcessLog::new(&jobs.jobs[0], &process.files(), &workload.files, sinks);
    process.keep_log(log.unwrap());
    loop {
        match process.next(Time::ZERO) {
            NextAction::Operation(_) => process.completed(Time::ZERO),
            NextAction::Sync { .. } => process.synced(Time::ZERO),
            NextAction::Ended => break,
            next => unreachable!("everything issued is complete: {next:?}"),
        }
    }
    lines.0.lock().unwrap().clone()
}

/// The `sync` lines of fio 3.33 in the iolog of this job: one for the file whose turn it is, and at
/// the end one for each file. With eight files, the first sync opens the fifth.
#[test]
fn a_sync_has_one_line_in_the_iolog() {
    for (options, expected) in [
        ("nrfiles=3\nend_fsync=1", "j.0.1 j.0.0 j.0.2 j.0.1 j.0.0 j.0.0 j.0.1 j.0.2"),
        ("nrfiles=8", "j.0.4 j.0.1 j.0.6 j.0.3 j.0.0"),
    ] {
        let lines = iolog_of_writes(options);
        let synced = lines.iter().filter(|line| line.contains(" sync "));
        let synced: Vec<&str> = synced.map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert_eq!(synced.join(" "), expected, "{options}");
    }
    let lines = iolog_of_writes("nrfiles=8");
    let first = lines.iter().position(|line| line.contains(" sync ")).unwrap();
    assert_eq!(lines[first - 1..=first], ["0 j.0.4 open", "0 j.0.4 sync 0 0"]);
}

/// As in fio 3.33, the log has the operations of the search for a depth, and none of the ramp time.
/// Reads of 1 ms, one at a time: one of 10 reads starts in the last millisecond.
#[test]
fn value_logs_begin_after_the_ramp_time() {
    for (options, expected) in
        [("latency_target=10ms\nlatency_window=1s", 10), ("ramp_time=9ms", 1)]
    {
        let text = format!("[j]\nrw=read\nbs=4k\nsize=40k\nwrite_lat_log=p\n{options}\n");
        let jobs = JobFile::parse(&text).unwrap();
        let mut workload = Workload::new(&jobs, FileSource::Modelled, 1).unwrap();
        let mut process = workload.processes.remove(0);
        let lines = Lines::default();
        let sinks: Vec<(LogKind, Box<dyn LogSink>)> =
            vec![(LogKind::Latency, Box::new(lines.clone()))];
        let log = ProcessLog::new(&jobs.jobs[0], &process.files(), &workload.files, sinks);
        process.keep_log(log.unwrap());
        for issued_ms in 0..10 {
            let (issued, ended) = (Time::from_ms(issued_ms), Time::from_ms(issued_ms + 1));
            let NextAction::Operation(operation) = process.next(issued) else {
                panic!("{options}: no read at {issued_ms} ms")
            };
            process.record_latency(ended, issued, &operation, operation.bytes);
            process.completed(ended);
        }
        assert_eq!(lines.0.lock().unwrap().len(), expected, "{options}");
    }
}

/// fio 3.33 has 1,102 operations, of which one reaches out of its zone. The others are cut at the
/// end of the zone.
#[test]
fn operations_at_the_end_of_a_zone_are_cut() {
    let job =
        "rw=randread\nbssplit=512/:1k/:2k/\nsize=1m\nzonemode=strided\nzonesize=64k\nzonerange=64k";
    let (issued, _) = run(process(job), Time::ZERO, 5000);
    assert_eq!(issued.len(), 1102);
    let zone_bytes = 64 << 10;
    let is_past =
        |operation: &ProcessOperation| operation.offset % zone_bytes + operation.bytes > zone_bytes;
    assert!(issued.iter().filter(|(_, operation)| is_past(operation)).count() <= 1);
}

/// fio 3.33, `iodepth=8 thinktime=20000 thinktime_blocks=2`, 16 blocks: a run time of 40 ms,
/// and of its operations 3 issued at depth 1, 4 at 2–3, 7 at 4–7, 2 at 8.
#[test]
fn pauses_wait_for_all_in_flight() {
    let job = "rw=read\nsize=64k\nioengine=libaio\niodepth=8\nthinktime=20000\nthinktime_blocks=2";
    let (issued, end) = run(process(job), Time::ZERO, 1000);
    assert_eq!(end, Time::from_ms(40));
    let at = |ms| issued.iter().filter(|(time, _)| *time == Time::from_ms(ms)).count();
    assert_eq!((at(0), at(20), at(40)), (9, 1, 6));
}

/// fio 3.33: `runtime=100ms thinktime=30000` took 124 ms and did four operations, with
/// `size=64k`, and with `size=8k time_based` as well. The pause after the last one counts.
#[test]
fn runtime_limit_ends_the_job_after_a_pause() {
    for size in ["size=64k", "size=8k\ntime_based"] {
        let job = format!("rw=read\n{size}\nruntime=100ms\nthinktime=30000");
        let (issued, end) = run(process(&job), Time::from_us(10), 1000);
        assert_eq!((issued.len(), end.ns()), (4, 120_040_000));
    }
    let (issued, end) = run(process("rw=read\nsize=4k\nthinktime=500ms"), Time::ZERO, 1000);
    assert_eq!((issued.len(), end), (1, Time::from_ms(500)));
}

#[test]
fn time_based_jobs_start_over() {
    assert_eq!(offsets("rw=read\nsize=8k\ntime_based\nruntime=450us"), [0, 4096, 0, 4096, 0]);
}

/// All completions come at once: each one taken allows a new operation.
#[test]
fn completions_are_collected_up_to_iodepth_batch_complete() {
    let job = "rw=read\nsize=1m\nioengine=io_uring\niodepth=8\niodepth_batch_complete=4";
    let mut process = process(job);
    let issued = |process: &mut Process| {
        (0..).take_while(|_| matches!(process.next(Time::ZERO), NextAction::Operation(_))).count()
    };
    assert_eq!(issued(&mut process), 8);
    for _ in 0..3 {
        process.completed(Time::ZERO);
        assert_eq!(issued(&mut process), 0);
    }
    process.completed(Time::ZERO);
    assert_eq!(issued(&mut process), 4);
}

/// 100 000 draws at 70 %: a standard deviation of 145, so 68 to 72 % is far outside chance.
#[test]
fn mixes_keep_their_ratio() {
    for rw in ["rw", "randrw"] {
        let all = operations(&format!("rw={rw}\nrwmixread=70\nbs=4k\nsize=400m"));
        let reads = all.iter().filter(|operation| operation.op == Op::Read).count();
        let percent = reads as f64 / all.len() as f64 * 100.0;
        assert!((68.0..72.0).contains(&percent), "{rw}: {percent} % reads");
    }
}

/// Zipf distribution with theta 1.2 over 16 blocks: the first block is chosen with a probability of
/// 1 / (1 + 2^-1.2 + … + 16^-1.2) = 1 / 2.764 (worked by hand: 36 %).
#[test]
fn zipf_favours_one_block() {
    let all = offsets("rw=randread\nsize=64k\nio_size=40m\nrandom_distribution=zipf:1.2");
    let mut counts = [0_usize; 16];
    all.iter().for_each(|offset| counts[(offset / 4096) as usize] += 1);
    counts.sort_unstable();
    let share = |count: usize| count as f64 / all.len() as f64;
    let sum: f64 = (1..=16).map(|rank| f64::from(rank).powf(-1.2)).sum();
    assert!((share(counts[15]) - 1.0 / sum).abs() < 0.02, "{counts:?}, sum {sum}");
    assert!((share(counts[14]) - 2_f64.powf(-1.2) / sum).abs() < 0.02, "{counts:?}");
}

#[test]
fn operations_depend_only_on_the_seeds() {
    let of = |run_seed, randseed| {
        let text =
            format!("[j]\nrw=randread\nsize=1m\nrandrepeat=0\nrandseed={randseed}\nnumjobs=2\n");
        let jobs = JobFile::parse(&text).unwrap();
        let workload = Workload::new(&jobs, FileSource::Modelled, run_seed).unwrap();
        let all = workload.processes.into_iter();
        all.map(|process| run(process, Time::ZERO, 1000).0).collect::<Vec<_>>()
    };
    assert_eq!(of(1, 1), of(1, 1));
    assert_ne!(of(1, 1), of(2, 1));
    assert_ne!(of(1, 1), of(1, 2));
    let processes = of(1, 1);
    assert_ne!(processes[0], processes[1]);
}

proptest! {
    /// One random pass takes each block of the area exactly once, and nothing outside it.
    #[test]
    fn a_random_pass_covers_the_area_once(
        blocks in 1_u64..300,
        block_bytes in 1_u64..10_000,
        rest in 0_u64..10_000,
        offset in 0_u64..100_000,
        loops in 1_u64..3,
    ) {
        let rest = rest % block_bytes;
        let size = blocks * block_bytes + rest;
        let mut seen = offsets(&format!(
            "rw=randread\nbs={block_bytes}\nsize={size}\noffset={offset}\nloops={loops}"
        ));
        seen.sort_unstable();
        let want: Vec<u64> = (0..blocks)
            .flat_map(|block| (0..loops).map(move |_| offset + block * block_bytes))
            .collect();
        prop_assert_eq!(seen, want);
    }

    /// The operations of any job stay in its area, on its grid, and within its depth.
    #[test]
    fn operations_stay_in_their_area(
        rw in prop::sample::select(vec!["read", "randread", "rw", "randrw", "randwrite"]),
        more in prop::sample::select(vec![
            "", "norandommap", "random_distribution=zipf:0.8", "loops=2", "io_size=300k",
            "thinktime=5\nthinktime_blocks=3", "iodepth_batch=5\niodepth_batch_complete=3",
        ]),
        read_bytes in 512_u64..20_000,
        write_bytes in 512_u64..20_000,
        size in 20_000_u64..200_000,
        offset in 0_u64..50_000,
        depth in 1_u32..10,
    ) {
        let mut process = process(&format!(
            "rw={rw}\nbs={read_bytes},{write_bytes}\nsize={size}\noffset={offset}\n\
             ioengine=libaio\niodepth={depth}\n{more}"
        ));
        let (mut now, mut in_flight) = (Time::ZERO, 0);
        loop {
            match process.next(now) {
                NextAction::Operation(ProcessOperation { offset: at, bytes, op, .. }) => {
                    let want = if op == Op::Read { read_bytes } else { write_bytes };
                    prop_assert!(at >= offset && at + bytes <= offset + size);
                    // With a common map for reads and writes of two sizes, an operation may be
                    // shortened by blocks that the other kind has taken, as in fio.
                    if rw == "randrw" && read_bytes != write_bytes {
                        prop_assert!(bytes > 0 && bytes <= want);
                    } else {
                        prop_assert_eq!(bytes, want);
                        prop_assert_eq!((at - offset) % bytes, 0);
                    }
                    in_flight += 1;
                    prop_assert!(in_flight <= depth);
                }
                NextAction::WaitForCompletion => {
                    prop_assert!(in_flight > 0);
                    in_flight -= 1;
                    process.completed(now);
                }
                NextAction::WaitUntil(time) => now = time,
                NextAction::Sync { .. } => process.synced(now),
                NextAction::Ended => break,
            }
        }
        prop_assert_eq!(in_flight, 0);
    }
}

/// 100 a second and 100 ms each keep ten in flight in the mean. One in flight would do 10 a second.
/// In fio the process catches up, for any spacing of the operations.
#[test]
fn drawn_times_between_operations_keep_their_rate_on_slow_storage() {
    for kind in ["linear", "poisson"] {
        let options = format!(
            "ioengine=libaio\niodepth=64\nrw=randread\nsize=1g\nrate_iops=100\nruntime=20\n\
             time_based\nrate_process={kind}"
        );
        let (issued, _) = run(process(&options), Time::from_ms(100), 1_000_000);
        let (least, most) = if kind == "linear" { (1950, 2050) } else { (1800, 2200) };
        assert!((least..=most).contains(&issued.len()), "{kind}: {}", issued.len());
    }
}

/// A direction without a rate is free: the other keeps its own.
#[test]
fn a_direction_without_a_rate_is_not_held_back() {
    let options = "rw=randrw\nsize=1g\nrate_iops=100,\nruntime=2\ntime_based";
    let (issued, _) = run(process(options), Time::from_us(100), 1_000_000);
    let reads = issued.iter().filter(|(_, operation)| operation.op == Op::Read).count();
    assert!((195..=205).contains(&reads), "{reads} reads");
    assert!(issued.len() - reads > 10_000, "{} writes", issued.len() - reads);
}

/// No data is moved, however long the job may run.
#[test]
fn create_only_job_moves_no_data() {
    for options in ["create_only=1\nsize=1m", "create_only=1\nsize=1m\ntime_based\nruntime=10"] {
        let (issued, end) = run(process(options), Time::from_us(100), 10);
        assert_eq!((issued.len(), end), (0, Time::ZERO), "{options}");
    }
}

/// The area has 150 blocks of 4 KiB, and the zones end at 610 KiB, in the 153rd. fio 3.33 ends such
/// a job without a message at the first draw of the second zone.
#[test]
fn zones_in_bytes_behind_the_area_are_refused() {
    let job = |zones: &str| {
        let text = format!("[j]\nrw=randread\nsize=600k\nrandom_distribution=zoned_abs:{zones}\n");
        Workload::new(&JobFile::parse(&text).unwrap(), FileSource::Modelled, 1)
    };
    let error = job("50/300k:50/310k").unwrap_err();
    assert!(matches!(error, WorkloadError::ZoneBeyondEnd { .. }), "{error:?}");
    assert!(error.to_string().contains("624640 bytes, and the area has 614400"), "{error}");
    assert!(job("50/300k:50/300k").is_ok());
    // A zone without operations is never drawn.
    assert!(job("100/300k:0/1m").is_ok());
    // Three lengths of 8,192 PiB are more than 2^64 bytes.
    let error = job("50/8192p:30/8192p:20/8192p").unwrap_err();
    assert!(matches!(error, WorkloadError::ZoneBeyondEnd { zones_end: u64::MAX, .. }), "{error:?}");
}

/// 20 KiB hold two operations of 8 KiB. Of the 4 KiB that are left, fio 3.33 draws sizes for ever.
#[test]
fn a_size_without_a_share_is_never_drawn() {
    assert_eq!(offsets("rw=read\nsize=20k\nbssplit=4k/0:8k/100"), [0, 8192]);
}

/// At most 1,048,576 files. Each of nine processes has 65,536 of its own: 589,824 in all. Seventeen
/// processes have too many, and the error gives the number of all of them.
#[test]
fn files_of_earlier_processes_count_once_toward_the_limit() {
    let workload = |processes: u32| {
        let text = format!("[j]\nrw=read\nnrfiles=65536\nfilesize=4k\nnumjobs={processes}\n");
        Workload::new(&JobFile::parse(&text).unwrap(), FileSource::Modelled, 1)
    };
    assert_eq!(workload(9).unwrap().files.len(), 589_824);
    let error = workload(17).err().unwrap().to_string();
    assert!(error.contains("1114112"), "{error}");
}

/// Three times 16,383 PiB are more than 2^64 bytes.
#[test]
fn sums_of_sizes_saturate() {
    for options in ["filesize=16383p\nnrfiles=3", "size=1m\nio_size=16383p\nnumjobs=3"] {
        let text = format!("[j]\nrw=read\n{options}\n");
        let workload = Workload::new(&JobFile::parse(&text).unwrap(), FileSource::Modelled, 1);
        assert_eq!(workload.unwrap().bytes_planned(), Some(u64::MAX), "{options}");
    }
}

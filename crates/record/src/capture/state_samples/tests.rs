//! Activities of small programs whose state is known: they compute, sleep, or wait for something.

use std::io;
use std::process::{Child, Command, Stdio};

use super::descriptor_kind::is_file;
use readpath_trace::recording::DeviceOperation;

use super::*;

/// A program that is ended with the test.
struct Program(Child);

impl Program {
    /// Starts a command of the shell.
    fn shell(command: &str) -> Program {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Program(shell.spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Longest activity of a shell's command after a third of a second, with its share of that time in
/// percent; `None` where the kernel does not report system calls.
fn longest_activity(command: &str) -> Option<(Activity, u64)> {
    let program = Program::shell(command);
    let Some(sampler) = StateSampler::start(program.0.id(), SamplePurpose::Record) else {
        eprintln!("skipped: this kernel does not report the system calls of a child");
        return None;
    };
    let begin = Instant::now();
    thread::sleep(Duration::from_millis(333));
    let length_ns = begin.elapsed().as_nanos() as u64;
    let records = sampler.finish(length_ns);
    let times = records.iter().map(|record| match record {
        Record::TimeSpent(time) => (time.activity, time.wall_ns),
        other => panic!("{other:?}"),
    });
    let times: Vec<(Activity, u64)> = times.collect();
    let total_ns: u64 = times.iter().map(|(_, wall_ns)| wall_ns).sum();
    let (activity, wall_ns) = times.into_iter().max_by_key(|(_, wall_ns)| *wall_ns).unwrap();
    Some((activity, 100 * wall_ns / total_ns))
}

/// Holds that most of the time of a command is one activity. The start of the program takes the
/// rest, much of it on a busy machine.
fn assert_longest(command: &str, expected: &[Activity]) {
    if let Some((activity, percent)) = longest_activity(command) {
        assert!(expected.contains(&activity), "{command}: {activity:?}, {percent} %");
    }
}

#[test]
fn sleeping_program_sleeps() {
    assert_longest("exec sleep 9", &[Activity::Sleep]);
}

/// On a busy machine the program waits for a processor longer than it runs.
#[test]
fn computing_program_runs_or_waits_for_a_processor() {
    let expected = [Activity::Processor, Activity::ProcessorQueue];
    assert_longest("while :; do :; done", &expected);
}

#[test]
fn program_that_reads_a_pipe_waits_for_others() {
    assert_longest("exec cat", &[Activity::Others]);
}

/// The shell waits, and its child sleeps. The sleep comes first in the order of activities.
#[test]
fn children_of_a_program_are_sampled() {
    assert_longest("sleep 9; true", &[Activity::Sleep]);
}

/// The child reads the pipe of the shell, so that nothing but the wait for it remains.
#[test]
fn threads_of_children_that_wait_for_a_pipe_come_before_the_wait_for_them() {
    assert_longest("(read line); true", &[Activity::Others]);
}

#[test]
fn records_sum_to_the_length_of_the_recording() {
    let mut times = Times::default();
    times[Activity::Read as usize] = 700;
    times[Activity::Sleep as usize] = 100;
    let record =
        |activity, wall_ns| Record::TimeSpent(TimeSpent { at_ns: 1000, activity, wall_ns });
    let expected = [(Activity::Read, 700), (Activity::Sleep, 100), (Activity::Unknown, 200)];
    let expected = expected.map(|(activity, wall_ns)| record(activity, wall_ns));
    assert_eq!(to_records(times, 1000), expected);
    // Samples of 800 ns in a recording of 790 ns.
    let record = |activity, wall_ns| Record::TimeSpent(TimeSpent { at_ns: 790, activity, wall_ns });
    let expected = [record(Activity::Read, 690), record(Activity::Sleep, 100)];
    assert_eq!(to_records(times, 790), expected);
}

#[test]
fn nothing_is_recorded_if_nothing_is_known() {
    let mut times = Times::default();
    times[Activity::Unknown as usize] = 700;
    assert_eq!(to_records(times, 1000), []);
}

/// A thread ran 3 ms and waited 1 ms for a processor: a quarter of its time.
#[test]
fn queue_time_is_a_part_of_the_sample() {
    let time = ProcessorTime { running_ns: 3_000_000, queued_ns: 1_000_000 };
    assert_eq!(time.queued_part(2_000_000), 500_000);
    assert_eq!(ProcessorTime::default().queued_part(2_000_000), 0);
}

#[test]
fn pipes_terminals_and_sockets_are_no_files() {
    let own = std::process::id();
    let file = fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let (reader, _writer) = io::pipe().unwrap();
    let number = |descriptor: &dyn std::os::fd::AsRawFd| Some(descriptor.as_raw_fd() as u32);
    assert!(is_file(own, number(&file)));
    assert!(!is_file(own, number(&reader)));
    assert!(!is_file(own, None));
}

/// A first sample of 4 ms: a fiftieth of 200 ms, cut to the longest pause. Later samples of 20 µs
/// come at the shortest pause once the first is a fiftieth of the time.
#[test]
fn a_slow_sample_delays_the_next_ones_a_little() {
    let start = Instant::now();
    let at = |us: u64| start + Duration::from_micros(us);
    let mut cost = SamplingCost::new(start);
    assert_eq!(cost.pause(start, at(4_000)), PAUSE_MAX);
    assert_eq!(cost.pause(at(150_000), at(150_020)), PAUSE_MAX);
    assert_eq!(cost.pause(at(190_000), at(190_020)), Duration::from_micros(202_000 - 190_020));
    assert_eq!(cost.pause(at(300_000), at(300_020)), PAUSE_MIN);
}

/// A file that is removed with the test.
struct ScratchFile(std::path::PathBuf);

impl ScratchFile {
    /// Writes `bytes` bytes to a device.
    fn new(bytes: u64) -> ScratchFile {
        let name = format!("readpath-others-{}", std::process::id());
        let file = ScratchFile(std::env::temp_dir().join(name));
        fs::write(&file.0, vec![1; bytes as usize]).unwrap();
        fs::File::open(&file.0).unwrap().sync_all().unwrap();
        file
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A program reads 16 MiB directly from a disk, next to a program that sleeps: nearly all bytes are
/// of others.
#[test]
fn direct_reads_of_another_program_are_found_on_its_disk() {
    const FILE_BYTES: u64 = 16 << 20;
    let ScratchFile(path) = &ScratchFile::new(FILE_BYTES);
    let number = std::os::linux::fs::MetadataExt::st_dev(&fs::metadata(path).unwrap());
    let disk = u64::from(libc::major(number)) << 20 | u64::from(libc::minor(number));
    if !std::path::Path::new(&format!("/sys/dev/block/{}:{}", disk >> 20, disk & 0xf_ffff)).exists()
    {
        eprintln!("skipped: the folder of temporary files is on no block device");
        return;
    }
    let sleeping = Program::shell("exec sleep 60");
    let (disks, disk_receiver) = mpsc::channel();
    let (sender, requests) = mpsc::channel();
    let mut others = OthersSamples::new(disk_receiver, sender);
    disks.send(disk).unwrap();
    let command = "sleep 0.1; exec dd of=/dev/null bs=64k iflag=direct status=none if=";
    let mut reader = Program::shell(&format!("{command}{}", path.display()));
    let begin = Instant::now();
    let mut has_ended_at = None;
    while has_ended_at.is_none_or(|at: Instant| at.elapsed() < Duration::from_millis(100)) {
        others.sample_if_due([sleeping.0.id()].into_iter());
        if has_ended_at.is_none() && reader.0.try_wait().unwrap().is_some() {
            has_ended_at = Some(Instant::now());
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
    assert!(reader.0.wait().unwrap().success());
    let reads = requests.try_iter().filter(|sampled| sampled.work == DeviceOperation::Read);
    let others_bytes: u64 = reads.map(|sampled| sampled.bytes).sum();
    assert!(others_bytes >= FILE_BYTES / 2, "{others_bytes}");
}

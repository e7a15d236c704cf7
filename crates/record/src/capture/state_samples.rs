//! Wall time of a program by activity, sampled without root.
//!
//! A thread of the recorder samples the states of all threads of the program and of its
//! descendants. `/proc/PID/task/TID/syscall` contains `running`, or the system call in which the
//! thread sleeps with its arguments, or -1 for a page fault. The descriptor among the arguments
//! distinguishes files from pipes and sockets. The time since the last sample counts as one
//! activity, the first that a thread is in ([`Activity::first_of`]), as in a recording by root
//! ([`time_split`](super::time_split)).
//!
//! For a recording, the same thread samples the reads by io_uring ([`uring`]), the page faults of
//! mappings ([`faults`]) and the requests of other programs ([`others_requests`]). For prefetching
//! it samples the touched pages of mappings ([`touches`]).
//!
//! Sampling takes at most a fiftieth of a processor: a longer sample delays the next one. A process
//! that begins and ends between two searches of the descendants is missed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use readpath_os::proc_text;
use readpath_trace::recording::{Activity, OthersSampled, Record, TimeSpent};

mod activities;
mod aio;
mod call_faults;
mod call_kind;
mod descriptor_kind;
mod faults;
mod others_requests;
mod page_tables;
mod thread_times;
mod touches;
mod uring;

use super::group;
use activities::{activity, is_copying};
use call_faults::CallFaults;
use faults::FaultSamples;
pub(super) use faults::SampledFault;
use others_requests::OthersSamples;
pub(super) use thread_times::SampledThread;
use thread_times::{ProcessorTime, ThreadTimes};
pub(super) use touches::SampledTouch;
use touches::TouchSamples;
pub(super) use uring::UringRead;
use uring::UringSamples;

/// Minimum pause between two samples, chosen.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// Maximum pause between two samples, chosen.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Time as a multiple of the samples' own time, within these limits: samples take a fiftieth of it.
const TIME_PER_SAMPLE: u32 = 50;

/// Period of the search for new threads and descendants.
const SEARCH_PERIOD: Duration = Duration::from_millis(10);

/// Pause between two samples of the rings of io_uring.
const RING_PAUSE: Duration = Duration::from_micros(500);

/// Period of the search for rings. While a thread waits for io_uring or AIO and no ring is known,
/// it is [`SEARCH_PERIOD`].
const RING_SEARCH_PERIOD: Duration = Duration::from_millis(100);

/// Maximum number of sampled threads, chosen. A process whose threads would exceed it is left out.
const THREADS_MAX: usize = 4096;

/// A running sampler.
#[derive(Debug)]
pub struct StateSampler {
    /// `None` after the end of the sampling.
    thread: Option<JoinHandle<Times>>,
    /// Result of the thread. All 0 before its end.
    times: Times,
    /// Set to end the thread.
    is_ending: Arc<AtomicBool>,
    /// Reads by io_uring, from the thread. Only for [`SamplePurpose::Record`].
    uring_reads: Receiver<UringRead>,
    /// Page faults, from the thread. Only for [`SamplePurpose::Record`].
    faults: Receiver<SampledFault>,
    /// Touches of mappings, from the thread. Only for [`SamplePurpose::Prefetch`].
    touches: Receiver<SampledTouch>,
    /// Requests of other programs, from the thread. Only for [`SamplePurpose::Record`].
    others_requests: Receiver<OthersSampled>,
    /// Processor times of threads, from the thread. Only for [`SamplePurpose::Record`].
    threads: Receiver<SampledThread>,
    /// Numbers of the disks to watch, to the thread.
    new_disks: Sender<u64>,
}

/// Use of the samples, and the samples that it takes in addition to the activities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplePurpose {
    /// A recording: processor times, reads by io_uring, page faults and requests of other programs.
    Record,
    /// Prefetching: the touched pages of mappings.
    Prefetch,
}

/// Time of each activity in nanoseconds, by the number of the activity.
type Times = [u64; Activity::ALL.len()];

impl StateSampler {
    /// Starts to sample a process and its descendants. `None` if the process has ended, if the
    /// kernel does not report the system calls of its threads to this user, or if no thread can be
    /// started.
    pub fn start(process: u32, purpose: SamplePurpose) -> Option<StateSampler> {
        let first_state = fs::read(format!("/proc/{process}/task/{process}/syscall"));
        first_state.ok()?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let must_end = Arc::clone(&is_ending);
        // The sampling thread sends its findings, and receives the disks to watch.
        let (uring_sender, uring_reads) = mpsc::channel();
        let (fault_sender, faults) = mpsc::channel();
        let (touch_sender, touches) = mpsc::channel();
        let (others_sender, others_requests) = mpsc::channel();
        let (threads_sender, threads) = mpsc::channel();
        let (new_disks, disk_receiver) = mpsc::channel();
        let sample = move || {
            let mut sampling = Sampling::new(process);
            match purpose {
                SamplePurpose::Record => {
                    sampling.rings = UringSamples::new(uring_sender);
                    sampling.faults = Some(FaultSamples::new(fault_sender));
                    sampling.thread_times = Some(ThreadTimes::new(threads_sender));
                    sampling.others = Some(OthersSamples::new(disk_receiver, others_sender));
                }
                SamplePurpose::Prefetch => sampling.touches = Some(TouchSamples::new(touch_sender)),
            }
            sampling.run(&must_end)
        };
        let thread = thread::Builder::new().name("readpath-states".to_owned()).spawn(sample);
        let thread = Some(thread.ok()?);
        let times = Times::default();
        Some(StateSampler {
            thread,
            times,
            is_ending,
            uring_reads,
            faults,
            touches,
            others_requests,
            threads,
            new_disks,
        })
    }

    /// Reads by io_uring that were seen since the last call.
    pub(super) fn take_uring_reads(&self) -> Vec<UringRead> {
        self.uring_reads.try_iter().collect()
    }

    /// Page faults that were seen since the last call.
    pub(super) fn take_faults(&self) -> Vec<SampledFault> {
        self.faults.try_iter().collect()
    }

    /// Touches of mappings that were seen since the last call.
    pub(super) fn take_touches(&self) -> Vec<SampledTouch> {
        self.touches.try_iter().collect()
    }

    /// Requests of other programs that were seen since the last call.
    pub(super) fn take_others_requests(&self) -> Vec<OthersSampled> {
        self.others_requests.try_iter().collect()
    }

    /// Processor times of threads that were sampled since the last call.
    pub(super) fn take_threads(&self) -> Vec<SampledThread> {
        self.threads.try_iter().collect()
    }

    /// Samples the requests of other programs to a disk from now on.
    pub(super) fn watch_disk(&self, device: u64) {
        // Samples for prefetching do not need it.
        let _ = self.new_disks.send(device);
    }

    /// True until the end of the sampling.
    #[cfg(test)]
    pub(super) fn is_running(&self) -> bool {
        self.thread.is_some()
    }

    /// Takes a last sample, and ends the sampling. The reads, faults and touches so far can be
    /// taken afterwards.
    pub fn stop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            self.times = thread.join().unwrap_or_default();
        }
    }

    /// Ends the sampling. Returns one record per activity of a recording of `length_ns`. Their
    /// times sum to that length. The list is empty if no activity is known.
    pub fn finish(mut self, length_ns: u64) -> Vec<Record> {
        self.stop();
        to_records(self.times, length_ns)
    }
}

/// Converts the sampled times to records. The time outside the samples is unknown. The list is
/// empty if nothing is known.
fn to_records(mut times: Times, length_ns: u64) -> Vec<Record> {
    let sampled_ns: u64 = times.iter().sum();
    if sampled_ns == times[Activity::Unknown as usize] {
        return Vec::new();
    }
    times[Activity::Unknown as usize] += length_ns.saturating_sub(sampled_ns);
    // The last sample may come after the end of the recording. The longest activity loses the
    // excess, at most all of its time.
    let excess_ns = sampled_ns.saturating_sub(length_ns);
    if let Some(longest_ns) = times.iter_mut().max() {
        *longest_ns = longest_ns.saturating_sub(excess_ns);
    }
    Activity::ALL
        .into_iter()
        .zip(times)
        .filter(|&(_, wall_ns)| wall_ns > 0)
        .map(|(activity, wall_ns)| {
            Record::TimeSpent(TimeSpent { at_ns: length_ns, activity, wall_ns })
        })
        .collect()
}

/// State of the sampling thread.
#[derive(Debug)]
struct Sampling {
    /// Sampled processes, by number: the program and its descendants.
    processes: BTreeMap<u32, Process>,
    /// Processor time of each thread at the last sample in which it ran or waited for a processor.
    processor_times: BTreeMap<u32, ProcessorTime>,
    /// Time of each activity so far.
    times: Times,
    /// Time that samples take, which sets the pause between them.
    cost: SamplingCost,
    /// Time of threads on processors or in their queues that is not yet divided between the two.
    undivided_ns: u64,
    /// Time of the last sample of activities.
    last_sample: Instant,
    /// Time of the last search for threads and descendants.
    last_search: Instant,
    /// `None` without a recording, and if the kernel has no io_uring or forbids it.
    rings: Option<UringSamples>,
    /// Time of the last search for rings.
    last_ring_search: Instant,
    /// Page faults within system calls.
    call_faults: CallFaults,
    /// Time of threads in page faults that no sample of faults or touches has taken.
    fault_ns: u64,
    /// Samples of page faults, for a recording.
    faults: Option<FaultSamples>,
    /// Processor times of all threads, for a recording.
    thread_times: Option<ThreadTimes>,
    /// Samples of touched pages, for prefetching.
    touches: Option<TouchSamples>,
    /// Samples of other programs' requests, for a recording.
    others: Option<OthersSamples>,
    /// True if a thread waited for io_uring or AIO at the last sample.
    waits_for_async: bool,
}

/// A sampled process.
#[derive(Debug)]
struct Process {
    /// Numbers of its threads, as of the last search.
    threads: Vec<u32>,
    /// True if system calls have the numbers of this command's own architecture.
    has_own_numbers: bool,
    /// True if a part of its memory is in the swap area, as of the last search.
    has_swapped: bool,
}

impl Process {
    /// Activity of a thread in a page fault. With memory in the swap area, the fault may be one of
    /// that memory, and the activity is unknown.
    fn fault_activity(&self) -> Activity {
        if self.has_swapped { Activity::Unknown } else { Activity::Fault }
    }
}

/// Time that samples have taken since the first one.
#[derive(Debug)]
struct SamplingCost {
    /// Time of the first sample.
    since: Instant,
    /// Time that samples have taken since then.
    taken: Duration,
}

impl SamplingCost {
    /// Starts without samples.
    fn new(now: Instant) -> SamplingCost {
        SamplingCost { since: now, taken: Duration::ZERO }
    }

    /// Adds a sample from `begin` to `end`. Returns the pause until the next one.
    fn pause(&mut self, begin: Instant, end: Instant) -> Duration {
        self.taken += end - begin;
        let needed = self.taken * TIME_PER_SAMPLE;
        needed.saturating_sub(end - self.since).clamp(PAUSE_MIN, PAUSE_MAX)
    }
}

impl Sampling {
    /// Creates the state with one process, and without optional samples.
    fn new(process: u32) -> Sampling {
        let now = Instant::now();
        let mut sampling = Sampling {
            processes: BTreeMap::new(),
            processor_times: BTreeMap::new(),
            times: Times::default(),
            undivided_ns: 0,
            cost: SamplingCost::new(now),
            last_sample: now,
            last_search: now,
            rings: None,
            last_ring_search: now,
            call_faults: CallFaults::default(),
            fault_ns: 0,
            faults: None,
            thread_times: None,
            touches: None,
            others: None,
            waits_for_async: false,
        };
        sampling.add_process(process);
        sampling
    }

    /// Samples until the end is requested, and once more then. Returns the times by activity. The
    /// pause between samples depends on their cost. Rings of io_uring are sampled more often than
    /// the rest, at least once per [`RING_PAUSE`], because the kernel overwrites their entries.
    fn run(mut self, must_end: &AtomicBool) -> Times {
        let mut next_sample = Instant::now();
        while !must_end.load(Ordering::Relaxed) {
            let begin = Instant::now();
            if begin >= next_sample {
                self.sample();
                let end = Instant::now();
                next_sample = end + self.cost.pause(begin, end);
                self.search_rings();
                // A sample that is due takes the time of threads in faults, and sets it to 0.
                // Without a touched page, a sample of touches leaves it for the next one.
                let (processes, fault_ns) = (self.processes.keys().copied(), &mut self.fault_ns);
                match (&mut self.faults, &mut self.touches) {
                    (Some(faults), _) => faults.sample_if_due(processes, fault_ns),
                    (_, Some(touches)) => touches.sample_if_due(processes, fault_ns),
                    (None, None) => {}
                }
                if let Some(others) = &mut self.others {
                    others.sample_if_due(self.processes.keys().copied());
                }
            }
            let pause = next_sample.saturating_duration_since(Instant::now());
            match self.rings.as_mut().filter(|rings| rings.has_rings()) {
                Some(rings) => {
                    rings.sample();
                    thread::park_timeout(pause.min(RING_PAUSE));
                }
                None => thread::park_timeout(pause),
            }
        }
        self.sample();
        self.rings.iter_mut().for_each(UringSamples::sample);
        // The rest that no count has divided counts as running.
        self.times[Activity::Processor as usize] += self.undivided_ns;
        self.times
    }

    /// Finds new rings of io_uring, if a search is due.
    fn search_rings(&mut self) {
        let Some(rings) = &mut self.rings else { return };
        let period = match self.waits_for_async && !rings.has_rings() {
            true => SEARCH_PERIOD,
            false => RING_SEARCH_PERIOD,
        };
        if self.last_ring_search.elapsed() >= period {
            rings.search(self.processes.keys().copied());
            self.last_ring_search = Instant::now();
        }
    }

    /// Adds the time since the last sample to one activity of the program: the first one that a
    /// thread has now, by [`Activity::first_of`]. Without a thread it is unknown.
    fn sample(&mut self) {
        if self.last_search.elapsed() >= SEARCH_PERIOD {
            self.search();
        }
        // Number of threads by activity, and the increase of the running threads' processor times
        // since the last samples in which they ran.
        let mut threads = [0_u32; Activity::ALL.len()];
        let mut processor_time = ProcessorTime::default();
        for (&number, process) in &self.processes {
            for &thread in &process.threads {
                let present = activity(number, thread, process, &mut self.call_faults);
                let Some(activity) = present else { continue };
                threads[activity as usize] += 1;
                if let Some(times) = &mut self.thread_times {
                    // A copy that waits for its receiver does not wait for the file it reads.
                    let counts_as_busy = activity == Activity::Others && is_copying(number, thread);
                    times.sample(number, thread, activity, counts_as_busy);
                }
                if activity == Activity::Processor {
                    let total = ProcessorTime::of_thread(number, thread).unwrap_or_default();
                    let last = self.processor_times.insert(thread, total).unwrap_or(total);
                    processor_time.running_ns += total.running_ns.saturating_sub(last.running_ns);
                    processor_time.queued_ns += total.queued_ns.saturating_sub(last.queued_ns);
                }
            }
        }
        self.waits_for_async = threads[Activity::AsyncIo as usize] > 0;
        // The requests in the rings name the activity of the threads in such calls. Without a ring
        // the activity stays.
        let rings = self.rings.as_mut().filter(|_| self.waits_for_async);
        if let Some(activity) = rings.and_then(UringSamples::waited_activity) {
            let waiting = std::mem::take(&mut threads[Activity::AsyncIo as usize]);
            threads[activity as usize] += waiting;
        }
        let now = Instant::now();
        let passed_ns = now.duration_since(self.last_sample).as_nanos() as u64;
        self.last_sample = now;
        // All threads in faults count here, and one activity of the program below.
        self.fault_ns += u64::from(threads[Activity::Fault as usize]) * passed_ns;
        let activity = Activity::first_of(&threads);
        match activity {
            Activity::Processor => self.undivided_ns += passed_ns,
            _ => self.times[activity as usize] += passed_ns,
        }
        self.divide_processor_time(processor_time);
    }

    /// Divides the time since the last division between processors and their queues, in the ratio
    /// of the `counted` times of the running threads. The kernel counts time on a processor at its
    /// ticks, and time in a queue at its end. While both are 0, the time stays undivided.
    fn divide_processor_time(&mut self, counted: ProcessorTime) {
        if counted.running_ns + counted.queued_ns > 0 {
            let queued_ns = counted.queued_part(self.undivided_ns);
            self.times[Activity::ProcessorQueue as usize] += queued_ns;
            self.times[Activity::Processor as usize] += self.undivided_ns - queued_ns;
            self.undivided_ns = 0;
        }
    }

    /// Finds new threads and descendants, and forgets ended processes. A known process stays, even
    /// if its parent has ended.
    fn search(&mut self) {
        self.last_search = Instant::now();
        let mut unsearched: Vec<u32> = self.processes.keys().copied().collect();
        let mut found = BTreeSet::new();
        while let Some(process) = unsearched.pop() {
            if !found.insert(process) {
                continue;
            }
            for thread in group::threads(process).unwrap_or_default() {
                unsearched.extend(children_of(process, thread));
            }
        }
        found.into_iter().for_each(|process| self.add_process(process));
        let threads = self.processes.values().flat_map(|process| &process.threads);
        let threads: BTreeSet<u32> = threads.copied().collect();
        self.processor_times.retain(|thread, _| threads.contains(thread));
        self.call_faults.on_search(&threads);
        if let Some(times) = &mut self.thread_times {
            times.on_search(&threads);
        }
    }

    /// Adds a process, or updates its threads. Removes it if it has ended, or if there would be
    /// more than `THREADS_MAX` threads.
    fn add_process(&mut self, process: u32) {
        let threads = group::threads(process).unwrap_or_default();
        let others = self.processes.iter().filter(|(number, _)| **number != process);
        let other_threads: usize = others.map(|(_, process)| process.threads.len()).sum();
        if threads.is_empty() || other_threads + threads.len() > THREADS_MAX {
            self.processes.remove(&process);
            return;
        }
        // A call of execve may have replaced the program since the last search.
        let has_own_numbers = has_own_numbers(process);
        let has_swapped = has_swapped(process);
        self.processes.insert(process, Process { threads, has_own_numbers, has_swapped });
    }
}

/// Processes that a thread has started and that still run.
fn children_of(process: u32, thread: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/children"));
    let text = text.unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// True if a program has the word size of this command, and therefore its numbers of system calls.
fn has_own_numbers(process: u32) -> bool {
    /// Byte of an ELF file that contains its class.
    const CLASS_BYTE: usize = 4;
    /// Class of 32-bit programs.
    const CLASS_32: u8 = 1;
    let mut head = [0; CLASS_BYTE + 1];
    let read =
        fs::File::open(format!("/proc/{process}/exe")).and_then(|mut f| f.read_exact(&mut head));
    // An executable without read permission counts as one of 64 bits, as nearly all are.
    let is_32_bit = read.is_ok() && head[CLASS_BYTE] == CLASS_32;
    is_32_bit == cfg!(target_pointer_width = "32")
}

/// True if a part of the process's memory is in the swap area.
fn has_swapped(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    proc_text::field_bytes(&status, "VmSwap:").is_some_and(|bytes| bytes > 0)
}

/// Time of event number `index` (from 0, below `count`) of `count` events that are spread evenly
/// over an interval of clock times. The last event is at the end of the interval.
fn spread((from_ns, to_ns): (u64, u64), index: u32, count: u32) -> u64 {
    let part = u128::from(to_ns - from_ns) * u128::from(index + 1) / u128::from(count);
    from_ns + part as u64
}

#[cfg(test)]
#[path = "state_samples/tests.rs"]
mod tests;

//! Records with totals, of the whole recording or of an interval between two samples.

use serde::Serialize;

use super::DeviceOperation;

/// Activity of a program at a moment. If its threads have several, the moment counts as one of
/// them, by [`first_of`](Activity::first_of).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// A thread runs on a processor.
    Processor,
    /// A thread could run and waits for a processor.
    ProcessorQueue,
    /// A read of a file waits.
    Read,
    /// A page fault waits for its file.
    Fault,
    /// A page fault waits for the swap area.
    SwapIn,
    /// A thread waits until the kernel has freed memory.
    Memory,
    /// A call about names, folders or attributes of files waits.
    Metadata,
    /// A call that writes waits. Up to version 5 of the format also an `fsync`.
    Write,
    /// A call waits for written data to reach the device, such as `fsync`.
    Sync,
    /// A thread waits for completions of AIO or io_uring.
    AsyncIo,
    /// A thread waits for a pipe, a socket, a terminal or an event.
    Others,
    /// A thread sleeps for a time that it chose.
    Sleep,
    /// A thread waits for a lock, or for another thread.
    Lock,
    /// A process waits for its children, which are recorded too.
    Children,
    /// Unknown.
    #[default]
    Unknown,
}

impl Activity {
    /// All activities, in the order of the variants.
    pub const ALL: [Activity; 15] = [
        Activity::Processor,
        Activity::ProcessorQueue,
        Activity::Read,
        Activity::Fault,
        Activity::SwapIn,
        Activity::Memory,
        Activity::Metadata,
        Activity::Write,
        Activity::Sync,
        Activity::AsyncIo,
        Activity::Others,
        Activity::Sleep,
        Activity::Lock,
        Activity::Children,
        Activity::Unknown,
    ];

    /// Returns the activity as which a moment counts, by the number of threads of each activity in
    /// the order of [`ALL`](Activity::ALL). The first one with a thread decides. A thread with an
    /// unknown activity comes before threads that wait for others: these may wait for it, and its
    /// own wait may be one for storage.
    pub fn first_of(threads: &[u32; Activity::ALL.len()]) -> Activity {
        let first = threads.iter().position(|&count| count > 0);
        let first = first.map_or(Activity::Unknown, |index| Activity::ALL[index]);
        match first {
            Activity::Others | Activity::Sleep | Activity::Lock | Activity::Children
                if threads[Activity::Unknown as usize] > 0 =>
            {
                Activity::Unknown
            }
            first => first,
        }
    }
}

/// Wall time of the program by activity, one record for each activity that occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimeSpent {
    /// Time at which the recording ended.
    pub at_ns: u64,
    /// Activity.
    pub activity: Activity,
    /// Wall time. The records of all activities sum to the duration of the recording.
    pub wall_ns: u64,
}

/// Requests that tasks of one name, outside the recorded program, issued to a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OthersRequests {
    /// Time at which the recording ended.
    pub at_ns: u64,
    /// Device.
    pub device: u64,
    /// Type of the requests.
    pub work: DeviceOperation,
    /// Number of the first such task.
    pub task: u32,
    /// Name of the tasks. A task may issue requests for another one: a kernel thread
    /// (`kworker/…`) for the program that wrote into the page cache.
    pub name: String,
    /// Number of requests.
    pub count: u64,
    /// Their length in bytes.
    pub bytes: u64,
}

/// Returns true for the name of a kernel thread that writes for programs: `kworker/u8:1`,
/// `jbd2/sda1-8`, `btrfs-transacti`.
pub fn is_kernel_thread(name: &str) -> bool {
    let is_loop_device = name.strip_prefix("loop").is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_loop_device
        || ["kworker/", "jbd2/", "btrfs-", "xfsaild/"].iter().any(|prefix| name.starts_with(prefix))
}

/// Requests of others to a device between two samples, from the counters of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OthersSampled {
    /// Time of the second sample.
    pub end_ns: u64,
    /// Time of the first sample.
    pub begin_ns: u64,
    /// Device.
    pub device: u64,
    /// Type of the requests. Reads are those outside the recorded program. Writes include the
    /// program's own: the page cache writes them later.
    pub work: DeviceOperation,
    /// Their length in bytes.
    pub bytes: u64,
}

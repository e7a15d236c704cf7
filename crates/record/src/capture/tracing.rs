//! Objects of a recorder in the kernel: two tracefs instances, the tracer of submitted reads, and
//! the thread that starts the program.
//!
//! Several files of tracefs and all events of BPF make the kernel wait for its own readers, some
//! 10 ms each time. Therefore the start does independent work at the same time, and the removal can
//! go on in a process of its own.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::RawFd;
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::fanotify::Fanotify;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::event::{Decoder, TraceEvent};
use super::submitted::{Submissions, read_offsets};
use super::{SUB_BUFFER_KIB, now_ns, ring, wall_ns};
use crate::tracefs::{ChangeLock, Instance, TracefsError};

/// Total size in KiB of the buffers of an instance, unless the minimum of a processor needs more.
/// 50,000 reads a second produce about 10 MB of events a second.
const BUFFERS_KIB_MAX: usize = 256 << 10;

/// Minimum size in KiB of the buffer of one processor, chosen.
const BUFFER_KIB_MIN: usize = 1 << 10;

/// Maximum size in KiB of the buffer of one processor, chosen.
const BUFFER_KIB_MAX: usize = 16 << 10;

/// The first tracefs instance of a recorder, without events yet. Its creation takes little time and
/// shows whether this process may trace.
#[derive(Debug)]
pub struct TracingPermit {
    /// The instance.
    instance: Instance,
    /// Lock for the preparation, if it is taken already.
    lock: Option<ChangeLock>,
}

impl TracingPermit {
    /// Creates the instance.
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] without root or without tracefs.
    pub fn new() -> Result<TracingPermit, TracefsError> {
        Ok(TracingPermit { instance: Instance::create()?, lock: None })
    }

    /// Takes the lock for the preparation. Returns false while another recorder prepares or removes
    /// its objects; the preparation would wait for it.
    pub fn try_lock(&mut self) -> bool {
        self.lock = self.lock.take().or_else(|| self.instance.try_lock());
        self.lock.is_some()
    }
}

/// Objects of a recorder in the kernel. Dropped in the order of the fields.
#[derive(Debug)]
pub struct Tracing {
    /// Instance with the events of the recorded tasks.
    pub(super) tasks: TraceInstance,
    /// Instance with the events of the whole system.
    pub(super) system: TraceInstance,
    /// Tracer of reads submitted over AIO and io_uring. `None` where the kernel refuses BPF.
    pub(super) submissions: Option<Submissions>,
    /// Reports of opened files, no longer read. The kernel takes some 20 ms to close them.
    pub(super) reports: Option<Arc<Fanotify>>,
    /// Lock for the removal, taken at its start. Dropped last.
    removal_lock: Option<ChangeLock>,
}

impl Drop for Tracing {
    /// Takes the lock under which the other fields are dropped afterwards.
    fn drop(&mut self) {
        self.removal_lock = Some(self.tasks.instance.lock());
    }
}

impl Tracing {
    /// Creates the objects. The instance of `permit`, or a new one, gets the events of the recorded
    /// tasks: `enable_events` enables them and returns their decoder. Also returns the thread that
    /// can start the program. Fails if one of the instances cannot be prepared.
    pub(super) fn start(
        permit: Option<TracingPermit>,
        enable_events: fn(&Instance) -> Result<Decoder, TracefsError>,
    ) -> Result<(Tracing, Starter), TracefsError> {
        std::thread::scope(|scope| {
            // Offsets of fields in the kernel's structures, for the tracer of submissions.
            let offsets = scope.spawn(read_offsets);
            let starter = Starter::start();
            // The lock is held until both instances are prepared.
            let (instance, _lock) = match permit {
                Some(TracingPermit { instance, lock }) => {
                    let lock = lock.unwrap_or_else(|| instance.lock());
                    (instance, lock)
                }
                None => Instance::create_locked()?,
            };
            let tasks = TraceInstance::start(instance, enable_events, Some(starter.task))?;
            let system =
                scope.spawn(|| TraceInstance::start(Instance::create()?, Decoder::of_system, None));
            // Without this tracer such reads are only counted.
            let offsets = offsets.join().ok().flatten();
            let submissions =
                offsets.and_then(|offsets| Submissions::start(&tasks.instance, offsets).ok());
            let system = system.join().expect("the thread does not panic")?;
            let tracing = Tracing { tasks, system, submissions, reports: None, removal_lock: None };
            Ok((tracing, starter))
        })
    }

    /// Removes the objects in another process, which the caller does not wait for. It outlives this
    /// process by some 0.4 s. The objects are removed here in a PID namespace, which may end with
    /// this process, and if no process can be created.
    pub fn remove_in_background(mut self) {
        // An instance is busy while a process has its buffers open.
        self.tasks.pipes.clear();
        self.system.pipes.clear();
        if !is_initial_pid_namespace() {
            return;
        }
        // The folder for temporary files may be removed once this process has ended.
        self.tasks.instance.detach_mount();
        self.system.instance.detach_mount();
        // SAFETY: the child runs only `remove_detached`. The allocator may be used after a fork.
        match unsafe { libc::fork() } {
            // No process: they are dropped here.
            -1 => {}
            0 => self.remove_detached(),
            _ => {
                // The child removes the instances first. Meanwhile these events are closed here,
                // so that the child has them last and waits for the kernel. The other objects are
                // left to the child: a drop would remove them here too.
                self.submissions = None;
                std::mem::forget(self);
            }
        }
    }

    /// Removes the objects in a forked process, without the terminal, the folder and the open files
    /// of its parent. Ends the process.
    fn remove_detached(self) -> ! {
        let _ = rustix::process::setsid();
        let _ = std::env::set_current_dir("/");
        // The locks of the cleanup records, and a detached mount, must last until the removal.
        let instances = [&self.tasks, &self.system].map(|events| events.instance.descriptors());
        let mut kept: Vec<RawFd> = instances.into_iter().flatten().collect();
        kept.extend(self.submissions.iter().flat_map(Submissions::descriptors));
        close_all_except(kept);
        drop(self);
        // SAFETY: the call ends the process. Handlers of the parent must not run.
        unsafe { libc::_exit(0) }
    }
}

/// Name of the PID namespace that exists until the system ends (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// True if this process belongs to that namespace.
pub fn is_initial_pid_namespace() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() == INITIAL_PID_NAMESPACE)
}

/// Closes all descriptors but these.
fn close_all_except(mut kept: Vec<RawFd>) {
    kept.sort_unstable();
    // The numbers from `first` to before each kept descriptor, and at last to the largest number.
    let mut first = 0;
    for end in kept.into_iter().map(|descriptor| descriptor as u32).chain([u32::MAX]) {
        if first < end {
            // SAFETY: no value of this process uses these descriptors later. Kernels before 5.9
            // lack the call; the descriptors then stay open until the process ends.
            unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) };
        }
        first = end.saturating_add(1);
    }
}

/// A thread that can start one program, and is the first recorded task. A child of a recorded task
/// is recorded from its first instruction.
#[derive(Debug)]
pub(super) struct Starter {
    /// Number of the thread.
    task: u32,
    /// Sends the command to the thread.
    commands: mpsc::Sender<Command>,
    /// The thread, which returns the started program.
    thread: JoinHandle<io::Result<StartedProgram>>,
}

/// A started program, with the times before its start: of the monotonic clock, and since 1970, in
/// nanoseconds.
pub(super) type StartedProgram = (Child, (u64, u64));

impl Starter {
    /// Starts the thread, which waits for the command.
    fn start() -> Starter {
        let (send_task, tasks) = mpsc::channel();
        let (commands, requests) = mpsc::channel::<Command>();
        let thread = std::thread::spawn(move || {
            let _ = send_task.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let mut command = requests.recv().map_err(io::Error::other)?;
            let begun = (now_ns(), wall_ns());
            Ok((command.spawn()?, begun))
        });
        let task = tasks.recv().expect("the thread sends its number first");
        Starter { task, commands, thread }
    }

    /// Starts the program and ends the thread.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(self, command: Command) -> io::Result<StartedProgram> {
        let failed = || io::Error::other("the starting thread failed");
        self.commands.send(command).map_err(|_| failed())?;
        self.thread.join().map_err(|_| failed())?
    }
}

/// One of the two tracefs instances, with the decoder of its events.
#[derive(Debug)]
pub(super) struct TraceInstance {
    /// Raw buffer of each processor. Dropped before the instance, which is busy while they are
    /// open.
    pipes: Vec<File>,
    /// Decoder of the enabled events.
    pub decoder: Decoder,
    /// The instance.
    pub instance: Instance,
}

impl TraceInstance {
    /// Prepares an instance with its events. `only_task`: it reports this task, its children, and
    /// tasks that are added later. `None`: it reports all tasks. Fails if the kernel refuses a step
    /// other than the size of the sub-buffers.
    fn start(
        instance: Instance,
        enable_events: fn(&Instance) -> Result<Decoder, TracefsError>,
        only_task: Option<u32>,
    ) -> Result<TraceInstance, TracefsError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let kib = (BUFFERS_KIB_MAX / processors).clamp(BUFFER_KIB_MIN, BUFFER_KIB_MAX);
        // Older kernels have sub-buffers of one page.
        let _ = instance.write("buffer_subbuf_size_kb", &SUB_BUFFER_KIB.to_string());
        instance.write("buffer_size_kb", &kib.to_string())?;
        // Times of the monotonic clock, as in all records.
        instance.write("trace_clock", "mono")?;
        if let Some(task) = only_task {
            // The kernel adds the children of the reported tasks by itself.
            instance.write("options/event-fork", "1")?;
            instance.write("set_event_pid", &task.to_string())?;
        }
        let decoder = enable_events(&instance)?;
        let folder = instance.path().join("per_cpu");
        let folders = fs::read_dir(&folder).map_err(|source| TracefsError::Unavailable {
            action: "list",
            path: folder,
            source,
        })?;
        let names = folders.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let pipes = names.map(|name| instance.open(&format!("per_cpu/{name}/trace_pipe_raw")));
        let pipes = pipes.collect::<Result<Vec<File>, TracefsError>>()?;
        Ok(TraceInstance { pipes, decoder, instance })
    }

    /// Sleeps until a buffer has data or a signal comes, at most for the shorter of `timeout` and
    /// one second. Returns the error of poll(2).
    pub fn sleep(&self, timeout: Duration) -> io::Result<()> {
        let wait = |pipe| PollFd::new(pipe, PollFlags::IN);
        let mut waits: Vec<PollFd<'_>> = self.pipes.iter().map(wait).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos().min(999_999_999) as i64 };
        match poll(&mut waits, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the buffers of all processors and appends their events, processor by processor.
    /// `buffer`: space for a sub-buffer. Events of unknown kinds are left out, and events after
    /// `end_ns` may stay for the next call. A buffer of unknown layout is an error.
    pub fn read(
        &mut self,
        end_ns: u64,
        buffer: &mut [u8],
        events: &mut Vec<TraceEvent>,
    ) -> io::Result<()> {
        let decoder = &self.decoder;
        for pipe in &mut self.pipes {
            read_events_until(end_ns, pipe, buffer, |at_ns, bytes| {
                events.extend(decoder.decode(at_ns, bytes));
            })?;
        }
        Ok(())
    }
}

/// Value of `end_ns` for buffers that get no further events: all are read, by whatever clock.
pub(super) const ALL_EVENTS: u64 = u64::MAX;

/// Reads the buffer of a processor until it is empty or an event later than `end_ns` was read.
/// Without that end, a task that makes events as fast as they are read would keep the recorder in
/// this call. `buffer`: space for a sub-buffer. A buffer of unknown layout is an error.
fn read_events_until(
    end_ns: u64,
    mut pipe: impl Read,
    buffer: &mut [u8],
    mut on_event: impl FnMut(u64, &[u8]),
) -> io::Result<()> {
    let mut last_ns = 0;
    while last_ns <= end_ns {
        let length = match pipe.read(buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let read = ring::for_each_event(&buffer[..length], |at_ns, bytes| {
            last_ns = at_ns;
            on_event(at_ns, bytes);
        });
        if read.is_none() {
            let why = "the kernel's trace buffer is laid out in a way that is not known";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffer that has one more event at each read, 10 ns after the last one.
    struct EndlessBuffer {
        /// Time of the next event.
        next_ns: u64,
    }

    impl Read for EndlessBuffer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            // A page with its time, 8 bytes of events, and an event of one word at that time.
            let head = [self.next_ns.to_le_bytes(), 8u64.to_le_bytes()].concat();
            let page = [head, 1u32.to_le_bytes().into(), vec![7; 4]].concat();
            self.next_ns += 10;
            buffer[..page.len()].copy_from_slice(&page);
            Ok(page.len())
        }
    }

    /// Another recorder that is recorded makes events by its reads.
    #[test]
    fn buffer_that_is_never_empty_is_read_up_to_the_present() {
        let mut times = Vec::new();
        let pipe = EndlessBuffer { next_ns: 100 };
        let on_event = |at_ns, _: &[u8]| {
            assert!(at_ns < 1_000, "the reader does not end");
            times.push(at_ns);
        };
        read_events_until(125, pipe, &mut [0; 64], on_event).unwrap();
        assert_eq!(times, [100, 110, 120, 130]);
    }
}

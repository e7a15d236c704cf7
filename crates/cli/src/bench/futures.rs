//! Asynchronous reads on tokio: the library's futures, and `spawn_blocking` as the baseline,
//! tokio's usual method for files.

use std::io;
use std::sync::Arc;

use readpath::File;
use readpath_eval::access_patterns::positional_reads::AccessPattern;
use readpath_eval::access_patterns::{Accesses, Checksum, ReadAt};
use readpath_os::page_buffer::PageBuffer;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking};

/// Tasks on a default multi-threaded tokio runtime. Each task has its own offsets and one read in
/// flight.
pub struct Tasks {
    runtime: Runtime,
    /// Offsets of the reads, divided between the tasks.
    pattern: AccessPattern,
    read_method: TaskReadMethod,
}

/// Read method of a task.
#[derive(Clone)]
enum TaskReadMethod {
    /// The library's futures.
    Async(File),
    /// A blocking read on a thread of tokio's pool.
    Blocking(Arc<dyn ReadAt>),
}

impl Tasks {
    /// Creates tasks that read through the library's futures.
    pub fn through_library(file: File, pattern: AccessPattern) -> io::Result<Tasks> {
        Tasks::new(pattern, TaskReadMethod::Async(file))
    }

    /// Creates tasks that read with `spawn_blocking`.
    pub fn blocking(file: Arc<dyn ReadAt>, pattern: AccessPattern) -> io::Result<Tasks> {
        Tasks::new(pattern, TaskReadMethod::Blocking(file))
    }

    /// Creates a runtime for the tasks of a pattern.
    fn new(pattern: AccessPattern, read_method: TaskReadMethod) -> io::Result<Tasks> {
        Ok(Tasks { runtime: Builder::new_multi_thread().build()?, pattern, read_method })
    }
}

impl Accesses for Tasks {
    /// Performs all reads, by all tasks at once. Returns the checksum of their data. After an error
    /// of one task, the tasks behind it run on without a result.
    fn pass(&mut self) -> io::Result<Checksum> {
        let Tasks { runtime, pattern, read_method } = self;
        let pattern = *pattern;
        runtime.block_on(async {
            let tasks: Vec<JoinHandle<io::Result<Checksum>>> = (0..pattern.threads)
                .map(|task| tokio::spawn(run_task(read_method.clone(), pattern, task)))
                .collect();
            let mut sum = Checksum::default();
            for task in tasks {
                sum.add_all(task.await.expect("a task doesn't panic")?);
            }
            Ok(sum)
        })
    }
}

/// Performs the reads of task number `task`, one after the other. Returns the checksum of their
/// data.
async fn run_task(
    read_method: TaskReadMethod,
    pattern: AccessPattern,
    task: u64,
) -> io::Result<Checksum> {
    let mut sum = Checksum::default();
    let mut buffer = PageBuffer::new(pattern.read_bytes);
    for offset in pattern.of_thread(task) {
        // Both kinds of reads take the buffer and return it, with the number of bytes read.
        let result;
        (result, buffer) = match &read_method {
            TaskReadMethod::Async(file) => file.read_at_async(buffer, offset).await,
            TaskReadMethod::Blocking(file) => {
                let file = Arc::clone(file);
                let read = spawn_blocking(move || (file.read_at(&mut buffer, offset), buffer));
                read.await.expect("a read doesn't panic")
            }
        };
        sum.add(offset, &buffer[..result?]);
    }
    Ok(sum)
}

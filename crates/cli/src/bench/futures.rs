//! Asynchronous reads on tokio: the library's futures, and `spawn_blocking` as the baseline,
//! tokio's usual method for files.

use std::io;
use std::sync::Arc;

use readpath::File;
use readpath_eval::access_patterns::places::AccessPattern;
use readpath_eval::access_patterns::{Accesses, Checksum, PageBuffer, ReadAt};
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
    Async(File),
    Blocking(Arc<dyn ReadAt>),
}

impl Tasks {
    /// Tasks that read through the library's futures.
    pub fn ours(file: File, places: AccessPattern) -> io::Result<Tasks> {
        Tasks::new(places, TaskReadMethod::Async(file))
    }

    /// Tasks that read with `spawn_blocking`.
    pub fn blocking(file: Arc<dyn ReadAt>, places: AccessPattern) -> io::Result<Tasks> {
        Tasks::new(places, TaskReadMethod::Blocking(file))
    }

    fn new(places: AccessPattern, reading: TaskReadMethod) -> io::Result<Tasks> {
        Ok(Tasks {
            runtime: Builder::new_multi_thread().build()?,
            pattern: places,
            read_method: reading,
        })
    }
}

impl Accesses for Tasks {
    fn pass(&mut self) -> io::Result<Checksum> {
        let Tasks { runtime, pattern: places, read_method: reading } = self;
        let places = *places;
        runtime.block_on(async {
            let tasks: Vec<JoinHandle<io::Result<Checksum>>> = (0..places.threads)
                .map(|task| tokio::spawn(read_each(reading.clone(), places, task)))
                .collect();
            let mut sum = Checksum::default();
            for task in tasks {
                sum.add_all(task.await.expect("a task doesn't panic")?);
            }
            Ok(sum)
        })
    }
}

/// Reads the offsets of one task, one after the other.
async fn read_each(
    reading: TaskReadMethod,
    places: AccessPattern,
    task: u64,
) -> io::Result<Checksum> {
    let mut sum = Checksum::default();
    let mut buffer = PageBuffer::of(places.read_bytes);
    for offset in places.of_thread(task) {
        let result;
        (result, buffer) = match &reading {
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

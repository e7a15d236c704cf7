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
    places: AccessPattern,
    reading: TaskRead,
}

/// Read method of a task.
#[derive(Clone)]
enum TaskRead {
    Demand(File),
    Blocking(Arc<dyn ReadAt>),
}

impl Tasks {
    /// Tasks that read through the library's futures.
    pub fn ours(file: File, places: AccessPattern) -> io::Result<Tasks> {
        Tasks::new(places, TaskRead::Demand(file))
    }

    /// Tasks that read with `spawn_blocking`.
    pub fn blocking(file: Arc<dyn ReadAt>, places: AccessPattern) -> io::Result<Tasks> {
        Tasks::new(places, TaskRead::Blocking(file))
    }

    fn new(places: AccessPattern, reading: TaskRead) -> io::Result<Tasks> {
        Ok(Tasks { runtime: Builder::new_multi_thread().build()?, places, reading })
    }
}

impl Accesses for Tasks {
    fn pass(&mut self) -> io::Result<Checksum> {
        let Tasks { runtime, places, reading } = self;
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
async fn read_each(reading: TaskRead, places: AccessPattern, task: u64) -> io::Result<Checksum> {
    let mut sum = Checksum::default();
    let mut buffer = PageBuffer::of(places.read_bytes);
    for offset in places.of_thread(task) {
        let result;
        (result, buffer) = match &reading {
            TaskRead::Demand(file) => file.read_at_async(buffer, offset).await,
            TaskRead::Blocking(file) => {
                let file = Arc::clone(file);
                let read = spawn_blocking(move || (file.read_at(&mut buffer, offset), buffer));
                read.await.expect("a read doesn't panic")
            }
        };
        sum.add(offset, &buffer[..result?]);
    }
    Ok(sum)
}

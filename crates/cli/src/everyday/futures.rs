//! Reads that are awaited on tokio: ours as futures, a peer's by `spawn_blocking`, which is what a
//! program has for files without us.

use std::io;
use std::sync::Arc;

use readpath::File;
use readpath_peers::everyday::places::AccessPattern;
use readpath_peers::everyday::{Accesses, Checksum, PageBuffer, ReadAt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking};

/// Tasks on a runtime as tokio makes it by itself, each with places of its own, one read at a time.
pub struct Tasks {
    runtime: Runtime,
    places: AccessPattern,
    reading: TaskRead,
}

/// How a task reads.
#[derive(Clone)]
enum TaskRead {
    Demand(File),
    Blocking(Arc<dyn ReadAt>),
}

impl Tasks {
    /// By futures of the library.
    pub fn ours(file: File, places: AccessPattern) -> io::Result<Tasks> {
        Tasks::new(places, TaskRead::Demand(file))
    }

    /// By threads that may block.
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

//! Methods by which a recorded read is replayed on real storage.
//!
//! | a thread that | by the library | by the kernel |
//! |---|---|---|
//! | read through the page cache | [`File`] | `pread(2)` |
//! | read past it | [`RawFile`] | `pread(2)` with `O_DIRECT` |
//! | touched mappings | one [`Mapping`] of each file, for all threads | a mapping likewise |

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use readpath::pager::MappingMode;
use readpath::raw::RawFile;
use readpath::{Builder, File, Mapping, PageCache, ReadPath};
use readpath_core::readahead::Advice;
use readpath_eval::kernel::{copy_mapped, fadvise_advice};
use readpath_eval::mapping::PlainMapping;
use readpath_eval::usage::storage_read_bytes;
use readpath_sim::job::JobEngine;
use readpath_sim::workload::{FileId, ReadList};
use readpath_trace::replay::RecordedProgram;
use serde::{Deserialize, Serialize};

use crate::note;
use crate::worker::OrderPath;

/// Order of a replay.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReplayOrder {
    /// Path of the recording, which the process reads again.
    pub recording: OrderPath,
    /// Scratch files, in the order of [`RecordedProgram::files`].
    pub files: Vec<OrderPath>,
    /// Policies of the library; `None` reads through the kernel.
    pub policies: Option<Policies>,
    /// Memory of the library. The kernel's memory is limited from outside.
    pub memory_bytes: Option<u64>,
}

/// Names of the library's policies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Policies {
    /// Readahead policy with its parameters.
    pub readahead: String,
    /// Eviction policy with its parameters.
    pub eviction: String,
    /// Scheduler with its parameters.
    pub scheduler: String,
}

/// Function that fills a buffer from an offset of one file, or returns an error message.
type ReadFn = Box<dyn Fn(&mut [u8], u64) -> Result<(), String> + Send + Sync>;

/// Function that gives advice about a file. Its arguments are the advice, an offset, and a number
/// of bytes. Advice that fails has no effect.
type AdviseFn = Box<dyn Fn(Advice, u64, u64) + Send + Sync>;

/// Open file of a thread.
pub struct OpenedFile {
    /// Performs a read.
    pub read: ReadFn,
    /// Gives advice.
    pub advise: AdviseFn,
}

/// Read methods of a row.
pub struct ReadMethods<'a> {
    /// Scratch files, policies and memory of the row.
    order: &'a ReplayOrder,
    /// Files and threads of the recording.
    recorded: &'a RecordedProgram,
    /// State of the library; `None` reads through the kernel.
    library: Option<LibraryState>,
    /// Mappings of the kernel, by file. Empty if the library reads.
    kernel_mappings: BTreeMap<FileId, Arc<PlainMapping>>,
    /// Bytes that this process had read from storage before the replay. `None` if they are not
    /// counted.
    read_bytes_before: Option<u64>,
}

/// State shared by all handles of the library.
struct LibraryState {
    /// Reads through the library's page cache, which all files share.
    read_path: ReadPath,
    /// Opened files, kept open to the end. Their cached pages thus stay, as the kernel's would.
    files: Mutex<BTreeMap<FileId, File>>,
    /// Mappings of the library, by file. Each has memory of its own.
    mappings: BTreeMap<FileId, Arc<Mapping>>,
    /// True if any thread reads with direct I/O, whose requests are not counted.
    has_direct_reads: bool,
    /// Number of advices that the library cannot carry out.
    advice_without_effect: Arc<AtomicU64>,
}

impl Policies {
    /// Returns the builder with these policies, and with a page cache of the library's own.
    pub fn apply(&self, builder: Builder) -> Builder {
        let Policies { readahead, eviction, scheduler } = self;
        // The order's memory limit is added later; without one, the library sizes its cache.
        let builder = builder.page_cache(PageCache::Own { bytes: None });
        builder.readahead(readahead).eviction(eviction).scheduler(scheduler)
    }
}

impl<'a> ReadMethods<'a> {
    /// Prepares the read methods that the order requests, and raises the process's limit of open
    /// files. With policies it builds the library and maps the mapped files through it. Without
    /// policies the kernel maps these files. Other files are opened later, by
    /// [`open_file`](ReadMethods::open_file).
    ///
    /// # Errors
    /// The text of the error: the read path cannot be built, or a file cannot be mapped.
    pub fn new(
        order: &'a ReplayOrder,
        recorded: &'a RecordedProgram,
    ) -> Result<ReadMethods<'a>, String> {
        raise_open_file_limit();
        let library = order
            .policies
            .as_ref()
            .map(|policies| LibraryState::new(order, policies, recorded))
            .transpose()?;
        let kernel_mappings = match library {
            Some(_) => BTreeMap::new(),
            None => map_files(order, recorded, map_by_kernel)?,
        };
        Ok(ReadMethods {
            order,
            recorded,
            library,
            kernel_mappings,
            read_bytes_before: storage_read_bytes(),
        })
    }

    /// Name of a recorded file.
    pub fn file_name(&self, file: FileId) -> &str {
        &self.recorded.files()[file.0 as usize].name
    }

    /// Opens a file with the method of a recorded thread.
    pub fn open_file(&self, file: FileId, thread: &ReadList) -> Result<OpenedFile, String> {
        let path = &self.order.files[file.0 as usize].0;
        match &self.library {
            Some(library) => library.open_file(file, path, thread),
            None => match self.kernel_mappings.get(&file) {
                Some(mapping) if thread.engine == JobEngine::Mmap => {
                    let read = copying_read_fn(mapping, |mapping| {
                        // SAFETY: the scratch file belongs to this run, and no process changes it
                        // while it exists.
                        unsafe { mapping.as_slice() }
                    });
                    Ok(OpenedFile { read, advise: mapping_advise_fn(mapping, path)? })
                }
                // A thread that reads by calls, or a file that a thread of mappings only advises.
                _ => open_kernel(path, thread),
            },
        }
    }

    /// Returns the requests to the device and their bytes since the start of the replay. `None`
    /// where they are not counted. The library counts both if it issues all requests itself.
    /// Otherwise the kernel counts the bytes that this process has read from storage, and no
    /// requests.
    pub fn device_counts(&self) -> (Option<u64>, Option<u64>) {
        let counting_library = self.library.as_ref().filter(|library| !library.has_direct_reads);
        if let Some(library) = counting_library.filter(|library| library.counts_all_requests()) {
            let stats = library.read_path.stats();
            let mapping_stats = library.mappings.values().map(|mapping| mapping.stats());
            let (requests, bytes) = mapping_stats.fold((0, 0), |(requests, bytes), stats| {
                (requests + stats.device_reads, bytes + stats.device_read_bytes)
            });
            return (Some(stats.device_reads + requests), Some(stats.device_bytes + bytes));
        }
        let read = storage_read_bytes().zip(self.read_bytes_before);
        // The kernel counts no bytes for file systems without a block device.
        let bytes = read.map(|(now, before)| now.saturating_sub(before)).filter(|&bytes| bytes > 0);
        (None, bytes)
    }

    /// Returns a caveat about the figures: a mapping that the library does not serve, another
    /// backend than the best one, a memory limit for each file, or advice without effect. `None`
    /// otherwise, and for reads through the kernel.
    pub fn note(&self) -> Option<String> {
        let library = self.library.as_ref()?;
        let mut modes = library.mappings.values().map(|mapping| mapping.mode());
        let mapping_note =
            modes.find(|&mode| mode != MappingMode::Served).and_then(note::mapping_caveat);
        let backend_note = library.read_path.stats().backend.and_then(note::backend_caveat);
        let limit_note = (library.mappings.len() > 1 && self.order.memory_bytes.is_some())
            .then(|| "the memory limit applies to each mapped file".to_owned());
        let advices = library.advice_without_effect.load(Ordering::Relaxed);
        let advice_note = (advices > 0).then(|| {
            format!(
                "{advices} advices of the program have no effect in the library: it drops whole \
                    files only, and has none for direct reads"
            )
        });
        let notes = note::join(note::join(mapping_note, backend_note), limit_note);
        note::join(notes, advice_note)
    }
}

impl LibraryState {
    /// Builds the read path with these policies, and maps the files that are read through a
    /// mapping.
    fn new(
        order: &ReplayOrder,
        policies: &Policies,
        recorded: &RecordedProgram,
    ) -> Result<LibraryState, String> {
        let builder = policies.apply(ReadPath::builder());
        let builder = match order.memory_bytes {
            Some(bytes) => builder.memory(bytes),
            None => builder,
        };
        let read_path = builder.build().map_err(|error| error.to_string())?;
        let mappings = map_files(order, recorded, |path| map_by_library(path, order, policies))?;
        let has_direct_reads = recorded.threads().iter().any(|thread| thread.is_direct);
        Ok(LibraryState {
            read_path,
            files: Mutex::default(),
            mappings,
            has_direct_reads,
            advice_without_effect: Arc::default(),
        })
    }

    /// True if the library issues all requests to the device itself.
    fn counts_all_requests(&self) -> bool {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.values().all(|file| file.page_cache() != PageCache::Kernel)
            && self.mappings.values().all(|mapping| mapping.mode() == MappingMode::Served)
    }

    /// Opens the file for a thread: a mapping, direct, or through the cache. A thread of mappings
    /// gets the one made by [`new`](LibraryState::new). A file that it only advises may have none,
    /// and is opened through the cache. The library has no readahead of direct reads, and so no
    /// advice for them.
    fn open_file(
        &self,
        file: FileId,
        path: &Path,
        thread: &ReadList,
    ) -> Result<OpenedFile, String> {
        let mapping = self.mappings.get(&file).filter(|_| thread.engine == JobEngine::Mmap);
        if let Some(mapping) = mapping.cloned() {
            let read = copying_read_fn(&mapping, |mapping| mapping.as_slice());
            let advise: AdviseFn =
                Box::new(move |advice, offset, bytes| mapping.advise(advice, offset, bytes));
            return Ok(OpenedFile { read, advise });
        }
        if thread.is_direct {
            let raw = RawFile::open(path).map_err(|error| error.to_string())?;
            let read: ReadFn = Box::new(move |memory, offset| {
                raw.read_exact_at(memory, offset).map_err(|error| error.to_string())
            });
            let without_effect = Arc::clone(&self.advice_without_effect);
            let advise: AdviseFn = Box::new(move |advice, _, _| {
                // A hint about the order has no effect on direct reads of the kernel either.
                if matches!(advice, Advice::WillNeed | Advice::DontNeed) {
                    without_effect.fetch_add(1, Ordering::Relaxed);
                }
            });
            return Ok(OpenedFile { read, advise });
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread has its own handle of a shared file, and with it its own readahead state.
        let file = match files.get(&file) {
            Some(open) => open.reopen(),
            None => {
                let open = self.read_path.open(path).map_err(|error| error.to_string())?;
                let handle = open.reopen();
                files.insert(file, open);
                handle
            }
        };
        let advised = file.clone();
        let without_effect = Arc::clone(&self.advice_without_effect);
        Ok(OpenedFile {
            read: Box::new(move |memory, offset| {
                file.read_exact_at(memory, offset).map_err(|error| error.to_string())
            }),
            advise: Box::new(move |advice, offset, bytes| match advice {
                Advice::WillNeed => advised.prefetch(offset, bytes),
                // The library drops whole files.
                Advice::DontNeed if bytes < advised.len() => {
                    without_effect.fetch_add(1, Ordering::Relaxed);
                }
                // All of the file, and hints about the order of accesses, whatever their range.
                _ => advised.advise(advice),
            }),
        })
    }
}

/// Maps each file that a thread reads through a mapping, once for all threads. `map` maps the
/// scratch file at a path.
fn map_files<M>(
    order: &ReplayOrder,
    recorded: &RecordedProgram,
    map: impl Fn(&Path) -> Result<M, String>,
) -> Result<BTreeMap<FileId, Arc<M>>, String> {
    let threads = recorded.threads().iter().filter(|thread| thread.engine == JobEngine::Mmap);
    let files: BTreeSet<FileId> =
        threads.flat_map(|thread| thread.reads.iter().map(|read| read.file)).collect();
    let mapped_file = |file: FileId| Ok((file, Arc::new(map(&order.files[file.0 as usize].0)?)));
    files.into_iter().map(mapped_file).collect()
}

/// Returns a read function that copies out of a mapping. `bytes_of` returns the mapped bytes,
/// within which all reads lie.
fn copying_read_fn<M: Send + Sync + 'static>(
    mapping: &Arc<M>,
    bytes_of: fn(&M) -> &[u8],
) -> ReadFn {
    let mapping = Arc::clone(mapping);
    Box::new(move |memory, offset| {
        let start = offset as usize;
        let block = &bytes_of(&mapping)[start..start + memory.len()];
        // SAFETY: the row ends with the first error, and no later access to the mapping follows.
        let copied = unsafe { copy_mapped(block, memory) };
        copied.map_err(|_| "a bus error: its storage failed there".to_owned())
    })
}

/// Maps a scratch file by the kernel (`mmap(2)`), read-only.
///
/// # Errors
/// The text of the error: the file cannot be opened or mapped, or is empty.
fn map_by_kernel(path: &Path) -> Result<PlainMapping, String> {
    let mapping = fs::File::open(path).and_then(|file| PlainMapping::of(&file));
    let mapping = mapping.map_err(|error| error.to_string())?;
    mapping.ok_or_else(|| "the scratch file is empty".to_owned())
}

/// Maps a scratch file by the library, with the order's memory limit and its readahead policy.
fn map_by_library(
    path: &Path,
    order: &ReplayOrder,
    policies: &Policies,
) -> Result<Mapping, String> {
    let builder = Mapping::builder().readahead(&policies.readahead);
    let builder = match order.memory_bytes {
        Some(bytes) => builder.memory(bytes),
        None => builder,
    };
    // SAFETY: the scratch file belongs to this run, and no process changes it while it exists.
    unsafe { builder.open(path) }.map_err(|error| error.to_string())
}

/// Returns the function for advice about a file that the kernel maps. Hints about the order of
/// accesses are for the whole mapping, whatever their range. Other advice is for its range of the
/// page cache of the file at `path`: for a mapping, `DontNeed` would only empty the page table.
fn mapping_advise_fn(mapping: &Arc<PlainMapping>, path: &Path) -> Result<AdviseFn, String> {
    let mapping = Arc::clone(mapping);
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    Ok(Box::new(move |advice, offset, bytes| match advice {
        Advice::WillNeed | Advice::DontNeed => advise_kernel(&file, advice, offset, bytes),
        _ => {
            // A refused hint has no effect.
            let _ = mapping.advise(advice);
        }
    }))
}

/// Calls `posix_fadvise(2)`, for 0 bytes up to the end of the file. Advice that fails has no
/// effect.
fn advise_kernel(file: &fs::File, advice: Advice, offset: u64, bytes: u64) {
    let _ = rustix::fs::fadvise(file, offset, NonZeroU64::new(bytes), fadvise_advice(advice));
}

/// Opens a file for `pread(2)`, with `O_DIRECT` for direct threads.
fn open_kernel(path: &Path, thread: &ReadList) -> Result<OpenedFile, String> {
    let flags = if thread.is_direct { libc::O_DIRECT } else { 0 };
    let file = fs::File::options().read(true).custom_flags(flags).open(path);
    let file = Arc::new(file.map_err(|error| error.to_string())?);
    let advised = Arc::clone(&file);
    Ok(OpenedFile {
        read: Box::new(move |memory, offset| {
            file.read_exact_at(memory, offset).map_err(|error| error.to_string())
        }),
        advise: Box::new(move |advice, offset, bytes| {
            advise_kernel(&advised, advice, offset, bytes);
        }),
    })
}

/// Raises the limit of open files of this process to its maximum. The recorded program may have had
/// more open files than this process may have by default.
fn raise_open_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // On failure, a later open reports that there are too many.
    let _ = setrlimit(Resource::Nofile, limit);
}

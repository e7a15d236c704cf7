//! Trace of the kernel page cache: the folios added for one file.
//!
//! A private tracefs instance records `filemap:mm_filemap_add_to_page_cache` for one inode and does
//! not affect other tracing. The reading thread writes the event before its system call returns.
//! The buffer right after a call contains the folios of that call, and the folios of other users of
//! the file in that time.
//!
//! The instance is removed on drop. An instance of a killed process is removed by the next start.

use std::fs;
use std::io::{self, Read};

use readpath_core::readahead::Folio;
use readpath_core::unit::PAGE_BYTES;
use rustix::fs::{major, minor};

pub use readpath_record::tracefs::TracefsError;
use readpath_record::tracefs::{ChangeLock, Instance};

/// Buffer size per processor in KiB. An event takes about 48 bytes. A read of 4 MiB in single pages
/// with a window of 16 MiB makes 5,120 events or 240 KiB.
const BUFFER_KIB: u32 = 4096;

/// Running trace of the pages added to the kernel page cache for one inode.
#[derive(Debug)]
pub struct PageCacheTrace {
    /// Dropped first, because an instance with an open pipe cannot be removed.
    pipe: fs::File,
    /// The tracefs instance, removed with the value.
    instance: Instance,
    /// Text read from the pipe and not parsed yet. It stays here if a later read of the pipe fails.
    pending: Vec<u8>,
    /// Lock for the removal, taken at its start. Dropped last.
    removal_lock: Option<ChangeLock>,
}

impl Drop for PageCacheTrace {
    /// Takes the lock for changes of tracefs. The pipe and the instance are dropped under it.
    fn drop(&mut self) {
        self.removal_lock = Some(self.instance.lock());
    }
}

impl PageCacheTrace {
    /// Starts the trace for inode `inode` of device `device` (`st_ino`, `st_dev`).
    ///
    /// # Errors
    /// [`TracefsError::Unavailable`] without root or without tracefs.
    pub fn start(device: u64, inode: u64) -> Result<PageCacheTrace, TracefsError> {
        // The lock for changes of tracefs is held until the instance is set up, and instances of
        // killed processes are removed under it.
        let (instance, _lock) = Instance::create_locked()?;
        // Device number in the kernel's format: 12 bits major, 20 bits minor.
        let kernel_device = u64::from(major(device)) << 20 | u64::from(minor(device));
        instance.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        let filter = format!("i_ino == {inode} && s_dev == {kernel_device}");
        instance.write("events/filemap/mm_filemap_add_to_page_cache/filter", &filter)?;
        instance.write("events/filemap/mm_filemap_add_to_page_cache/enable", "1")?;
        let pipe = instance.open("trace_pipe")?;
        Ok(PageCacheTrace { pipe, instance, pending: Vec::new(), removal_lock: None })
    }

    /// Returns the folios added since the last call, in order. Does not wait for further events.
    /// Each read of the pipe returns whole lines.
    ///
    /// # Errors
    /// [`TracefsError::LostEvents`] when the buffer overflowed. Other errors if the pipe cannot be
    /// read, or if an event has an unknown format.
    pub fn drain(&mut self) -> Result<Vec<Folio>, TracefsError> {
        let mut chunk = [0; 1 << 16];
        loop {
            match self.pipe.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => self.pending.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let path = self.instance.path().join("trace_pipe");
                    return Err(TracefsError::Unavailable { action: "read", path, source });
                }
            }
        }
        let text = std::mem::take(&mut self.pending);
        let text = String::from_utf8_lossy(&text);
        text.lines().filter_map(|line| parse_line(line).transpose()).collect()
    }

    /// Checks that the trace is complete, ends it and removes its instance.
    ///
    /// # Errors
    /// [`TracefsError::LostEvents`] when an event was lost since the start.
    pub fn finish(self) -> Result<(), TracefsError> {
        match self.instance.lost() {
            0 => Ok(()),
            count => Err(TracefsError::LostEvents { count }),
        }
    }
}

/// Parses one line of the pipe: a folio event, a loss message, or another line (`None`). A loss
/// message is an error. Without a readable number it counts as one lost event. A folio event
/// without its fields is an error too.
fn parse_line(line: &str) -> Result<Option<Folio>, TracefsError> {
    if let Some((_, lost)) = line.split_once("[LOST ") {
        let count = lost.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(1);
        return Err(TracefsError::LostEvents { count });
    }
    let Some((_, fields)) = line.split_once("mm_filemap_add_to_page_cache: ") else {
        return Ok(None);
    };
    let field = |name: &str| {
        fields
            .split(' ')
            .find_map(|field| field.strip_prefix(name))
            .and_then(|number| number.parse::<u64>().ok())
    };
    match (field("ofs="), field("order=").map(u8::try_from)) {
        (Some(offset), Some(Ok(order))) => Ok(Some(Folio { first: offset / PAGE_BYTES, order })),
        _ => Err(TracefsError::UnknownEvent { line: line.trim().to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folio_event_line_of_the_kernel_is_parsed() {
        // Line printed by Linux 6.18. The offset of 2 MiB is page 512.
        let line = "         conform-4321    [001] .....  9123.456789: mm_filemap_add_to_page_cache: \
                    dev 254:0 ino 12ab pfn=0x1f3c00 ofs=2097152 order=9";
        assert_eq!(parse_line(line).unwrap(), Some(Folio { first: 512, order: 9 }));
        assert_eq!(parse_line("# tracer: nop").unwrap(), None);
    }

    #[test]
    fn lost_and_malformed_events_are_errors() {
        let lost = parse_line("CPU:1 [LOST 17 EVENTS]").unwrap_err();
        assert!(matches!(lost, TracefsError::LostEvents { count: 17 }), "{lost}");
        let strange = parse_line("x: mm_filemap_add_to_page_cache: dev 1:2 page=7").unwrap_err();
        assert!(strange.to_string().contains("dev 1:2 page=7"), "{strange}");
    }

    /// The second start removes an instance of a process that does not exist.
    #[test]
    fn trace_instances_are_removed_on_drop_and_after_dead_processes() {
        let (device, inode) = (0, 1);
        let trace = match PageCacheTrace::start(device, inode) {
            Ok(trace) => trace,
            Err(error) => return println!("skipped: {error}"),
        };
        let instance = trace.instance.path().to_owned();
        // Process numbers are below 2^22.
        let abandoned = instance.with_file_name("readpath-4194305-0");
        fs::create_dir(&abandoned).unwrap();
        let other = PageCacheTrace::start(device, inode).unwrap();
        assert!(
            instance.is_dir()
                && other.instance.path().is_dir()
                && instance != other.instance.path()
        );
        assert!(!abandoned.exists());
        drop(trace);
        assert!(!instance.exists() && other.instance.path().is_dir());
    }
}

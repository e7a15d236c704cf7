//! Converts asynchronous reads, from `io_submit` to `io_getevents`, into records.

use super::calls::CALL_BYTES_MAX;
use super::syntax::{self, Call, field_value, is_file};
use super::tables::Submitted;
use super::{StraceParser, kind};
use crate::recording::{ReadMethod, ReadOutcome, ReadRecord};

impl StraceParser {
    /// Keeps the requests that `io_submit` accepted until they end. Requests that the text hides
    /// count as one call left out. A failed call has no effect.
    pub(super) fn import_submit(&mut self, task: u32, begin_ns: u64, call: &Call<'_>) {
        let Some(accepted) = call.success_value() else { return };
        let Some(requests) = syntax::split_structures(call.argument(2)) else {
            return self.count_left_out(kind::HIDDEN);
        };
        self.count_many_left_out(kind::HIDDEN, u64::from((requests.len() as u64) < accepted));
        for request in requests.iter().take(usize::try_from(accepted).unwrap_or(usize::MAX)) {
            let submitted = self.parse_submitted(task, begin_ns, request);
            // strace leaves the field out if it is 0.
            let data = field_value(request, "aio_data").unwrap_or("0");
            self.pending.add(call.argument(0), data, submitted);
        }
    }

    /// Parses one request of `io_submit`, which began at `begin_ns`. Returns `None` if it is not a
    /// read of a file, which is counted as left out, or if a field is missing or malformed.
    fn parse_submitted(
        &mut self,
        task: u32,
        begin_ns: u64,
        request: &[String],
    ) -> Option<Submitted> {
        let operation = field_value(request, "aio_lio_opcode")?;
        if !operation.starts_with("IOCB_CMD_PREAD") {
            self.count_left_out(&format!("io_submit of {operation}"));
            return None;
        }
        let (descriptor, open_file) =
            self.file_of_descriptor(task, field_value(request, "aio_fildes")?)?;
        let (path, mode) = (open_file.path.clone(), open_file.mode.get());
        if !is_file(&path) {
            self.count_left_out(if path.is_empty() { kind::UNKNOWN_FILE } else { kind::NO_FILE });
            return None;
        }
        // A vectored request shows only its number of buffers. Its completion shows the number of
        // bytes.
        let requested_bytes = match operation {
            "IOCB_CMD_PREAD" => field_value(request, "aio_nbytes").and_then(syntax::parse_number),
            _ => None,
        };
        let offset = field_value(request, "aio_offset").and_then(syntax::parse_number)?;
        // 0 for a vectored request: the completion raises it to the bytes read.
        let asked_bytes = requested_bytes.unwrap_or(0).min(CALL_BYTES_MAX);
        Some(Submitted { begin_ns, task, descriptor, mode, path, offset, asked_bytes })
    }

    /// Adds the records of reads that `io_getevents` completes. Events without a kept read have no
    /// effect. If the text hides an event, it may be of any request that is still kept: these
    /// requests are forgotten, and their reads count as unended. Returns `None` for malformed
    /// results.
    pub(super) fn import_events(&mut self, end_ns: u64, call: &Call<'_>) -> Option<()> {
        let events = syntax::split_structures(call.argument(3)).unwrap_or_default();
        for event in &events {
            // strace leaves the field out if it is 0.
            let data = field_value(event, "data").unwrap_or("0");
            let Some(submitted) = self.pending.complete(call.argument(0), data) else { continue };
            let result = field_value(event, "res").unwrap_or_default();
            let result: i64 = result.split(' ').next()?.parse().ok()?;
            let read_bytes = u64::try_from(result).unwrap_or(0);
            let outcome = match result {
                ..0 => ReadOutcome::Error(u32::try_from(result.unsigned_abs()).unwrap_or(0)),
                _ => ReadOutcome::Bytes(read_bytes),
            };
            let Submitted { begin_ns, task, descriptor, mode, path, offset, asked_bytes } =
                submitted;
            let (file, thread) = (self.file_number(path), self.thread_number(task));
            let read = ReadRecord {
                // A record never ends before it begins, whatever the times in the text.
                end_ns: end_ns.max(begin_ns),
                begin_ns,
                // The text does not show the wait for one of the requests.
                waited_ns: 0,
                thread,
                way: ReadMethod::Aio,
                descriptor: Some(descriptor),
                file,
                offset,
                asked_bytes: asked_bytes.max(read_bytes),
                outcome,
            };
            self.add_read(read, mode)?;
        }
        if call.success_value() > Some(events.len() as u64) {
            let forgotten = self.pending.forget_context(call.argument(0));
            self.count_many_left_out(kind::UNENDED, forgotten);
        }
        Some(())
    }
}

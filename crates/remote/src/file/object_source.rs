//! One version of an object as a source of `readpath`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore};
use readpath::DeviceError;
use readpath::source::{Fetch, Source};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::opening::{OpenedBytes, begin};
use super::{OnError, OpenObjectError};
use crate::planner::{Generation, Time};
use crate::store::{
    Blocks, Disk, Ends, SETTLING_TIME, body_of, generation_of, is_weak, may_succeed_later,
    other_range, settles_at, too_long, too_short,
};

/// Largest difference, chosen, of the clocks of a server and of this system, with which an opening
/// waits for the version.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(1);

/// An object in one version.
#[derive(Clone)]
pub(super) struct ObjectSource(Arc<Version>);

struct Version {
    requests: Requests,
    /// Location, size and ETag, as the store reported them at the opening.
    meta: ObjectMeta,
    /// The version in one text: each answer must have the same one.
    generation: Generation,
    /// Bytes that came with the answer of the opening.
    opened_bytes: OpenedBytes,
    /// Zero of the times that the disk tier gets.
    opened: Instant,
}

/// Store, thread and limits of the requests of a file.
pub(super) struct Requests {
    pub store: Arc<dyn ObjectStore>,
    /// Runs the tasks of fetches.
    pub runtime: Handle,
    /// Largest request in bytes.
    pub part_bytes: u64,
    /// Largest request of a read past the cache in bytes.
    pub direct_part_bytes: u64,
    /// Largest number of further requests after errors, for each `part_bytes` bytes of a fetch.
    pub retries_max: u32,
    /// Called with the error of each failed fetch, if there is such a function.
    pub on_error: Option<OnError>,
    pub disk: Disk,
}

/// End of a try.
enum Try {
    /// All requested bytes have arrived.
    Done,
    /// The file is closed, so that the bytes have no effect. The rest of the answer is not read.
    Ignored,
    /// The object has another version now, or is gone.
    Changed(Error),
    /// The answer has failed. Its bytes before that are good.
    Failed(Error),
    /// The answer has the wrong length. It is unknown which of its bytes are good.
    WrongLength(Error),
}

impl ObjectSource {
    /// Asks the store for the version, and `first_bytes` bytes of the start or of the end. Waits
    /// once until the version is settled: a later write is then certain to give another one. A
    /// strong ETag is settled at once.
    ///
    /// # Errors
    /// The answer has no version, or none that is settled after the wait. The store has failed
    /// beyond the retries.
    pub(super) async fn open(
        requests: Requests,
        location: Path,
        first_bytes: u64,
    ) -> Result<ObjectSource, OpenObjectError> {
        let mut retries_left = requests.retries_max;
        let mut has_waited = false;
        loop {
            let unix_started = unix_time();
            let is_kept = requests.disk.has(&location);
            let begun = begin(&requests.store, &location, first_bytes, is_kept).await;
            let (meta, opened_bytes) = match begun {
                Err(error) if may_succeed_later(&error) && retries_left > 0 => {
                    retries_left -= 1;
                    continue;
                }
                result => result.map_err(OpenObjectError::Store)?,
            };
            let Some(generation) = generation_of(&meta) else {
                return Err(OpenObjectError::NoVersion { location });
            };
            // The start is `Time::ZERO`: the result is the time until the version is settled.
            let rest = settles_at(&meta, Time::ZERO, unix_started);
            if rest == Time::ZERO {
                let opened = Instant::now();
                let version = Version { requests, meta, generation, opened_bytes, opened };
                return Ok(ObjectSource(Arc::new(version)));
            }
            let rest = Duration::from_nanos(rest.0);
            // A time of modification far in the future is not waited for.
            if has_waited || rest > SETTLING_TIME + CLOCK_DIFFERENCE_MAX {
                let modified = meta.last_modified.to_rfc3339();
                return Err(OpenObjectError::Unsettled { location, modified });
            }
            tokio::time::sleep(rest).await;
            has_waited = true;
        }
    }
}

impl ObjectSource {
    /// Description of the version.
    pub(super) fn meta(&self) -> &ObjectMeta {
        &self.0.meta
    }
}

impl Version {
    /// Fetches the bytes of a range, and reports the end. Bytes at its ends that came with the
    /// opening, or that the disk tier has, are not requested. After an error that may pass, the
    /// missing bytes are requested again, with `retries_max` retries for each `part_bytes` bytes.
    /// After a wrong length, all requested bytes are.
    async fn fetch(&self, range: Range<u64>, mut fetch: Fetch) {
        let mut retries_left = self.requests.retries_max;
        let mut blocks = self.requests.disk.blocks(&self.meta);
        let Ends { prefix, suffix } = match self.opened_bytes.ends_of(&range) {
            Some(ends) => ends,
            None => blocks.read(range.clone()).await,
        };
        // False for a fetch that is no longer needed: it ends at the next `fill`, in `request`.
        fetch.fill(&prefix);
        let requested_end = range.end - suffix.len() as u64;
        // Number of missing bytes when the retries were last renewed.
        let mut retries_from = fetch.missing_bytes();
        let (error, reason) = loop {
            // Bytes arrive in order, so that the missing ones are the last ones of the range.
            let missing = range.end - fetch.missing_bytes()..requested_end;
            let end = match missing.is_empty() {
                true => Try::Done,
                false => self.measured_request(missing, &mut fetch, &mut blocks).await,
            };
            // At least one byte: without progress the retries come to an end.
            if retries_from >= fetch.missing_bytes() + self.requests.part_bytes.max(1) {
                // A long fetch may have as many errors as the short ones in its place.
                (retries_from, retries_left) = (fetch.missing_bytes(), self.requests.retries_max);
            }
            match end {
                Try::Done => {
                    blocks.offer();
                    fetch.fill(&suffix);
                    return fetch.finish();
                }
                // The end needs no report: no reader waits for it.
                Try::Ignored => return,
                Try::Changed(error) => break (error, DeviceError::Stale),
                Try::Failed(error) if !may_succeed_later(&error) || retries_left == 0 => {
                    let reason = reason_of(&error);
                    break (error, reason);
                }
                Try::WrongLength(error) if retries_left == 0 => {
                    break (error, DeviceError::Garbled);
                }
                // The next try requests the missing rest.
                Try::Failed(_) => {}
                // It is unknown which bytes are good, so all requested ones are dropped.
                Try::WrongLength(_) => {
                    fetch.restart();
                    blocks.restart();
                    fetch.fill(&prefix);
                }
            }
            retries_left -= 1;
        };
        if let Some(on_error) = &self.requests.on_error {
            on_error(&error);
        }
        fetch.fail(reason);
    }

    /// Requests a range, and reports the time to the disk tier.
    async fn measured_request(
        &self,
        range: Range<u64>,
        fetch: &mut Fetch,
        blocks: &mut Blocks,
    ) -> Try {
        let bytes = range.end - range.start;
        blocks.on_request(self.now());
        let end = self.request(range, fetch, blocks).await;
        // `None` for any other end: its time does not count.
        blocks.on_answer(self.now(), matches!(end, Try::Done).then_some(bytes));
        end
    }

    /// Time since the file was opened.
    fn now(&self) -> Time {
        Time(u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Requests a range, and stores its bytes.
    async fn request(&self, range: Range<u64>, fetch: &mut Fetch, blocks: &mut Blocks) -> Try {
        let location = &self.meta.location;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            // A weak ETag never matches.
            if_match: self.meta.e_tag.clone().filter(|tag| !is_weak(tag)),
            ..GetOptions::default()
        };
        let result = match self.requests.store.get_opts(location, options).await {
            Ok(result) => result,
            Err(error @ (Error::Precondition { .. } | Error::NotFound { .. })) => {
                return Try::Changed(error);
            }
            Err(error) => return Try::Failed(error),
        };
        if generation_of(&result.meta).as_ref() != Some(&self.generation)
            || result.meta.size != self.meta.size
        {
            let (path, source) = (location.to_string(), "the object has changed".into());
            return Try::Changed(Error::Precondition { path, source });
        }
        if result.range != range {
            return Try::Failed(other_range(location, &range, &result.range));
        }
        let mut body = body_of(result);
        let mut at = range.start;
        while let Some(chunk) = body.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => return Try::Failed(error),
            };
            let start = at;
            at += chunk.len() as u64;
            if at > range.end {
                return Try::WrongLength(too_long(location, &range));
            }
            if !fetch.fill(&chunk) {
                return Try::Ignored;
            }
            blocks.keep(start, chunk);
        }
        match at == range.end {
            true => Try::Done,
            false => Try::WrongLength(too_short(location, &range, at)),
        }
    }
}

impl Source for ObjectSource {
    fn bytes(&self) -> u64 {
        self.0.meta.size
    }

    fn fetch(&self, range: Range<u64>, fetch: Fetch) {
        let version = Arc::clone(&self.0);
        self.0.requests.runtime.spawn(async move { version.fetch(range, fetch).await });
    }

    fn fetch_bytes_max(&self) -> u64 {
        self.0.requests.part_bytes
    }

    /// The bytes of a small object have come with its opening.
    fn all_bytes(&self) -> Option<&[u8]> {
        self.0.opened_bytes.all(self.0.meta.size)
    }

    fn direct_fetch_bytes_max(&self) -> u64 {
        self.0.requests.direct_part_bytes
    }
}

/// Kind of an error for the reads: a missing right, or any other failure of the store.
fn reason_of(error: &Error) -> DeviceError {
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => DeviceError::Refused,
        _ => DeviceError::Medium,
    }
}

/// Time since the Unix epoch, by the clock of the system.
#[expect(clippy::disallowed_methods, reason = "versions without ETag are compared with the clock")]
fn unix_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

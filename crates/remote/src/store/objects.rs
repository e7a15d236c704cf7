//! Known objects: their version, and their file of the planner.

use std::collections::BTreeMap;
use std::time::Duration;

use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};

use crate::planner::{FileId, Generation, HandleId, Time};

/// Time after which a version without a strong ETag is settled. HTTP dates are whole seconds, so
/// that two versions within a second may look alike. The rest is for clocks that differ.
pub(crate) const SETTLING_TIME: Duration = Duration::from_secs(2);

/// A known object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Location, size, ETag and time of modification, from the answer with this version.
    pub(super) meta: ObjectMeta,
    /// Headers of that answer, such as the content type, for the results of gets.
    pub(super) attributes: Attributes,
    /// File and handle of the planner; `None` for an object that is not cached. It has no version,
    /// or not yet a settled one, or the planner has no place for it.
    pub(super) file: Option<(FileId, HandleId)>,
    /// Time from which on an object without a file is looked up again, to be cached.
    pub(super) settles_at: Time,
    /// Time at which the version was the current one, as far as known.
    pub(super) checked_at: Time,
    /// Time before which a check does not count, if there has been reason to doubt the version.
    doubted_at: Option<Time>,
    /// Number of the latest use, among the uses of all objects.
    used: u64,
}

impl Object {
    /// Returns true if the version was the current one at `since` or later, and is not in doubt. An
    /// object without a file counts only until it settles: another lookup may cache it then.
    pub(super) fn is_current(&self, since: Time, now: Time) -> bool {
        self.doubted_at.is_none()
            && self.checked_at >= since
            && (self.file.is_some() || now < self.settles_at)
    }
}

/// An object as the underlying store has described it.
pub(super) struct Found {
    pub(super) meta: ObjectMeta,
    pub(super) attributes: Attributes,
    /// Time at which the request began.
    pub(super) checked_at: Time,
    /// Time from which on its version can be cached: see [`settles_at`].
    pub(super) settles_at: Time,
}

/// Returns true if the ETag is a weak one: the bytes of two versions with it may differ, and it
/// never matches in `If-Match` (RFC 9110, section 8.8).
pub(crate) fn is_weak(tag: &str) -> bool {
    tag.starts_with("W/")
}

/// Version of an object: its ETag. Without one, or with a weak one, it is the time of modification
/// with the size. `None` without these; stores report the start of the Unix epoch for an unknown
/// time.
pub(crate) fn generation_of(meta: &ObjectMeta) -> Option<Generation> {
    let tag = meta.e_tag.as_deref();
    match tag {
        Some(tag) if !is_weak(tag) => Some(format!("tag {tag}").as_str().into()),
        _ => {
            let (modified, size) = (modified_at(meta)?, meta.size);
            let (seconds, nanos) = (modified.as_secs(), modified.subsec_nanos());
            let tag = tag.unwrap_or_default();
            Some(format!("time {seconds}.{nanos:09} size {size} {tag}").as_str().into())
        }
    }
}

/// Time at which the version of an object is *settled*: each later write gives it another version.
/// A strong ETag is settled at once, at `started`. Every other version is settled
/// [`SETTLING_TIME`] after the modification. Its request began at `started` by the clock of the
/// runtime, and at `unix_started` since the Unix epoch by the clock of the system.
pub(crate) fn settles_at(meta: &ObjectMeta, started: Time, unix_started: Duration) -> Time {
    if meta.e_tag.as_deref().is_some_and(|tag| !is_weak(tag)) {
        return started;
    }
    // An unknown version never counts.
    let Some(modified) = modified_at(meta) else { return Time(u64::MAX) };
    let rest = (modified + SETTLING_TIME).saturating_sub(unix_started);
    Time(started.0.saturating_add(u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX)))
}

/// Time of modification since the Unix epoch. `None` for the first second of the epoch and all
/// before it: stores report its start for an unknown time.
fn modified_at(meta: &ObjectMeta) -> Option<Duration> {
    let seconds = u64::try_from(meta.last_modified.timestamp()).ok().filter(|&it| it > 0)?;
    // In a leap second the type of the time counts up to two seconds of nanoseconds.
    Some(Duration::new(seconds, meta.last_modified.timestamp_subsec_nanos().min(999_999_999)))
}

/// Known objects by location.
///
/// Invariant: `by_use` has the locations of `objects`, and `by_file` the ones that have a file.
#[derive(Debug, Default)]
pub(super) struct Objects {
    objects: BTreeMap<Path, Object>,
    /// Locations of the objects that have a file.
    by_file: BTreeMap<FileId, Path>,
    /// Locations by the number of their latest use: the least recently used one is the first.
    by_use: BTreeMap<u64, Path>,
    /// Number of uses so far.
    uses: u64,
}

impl Objects {
    /// Number of known objects.
    pub(super) fn count(&self) -> usize {
        self.objects.len()
    }

    /// Locations of all known objects.
    #[cfg(feature = "opendal")]
    pub(super) fn locations(&self) -> impl Iterator<Item = &Path> {
        self.objects.keys()
    }

    /// The object, if it is known. Does not count as a use.
    pub(super) fn find(&self, location: &Path) -> Option<&Object> {
        self.objects.get(location)
    }

    /// The object, if it is known, as the most recently used one.
    pub(super) fn use_object(&mut self, location: &Path) -> Option<&Object> {
        let object = self.objects.get_mut(location)?;
        self.by_use.remove(&object.used);
        self.uses += 1;
        object.used = self.uses;
        self.by_use.insert(object.used, location.clone());
        Some(object)
    }

    /// Location of an open file of the planner; `None` for a file that no known object has.
    pub(super) fn location(&self, file: FileId) -> Option<&Path> {
        self.by_file.get(&file)
    }

    /// Adds an object whose location is not known.
    pub(super) fn add(&mut self, location: Path, found: Found, file: Option<(FileId, HandleId)>) {
        self.uses += 1;
        if let Some((file, _)) = file {
            self.by_file.insert(file, location.clone());
        }
        self.by_use.insert(self.uses, location.clone());
        let Found { meta, attributes, checked_at, settles_at } = found;
        let object = Object {
            meta,
            attributes,
            file,
            settles_at,
            checked_at,
            doubted_at: None,
            used: self.uses,
        };
        let old = self.objects.insert(location, object);
        debug_assert!(old.is_none(), "the location was forgotten before");
    }

    /// Records that the version of a file was still the current one at `time`, and ends a doubt
    /// that began at `time` or earlier. No effect on a file that no known object has.
    pub(super) fn confirm(&mut self, file: FileId, time: Time) {
        let location = self.by_file.get(&file);
        if let Some(object) = location.and_then(|location| self.objects.get_mut(location)) {
            object.checked_at = object.checked_at.max(time);
            object.doubted_at = object.doubted_at.filter(|&doubted_at| time < doubted_at);
        }
    }

    /// Makes the version of an object, if it is known, count only after a check from `now` on.
    pub(super) fn doubt(&mut self, location: &Path, now: Time) {
        if let Some(object) = self.objects.get_mut(location) {
            object.doubted_at = Some(now);
        }
    }

    /// Removes an object. Returns its file and handle, to be closed; `None` if it is not known, or
    /// has no file.
    pub(super) fn remove(&mut self, location: &Path) -> Option<(FileId, HandleId)> {
        let object = self.objects.remove(location)?;
        self.by_use.remove(&object.used);
        if let Some((file, _)) = object.file {
            self.by_file.remove(&file);
        }
        object.file
    }

    /// The location of the least recently used object that `may_go`; `None` if none may.
    pub(super) fn oldest(&self, may_go: impl Fn(&Object) -> bool) -> Option<Path> {
        self.by_use.values().find(|location| may_go(&self.objects[*location])).cloned()
    }
}

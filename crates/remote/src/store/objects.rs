//! Known objects: their version, and their file of the planner.

use std::collections::BTreeMap;

use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};

use crate::planner::{FileId, Generation, HandleId, Time};

/// A known object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) meta: ObjectMeta,
    pub(super) attributes: Attributes,
    /// File and handle of the planner; `None` for an object without a version, which is not cached.
    pub(super) file: Option<(FileId, HandleId)>,
    /// Time at which the version was the current one, as far as known.
    pub(super) checked_at: Time,
    /// Number of the latest use.
    used: u64,
}

/// Version of an object: its ETag, or else its time of modification and its size. `None` without
/// either; stores report the start of the Unix epoch for an unknown time.
pub(super) fn generation_of(meta: &ObjectMeta) -> Option<Generation> {
    match &meta.e_tag {
        Some(tag) => Some(format!("tag {tag}").as_str().into()),
        None if meta.last_modified.timestamp() <= 0 => None,
        None => {
            let (time, size) = (&meta.last_modified, meta.size);
            let nanos = time.timestamp_subsec_nanos();
            Some(format!("time {}.{nanos:09} size {size}", time.timestamp()).as_str().into())
        }
    }
}

/// Known objects by location.
///
/// Invariant: `by_file` and `by_use` have the locations of `objects`, and no others.
#[derive(Debug, Default)]
pub(super) struct Objects {
    objects: BTreeMap<Path, Object>,
    by_file: BTreeMap<FileId, Path>,
    by_use: BTreeMap<u64, Path>,
    uses: u64,
}

impl Objects {
    /// Number of known objects.
    pub(super) fn count(&self) -> usize {
        self.objects.len()
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

    /// Location of an open file of the planner.
    pub(super) fn location(&self, file: FileId) -> Option<&Path> {
        self.by_file.get(&file)
    }

    /// Adds an object whose location is not known.
    pub(super) fn add(
        &mut self,
        location: Path,
        meta: ObjectMeta,
        attributes: Attributes,
        file: Option<(FileId, HandleId)>,
        checked_at: Time,
    ) {
        self.uses += 1;
        if let Some((file, _)) = file {
            self.by_file.insert(file, location.clone());
        }
        self.by_use.insert(self.uses, location.clone());
        let object = Object { meta, attributes, file, checked_at, used: self.uses };
        let old = self.objects.insert(location, object);
        debug_assert!(old.is_none(), "the location was forgotten before");
    }

    /// Records that the version of a file was still the current one at `time`.
    pub(super) fn confirm(&mut self, file: FileId, time: Time) {
        let location = self.by_file.get(&file);
        if let Some(object) = location.and_then(|location| self.objects.get_mut(location)) {
            object.checked_at = object.checked_at.max(time);
        }
    }

    /// Removes an object. Returns its file and handle, to be closed.
    pub(super) fn remove(&mut self, location: &Path) -> Option<(FileId, HandleId)> {
        let object = self.objects.remove(location)?;
        self.by_use.remove(&object.used);
        if let Some((file, _)) = object.file {
            self.by_file.remove(&file);
        }
        object.file
    }

    /// The least recently used object that `may_go`.
    pub(super) fn oldest(&self, may_go: impl Fn(&Object) -> bool) -> Option<Path> {
        self.by_use.values().find(|location| may_go(&self.objects[*location])).cloned()
    }
}

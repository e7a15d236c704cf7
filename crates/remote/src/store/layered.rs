//! Parts of a store for a layer of another interface, whose writes pass to its own storage. An
//! *opening* is a request for the version of an object that is in flight.

use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore, Result};

use super::objects::generation_of;
use super::writes::WriteGuard;
use super::{ReadpathStore, may_be_cached};
use crate::planner::Time;

impl<S: ObjectStore> ReadpathStore<S> {
    /// A get from the cache. `None` if it must pass straight to the storage.
    pub(crate) async fn cached_read(
        &self,
        location: &Path,
        options: &GetOptions,
    ) -> Result<Option<GetResult>> {
        match may_be_cached(options) {
            true => self.cached_get(location, options).await,
            false => Ok(None),
        }
    }

    /// The time of the runtime.
    pub(crate) fn now(&self) -> Time {
        self.0.now()
    }

    /// Length of an object in bytes; `None` if it is not known.
    pub(crate) fn known_bytes(&self, location: &Path) -> Option<u64> {
        self.0.lock().objects.find(location).map(|object| object.meta.size)
    }

    /// The storage has described an object by the answer to a request that began at `started`. A
    /// known object of this version counts as checked, if it has a file of the planner. One of
    /// another version is forgotten.
    pub(crate) fn on_version(&self, meta: &ObjectMeta, started: Time) {
        self.0.run(|state, now| {
            let Some(object) = state.objects.find(&meta.location) else { return };
            let (known, file) = (&object.meta, object.file);
            let is_same = generation_of(known) == generation_of(meta) && known.size == meta.size;
            match (is_same, file) {
                (true, Some((file, _))) => state.objects.confirm(file, started),
                (true, None) => {}
                (false, _) => state.forget(now, &meta.location),
            }
        });
    }

    /// A guard for a write of an object that begins now.
    pub(crate) fn write_guard(&self, location: &Path) -> WriteGuard<S> {
        WriteGuard::new(&self.0, location)
    }

    /// Forgets all objects at and below a location. Destructors call it, too.
    pub(crate) fn forget_below(&self, prefix: &Path) {
        self.0.run_in_drop(|state, now| {
            let locations = state.objects.locations().chain(state.openings.keys());
            let below: Vec<Path> =
                locations.filter(|location| location.prefix_matches(prefix)).cloned().collect();
            for location in below {
                state.forget(now, &location);
            }
        });
    }
}

//! Options of a store.

use std::time::Duration;

use super::blocks::Disk;
#[cfg(all(feature = "disk", target_os = "linux"))]
use crate::disk::DiskStore;
use crate::planner::PlannerOptions;

/// Options of a [`ReadpathStore`](super::ReadpathStore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Memory, size of a fetch, and readahead policy.
    pub planner: PlannerOptions,
    /// Time for which a known version of an object counts as the current one. Default 10 s. A get
    /// may return the version that was current up to this long before. Each fetch from the store
    /// confirms the version. The first get of a known object after this time waits for a
    /// request for its version, before its own fetches. With zero, each get of a known object costs
    /// such a request. Writes through this store take effect at once.
    pub max_age: Duration,
    /// Number of times that a get is repeated after its object changed. Default 8. After that the
    /// get passes straight to the underlying store, whose answer is of one version.
    pub repeats_max: u32,
    /// Number of times that a fetch is continued after an error or a short body. Default 1. The
    /// next try follows at once. Most clients of stores wait and retry on their own before they
    /// return an error. Each further try here repeats all of that: 10 retries of the client and 1
    /// here make up to 22 requests. Joined ranges fail together. If readahead was added to a fetch,
    /// it is sent once again without that, with as many requests.
    pub retries_max: u32,
    /// Number of objects that are remembered. Default 4,096. The least recently used one is
    /// forgotten, with its pages.
    pub objects_max: usize,
    /// Disk tier of the objects. Default: none.
    #[cfg(all(feature = "disk", target_os = "linux"))]
    pub disk: Option<DiskStore>,
}

#[cfg(all(feature = "disk", target_os = "linux"))]
impl StoreOptions {
    /// The options with a disk tier.
    #[must_use]
    pub fn with_disk(self, disk: DiskStore) -> StoreOptions {
        StoreOptions { disk: Some(disk), ..self }
    }
}

impl StoreOptions {
    /// The disk tier, if there is one.
    pub(super) fn disk_tier(&self) -> Disk {
        Disk {
            #[cfg(all(feature = "disk", target_os = "linux"))]
            store: self.disk.clone(),
        }
    }
}

impl Default for StoreOptions {
    /// The defaults that the fields state.
    fn default() -> StoreOptions {
        StoreOptions {
            planner: PlannerOptions::default(),
            max_age: Duration::from_secs(10),
            repeats_max: 8,
            retries_max: 1,
            objects_max: 4096,
            #[cfg(all(feature = "disk", target_os = "linux"))]
            disk: None,
        }
    }
}

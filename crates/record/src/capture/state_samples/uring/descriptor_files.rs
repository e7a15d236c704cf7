//! Objects at the descriptors of requests.

use std::collections::HashMap;
use std::fs;

use super::super::super::names::{FileNames, OpenFile, System};

/// Time in nanoseconds, chosen, for which the file of a descriptor is taken to be the same.
const DESCRIPTOR_NS: u64 = 100_000_000;

/// Object at a descriptor.
#[derive(Clone, Debug)]
pub(super) enum FoundObject {
    /// Regular file or block device, with its name, size and flags.
    File(OpenFile),
    /// Socket, pipe, counter of events or another object without offsets.
    NoFile,
    /// Closed, or not readable for this user.
    Unknown,
}

/// Files of descriptors, by process and descriptor, with the time of the look.
#[derive(Debug)]
pub(super) struct DescriptorFiles {
    /// Looks up the file of a descriptor in `/proc`.
    system: System,
    /// Time of the last look in nanoseconds and its answer, by process and descriptor.
    files: HashMap<(u32, u64), (u64, FoundObject)>,
}

impl DescriptorFiles {
    /// Creates an empty table.
    pub fn new() -> DescriptorFiles {
        DescriptorFiles { system: System::new(), files: HashMap::new() }
    }

    /// Object at a descriptor. Within `DESCRIPTOR_NS` of a look-up its answer is repeated.
    pub fn object(&mut self, process: u32, descriptor: u64, at_ns: u64) -> FoundObject {
        let entry = self.files.get(&(process, descriptor));
        if let Some((looked_ns, file)) = entry
            && at_ns.saturating_sub(*looked_ns) < DESCRIPTOR_NS
        {
            return file.clone();
        }
        let is_open = || fs::metadata(format!("/proc/{process}/fd/{descriptor}")).is_ok();
        let object = match self.system.open_file(process, descriptor) {
            Some(file) => FoundObject::File(file),
            None if is_open() => FoundObject::NoFile,
            None => FoundObject::Unknown,
        };
        self.files.insert((process, descriptor), (at_ns, object.clone()));
        object
    }
}

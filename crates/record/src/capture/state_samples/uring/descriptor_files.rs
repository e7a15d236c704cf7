//! Objects at the descriptors of requests.

use std::collections::HashMap;

use super::super::super::names::{FileNames, OpenFile, System, is_without_offsets};
use super::super::super::now_ns;

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

impl FoundObject {
    /// True for an object without offsets.
    pub fn is_no_file(&self) -> bool {
        matches!(self, FoundObject::NoFile)
    }
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

    /// Object at the descriptor of a request that began at `begin_ns`, at the time `at_ns`. An
    /// earlier answer is repeated if it is younger than `DESCRIPTOR_NS` then, except
    /// [`FoundObject::NoFile`]. This answer is looked up again for a request that began after it:
    /// its read would be dropped, and a file may be open at the number by now. For an older request
    /// it is the object for good, so that idle sockets are looked up once.
    pub fn object(
        &mut self,
        process: u32,
        descriptor: u64,
        begin_ns: u64,
        at_ns: u64,
    ) -> &FoundObject {
        let key = (process, descriptor);
        let is_known =
            self.files.get(&key).is_some_and(|(looked_ns, object)| match object.is_no_file() {
                true => *looked_ns >= begin_ns,
                false => at_ns.saturating_sub(*looked_ns) < DESCRIPTOR_NS,
            });
        if !is_known {
            let object = self.look_up(process, descriptor);
            self.files.insert(key, (now_ns(), object));
        }
        &self.files[&key].1
    }

    /// Looks up the object at a descriptor.
    fn look_up(&mut self, process: u32, descriptor: u64) -> FoundObject {
        match self.system.open_file(process, descriptor) {
            Some(file) => FoundObject::File(file),
            None if is_without_offsets(process, descriptor) => FoundObject::NoFile,
            None => FoundObject::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    /// A pipe is closed, and a file gets its number. The older request is one of the pipe.
    #[test]
    fn file_at_the_number_of_a_closed_pipe_is_found_at_once() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        let pipe = OwnedFd::from(pipe);
        let (process, number) = (std::process::id(), pipe.as_raw_fd());
        let mut files = DescriptorFiles::new();
        let begin_ns = now_ns();
        let first = files.object(process, number as u64, begin_ns, now_ns());
        assert!(first.is_no_file(), "{first:?}");
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        // SAFETY: the number belongs to `pipe`, which is forgotten for its new owner.
        let _file = unsafe {
            assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
            std::mem::forget(pipe);
            OwnedFd::from_raw_fd(number)
        };
        let older = files.object(process, number as u64, begin_ns, now_ns());
        assert!(older.is_no_file(), "{older:?}");
        let younger = files.object(process, number as u64, now_ns(), now_ns());
        assert!(matches!(younger, FoundObject::File(_)), "{younger:?}");
    }
}

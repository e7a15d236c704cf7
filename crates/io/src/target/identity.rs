//! Identity of a file's version: cached pages are valid for one version. Also the option for the
//! times at which a path checks it. In a simulation (`cfg(simulation)`) files and their times are
//! simulated.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Statx;

use crate::target::Target;

/// Times at which a [`ReadPath`](crate::ReadPath) checks whether a file was changed by another
/// process, or in this process without the path.
///
/// One check is one `fstat(2)`: device, inode, length, modification time and change time. A handle
/// that sees a change reads the file again, with its new [length](crate::File::len), and uses none
/// of the older cached pages. Guards and reads in progress keep their bytes.
///
/// The check misses stores to a shared mapping (times are updated late), writes to a block device,
/// and changes while the system clock is set back. Files of a server (`nfs://`) are not checked,
/// and are not opened with another value than the default.
/// For a file on a kernel NFS mount, the times are as fresh as the mount (`actimeo`, nfs(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coherence {
    /// Checks only at opening and at [revalidation](crate::File::revalidate). After a change, a
    /// handle returns its cached bytes as they were and the rest as they are. Fits files that do
    /// not change while they are read.
    #[default]
    WhenOpened,
    /// Also checks when a read misses the cache and when bytes are prefetched. No read returns both
    /// bytes cached before a change and bytes requested after it. Requests in flight during the
    /// change return either state. Two changes within one tick of the file system's clock look like
    /// one (10 ms or less; FAT: 2 s).
    EachMiss,
    /// Checks at each read. A read that begins after a write or truncation has returned sees none
    /// of the older bytes. A change less than 2 s old may be followed by another one with the same
    /// times. For that long after a change, no read of the file uses the cache.
    EachRead,
}

/// Version of a file for which cached pages are valid. The order keeps versions of one file
/// adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    /// Number of the file system's device as in stat(2), or the server's number of the file system.
    pub(crate) device: u64,
    /// Inode number, or the server's number of the file.
    pub(crate) inode: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Time of the last change of the bytes: seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
    /// Time of the last change of the file or of its attributes, in the same units.
    pub(crate) changed: (i64, i64),
    /// A number unique to this value if the file may still change without a change of its times;
    /// else 0.
    pub(crate) unstable_id: u64,
}

/// Age of a change in seconds after which the times are reliable. Until then another change may
/// have the same times: they show the start of a write, and file systems have resolutions of up to
/// 1 s, FAT of 2 s.
const STABLE_AFTER_SECONDS: i64 = 2;

impl Identity {
    /// Creates the identity from the answer of statx(2), without an unstable id. Its length is 0
    /// for a block device.
    pub(crate) fn from_statx(stat: &Statx) -> Identity {
        let time = |time: rustix::fs::StatxTimestamp| (time.tv_sec, i64::from(time.tv_nsec));
        Identity {
            device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            bytes: stat.stx_size,
            modified: time(stat.stx_mtime),
            changed: time(stat.stx_ctime),
            unstable_id: 0,
        }
    }

    /// Present identity of an open file. The caller [marks](Identity::with_unstable_id) it with a
    /// time taken before this call.
    ///
    /// # Errors
    /// The error of fstat(2).
    pub(crate) fn from_target(target: &Target) -> rustix::io::Result<Identity> {
        #[cfg(simulation)]
        if let Some(identity) = target.simulated_identity() {
            return Ok(identity);
        }
        let stat = rustix::fs::fstat(target)?;
        Ok(Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
            // For a block device `st_size` is 0.
            bytes: if target.is_block_device() { target.bytes() } else { stat.st_size as u64 },
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
            unstable_id: 0,
        })
    }

    /// With [`Coherence::EachRead`]: returns a unique identity if the last change was at most 2 s
    /// before `read_time`, or after it. Otherwise returns `self`. The identity was read at or after
    /// `read_time`, in seconds and nanoseconds.
    pub(crate) fn with_unstable_id(self, read_time: (i64, i64), coherence: Coherence) -> Identity {
        static LAST_UNSTABLE_ID: AtomicU64 = AtomicU64::new(0);
        let (seconds, nanoseconds) = read_time;
        // The change time also covers changes of the bytes.
        let is_settled = self.changed < (seconds - STABLE_AFTER_SECONDS, nanoseconds);
        match coherence == Coherence::EachRead && !is_settled {
            true => Identity {
                unstable_id: 1 + LAST_UNSTABLE_ID.fetch_add(1, Ordering::Relaxed),
                ..self
            },
            false => self,
        }
    }

    /// True if both belong to the same file, in any version.
    pub(crate) fn is_same_file(&self, other: &Identity) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// True if device, inode, length and times are equal: no change of the file is known.
    pub(crate) fn is_same_version(&self, other: &Identity) -> bool {
        Identity { unstable_id: 0, ..*self } == Identity { unstable_id: 0, ..*other }
    }

    /// True if bytes read at version `before` are still valid at this version. Equal times prove
    /// that only if they were reliable at `before`. Their present reliability does not matter.
    pub(crate) fn is_unchanged_since(&self, before: &Identity) -> bool {
        before.unstable_id == 0 && Identity { unstable_id: 0, ..*self } == *before
    }

    /// Range of all identities of this file: from the least to the greatest length, times and
    /// unstable id.
    pub(crate) fn all_versions(&self) -> std::ops::RangeInclusive<Identity> {
        let lowest_version = Identity {
            bytes: 0,
            modified: (i64::MIN, 0),
            changed: (i64::MIN, 0),
            unstable_id: 0,
            ..*self
        };
        let time_max = (i64::MAX, i64::MAX);
        let greatest_version = Identity {
            bytes: u64::MAX,
            modified: time_max,
            changed: time_max,
            unstable_id: u64::MAX,
            ..*self
        };
        lowest_version..=greatest_version
    }
}

/// Present time of the clock of file time stamps, in seconds and nanoseconds since 1970. Its
/// resolution is one tick of the system.
pub(crate) fn file_time() -> (i64, i64) {
    #[cfg(simulation)]
    if let Some(time) = crate::simulation::file_time() {
        return time;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is local. The call cannot fail: every kernel has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    (time.tv_sec, time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identity of a file that was last changed at this time.
    fn changed_at(seconds: i64) -> Identity {
        let time = (seconds, 5);
        Identity { device: 1, inode: 2, bytes: 3, modified: time, changed: time, unstable_id: 0 }
    }

    /// The identities are read at 100 s. A change more than 2 s before, at 97 s, is settled; a
    /// change at 98 s is not.
    #[test]
    fn recently_changed_file_gets_a_distinct_identity_with_each_read() {
        let read_time = (100, 5);
        let old = changed_at(97).with_unstable_id(read_time, Coherence::EachRead);
        assert!(old == changed_at(97) && changed_at(97).is_unchanged_since(&old));
        let [first, second] = [98, 98]
            .map(|seconds| changed_at(seconds).with_unstable_id(read_time, Coherence::EachRead));
        assert!(
            first != second
                && !changed_at(98).is_unchanged_since(&first)
                && first.is_same_file(&second)
        );
        for coherence in [Coherence::WhenOpened, Coherence::EachMiss] {
            assert_eq!(changed_at(100).with_unstable_id(read_time, coherence), changed_at(100));
        }
    }

    #[test]
    fn identities_of_one_file_form_a_contiguous_key_range() {
        let file = changed_at(-7);
        let longer = Identity { bytes: u64::MAX, ..changed_at(i64::MAX) };
        assert!(file.all_versions().contains(&longer) && longer.all_versions().contains(&file));
        let others = [Identity { inode: 1, ..file }, Identity { inode: 3, ..file }];
        assert!(others.iter().all(|other| !file.all_versions().contains(other)));
    }
}

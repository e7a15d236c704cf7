//! Options of an NFS server, and their defaults.

use readpath_core::unit::{PAGE_BYTES, Time};

use super::rpc::Credentials;

/// Largest READ in bytes: Linux's `NFS_MAX_FILE_IO_SIZE`.
pub const READ_BYTES_MAX: u64 = 1 << 20;

/// Largest value of the option `slots`.
const SLOTS_MAX: u64 = 1024;

/// Local port of the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePort {
    /// A port below 1024 if the system permits it (root), otherwise any port. Many servers reject
    /// calls from other ports (`secure` in exports(5)).
    #[default]
    ReservedIfAllowed,
    /// Any port.
    Any,
}

/// Options of a server. In a URL, each follows the `?` under the name given here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsOptions {
    /// `rsize`: largest READ in bytes, from 4 KiB to 1 MiB in whole pages. The server's maximum
    /// also applies. Default: the server's preferred size.
    pub rsize_bytes_max: Option<u64>,
    /// `slots`: number of READs in flight, besides one other call. Default 64, from 1 to 1,024.
    /// Each may have `rsize` bytes in flight.
    pub slots: u32,
    /// `repeat`: time without an answer, to it or to a call that was sent no later, after which a
    /// call is sent again. A connection that was silent for all of it is replaced. Default 5 s, at
    /// least 10 ms.
    pub repeat_after: Time,
    /// `timeout`: time after which a call fails. Default 60 s, at least `repeat`.
    pub give_up_after: Time,
    /// `mountport`: port of MOUNT. Default: the URL's port, or without one the port from the
    /// server's port mapper.
    pub mount_port: Option<u16>,
    /// `uid`, `gid`: user of the calls. Default: the user that this program runs as, with its other
    /// groups. Each of the options removes the other groups and leaves the other number: `uid`
    /// alone keeps this program's group, as in libnfs. For another user set both.
    pub credentials: Credentials,
    /// `source`: `reserved` (default) or `any`.
    pub source_port: SourcePort,
}

impl Default for NfsOptions {
    /// Returns the defaults that the fields name. The numbers are chosen, not measured.
    fn default() -> NfsOptions {
        NfsOptions {
            rsize_bytes_max: None,
            slots: 64,
            repeat_after: Time::from_s(5),
            give_up_after: Time::from_s(60),
            mount_port: None,
            credentials: Credentials::of_process(),
            source_port: SourcePort::default(),
        }
    }
}

impl Credentials {
    /// Returns the credentials of this process: its effective user and group, and its other groups.
    /// If the system reports no list of groups, none is sent.
    pub fn of_process() -> Credentials {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let gids = rustix::process::getgroups().unwrap_or_default();
        Credentials {
            machine: name,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            gids: gids.iter().map(|gid| gid.as_raw()).collect(),
        }
    }
}

impl NfsOptions {
    /// Sets the option `name` from its text in a URL.
    ///
    /// # Errors
    /// Describes the expected value.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "rsize" => {
                let bytes = parse_number(value, PAGE_BYTES..=READ_BYTES_MAX)?;
                if !bytes.is_multiple_of(PAGE_BYTES) {
                    return Err(format!("a multiple of {PAGE_BYTES} bytes"));
                }
                self.rsize_bytes_max = Some(bytes);
            }
            "slots" => self.slots = parse_number(value, 1..=SLOTS_MAX)? as u32,
            "repeat" => self.repeat_after = parse_time(value, Time::from_ms(10))?,
            // `check` compares it with `repeat`, which may be set later.
            "timeout" => self.give_up_after = parse_time(value, Time::from_ms(10))?,
            "mountport" => self.mount_port = Some(parse_number(value, 1..=65_535)? as u16),
            "uid" | "gid" => {
                let id = parse_number(value, 0..=u64::from(u32::MAX))? as u32;
                let Credentials { uid, gid, gids, .. } = &mut self.credentials;
                *(if name == "uid" { uid } else { gid }) = id;
                // The further groups of this process belong to its own user. Its group stays with
                // `uid` alone, and may add rights that the given user lacks.
                gids.clear();
            }
            "source" => {
                self.source_port = match value {
                    "reserved" => SourcePort::ReservedIfAllowed,
                    "any" => SourcePort::Any,
                    _ => return Err("`reserved` or `any`".to_owned()),
                }
            }
            _ => {
                return Err(
                    "one of rsize, slots, repeat, timeout, mountport, uid, gid, source".to_owned()
                );
            }
        }
        Ok(())
    }

    /// Checks conditions between several options.
    ///
    /// # Errors
    /// The wrong option, and a description of the expected value.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.give_up_after < self.repeat_after {
            let repeat_ms = self.repeat_after.ns() / 1_000_000;
            return Err(("timeout", format!("no less than `repeat` ({repeat_ms}ms)")));
        }
        Ok(())
    }
}

/// Parses a number within `bounds`. The error describes the expected value.
fn parse_number(text: &str, bounds: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let value = text.parse().ok().filter(|value| bounds.contains(value));
    value.ok_or_else(|| format!("a whole number from {} to {}", bounds.start(), bounds.end()))
}

/// Parses a time with its unit, `ms` or `s`, from `time_min` to an hour. The error describes the
/// expected value.
fn parse_time(text: &str, time_min: Time) -> Result<Time, String> {
    let (digits, unit_ms) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        // Text without a unit is replaced by an empty one, which is no number.
        None => (text.strip_suffix('s').unwrap_or(""), 1_000),
    };
    let time_max = Time::from_s(3_600);
    let value = digits.parse::<u64>().ok();
    let value_ns = value.and_then(|value| value.checked_mul(unit_ms * 1_000_000));
    let time = value_ns.map(Time).filter(|time| (time_min..=time_max).contains(time));
    time.ok_or_else(|| {
        format!(
            "a time with its unit, such as 500ms or 5s, from {}ms to 3600s",
            time_min.ns() / 1_000_000
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An explicit user has none of the further groups of this process.
    #[test]
    fn explicit_user_or_group_sends_no_groups_of_this_process() {
        for (name, user, group) in [("uid", 1000, 8), ("gid", 7, 1000)] {
            let credentials =
                Credentials { machine: "here".to_owned(), uid: 7, gid: 8, gids: vec![0, 9] };
            let mut options = NfsOptions { credentials, ..NfsOptions::default() };
            options.set(name, "1000").unwrap();
            let Credentials { uid, gid, gids, .. } = options.credentials;
            assert_eq!((uid, gid, gids), (user, group, vec![]), "{name}");
        }
    }
}

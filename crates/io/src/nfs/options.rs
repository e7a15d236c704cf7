//! How an NFS server is talked to, and the defaults.

use readpath_core::unit::{PAGE_BYTES, Time};

use super::rpc::Credentials;

/// The largest READ that is ever asked for: Linux's `NFS_MAX_FILE_IO_SIZE`.
pub const READ_BYTES_MAX: u64 = 1 << 20;

/// The most calls that can be asked to be in flight at once.
const SLOTS_MAX: u64 = 1024;

/// Which port of this machine calls come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePort {
    /// Below 1024 where the system allows that (root), else any. Many servers
    /// refuse calls from other ports (`secure` in exports(5)).
    #[default]
    ReservedIfAllowed,
    /// Any.
    Any,
}

/// How a server is talked to. In a URL each stands behind the `?` under the name that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsOptions {
    /// `rsize`: the most bytes of one READ, from 4 KiB to 1 MiB in whole pages;
    /// what the server takes at most is kept as well. Default: what the server prefers.
    pub rsize_bytes_max: Option<u64>,
    /// `slots`: calls in flight at once. Default 64, from 1 to 1,024. Each may
    /// have `rsize` bytes under way.
    pub slots: u32,
    /// `repeat`: after how long without an answer a call is sent again, or a
    /// silent connection replaced. Default 5 s, at least 10 ms.
    pub repeat_after: Time,
    /// `timeout`: after how long a call fails. Default 60 s, at least `repeat`.
    pub give_up_after: Time,
    /// `attributes`: how long the length of a file, once told, is believed
    /// without asking again. Default 3 s: nfs(5)'s `acregmin`.
    pub attributes_age_max: Time,
    /// `mountport`: where MOUNT is served. Default: the URL's port; without one,
    /// what the server's port mapper says.
    pub mount_port: Option<u16>,
    /// `uid`, `gid`: who asks. Default: the user that this program runs as.
    pub credentials: Credentials,
    /// `source`: `reserved` (default) or `any`.
    pub source_port: SourcePort,
}

impl Default for NfsOptions {
    fn default() -> NfsOptions {
        NfsOptions {
            rsize_bytes_max: None,
            slots: 64,
            repeat_after: Time::from_s(5),
            give_up_after: Time::from_s(60),
            attributes_age_max: Time::from_s(3),
            mount_port: None,
            credentials: Credentials::of_process(),
            source_port: SourcePort::default(),
        }
    }
}

impl Credentials {
    /// Those of this program.
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
    /// What would have been right, in words.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "rsize" => {
                let bytes = number(value, PAGE_BYTES..=READ_BYTES_MAX)?;
                if !bytes.is_multiple_of(PAGE_BYTES) {
                    return Err(format!("a multiple of {PAGE_BYTES} bytes"));
                }
                self.rsize_bytes_max = Some(bytes);
            }
            "slots" => self.slots = number(value, 1..=SLOTS_MAX)? as u32,
            "repeat" => self.repeat_after = time(value, Time::from_ms(10))?,
            "timeout" => self.give_up_after = time(value, Time::from_ms(10))?,
            "attributes" => self.attributes_age_max = time(value, Time::ZERO)?,
            "mountport" => self.mount_port = Some(number(value, 1..=65_535)? as u16),
            "uid" => self.credentials.uid = number(value, 0..=u64::from(u32::MAX))? as u32,
            "gid" => self.credentials.gid = number(value, 0..=u64::from(u32::MAX))? as u32,
            "source" => {
                self.source_port = match value {
                    "reserved" => SourcePort::ReservedIfAllowed,
                    "any" => SourcePort::Any,
                    _ => return Err("`reserved` or `any`".to_owned()),
                }
            }
            _ => {
                return Err("one of rsize, slots, repeat, timeout, attributes, mountport, uid, \
                            gid, source"
                    .to_owned());
            }
        }
        Ok(())
    }

    /// What only holds of several options together.
    ///
    /// # Errors
    /// The option at fault, and what would have been right, in words.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.give_up_after < self.repeat_after {
            let repeat_ms = self.repeat_after.ns() / 1_000_000;
            return Err(("timeout", format!("no less than `repeat` ({repeat_ms}ms)")));
        }
        Ok(())
    }
}

fn number(text: &str, bounds: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let value = text.parse().ok().filter(|value| bounds.contains(value));
    value.ok_or_else(|| format!("a whole number from {} to {}", bounds.start(), bounds.end()))
}

/// A time with its unit: `ms` or `s`; up to an hour.
fn time(text: &str, least: Time) -> Result<Time, String> {
    let (digits, ms) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s').unwrap_or(""), 1_000),
    };
    let most = Time::from_s(3_600);
    let value = digits.parse::<u64>().ok().and_then(|value| value.checked_mul(ms * 1_000_000));
    let value = value.map(Time).filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| {
        format!(
            "a time with its unit, such as 500ms or 5s, from {}ms to 3600s",
            least.ns() / 1_000_000
        )
    })
}

//! Remote procedure calls, version 2 (RFC 5531): the head of a call, and the head of a reply before
//! its results.

use super::xdr::{Garbled, XdrReader, put_opaque, put_u32};

/// A procedure of a program, by the numbers of its standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Procedure {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) number: u32,
}

/// Credentials of a call: `AUTH_SYS` (RFC 5531, appendix A).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Name of this machine. At most 255 bytes of it are sent.
    pub machine: String,
    /// User.
    pub uid: u32,
    /// First group of the user.
    pub gid: u32,
    /// Other groups of the user. The first sixteen are sent.
    pub gids: Vec<u32>,
}

/// Reason for a call without results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The server did not answer in time.
    TimedOut,
    /// Several times, an answer could not be decoded, or the server could not decode the call.
    Garbled,
    /// The server does not accept these credentials.
    Denied {
        /// `auth_stat` of RFC 5531: 1 bad, 2 rejected, 5 too weak.
        auth_stat: u32,
    },
    /// The server lacks the program, version or procedure, or speaks another version of RPC.
    Unavailable,
    /// The server has an internal error, such as lack of memory.
    ServerFault,
    /// The kernel of this machine provides no eventfd to sleep on.
    NoEventFd,
}

/// A decoded reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    /// Transaction id of its call.
    pub(crate) xid: u32,
    /// Results, or the reason for their absence.
    pub(crate) results: Result<&'a [u8], CallError>,
}

// Numbers of RFC 5531: message types, version, and authentication flavors.
const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// Longest body of a verifier or credential in bytes.
const AUTH_BYTES_MAX: usize = 400;

/// Byte range of the transaction id in a message of [`write_call`], behind the record mark.
const XID_RANGE: std::ops::Range<usize> = 4..8;

impl Credentials {
    /// Encodes the body of the credential for every call, within the limits of RFC 5531: a name of
    /// 255 bytes and 16 further groups.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let name = self.machine.as_bytes();
        let mut body = Vec::new();
        // Stamp: any number.
        put_u32(&mut body, 0);
        put_opaque(&mut body, &name[..name.len().min(255)]);
        put_u32(&mut body, self.uid);
        put_u32(&mut body, self.gid);
        let gids = &self.gids[..self.gids.len().min(16)];
        put_u32(&mut body, gids.len() as u32);
        gids.iter().for_each(|&gid| put_u32(&mut body, gid));
        body
    }
}

/// Writes a call with transaction id `xid` to `message`, whose content is replaced. The call is one
/// record: mark, head, and the arguments that `put_arguments` adds. `credentials` is the encoded
/// body of the credential.
pub(crate) fn write_call(
    message: &mut Vec<u8>,
    xid: u32,
    procedure: Procedure,
    credentials: &[u8],
    put_arguments: impl FnOnce(&mut Vec<u8>),
) {
    message.clear();
    // Place of the record mark, which is written at the end.
    put_u32(message, 0);
    for word in
        [xid, CALL, RPC_VERSION, procedure.program, procedure.version, procedure.number, AUTH_SYS]
    {
        put_u32(message, word);
    }
    put_opaque(message, credentials);
    put_u32(message, AUTH_NONE);
    put_opaque(message, &[]);
    put_arguments(message);
    // Length of the only fragment, with the flag of the last one.
    let mark = (message.len() as u32 - 4) | 1 << 31;
    message[..4].copy_from_slice(&mark.to_be_bytes());
}

/// Replaces the transaction id in a message that [`write_call`] has written.
pub(crate) fn change_xid(message: &mut [u8], xid: u32) {
    message[XID_RANGE].copy_from_slice(&xid.to_be_bytes());
}

/// Decodes a reply up to its results. `record` is the reply without its record mark. A reply that
/// refuses the call is decoded too; its results are then the reason.
///
/// # Errors
/// The bytes are no reply of RFC 5531.
pub(crate) fn read_reply(record: &[u8]) -> Result<Reply<'_>, Garbled> {
    let mut reader = XdrReader::new(record);
    let xid = reader.u32()?;
    if reader.u32()? != REPLY {
        return Err(Garbled);
    }
    let results = match reader.u32()? {
        // MSG_ACCEPTED and MSG_DENIED.
        0 => read_accepted(reader)?,
        1 => Err(read_denied(reader)?),
        _ => return Err(Garbled),
    };
    Ok(Reply { xid, results })
}

/// Decodes the rest of an accepted reply, by the numbers of RFC 5531 (accept_stat). Returns the
/// undecoded results, or the reason for their absence. The server's verifier is not checked.
fn read_accepted(mut reader: XdrReader<'_>) -> Result<Result<&[u8], CallError>, Garbled> {
    let _flavor = reader.u32()?;
    let _verifier = reader.opaque(AUTH_BYTES_MAX)?;
    Ok(match reader.u32()? {
        0 => Ok(reader.remaining()),
        // Unknown program, version or procedure.
        1..=3 => Err(CallError::Unavailable),
        // The server could not decode the arguments, so they were damaged on the way.
        4 => Err(CallError::Garbled),
        5 => Err(CallError::ServerFault),
        _ => return Err(Garbled),
    })
}

/// Decodes the rest of a denied reply: the reason of the denial.
fn read_denied(mut reader: XdrReader<'_>) -> Result<CallError, Garbled> {
    match reader.u32()? {
        // RPC_MISMATCH: the server speaks another version of RPC. Its version range is ignored.
        0 => Ok(CallError::Unavailable),
        // AUTH_ERROR.
        1 => Ok(CallError::Denied { auth_stat: reader.u32()? }),
        _ => Err(Garbled),
    }
}

impl CallError {
    /// Error number of this machine (`errno(3)`).
    pub fn errno(self) -> i32 {
        match self {
            CallError::TimedOut => libc::ETIMEDOUT,
            CallError::Garbled => libc::EBADMSG,
            CallError::Denied { .. } => libc::EACCES,
            CallError::Unavailable => libc::EPROTONOSUPPORT,
            CallError::ServerFault => libc::EREMOTEIO,
            CallError::NoEventFd => libc::EMFILE,
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::TimedOut => {
                f.write_str("the server did not answer in time; check that it runs, or raise `timeout`")
            }
            CallError::Garbled => f.write_str(
                "the server's answers can't be understood; check that it is an NFS version 3 server",
            ),
            CallError::Denied { auth_stat } => write!(
                f,
                "the server refuses the user's credentials (auth_stat {auth_stat}); name a user \
                 that it knows with `uid` and `gid`"
            ),
            CallError::Unavailable => {
                f.write_str("the server does not speak NFS version 3 and MOUNT version 3 there")
            }
            CallError::ServerFault => {
                f.write_str("the server has a problem of its own (SYSTEM_ERR); see its log")
            }
            CallError::NoEventFd => f.write_str(
                "this process may open no more files (eventfd); close some, or raise `ulimit -n`",
            ),
        }
    }
}

impl std::error::Error for CallError {}

#[cfg(test)]
mod tests {
    use super::*;
    use nfs3_types::rpc as oracle;
    use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

    const READ: Procedure = Procedure { program: 100_003, version: 3, number: 6 };

    /// Another implementation (nfs3_types) decodes a call to the same fields.
    #[test]
    fn rpc_call_is_decoded_equally_by_another_implementation() {
        let credentials =
            Credentials { machine: "here".to_owned(), uid: 7, gid: 8, gids: vec![9, 10] };
        let mut message = Vec::new();
        write_call(&mut message, 1, READ, &credentials.encoded(), |to| put_u32(to, 99));
        change_xid(&mut message, 0x1234_5678);
        let mark = u32::from_be_bytes(message[..4].try_into().unwrap());
        assert_eq!(mark, 0x8000_0000 + message.len() as u32 - 4);
        let mut left = &message[4..];
        let (call, _) = oracle::rpc_msg::unpack(&mut left).unwrap();
        assert_eq!(call.xid, 0x1234_5678);
        let oracle::msg_body::CALL(body) = call.body else { panic!("a call") };
        assert_eq!((body.rpcvers, body.prog, body.vers, body.proc), (2, 100_003, 3, 6));
        assert_eq!(body.cred.flavor, oracle::auth_flavor::AUTH_UNIX);
        let (unix, _) = oracle::auth_unix::unpack(&mut &body.cred.body[..]).unwrap();
        assert_eq!((unix.machinename.as_ref(), unix.uid, unix.gid), (&b"here"[..], 7, 8));
        assert_eq!(unix.gids, [9, 10]);
        assert_eq!(left, [0, 0, 0, 99]);
    }

    /// Replies of each kind, encoded by another implementation, with results behind them.
    #[test]
    fn reply_kinds_map_to_results_and_errors() {
        use oracle::{accept_stat_data as stat, rejected_reply as rejected};
        let accepted = |reply_data| {
            let verf = oracle::opaque_auth {
                flavor: oracle::auth_flavor::AUTH_SHORT,
                body: Opaque::borrowed(b"abc"),
            };
            oracle::reply_body::MSG_ACCEPTED(oracle::accepted_reply { verf, reply_data })
        };
        let denied = oracle::reply_body::MSG_DENIED;
        let weak_credentials = rejected::auth_error(oracle::auth_stat::AUTH_TOOWEAK);
        for (body, expected) in [
            (accepted(stat::SUCCESS), Ok(&b"RESULTS!"[..])),
            (accepted(stat::PROG_UNAVAIL), Err(CallError::Unavailable)),
            (accepted(stat::PROG_MISMATCH { low: 4, high: 4 }), Err(CallError::Unavailable)),
            (accepted(stat::PROC_UNAVAIL), Err(CallError::Unavailable)),
            (accepted(stat::GARBAGE_ARGS), Err(CallError::Garbled)),
            (accepted(stat::SYSTEM_ERR), Err(CallError::ServerFault)),
            (denied(rejected::rpc_mismatch(3, 3)), Err(CallError::Unavailable)),
            (denied(weak_credentials), Err(CallError::Denied { auth_stat: 5 })),
        ] {
            let mut record = Vec::new();
            let message = oracle::rpc_msg { xid: 77, body: oracle::msg_body::REPLY(body) };
            message.pack(&mut record).unwrap();
            record.extend_from_slice(b"RESULTS!");
            assert_eq!(read_reply(&record), Ok(Reply { xid: 77, results: expected }));
        }
        let mut call = Vec::new();
        write_call(&mut call, 1, READ, &[], |_| {});
        assert_eq!(read_reply(&call[4..]), Err(Garbled), "a call is no reply");
    }
}

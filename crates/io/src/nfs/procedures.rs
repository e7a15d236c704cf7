//! The procedures of NFS version 3 (RFC 1813) that are needed to read a file: encoding of their
//! arguments and decoding of their results.

use super::rpc::{CallError, Procedure};
use super::status::{JUKEBOX, Status};
use super::xdr::{Garbled, XdrReader, put_opaque, put_u32, put_u64};

/// RPC program number of NFS (RFC 1813).
pub(crate) const PROGRAM: u32 = 100_003;

/// Procedure of NFS version 3 with this number.
const fn procedure(procedure_number: u32) -> Procedure {
    Procedure { program: PROGRAM, version: 3, number: procedure_number }
}

pub(crate) const GETATTR: Procedure = procedure(1);
pub(crate) const LOOKUP: Procedure = procedure(3);
pub(crate) const ACCESS: Procedure = procedure(4);
pub(crate) const READLINK: Procedure = procedure(5);
pub(crate) const READ: Procedure = procedure(6);
pub(crate) const FSINFO: Procedure = procedure(19);

/// Bit of ACCESS for reading a file's bytes.
pub(crate) const ACCESS_READ: u32 = 1;

/// Longest path of a symbolic link in bytes: Linux's `PATH_MAX`.
pub(crate) const LINK_BYTES_MAX: usize = 4096;

/// Largest file handle in bytes (`NFS3_FHSIZE` in RFC 1813).
pub(crate) const HANDLE_BYTES_MAX: usize = 64;

/// The server's identifier of a file, opaque to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHandle {
    /// The handle, with zeros behind it.
    bytes: [u8; HANDLE_BYTES_MAX],
    /// Number of used bytes.
    used_bytes: u8,
}

impl FileHandle {
    /// Creates a handle of at most [`HANDLE_BYTES_MAX`] bytes. More bytes are `Garbled`.
    pub(crate) fn new(bytes: &[u8]) -> Result<FileHandle, Garbled> {
        // Too long a handle does not fit below, so its cut length is never used.
        let mut handle = FileHandle { bytes: [0; HANDLE_BYTES_MAX], used_bytes: bytes.len() as u8 };
        handle.bytes.get_mut(..bytes.len()).ok_or(Garbled)?.copy_from_slice(bytes);
        Ok(handle)
    }

    /// Bytes of the handle.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.used_bytes)]
    }
}

/// Kind of a name on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a socket or a pipe.
    Special,
}

/// Attributes of a file, as the server reported them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of the file.
    pub kind: FileKind,
    /// Length in bytes.
    pub bytes: u64,
    /// File system on the server that contains the file.
    pub fsid: u64,
    /// Number of the file in its file system.
    pub fileid: u64,
    /// Time of the last change of its bytes: seconds and nanoseconds by the server's clock.
    pub modified: (u32, u32),
    /// Time of the last change of the file or of its attributes, in the same units.
    pub changed: (u32, u32),
}

/// Limits of the server, from FSINFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Largest READ that the server accepts, in bytes.
    pub read_bytes_max: u32,
    /// READ size that the server prefers, in bytes.
    pub read_bytes_preferred: u32,
}

/// Head of the reply to a READ, before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataHead {
    /// True if the data ends at the end of the file.
    pub(crate) is_at_end: bool,
    /// Number of data bytes, without padding.
    pub(crate) bytes: u32,
}

/// Results of a call, or the server's error status. `Garbled` if the reply cannot be decoded.
pub(crate) type CallResult<T> = Result<Result<T, Status>, Garbled>;

/// Appends the arguments of GETATTR, READLINK and FSINFO to `message`.
pub(crate) fn put_handle(message: &mut Vec<u8>, file: &FileHandle) {
    put_opaque(message, file.bytes());
}

/// Appends the arguments of a LOOKUP of `name` in `directory` to `message`.
pub(crate) fn put_lookup(message: &mut Vec<u8>, directory: &FileHandle, name: &[u8]) {
    put_handle(message, directory);
    put_opaque(message, name);
}

/// Appends the arguments of ACCESS to `message`. `requested_bits` are the permissions to ask for.
pub(crate) fn put_access(message: &mut Vec<u8>, file: &FileHandle, requested_bits: u32) {
    put_handle(message, file);
    put_u32(message, requested_bits);
}

/// Appends the arguments of a READ of `bytes` bytes from `offset` on to `message`.
pub(crate) fn put_read(message: &mut Vec<u8>, file: &FileHandle, offset: u64, bytes: u32) {
    put_handle(message, file);
    put_u64(message, offset);
    put_u32(message, bytes);
}

/// Decodes the results of GETATTR.
pub(crate) fn decode_getattr(results: &[u8]) -> CallResult<Attributes> {
    decode_status(results, decode_attributes)
}

/// Decodes the results of LOOKUP: the handle, and the attributes if the server includes them.
pub(crate) fn decode_lookup(results: &[u8]) -> CallResult<(FileHandle, Option<Attributes>)> {
    decode_status(results, |reader| {
        let file = FileHandle::new(reader.opaque(HANDLE_BYTES_MAX)?)?;
        let results = (file, decode_optional_attributes(reader)?);
        // Decoded only to reach the end, which `decode_status` checks.
        let _directory_attributes = decode_optional_attributes(reader)?;
        Ok(results)
    })
}

/// Decodes the results of ACCESS: the granted bits.
pub(crate) fn decode_access(results: &[u8]) -> CallResult<u32> {
    decode_status(results, |reader| {
        decode_optional_attributes(reader)?;
        reader.u32()
    })
}

/// Decodes the results of READLINK: the path in the link.
pub(crate) fn decode_readlink(results: &[u8]) -> CallResult<Vec<u8>> {
    decode_status(results, |reader| {
        decode_optional_attributes(reader)?;
        Ok(reader.opaque(LINK_BYTES_MAX)?.to_vec())
    })
}

/// Decodes the results of FSINFO.
pub(crate) fn decode_fsinfo(results: &[u8]) -> CallResult<FsInfo> {
    decode_status(results, |reader| {
        decode_optional_attributes(reader)?;
        let [read_bytes_max, read_bytes_preferred] = [reader.u32()?, reader.u32()?];
        // Skipped: rtmult, wtmax, wtpref, wtmult, dtpref; maxfilesize, time_delta; properties.
        reader.fixed(5 * 4 + 2 * 8 + 4)?;
        Ok(FsInfo { read_bytes_max, read_bytes_preferred })
    })
}

/// Decodes the results of a READ of `requested_bytes` bytes: head and data.
pub(crate) fn decode_read(results: &[u8], requested_bytes: u32) -> CallResult<(DataHead, &[u8])> {
    decode_status(results, |reader| {
        let head = decode_data_head(reader, requested_bytes)?;
        Ok((head, reader.padded(head.bytes as usize)?))
    })
}

/// Decodes the head of the results of a READ of `requested_bytes` bytes whose data is still
/// arriving. Also returns the received data and the bytes behind it. `None` while the head is
/// incomplete, if it is garbled, and if there will be no data.
pub(crate) fn decode_read_head(results: &[u8], requested_bytes: u32) -> Option<(DataHead, &[u8])> {
    let mut reader = XdrReader::new(results);
    // A status other than 0 is a failure, which has no data. `None` also if it is incomplete.
    if reader.u32() != Ok(0) {
        return None;
    }
    let head = decode_data_head(&mut reader, requested_bytes).ok()?;
    Some((head, reader.remaining()))
}

/// True if these results of a call to `procedure` mean that the server postpones the call
/// (`NFS3ERR_JUKEBOX`).
pub(crate) fn is_postponed(procedure: Procedure, results: Result<&[u8], CallError>) -> bool {
    procedure.program == PROGRAM
        && results.is_ok_and(|results| XdrReader::new(results).u32() == Ok(JUKEBOX))
}

/// Decodes the head of a READ's results, and checks it with the requested number of bytes.
fn decode_data_head(reader: &mut XdrReader<'_>, requested_bytes: u32) -> Result<DataHead, Garbled> {
    let _attributes = decode_optional_attributes(reader)?;
    let bytes = reader.u32()?;
    let is_at_end = reader.bool()?;
    // The reply contains the count twice. Contradictory replies are rejected.
    if reader.u32()? != bytes || bytes > requested_bytes {
        return Err(Garbled);
    }
    Ok(DataHead { is_at_end, bytes })
}

/// Decodes a status and, on success, the results behind it with `decode_results`. After a failure,
/// the attributes behind it are ignored.
fn decode_status<'a, T>(
    results: &'a [u8],
    decode_results: impl FnOnce(&mut XdrReader<'a>) -> Result<T, Garbled>,
) -> CallResult<T> {
    let mut reader = XdrReader::new(results);
    if let Some(failure) = Status::failure(reader.u32()?)? {
        return Ok(Err(failure));
    }
    let value = decode_results(&mut reader)?;
    reader.expect_end()?;
    Ok(Ok(value))
}

/// Decodes optional attributes (`post_op_attr`). Returns `None` if the server left them out.
fn decode_optional_attributes(reader: &mut XdrReader<'_>) -> Result<Option<Attributes>, Garbled> {
    reader.bool()?.then(|| decode_attributes(reader)).transpose()
}

/// Decodes the attributes of a file (`fattr3`). Skips the ones that the client does not use. Fails
/// on an unknown kind of file.
fn decode_attributes(reader: &mut XdrReader<'_>) -> Result<Attributes, Garbled> {
    // Numbers of file types in RFC 1813.
    let kind = match reader.u32()? {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        5 => FileKind::Link,
        3 | 4 | 6 | 7 => FileKind::Special,
        _ => return Err(Garbled),
    };
    // Skipped: mode, nlink, uid, gid.
    reader.fixed(4 * 4)?;
    let bytes = reader.u64()?;
    // Skipped: used, rdev.
    reader.fixed(2 * 8)?;
    let [fsid, fileid] = [reader.u64()?, reader.u64()?];
    // Skipped: atime.
    reader.fixed(8)?;
    let modified = (reader.u32()?, reader.u32()?);
    let changed = (reader.u32()?, reader.u32()?);
    Ok(Attributes { kind, bytes, fsid, fileid, modified, changed })
}

#[cfg(test)]
mod tests {
    use super::*;
    // The other implementation of the protocol, with which encoding and decoding are compared.
    use nfs3_types::nfs3 as oracle;
    use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
    use proptest::prelude::*;

    /// Attributes as the other implementation has them, with a different value in each field.
    fn oracle_attributes(type_: oracle::ftype3, size: u64) -> oracle::fattr3 {
        let time = |seconds| oracle::nfstime3 { seconds, nseconds: seconds + 1 };
        oracle::fattr3 {
            type_,
            mode: 0o644,
            nlink: 1,
            uid: 2,
            gid: 3,
            size,
            used: 4,
            rdev: oracle::specdata3 { specdata1: 5, specdata2: 6 },
            fsid: 7,
            fileid: 8,
            atime: time(10),
            mtime: time(20),
            ctime: time(30),
        }
    }

    /// Encodes a value by the other implementation.
    fn packed(value: &impl Pack) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.pack(&mut bytes).unwrap();
        bytes
    }

    /// Decoded form of `file_attributes`.
    const FILE_ATTRIBUTES: Attributes = Attributes {
        kind: FileKind::Regular,
        bytes: 98_304,
        fsid: 7,
        fileid: 8,
        modified: (20, 21),
        changed: (30, 31),
    };

    /// Attributes of a regular file of 98,304 bytes.
    fn file_attributes() -> oracle::fattr3 {
        oracle_attributes(oracle::ftype3::NF3REG, 98_304)
    }

    /// Encodes the results of a successful READ by the other implementation.
    fn read_reply(data: &[u8], is_at_end: bool) -> Vec<u8> {
        packed(&oracle::READ3res::Ok(oracle::READ3resok {
            file_attributes: oracle::Nfs3Option::Some(file_attributes()),
            count: data.len() as u32,
            eof: is_at_end,
            data: Opaque::borrowed(data),
        }))
    }

    /// Another implementation decodes these arguments.
    #[test]
    fn call_arguments_are_decoded_equally_by_another_implementation() {
        let handle = FileHandle::new(b"handle").unwrap();
        let mut bytes = Vec::new();
        put_read(&mut bytes, &handle, 1 << 40, 32_768);
        let (read, _) = oracle::READ3args::unpack(&mut &bytes[..]).unwrap();
        assert_eq!(&read.file.data[..], b"handle");
        assert_eq!((read.offset, read.count), (1 << 40, 32_768));
        bytes.clear();
        put_lookup(&mut bytes, &handle, b"name");
        let (lookup, _) = oracle::LOOKUP3args::unpack(&mut &bytes[..]).unwrap();
        assert_eq!(
            (&lookup.what.dir.data[..], &lookup.what.name.0[..]),
            (&b"handle"[..], &b"name"[..])
        );
        bytes.clear();
        put_access(&mut bytes, &handle, ACCESS_READ);
        let (access, _) = oracle::ACCESS3args::unpack(&mut &bytes[..]).unwrap();
        assert_eq!(
            (&access.object.data[..], access.access),
            (&b"handle"[..], oracle::ACCESS3_READ)
        );
    }

    /// Results encoded by another implementation.
    #[test]
    fn call_results_of_another_implementation_are_decoded() {
        let kinds = [
            (oracle::ftype3::NF3REG, FileKind::Regular),
            (oracle::ftype3::NF3DIR, FileKind::Directory),
            (oracle::ftype3::NF3LNK, FileKind::Link),
            (oracle::ftype3::NF3FIFO, FileKind::Special),
        ];
        for (type_, kind) in kinds {
            let ok = oracle::GETATTR3resok { obj_attributes: oracle_attributes(type_, 5) };
            let decoded = decode_getattr(&packed(&oracle::GETATTR3res::Ok(ok)));
            assert_eq!(decoded, Ok(Ok(Attributes { kind, bytes: 5, ..FILE_ATTRIBUTES })));
        }
        let ok = oracle::READLINK3resok {
            symlink_attributes: oracle::Nfs3Option::None,
            data: oracle::nfspath3(Opaque::borrowed(b"../other")),
        };
        let decoded = decode_readlink(&packed(&oracle::READLINK3res::Ok(ok)));
        assert_eq!(decoded, Ok(Ok(b"../other".to_vec())));
        let ok = oracle::LOOKUP3resok {
            object: oracle::nfs_fh3 { data: Opaque::borrowed(b"found") },
            obj_attributes: oracle::Nfs3Option::Some(file_attributes()),
            dir_attributes: oracle::Nfs3Option::None,
        };
        let handle = FileHandle::new(b"found").unwrap();
        let decoded = decode_lookup(&packed(&oracle::LOOKUP3res::Ok(ok)));
        assert_eq!(decoded, Ok(Ok((handle, Some(FILE_ATTRIBUTES)))));
        let ok = oracle::ACCESS3resok { obj_attributes: oracle::Nfs3Option::None, access: 33 };
        assert_eq!(decode_access(&packed(&oracle::ACCESS3res::Ok(ok))), Ok(Ok(33)));
        let ok = oracle::FSINFO3resok {
            obj_attributes: oracle::Nfs3Option::None,
            rtmax: 1 << 20,
            rtpref: 1 << 15,
            rtmult: 1,
            wtmax: 2,
            wtpref: 3,
            wtmult: 4,
            dtpref: 5,
            maxfilesize: 6,
            time_delta: oracle::nfstime3 { seconds: 7, nseconds: 8 },
            properties: 9,
        };
        let info = FsInfo { read_bytes_max: 1 << 20, read_bytes_preferred: 1 << 15 };
        assert_eq!(decode_fsinfo(&packed(&oracle::FSINFO3res::Ok(ok))), Ok(Ok(info)));
        let is_at_end = true;
        let reply = read_reply(b"seven..", is_at_end);
        let decoded = decode_read(&reply, 8).unwrap().unwrap();
        let head = DataHead { is_at_end, bytes: 7 };
        assert_eq!(decoded, (head, &b"seven.."[..]));
        // The head of 104 bytes (status 4, flag 4, attributes 84, counts 12) suffices to locate the
        // data before it arrives.
        assert_eq!(decode_read_head(&reply[..103], 8), None);
        assert_eq!(decode_read_head(&reply[..106], 8), Some((head, &b"se"[..])));
        assert_eq!(decode_read_head(&reply, 6), None, "the answer has more bytes than requested");
    }

    #[test]
    fn error_reply_returns_the_servers_status() {
        let file_attributes = oracle::Nfs3Option::Some(file_attributes());
        let fail = oracle::READ3resfail { file_attributes };
        let reply = packed(&oracle::READ3res::Err((oracle::nfsstat3::NFS3ERR_STALE, fail)));
        assert_eq!(decode_read(&reply, 8), Ok(Err(Status::Stale)));
    }

    #[test]
    fn read_reply_with_a_wrong_length_is_garbled() {
        let is_at_end = false;
        let reply = read_reply(b"eight...", is_at_end);
        assert!(decode_read(&reply, 8).is_ok());
        assert_eq!(decode_read(&reply, 7), Err(Garbled));
        let mut contradictory = reply.clone();
        // The count follows the status, the flag and 84 bytes of attributes.
        contradictory[4 + 4 + 84 + 3] = 7;
        assert_eq!(decode_read(&contradictory, 8), Err(Garbled));
        assert_eq!(decode_read(&[&reply[..], &[0; 4]].concat(), 8), Err(Garbled), "bytes behind");
        assert_eq!(
            decode_read(&reply[..reply.len() - 1], 8),
            Err(Garbled),
            "the answer lacks bytes"
        );
        assert_eq!(FileHandle::new(&[0; 65]), Err(Garbled));
    }

    /// Runs every decoder on `bytes`. A complete READ must have the head that was decoded early.
    fn decode_as_everything(bytes: &[u8]) {
        let _ = decode_getattr(bytes);
        let _ = decode_lookup(bytes);
        let _ = decode_access(bytes);
        let _ = decode_fsinfo(bytes);
        let _ = decode_readlink(bytes);
        let early_head = decode_read_head(bytes, 4_096).map(|(head, _)| head);
        if let Ok(Ok((head, data))) = decode_read(bytes, 4_096) {
            assert!(data.len() <= 4_096);
            assert_eq!(early_head, Some(head));
        }
    }

    proptest! {
        /// The decoders must not panic.
        #[test]
        fn arbitrary_bytes_decode_to_results_or_garbled(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            decode_as_everything(&bytes);
        }

        /// A valid reply with some of its words changed and its end cut off: no decoder may panic.
        #[test]
        fn damaged_replies_decode_to_results_or_garbled(
            data in prop::collection::vec(any::<u8>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 0..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let is_at_end = false;
            let mut reply = read_reply(&data, is_at_end);
            for (word_index, word) in changes {
                let offset = word_index.index(reply.len() / 4) * 4;
                reply[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
            }
            decode_as_everything(&reply);
            decode_as_everything(&reply[..cut.index(reply.len())]);
        }
    }
}

//! The MOUNT protocol, version 3 (RFC 1813, appendix I), and the port mapper, version 2 (RFC 1833).
//! They provide the first file handle.

use super::procedures::{CallResult, FileHandle, HANDLE_BYTES_MAX};
use super::rpc::Procedure;
use super::status::Status;
use super::xdr::{Garbled, XdrReader, put_opaque, put_u32};

/// RPC program number of MOUNT (RFC 1813, appendix I).
pub(crate) const PROGRAM: u32 = 100_005;
/// Version of MOUNT, and of each program whose port is looked up.
const VERSION: u32 = 3;

/// Returns the file handle of an export.
pub(crate) const MNT: Procedure = Procedure { program: PROGRAM, version: VERSION, number: 1 };
/// Lists the exports.
pub(crate) const EXPORT: Procedure = Procedure { program: PROGRAM, version: VERSION, number: 5 };
/// Returns the port of a program: a procedure of the port mapper.
pub(crate) const GETPORT: Procedure = Procedure { program: 100_000, version: 2, number: 3 };

/// Port of the port mapper.
pub(crate) const PORTMAP_PORT: u16 = 111;

/// Longest path in MOUNT in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 1024;

/// Longest name of a group in an export list in bytes (`MNTNAMLEN`).
const NAME_BYTES_MAX: usize = 255;
/// Protocol number of TCP for the port mapper.
const TCP: u32 = 6;

/// Appends the arguments of MNT for an export's path to `message`.
pub(crate) fn put_path(message: &mut Vec<u8>, path: &[u8]) {
    put_opaque(message, path);
}

/// Appends the arguments of GETPORT for version 3 of a program over TCP to `message`.
pub(crate) fn put_program(message: &mut Vec<u8>, program: u32) {
    // The last word, the port, has no meaning in a query.
    [program, VERSION, TCP, 0].into_iter().for_each(|word| put_u32(message, word));
}

/// Decodes the results of MNT: the handle of the mounted directory. The inner error is the server's
/// status.
pub(crate) fn decode_mount(results: &[u8]) -> CallResult<FileHandle> {
    let mut reader = XdrReader::new(results);
    if let Some(failure) = Status::failure(reader.u32()?)? {
        return Ok(Err(failure));
    }
    let handle = FileHandle::new(reader.opaque(HANDLE_BYTES_MAX)?)?;
    // The server's authentication flavors are skipped, a word each.
    let flavor_count = reader.u32()? as usize;
    reader.fixed(flavor_count.checked_mul(4).ok_or(Garbled)?)?;
    reader.expect_end()?;
    Ok(Ok(handle))
}

/// Decodes the results of EXPORT. Returns the paths of the exported directories; the hosts that may
/// mount them are skipped.
pub(crate) fn decode_exports(results: &[u8]) -> Result<Vec<Vec<u8>>, Garbled> {
    let mut reader = XdrReader::new(results);
    let mut exports = Vec::new();
    // Each entry of a list follows a true, and a false ends the list. Each iteration consumes
    // bytes, so both loops end.
    while reader.bool()? {
        exports.push(reader.opaque(PATH_BYTES_MAX)?.to_vec());
        // Groups of hosts that may mount it.
        while reader.bool()? {
            reader.opaque(NAME_BYTES_MAX)?;
        }
    }
    reader.expect_end()?;
    Ok(exports)
}

/// Decodes the results of GETPORT; `None` if the server does not have the program.
pub(crate) fn decode_port(results: &[u8]) -> Result<Option<u16>, Garbled> {
    let mut reader = XdrReader::new(results);
    let port = u16::try_from(reader.u32()?).map_err(|_| Garbled)?;
    reader.expect_end()?;
    Ok((port != 0).then_some(port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfs3_types::mount as oracle;
    use nfs3_types::portmap;
    use nfs3_types::xdr_codec::{List, Opaque, Pack, Unpack};
    use proptest::prelude::*;

    /// Encodes a value by the other implementation.
    fn packed(value: &impl Pack) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.pack(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn mount_reply_of_another_implementation_gives_its_handle() {
        let ok = oracle::mountres3_ok {
            fhandle: oracle::fhandle3(Opaque::borrowed(b"root!")),
            auth_flavors: vec![0, 1],
        };
        let decoded = decode_mount(&packed(&oracle::mountres3::Ok(ok)));
        assert_eq!(decoded, Ok(Ok(FileHandle::new(b"root!").unwrap())));
        let refused = oracle::mountres3::Err(oracle::mountstat3::MNT3ERR_ACCES);
        assert_eq!(decode_mount(&packed(&refused)), Ok(Err(Status::Refused)));
        // An answer that announces 4,294,967,295 flavors and contains none.
        let mut bytes = packed(&oracle::mountres3::Ok(oracle::mountres3_ok {
            fhandle: oracle::fhandle3(Opaque::borrowed(b"root")),
            auth_flavors: vec![],
        }));
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&[0xff; 4]);
        assert_eq!(decode_mount(&bytes), Err(Garbled));
    }

    #[test]
    fn export_list_and_port_replies_are_decoded() {
        let export = |name: &'static [u8], groups: &[&'static [u8]]| oracle::export_node {
            ex_dir: oracle::dirpath(Opaque::borrowed(name)),
            ex_groups: List(
                groups.iter().map(|&group| oracle::name(Opaque::borrowed(group))).collect(),
            ),
        };
        let list: oracle::exports<'_, '_> =
            List(vec![export(b"/a", &[b"x", b"y"]), export(b"/b/c", &[])]);
        assert_eq!(decode_exports(&packed(&list)), Ok(vec![b"/a".to_vec(), b"/b/c".to_vec()]));

        let mut bytes = Vec::new();
        put_program(&mut bytes, PROGRAM);
        let (mapping, _) = portmap::mapping::unpack(&mut &bytes[..]).unwrap();
        assert_eq!((mapping.prog, mapping.vers, mapping.prot), (100_005, 3, 6));
        assert_eq!(decode_port(&2049u32.to_be_bytes()), Ok(Some(2049)));
        assert_eq!(decode_port(&[0; 4]), Ok(None));
        // 65,536 is no port.
        assert_eq!(decode_port(&[0, 1, 0, 0]), Err(Garbled));
    }

    proptest! {
        /// The decoders must not panic.
        #[test]
        fn arbitrary_bytes_decode_to_results_or_garbled(
            // Small words, because lists and lengths consist of them.
            words in prop::collection::vec(prop_oneof![0u32..9, any::<u32>()], 0..60),
            trailing_bytes in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            bytes.extend(trailing_bytes);
            let _ = decode_mount(&bytes);
            let _ = decode_exports(&bytes);
            let _ = decode_port(&bytes);
        }
    }
}

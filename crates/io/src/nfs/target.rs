//! A file on a server that is found and ready to be read, with its attributes.
//!
//! The steps are the port mapper (unless the URL contains a port), MOUNT for the export's handle,
//! LOOKUP for each name, READLINK for each symbolic link, ACCESS and FSINFO. The error of a failed
//! step names the step and a remedy. Functions with `cfg(inside)` exist only in the crate
//! `readpath-dst`, for tests of this layer.

use std::net::{SocketAddr, ToSocketAddrs};

use readpath_core::request::DeviceCaps;
use readpath_core::unit::{PAGE_BYTES, PAGE_SECTORS, SECTOR_BYTES};

use super::error::{NfsError, NfsStep};
use super::lookup::{ExportPath, FoundFile};
use super::mount;
use super::options::{NfsOptions, READ_BYTES_MAX};
use super::printable::printable;
use super::procedures::{self, FsInfo};
use super::rpc::CallError;
use super::server_link::{CallServer, ServerLink};
use super::url::NfsUrl;
use crate::os::clock::Clock;

/// A file on an NFS server, opened for reading.
pub struct NfsTarget {
    /// Connection to NFS, without a call in flight.
    pub(super) link: ServerLink,
    /// The file as it was found.
    pub(crate) file: FoundFile,
    /// Largest READ in bytes.
    pub(super) read_bytes: u32,
    /// Location of the file, for looking it up again.
    pub(super) export_path: ExportPath,
}

impl NfsTarget {
    /// Finds the file and connects, which waits for a handful of answers. The file may be empty.
    ///
    /// # Errors
    /// The host, the server, the export or the file does not exist. The file may not be read, or is
    /// no regular file.
    pub fn open(url: &NfsUrl, clock: Clock) -> Result<NfsTarget, NfsError> {
        let (address, export_path) = find_export(url, clock)?;
        let mut link = connect(address, &url.options, clock)?;
        let file = export_path.find(&mut link)?;
        let put_arguments =
            |message: &mut Vec<u8>| procedures::put_handle(message, &export_path.export);
        let info = export_path.file_result(link.ask(
            procedures::FSINFO,
            put_arguments,
            procedures::decode_fsinfo,
        ))?;
        let read_bytes = negotiated_read_bytes(info, &url.options);
        Ok(NfsTarget { link, file, read_bytes, export_path })
    }

    /// Length in bytes at the time of `open`.
    #[cfg(inside)]
    pub fn bytes(&self) -> u64 {
        self.file.attributes.bytes
    }

    /// Capabilities as a device. A request is one READ, or a page if READs are smaller than a page.
    /// The number of slots is the queue depth.
    pub fn caps(&self) -> DeviceCaps {
        let request_bytes_max = u64::from(self.read_bytes).max(PAGE_BYTES);
        DeviceCaps {
            // Whole pages. The last READ ends with the file and is then short.
            sectors: self.file.attributes.bytes.div_ceil(PAGE_BYTES) * PAGE_SECTORS,
            request_sectors_max: (request_bytes_max / SECTOR_BYTES) as u32,
            depth_max: self.export_path.url.options.slots,
            // The protocol does not report the server's disks.
            is_rotational: false,
            alignment_sectors: 1,
        }
    }
}

/// READ size in bytes: the option or the server's preference, but at most the server's maximum and
/// [`READ_BYTES_MAX`]. In whole pages, unless it is less than a page. A limit of 0 from the server
/// means no limit.
fn negotiated_read_bytes(info: FsInfo, options: &NfsOptions) -> u32 {
    let limit = |bytes: u32| if bytes == 0 { u64::MAX } else { u64::from(bytes) };
    let requested = options.rsize_bytes_max.unwrap_or(limit(info.read_bytes_preferred));
    let bytes = requested.min(limit(info.read_bytes_max)).min(READ_BYTES_MAX);
    let whole_page_bytes = bytes - bytes % PAGE_BYTES;
    (if whole_page_bytes == 0 { bytes } else { whole_page_bytes }) as u32
}

/// Mounts the export of the file, at the first address of the host that answers. Returns the
/// address of NFS and the location of the file. If none answers, returns the last one's error.
fn find_export(url: &NfsUrl, clock: Clock) -> Result<(SocketAddr, ExportPath), NfsError> {
    let addresses = resolve_host(url)?;
    let mut last_error = None;
    for address in addresses {
        match mount_at(url, address, clock) {
            // No server answers there. The host may have it at its next address. Other errors come
            // from a server, and end the search.
            Err(error @ NfsError::Connect { .. }) => last_error = Some(error),
            found_or_error => return found_or_error,
        }
    }
    Err(last_error.expect("a host that was resolved has an address"))
}

/// Mounts the export through one address of the host, whose port is ignored. Returns the address
/// with the port of NFS, and the location of the file.
fn mount_at(
    url: &NfsUrl,
    mut address: SocketAddr,
    clock: Clock,
) -> Result<(SocketAddr, ExportPath), NfsError> {
    let (nfs_port, mount_port) = find_ports(url, address, clock)?;
    address.set_port(mount_port);
    let mut link = connect(address, &url.options, clock)?;
    let names = url.path_names();
    let export_names = export_name_count(&mut link, url, &names)?;
    let path = join_names(&names[..export_names]);
    let put_arguments = |message: &mut Vec<u8>| mount::put_path(message, &path);
    let export = link
        .ask(mount::MNT, put_arguments, mount::decode_mount)
        .map_err(|error| NfsError::from_call(NfsStep::Mount, error))?
        .map_err(|status| NfsError::NotMounted { export: printable(&path), status })?;
    address.set_port(nfs_port);
    Ok((address, ExportPath { url: url.clone(), export, export_names }))
}

/// Looks up the addresses of the URL's host. Returns at least one, with port 0, or the error
/// `NoHost`.
fn resolve_host(url: &NfsUrl) -> Result<Vec<SocketAddr>, NfsError> {
    let no_host = |what: String| NfsError::NoHost { host: url.host.clone(), what };
    let addresses = (url.host.as_str(), 0).to_socket_addrs();
    let addresses: Vec<SocketAddr> =
        addresses.map_err(|error| no_host(error.to_string()))?.collect();
    if addresses.is_empty() {
        return Err(no_host("it has no address".to_owned()));
    }
    Ok(addresses)
}

/// Returns the ports of NFS and of MOUNT, in this order, from the URL or from the port mapper at
/// `address`. A server at a port of the URL is assumed to serve MOUNT there too, unless the URL
/// names another port for it. The port mapper is then not asked.
///
/// # Errors
/// The port mapper cannot be reached, fails, or does not know one of the services.
fn find_ports(url: &NfsUrl, mut address: SocketAddr, clock: Clock) -> Result<(u16, u16), NfsError> {
    if let Some(port) = url.port {
        return Ok((port, url.options.mount_port.unwrap_or(port)));
    }
    address.set_port(mount::PORTMAP_PORT);
    let mut link = connect(address, &url.options, clock)?;
    let mut port_of = |program: u32, step: NfsStep| {
        let put_arguments = |message: &mut Vec<u8>| mount::put_program(message, program);
        link.ask(mount::GETPORT, put_arguments, mount::decode_port)
            .map_err(|error| NfsError::from_call(NfsStep::PortMapper, error))?
            .ok_or_else(|| NfsError::NoService { host: url.host.clone(), step })
    };
    let nfs_port = port_of(procedures::PROGRAM, NfsStep::File)?;
    match url.options.mount_port {
        Some(mount_port) => Ok((nfs_port, mount_port)),
        None => Ok((nfs_port, port_of(mount::PROGRAM, NfsStep::Mount)?)),
    }
}

/// Asks the server for its exports. Returns the number of the path's names in the longest export
/// that contains the path. If the server lists no exports, the directory of the file is mounted:
/// the URL has at least one name, the file's. Fails if no listed export contains the path, or if
/// the call fails.
fn export_name_count(
    link: &mut ServerLink,
    url: &NfsUrl,
    names: &[&[u8]],
) -> Result<usize, NfsError> {
    let no_arguments = |_: &mut Vec<u8>| {};
    let exports = match link.ask(mount::EXPORT, no_arguments, mount::decode_exports) {
        Ok(exports) => exports,
        // A server without this procedure lists no exports.
        Err(CallError::Unavailable) => Vec::new(),
        Err(error) => return Err(NfsError::from_call(NfsStep::Mount, error)),
    };
    if exports.is_empty() {
        return Ok(names.len() - 1);
    }
    // Number of names of an export that contains the path. An export as long as the path would be
    // the file itself, and does not count. `None` for any other export.
    let leading_names = |export: &Vec<u8>| {
        let export_names = export.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let export_names: Vec<&[u8]> = export_names.collect();
        (names.len() > export_names.len() && names.starts_with(&export_names))
            .then_some(export_names.len())
    };
    exports.iter().filter_map(leading_names).max().ok_or_else(|| NfsError::NoExport {
        url: url.to_string(),
        exports: exports.iter().map(|name| printable(name)).collect(),
    })
}

/// Joins names to a path with a leading slash.
fn join_names(names: &[&[u8]]) -> Vec<u8> {
    let mut path = vec![b'/'];
    path.extend(names.join(&b'/'));
    path
}

/// Connects to a server, and waits up to the timeout of a call. A missing server is reported at
/// once. The returned link has room for answers with the data of the largest READ.
fn connect(
    address: SocketAddr,
    options: &NfsOptions,
    clock: Clock,
) -> Result<ServerLink, NfsError> {
    let mut link = ServerLink::new(address, options, READ_BYTES_MAX as usize, clock);
    let deadline = clock.now() + options.give_up_after;
    link.connect(deadline).map_err(|errno| NfsError::Connect { address, errno })?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_size_obeys_the_limits_of_server_and_options() {
        // Arguments: maximum and preference of the server, and the option for the READ size.
        let read_bytes_for = |max, preferred, option| {
            let info = FsInfo { read_bytes_max: max, read_bytes_preferred: preferred };
            let options = NfsOptions { rsize_bytes_max: option, ..NfsOptions::default() };
            negotiated_read_bytes(info, &options)
        };
        assert_eq!(
            read_bytes_for(1 << 20, 1 << 15, None),
            1 << 15,
            "the size that the server prefers"
        );
        assert_eq!(
            read_bytes_for(1 << 20, 1 << 15, Some(1 << 20)),
            1 << 20,
            "the size that the option requests"
        );
        assert_eq!(
            read_bytes_for(1 << 16, 1 << 15, Some(1 << 20)),
            1 << 16,
            "the maximum of the server"
        );
        assert_eq!(read_bytes_for(0, 0, None), 1 << 20, "a server that reports no size");
        assert_eq!(
            read_bytes_for(10_000, 10_000, None),
            8_192,
            "the size is rounded down to whole pages"
        );
        assert_eq!(
            read_bytes_for(1_000, 1_000, None),
            1_000,
            "the server accepts less than a page"
        );
        assert_eq!(read_bytes_for(1 << 30, 1 << 30, None), 1 << 20);
    }
}

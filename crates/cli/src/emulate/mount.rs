//! FUSE file system with one file, as large as the device.
//!
//! The backing file holds the bytes, and the engine decides the time of each answer. A read copies
//! its bytes from the backing file on arrival and keeps them until its answer is due. A write
//! stores its bytes on arrival, and its answer follows when due.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyWrite, Request, WriteFlags,
};
use readpath_core::request::{DeviceError, Op};

use super::engine::RealTimeDevice;

/// Name of the file.
pub const FILE_NAME: &str = "device";

/// Inode number of the file, behind the root folder's 1.
const FILE_INODE: INodeNo = INodeNo(2);

/// Time for which the kernel may cache the attributes. They never change.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3_600);

/// Maximum number of background requests of the kernel (readahead, asynchronous direct I/O). A
/// limit below the depth of a device would keep requests from its model. Chosen, not measured.
const BACKGROUND_MAX: u16 = 1_024;

/// Largest write in bytes. Equals the kernel's own limit of 256 pages per request.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Folder with one file.
pub struct Mount {
    /// Decides the time of each answer.
    engine: Arc<RealTimeDevice>,
    /// File with the bytes.
    backing: File,
    /// Length of the file.
    bytes: u64,
    /// Time of the mount, reported as the time of the file.
    mounted_at: SystemTime,
    /// User id and group id of the file.
    owner: (u32, u32),
}

impl Mount {
    /// Creates the file system. The file has `bytes` bytes in `backing`, and belongs to user and
    /// group `owner`.
    pub fn new(engine: Arc<RealTimeDevice>, backing: File, bytes: u64, owner: (u32, u32)) -> Mount {
        Mount { engine, backing, bytes, mounted_at: SystemTime::now(), owner }
    }

    /// Attributes of the root folder or of the file. The kernel knows no other inode.
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == FILE_INODE;
        FileAttr {
            ino: inode,
            size: if is_file { self.bytes } else { 0 },
            // stat(2) counts blocks of 512 bytes.
            blocks: if is_file { self.bytes.div_ceil(512) } else { 0 },
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: if is_file { 1 } else { 2 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4_096,
            flags: 0,
        }
    }

    /// Length of the part within the file of a range of `bytes` bytes at `offset`.
    fn bytes_within(&self, offset: u64, bytes: u64) -> u64 {
        bytes.min(self.bytes.saturating_sub(offset))
    }
}

impl Filesystem for Mount {
    /// Sets the limits of the FUSE connection: concurrent requests and the size of writes.
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without this capability a loop device on top has one request in flight. A kernel that
        // lacks it (before 3.14) still works, with one request at a time.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let limit_error = |_| io::Error::other("the FUSE connection refuses its limits");
        config.set_max_background(BACKGROUND_MAX).map_err(limit_error)?;
        config
            .set_max_write(WRITE_BYTES_MAX)
            .map_err(|_| io::Error::other("the FUSE connection refuses writes of 1 MiB"))?;
        Ok(())
    }

    /// Finds the file by its name in the root folder.
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE_NAME {
            // Inode numbers are never reused, so there is one generation.
            reply.entry(&ATTRIBUTE_TTL, &self.attributes(FILE_INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    /// Replies with the attributes of the root folder or of the file.
    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match inode {
            INodeNo::ROOT | FILE_INODE => reply.attr(&ATTRIBUTE_TTL, &self.attributes(inode)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    /// Refuses a change of the size. Other attributes are ignored without an error, and the reply
    /// has the unchanged ones.
    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if size.is_some_and(|size| size != self.bytes) {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&ATTRIBUTE_TTL, &self.attributes(inode));
    }

    /// Reads the data from the backing file, and replies at the end of the modelled request. A read
    /// behind the end of the file gets no bytes, at once.
    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.bytes_within(offset, size.into());
        if bytes == 0 {
            return reply.data(&[]);
        }
        let mut data = vec![0; bytes as usize];
        if let Err(error) = self.backing.read_exact_at(&mut data, offset) {
            return reply.error(Errno::from(error));
        }
        let answer = move |result| match result {
            Ok(()) => reply.data(&data),
            Err(error) => reply.error(errno(error)),
        };
        self.engine.submit(Op::Read, offset, bytes, Box::new(answer));
    }

    /// Writes the data to the backing file, and replies at the end of the modelled request. Only
    /// the bytes before the end of the file are written; without any, the error is `ENOSPC`.
    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = self.bytes_within(offset, data.len() as u64);
        if bytes == 0 {
            return reply.error(Errno::ENOSPC);
        }
        if let Err(error) = self.backing.write_all_at(&data[..bytes as usize], offset) {
            return reply.error(Errno::from(error));
        }
        let answer = move |result| match result {
            Ok(()) => reply.written(bytes as u32),
            Err(error) => reply.error(errno(error)),
        };
        self.engine.submit(Op::Write, offset, bytes, Box::new(answer));
    }

    /// Replies at once: a program closes the file, and no byte need become durable.
    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// Replies when the modelled device has made all answered writes durable. The bytes are in the
    /// backing file already.
    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let answer = move |result| match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        };
        self.engine.flush(Box::new(answer));
    }

    /// Lists the root folder from the entry with index `offset` on, until the reply is full.
    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE_INODE, FileType::RegularFile, FILE_NAME),
        ];
        // The kernel passes the index of the last entry that it got, 0 at first.
        for (index, (inode, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(inode, index, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// Error number that a program gets for a device error.
fn errno(error: DeviceError) -> Errno {
    match error {
        DeviceError::Medium => Errno::EIO,
        DeviceError::Gone => Errno::ENODEV,
        DeviceError::Full => Errno::ENOSPC,
        DeviceError::Cancelled => Errno::ECANCELED,
        DeviceError::Refused => Errno::EACCES,
        DeviceError::Other(number) => Errno::from_i32(number),
        // Errors of a network server, and kinds that a later version adds.
        _ => Errno::EIO,
    }
}

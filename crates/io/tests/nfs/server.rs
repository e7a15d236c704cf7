//! A real NFS server of another project (`nfs3_server`) on loopback, over files and faults set by
//! the test.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ops::Range;
use std::sync::{Arc, Mutex};

use nfs3_server::tcp::{NFSTcp, NFSTcpListener};
use nfs3_server::vfs::{
    FileHandleU64, NextResult, NfsFileSystem, NfsReadFileSystem, ReadDirPlusIterator,
    VFSCapabilities,
};
use nfs3_types::nfs3::{
    FSINFO3resok, createverf3, fattr3, filename3, ftype3, nfspath3, nfsstat3, nfstime3,
    post_op_attr, sattr3, specdata3, stable_how,
};
use nfs3_types::xdr_codec::Opaque;

/// Faults of the server, from the time they are set.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The file's handle is stale.
    pub is_stale: bool,
    /// The user may not read.
    pub is_refused: bool,
    /// READs that touch these bytes fail.
    pub broken: Option<Range<u64>>,
    /// Number of READs that are postponed.
    pub jukebox: u32,
    /// Maximum number of bytes of a READ, without the end of the file.
    pub short_bytes: Option<u32>,
    /// Reduced length of the file in bytes.
    pub shrunk_bytes: Option<u64>,
    /// Number of changes of the file. They show in its times and its first byte.
    pub changes: u32,
    /// The name `file` refers to another file.
    pub is_replaced: bool,
    /// All names are gone.
    pub is_removed: bool,
    /// Length of the file `empty` in bytes. All its bytes are 5.
    pub grown_bytes: u64,
}

/// Files of the server in `/data`: `file` (given bytes), the same file as `folder/file`, `empty`,
/// `secret`, and the symbolic links of [`LINKS`].
struct FrameCache {
    content: Arc<Vec<u8>>,
    faults: Arc<Mutex<Faults>>,
    read_bytes: u32,
}

const ROOT: u64 = 1;
const FOLDER: u64 = 2;
const FILE: u64 = 3;
const EMPTY: u64 = 4;
const SUCCESSOR: u64 = 5;

/// Symbolic links of the root, and `folder/up`. Their numbers start at `FIRST_LINK`.
pub const LINKS: [(&str, &str); 13] = [
    ("to-file", "file"),
    ("to-folder", "./folder"),
    ("absolute", "/data/folder/file"),
    ("to-link", "to-folder/file"),
    ("up", "../file"),
    ("roundabout", "folder/../folder//up"),
    ("loop", "loop"),
    ("ping", "pong"),
    ("pong", "ping"),
    ("outside", "../../etc/passwd"),
    ("elsewhere", "/etc/passwd"),
    ("dangling", "nowhere"),
    ("to-root", "folder/.."),
];
const FIRST_LINK: u64 = 100;

/// First number of a chain of links, from `chain-N` to `chain-0`, which leads to the file.
const CHAIN: u64 = 1000;

impl FrameCache {
    fn file_bytes(&self) -> u64 {
        let faults = self.faults.lock().unwrap();
        faults.shrunk_bytes.unwrap_or(self.content.len() as u64)
    }
}

struct NoEntries;

impl ReadDirPlusIterator<FileHandleU64> for NoEntries {
    async fn next(&mut self) -> NextResult<nfs3_server::vfs::DirEntryPlus<FileHandleU64>> {
        NextResult::Eof
    }
}

impl NfsReadFileSystem for FrameCache {
    type Handle = FileHandleU64;

    fn root_dir(&self) -> FileHandleU64 {
        ROOT.into()
    }

    async fn lookup(
        &self,
        directory: &FileHandleU64,
        name: &filename3<'_>,
    ) -> Result<FileHandleU64, nfsstat3> {
        let faults = self.faults.lock().unwrap().clone();
        let text = String::from_utf8_lossy(name.0.as_ref()).into_owned();
        let link = LINKS.iter().position(|(name, _)| *name == text);
        let chained = text.strip_prefix("chain-").and_then(|number| number.parse::<u64>().ok());
        match (directory.as_u64(), name.0.as_ref()) {
            (ROOT | FOLDER, _) if faults.is_removed => Err(nfsstat3::NFS3ERR_NOENT),
            (ROOT, b"folder") => Ok(FOLDER.into()),
            (ROOT | FOLDER, b"file") if faults.is_replaced => Ok(SUCCESSOR.into()),
            (ROOT | FOLDER, b"file") => Ok(FILE.into()),
            (ROOT, b"empty") => Ok(EMPTY.into()),
            (FOLDER, b"up") => Ok((FIRST_LINK + 4).into()),
            (ROOT, _) if text != "up" && link.is_some() => {
                Ok((FIRST_LINK + link.unwrap() as u64).into())
            }
            (ROOT, _) if chained.is_some() => Ok((CHAIN + chained.unwrap()).into()),
            (ROOT, b"secret") => Err(nfsstat3::NFS3ERR_ACCES),
            (ROOT | FOLDER, _) => Err(nfsstat3::NFS3ERR_NOENT),
            _ => Err(nfsstat3::NFS3ERR_NOTDIR),
        }
    }

    async fn getattr(&self, id: &FileHandleU64) -> Result<fattr3, nfsstat3> {
        let (type_, size) = match id.as_u64() {
            ROOT | FOLDER => (ftype3::NF3DIR, 0),
            FILE => (ftype3::NF3REG, self.file_bytes()),
            SUCCESSOR => (ftype3::NF3REG, self.file_bytes()),
            EMPTY => (ftype3::NF3REG, self.faults.lock().unwrap().grown_bytes),
            FIRST_LINK.. => (ftype3::NF3LNK, 4),
            _ => return Err(nfsstat3::NFS3ERR_STALE),
        };
        let time = nfstime3 { seconds: 1 + self.faults.lock().unwrap().changes, nseconds: 2 };
        Ok(fattr3 {
            type_,
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            size,
            used: size,
            rdev: specdata3::default(),
            fsid: 1,
            fileid: id.as_u64(),
            atime: time,
            mtime: time,
            ctime: time,
        })
    }

    async fn read(
        &self,
        id: &FileHandleU64,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), nfsstat3> {
        let mut faults = self.faults.lock().unwrap();
        let grown_bytes = faults.grown_bytes;
        let content = match id.as_u64() {
            FILE | SUCCESSOR if !faults.is_stale => &self.content[..],
            EMPTY => &vec![5; grown_bytes as usize][..],
            _ => return Err(nfsstat3::NFS3ERR_STALE),
        };
        if faults.is_refused {
            return Err(nfsstat3::NFS3ERR_ACCES);
        }
        let end = offset + u64::from(count);
        if faults.broken.as_ref().is_some_and(|bytes| bytes.start < end && offset < bytes.end) {
            return Err(nfsstat3::NFS3ERR_IO);
        }
        if faults.jukebox > 0 {
            faults.jukebox -= 1;
            return Err(nfsstat3::NFS3ERR_JUKEBOX);
        }
        let file_end = faults.shrunk_bytes.unwrap_or(content.len() as u64);
        let most = u64::from(faults.short_bytes.unwrap_or(count).min(count));
        let start = offset.min(file_end);
        let end = (offset + most).min(file_end).max(start);
        let mut bytes = content[start as usize..end as usize].to_vec();
        if start == 0 && id.as_u64() != EMPTY && !bytes.is_empty() {
            bytes[0] = bytes[0].wrapping_add(faults.changes as u8 + id.as_u64() as u8 - FILE as u8);
        }
        Ok((bytes, end == file_end))
    }

    async fn readdirplus(
        &self,
        _directory: &FileHandleU64,
        _cookie: u64,
    ) -> Result<impl ReadDirPlusIterator<FileHandleU64>, nfsstat3> {
        Ok(NoEntries)
    }

    async fn readlink(&self, id: &FileHandleU64) -> Result<nfspath3<'_>, nfsstat3> {
        let target = match id.as_u64() {
            CHAIN => "file".to_owned(),
            number @ CHAIN.. => format!("chain-{}", number - CHAIN - 1),
            number => LINKS[(number - FIRST_LINK) as usize].1.to_owned(),
        };
        Ok(nfspath3(Opaque::owned(target.into_bytes())))
    }

    async fn fsinfo(&self, _root: &FileHandleU64) -> Result<FSINFO3resok, nfsstat3> {
        Ok(FSINFO3resok {
            obj_attributes: post_op_attr::None,
            rtmax: 1 << 20,
            rtpref: self.read_bytes,
            rtmult: 4096,
            // libnfs rejects smaller values, although it only reads.
            wtmax: 1 << 20,
            wtpref: 1 << 20,
            wtmult: 4096,
            dtpref: 4096,
            maxfilesize: 1 << 60,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: 0,
        })
    }
}

/// The tests write nothing. Without this implementation the server would not ask for FSINFO.
impl NfsFileSystem for FrameCache {
    fn capabilities(&self) -> VFSCapabilities {
        VFSCapabilities::ReadOnly
    }

    async fn setattr(&self, _: &FileHandleU64, _: sattr3) -> Result<fattr3, nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn write(
        &self,
        _: &FileHandleU64,
        _: u64,
        _: &[u8],
        _: stable_how,
    ) -> Result<(fattr3, stable_how), nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn create(
        &self,
        _: &FileHandleU64,
        _: &filename3<'_>,
        _: sattr3,
    ) -> Result<(FileHandleU64, fattr3), nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn create_exclusive(
        &self,
        _: &FileHandleU64,
        _: &filename3<'_>,
        _: createverf3,
    ) -> Result<FileHandleU64, nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn mkdir(
        &self,
        _: &FileHandleU64,
        _: &filename3<'_>,
    ) -> Result<(FileHandleU64, fattr3), nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn remove(&self, _: &FileHandleU64, _: &filename3<'_>) -> Result<(), nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn rename<'a>(
        &self,
        _: &FileHandleU64,
        _: &filename3<'a>,
        _: &FileHandleU64,
        _: &filename3<'a>,
    ) -> Result<(), nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn symlink<'a>(
        &self,
        _: &FileHandleU64,
        _: &filename3<'a>,
        _: &nfspath3<'a>,
        _: &sattr3,
    ) -> Result<(FileHandleU64, fattr3), nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }

    async fn commit(&self, _: &FileHandleU64, _: u64, _: u32) -> Result<(), nfsstat3> {
        Err(nfsstat3::NFS3ERR_ROFS)
    }
}

/// A running server. It ends with its connections when this is dropped.
pub struct Server {
    runtime: Option<tokio::runtime::Runtime>,
    pub port: u16,
    pub faults: Arc<Mutex<Faults>>,
    content: Arc<Vec<u8>>,
    read_bytes: u32,
}

/// Generation of its handles, so that they outlive a restart.
const GENERATION: u64 = 77;

impl Server {
    /// Serves `/data/file` with these bytes, and prefers READs of `read_bytes`.
    pub fn start(content: Vec<u8>, read_bytes: u32) -> Server {
        let mut server = Server {
            runtime: None,
            port: 0,
            faults: Arc::default(),
            content: Arc::new(content),
            read_bytes,
        };
        server.run();
        server
    }

    /// Stops the server: connections break, and the port refuses new ones.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        }
    }

    /// Starts the server again on the same port.
    pub fn restart(&mut self) {
        self.kill();
        self.run();
    }

    fn run(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let frame_cache = FrameCache {
            content: Arc::clone(&self.content),
            faults: Arc::clone(&self.faults),
            read_bytes: self.read_bytes,
        };
        let address = format!("127.0.0.1:{}", self.port);
        let bound = NFSTcpListener::bind_with_generation(&address, frame_cache, GENERATION);
        let mut listener = runtime.block_on(bound).unwrap();
        listener.with_export_name("data");
        self.port = listener.get_listen_port();
        runtime.spawn(async move { listener.handle_forever().await });
        self.runtime = Some(runtime);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

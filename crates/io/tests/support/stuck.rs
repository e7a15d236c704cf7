//! A FUSE folder with files of which parts are not answered until the test allows it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyEntry, ReplyOpen, Request, Session,
};

/// Length of each file in bytes.
pub const BYTES: u64 = 16 << 20;
/// Number of files, named `0`, `1` and so on.
pub const FILES: u64 = 400;

/// Number of one more file, which FUSE opens for direct I/O.
pub const UNMAPPED: u64 = FILES;

/// Byte of each file at offset `at`.
pub fn byte(at: u64) -> u8 {
    (at / 4096 % 251) as u8
}

/// The mounted folder. Drop answers all requests and unmounts it.
pub struct Stuck {
    pub folder: PathBuf,
    held: Arc<Mutex<Held>>,
    session: Option<BackgroundSession>,
}

/// Ranges that are not answered, and the requests that wait for them.
#[derive(Default)]
struct Held {
    /// Number of the file, and first byte of its stuck range.
    stuck: Vec<(u64, u64)>,
    /// Number of the file, and error number of its reads.
    failing: Vec<(u64, i32)>,
    /// Number of the thread of each failed read.
    failed_threads: Vec<u32>,
    replies: Vec<(ReplyData, Vec<u8>)>,
}

impl Stuck {
    /// Mounts the folder in the build directory; `None`, with the reason on standard error, without
    /// FUSE.
    pub fn mount(name: &str) -> Option<Stuck> {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("readpath-stuck-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let held = Arc::<Mutex<Held>>::default();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("readpath-stuck".to_owned())];
        let files = Files { held: Arc::clone(&held), made_at: SystemTime::now() };
        match Session::new(files, &folder, &config).and_then(Session::spawn) {
            Ok(session) => Some(Stuck { folder, held, session: Some(session) }),
            Err(error) => {
                eprintln!("skipped: no FUSE mount: {error}");
                let _ = std::fs::remove_dir(&folder);
                None
            }
        }
    }

    /// Path of a file.
    pub fn name(&self, file: u64) -> PathBuf {
        self.folder.join(file.to_string())
    }

    /// Answers later reads of the file with an error number, as in errno(3).
    #[allow(dead_code, reason = "not every test program needs it")]
    pub fn fail(&self, file: u64, errno: i32) {
        self.held.lock().unwrap().failing.push((file, errno));
    }

    /// Leaves reads of the file at or after byte `from` unanswered, also if earlier ones
    /// [fail](Stuck::fail). The file must be open already: the open may try direct I/O with a read.
    pub fn stick(&self, file: u64, from: u64) {
        let mut held = self.held.lock().unwrap();
        held.failing.retain(|&(failing_file, _)| failing_file != file);
        held.stuck.push((file, from));
    }

    /// Answers all requests and removes all stuck ranges.
    pub fn release(&self) {
        let mut held = self.held.lock().unwrap();
        held.stuck.clear();
        held.replies.drain(..).for_each(|(reply, data)| reply.data(&data));
    }

    /// Threads whose reads have [failed](Stuck::fail).
    #[allow(dead_code, reason = "not every test program needs it")]
    pub fn failed_threads(&self) -> Vec<u32> {
        self.held.lock().unwrap().failed_threads.clone()
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.held.lock().unwrap().replies.len()
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.release();
        if let Some(session) = self.session.take() {
            let _ = rustix::mount::unmount(&self.folder, rustix::mount::UnmountFlags::DETACH);
            drop(session);
        }
        let _ = std::fs::remove_dir(&self.folder);
    }
}

struct Files {
    held: Arc<Mutex<Held>>,
    made_at: SystemTime,
}

/// Time for which the kernel caches attributes.
const KEPT: Duration = Duration::from_secs(3_600);
/// Inode of file 0; the folder has inode 1.
const FIRST_INODE: u64 = 2;

impl Files {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode != INodeNo::ROOT;
        FileAttr {
            ino: inode,
            size: if is_file { BYTES } else { 0 },
            blocks: if is_file { BYTES / 512 } else { 0 },
            atime: self.made_at,
            mtime: self.made_at,
            ctime: self.made_at,
            crtime: self.made_at,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o644 } else { 0o755 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4_096,
            flags: 0,
        }
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Otherwise the kernel itself queues requests behind twelve stuck ones.
        config.set_max_background(4_096).map_err(|_| std::io::Error::other("max_background"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
        match number.filter(|&number| parent == INodeNo::ROOT && number <= UNMAPPED) {
            Some(number) => {
                let inode = INodeNo(FIRST_INODE + number);
                reply.entry(&KEPT, &self.attributes(inode), Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&KEPT, &self.attributes(inode));
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let is_direct = inode.0 == FIRST_INODE + UNMAPPED;
        let direct_io = FopenFlags::FOPEN_DIRECT_IO;
        reply.opened(FileHandle(0), if is_direct { direct_io } else { FopenFlags::empty() });
    }

    fn read(
        &self,
        request: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = (offset + u64::from(size)).min(BYTES);
        let data: Vec<u8> = (offset..end).map(byte).collect();
        let mut held = self.held.lock().unwrap();
        let number = inode.0 - FIRST_INODE;
        if let Some(&(_, errno)) = held.failing.iter().find(|&&(file, _)| file == number) {
            held.failed_threads.push(request.pid());
            return reply.error(Errno::from_i32(errno));
        }
        let is_stuck = held.stuck.iter().any(|&(file, from)| file == number && end > from);
        match is_stuck {
            true => held.replies.push((reply, data)),
            false => reply.data(&data),
        }
    }
}

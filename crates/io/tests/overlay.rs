//! Files on overlayfs, as in a container. Its `cachestat(2)` counts no pages, and it has no
//! `RWF_NOWAIT`. The pages are of the file below.

mod support;

use std::fs::File as StdFile;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use readpath::{PageCache, ReadPath};
use readpath_core::unit::PageRange;
use support::system_calls::{calls_between_marks, mark};
use support::{content, own_cache, status_bytes};

const FILE_BYTES: usize = 4 << 20;
const PAGE: usize = 4096;

/// An overlay in a mount namespace of the calling thread, with one file. Drop removes it.
struct Overlay {
    folder: PathBuf,
    /// The file of the overlay, and the file below it.
    file: PathBuf,
    lower_file: PathBuf,
}

impl Overlay {
    /// Mounts an overlay in the build directory. `None`, with a skip message, without permission.
    fn mount() -> Option<Overlay> {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("readpath-overlay-{}", std::process::id()));
        let [lower, upper, work, merged] =
            ["lower", "upper", "work", "merged"].map(|name| folder.join(name));
        for name in [&lower, &upper, &work, &merged] {
            std::fs::create_dir_all(name).unwrap();
        }
        std::fs::write(lower.join("file"), content(FILE_BYTES)).unwrap();
        let overlay = Overlay { file: merged.join("file"), lower_file: lower.join("file"), folder };
        // SAFETY: the thread of the test gets mounts of its own, and shares nothing else less.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            let error = std::io::Error::last_os_error();
            eprintln!("skipped: no mount namespace: {error}");
            return None;
        }
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        let options = [("lowerdir", lower), ("upperdir", upper), ("workdir", work)]
            .map(|(option, folder)| format!("{option}={}", folder.display()))
            .join(",");
        let options = std::ffi::CString::new(options).unwrap();
        let mounted = mount_change("/", private).and_then(|()| {
            mount("overlay", &merged, "overlay", MountFlags::empty(), options.as_c_str())
        });
        if let Err(error) = mounted {
            eprintln!("skipped: no overlay mount: {error}");
            return None;
        }
        Some(overlay)
    }

    /// Number of resident pages of the file below the overlay, by mincore(2).
    fn lower_resident(&self, pages: std::ops::Range<usize>) -> usize {
        let file = StdFile::open(&self.lower_file).unwrap();
        let range = PageRange { first: pages.start as u64, end: pages.end as u64 };
        let flags = readpath_record::cold::residency_flags(&file, range).unwrap();
        flags.into_iter().filter(|&is_resident| is_resident).count()
    }

    /// Drops the pages of the file below. False, with a skip message, if some stay.
    fn drop_pages(&self) -> bool {
        readpath_record::cold::drop_pages(&self.lower_file).unwrap();
        let is_cold = self.lower_resident(0..FILE_BYTES / PAGE) == 0;
        if !is_cold {
            eprintln!("skipped: the kernel can't be brought to drop the pages here");
        }
        is_cold
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(self.folder.join("merged"), flags);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waker that reports each call.
struct Woken(Sender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        let _ = self.0.send(());
    }
}

/// Futures of 64 MiB in all are polled once, woken, and not polled again. They keep a piece
/// of 256 KiB each, 4 MiB in all. Their zeroed buffers are not resident yet. Then each one has all
/// its bytes.
fn check_memory_of_unpolled_futures(file: &readpath::File, content: &[u8]) {
    const FUTURES: usize = 16;
    let (sender, woken) = channel();
    let waker = Waker::from(Arc::new(Woken(sender)));
    let before = status_bytes("VmRSS:");
    let mut futures: Vec<_> =
        (0..FUTURES).map(|_| Box::pin(file.read_at_async(vec![0; FILE_BYTES], 0))).collect();
    for future in &mut futures {
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    (0..FUTURES).for_each(|_| woken.recv_timeout(Duration::from_secs(60)).unwrap());
    let growth = status_bytes("VmRSS:").saturating_sub(before);
    assert!(growth < 16 << 20, "{growth} bytes");
    for future in futures {
        let (count, buffer) = pollster::block_on(future);
        assert!(count.unwrap() == FILE_BYTES && buffer == content);
    }
}

/// Makes `cachestat(2)` count 0 pages without a check of permission, as older kernels do for any
/// file on overlayfs: the call returns 0, and the kernel writes nothing (seccomp(2)).
fn skip_permission_of_cachestat() {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let code = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        code(LOAD, 0, 0, 0),
        code(IF_EQUAL, 451, 0, 1), // cachestat
        code(RETURN, libc::SECCOMP_RET_ERRNO, 0, 0),
        code(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program outlives the calls, and affects only this child.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// A user who may only read the file of another user learns nothing of its pages: `mincore(2)`
/// reports all of them as resident. The pages do not count as resident for the user, whether
/// resident or not. `is_warm` is the truth, which root sees.
fn check_user_without_permission(overlay: &Overlay, is_warm: bool) {
    let is_cached_for = |user: u32, skips_permission: bool| {
        let child = support::child::Child::forked(&|| {
            let path = ReadPath::builder().build().unwrap();
            let file = path.open(&overlay.file).unwrap();
            // SAFETY: this child has one thread.
            assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0);
            if skips_permission {
                skip_permission_of_cachestat();
            }
            file.is_cached(0, PAGE as u64)
        });
        match child.code() {
            0 => true,
            1 => false,
            code => panic!("the child ended with {code}"),
        }
    };
    let (root, other_user) = (0, 65_534);
    for skips_permission in [false, true] {
        assert_eq!(is_cached_for(root, skips_permission), is_warm, "{skips_permission}");
        assert!(!is_cached_for(other_user, skips_permission), "{skips_permission}");
    }
}

/// A file of one page grows by 8 resident MiB after it was opened. Its first page stays in the
/// kernel page cache.
fn check_file_that_has_grown(overlay: &Overlay) {
    let name = overlay.file.with_file_name("growing");
    std::fs::write(&name, content(PAGE)).unwrap();
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&name).unwrap();
    assert!(file.is_cached(0, PAGE as u64));
    let mut appended = StdFile::options().append(true).open(&name).unwrap();
    std::io::Write::write_all(&mut appended, &content(8 << 20)).unwrap();
    assert!(file.is_cached(0, PAGE as u64));
}

/// Number of `mincore(2)` calls of `act`, in a child. `None` where calls cannot be counted.
fn mincore_calls(act: impl Fn()) -> Option<usize> {
    let calls = calls_between_marks(|| {
        mark();
        act();
        mark();
    });
    Some(calls?[0].iter().filter(|&&call| call == libc::SYS_mincore).count())
}

/// Number of `mincore(2)` calls of `reads` resident reads of a batch, in order.
fn mincore_calls_of_batch(overlay: &Overlay, reads: u64) -> Option<usize> {
    mincore_calls(|| {
        let path = ReadPath::builder().build().unwrap();
        let file = path.open(&overlay.file).unwrap();
        let mut batch = path.batch();
        (0..reads).for_each(|nth| batch.read(&file, nth * 9_000, 9_000, nth).unwrap());
    })
}

/// 64 reads within 2 resident MiB. The first checks its pages, the 2nd and the 34th check their
/// window, and 31 reads after each of these check nothing. A check of resident pages has two calls,
/// one of them for the permission.
fn check_calls_of_warm_batch(overlay: &Overlay) {
    let calls = mincore_calls_of_batch(overlay, 64);
    assert!(calls.is_none_or(|calls| calls == 6), "{calls:?}");
}

/// Half of the window is resident. Each of 10 reads there checks its pages, with two calls. The
/// second one checks the window too, where an absent page saves the call for the permission.
fn check_calls_of_half_resident_window(overlay: &Overlay) {
    let lower = StdFile::open(&overlay.lower_file).unwrap();
    rustix::fs::fadvise(&lower, 0, None, rustix::fs::Advice::Random).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&lower, &mut vec![0; 1 << 20], 0).unwrap();
    let calls = mincore_calls_of_batch(overlay, 10);
    assert!(calls.is_none_or(|calls| calls == 21), "{calls:?}");
}

/// The first half of the file is resident. Small reads of a batch there earn trust. Reads of the
/// cold half are checked all the same, and each one with its 5 pages is advised: 60 pages.
fn check_cold_batch_after_resident_reads(overlay: &Overlay) {
    let lower = StdFile::open(&overlay.lower_file).unwrap();
    rustix::fs::fadvise(&lower, 0, None, rustix::fs::Advice::Random).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&lower, &mut vec![0; FILE_BYTES / 2], 0).unwrap();
    if overlay.lower_resident(FILE_BYTES / 2 / PAGE..FILE_BYTES / PAGE) > 0 {
        return eprintln!("skipped: the kernel has read the second half ahead");
    }
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&overlay.file).unwrap();
    let mut batch = path.batch();
    for nth in 0..80 {
        batch.read(&file, nth * 20_000, 1_000, nth).unwrap();
    }
    assert_eq!(path.stats().kernel_advised_bytes, 0);
    for nth in 0..12 {
        let page = FILE_BYTES as u64 / PAGE as u64 / 2 + nth * 40;
        batch.read(&file, page * PAGE as u64, 5 * PAGE as u64, 80 + nth).unwrap();
    }
    let advised_bytes = path.stats().kernel_advised_bytes;
    assert!(advised_bytes >= 60 * PAGE as u64, "{advised_bytes} bytes");
}

/// One test, because the mounts are of its thread.
#[test]
fn residency_of_a_file_on_overlayfs_is_that_of_the_file_below() {
    let Some(overlay) = Overlay::mount() else { return };
    let lower_file = StdFile::open(&overlay.lower_file).unwrap();
    if let Err(error) = readpath_os::page_cache::resident_pages(&lower_file, 0, 0) {
        return eprintln!("skipped: the kernel counts no resident pages: {error}");
    }
    let content = content(FILE_BYTES);
    let path = ReadPath::builder().build().unwrap();
    let file = path.open(&overlay.file).unwrap();
    if overlay.drop_pages() {
        assert!(!file.is_cached(0, PAGE as u64));
        // An absent page proves the permission too.
        let calls = mincore_calls(|| assert!(!file.is_cached(0, PAGE as u64)));
        assert!(calls.is_none_or(|calls| calls == 1), "{calls:?}");
        let is_warm = false;
        check_user_without_permission(&overlay, is_warm);
        check_calls_of_half_resident_window(&overlay);
        check_cold_batch_after_resident_reads(&overlay);
        assert!(overlay.drop_pages());
        let cold = readpath_record::cold::residency(&overlay.file).unwrap();
        assert_eq!((cold.pages, cold.resident), (FILE_BYTES as u64 / PAGE as u64, 0));
    }
    check_file_that_has_grown(&overlay);
    std::fs::read(&overlay.lower_file).unwrap();
    if overlay.lower_resident(0..FILE_BYTES / PAGE) < FILE_BYTES / PAGE {
        return eprintln!("skipped: the file is not resident");
    }
    let is_warm = true;
    check_user_without_permission(&overlay, is_warm);
    check_calls_of_warm_batch(&overlay);
    // Reads of a batch are found resident when they are added, so that none is advised. They are
    // far apart, and reach the policy later.
    let mut batch = path.batch();
    for nth in 0..40 {
        batch.read(&file, nth * 100_003, 9_000, nth).unwrap();
    }
    assert_eq!(path.stats().kernel_advised_bytes, 0);
    while let Some(read) = batch.wait().unwrap() {
        let bytes = read.slices().unwrap().collect::<Vec<_>>().concat();
        assert!(bytes == content[read.ticket() as usize * 100_003..][..9_000]);
    }
    assert!(file.is_cached(0, FILE_BYTES as u64));
    let warm = readpath_record::cold::residency(&overlay.file).unwrap();
    assert_eq!(warm.resident, FILE_BYTES as u64 / PAGE as u64);
    // A future of any length reads the file once.
    for bytes in [5_000, 1 << 20] {
        let (count, buffer) = pollster::block_on(file.read_at_async(vec![0; bytes], 77));
        assert!(count.unwrap() == bytes && buffer == content[77..][..bytes]);
    }
    check_memory_of_unpolled_futures(&file, &content);
    assert_eq!((path.stats().device_reads, path.stats().used_memory_bytes), (0, 0));
    // A path with a cache of its own reads no such pages: the kernel would wait for them.
    for path in [own_cache(), ReadPath::builder().page_cache(PageCache::None)] {
        let file = path.build().unwrap().open(&overlay.file).unwrap();
        assert!(!file.is_cached(0, FILE_BYTES as u64));
        let mut all = vec![0; FILE_BYTES];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all == content);
    }
}

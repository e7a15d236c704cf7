//! A region in a folder of btrfs, which by default writes each block to new space. The space
//! allocated at creation must remain available when the file system is full.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use readpath::Region;
use support::{can_serve, in_child};

const IMAGE_BYTES: u64 = 256 << 20;
const REGION_BYTES: u64 = 16 << 20;

/// A mounted file system. Drop removes the mount, its loop device and the image.
struct Mounted {
    folder: PathBuf,
    image: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let ran = Command::new(program).args(arguments).output().map_err(|why| why.to_string())?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&ran.stderr).trim())),
    }
}

impl Mounted {
    fn new() -> Result<Mounted, String> {
        let name = format!("readpath-btrfs-{}", std::process::id());
        let below = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (folder, image) = (below.join(&name), below.join(format!("{name}.image")));
        std::fs::File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        let mounted = Mounted { folder, image };
        let (image, folder) = (mounted.image.to_str().unwrap(), mounted.folder.to_str().unwrap());
        run("mkfs.btrfs", &["-q", "-f", image])?;
        // The loop device is removed with the mount.
        run("mount", &["-o", "loop", image, folder])?;
        Ok(mounted)
    }

    /// Allocates all free space.
    fn fill(&self) {
        let filler = std::fs::File::create(self.folder.join("filler")).unwrap();
        let (mut bytes, mut piece) = (0, 64 << 20);
        while piece >= 4096 {
            let flags = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(&filler, flags, bytes, piece) {
                Ok(()) => bytes += piece,
                Err(_) => piece /= 2,
            }
        }
        eprintln!("{bytes} bytes were free");
        let _ = filler.sync_all();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &[self.folder.to_str().unwrap()]);
        let _ = std::fs::remove_dir(&self.folder);
        let _ = std::fs::remove_file(&self.image);
    }
}

#[test]
fn region_keeps_its_space_when_the_file_system_fills() {
    if !can_serve() {
        return eprintln!("skipped: no userfaultfd");
    }
    let mounted = match Mounted::new() {
        Ok(mounted) => mounted,
        Err(why) => return eprintln!("skipped: no btrfs: {why}"),
    };
    let is_right = in_child(|| {
        let made = Region::builder().memory(1 << 20).in_folder(REGION_BYTES, &mounted.folder);
        let mut region = made.unwrap();
        mounted.fill();
        // Each page is written and swapped out several times.
        for round in 0..4u64 {
            for (nth, page) in region.as_mut_slice().chunks_exact_mut(4096).enumerate() {
                page.fill((nth as u64 * 7 + round) as u8);
            }
            let mut pages = region.as_slice().chunks_exact(4096).enumerate();
            if !pages.all(|(nth, page)| page.iter().all(|&at| at == (nth as u64 * 7 + round) as u8))
            {
                eprintln!("round {round}: other bytes than were written");
                return false;
            }
        }
        let statistics = region.stats();
        eprintln!("{statistics:?}");
        statistics.failed_writes == 0 && region.check().is_ok()
    });
    assert!(is_right, "a touch of the region ended in SIGBUS, or other bytes came");
}

//! `readpath advise` by a user without rights, on a slow disk.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::{env, fs};

use crate::gains::{SlowDisk, device};
use crate::preload::as_nobody;
use crate::programs::{MAPPED_DATA, MIB, PIECES_OF_DATA, Program};
use crate::support::{Ran, Scratch};
use crate::{PROGRAM, mib};

/// Length of the file.
const FILE_MIB: u64 = 64;

/// Number of runs, of which one must not rest because of other load.
const RUNS_MAX: usize = 5;

#[test]
fn read_calls_are_advised_without_root() {
    assert_advised("advise-nobody", &PIECES_OF_DATA);
}

/// The pages of the mapping are found in the page table of the program.
#[test]
fn touches_of_a_mapping_are_advised_without_root() {
    assert_advised("advise-mapped", &MAPPED_DATA);
}

/// A program that fails with status 3. The message must not promise a recording that is not kept.
#[test]
fn failure_of_a_program_names_a_recording_only_with_an_output() {
    let scratch = Scratch::under(&env::temp_dir(), "advise-failed");
    scratch.data("made", 1 << 20);
    let program = ["--", "sh", "-c", "cat made > /dev/null; exit 3"];
    for (options, is_recorded) in [
        (&["advise"][..], false),
        (&["advise", "-o", "reads.rec"], true),
        (&["record", "-o", "reads.rec"], true),
    ] {
        let Some(mut command) = as_nobody(&scratch, &[options, &program].concat()) else {
            return println!("skipped: no setpriv(1)");
        };
        let ran = Ran::of(command.output().unwrap());
        ran.has_ended(1, "a failed program");
        ran.says(&["sh ended with exit status: 3"], "a failed program");
        let has_promise = ran.stderr.contains("its reads are recorded");
        assert_eq!(has_promise, is_recorded, "{options:?}: {}", ran.stderr);
        assert_eq!(scratch.path("reads.rec").exists(), is_recorded, "{options:?}");
        let _ = fs::remove_file(scratch.path("reads.rec"));
    }
}

/// Holds that a program that reads `data` on a slow disk gets pages ahead, and uses half of them.
fn assert_advised(name: &str, read: &Program) {
    let scratch = Scratch::under(&env::temp_dir(), name);
    // Only root makes the disk.
    if !crate::support::is_root() {
        return println!("skipped: needs root");
    }
    let Some(disk) = SlowDisk::new(&scratch, &device(4, 32)) else {
        return println!("skipped: needs FUSE, losetup and mkfs.ext4");
    };
    let made = scratch.data("made", (FILE_MIB * MIB) as usize);
    fs::copy(made, disk.folder().join("data")).unwrap();
    fs::set_permissions(disk.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("mounted/data", scratch.path("data")).unwrap();
    let own = env::current_exe().unwrap();
    let program = [own.to_str().unwrap(), "--exact", "program", "--ignored", "--nocapture"];
    let arguments = [&["advise", "--memory", "32MiB", "--"][..], &program].concat();
    let mut reports = Vec::new();
    for _ in 0..RUNS_MAX {
        let Some(mut command) = as_nobody(&scratch, &arguments) else {
            return println!("skipped: no setpriv(1)");
        };
        let ran = Ran::of(command.env(PROGRAM, read.name).output().unwrap());
        ran.has_ended(0, "advise");
        ran.says(&["not root: pages are brought in for the read calls"], "advise");
        assert!(!scratch.path("readpath.rec").exists(), "none was asked for");
        let brought = ran.stderr.lines().find(|line| line.contains(" of it used "));
        // The user may not count the pages of root's file, so that the line ends with the third.
        assert!(!ran.stderr.contains("kernel's count"), "{}", ran.stderr);
        if let Some(&[brought, used, standing]) = brought.map(mib).as_deref() {
            assert!(standing <= 32.0, "{}", ran.stderr);
            assert!(brought <= FILE_MIB as f64, "{}", ran.stderr);
            if brought >= 8.0 && used >= 0.5 * brought {
                return;
            }
        }
        reports.push(ran.stderr);
    }
    panic!("no run was helped:\n{}", reports.join("\n"));
}

//! Names in the comments of functions and fields: each is in the code of its file.
//!
//! A renamed parameter leaves its old name in the comment of its function. Names of other programs
//! and of the system are in [`OTHER_NAMES`].

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::files;

/// Names in comments that are no names of their file. They are system calls and files, fields and
/// tracepoints of the kernel, and options of other programs. Others are policies, keys of
/// decisions, and functions of other files.
const OTHER_NAMES: &str = "\
    acregmin actimeo adaptive addresses aio_data another arc asked async at_ms back_seek_max \
    backward be bench blockalign bpftrace build cfq class clock2q clone collect_next_uses \
    copy_file_range d deadline depth_max device direct disk_buffer_select_write_segment \
    disksim_bus enough evicted exitall fadvise64 far fault_around_bytes fdatasync filemap fork \
    format forward fstat fsync go_on hdd hist_divisor idle invalidate io_destroy io_getevents \
    io_submit io_uring io_uring_complete io_uring_enter io_uring_submit_req iocb iodepth_batch k \
    kernel ki kiobuf less libaio lirs lookup3 losetup lru m madvise man map_pages max_sectors_kb \
    md memcpy memory mglru mincore mlock mlock2 mlockall mm_filemap_fault mm_filemap_get_pages \
    mm_filemap_map_pages mmap mremap n nfs3_server none nr_requests null occupies ondemand open \
    openat2 order own page_cluster page_cluster_max page_fault_kernel piece posix_fadvise \
    post_op_attr pread pread64 preadv preadv2 processor psychic psync ramp_time random randseed \
    rate_ignore_thinktime raw read read_ahead_kb read_at readahead readv recursion_misses region \
    replay_redirect replay_scale ring rmdir rsize rt runs s3fifo secure sendfile sequential sieve \
    slots slru spawn_blocking splice ssd st_dev st_ino st_rdev stat stonewall strace strided swapoff swaps \
    sweep sync sync_noidle sys_enter_io_submit taus258 taus88 trace_pipe_raw unlink usdt \
    verify_only vfork w wait_busy wait_request waits window";

/// Name of an item, field or parameter in backquotes: lower case.
fn quoted_names(comment: &str) -> impl Iterator<Item = &str> {
    let is_name = |text: &&str| {
        text.starts_with(|first: char| first.is_ascii_lowercase())
            && text.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_')
    };
    comment.split('`').skip(1).step_by(2).filter(is_name)
}

/// The comment of a line, without the slashes. `None` for a line without one, and for module
/// documentation, which names modules and options freely.
fn comment(line: &str) -> Option<&str> {
    let start = line.find("// ").or_else(|| line.find("/// "))?;
    let is_whole_line = line[..start].trim().trim_matches('/').is_empty();
    is_whole_line.then(|| &line[start..])
}

/// All words of the code of a file.
fn code_words(text: &str) -> HashSet<&str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words = |line: &'_ str| -> Vec<(usize, usize)> {
        let is_part = |it: char| it.is_alphanumeric() || it == '_';
        let mut found = Vec::new();
        let mut start = None;
        for (at, letter) in line.char_indices().chain([(line.len(), ' ')]) {
            match (start, is_part(letter)) {
                (None, true) => start = Some(at),
                (Some(from), false) => {
                    found.push((from, at));
                    start = None;
                }
                _ => {}
            }
        }
        found
    };
    code.flat_map(|line| words(line).into_iter().map(move |(from, to)| &line[from..to])).collect()
}

/// Unknown names in the comments of a file: line number and name.
fn unknown(text: &str) -> Vec<(usize, String)> {
    let known = code_words(text);
    let others: HashSet<&str> = OTHER_NAMES.split_whitespace().collect();
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.contains("```")) {
        let names = comment(line).into_iter().flat_map(quoted_names);
        // A link has its target behind it: rustdoc checks it.
        let is_linked = |name: &str| line.contains(&format!("[`{name}`]"));
        found.extend(
            names
                .filter(|name| !known.contains(name) && !others.contains(name) && !is_linked(name))
                .map(|name| (number, name.to_owned())),
        );
    }
    found
}

/// Files with comments to be checked. The tables of fio's options name options of fio.
fn checked_files(root: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(root.join("crates")).unwrap();
    let mut checked: Vec<PathBuf> = folders
        .map(|it| it.unwrap().path().join("src"))
        .chain([root.join("python/src")])
        .flat_map(|folder| files(&folder, &["rs"]))
        .collect();
    checked.retain(|path| {
        let path = path.to_string_lossy();
        !["sim/src/job", "sim/src/load"].iter().any(|options| path.contains(options))
    });
    checked
}

/// Unknown names in all comments: file, line and name.
pub fn faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for path in checked_files(root) {
        let text = std::fs::read_to_string(&path).unwrap();
        faults.extend(unknown(&text).into_iter().map(|(line, name)| {
            format!("{}:{line}: `{name}` is no name in the code of this file", path.display())
        }));
    }
    faults
}

#[test]
fn comment_name_check_detects_a_renamed_parameter() {
    let text = "/// Calls `tell` for each page of `range`, as `fork` does.\n\
                fn each(range: Pages, on_page: impl FnMut(u64)) {}\n";
    assert_eq!(unknown(text), [(1, "tell".to_owned())]);
}

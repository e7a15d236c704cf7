//! Options about the files of a job.

use super::{FioOption, refused, supported, without_effect};
use crate::job::value::{ExpectedForm, OptionValue};
use crate::job::{FileService, FileServiceKind};

/// Reason why options about file creation have no effect.
const FILE_CREATION: &str = "files are made in full before the run";

pub const TABLE: &[FioOption] = &[
    supported(
        "filename",
        &[],
        "file, or files with `:` between them, shared by all processes",
        |draft, value| parse_names(value).map(|names| draft.job.file_names = names),
    ),
    supported(
        "directory",
        &[],
        "directory of the files, or several with `:` between them, which processes take in turn",
        |draft, value| {
            let directories =
                parse_names(value).map_err(|_| "a directory, or several with `:` between them")?;
            draft.job.directories = directories;
            Ok(())
        },
    ),
    supported(
        "filename_format",
        &[],
        "how files are named where none are: $jobname, $jobnum, $filenum, $clientuid \
         ($jobname.$jobnum.$filenum)",
        |draft, value| value.non_empty_text().map(|text| draft.job.file_name_format = Some(text)),
    ),
    without_effect("unique_filename", &[], "no client is served here"),
    supported("nrfiles", &["nr_files"], "files of each process (1)", |draft, value| {
        value.integer(1..=65_536).map(|n| draft.job.files = n)
    }),
    supported("openfiles", &[], "files of a process in use at a time (nrfiles)", |draft, value| {
        let count = value.integer(0..=65_536)?;
        draft.job.open_files_max = Some(count).filter(|count| *count > 0);
        Ok(())
    }),
    supported(
        "file_service_type",
        &[],
        "roundrobin, sequential, random, each with :N for N operations in a file (roundrobin)",
        |draft, value| parse_file_service(value).map(|service| draft.job.file_service = service),
    ),
    refused(
        "opendir",
        &[],
        &[""],
        "what is in a directory is not known before the run; name the files with `filename`",
    ),
    refused(
        "lockfile",
        &[],
        &["none"],
        "processes would wait for each other's locks on files; leave it out",
    ),
    without_effect("fallocate", &[], FILE_CREATION),
    without_effect("create_fsync", &[], FILE_CREATION),
    without_effect("create_on_open", &[], FILE_CREATION),
    without_effect("allow_file_create", &[], FILE_CREATION),
    without_effect("filetype", &[], "the storage that is named says what it is"),
    without_effect("unlink", &[], "files that are made for a run go away with it"),
    without_effect("unlink_each_loop", &[], "files that are made for a run go away with it"),
    without_effect("allow_mounted_write", &[], "--overwrite says what may be written"),
    refused(
        "pre_read",
        &[],
        &["0"],
        "the files would be in the cache before the job reads them; put a job that reads them \
         above, and invalidate=0 into this one",
    ),
    supported(
        "invalidate",
        &[],
        "0: what is cached of a file when a process first uses it stays (1)",
        |draft, value| value.flag().map(|on| draft.job.invalidates = on),
    ),
    supported(
        "fadvise_hint",
        &["fadvise"],
        "0, 1 (the job's own pattern), sequential, random (1)",
        |draft, value| {
            use crate::job::AdviceHint;
            let words = [
                ("0", AdviceHint::None),
                ("1", AdviceHint::Pattern),
                ("sequential", AdviceHint::Sequential),
                ("random", AdviceHint::Random),
            ];
            value.one_of(&words).map(|hint| draft.job.hint = hint)
        },
    ),
];

/// Parses file names separated by `:`. `\:` is a colon within a name. An empty name is an error.
fn parse_names(value: OptionValue<'_>) -> Result<Vec<String>, ExpectedForm> {
    let mut names = vec![String::new()];
    let mut letters = value.text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.next_if_eq(&':').is_some() => last_name(&mut names).push(':'),
            ':' => names.push(String::new()),
            letter => last_name(&mut names).push(letter),
        }
    }
    if names.iter().any(String::is_empty) {
        return Err("a file name, or several with `:` between them".to_owned());
    }
    Ok(names)
}

/// Returns the last name of a list.
fn last_name(names: &mut [String]) -> &mut String {
    names.last_mut().expect("the list starts with one name")
}

/// Parses the order in which files are used, such as `random:8` for eight operations in a file. The
/// default number is 1. fio's skewed choices (`zipf` and others) are an error.
fn parse_file_service(value: OptionValue<'_>) -> Result<FileService, ExpectedForm> {
    let (kind_name, suffix) = match value.text.split_once(':') {
        Some((kind_name, suffix)) => (kind_name, Some(value.part(suffix))),
        None => (value.text, None),
    };
    if ["zipf", "pareto", "normal", "gauss"].contains(&kind_name) {
        return Err(
            "roundrobin, sequential or random: skewed choices of files are not to be had here"
                .to_owned(),
        );
    }
    // `sequential` has no kind of its own, as the end of the function explains.
    let kind = value.part(kind_name).one_of(&[
        ("roundrobin", Some(FileServiceKind::RoundRobin)),
        ("random", Some(FileServiceKind::Random)),
        ("sequential", None),
    ])?;
    let operations_per_turn = suffix.map(|count| count.integer(1..=u32::MAX)).transpose()?;
    Ok(match kind {
        Some(kind) => {
            FileService { kind, operations_per_turn: Some(operations_per_turn.unwrap_or(1)) }
        }
        // `sequential`: the next file is chosen only at the end of a file, whatever number follows,
        // as in fio. `RoundRobin` then uses one file after the other.
        None => FileService { kind: FileServiceKind::RoundRobin, operations_per_turn: None },
    })
}

//! User input: text files, sizes, lists of policies and devices.

use std::io::ErrorKind;
use std::path::Path;

use clap::builder::{OsStringValueParser, TypedValueParser};
use readpath_core::policy::Spec;
use readpath_models::{input_file, path_text};
use readpath_sim::size;

use crate::exit::Failure;

/// Parser of an argument that may contain a path of any bytes, such as a storage. Bytes that are no
/// UTF-8 become reserved letters, which [`path_text::decode`] turns back into bytes.
pub fn path_argument_parser() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|argument| path_text::encode(&argument))
}

/// Parses a list of policies or devices, separated by commas. Their names are not looked up.
pub fn parse_specs(text: &str) -> Result<Vec<Spec>, Failure> {
    Spec::parse_all(text).map_err(Failure::usage)
}

/// Parses the size in an option and returns it in bytes. The error names the option.
pub fn size(option: &str, text: &str) -> Result<u64, Failure> {
    size::parse(text)
        .ok_or_else(|| Failure::Usage(format!("{option} {text}: expected {}", size::EXPECTED)))
}

/// Reads a job file, a file of loads or a workload. All are written by hand: a file of more than 16
/// MiB, or one that is no UTF-8, is an error. `form` describes the format in the second error,
/// for example `a job file is text`. The advice in the other errors names all three as a job file.
pub fn read_text(path: &Path, form: &str) -> Result<String, Failure> {
    let text = input_file::bytes(path, input_file::TEXT_BYTES_MAX).map_err(|error| {
        let what_to_do = match error.kind() {
            ErrorKind::NotFound => "; check the path of the job file",
            ErrorKind::IsADirectory => "; name a job file in it",
            ErrorKind::PermissionDenied => "; ask its owner, or run as a user who may read it",
            _ => "",
        };
        Failure::Usage(format!("{}: {error}{what_to_do}", path.display()))
    })?;
    String::from_utf8(text)
        .map_err(|_| Failure::usage_of(path.display(), format!("is not text; {form}")))
}

/// Parses the scheduler in `--scheduler`.
pub fn parse_scheduler(text: &str) -> Result<Spec, Failure> {
    <[Spec; 1]>::try_from(parse_specs(text)?).map(|[policy]| policy).map_err(|_| {
        Failure::Usage(format!(
            "--scheduler {text}: name one scheduler; run the command once for each"
        ))
    })
}

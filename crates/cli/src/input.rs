//! What the user gives: the text of a file, sizes, lists of laws and devices.

use std::io::ErrorKind;
use std::path::Path;

use clap::builder::{OsStringValueParser, TypedValueParser};
use readpath_core::policy::Spec;
use readpath_sim::{input_file, path_text, size};

use crate::exit::Failure;

/// Takes an argument of any bytes as text ([`path_text`]): a storage or device with a path in it.
pub fn with_path() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|argument| path_text::encode(&argument))
}

/// Takes a list of laws or devices apart.
pub fn specs(text: &str) -> Result<Vec<Spec>, Failure> {
    Spec::parse_all(text).map_err(Failure::usage)
}

/// Reads the size that an option was given; the error names the option.
pub fn size(option: &str, text: &str) -> Result<u64, Failure> {
    size::parse(text)
        .ok_or_else(|| Failure::Usage(format!("{option} {text}: expected {}", size::EXPECTED)))
}

/// Reads the text of an input file; `form` says what such a file is, as in `a job file is text`.
pub fn text(path: &Path, form: &str) -> Result<String, Failure> {
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
        .map_err(|_| Failure::about(path.display(), format!("is not text; {form}")))
}

//! Builds measured storage from text: `measured` or `measured,toml=FILE`.
//!
//! Further keys replace single response times. Their names are those that `readpath devices
//! measured` prints, as in `measured,random.4k.depth1=90`.

use std::path::Path;

use readpath_core::policy::{Spec, SpecError};

use super::MeasuredError;
use super::description::{StorageDescription, US};
use crate::fields::{FileError, toml_text};
use crate::input_file;
use crate::parameter::{DeviceParameter, ParameterOrigin};
use crate::path_text;

/// Built-in description: the storage of the machine that produced the figures in the documents.
const BUILT_IN_DESCRIPTION: &str = include_str!("virtual_disk.toml");

/// Returns the description that `spec` names, with the response times that `spec` replaces.
///
/// # Errors
/// Fails when the spec or the file is invalid.
pub fn description_with_overrides(spec: &Spec) -> Result<StorageDescription, MeasuredError> {
    let mut description = match spec.parameters.get("toml").map(|path| path_text::decode(path)) {
        None => parse_description(BUILT_IN_DESCRIPTION, Path::new("virtual_disk.toml"))?,
        Some(path) => {
            let text = read_text(&path).map_err(|problem| FileError {
                file: path.display().to_string(),
                // The whole file is at fault, no single line.
                line: 0,
                field: String::new(),
                problem,
            })?;
            parse_description(&text, &path)?
        }
    };
    for (key, value) in &spec.parameters {
        if key == "toml" {
            continue;
        }
        let mut times = named_times(&mut description);
        let Some(time) = times.iter_mut().find(|time| time.name == *key) else {
            let (name, key) = (spec.name.clone(), key.clone());
            let known = vec!["toml", "any time that `readpath devices measured` names"];
            return Err(SpecError::UnknownParameter { name, key, known }.into());
        };
        let value_us = value.parse().ok().filter(|us| (US.least..=US.most).contains(us));
        *time.us = value_us.ok_or_else(|| SpecError::BadValue {
            name: spec.name.clone(),
            key: key.clone(),
            value: value.clone(),
            expected: format!("µs from {} to {}", US.least, US.most),
        })?;
    }
    Ok(description)
}

/// A response time of a description, to be changed.
struct NamedTime<'d> {
    /// Name of the parameter, as `readpath devices measured` prints it.
    name: String,
    /// The time in µs.
    us: &'d mut f64,
    /// The requests that take this time.
    description: &'static str,
}

/// Description of the response time of streams.
const STREAMS_DESCRIPTION: &str = "one of so many streams in turn";

/// Text of a size or distance in a name: in KiB, or in bytes if it is no whole number of KiB. Two
/// sizes have two texts.
fn size_text(bytes: i64) -> String {
    match bytes % 1024 {
        0 => format!("{}k", bytes / 1024),
        _ => bytes.to_string(),
    }
}

/// Returns all response times of a description with their parameter names, each of which differs
/// from the others.
fn named_times(description: &mut StorageDescription) -> Vec<NamedTime<'_>> {
    let depths = &description.depths;
    let mut times = Vec::new();
    for (kind, size_costs, text) in [
        ("random", &mut description.random, "a request at a random place"),
        ("following", &mut description.following, "one that goes on where the last ended"),
    ] {
        for costs in size_costs {
            for (depth, us) in depths.iter().zip(&mut costs.us) {
                let size = size_text(costs.bytes as i64);
                let name = format!("{kind}.{size}.depth{depth}");
                times.push(NamedTime { name, us, description: text });
            }
        }
    }
    for near in &mut description.near {
        let name = format!("near.{}", size_text(near.distance));
        let text = "one that begins so far from the end of the last";
        times.push(NamedTime { name, us: &mut near.us, description: text });
    }
    let streams = &mut description.streams;
    let name = format!("streams.{}", streams.count);
    times.push(NamedTime { name, us: &mut streams.us, description: STREAMS_DESCRIPTION });
    times
}

/// Parses a description in TOML. `path` is the file name for errors.
fn parse_description(text: &str, path: &Path) -> Result<StorageDescription, FileError> {
    StorageDescription::of(&toml_text::parse(text, path)?)
}

/// Returns the text of a file of at most `TEXT_BYTES_MAX` bytes, or a message as error.
fn read_text(path: &Path) -> Result<String, String> {
    let text = input_file::text(path, input_file::TEXT_BYTES_MAX);
    text.map_err(|error| format!("can't be read: {error}"))
}

/// Returns the response times in printable form.
///
/// # Errors
/// Fails in the same cases as [`description_with_overrides`].
pub fn parameters(spec: &Spec) -> Result<Vec<DeviceParameter>, MeasuredError> {
    let mut storage_description = description_with_overrides(spec)?;
    let storage = storage_description.name.clone();
    let parameter = |NamedTime { name, us, description }: NamedTime<'_>| {
        let is_given = spec.parameters.contains_key(&name);
        let (origin, word) = match is_given {
            true => (ParameterOrigin::Given, "given"),
            false => (ParameterOrigin::Measured, "measured"),
        };
        let source = format!("{word}: {description}, of {storage}");
        DeviceParameter { name, value: format!("{us:.2}"), unit: "µs", origin, source }
    };
    Ok(named_times(&mut storage_description).into_iter().map(parameter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::description::NearResponse;

    /// Sizes of 512 and 1000 bytes, and distances of less than a KiB on both sides.
    #[test]
    fn times_of_two_sizes_have_two_names() {
        let path = Path::new("virtual_disk.toml");
        let mut description = parse_description(BUILT_IN_DESCRIPTION, path).unwrap();
        (description.random[0].bytes, description.random[1].bytes) = (512, 1000);
        let near = |distance| NearResponse { distance, us: 1.0 };
        description.near = [-1000, -512, 512, 2048].map(near).to_vec();
        let names: Vec<String> =
            named_times(&mut description).into_iter().map(|time| time.name).collect();
        let mut distinct = names.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        for name in ["random.512.depth1", "random.64k.depth1", "near.-512", "near.2k"] {
            assert!(names.iter().any(|other| other == name), "{name}: {names:?}");
        }
    }
}

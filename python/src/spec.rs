//! Names as text: policies, devices, sizes.

use std::path::Path;

use pyo3::exceptions::PyValueError;
use pyo3::ffi::PyOS_FSPath;
use pyo3::prelude::*;
use pyo3::types::PyString;
use readpath_core::policy::{Policy, Spec};
use readpath_core::unit::PAGE_BYTES;
use readpath_core::{eviction, readahead, scheduler};
use readpath_models::registry;
use readpath_sim::{simulate, size};

/// Creates a `ValueError` with this error's message.
pub fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// An offset or a size as `u64`. A negative number is a `ValueError` with a clear message.
#[derive(Clone, Copy)]
pub struct Count(pub u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Count {
    type Error = PyErr;

    /// Takes an integer. An object of another kind keeps the error of its conversion.
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Count> {
        object.extract::<u64>().map(Count).map_err(|error| match object.lt(0) {
            Ok(true) => refused(format!("{}: give a number from 0 on", &*object)),
            _ => error,
        })
    }
}

/// Refuses names that are invalid on every system.
///
/// Raises the ValueError of the built-in `open`.
pub fn check_name(name: &Path) -> PyResult<()> {
    let has_null = name.as_os_str().as_encoded_bytes().contains(&0);
    if has_null { Err(refused("embedded null byte")) } else { Ok(()) }
}

/// Splits a list `NAME,key=value,NAME,…` and returns each item as text.
///
/// Raises ValueError for a malformed item.
#[pyfunction]
pub fn parse_specs(text: &str) -> PyResult<Vec<String>> {
    let specs = Spec::parse_all(text).map_err(refused)?;
    Ok(specs.iter().map(Spec::to_string).collect())
}

/// Largest size of a file: offsets of the system are signed numbers of 64 bits.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Parses a size with a unit and returns it in bytes. `option` is its name in errors.
/// `machine_bytes` is the memory of this machine, which must hold a cache's tables; None for a size
/// that is no cache's.
///
/// Raises ValueError for an invalid, too small or too large size.
#[pyfunction]
pub fn size_bytes(text: &str, option: &str, machine_bytes: Option<u64>) -> PyResult<u64> {
    let refuse = |problem: String| Err(refused(format!("{option} {text}: {problem}")));
    let bytes_max = machine_bytes.map_or(FILE_BYTES_MAX, simulate::memory_bytes_max);
    match size::parse(text) {
        None => refuse(format!("expected {}", size::EXPECTED)),
        Some(0..PAGE_BYTES) => refuse(format!("holds no page; give at least {PAGE_BYTES} bytes")),
        Some(bytes) if bytes > bytes_max && machine_bytes.is_none() => {
            refuse(format!("no file is so large; give at most {bytes_max} bytes"))
        }
        Some(bytes) if bytes > bytes_max => refuse(format!(
            "the books of so large a cache don't fit into this machine; give at most {} GiB",
            bytes_max >> 30
        )),
        Some(bytes) => Ok(bytes),
    }
}

/// Policies of one kind, `readahead`, `scheduler` or `eviction`: for each its name, its summary in
/// one line and its full description. Raises ValueError for another kind.
#[pyfunction]
pub fn policies(kind: &str) -> PyResult<Vec<(&'static str, &'static str, String)>> {
    let policies: Vec<&'static Policy> = match kind {
        "readahead" => readahead::policies().collect(),
        "scheduler" => scheduler::policies().collect(),
        "eviction" => eviction::policies().collect(),
        _ => {
            let what = format!(
                "there are no policies of `{kind}`; there are: readahead, scheduler, eviction"
            );
            return Err(refused(what));
        }
    };
    let page = |policy: &Policy| policy.page().collect::<Vec<&str>>().join("\n");
    Ok(policies.iter().map(|policy| (policy.name, policy.line, page(policy))).collect())
}

/// Modelled devices: for each its name and its description in one line.
#[pyfunction]
pub fn devices() -> Vec<(&'static str, &'static str)> {
    registry::devices()
}

/// Returns the result of `os.fspath`: text or bytes. Text itself is returned without a call. Raises
/// TypeError for an object that is no path.
pub fn file_system_path(path: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    if path.is_exact_instance_of::<PyString>() {
        return Ok(path);
    }
    // SAFETY: a new reference or null, as documented.
    unsafe { Bound::from_owned_ptr_or_err(path.py(), PyOS_FSPath(path.as_ptr())) }
}

//! `readpath._native`: the Rust part of the Python package `readpath`.
//!
//! Bindings without decisions: [`modelled`] runs a job in the simulation, and [`policy`] connects a
//! policy written in Python to it. [`planner`] lets the core decide on the fetches of a remote
//! file. [`engine`] and [`local`] read files through the real path. [`memory`] serves the faults of
//! arrays.

use pyo3::pymodule;

mod ask;
mod awaited;
mod buffers;
mod engine;
mod failure;
mod footers;
mod interruptible;
mod local;
mod many;
mod memory;
mod modelled;
mod pages;
mod planner;
mod policy;
mod populate;
mod process;
mod runs;
mod spec;
mod urls;
mod waits;

/// The module `readpath._native`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::ask::{PyAsk, PyLimits};
    #[pymodule_export]
    use crate::awaited::Awaited;
    #[pymodule_export]
    use crate::engine::{Engine, check_backend};
    #[pymodule_export]
    use crate::footers::parquet_columns;
    #[pymodule_export]
    use crate::local::LocalFile;
    #[pymodule_export]
    use crate::memory::{MappedFile, PagedMemory};
    #[pymodule_export]
    use crate::modelled::{Stop, check, simulate};
    #[pymodule_export]
    use crate::pages::PyPages;
    #[pymodule_export]
    use crate::planner::Planner;
    #[pymodule_export]
    use crate::policy::NamedPolicy;
    #[pymodule_export]
    use crate::populate::populate;
    #[pymodule_export]
    use crate::process::forked;
    #[pymodule_export]
    use crate::spec::{devices, parse_specs, policies, size_bytes};
    #[pymodule_export]
    use crate::urls::{client_schemes, parsed_url};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

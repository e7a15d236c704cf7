//! What a reader of a row must know of it beside its figures.

use readpath::pager::MappingMode;
use readpath::{BackendInUse, BackendKind, Mode};
use readpath_peers::cold::Residency;

/// How a run on a file began: which way its bytes take, and what the kernel's cache kept of it.
pub fn start(mode: Mode, residency: &Residency) -> Option<String> {
    let mode = (mode != Mode::Direct).then(|| mode.to_string());
    let warm = (residency.resident > 0).then(|| {
        format!("not cold: {} of {} pages stayed in memory", residency.resident, residency.pages)
    });
    join(mode, warm)
}

/// What carries the requests, where that is not the best there is.
pub fn carried_by(in_use: BackendInUse) -> Option<String> {
    let is_named = in_use.because.is_some() || in_use.kind == BackendKind::Threads;
    is_named.then(|| format!("carried by {in_use}"))
}

/// How much of what was read the kernel's cache had.
pub fn kernel_cached(bytes: u64) -> Option<String> {
    (bytes > 0).then(|| {
        format!("{:.1} MiB taken from the kernel's cache", bytes as f64 / f64::from(1 << 20))
    })
}

/// Who brings the pages of a mapping in, where it is not the library.
pub fn mapped_by(mode: MappingMode) -> Option<String> {
    (mode != MappingMode::Served).then(|| format!("mapped by {mode}"))
}

/// Two notes as one.
pub fn join(one: Option<String>, two: Option<String>) -> Option<String> {
    [one, two].into_iter().flatten().reduce(|one, two| format!("{one}; {two}"))
}

//! Errors of a store: copies for several readers, and errors of the cache itself.

use std::ops::Range;
use std::sync::Arc;

use object_store::Error;
use object_store::path::Path;

/// Name of this store in its errors.
pub(super) const STORE: &str = "readpath";

/// An error of the cache itself.
pub(super) fn own_error(text: impl Into<String>) -> Error {
    Error::Generic { store: STORE, source: text.into().into() }
}

/// Error of an answer whose body is longer than its range.
pub(crate) fn too_long(location: &Path, range: &Range<u64>) -> Error {
    own_error(format!(
        "{location}: the answer for bytes {range:?} is longer than that; get it again, and check \
         the server and its proxies if the error stays"
    ))
}

/// Error of an answer whose body ended before its range did, at the byte `at` of the object.
pub(crate) fn too_short(location: &Path, range: &Range<u64>, at: u64) -> Error {
    own_error(format!(
        "{location}: the answer for bytes {range:?} ended at byte {at}; get it again, and check \
         the connection if the error stays"
    ))
}

/// Error of an answer for another range than the requested one.
pub(crate) fn other_range(location: &Path, requested: &Range<u64>, returned: &Range<u64>) -> Error {
    own_error(format!(
        "{location}: bytes {requested:?} were requested, and {returned:?} returned; get them \
         again, and check the server and its proxies if the error stays"
    ))
}

/// Returns true if another try may succeed. The clients of `object_store` report every error
/// without a kind of its own as `Generic`, such as a connection that broke.
pub(crate) fn may_succeed_later(error: &Error) -> bool {
    matches!(error, Error::Generic { .. })
}

/// A copy of an error for another reader, with the original as its source. It has the kind of the
/// original if a get distinguishes that kind, and is `Generic` otherwise.
pub(super) fn copy_of(error: &Arc<Error>, location: &Path) -> Error {
    let path = location.to_string();
    let source = Box::new(Arc::clone(error));
    match **error {
        Error::NotFound { .. } => Error::NotFound { path, source },
        Error::Precondition { .. } => Error::Precondition { path, source },
        Error::NotModified { .. } => Error::NotModified { path, source },
        Error::PermissionDenied { .. } => Error::PermissionDenied { path, source },
        Error::Unauthenticated { .. } => Error::Unauthenticated { path, source },
        Error::NotSupported { .. } => Error::NotSupported { source },
        _ => Error::Generic { store: STORE, source },
    }
}

/// Error of a stream whose object changed after its first piece.
pub(super) fn changed_during_stream(location: &Path) -> Error {
    Error::Precondition {
        path: location.to_string(),
        source: "the object changed while it was streamed; get it again".into(),
    }
}

/// Error of the readers that wait for a task which is dropped before its end, now.
pub(crate) fn dropped_error() -> Error {
    match std::thread::panicking() {
        true => own_error("the underlying store has panicked in a get"),
        false => own_error("the runtime of the store has shut down; build the store again"),
    }
}

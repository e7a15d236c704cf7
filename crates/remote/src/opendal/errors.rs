//! Errors between OpenDAL and the store: each keeps the other as its source.

use std::error::Error as StdError;

use ::opendal::{Error, ErrorKind};
use object_store::Error as StoreError;
use object_store::path::Path;

/// Name of this storage in errors of the store.
const STORE: &str = "opendal";

/// An error of OpenDAL, as the store distinguishes it.
pub(super) fn to_store(error: Error, location: &Path) -> StoreError {
    let (path, kind) = (location.to_string(), error.kind());
    let source = Box::new(error);
    match kind {
        ErrorKind::NotFound => StoreError::NotFound { path, source },
        ErrorKind::ConditionNotMatch => StoreError::Precondition { path, source },
        ErrorKind::PermissionDenied => StoreError::PermissionDenied { path, source },
        ErrorKind::Unsupported => StoreError::NotSupported { source },
        _ => StoreError::Generic { store: STORE, source },
    }
}

/// An error of the store, as OpenDAL distinguishes it: of the kind of its original, if that came
/// from OpenDAL. A failed check of an answer counts as temporary: another request may succeed.
pub(super) fn from_store(error: StoreError, path: &str) -> Error {
    let original = original(&error);
    let (kind, is_temporary) = match (original, &error) {
        (Some(original), _) => (original.kind(), original.is_temporary()),
        (None, StoreError::NotFound { .. }) => (ErrorKind::NotFound, false),
        (None, StoreError::Precondition { .. }) => (ErrorKind::ConditionNotMatch, false),
        (None, _) => (ErrorKind::Unexpected, true),
    };
    let message = match original {
        Some(original) => original.message().to_owned(),
        None => error.to_string(),
    };
    let built = Error::new(kind, message).with_context("path", path).with_temporary(is_temporary);
    built.set_source(error)
}

/// The error of OpenDAL among the sources of an error.
fn original(error: &StoreError) -> Option<&Error> {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<Error>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// An error of the checks of this module.
pub(super) fn own_error(text: String) -> StoreError {
    StoreError::Generic { store: STORE, source: text.into() }
}

/// Error of a request that this storage does not have.
pub(super) fn not_supported(text: &'static str) -> StoreError {
    StoreError::NotSupported { source: text.into() }
}

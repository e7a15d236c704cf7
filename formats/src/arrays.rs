//! Boxes of a Zarr array: the chunks that a box touches, each one object or a part of one.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use object_store::ObjectStore;
use zarrs::array::{Array, ArrayError, ArraySubset};
use zarrs::storage::AsyncReadableStorageTraits;
use zarrs_object_store::AsyncObjectStore;

/// An array whose chunks are read as they are needed.
pub type RemoteArray = Array<dyn AsyncReadableStorageTraits>;

/// Opens an array of a store by its path, such as `/temperature`.
///
/// # Errors
/// There is no array of this name, or its metadata cannot be read.
pub async fn open_array(
    store: Arc<dyn ObjectStore>,
    path: &str,
) -> Result<RemoteArray, Box<dyn Error + Send + Sync>> {
    let store: Arc<dyn AsyncReadableStorageTraits> = Arc::new(AsyncObjectStore::new(store));
    Ok(Array::async_open(store, path).await?)
}

/// The elements of a box of an array, in the order of its dimensions.
///
/// # Errors
/// The box is not in the array, or a chunk cannot be read.
pub async fn read_box(array: &RemoteArray, ranges: &[Range<u64>]) -> Result<Vec<u32>, ArrayError> {
    let subset = ArraySubset::new_with_ranges(ranges);
    array.async_retrieve_array_subset(&subset).await
}

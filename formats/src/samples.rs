//! Small objects of both formats. Each value names its version and its place, so a reader finds
//! values of another place or of two versions.

use std::error::Error;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::file::properties::WriterProperties;
use zarrs::array::{ArrayBuilder, data_type};
use zarrs_object_store::AsyncObjectStore;

/// Number of columns of a table, `c0` to `c7`.
pub const COLUMNS: usize = 8;
/// Number of rows in a row group. A column chunk has 128 KiB.
pub const GROUP_ROWS: usize = 16_384;

/// Value of a row in a column of a table: version, column and row from the high bits to the low.
pub fn table_value(version: u8, column: usize, row: usize) -> i64 {
    (i64::from(version) << 48) | ((column as i64) << 40) | row as i64
}

/// A table of `groups` row groups as a Parquet object, without compression.
///
/// # Errors
/// The table cannot be encoded.
pub fn table(version: u8, groups: usize) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let batch = |group: usize| {
        let rows = group * GROUP_ROWS..(group + 1) * GROUP_ROWS;
        let columns = (0..COLUMNS).map(|column| {
            let values = rows.clone().map(|row| table_value(version, column, row));
            (format!("c{column}"), Arc::new(Int64Array::from_iter_values(values)) as ArrayRef)
        });
        RecordBatch::try_from_iter(columns)
    };
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::PLAIN)
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch(0)?.schema(), Some(properties))?;
    // A batch has the rows of one row group.
    for group in 0..groups {
        writer.write(&batch(group)?)?;
    }
    Ok(writer.into_inner()?.into())
}

/// Shape of an array.
pub const ARRAY_SHAPE: [u64; 3] = [64, 256, 256];
/// Shape of a chunk: 128 KiB of 4-byte elements.
pub const CHUNK_SHAPE: [u64; 3] = [8, 64, 64];
/// Shape of a shard, an object with 64 chunks and an index.
pub const SHARD_SHAPE: [u64; 3] = [32, 256, 256];

/// Value of an element of an array; never 0 for a version from 1 on.
pub fn array_value(version: u8, [z, y, x]: [u64; 3]) -> u32 {
    u32::from(version) << 24 | ((z * ARRAY_SHAPE[1] + y) * ARRAY_SHAPE[2] + x) as u32
}

/// The objects of an array, without compression, by their names. In a sharded array an object has
/// many chunks.
///
/// # Errors
/// The array cannot be encoded.
pub async fn array(
    name: &str,
    version: u8,
    is_sharded: bool,
) -> Result<Vec<(String, Bytes)>, Box<dyn Error + Send + Sync>> {
    let memory = Arc::new(InMemory::new());
    let store = Arc::new(AsyncObjectStore::new(Arc::clone(&memory)));
    let object_shape = if is_sharded { SHARD_SHAPE } else { CHUNK_SHAPE };
    // No element has this value, so each chunk is stored.
    let fill_value = 0_u32;
    let mut builder = ArrayBuilder::new(ARRAY_SHAPE, object_shape, data_type::uint32(), fill_value);
    if is_sharded {
        builder.subchunk_shape(CHUNK_SHAPE.to_vec());
    }
    let array = builder.build(store, &format!("/{name}"))?;
    array.async_store_metadata().await?;
    let [depth, height, width] = ARRAY_SHAPE;
    let rows = (0..depth).flat_map(|z| (0..height).map(move |y| (z, y)));
    let elements = rows.flat_map(|(z, y)| (0..width).map(move |x| array_value(version, [z, y, x])));
    let elements: Vec<u32> = elements.collect();
    array.async_store_array_subset(&array.subset_all(), elements).await?;
    let listed: Vec<_> = memory.list(None).try_collect().await?;
    let mut objects = Vec::new();
    for meta in listed {
        let bytes = memory.get(&meta.location).await?.bytes().await?;
        objects.push((meta.location.to_string(), bytes));
    }
    Ok(objects)
}

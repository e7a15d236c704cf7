//! Ways in which users read the [samples](crate::samples). Each checks every value.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;

use crate::arrays::{open_array, read_box};
use crate::columns::{Requests, read_columns};
use crate::samples::{self, ARRAY_SHAPE, CHUNK_SHAPE, COLUMNS, GROUP_ROWS};

/// Number of row groups of the table.
pub const GROUPS: usize = 24;
/// Version of all sample objects.
const VERSION: u8 = 1;

/// A way to read a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All columns of a table.
    WholeTable,
    /// Two columns with four others between them.
    TwoColumns,
    /// One column of every fourth row group, as after a filter by statistics.
    SomeGroups,
    /// The same two columns twice, as by two queries.
    TwoQueries,
    /// One plane after the other of a chunked array.
    Planes,
    /// All planes at 16 neighbouring points of a chunked array, one point after the other.
    Points,
    /// 64 boxes of the size of a chunk at random places of a sharded array.
    Boxes,
}

/// Errors of both formats.
pub type PatternError = Box<dyn Error + Send + Sync>;

/// The sample objects by their names.
///
/// # Errors
/// A sample cannot be encoded.
pub async fn objects() -> Result<Vec<(String, Bytes)>, PatternError> {
    let mut objects = vec![("table.parquet".to_owned(), samples::table(VERSION, GROUPS)?)];
    objects.extend(samples::array("chunks", VERSION, false).await?);
    objects.extend(samples::array("shards", VERSION, true).await?);
    Ok(objects)
}

impl Pattern {
    /// All patterns with their names.
    pub const ALL: [(Pattern, &'static str); 7] = [
        (Pattern::WholeTable, "Parquet: all columns"),
        (Pattern::TwoColumns, "Parquet: two columns of eight"),
        (Pattern::SomeGroups, "Parquet: one column, every fourth row group"),
        (Pattern::TwoQueries, "Parquet: two columns, twice"),
        (Pattern::Planes, "Zarr: plane by plane"),
        (Pattern::Points, "Zarr: 16 points over all planes"),
        (Pattern::Boxes, "Zarr, sharded: 64 random boxes"),
    ];

    /// Reads a sample of the store. Returns the number of bytes of the values.
    ///
    /// # Errors
    /// An object cannot be read.
    ///
    /// # Panics
    /// A value is wrong.
    pub async fn read(
        self,
        store: &Arc<dyn ObjectStore>,
        requests: Requests,
    ) -> Result<u64, PatternError> {
        let table = |columns, groups| read_table(store, requests, columns, groups);
        let all_groups: Vec<usize> = (0..GROUPS).collect();
        match self {
            Pattern::WholeTable => table((0..COLUMNS).collect(), all_groups).await,
            Pattern::TwoColumns => table(vec![1, 6], all_groups).await,
            Pattern::SomeGroups => table(vec![3], (0..GROUPS).step_by(4).collect()).await,
            Pattern::TwoQueries => {
                let first = table(vec![1, 6], all_groups.clone()).await?;
                Ok(first + table(vec![1, 6], all_groups).await?)
            }
            Pattern::Planes => {
                let planes = 0..ARRAY_SHAPE[0];
                let planes = planes.map(|z| [z..z + 1, 0..ARRAY_SHAPE[1], 0..ARRAY_SHAPE[2]]);
                read_boxes(store, "/chunks", planes).await
            }
            Pattern::Points => {
                let points = (100..116).map(|x| [0..ARRAY_SHAPE[0], 100..101, x..x + 1]);
                read_boxes(store, "/chunks", points).await
            }
            Pattern::Boxes => read_boxes(store, "/shards", random_boxes(64)).await,
        }
    }
}

/// Reads columns of row groups, and checks their values. Returns the number of bytes of the values:
/// eight for each.
async fn read_table(
    store: &Arc<dyn ObjectStore>,
    requests: Requests,
    columns: Vec<usize>,
    groups: Vec<usize>,
) -> Result<u64, PatternError> {
    let names: Vec<String> = columns.iter().map(|column| format!("c{column}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let path = Path::from("table.parquet");
    let store = Arc::clone(store);
    let batches = read_columns(store, &path, requests, &names, Some(groups.clone())).await?;
    let rows = groups.iter().flat_map(|group| group * GROUP_ROWS..(group + 1) * GROUP_ROWS);
    check_table(&batches, VERSION, &columns, rows);
    Ok((columns.len() * groups.len() * GROUP_ROWS * 8) as u64)
}

/// Compares the values of batches with the values of these columns and rows in a version. The
/// columns are in ascending order, as the batches have them.
///
/// # Panics
/// A value differs.
pub fn check_table(
    batches: &[RecordBatch],
    version: u8,
    columns: &[usize],
    rows: impl Iterator<Item = usize> + Clone,
) {
    for (index, &column) in columns.iter().enumerate() {
        let values = batches.iter().flat_map(|batch| {
            batch.column(index).as_primitive::<Int64Type>().values().iter().copied()
        });
        let expected = rows.clone().map(|row| samples::table_value(version, column, row));
        assert!(values.eq(expected), "column {column}");
    }
}

/// Reads boxes of an array one after the other, and checks their values. Returns the number of
/// bytes of the values: four for each.
async fn read_boxes(
    store: &Arc<dyn ObjectStore>,
    name: &str,
    boxes: impl Iterator<Item = [Range<u64>; 3]>,
) -> Result<u64, PatternError> {
    let array = open_array(Arc::clone(store), name).await?;
    let mut bytes = 0;
    for ranges in boxes {
        let elements = read_box(&array, &ranges).await?;
        assert!(elements == box_values(VERSION, &ranges), "{ranges:?}");
        bytes += elements.len() as u64 * 4;
    }
    Ok(bytes)
}

/// Values of the elements of a box, in the order of the array: `x` changes fastest.
pub fn box_values(version: u8, [z, y, x]: &[Range<u64>; 3]) -> Vec<u32> {
    let mut values = Vec::new();
    for z in z.clone() {
        for y in y.clone() {
            values.extend(x.clone().map(|x| samples::array_value(version, [z, y, x])));
        }
    }
    values
}

/// Boxes of the size of a chunk at random places (a linear congruential generator), the same in
/// each call.
fn random_boxes(count: usize) -> impl Iterator<Item = [Range<u64>; 3]> {
    let mut state = 1_u64;
    let boxes = std::iter::repeat_with(move || {
        [0, 1, 2].map(|dimension| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (state >> 33) % (ARRAY_SHAPE[dimension] - CHUNK_SHAPE[dimension] + 1);
            start..start + CHUNK_SHAPE[dimension]
        })
    });
    boxes.take(count)
}

//! Columns and row groups of a Parquet object, all of one version of the object.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::{FutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt,
    coalesce_ranges,
};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

/// Number of bytes at the end of an object that are read for its metadata.
const FOOTER_BYTES: usize = 64 << 10;

/// Requests for the ranges of a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// One get for each range. The store decides on its requests: for a `ReadpathStore`.
    EachRange,
    /// One get for ranges with gaps of up to 1 MiB, as `get_ranges` of `object_store` does.
    Coalesced,
}

/// Reads columns of a Parquet object. The batches have them in the order of the schema. `groups`
/// are the row groups to read; `None` for all.
///
/// # Errors
/// The object is no Parquet file, lacks a column, or cannot be read. If it changes while it is
/// read, the error has [`object_store::Error::Precondition`] as source.
pub async fn read_columns(
    store: Arc<dyn ObjectStore>,
    path: &Path,
    requests: Requests,
    columns: &[&str],
    groups: Option<Vec<usize>>,
) -> Result<Vec<RecordBatch>> {
    let meta = store.head(path).await.map_err(external)?;
    let reader = ColumnReader { store, meta, requests };
    let mut builder = ParquetRecordBatchStreamBuilder::new(reader).await?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
    if let Some(groups) = groups {
        builder = builder.with_row_groups(groups);
    }
    // Number of rows of a batch, chosen.
    let batch_rows = 1 << 16;
    builder.with_projection(mask).with_batch_size(batch_rows).build()?.try_collect().await
}

/// A Parquet object in one version.
#[derive(Clone, Debug)]
struct ColumnReader {
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    requests: Requests,
}

impl ColumnReader {
    /// The bytes of a range of the version. A store without ETags is not checked for changes.
    async fn get(&self, range: Range<u64>) -> object_store::Result<Bytes> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: self.meta.e_tag.clone(),
            ..GetOptions::default()
        };
        self.store.get_opts(&self.meta.location, options).await?.bytes().await
    }
}

impl AsyncFileReader for ColumnReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move { self.get(range).await.map_err(external) }.boxed()
    }

    /// Reads ranges in parallel: by a get each, or near ones together, as `requests` says.
    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        let reader = &*self;
        let get = move |range| reader.get(range);
        async move {
            let bytes = match reader.requests {
                Requests::EachRange => try_join_all(ranges.into_iter().map(get)).await,
                Requests::Coalesced => {
                    coalesce_ranges(&ranges, get, OBJECT_STORE_COALESCE_DEFAULT).await
                }
            };
            bytes.map_err(external)
        }
        .boxed()
    }

    /// Reads the metadata at the end of the object. One get suffices if all of it is within the
    /// last [`FOOTER_BYTES`].
    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let bytes = self.meta.size;
            let reader = ParquetMetaDataReader::new()
                .with_arrow_reader_options(options)
                .with_prefetch_hint(Some(FOOTER_BYTES));
            reader.load_and_finish(self, bytes).await.map(Arc::new)
        }
        .boxed()
    }
}

/// An error of the store, as an error of the crate `parquet`.
fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// Returns true if a read failed because the object has changed: it may be read again.
pub fn has_changed(error: &ParquetError) -> bool {
    let ParquetError::External(source) = error else { return false };
    let of_store = source.downcast_ref::<object_store::Error>();
    matches!(of_store, Some(object_store::Error::Precondition { .. }))
}

//! Many reads of one call: the ranges as Python gives them, and how they are handed over.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use readpath::{File, ReadError};

use crate::buffers::{BufferMemory, push};
use crate::failure::Failure;
use crate::spec::{Count, refused};

/// How many reads of one call are under way at once. A path can have 65,536 open for everybody; the
/// storage takes 128 at a time unless told otherwise, and the scheduler finds neighbours among these.
const UNDER_WAY_MAX: usize = 8_192;

/// Signals are heard after so much at the latest: 8 ms at 1 GB/s.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;

/// Ranges of a file, each its offset and its size: a sequence of pairs, or an array of 64-bit integers with
/// two columns.
pub struct Ranges(pub Vec<(u64, u64)>);

impl<'a, 'py> FromPyObject<'a, 'py> for Ranges {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Ranges> {
        if let Some((numbers, shape)) = integers(&object)? {
            if shape.len() != 2 || shape[1] != 2 {
                return Err(refused(format!(
                    "ranges of the shape {shape:?}: give an array with two columns, offset and size"
                )));
            }
            return Ok(Ranges(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()));
        }
        // What an object says its length is need not be so.
        let mut ranges = Vec::new();
        for range in object.try_iter()? {
            let (Count(offset), Count(size)) = range?.extract()?;
            push(&mut ranges, (offset, size))?;
        }
        Ok(Ranges(ranges))
    }
}

/// Places in a file: a sequence of integers, or an array of 64-bit ones.
pub struct Offsets(pub Vec<u64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Offsets {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Offsets> {
        if let Some((numbers, shape)) = integers(&object)? {
            return match shape.len() {
                1 => Ok(Offsets(numbers)),
                _ => Err(refused(format!("offsets of the shape {shape:?}: give them in one row"))),
            };
        }
        let mut offsets = Vec::new();
        for offset in object.try_iter()? {
            push(&mut offsets, offset?.extract::<Count>()?.0)?;
        }
        Ok(Offsets(offsets))
    }
}

/// The numbers of an array and its shape; none where the object is no array.
fn integers(object: &Bound<'_, PyAny>) -> PyResult<Option<(Vec<u64>, Vec<usize>)>> {
    if !object.hasattr("__array_interface__")? {
        return Ok(None);
    }
    if let Ok(array) = PyBuffer::<u64>::get(object) {
        let order = order_of(&array);
        let numbers = array.to_vec(object.py())?.into_iter().map(order).collect();
        return Ok(Some((numbers, array.shape().to_vec())));
    }
    let Ok(array) = PyBuffer::<i64>::get(object) else {
        let what = "an array of ranges or offsets: give 64-bit integers (`.astype('i8')`)";
        return Err(PyTypeError::new_err(what));
    };
    let (shape, order) = (array.shape().to_vec(), order_of(&array));
    let count = |number: i64| {
        let number = order(number as u64) as i64;
        let refused = |_| PyValueError::new_err(format!("{number}: give a number from 0 on"));
        u64::try_from(number).map_err(refused)
    };
    let numbers = array.to_vec(object.py())?.into_iter().map(count).collect::<PyResult<_>>()?;
    Ok(Some((numbers, shape)))
}

/// The function that brings the bytes of an array's numbers into this machine's order. The buffer protocol has the order
/// in front of the type, as the module struct does.
fn order_of<T: Element>(array: &PyBuffer<T>) -> fn(u64) -> u64 {
    match array.format().to_bytes().first() {
        Some(b'>' | b'!') => u64::from_be,
        Some(b'<') => u64::from_le,
        _ => |number| number,
    }
}

/// A range of a file, and where its bytes go.
pub struct ReadRange {
    /// Where it begins in the file.
    pub offset: u64,
    /// Where its bytes go.
    pub place: BufferMemory,
    /// How many; the file has them all.
    pub bytes: usize,
}

/// Fills each part. As many as may be are under way at once; the next one starts as one is done.
///
/// # Safety
/// Each place has room for its bytes, which nobody else uses until this returns.
pub unsafe fn read_many(file: &File, parts: &[ReadRange]) -> Result<(), Failure> {
    let mut batch = file.read_path().batch();
    // Those that are too large for a batch, and those that found no room because of other callers' reads.
    let mut alone = Vec::new();
    let (mut next, mut under_way, mut unheard) = (0, 0, 0);
    loop {
        while under_way < UNDER_WAY_MAX && next < parts.len() {
            let ReadRange { offset, bytes, .. } = parts[next];
            match batch.read(file, offset, bytes as u64, next as u64) {
                Ok(()) => under_way += 1,
                Err(ReadError::TooLarge { .. }) => alone.push(next),
                Err(error) => return Err(error.into()),
            }
            next += 1;
        }
        let part_of = |ticket: u64| &parts[ticket as usize];
        // SAFETY: the caller's promise.
        let place = |ticket, _| unsafe { part_of(ticket).place.slice(part_of(ticket).bytes) };
        let Some(read) = batch.wait_into(place)? else { break };
        under_way -= 1;
        let part = part_of(read.ticket);
        let copied = match read.bytes {
            Err(ReadError::TooManyReads { .. }) => {
                alone.push(read.ticket as usize);
                continue;
            }
            copied => copied?,
        };
        if copied < part.bytes {
            return Err(ReadError::Shrunk { offset: part.offset + copied as u64 }.into());
        }
        hear_signals(&mut unheard, copied)?;
    }
    drop(batch);
    for part in alone.into_iter().map(|at| &parts[at]) {
        // SAFETY: the caller's promise.
        let whole = unsafe { part.place.slice(part.bytes) };
        for (at, piece) in whole.chunks_mut(PIECE_BYTES_MAX as usize).enumerate() {
            file.read_exact_at(piece, part.offset + at as u64 * PIECE_BYTES_MAX)?;
            hear_signals(&mut unheard, piece.len())?;
        }
    }
    Ok(())
}

/// Hears of signals when so much came since they were last heard of that it took a while.
fn hear_signals(unheard: &mut u64, bytes: usize) -> Result<(), Failure> {
    *unheard += bytes as u64;
    if *unheard < PIECE_BYTES_MAX {
        return Ok(());
    }
    *unheard = 0;
    Python::attach(|py| py.check_signals()).map_err(Failure::Signal)
}

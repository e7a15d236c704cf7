//! Many reads in one call: conversion of the ranges, and their submission.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use readpath::{File, ReadError};

use crate::buffers::{BufferMemory, push};
use crate::failure::Failure;
use crate::spec::{Count, refused};

/// Maximum number of reads in flight per call. A path allows 65,536 for all callers. The storage
/// takes 128 at a time by default, and the scheduler merges neighbours among these.
const UNDER_WAY_MAX: usize = 8_192;

/// Number of bytes after which signals are handled: 8 ms at 1 GB/s.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;

/// Ranges of a file as offsets and sizes: a sequence of pairs, or an array of 64-bit integers with
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
        // The object's own length is not trusted.
        let mut ranges = Vec::new();
        for range in object.try_iter()? {
            let (Count(offset), Count(size)) = range?.extract()?;
            push(&mut ranges, (offset, size))?;
        }
        Ok(Ranges(ranges))
    }
}

/// Offsets in a file: a sequence of integers, or an array of 64-bit ones.
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

/// Returns the numbers of an array and its shape, or None for other objects.
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

/// Returns the conversion from an array's byte order to the native one. The buffer protocol puts
/// the order before the type, like the module struct.
fn order_of<T: Element>(array: &PyBuffer<T>) -> fn(u64) -> u64 {
    match array.format().to_bytes().first() {
        Some(b'>' | b'!') => u64::from_be,
        Some(b'<') => u64::from_le,
        _ => |number| number,
    }
}

/// A range of a file, and the destination of its bytes.
pub struct ReadRange {
    /// Offset in the file.
    pub offset: u64,
    /// Destination of the bytes.
    pub place: BufferMemory,
    /// Number of bytes, all within the file.
    pub bytes: usize,
}

/// Fills each part, with the maximum number in flight.
///
/// # Safety
/// Each destination has space for its bytes and no other user until the return.
pub unsafe fn read_many(file: &File, parts: &[ReadRange]) -> Result<(), Failure> {
    let mut batch = file.read_path().batch();
    // Parts that are too large for a batch, or refused because of other callers' reads.
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
        // SAFETY: guaranteed by the caller.
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
        // SAFETY: guaranteed by the caller.
        let whole = unsafe { part.place.slice(part.bytes) };
        for (at, piece) in whole.chunks_mut(PIECE_BYTES_MAX as usize).enumerate() {
            file.read_exact_at(piece, part.offset + at as u64 * PIECE_BYTES_MAX)?;
            hear_signals(&mut unheard, piece.len())?;
        }
    }
    Ok(())
}

/// Handles signals after every `PIECE_BYTES_MAX` bytes.
fn hear_signals(unheard: &mut u64, bytes: usize) -> Result<(), Failure> {
    *unheard += bytes as u64;
    if *unheard < PIECE_BYTES_MAX {
        return Ok(());
    }
    *unheard = 0;
    Python::attach(|py| py.check_signals()).map_err(Failure::Signal)
}

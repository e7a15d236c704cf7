//! Many reads in one call: conversion of the ranges, and their submission.

use std::time::Instant;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyDict, PyFrozenSet, PyMemoryView, PySet, PyString, PyTuple,
};
use readpath::{File, ReadError};

use crate::buffers::{BufferMemory, push};
use crate::failure::Failure;
use crate::interruptible::SIGNAL_CHECK_INTERVAL;
use crate::spec::{Count, refused};

/// Maximum number of reads in flight per call. A path allows 65,536 for all callers. The storage
/// takes 128 at a time by default, and the scheduler merges neighbours among these.
const IN_FLIGHT_MAX: usize = 8_192;

/// Maximum size of a single read in bytes, and number of read bytes after which signals are
/// handled: 8 ms at 1 GB/s. Slow storage needs longer, so [`SignalChecks`] also ask the clock.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;

/// Ranges of a file as offsets and sizes: a sequence of pairs, or an array of integers with two
/// columns.
pub struct Ranges(pub Vec<(u64, u64)>);

impl<'a, 'py> FromPyObject<'a, 'py> for Ranges {
    type Error = PyErr;

    /// Raises ValueError for an array of another shape and for negative numbers, TypeError for
    /// other objects.
    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Ranges> {
        if let Some((numbers, shape)) = integers(&object)? {
            if shape.len() != 2 || shape[1] != 2 {
                return Err(refused(format!(
                    "ranges of the shape {shape:?}: give an array with two columns, offset and size"
                )));
            }
            return Ok(Ranges(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()));
        }
        // Memory grows with the items, because the object's own length is not trusted.
        let mut ranges = Vec::new();
        for range in object.try_iter()? {
            push(&mut ranges, pair_of(&range?)?)?;
        }
        Ok(Ranges(ranges))
    }
}

/// Returns the offset and size of a range: the two items of a tuple, a list or another iterable.
///
/// Raises TypeError for text, bytes, sets and dictionaries, ValueError for another number of items.
fn pair_of(range: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    // The usual type, without an iterator.
    if let Ok(pair) = range.cast::<PyTuple>() {
        let (Count(offset), Count(size)) = pair.extract()?;
        return Ok((offset, size));
    }
    // Text and bytes have items without being a pair, and the items of a set have no order.
    let has_no_pair = range.is_instance_of::<PyString>()
        || range.is_instance_of::<PyBytes>()
        || range.is_instance_of::<PyByteArray>()
        || range.is_instance_of::<PyMemoryView>()
        || range.is_instance_of::<PySet>()
        || range.is_instance_of::<PyFrozenSet>()
        || range.is_instance_of::<PyDict>();
    if has_no_pair {
        return Err(PyTypeError::new_err(format!(
            "a range is a pair of offset and size, not {}",
            range.get_type().name()?
        )));
    }
    let mut items = range.try_iter()?;
    let mut next = || items.next().transpose();
    match (next()?, next()?, next()?) {
        (Some(offset), Some(size), None) => {
            Ok((offset.extract::<Count>()?.0, size.extract::<Count>()?.0))
        }
        _ => Err(refused("a range has two numbers, offset and size")),
    }
}

/// Offsets in a file: a sequence or an array of integers.
pub struct Offsets(pub Vec<u64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Offsets {
    type Error = PyErr;

    /// Raises ValueError for an array of several dimensions and for negative numbers, TypeError for
    /// other objects.
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

/// Returns the numbers of an array in the order of its rows, and its shape. None for other objects.
///
/// Raises TypeError for an array of other numbers than integers, ValueError for a negative number.
fn integers(object: &Bound<'_, PyAny>) -> PyResult<Option<(Vec<u64>, Vec<usize>)>> {
    // Arrays of numpy have this attribute. Other buffers, such as bytes, are no arrays here.
    if !object.hasattr("__array_interface__")? {
        return Ok(None);
    }
    // The usual types first: each attempt costs a call.
    let conversions = [
        numbers_of::<i64>,
        numbers_of::<u64>,
        numbers_of::<i32>,
        numbers_of::<u32>,
        numbers_of::<i16>,
        numbers_of::<u16>,
        numbers_of::<i8>,
        numbers_of::<u8>,
    ];
    for convert in conversions {
        if let Some(converted) = convert(object) {
            return converted.map(Some);
        }
    }
    let what = "an array of ranges or offsets: give integers (`.astype('i8')`)";
    Err(PyTypeError::new_err(what))
}

/// As [`integers`], or None if the items of the array are no `T`, in any byte order.
fn numbers_of<T: ArrayInteger>(
    object: &Bound<'_, PyAny>,
) -> Option<PyResult<(Vec<u64>, Vec<usize>)>> {
    let array = PyBuffer::<T>::get(object).ok()?;
    // The buffer protocol puts the byte order before the type, like the module struct.
    let is_swapped = match array.format().to_bytes().first() {
        Some(b'>' | b'!') => cfg!(target_endian = "little"),
        Some(b'<') => cfg!(target_endian = "big"),
        _ => false,
    };
    let count = |item: T| {
        let number = item.to_number(is_swapped);
        let refused = |_| PyValueError::new_err(format!("{number}: give a number from 0 on"));
        u64::try_from(number).map_err(refused)
    };
    let numbers =
        array.to_vec(object.py()).and_then(|items| items.into_iter().map(count).collect());
    Some(numbers.map(|numbers| (numbers, array.shape().to_vec())))
}

/// An integer type of arrays.
trait ArrayInteger: Element {
    /// Returns the number. `is_swapped`: its bytes are in the order that is not the machine's.
    fn to_number(self, is_swapped: bool) -> i128;
}

macro_rules! array_integers {
    ($($integer:ty)*) => {$(
        impl ArrayInteger for $integer {
            fn to_number(self, is_swapped: bool) -> i128 {
                if is_swapped { self.swap_bytes().into() } else { self.into() }
            }
        }
    )*};
}

array_integers!(i64 u64 i32 u32 i16 u16 i8 u8);

/// A range of a file, and the destination of its bytes.
pub struct ReadRange {
    /// Offset in the file.
    pub offset: u64,
    /// Destination of the bytes.
    pub memory: BufferMemory,
    /// Number of bytes, all within the file.
    pub bytes: usize,
}

/// Fills the memory of each range, with the maximum number of reads in flight. A file that became
/// shorter is the error `Shrunk`. The first error ends the call: reads in flight are abandoned, and
/// any of the memory may be filled.
///
/// # Safety
/// Each destination has space for its bytes and no other user until the return.
pub unsafe fn read_many(file: &File, ranges: &[ReadRange]) -> Result<(), Failure> {
    let mut batch = file.read_path().batch();
    // Indices of the ranges that are too large for a batch, or refused because of other callers'
    // reads. They are read one after the other at the end. The batch refuses a range of more bytes
    // than its limit at once, and one whose pages exceed the memory as a completed read.
    let mut left_over = Vec::new();
    let (mut next_index, mut in_flight) = (0, 0);
    let mut signals = SignalChecks::new();
    loop {
        while in_flight < IN_FLIGHT_MAX && next_index < ranges.len() {
            let ReadRange { offset, bytes, .. } = ranges[next_index];
            // The ticket of a read is the index of its range.
            match batch.read(file, offset, bytes as u64, next_index as u64) {
                Ok(()) => in_flight += 1,
                Err(ReadError::TooLarge { .. }) => left_over.push(next_index),
                Err(error) => return Err(error.into()),
            }
            next_index += 1;
            // The kernel starts the I/O here, and waits while the device's queue is full.
            signals.on_read(0)?;
        }
        let range_of = |ticket: u64| &ranges[ticket as usize];
        // The batch passes the number of bytes too, which the range has already.
        // SAFETY: guaranteed by the caller.
        let memory = |ticket, _| unsafe { range_of(ticket).memory.slice(range_of(ticket).bytes) };
        // `None`: no read is in flight, and none is left.
        let Some(read) = batch.wait_into(memory)? else { break };
        in_flight -= 1;
        let range = range_of(read.ticket);
        let copied_bytes = match read.bytes {
            Err(ReadError::TooManyReads { .. } | ReadError::TooLarge { .. }) => {
                left_over.push(read.ticket as usize);
                continue;
            }
            result => result?,
        };
        if copied_bytes < range.bytes {
            return Err(ReadError::Shrunk { offset: range.offset + copied_bytes as u64 }.into());
        }
        signals.on_read(copied_bytes)?;
    }
    // The pages of the batch become free for the reads left over.
    drop(batch);
    for range in left_over.into_iter().map(|index| &ranges[index]) {
        // SAFETY: guaranteed by the caller.
        let whole = unsafe { range.memory.slice(range.bytes) };
        for (index, piece) in whole.chunks_mut(PIECE_BYTES_MAX as usize).enumerate() {
            file.read_exact_at(piece, range.offset + index as u64 * PIECE_BYTES_MAX)?;
            signals.on_read(piece.len())?;
        }
    }
    Ok(())
}

/// Handles signals during a call: after [`PIECE_BYTES_MAX`] read bytes, and after
/// [`SIGNAL_CHECK_INTERVAL`] with fewer.
pub struct SignalChecks {
    /// Number of bytes read since the last check.
    unchecked_bytes: u64,
    /// Time of the last check.
    checked_at: Instant,
}

impl SignalChecks {
    /// Begins at the start of a call.
    pub fn new() -> SignalChecks {
        SignalChecks { unchecked_bytes: 0, checked_at: Instant::now() }
    }

    /// Records a read of `bytes` bytes, and handles signals if a check is due. The exception of a
    /// handler is the error.
    pub fn on_read(&mut self, bytes: usize) -> Result<(), Failure> {
        self.unchecked_bytes += bytes as u64;
        // Only the clock bounds the time of many small reads: 8,000 of 100 bytes take seconds on a
        // hard disk.
        if self.unchecked_bytes < PIECE_BYTES_MAX
            && self.checked_at.elapsed() < SIGNAL_CHECK_INTERVAL
        {
            return Ok(());
        }
        *self = SignalChecks::new();
        Python::attach(|py| py.check_signals()).map_err(Failure::Signal)
    }
}

//! Interface to the maker of calls, which receives their results and owns the memory for the data
//! of its READs.

use super::procedures::DataHead;
use super::rpc::CallError;
use super::xdr::Garbled;

/// Identifies a call from its start to its end, and is reused afterwards. Less than the number of
/// slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId(pub(crate) u32);

/// Results of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallResults<'a> {
    /// All bytes of the results.
    Whole(&'a [u8]),
    /// Head of a READ's results. The data is already in the caller's memory.
    DataInPlace(DataHead),
}

/// Maker of calls.
pub(crate) trait Caller {
    /// Receives the results or the error of a call that ends. The answer `Garbled` means that the
    /// results could not be decoded: the call has not ended and is sent again.
    fn on_call_end(
        &mut self,
        call: CallId,
        results: Result<CallResults<'_>, CallError>,
    ) -> Result<(), Garbled>;

    /// Copies data of a READ in flight, from byte `data_offset` of its reply's data on.
    fn copy_data(&mut self, call: CallId, data_offset: usize, data: &[u8]);

    /// Adds to `pieces` the memory for `bytes` bytes of data of a READ in flight, from byte
    /// `data_offset` of its reply's data on. Adds at most 1,000 pieces, because readv(2) takes
    /// 1,024.
    fn data_memory(
        &self,
        call: CallId,
        data_offset: usize,
        bytes: usize,
        pieces: &mut Vec<libc::iovec>,
    );
}

/// Receives the end of calls other than READs, as [`Caller::on_call_end`] does.
pub(crate) type CallEndFn<'a> =
    dyn FnMut(CallId, Result<&[u8], CallError>) -> Result<(), Garbled> + 'a;

/// Caller without READs, which receives the results of its calls as a whole.
pub(crate) struct ClosureCaller<'a>(pub(crate) &'a mut CallEndFn<'a>);

impl Caller for ClosureCaller<'_> {
    /// Passes the results to the closure. Data in place is garbled, because there are no READs.
    fn on_call_end(
        &mut self,
        call: CallId,
        results: Result<CallResults<'_>, CallError>,
    ) -> Result<(), Garbled> {
        match results {
            Ok(CallResults::Whole(results)) => (self.0)(call, Ok(results)),
            Ok(CallResults::DataInPlace(_)) => Err(Garbled),
            Err(error) => (self.0)(call, Err(error)),
        }
    }

    /// Does nothing: without READs there is no data.
    fn copy_data(&mut self, _: CallId, _: usize, _: &[u8]) {}

    /// Adds no memory: without READs there is no data.
    fn data_memory(&self, _: CallId, _: usize, _: usize, _: &mut Vec<libc::iovec>) {}
}

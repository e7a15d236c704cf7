//! Interface to the maker of calls, which receives their results and owns the memory for the data
//! of its READs.

use super::client::CallId;
use super::procedures::DataHead;
use super::rpc::CallError;
use super::xdr::Garbled;

/// Results of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Results<'a> {
    /// All bytes of the results.
    Here(&'a [u8]),
    /// Head of a READ's results. The data is already in the caller's memory.
    Landed(DataHead),
}

/// Maker of calls.
pub(crate) trait Caller {
    /// Called at the end of a call. `Garbled` means that the results could not be decoded, and the
    /// call is sent again.
    fn ended(
        &mut self,
        call: CallId,
        results: Result<Results<'_>, CallError>,
    ) -> Result<(), Garbled>;

    /// Copies data of a READ in flight, from byte `at` of its reply's data on.
    fn take(&mut self, call: CallId, at: usize, data: &[u8]);

    /// Adds to `pieces` the memory for `bytes` bytes of data of a READ in flight, from byte `at` of
    /// its reply's data on. Adds at most 1,000 pieces.
    fn room(&self, call: CallId, at: usize, bytes: usize, pieces: &mut Vec<libc::iovec>);
}

/// Receives the end of calls other than READs, as [`Caller::ended`] does.
pub(crate) type CallEndFn<'a> =
    dyn FnMut(CallId, Result<&[u8], CallError>) -> Result<(), Garbled> + 'a;

/// Caller without READs, which receives the results of its calls as a whole.
pub(crate) struct Hearing<'a>(pub(crate) &'a mut CallEndFn<'a>);

impl Caller for Hearing<'_> {
    fn ended(
        &mut self,
        call: CallId,
        results: Result<Results<'_>, CallError>,
    ) -> Result<(), Garbled> {
        match results {
            Ok(Results::Here(results)) => (self.0)(call, Ok(results)),
            Ok(Results::Landed(_)) => Err(Garbled),
            Err(error) => (self.0)(call, Err(error)),
        }
    }

    fn take(&mut self, _: CallId, _: usize, _: &[u8]) {}

    fn room(&self, _: CallId, _: usize, _: usize, _: &mut Vec<libc::iovec>) {}
}

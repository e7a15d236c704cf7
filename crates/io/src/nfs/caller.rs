//! Who makes calls: it hears what they bring, and has the memory for the data of its READs.

use super::calls::DataHead;
use super::client::CallId;
use super::rpc::CallError;
use super::xdr::Garbled;

/// What a call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Results<'a> {
    /// All of it.
    Here(&'a [u8]),
    /// The head of a READ's results, whose data is where it belongs.
    Landed(DataHead),
}

/// Who makes the calls.
pub(crate) trait Caller {
    /// A call has ended. On results it says whether they could be
    /// understood: `Garbled` has the call sent again.
    fn ended(
        &mut self,
        call: CallId,
        results: Result<Results<'_>, CallError>,
    ) -> Result<(), Garbled>;

    /// Takes data of a READ under way, from byte `at` of its reply's data on.
    fn take(&mut self, call: CallId, at: usize, data: &[u8]);

    /// Adds to `pieces` the memory for `bytes` bytes of data of a READ under way, from byte `at` of
    /// its reply's data on; of as many of them as 1,000 pieces hold.
    fn room(&self, call: CallId, at: usize, bytes: usize, pieces: &mut Vec<libc::iovec>);
}

/// Hears of the end of calls that are no READs, as [`Caller::ended`] does.
pub(crate) type CallEndFn<'a> =
    dyn FnMut(CallId, Result<&[u8], CallError>) -> Result<(), Garbled> + 'a;

/// Makes no READs, and hears the results of its calls whole.
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

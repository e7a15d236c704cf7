//! A result that one task sets and any number of tasks wait for.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// A result that is set once. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Promise<T>(Arc<Mutex<PromiseState<T>>>);

#[derive(Debug)]
struct PromiseState<T> {
    /// The result; `None` until it is set.
    value: Option<T>,
    /// Wakers of the waiting tasks; none once the result is set.
    wakers: Vec<Waker>,
}

impl<T: Clone> Promise<T> {
    /// Creates a promise without a result.
    pub(crate) fn new() -> Promise<T> {
        Promise(Arc::new(Mutex::new(PromiseState { value: None, wakers: Vec::new() })))
    }

    /// Sets the result, and wakes all waiting tasks. A second result is ignored.
    pub(crate) fn set(&self, value: T) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.value.get_or_insert(value);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns true if both are one promise.
    pub(crate) fn is(&self, other: &Promise<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits for the result.
    pub(crate) async fn wait(&self) -> T {
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &state.value {
                Some(value) => Poll::Ready(value.clone()),
                None => {
                    let waker = context.waker();
                    if !state.wakers.iter().any(|stored| stored.will_wake(waker)) {
                        state.wakers.push(waker.clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

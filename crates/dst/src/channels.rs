//! The standard library's channel, over the locks of the `world`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError};
use std::time::Duration;

use super::primitives::{Condvar, Mutex, now};

/// See `std::sync::mpsc::SyncSender`.
#[derive(Debug)]
pub(crate) struct SyncSender<T>(Arc<ChannelShared<T>>);

/// See `std::sync::mpsc::Receiver`.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<ChannelShared<T>>);

/// State that both ends share.
#[derive(Debug)]
struct ChannelShared<T> {
    /// Messages, and the state of both ends.
    messages: Mutex<Messages<T>>,
    /// Signalled after each message, and after the drop of the sender.
    message_signal: Condvar,
}

/// Messages in the channel.
#[derive(Debug)]
struct Messages<T> {
    /// Messages that were not received yet, oldest first.
    sent: VecDeque<T>,
    /// True once the sender was dropped.
    is_sender_gone: bool,
}

/// Reason for which the lock is never poisoned.
const POISON: &str = "no thread panics under it";

/// See `std::sync::mpsc::sync_channel`, for one sender that never exceeds the capacity.
pub(crate) fn sync_channel<T>(_capacity: usize) -> (SyncSender<T>, Receiver<T>) {
    let messages = Mutex::new(Messages { sent: VecDeque::new(), is_sender_gone: false });
    let shared = Arc::new(ChannelShared { messages, message_signal: Condvar::new() });
    (SyncSender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> SyncSender<T> {
    /// Adds a message and wakes the receiver. Never waits, and never fails.
    pub(crate) fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.messages.lock().expect(POISON).sent.push_back(message);
        self.0.message_signal.notify_one();
        Ok(())
    }
}

impl<T> Drop for SyncSender<T> {
    /// Wakes the receiver, which then gets an error after the last message.
    fn drop(&mut self) {
        self.0.messages.lock().expect(POISON).is_sender_gone = true;
        self.0.message_signal.notify_one();
    }
}

impl<T> Receiver<T> {
    /// Waits for a message. Fails once the sender is gone and all messages were received. See
    /// `std::sync::mpsc::Receiver::recv`.
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        let mut messages = self.0.messages.lock().expect(POISON);
        loop {
            match messages.sent.pop_front() {
                Some(message) => return Ok(message),
                None if messages.is_sender_gone => return Err(RecvError),
                None => messages = self.0.message_signal.wait(messages).expect(POISON),
            }
        }
    }

    /// Waits for a message, at most for `timeout`. Fails after that time, or once the sender is
    /// gone and all messages were received. See `std::sync::mpsc::Receiver::recv_timeout`.
    pub(crate) fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let deadline = now() + timeout;
        let mut messages = self.0.messages.lock().expect(POISON);
        loop {
            let time_left = deadline.saturating_duration_since(now());
            match messages.sent.pop_front() {
                Some(message) => return Ok(message),
                None if messages.is_sender_gone => return Err(RecvTimeoutError::Disconnected),
                None if time_left.is_zero() => return Err(RecvTimeoutError::Timeout),
                None => {
                    (messages, _) =
                        self.0.message_signal.wait_timeout(messages, time_left).expect(POISON)
                }
            }
        }
    }
}

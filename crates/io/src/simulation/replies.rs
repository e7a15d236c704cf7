//! What one thread answers another: the standard library's channel of one message, over the locks of the [world](super::world).

use std::sync::Arc;
use std::sync::mpsc::{RecvError, SendError};

use super::primitives::{Condvar, Mutex};

/// As `std::sync::mpsc::SyncSender`.
#[derive(Debug)]
pub(crate) struct SyncSender<T>(Arc<Shared<T>>);

/// As `std::sync::mpsc::Receiver`.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    message: Mutex<Message<T>>,
    has_come: Condvar,
}

#[derive(Debug)]
enum Message<T> {
    Awaited,
    Sent(T),
    /// Taken, or nobody is there to send one.
    None,
}

const POISON: &str = "nobody panics under it";

/// As `std::sync::mpsc::sync_channel`, for one message.
pub(crate) fn sync_channel<T>(_room: usize) -> (SyncSender<T>, Receiver<T>) {
    let shared =
        Arc::new(Shared { message: Mutex::new(Message::Awaited), has_come: Condvar::new() });
    (SyncSender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> SyncSender<T> {
    pub(crate) fn send(&self, message: T) -> Result<(), SendError<T>> {
        *self.0.message.lock().expect(POISON) = Message::Sent(message);
        self.0.has_come.notify_one();
        Ok(())
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        let mut message = self.0.message.lock().expect(POISON);
        if matches!(*message, Message::Awaited) {
            *message = Message::None;
        }
        drop(message);
        self.0.has_come.notify_one();
    }
}

impl<T> Receiver<T> {
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        let mut message = self.0.message.lock().expect(POISON);
        loop {
            match std::mem::replace(&mut *message, Message::None) {
                Message::Sent(sent) => return Ok(sent),
                Message::None => return Err(RecvError),
                Message::Awaited => {
                    *message = Message::Awaited;
                    message = self.0.has_come.wait(message).expect(POISON);
                }
            }
        }
    }
}

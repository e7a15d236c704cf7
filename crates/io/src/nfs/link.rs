//! A client and its connection: what the client wishes, carried out on a socket.

use std::cell::Cell;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use readpath_core::unit::Time;

use super::client::{CallId, Client, Ended, Timing, Traffic, Wish};
use super::connection::{Connection, Making};
use super::options::NfsOptions;
use super::rpc::{CallError, Procedure};
use super::xdr::Garbled;
use crate::clock::Clock;

/// Beside its data a reply has at most so many bytes.
const REPLY_HEAD_BYTES: usize = 1024;

/// Receives between two looks at the rest of the world.
const RECEIVES_MAX: u32 = 16;

/// Calls to one server, and the connection that carries them.
pub(crate) struct Link {
    client: Client,
    connection: Connection,
    is_connecting: bool,
    clock: Clock,
}

impl Link {
    /// To `address`, with answers of at most `data_bytes_max` bytes of data.
    pub(crate) fn to(
        address: SocketAddr,
        options: &NfsOptions,
        data_bytes_max: usize,
        clock: Clock,
    ) -> Link {
        let timing =
            Timing { repeat_after: options.repeat_after, give_up_after: options.give_up_after };
        // Another program, and the next start of this one, begin elsewhere.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sequence = std::process::id() ^ since_1970.subsec_nanos();
        let client = Client::new(
            options.credentials.encoded(),
            timing,
            options.slots,
            REPLY_HEAD_BYTES + data_bytes_max,
            sequence,
        );
        let connection = Connection::to(address, options.source_port);
        Link { client, connection, is_connecting: false, clock }
    }

    /// Connects before the first call, to learn at once if nobody is there.
    ///
    /// # Errors
    /// The kernel's answer, as in `errno(3)`.
    pub(crate) fn connect(&mut self, deadline: Time) -> Result<(), i32> {
        let mut making = self.connection.begin();
        loop {
            match making {
                Making::Done => {
                    self.client.handle_connected(self.clock.now());
                    return Ok(());
                }
                Making::Failed(errno) => return Err(errno),
                Making::UnderWay if self.clock.now() >= deadline => {
                    self.connection.close();
                    return Err(libc::ETIMEDOUT);
                }
                Making::UnderWay => {
                    self.connection.wait(true, Some(self.clock.until(deadline)));
                    making = self.connection.making();
                }
            }
        }
    }

    /// Makes a call; see [`Client::call`].
    pub(crate) fn call(&mut self, procedure: Procedure, put: impl FnOnce(&mut Vec<u8>)) -> CallId {
        self.client.call(self.clock.now(), procedure, put)
    }

    /// Forgets a call.
    pub(crate) fn cancel(&mut self, call: CallId) {
        self.client.cancel(call);
    }

    /// How many more calls can be made now.
    pub(crate) fn room(&self) -> u32 {
        self.client.room()
    }

    /// What was counted so far.
    pub(crate) fn traffic(&self) -> Traffic {
        self.client.traffic()
    }

    /// Whether calls come from a reserved port.
    pub(crate) fn is_reserved(&self) -> bool {
        self.connection.is_reserved()
    }

    /// The clock that time is told by.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// One call and its results, told by `tell`, which is heard once.
    pub(crate) fn ask<T>(
        &mut self,
        procedure: Procedure,
        put: impl FnOnce(&mut Vec<u8>),
        tell: impl Fn(&[u8]) -> Result<T, Garbled>,
    ) -> Result<T, CallError> {
        let call = self.call(procedure, put);
        let mut answer = None;
        while answer.is_none() {
            self.exchange(None, &mut |ended, results| {
                debug_assert_eq!(ended, call, "it is the only one");
                answer = Some(match results {
                    Ok(results) => Ok(tell(results)?),
                    Err(error) => Err(error),
                });
                Ok(())
            });
        }
        answer.expect("the loop ends with it")
    }

    /// Sends what is to be sent and sleeps until a call has ended or `deadline`
    /// has come; comes back at once when no call is under way.
    pub(crate) fn exchange(&mut self, deadline: Option<Time>, ended: &mut Ended<'_>) {
        let is_over = Cell::new(false);
        let mut count = |call: CallId, results: Result<&[u8], CallError>| {
            let is_error = results.is_err();
            let understood = ended(call, results);
            is_over.set(is_over.get() || is_error || understood.is_ok());
            understood
        };
        loop {
            self.hand_over(&mut count);
            if is_over.get() || self.client.in_flight() == 0 {
                return;
            }
            let wake = [deadline, self.client.next_wake()].into_iter().flatten().min();
            let to_write = self.awaits_room();
            let span = wake.map(|wake| self.clock.until(wake));
            if self.connection.wait(to_write, span).to_read {
                self.receive(&mut count);
            }
            if is_over.get() || deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
                return;
            }
        }
    }

    /// Does what is due by now, and sends what goes, without sleeping.
    pub(crate) fn hand_over(&mut self, ended: &mut Ended<'_>) {
        let now = self.clock.now();
        self.client.handle_time(now, ended);
        self.obey(now);
        self.send();
    }

    /// Sends what goes on a connection that is there.
    pub(crate) fn send_only(&mut self) {
        if self.connection.is_open() {
            self.send();
        }
    }

    /// When there will be something to do though nothing has come; `None`: no need.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.client.next_wake()
    }

    /// The socket that answers come from, and whether room to send is awaited as well.
    pub(crate) fn awaited(&self) -> (Option<Arc<TcpStream>>, bool) {
        (self.connection.socket(), self.awaits_room())
    }

    fn awaits_room(&self) -> bool {
        self.is_connecting || !self.client.to_send().is_empty()
    }

    /// Carries out what the client wishes of the connection.
    fn obey(&mut self, now: Time) {
        if self.is_connecting {
            let making = self.connection.making();
            self.made(now, making);
        }
        match self.client.wish(now) {
            Wish::Nothing => {}
            Wish::Connect => {
                let making = self.connection.begin();
                self.is_connecting = true;
                self.made(now, making);
            }
            Wish::Disconnect => self.lost(now),
        }
    }

    fn made(&mut self, now: Time, making: Making) {
        match making {
            Making::UnderWay => {}
            Making::Done => {
                self.is_connecting = false;
                self.client.handle_connected(now);
            }
            Making::Failed(_) => self.lost(now),
        }
    }

    fn lost(&mut self, now: Time) {
        self.is_connecting = false;
        self.connection.close();
        self.client.handle_lost(now);
    }

    fn send(&mut self) {
        while !self.is_connecting && !self.client.to_send().is_empty() {
            match self.connection.send(self.client.to_send()) {
                Ok(0) => return,
                Ok(bytes) => self.client.handle_sent(bytes),
                Err(_) => return self.lost(self.clock.now()),
            }
        }
    }

    fn receive(&mut self, ended: &mut Ended<'_>) {
        if self.is_connecting || !self.connection.is_open() {
            return;
        }
        for _ in 0..RECEIVES_MAX {
            let space = self.client.space();
            let space_bytes = space.len();
            match self.connection.receive(space) {
                Ok(None) => return,
                Ok(Some(bytes)) => {
                    self.client.handle_received(self.clock.now(), bytes, ended);
                    // What did not fill the space was all there is.
                    if bytes < space_bytes {
                        return;
                    }
                }
                Err(_) => return self.lost(self.clock.now()),
            }
        }
    }
}

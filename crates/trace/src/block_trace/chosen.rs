//! Choice of the event that represents a request in a block trace.
//!
//! A trace of some events alone (`blktrace -a issue`) has no queued requests. Other events are
//! therefore held back until a queued one comes, which discards them. Without a queued event, the
//! first kind that is present counts, in the order of [`Event`].

use std::collections::VecDeque;

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::RawRequest;

/// Maximum number of held events, which bounds their memory. At this number the choice is made
/// from the held events, and a queued event that follows does not count. Chosen, not measured.
const HELD_EVENTS_MAX: usize = 1 << 16;

/// Event in the life of a request, in order of preference. In time, an insertion (I) comes before
/// an issue (D), but an issue is preferred: it is the moment at which the device got the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// The request entered the queue (Q).
    Queued,
    /// The request was issued to the device (D).
    Issued,
    /// The request was inserted into the scheduler (I).
    Inserted,
    /// The request is complete (C).
    Completed,
}

/// An event that is held back.
#[derive(Debug)]
pub struct HeldEvent {
    /// Time in the trace's time base.
    at: Time,
    /// Name of the device in the trace.
    device: Vec<u8>,
    /// Read or write.
    op: Op,
    /// First byte on the device.
    offset: u64,
    /// Length in bytes.
    bytes: u64,
    /// Kind of the event.
    event: Event,
    /// Line of the event in the trace.
    pub line: u64,
}

impl HeldEvent {
    /// Returns the event as a request with the trace's own time and device name.
    pub fn as_raw_request(&self) -> RawRequest<'_> {
        let &HeldEvent { at, ref device, op, offset, bytes, event, .. } = self;
        RawRequest { at, device, op, offset, bytes, event }
    }
}

/// State of the choice of the event that counts.
#[derive(Debug, Default)]
pub struct EventFilter {
    /// Event that represents requests, once it is chosen.
    event: Option<Event>,
    /// Events held back until the choice, in order.
    held: VecDeque<HeldEvent>,
}

impl EventFilter {
    /// Returns true if this event represents its request. Before the choice is made, an event that
    /// may represent a request is held back, and the result is false. `line`: its line in the
    /// trace.
    pub fn accept_or_hold(&mut self, raw: &RawRequest<'_>, line: u64) -> bool {
        if let Some(event) = self.event {
            return raw.event == event;
        }
        if raw.event == Event::Queued {
            self.event = Some(Event::Queued);
            self.held.clear();
            return true;
        }
        let &RawRequest { at, device, op, offset, bytes, event } = raw;
        let device = device.to_vec();
        self.held.push_back(HeldEvent { at, device, op, offset, bytes, event, line });
        if self.held.len() == HELD_EVENTS_MAX {
            self.choose_event();
        }
        false
    }

    /// Chooses the event that represents requests, at the end of the trace or after enough events:
    /// the smallest held one in the order of [`Event`]. Drops the held events of other kinds.
    /// Returns true if held events became requests, false if the choice was made before or no event
    /// is held.
    pub fn choose_event(&mut self) -> bool {
        if self.event.is_some() {
            return false;
        }
        self.event = self.held.iter().map(|held| held.event).min();
        let event = self.event;
        self.held.retain(|held| Some(held.event) == event);
        !self.held.is_empty()
    }

    /// Removes and returns the next held event that counts. `None` before the choice.
    pub fn next_held(&mut self) -> Option<HeldEvent> {
        self.event?;
        self.held.pop_front()
    }

    /// Returns a text about the event that replaces queued requests. `None` if queued requests
    /// count, or before the choice.
    pub fn note(&self) -> Option<&'static str> {
        match self.event? {
            Event::Queued => None,
            Event::Issued => Some("the trace has no queued requests (Q): issued ones (D) count"),
            Event::Inserted => {
                Some("the trace has no queued requests (Q): inserted ones (I) count")
            }
            Event::Completed => {
                Some("the trace has no queued requests (Q): completed ones (C) count")
            }
        }
    }
}

//! Timeouts of calls: the rules 1, 3 and 4 of the state machine.
//!
//! A *slot* holds one call. The server is *silent* from the expiry of a call (rule 3) to its next
//! answer. A call is *postponed* while it rests because the server has answered "try later"
//! (rule 4).

use readpath_core::unit::Time;

use super::super::call_results::Caller;
use super::super::rpc::CallError;
use super::{CallSlot, CallState, Client, ClientLink};

impl Client {
    /// Handles timeouts that are due at time `now`. Expired calls fail, and the caller is informed.
    /// Other calls are sent again, or the connection is given up if the server has sent nothing.
    pub(crate) fn handle_time(&mut self, now: Time, caller: &mut dyn Caller) {
        self.handled_at = now;
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            match slot.state {
                CallState::Free => {}
                _ if now >= slot.expires_at => {
                    // A server that has postponed the call is not silent.
                    self.is_silent |= matches!(slot.state, CallState::Waiting { .. });
                    // The limit of a call may be its time of repetition, so it fails before the arm
                    // below can give the silent connection up.
                    if self.is_connection_silent(slot, now) {
                        self.mark_for_closing();
                    }
                    self.fail_call(index, CallError::TimedOut, caller);
                }
                CallState::Postponed { resend_at } if now >= resend_at => self.resend(now, index),
                // Without a connection, the call is sent again by the next one.
                CallState::Waiting { since, .. }
                    if now >= since + slot.repeat_after
                        && matches!(self.link, ClientLink::Up { .. }) =>
                {
                    // The server has sent nothing since. The call waits for the next connection.
                    if self.last_byte_at <= since {
                        self.mark_for_closing();
                    } else {
                        let slot = &mut self.slots[index as usize];
                        slot.repeat_after = slot.repeat_after + slot.repeat_after;
                        self.resend(now, index);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns true if a call has waited for its time of repetition on a connection that has
    /// received nothing since.
    fn is_connection_silent(&self, slot: &CallSlot, now: Time) -> bool {
        let CallState::Waiting { since, .. } = slot.state else { return false };
        let is_up = matches!(self.link, ClientLink::Up { .. });
        is_up && now >= since + slot.repeat_after && self.last_byte_at <= since
    }

    /// After a pause of this program, extends the times at which calls fail by the time since the
    /// first missed timeout. `now`: the time of the first bytes received after the pause. The user
    /// of this client wakes for each timeout, so the time since a missed one is a pause. Shorter
    /// pauses than `repeat_after` change nothing.
    pub(super) fn extend_after_pause(&mut self, now: Time) {
        let is_pause = now >= self.handled_at + self.timing.repeat_after;
        self.handled_at = now;
        if !is_pause {
            return;
        }
        let Some(missed_at) = self.next_wake().filter(|wake_at| *wake_at < now) else { return };
        for slot in &mut self.slots {
            // A call may have started since.
            let begin = match slot.state {
                CallState::Waiting { sent_at, .. } => missed_at.max(sent_at),
                _ => missed_at,
            };
            slot.expires_at += now.since(begin);
        }
    }

    /// Records that the server has answered the call in slot `index`, also with a garbled answer or
    /// a request to try later. The server is not silent, and if the connection is lost, it is
    /// replaced at once. The slot must still have the state in which the answer found it.
    pub(super) fn record_answer(&mut self, index: u32) {
        self.is_silent = false;
        self.reconnect_delay = Time::ZERO;
        self.note_progress(index);
    }

    /// Notes that bytes of the answer to the call in slot `index` have arrived. The next
    /// `restart_timeouts` uses the call's sending time. No effect if the call does not wait.
    fn note_progress(&mut self, index: u32) {
        if let CallState::Waiting { sent_at, .. } = self.slots[index as usize].state {
            let earliest = self.answered_sent_at.map_or(sent_at, |earliest| earliest.min(sent_at));
            self.answered_sent_at = Some(earliest);
        }
    }

    /// Restarts the timeouts, at time `now`, of the calls that were sent no earlier than a call of
    /// which bytes were received. A call sent earlier keeps its timeout, since it may be lost. With
    /// a server that answers later calls first, it may therefore be sent again although its answer
    /// waits behind theirs.
    pub(super) fn restart_timeouts(&mut self, now: Time) {
        if let Some(reply) = self.direct_reply {
            self.note_progress(reply.slot_index);
        }
        let Some(answered_sent_at) = self.answered_sent_at.take() else { return };
        for slot in &mut self.slots {
            if let CallState::Waiting { sent_at, since } = &mut slot.state
                && *sent_at >= answered_sent_at
            {
                *since = now;
            }
        }
    }
}

//! The flash of a solid-state drive: dies that sense, program and erase, and the shared channels.
//!
//! A *row* is a flash page on each plane of a die. One program writes a row. A *move* is the
//! program of a row that the garbage collection moves, or of parity.
//!
//! - A die performs one operation at a time.
//! - Reads of a die are served in order of arrival, before any waiting program, move or erase.
//!   After `reads_in_row_max` reads one background operation goes first, so writes are never
//!   starved.
//! - A background operation in progress is completed first, unless the die can suspend it. Reads
//!   that suspend it count for that limit, up to its end.
//! - A read senses its page, then occupies the die until its bytes have crossed the channel. The
//!   sense time depends on the page's bit in the cell.
//! - A program occupies its die from the start to the end. It occupies the channel only for the
//!   transfer of its bytes, which comes first.
//! - A channel serves its dies in the order in which they become ready.
//! - Rows moved by the garbage collection cross the channel twice, because the controller corrects
//!   their errors.
//! - Programs of data rotate over the dies. After every `data_programs_per_parity` of them the next
//!   die programs their parity.

use std::collections::VecDeque;

use readpath_core::unit::Time;

use crate::earliest::EarliestEvent;
use crate::rate::Link;

/// Structure and timing of the flash.
#[derive(Clone, Debug)]
pub struct FlashTiming {
    /// Number of channels. Die `d` is connected to channel `d % channels`.
    pub channels: u32,
    /// Total number of dies.
    pub dies: u32,
    /// Bandwidth of each channel, in bytes per second.
    pub channel_bytes_per_second: u64,
    /// Time to sense a page, by its bit in the cell.
    pub sense_times: Vec<Time>,
    /// Time to program a page on each plane, by its bit in the cell.
    pub program_times: Vec<Time>,
    /// Time to erase a block on each plane.
    pub erase_time: Time,
    /// Programs per block. A full block requires an erase.
    pub pages_per_block: u32,
    /// Bytes of one program: a page on each plane.
    pub program_bytes: u64,
    /// Time to suspend a program for a read. Zero means that programs cannot be suspended.
    pub suspend_program_time: Time,
    /// Time to suspend an erase for a read. Zero means that erases cannot be suspended.
    pub suspend_erase_time: Time,
    /// Number of data programs per parity program. 0 means no parity.
    pub data_programs_per_parity: u32,
    /// Reads before a waiting or suspended background operation goes first.
    pub reads_in_row_max: u32,
}

/// Result of [`advance`](Flash::advance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashEvent {
    /// `bytes` of the request in `slot` have left the channel.
    Read { slot: u32, bytes: u32 },
    /// A program has ended, and its bytes can leave the buffer.
    Program,
    /// An internal event without effect for the caller.
    Nothing,
}

/// A read of one page, or of pages of one row that are sensed together.
#[derive(Clone, Copy, Debug)]
struct PageRead {
    /// Key of the request, or the caller's number for reads that no request waits for.
    slot: u32,
    /// Bytes of the page, or pages, that cross the channel.
    bytes: u32,
    /// Row of the page in its plane. Pages of one row can be sensed together.
    row: u64,
}

/// A background operation of a die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackgroundOp {
    /// Programs data that the host wrote.
    Program,
    /// Senses a row for the garbage collection.
    Collect,
    /// Waits for the channel with a sensed row, or sends the row over it.
    SendRow,
    /// Programs a row that the garbage collection moves, or parity.
    Move,
    /// Erases a block.
    Erase,
}

/// Activity of a die.
#[derive(Clone, Copy, Debug)]
enum DieState {
    /// No operation.
    Idle,
    /// Senses a page into the die's register.
    Sensing(PageRead),
    /// Waits for the channel or sends over it. The register is occupied.
    Sending(PageRead),
    /// Performs a background operation until a time.
    InBackground(BackgroundOp, Time),
    /// Suspends a background operation for a read. The operation is in `suspended`.
    Suspending,
}

/// A die with its waiting operations. The counters of waiting background operations include one
/// in progress or suspended.
#[derive(Clone, Debug)]
struct Die {
    /// Present activity.
    state: DieState,
    /// Reads that wait, in order of arrival.
    reads: VecDeque<PageRead>,
    /// Suspended operation and its remaining time.
    suspended: Option<(BackgroundOp, Time)>,
    /// Programs of written data that wait.
    programs_waiting: u32,
    /// Row reads of the garbage collection that wait.
    collects_waiting: u32,
    /// Programs of moved rows and of parity that wait.
    moves_waiting: u32,
    /// Erases that wait.
    erases_waiting: u32,
    /// Pages programmed since the start. They determine the bit of the next page.
    pages_programmed: u32,
    /// Rows read by the collection since the start. They determine the bit of the next row.
    rows_collected: u32,
    /// Reads since the end of the last background operation, while another one waits or is
    /// suspended.
    consecutive_reads: u32,
}

/// Dies and channels of a drive.
#[derive(Debug)]
pub struct Flash {
    /// Structure and timing.
    timing: FlashTiming,
    /// The dies, by number.
    dies: Vec<Die>,
    /// The channels, by number.
    channels: Vec<Link>,
    /// Next event of each die.
    next_events: EarliestEvent,
    /// Die of the next program, in rotation.
    next_program_die: u32,
    /// Die of the garbage collection's next read.
    next_collect_die: u32,
    /// Die of the garbage collection's next program.
    next_move_die: u32,
    /// Programs of data since the last parity program.
    programs_since_parity: u32,
}

impl Flash {
    /// Creates idle dies and channels, as many as `timing` states.
    pub fn new(timing: FlashTiming) -> Flash {
        let die = Die {
            state: DieState::Idle,
            reads: VecDeque::new(),
            suspended: None,
            programs_waiting: 0,
            collects_waiting: 0,
            moves_waiting: 0,
            erases_waiting: 0,
            pages_programmed: 0,
            rows_collected: 0,
            consecutive_reads: 0,
        };
        Flash {
            dies: vec![die; timing.dies as usize],
            channels: vec![Link::new(timing.channel_bytes_per_second); timing.channels as usize],
            next_events: EarliestEvent::new(timing.dies),
            next_program_die: 0,
            next_collect_die: 0,
            next_move_die: 0,
            programs_since_parity: 0,
            timing,
        }
    }

    /// Returns the time and the die of the next event; `None` if every die is idle.
    #[inline]
    pub fn next_event(&self) -> Option<(Time, u32)> {
        self.next_events.first()
    }

    /// Queues a read of `bytes` of the page in `row` of a plane of `die`, for the request in
    /// `slot`. Pages of one request in the same row of different planes are sensed together.
    #[inline]
    pub fn read(&mut self, now: Time, die: u32, row: u64, slot: u32, bytes: u32) {
        let read = PageRead { slot, bytes, row };
        let this_die = &mut self.dies[die as usize];
        // The last read that waits or is being sensed. The new read can join it.
        let last_read = match &mut this_die.state {
            DieState::Sensing(current) if this_die.reads.is_empty() => Some(current),
            _ => this_die.reads.back_mut(),
        };
        if let Some(last_read) = last_read
            && last_read.slot == slot
            && last_read.row == row
        {
            last_read.bytes += bytes;
            return;
        }
        this_die.reads.push_back(read);
        match this_die.state {
            DieState::Idle => self.start_next_operation(now, die),
            DieState::InBackground(operation, end) => {
                self.suspend_for_read(now, die, operation, end)
            }
            DieState::Sensing(_) | DieState::Sending(_) | DieState::Suspending => {}
        }
    }

    /// Queues the program of one row of written data on the next die: channels rotate first, then
    /// ways and dies.
    pub fn program(&mut self, now: Time) {
        let die = next_in_rotation(&mut self.next_program_die, self.timing.dies);
        self.queue_background(now, die, |die| &mut die.programs_waiting);
        self.count_for_parity(now);
    }

    /// Queues the work of the garbage collection: `reads` rows to read and `programs` rows to
    /// program. Reads and programs rotate over the dies independently.
    #[inline]
    pub fn collect(&mut self, now: Time, reads: u64, programs: u64) {
        for _ in 0..reads {
            let die = next_in_rotation(&mut self.next_collect_die, self.timing.dies);
            self.queue_background(now, die, |die| &mut die.collects_waiting);
        }
        for _ in 0..programs {
            let die = next_in_rotation(&mut self.next_move_die, self.timing.dies);
            self.queue_background(now, die, |die| &mut die.moves_waiting);
            self.count_for_parity(now);
        }
    }

    /// Counts a program of written or moved data. Queues a parity program after every
    /// `data_programs_per_parity` of them. Without parity that number is 0, and never reached.
    fn count_for_parity(&mut self, now: Time) {
        self.programs_since_parity += 1;
        if self.programs_since_parity == self.timing.data_programs_per_parity {
            self.programs_since_parity = 0;
            let die = next_in_rotation(&mut self.next_program_die, self.timing.dies);
            self.queue_background(now, die, |die| &mut die.moves_waiting);
        }
    }

    /// Adds one waiting background operation to `die`, and starts it if the die is idle.
    /// `waiting_counter` selects the counter of the operation.
    fn queue_background(
        &mut self,
        now: Time,
        die: u32,
        waiting_counter: impl Fn(&mut Die) -> &mut u32,
    ) {
        let this_die = &mut self.dies[die as usize];
        *waiting_counter(this_die) += 1;
        if matches!(this_die.state, DieState::Idle) {
            self.start_next_operation(now, die);
        }
    }

    /// Handles the event at `now` on `die` that [`next_event`](Flash::next_event) returned. A read
    /// is first sensed on the die and then sent over its channel, which keeps the die busy. Returns
    /// the read or the program that has ended. Other events return `FlashEvent::Nothing`.
    #[inline]
    pub fn advance(&mut self, now: Time, die: u32) -> FlashEvent {
        match self.dies[die as usize].state {
            DieState::Sensing(read) => {
                let channel = &mut self.channels[(die % self.timing.channels) as usize];
                let sent_at = channel.queue_transfer(now, u64::from(read.bytes));
                self.dies[die as usize].state = DieState::Sending(read);
                self.next_events.set(die, Some(sent_at));
                FlashEvent::Nothing
            }
            DieState::Sending(read) => {
                self.start_next_operation(now, die);
                FlashEvent::Read { slot: read.slot, bytes: read.bytes }
            }
            DieState::InBackground(BackgroundOp::Collect, _) => {
                let channel = &mut self.channels[(die % self.timing.channels) as usize];
                let sent_at = channel.queue_transfer(now, self.timing.program_bytes);
                let state = DieState::InBackground(BackgroundOp::SendRow, sent_at);
                self.dies[die as usize].state = state;
                self.next_events.set(die, Some(sent_at));
                FlashEvent::Nothing
            }
            DieState::InBackground(operation, _) => {
                self.finish_background(die, operation);
                self.start_next_operation(now, die);
                match operation {
                    BackgroundOp::Program => FlashEvent::Program,
                    _ => FlashEvent::Nothing,
                }
            }
            DieState::Suspending => {
                self.start_next_operation(now, die);
                FlashEvent::Nothing
            }
            DieState::Idle => unreachable!("an idle die has no next event"),
        }
    }

    /// Starts the next operation on a free die: a read, unless too many reads have preceded a
    /// waiting background operation. If no operation waits, the die becomes idle.
    #[inline]
    fn start_next_operation(&mut self, now: Time, die: u32) {
        let this_die = &mut self.dies[die as usize];
        let has_waiting = this_die.has_waiting_background();
        let may_read = !has_waiting || this_die.consecutive_reads < self.timing.reads_in_row_max;
        if may_read && let Some(read) = this_die.reads.pop_front() {
            this_die.consecutive_reads =
                if has_waiting { this_die.consecutive_reads + 1 } else { 0 };
            this_die.state = DieState::Sensing(read);
            // Successive rows hold the bits of a cell in turn.
            let bit = (read.row % self.timing.sense_times.len() as u64) as usize;
            self.next_events.set(die, Some(now + self.timing.sense_times[bit]));
            return;
        }
        match self.take_background(now, die) {
            Some((operation, end)) => {
                self.dies[die as usize].state = DieState::InBackground(operation, end);
                self.next_events.set(die, Some(end));
            }
            None => {
                self.dies[die as usize].state = DieState::Idle;
                self.next_events.set(die, None);
            }
        }
    }

    /// Selects the die's next background operation: a suspended one first, then erases, row reads,
    /// moves and programs. This order is chosen: room is made before it is used. Returns the
    /// operation with its end time; `None` if none waits. The counter of the operation stays until
    /// [`finish_background`](Flash::finish_background).
    ///
    /// Erases need no channel, and the transfer of a suspended operation was queued at its start. A
    /// row read crosses the channel after its sensing. The others cross it first.
    fn take_background(&mut self, now: Time, die: u32) -> Option<(BackgroundOp, Time)> {
        let this_die = &mut self.dies[die as usize];
        if let Some((operation, remaining)) = this_die.suspended.take() {
            return Some((operation, now + remaining));
        }
        let bit = this_die.pages_programmed as usize % self.timing.program_times.len();
        let program_time = self.timing.program_times[bit];
        if this_die.erases_waiting > 0 {
            Some((BackgroundOp::Erase, now + self.timing.erase_time))
        } else if this_die.collects_waiting > 0 {
            let bit = this_die.rows_collected as usize % self.timing.sense_times.len();
            Some((BackgroundOp::Collect, now + self.timing.sense_times[bit]))
        } else {
            let operation = if this_die.moves_waiting > 0 {
                BackgroundOp::Move
            } else if this_die.programs_waiting > 0 {
                BackgroundOp::Program
            } else {
                return None;
            };
            let channel = &mut self.channels[(die % self.timing.channels) as usize];
            Some((operation, channel.queue_transfer(now, self.timing.program_bytes) + program_time))
        }
    }

    /// Counts a background operation that die number `die` has completed. A program or move that
    /// fills a block queues an erase.
    fn finish_background(&mut self, die: u32, operation: BackgroundOp) {
        let this_die = &mut self.dies[die as usize];
        this_die.consecutive_reads = 0;
        match operation {
            BackgroundOp::Erase => {
                this_die.erases_waiting -= 1;
                return;
            }
            BackgroundOp::Collect => unreachable!("a sensed row is sent first"),
            BackgroundOp::SendRow => {
                this_die.collects_waiting -= 1;
                this_die.rows_collected = this_die.rows_collected.wrapping_add(1);
                return;
            }
            BackgroundOp::Move => this_die.moves_waiting -= 1,
            BackgroundOp::Program => this_die.programs_waiting -= 1,
        }
        this_die.pages_programmed = this_die.pages_programmed.wrapping_add(1);
        if this_die.pages_programmed.is_multiple_of(self.timing.pages_per_block) {
            this_die.erases_waiting += 1;
        }
    }

    /// Suspends a background operation, which would end at `end`, for a new read. No effect if the
    /// die cannot suspend it, after `reads_in_row_max` reads, or if the operation ends no later
    /// than the suspension would. The operation makes no progress from `now` until it is resumed.
    fn suspend_for_read(&mut self, now: Time, die: u32, operation: BackgroundOp, end: Time) {
        let suspend_time = match operation {
            BackgroundOp::Erase => self.timing.suspend_erase_time,
            BackgroundOp::Program | BackgroundOp::Move => self.timing.suspend_program_time,
            // The read of a row is never suspended.
            BackgroundOp::Collect | BackgroundOp::SendRow => Time::ZERO,
        };
        let this_die = &mut self.dies[die as usize];
        let may_read = this_die.consecutive_reads < self.timing.reads_in_row_max;
        if suspend_time == Time::ZERO || end <= now + suspend_time || !may_read {
            return;
        }
        this_die.suspended = Some((operation, end - now));
        this_die.state = DieState::Suspending;
        self.next_events.set(die, Some(now + suspend_time));
    }
}

impl Die {
    /// Returns true if a background operation waits or is suspended.
    fn has_waiting_background(&self) -> bool {
        self.suspended.is_some()
            || self.programs_waiting > 0
            || self.collects_waiting > 0
            || self.moves_waiting > 0
            || self.erases_waiting > 0
    }
}

/// Returns the die `next_die` of a rotation over `dies` dies, and sets `next_die` to its successor.
fn next_in_rotation(next_die: &mut u32, dies: u32) -> u32 {
    let die = *next_die;
    *next_die = (die + 1) % dies;
    die
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two dies on a channel of one byte per ns. Die 1 senses a read from 0 to 75 µs, and sends its
    /// 4,096 bytes at once. Die 0 senses a row from 70 to 145 µs, and sends 16,384 bytes then.
    #[test]
    fn row_read_occupies_the_channel_after_its_sensing() {
        let mut flash = Flash::new(FlashTiming {
            channels: 1,
            dies: 2,
            channel_bytes_per_second: 1_000_000_000,
            sense_times: vec![Time::from_us(75)],
            program_times: vec![Time::from_us(400)],
            erase_time: Time::from_ms(4),
            pages_per_block: 256,
            program_bytes: 16_384,
            suspend_program_time: Time::ZERO,
            suspend_erase_time: Time::ZERO,
            data_programs_per_parity: 0,
            reads_in_row_max: 64,
        });
        let (die, row, slot, bytes) = (1, 0, 7, 4_096);
        flash.read(Time::ZERO, die, row, slot, bytes);
        let (rows_read, rows_programmed) = (1, 0);
        flash.collect(Time::from_us(70), rows_read, rows_programmed);
        let mut read_end = None;
        let mut last_end = Time::ZERO;
        while let Some((now, die)) = flash.next_event() {
            last_end = now;
            if flash.advance(now, die) == (FlashEvent::Read { slot, bytes }) {
                read_end = Some(now);
            }
        }
        assert_eq!((read_end, last_end), (Some(Time(79_096)), Time(161_384)));
    }
}

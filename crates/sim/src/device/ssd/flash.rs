//! The flash of a solid-state drive: dies that sense, program and erase, and
//! the channels that they share.
//!
//! A die does one thing at a time. Reads of a die are served in the order in
//! which they came, and before any program, move or erase that waits for the
//! same die; after `reads_in_row_max` reads in a row one background step goes
//! first, so that no write waits for ever. A background step in progress is
//! finished first, unless the die can suspend it.
//!
//! A read senses its page (a time that depends on which of the cell's bits the
//! page holds), then keeps the die until its bytes have crossed the channel. A
//! program sends its bytes first, then keeps the die, not the channel. Channels
//! serve in the order in which the dies become ready.
//!
//! What the garbage collection moves crosses the channel twice: the controller
//! corrects its errors on the way. Programs of data go round the dies; after so
//! many the next die programs their parity.

use std::collections::VecDeque;

use readpath_core::unit::Time;

use crate::device::earliest::EarliestEvent;
use crate::device::rate::Link;

/// What the flash is made of, and how long it takes.
#[derive(Clone, Debug)]
pub struct FlashTiming {
    /// Channels; die `d` hangs on channel `d % channels`.
    pub channels: u32,
    /// Dies in all.
    pub dies: u32,
    /// Bytes a second on each channel.
    pub channel_bytes_per_second: u64,
    /// Time to sense a page, by which bit of the cell it holds.
    pub sense: Vec<Time>,
    /// Time to program a page on each plane, by which bit of the cell it holds.
    pub program: Vec<Time>,
    /// Time to erase a block on each plane.
    pub erase: Time,
    /// Programs until a block is full and another must be erased.
    pub pages_per_block: u32,
    /// Bytes that one program takes: a page on each plane.
    pub program_bytes: u64,
    /// Time to suspend a program for a read; zero: it can't be suspended.
    pub suspend_program: Time,
    /// Time to suspend an erase for a read; zero: it can't be suspended.
    pub suspend_erase: Time,
    /// Programs of data for each of parity over them; 0: there is none.
    pub parity: u32,
    /// Reads in a row before a waiting background step goes first.
    pub reads_in_row_max: u32,
}

/// What an [`advance`](Flash::advance) brought to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashEvent {
    /// `bytes` of the request in `slot` have left the channel.
    Read {
        /// The request, as its reader named it.
        slot: u32,
        /// How many bytes.
        bytes: u32,
    },
    /// A program is done: its bytes may leave the buffer.
    Program,
    /// Something inside, of no interest outside.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct PageRead {
    slot: u32,
    bytes: u32,
    /// The page's place in its plane, which decides what can be sensed together.
    row: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlashStep {
    /// A page that the host wrote.
    Program,
    /// A row that the garbage collection reads.
    Collect,
    /// A row that the garbage collection has moved, or parity.
    Move,
    Erase,
}

#[derive(Clone, Copy, Debug)]
enum DieState {
    /// Nothing waits.
    Idle,
    /// The page is on its way from the cells into the die's register.
    Sensing(PageRead),
    /// It waits for, or crosses, the channel; the register is taken until then.
    Sending(PageRead),
    /// A background step, until the time given.
    Stepping(FlashStep, Time),
    /// A background step is being put aside for a read; so much of it is left.
    Suspending,
}

#[derive(Clone, Debug)]
struct Die {
    state: DieState,
    reads: VecDeque<PageRead>,
    suspended: Option<(FlashStep, Time)>,
    programs_waiting: u32,
    collects_waiting: u32,
    moves_waiting: u32,
    erases_waiting: u32,
    /// Pages programmed since the start, which say which bit comes next.
    pages_programmed: u32,
    /// Rows that the collection read since the start, for the same reason.
    rows_collected: u32,
    reads_in_row: u32,
}

/// The dies and channels of a drive.
#[derive(Debug)]
pub struct Flash {
    timing: FlashTiming,
    dies: Vec<Die>,
    channels: Vec<Link>,
    next: EarliestEvent,
    next_program_die: u32,
    next_collect_die: u32,
    next_move_die: u32,
    /// Programs of data since the last one of parity.
    programs_since_parity: u32,
}

impl Flash {
    /// Idle flash.
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
            reads_in_row: 0,
        };
        Flash {
            dies: vec![die; timing.dies as usize],
            channels: vec![Link::new(timing.channel_bytes_per_second); timing.channels as usize],
            next: EarliestEvent::new(timing.dies),
            next_program_die: 0,
            next_collect_die: 0,
            next_move_die: 0,
            programs_since_parity: 0,
            timing,
        }
    }

    /// When something next happens inside, and on which die.
    #[inline]
    pub fn next_event(&self) -> Option<(Time, u32)> {
        self.next.first()
    }

    /// Reads `bytes` of the page in `row` of a plane of `die`, for the request in `slot`.
    ///
    /// Pages of one request in the same row of different planes are sensed together.
    #[inline]
    pub fn read(&mut self, now: Time, die: u32, row: u64, slot: u32, bytes: u32) {
        let read = PageRead { slot, bytes, row };
        let this = &mut self.dies[die as usize];
        let last = match &mut this.state {
            DieState::Sensing(current) if this.reads.is_empty() => Some(current),
            _ => this.reads.back_mut(),
        };
        if let Some(last) = last
            && last.slot == slot
            && last.row == row
        {
            last.bytes += bytes;
            return;
        }
        this.reads.push_back(read);
        match this.state {
            DieState::Idle => self.start_next(now, die),
            DieState::Stepping(step, end) => self.suspend(now, die, step, end),
            DieState::Sensing(_) | DieState::Sending(_) | DieState::Suspending => {}
        }
    }

    /// Programs one unit on the next die: channel first, then way and die.
    pub fn program(&mut self, now: Time) {
        let die = next(&mut self.next_program_die, self.timing.dies);
        self.wait(now, die, |die| &mut die.programs_waiting);
        self.cover(now);
    }

    /// Reads so many rows for the garbage collection, and programs so many elsewhere.
    #[inline]
    pub fn collect(&mut self, now: Time, reads: u64, programs: u64) {
        for _ in 0..reads {
            let die = next(&mut self.next_collect_die, self.timing.dies);
            self.wait(now, die, |die| &mut die.collects_waiting);
        }
        for _ in 0..programs {
            let die = next(&mut self.next_move_die, self.timing.dies);
            self.wait(now, die, |die| &mut die.moves_waiting);
            self.cover(now);
        }
    }

    /// After a program of data: that of the parity, when it is due.
    fn cover(&mut self, now: Time) {
        self.programs_since_parity += 1;
        if self.programs_since_parity == self.timing.parity {
            self.programs_since_parity = 0;
            let die = next(&mut self.next_program_die, self.timing.dies);
            self.wait(now, die, |die| &mut die.moves_waiting);
        }
    }

    /// One more step waits for `die`.
    fn wait(&mut self, now: Time, die: u32, count: impl Fn(&mut Die) -> &mut u32) {
        let this = &mut self.dies[die as usize];
        *count(this) += 1;
        if matches!(this.state, DieState::Idle) {
            self.start_next(now, die);
        }
    }

    /// Carries out what happens at `now` on `die`, as [`next_event`](Flash::next_event) said.
    #[inline]
    pub fn advance(&mut self, now: Time, die: u32) -> FlashEvent {
        match self.dies[die as usize].state {
            DieState::Sensing(read) => {
                let channel = &mut self.channels[(die % self.timing.channels) as usize];
                let sent_at = channel.carry(now, u64::from(read.bytes));
                self.dies[die as usize].state = DieState::Sending(read);
                self.next.set(die, Some(sent_at));
                FlashEvent::Nothing
            }
            DieState::Sending(read) => {
                self.start_next(now, die);
                FlashEvent::Read { slot: read.slot, bytes: read.bytes }
            }
            DieState::Stepping(step, _) => {
                self.finish_step(die, step);
                self.start_next(now, die);
                if step == FlashStep::Program { FlashEvent::Program } else { FlashEvent::Nothing }
            }
            DieState::Suspending => {
                self.start_next(now, die);
                FlashEvent::Nothing
            }
            DieState::Idle => unreachable!("an idle die expects nothing"),
        }
    }

    /// Gives an unoccupied die its next work.
    #[inline]
    fn start_next(&mut self, now: Time, die: u32) {
        let this = &mut self.dies[die as usize];
        let has_background = this.has_background();
        let is_reads_turn = !has_background || this.reads_in_row < self.timing.reads_in_row_max;
        if is_reads_turn && let Some(read) = this.reads.pop_front() {
            this.reads_in_row = if has_background { this.reads_in_row + 1 } else { 0 };
            this.state = DieState::Sensing(read);
            let bit = (read.row % self.timing.sense.len() as u64) as usize;
            self.next.set(die, Some(now + self.timing.sense[bit]));
            return;
        }
        this.reads_in_row = 0;
        match self.next_background(now, die) {
            Some((step, end)) => {
                self.dies[die as usize].state = DieState::Stepping(step, end);
                self.next.set(die, Some(end));
            }
            None => {
                self.dies[die as usize].state = DieState::Idle;
                self.next.set(die, None);
            }
        }
    }

    /// Chooses the die's next background step and says when it ends.
    fn next_background(&mut self, now: Time, die: u32) -> Option<(FlashStep, Time)> {
        let this = &mut self.dies[die as usize];
        if let Some((step, rest)) = this.suspended.take() {
            return Some((step, now + rest));
        }
        let bit = this.pages_programmed as usize % self.timing.program.len();
        let program = self.timing.program[bit];
        if this.erases_waiting > 0 {
            Some((FlashStep::Erase, now + self.timing.erase))
        } else {
            let (step, cells) = if this.collects_waiting > 0 {
                let bit = this.rows_collected as usize % self.timing.sense.len();
                (FlashStep::Collect, self.timing.sense[bit])
            } else if this.moves_waiting > 0 {
                (FlashStep::Move, program)
            } else if this.programs_waiting > 0 {
                (FlashStep::Program, program)
            } else {
                return None;
            };
            let channel = &mut self.channels[(die % self.timing.channels) as usize];
            Some((step, channel.carry(now, self.timing.program_bytes) + cells))
        }
    }

    fn finish_step(&mut self, die: u32, step: FlashStep) {
        let this = &mut self.dies[die as usize];
        match step {
            FlashStep::Erase => {
                this.erases_waiting -= 1;
                return;
            }
            FlashStep::Collect => {
                this.collects_waiting -= 1;
                this.rows_collected = this.rows_collected.wrapping_add(1);
                return;
            }
            FlashStep::Move => this.moves_waiting -= 1,
            FlashStep::Program => this.programs_waiting -= 1,
        }
        this.pages_programmed = this.pages_programmed.wrapping_add(1);
        if this.pages_programmed.is_multiple_of(self.timing.pages_per_block) {
            this.erases_waiting += 1;
        }
    }

    /// Puts a background step aside for the read that has just come, when the
    /// die can and something is gained by it.
    fn suspend(&mut self, now: Time, die: u32, step: FlashStep, end: Time) {
        let pause = match step {
            FlashStep::Erase => self.timing.suspend_erase,
            FlashStep::Program | FlashStep::Move => self.timing.suspend_program,
            FlashStep::Collect => Time::ZERO,
        };
        if pause == Time::ZERO || end <= now + pause {
            return;
        }
        let this = &mut self.dies[die as usize];
        this.suspended = Some((step, end - now));
        this.state = DieState::Suspending;
        self.next.set(die, Some(now + pause));
    }
}

impl Die {
    fn has_background(&self) -> bool {
        self.suspended.is_some()
            || self.programs_waiting > 0
            || self.collects_waiting > 0
            || self.moves_waiting > 0
            || self.erases_waiting > 0
    }
}

/// The die whose turn it is, of so many that take turns.
fn next(turn: &mut u32, dies: u32) -> u32 {
    let die = *turn;
    *turn = (die + 1) % dies;
    die
}

//! Selection of a process's next action.
//!
//! A *pass* is one repetition of the job's work. An operation is *collected* when the process takes
//! its completion, and counts as in flight until then. A process *drains* while it waits for all
//! operations in flight.
//!
//! The *backlog* has the writes of the pass that are not verified yet (option verify_backlog of
//! fio). Without a backlog, verification is a *repeated pass*: it makes the same random choices
//! again, and reads the positions that were written. A *turn* is a number of operations in one
//! file, before another file is chosen.
//!
//! The lists `remaining_reads`, `closes_after_read` and `think_times` have their next entry last.
//! `zone_bytes` counts bytes since the last change of zones, and `operations_until_draw` operations
//! up to the next random position. With `skips_map_mark`, the map of used positions does not record
//! the next operation. A [`GivenRead`] is the position of any operation, also of a write: file,
//! offset and bytes. The other fields are described at [`Process`].

use readpath_core::request::Op;
use readpath_core::unit::Time;

use super::script::{ScriptStep, TraceState};
use super::{
    AfterDrain, AfterSync, GivenRead, NextAction, PassStart, Process, ProcessOperation,
    ProcessState,
};
use crate::job::{FileService, FileServiceKind};

/// Interval at which a process checks if the job that it waits for has ended, and if it is still
/// ahead of its flow. The length is chosen.
const DEPENDENCY_CHECK_INTERVAL: Time = Time::from_us(100);

impl Process {
    /// Returns the next action at time `now`, and writes it to the log if the process has one.
    pub fn next(&mut self, now: Time) -> NextAction {
        let next = self.next_action(now);
        // For a sync, the file under which the log has it. `None` stands for all files.
        let logged_file = self.synced_file();
        if let Some(log) = &mut self.log {
            match &next {
                NextAction::Operation(operation) => log.on_issued(now, operation),
                NextAction::Sync { is_data_enough } => {
                    log.on_synced(now, *is_data_enough, logged_file);
                }
                NextAction::Ended => log.on_process_end(now),
                NextAction::WaitForCompletion | NextAction::WaitUntil(_) => {}
            }
        }
        next
    }

    /// Returns the next action. The first call starts the process, unless it waits for another job.
    /// Changes of the state that need no action are made at once.
    fn next_action(&mut self, now: Time) -> NextAction {
        if self.started_at.is_none() {
            if self.dependencies.is_waiting() && !self.dependencies.is_ended_by_other() {
                return NextAction::WaitUntil(now + DEPENDENCY_CHECK_INTERVAL);
            }
            self.begin(now);
        }
        loop {
            match self.state {
                ProcessState::Issuing => {
                    if let Some(next) = self.iterate(now) {
                        return next;
                    }
                }
                ProcessState::Draining(then) => {
                    self.collect_completions(self.completed_not_collected);
                    if self.in_flight > 0 {
                        return NextAction::WaitForCompletion;
                    }
                    self.state = self.state_after_drain(then, now);
                }
                ProcessState::Pausing { until } | ProcessState::Delayed { until }
                    if now < until =>
                {
                    return NextAction::WaitUntil(until);
                }
                ProcessState::Delayed { .. } => self.state = ProcessState::Issuing,
                ProcessState::Pausing { .. } => {
                    self.worked_since = now;
                    self.state = ProcessState::Issuing;
                }
                ProcessState::SyncDue { is_data_enough, then } => {
                    self.fsyncs += u64::from(!is_data_enough && then == AfterSync::Issue);
                    self.state = ProcessState::Syncing(then);
                    return NextAction::Sync { is_data_enough };
                }
                ProcessState::Syncing(_) => return NextAction::WaitForCompletion,
                ProcessState::Ended => return NextAction::Ended,
            }
        }
    }

    /// Starts the process at time `now`: its rates, its logs and the detection of a steady state.
    fn begin(&mut self, now: Time) {
        self.started_at = Some(now);
        self.worked_since = now;
        self.pace.begin(now);
        if let Some(log) = &mut self.log {
            log.begin(now);
        }
        if let Some(steady) = &mut self.steady {
            steady.begin(now);
        }
    }

    /// Performs one iteration of the process's loop. Returns the next action, or `None` if only the
    /// state was changed.
    fn iterate(&mut self, now: Time) -> Option<NextAction> {
        // The numbers are the steps in the header of `process.rs`.
        // 1. A full queue: enough completions are collected before the next operation. A search for
        //    a depth (option latency_target of fio) sets its own.
        let depth = self.search.as_ref().map_or(self.rules.depth, |search| search.depth());
        if self.in_flight >= depth {
            let needed = match self.in_flight > depth {
                // The search for a depth has lowered the depth: all in flight are collected.
                true => self.in_flight,
                // A whole batch, and as many as bring the operations in flight down to `low`.
                false => self.rules.batch_complete.max(self.rules.depth - self.rules.low),
            };
            let needed = needed.min(self.in_flight);
            if self.completed_not_collected < needed {
                return Some(NextAction::WaitForCompletion);
            }
            self.collect_completions(needed);
        }
        // 2. The end of the process, and traces, which need none of the steps below.
        if self.check_over(now) {
            self.state = ProcessState::Draining(AfterDrain::End);
            return None;
        }
        if self.script.is_some() {
            return self.next_trace_action(now);
        }
        // 3 and 4. Work that is due before the next operation: a pause, a verification, a sync.
        if self.take_due_pause(now) {
            self.state = ProcessState::Draining(AfterDrain::Pause);
            return None;
        }
        if self.verification.is_backlog_full() {
            self.state = ProcessState::Draining(AfterDrain::ToggleBacklogCheck);
            return None;
        }
        // Behind the last operation of a pass, and during a verification, only a sync at the end
        // can be due.
        if !self.is_pass_over()
            && !self.verification.is_checking()
            && let Some(is_data_enough) = self.due_sync()
        {
            // A sync counts as an operation in the turn of a file, but syncs all files. The file is
            // therefore not used.
            self.next_file();
            // With cached writes, the sync waits for all operations in flight.
            self.state = match self.rules.is_direct {
                true => ProcessState::SyncDue { is_data_enough, then: AfterSync::Issue },
                false => ProcessState::Draining(AfterDrain::Sync { is_data_enough }),
            };
            return None;
        }
        // 5 and 6. The next operation, unless delayed. Without one, the pass or the backlog ends.
        if let Some(until) = self.delayed_until(now) {
            self.state = ProcessState::Draining(AfterDrain::Delay(until));
            return None;
        }
        if let Some(until) = self.poll_think_time(now) {
            return Some(NextAction::WaitUntil(until));
        }
        match self.next_operation() {
            Some(operation) => Some(NextAction::Operation(operation)),
            None => {
                self.state = ProcessState::Draining(match self.verification.is_in_backlog() {
                    true => AfterDrain::ToggleBacklogCheck,
                    false => AfterDrain::NextPass,
                });
                None
            }
        }
    }

    /// Returns the next action of a trace, or `None` at its end, from which on the process drains.
    /// While it waits for a time, operations stay in flight, so completions are collected as they
    /// arrive. The delay of an operation behind its recorded time is counted.
    fn next_trace_action(&mut self, now: Time) -> Option<NextAction> {
        self.collect_completions(self.completed_not_collected);
        let begun = self.started_at.expect("it has begun");
        let script = self.script.as_mut().expect("the caller has looked");
        match script.take_state_at(now.since(begun)) {
            TraceState::NotBefore(run_time) => {
                // The process does not wait beyond its own end.
                let end = self.rules.runtime.map(|runtime| runtime + self.rules.ramp);
                let wait_end = end.map_or(run_time, |end| run_time.min(end));
                Some(NextAction::WaitUntil(begun + wait_end))
            }
            TraceState::Over => {
                self.state = ProcessState::Draining(AfterDrain::End);
                None
            }
            TraceState::Due(ScriptStep { at, op, offset, bytes }) => {
                if let Some(at) = at {
                    self.lateness.add(now.since(begun).since(at));
                }
                // A trace has one file.
                let file = self.areas[0].area.file;
                self.issued_bytes = self.issued_bytes.saturating_add(bytes);
                self.writes_issued += u64::from(op == Op::Write);
                let position = GivenRead { file, offset, bytes };
                Some(NextAction::Operation(self.count_issued(position, op)))
            }
        }
    }

    /// Returns true if the process ends now, with or without work left. Its run time is up, it has
    /// converged (a steady rate, or the queue depth found), it has failed, or another process ends
    /// it. Also ends the ramp time when it has passed, and records a rate below the minimum as the
    /// failure of the process.
    fn check_over(&mut self, now: Time) -> bool {
        let begun = self.started_at.expect("it has begun");
        let run_time = now.since(begun);
        if !self.is_ramp_over && run_time >= self.rules.ramp {
            // As in fio, the ramp time counts for limits in bytes, and not in operations.
            self.is_ramp_over = true;
            self.issued_operations = 0;
        }
        // The run time counts from the end of the ramp time.
        let has_passed = |runtime: Time| run_time >= runtime + self.rules.ramp;
        if self.is_ramp_over && !self.pace.check_minimum_rates(now) {
            self.failure = Some("the rate has fallen below rate_min or rate_iops_min");
        }
        let is_time_up = self.rules.runtime.is_some_and(has_passed);
        is_time_up
            || self.has_converged
            || self.failure.is_some()
            || self.dependencies.is_ended_by_other()
    }

    /// Returns true if the process must pause now (option thinktime of fio): after a number of
    /// operations, and after a time since the last pause, delays included. Checked once for each
    /// issued operation; further calls return false. Each due pause restarts the count.
    fn take_due_pause(&mut self, now: Time) -> bool {
        let is_pause_unchecked = std::mem::take(&mut self.is_pause_unchecked);
        let pauses = &self.rules.pauses;
        if !is_pause_unchecked || pauses.time == Time::ZERO {
            return false;
        }
        let operation_count =
            if pauses.counts_issued { self.issued_operations } else { self.collected_operations };
        // The end of the ramp time resets the issued operations, to less than the count at a pause.
        let operations = operation_count.saturating_sub(self.count_at_pause);
        // With a time of work, only a number that the job states counts, as in fio.
        let blocks = pauses.blocks.or(pauses.work_time.is_none().then_some(1));
        let is_due = blocks.is_some_and(|blocks| operations >= u64::from(blocks))
            || pauses.work_time.is_some_and(|time| now.since(self.worked_since) >= time);
        if is_due {
            // Set before the wait for the rest, so operations during that wait count for the next
            // pause.
            self.count_at_pause = operation_count;
        }
        is_due
    }

    /// Returns the time until which a rate or a flow delays the next operation, or `None` if
    /// nothing delays it. Verifications and the end of a pass are never delayed. Draws the
    /// direction of that operation if the process has a rate and no flow delays it, and keeps it in
    /// `drawn_op`.
    fn delayed_until(&mut self, now: Time) -> Option<Time> {
        if self.verification.is_checking() || self.is_pass_over() {
            return None;
        }
        if let Some(flow) = self.dependencies.flow_if_ahead() {
            return Some(now + flow.sleep.max(DEPENDENCY_CHECK_INTERVAL));
        }
        if !self.rules.has_rate {
            return None;
        }
        let drawn = self.drawn_op.unwrap_or_else(|| self.next_direction());
        let (op, due) = match self.rules.reads_percent {
            // The job has only one direction.
            0 | 100 => (drawn, self.pace.due_time(drawn)),
            _ => self.pace.next_direction(drawn, now),
        };
        // The other direction is due earlier, so that it goes first.
        if op != drawn {
            self.random.change_direction(op);
        }
        self.drawn_op = Some(op);
        (due > now).then_some(due)
    }

    /// Returns the state after all operations in flight have completed. `next` is the purpose of
    /// the wait. For `NextPass`, the first step that is due follows: a sync, the rest of the
    /// backlog, a repeated pass, another pass, and at last the end of the process. After each of
    /// the steps before the end, the process comes back here with `NextPass`. A condition that
    /// changes the state does it only if it returns true.
    pub(super) fn state_after_drain(&mut self, next: AfterDrain, now: Time) -> ProcessState {
        let syncs_at_end = self.rules.sync.at_end && self.writes_issued > 0 && !self.is_synced;
        let sync_then = |then| ProcessState::SyncDue { is_data_enough: false, then };
        match next {
            AfterDrain::Sync { is_data_enough } => {
                ProcessState::SyncDue { is_data_enough, then: AfterSync::Issue }
            }
            // After the sync `is_synced` is true, so the other steps follow.
            AfterDrain::NextPass if syncs_at_end => sync_then(AfterSync::NextPass),
            AfterDrain::End if syncs_at_end => sync_then(AfterSync::End),
            AfterDrain::ToggleBacklogCheck => {
                self.verification.toggle_backlog_check();
                ProcessState::Issuing
            }
            AfterDrain::Delay(until) => ProcessState::Delayed { until },
            // The end of the run time does not shorten a pause, as in fio.
            AfterDrain::Pause => {
                self.pace.on_pause(self.last_op, self.rules.pauses.time);
                ProcessState::Pausing { until: now + self.rules.pauses.time }
            }
            AfterDrain::NextPass if self.verification.is_backlog_left() => {
                self.verification.toggle_backlog_check();
                ProcessState::Issuing
            }
            AfterDrain::NextPass if self.verification.begin_repeated_pass() => {
                self.begin_verification_pass();
                ProcessState::Issuing
            }
            AfterDrain::NextPass if self.take_next_pass() => {
                self.verification.end_pass();
                self.begin_pass();
                ProcessState::Issuing
            }
            AfterDrain::NextPass | AfterDrain::End => {
                self.dependencies.record_end();
                ProcessState::Ended
            }
        }
    }

    /// Starts another pass: all areas are unfinished again, and the state of the draws is kept for
    /// its verification.
    fn begin_pass(&mut self) {
        // The random streams begin again in a repeatable job, and otherwise go on.
        self.random.restart();
        for area in &mut self.areas {
            // Returns to the start of the area. A skewed order goes on.
            area.offsets.restart();
            (area.is_done, area.is_open) = (false, false);
        }
        // The rotation of the files and `operations_until_draw` go on over the passes.
        self.file_selection.current = None;
        self.zone_bytes = 0;
        (self.pass_bytes, self.pass_operations) = (0, 0);
        self.pass_start = PassStart {
            random: self.random.clone(),
            file_selection: self.file_selection,
            operations_until_draw: self.operations_until_draw,
            skips_map_mark: self.skips_map_mark,
        };
    }

    /// Returns to the start of this pass, with the random state that it had, to verify its data.
    /// `pass_bytes` and `pass_operations` stay: verifications do not count in them, and they decide
    /// later if another pass follows.
    fn begin_verification_pass(&mut self) {
        let start = self.pass_start.clone();
        self.random = start.random;
        self.file_selection = start.file_selection;
        self.operations_until_draw = start.operations_until_draw;
        self.skips_map_mark = start.skips_map_mark;
        for area in &mut self.areas {
            // Unlike `restart`, this also restores a skewed order, whose random state is not in
            // `random`.
            area.offsets.rewind();
            (area.is_done, area.is_open) = (false, false);
        }
        self.zone_bytes = 0;
    }

    /// Returns true if another pass follows, and uses up one of the loops if they decide. A job
    /// limited by time always has another pass. Then loops decide, and then the bytes that the job
    /// has not issued yet. A pass without any operation is the last: later ones would have none
    /// either.
    fn take_next_pass(&mut self) -> bool {
        if self.pass_operations == 0 {
            return false;
        }
        if self.rules.is_time_based {
            return true;
        }
        if self.loops_left > 0 {
            self.loops_left -= 1;
            return true;
        }
        let unissued_bytes = self.rules.limit_bytes.saturating_sub(self.issued_bytes);
        let is_all_done = match &self.remaining_reads {
            Some(reads) => reads.is_empty(),
            None => self.areas.iter().all(|area| area.is_done),
        };
        // Fewer bytes than the largest block are not worth a pass. Without `has_io_size` the areas
        // limit the job too: when all are done, it ends.
        unissued_bytes >= self.rules.pass_bytes_min
            && (self.rules.has_io_size || !is_all_done)
            && !self.is_work_over()
    }

    /// Returns true if all bytes and operations of the job have been issued.
    fn is_work_over(&self) -> bool {
        let loops = u64::from(self.rules.loops);
        let is_reached = |limit: u64, issued: u64| issued >= limit.saturating_mul(loops);
        !self.rules.is_time_based
            && (is_reached(self.rules.limit_bytes, self.issued_bytes)
                || is_reached(self.rules.limit_operations, self.issued_operations))
    }

    /// Returns true if the limits of the job end this pass. A pass also ends when no file has a
    /// position left, which only the choice of the next operation finds.
    fn is_pass_over(&self) -> bool {
        // A job with one file, limited by time, writes until its end. With a backlog it verifies in
        // between, and the bytes of a pass end the pass.
        let has_end = self.rules.is_time_based && self.verification.has_backlog();
        self.is_work_over() || (has_end && self.pass_bytes >= self.rules.pass_bytes)
    }

    /// Returns the direction of the next operation of the pass: the only one of the job, or a drawn
    /// one.
    fn next_direction(&mut self) -> Op {
        match self.rules.reads_percent {
            100 => Op::Read,
            0 => Op::Write,
            percent if self.random.draw_is_read(percent) => Op::Read,
            _ => Op::Write,
        }
    }

    /// Returns the next operation of the pass or of the verification, counted as issued. `None` at
    /// the end of either.
    fn next_operation(&mut self) -> Option<ProcessOperation> {
        // Verification of the backlog, then a repeated pass, then the work of the job.
        if self.verification.is_in_backlog() {
            let position = self.verification.take_backlog_write()?;
            return Some(self.count_issued(position, Op::Read));
        }
        // The repeated pass draws each operation again, with its direction. It reads at the
        // positions of writes, and skips reads. Without a repeated pass, the loop ends at once.
        let no_drawn_op = None;
        while self.verification.count_repeated_operation() {
            let (op, position) = self.next_position(no_drawn_op)?;
            if op == Op::Write {
                return Some(self.count_issued(position, Op::Read));
            }
        }
        if self.verification.is_repeating_pass() || self.is_pass_over() {
            return None;
        }
        let drawn_op = self.drawn_op.take();
        let (op, position) = self.next_position(drawn_op)?;
        self.issued_bytes = self.issued_bytes.saturating_add(position.bytes);
        self.issued_operations += 1;
        self.pass_bytes = self.pass_bytes.saturating_add(position.bytes);
        self.pass_operations += 1;
        self.last_op = op;
        if self.rules.has_rate {
            self.pace.on_issue(op, position.bytes, &mut self.random);
        }
        self.dependencies.on_issue();
        self.verification.record_issue(position, op == Op::Write);
        // A job that only verifies (option verify_only of fio) reads in place of its writes.
        let op = if self.rules.writes { op } else { Op::Read };
        self.writes_issued += u64::from(op == Op::Write);
        self.is_synced = false;
        Some(self.count_issued(position, op))
    }

    /// Counts an operation as issued and in flight, and returns it. The operation ends a batch if
    /// the batch or the queue is full.
    fn count_issued(&mut self, position: GivenRead, op: Op) -> ProcessOperation {
        let GivenRead { file, offset, bytes } = position;
        self.in_flight += 1;
        self.batch_operations += 1;
        let is_batch_full = self.batch_operations >= self.rules.batch;
        if is_batch_full {
            self.batch_operations = 0;
        }
        // A queue filled to the lower depth of a search is submitted by the wait that follows.
        let is_batch_end = is_batch_full || self.in_flight == self.rules.depth;
        self.is_pause_unchecked = true;
        // Only listed reads close their files.
        let closes = self.closes_after_read.pop().unwrap_or(false);
        ProcessOperation { file, offset, bytes, op, is_batch_end, closes }
    }

    /// Returns the direction and the position of the next operation: of the next listed read, or in
    /// an unfinished file chosen by the job's rule. `None` at the end of the pass. Each file that
    /// is tried draws a direction, except the first if `drawn_op` was drawn before.
    fn next_position(&mut self, mut drawn_op: Option<Op>) -> Option<(Op, GivenRead)> {
        if self.remaining_reads.is_some() {
            let op = drawn_op.unwrap_or_else(|| self.next_direction());
            return self.remaining_reads.as_mut()?.pop().map(|position| (op, position));
        }
        while let Some(file_index) = self.next_file() {
            let op = drawn_op.take().unwrap_or_else(|| self.next_direction());
            let area_state = &mut self.areas[file_index];
            if let Some(strides) = &self.rules.strides
                && area_state.offsets.advance_zone(strides, self.zone_bytes, op)
            {
                self.zone_bytes = 0;
            }
            // Counted also if the file has no position left, as in fio.
            self.operations_until_draw -= 1;
            let is_drawn = self.operations_until_draw == 0;
            if is_drawn {
                self.operations_until_draw = self.rules.draw_every;
            }
            let offsets = &mut area_state.offsets;
            match offsets.next(
                &self.position_rules,
                op,
                is_drawn,
                &mut self.skips_map_mark,
                &mut self.random,
            ) {
                Some((offset, bytes)) => {
                    self.zone_bytes += bytes;
                    self.skips_map_mark = false;
                    self.random.on_issue(op);
                    return Some((op, GivenRead { file: area_state.area.file, offset, bytes }));
                }
                // The next unfinished file is tried.
                None => area_state.is_done = true,
            }
        }
        None
    }

    /// Returns the index in `areas` of the file whose turn it is, and counts one operation of its
    /// turn. A file stays in use until its turn ends or it is finished. Returns `None` if all files
    /// are finished.
    fn next_file(&mut self) -> Option<usize> {
        let open_files = self.areas.iter().filter(|area| area.is_open && !area.is_done).count();
        // With all permitted files open (option openfiles of fio), no other file is chosen.
        let opens = open_files < self.rules.open_files_max;
        let can_be_used = |index: usize| {
            let area = &self.areas[index];
            !area.is_done && (area.is_open || opens)
        };
        let count = self.areas.len();
        if !(0..count).any(can_be_used) {
            return None;
        }
        let FileService { kind, operations_per_turn } = self.rules.file_service;
        let selection = &mut self.file_selection;
        if let Some(current) = selection.current.filter(|current| can_be_used(*current)) {
            match operations_per_turn {
                // The turn lasts until the file is finished.
                None => return Some(current),
                Some(_) if selection.operations_left > 0 => {
                    selection.operations_left -= 1;
                    return Some(current);
                }
                // The turn has ended.
                Some(_) => {}
            }
        }
        // At least one file can be used, so the search ends.
        let next = loop {
            let next = match kind {
                FileServiceKind::RoundRobin => {
                    let next = selection.next;
                    selection.next = (next + 1) % count;
                    next
                }
                FileServiceKind::Random => self.random.draw_file(count as u64) as usize,
            };
            if can_be_used(next) {
                break next;
            }
        };
        self.areas[next].is_open = true;
        selection.current = Some(next);
        // This call is the first operation of the turn.
        selection.operations_left =
            operations_per_turn.map_or(0, |operations_per_turn| operations_per_turn - 1);
        Some(next)
    }

    /// Counts `count` completed operations as collected, as the program would by a system call.
    pub(super) fn collect_completions(&mut self, count: u32) {
        self.completed_not_collected -= count;
        self.in_flight -= count;
        self.collected_operations += u64::from(count);
    }
}

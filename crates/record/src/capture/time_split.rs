//! Wall time of the recorded program by activity.
//!
//! The scheduler's events give the state of each thread: it runs, it could run, or it sleeps. The
//! kernel adds its own stack to each sleep. The functions on it identify the wait
//! ([`stacks`](super::stacks)). Each moment counts as one activity, the first that a thread is in
//! ([`Activity::first_of`]). A program whose threads compute while others read is thus
//! limited by its processors. Idle threads of a pool wait for locks, so that locks come late. The
//! activities sum to the duration of the recording.

use std::collections::HashMap;

use readpath_trace::recording::{Activity, Record, TimeSpent};

use super::event::{EventData, TraceEvent};
use super::stacks::{self, StackActivities};

mod async_requests;

use async_requests::AsyncRequests;

/// Number of activities.
const ACTIVITIES: usize = Activity::ALL.len();

/// State of all recorded threads, and the time of each activity so far.
#[derive(Debug, Default)]
pub(super) struct TimeSplit {
    /// Present activity of each recorded thread.
    activities: HashMap<u32, Activity>,
    /// Number of threads by activity.
    threads: [u32; ACTIVITIES],
    /// Time of each activity so far.
    spent_ns: [u64; ACTIVITIES],
    /// Time up to which the activities are counted; 0 before the first thread.
    counted_until_ns: u64,
    /// End of the recorded time. `None` while it continues.
    end_ns: Option<u64>,
    /// Activities by the kernel's stacks of sleeps.
    stacks: StackActivities,
    /// Requests of AIO and io_uring in flight.
    async_requests: AsyncRequests,
}

impl TimeSplit {
    /// Creates the state without threads, and starts to read the functions of the kernel.
    pub fn start() -> TimeSplit {
        TimeSplit { stacks: StackActivities::start(), ..TimeSplit::default() }
    }

    /// Adds the first thread of a program that is recorded from its start. Its time begins with its
    /// first event.
    pub fn add_started(&mut self, task: u32) {
        self.set_activity(task, Activity::Processor);
    }

    /// Adds a thread of a running program. Its activity is the present one, by the kernel's stack
    /// of its sleep: an idle thread of a server may have no event during the whole recording.
    pub fn add_running(&mut self, at_ns: u64, process: u32, task: u32) {
        self.count_until(at_ns);
        self.set_activity(task, stacks::present_activity(process, task));
    }

    /// Ends the recorded time at `end_ns`. The kernel reports further events until its tracing has
    /// stopped, a tenth of a second later on a busy machine.
    pub fn end_at(&mut self, end_ns: u64) {
        self.end_ns = Some(end_ns);
    }

    /// Changes the activities of threads by an event. Events of all processors must come in the
    /// order of their times. Events of other threads, and later than the end, have no effect.
    pub fn process(&mut self, event: &TraceEvent) {
        if self.end_ns.is_some_and(|end_ns| event.at_ns > end_ns) {
            return;
        }
        if AsyncRequests::has_effect(&event.data) && self.is_recorded(event.task) {
            self.count_until(event.at_ns);
            self.async_requests.process(event.at_ns, event.task, &event.data);
        }
        match &event.data {
            EventData::Switch { from, sleep, to, .. }
                if self.is_recorded(*from) || self.is_recorded(*to) =>
            {
                self.count_until(event.at_ns);
                // The stack of a sleep follows and shows its activity. A task without a sleep was
                // preempted.
                let activity =
                    if sleep.is_some() { Activity::Unknown } else { Activity::ProcessorQueue };
                self.set_if_recorded(*from, activity);
                self.set_if_recorded(*to, Activity::Processor);
            }
            EventData::Wake { task } if self.is_recorded(*task) => {
                self.count_until(event.at_ns);
                // A task that runs may be woken before it has gone to sleep.
                if self.activities[task] != Activity::Processor {
                    self.set_if_recorded(*task, Activity::ProcessorQueue);
                }
            }
            // The stack follows the event of the sleep at once: no time is counted before it.
            EventData::Stack { addresses }
                if self.activities.get(&event.task) == Some(&Activity::Unknown) =>
            {
                let activity = self.stacks.activity_of_stack(addresses);
                self.set_if_recorded(event.task, activity);
            }
            EventData::NewTask { task, .. } if self.is_recorded(event.task) => {
                self.count_until(event.at_ns);
                self.set_activity(*task, Activity::ProcessorQueue);
            }
            // A thread that executes a program gets the number of the main thread, and ends it.
            EventData::Exec { former } if *former != event.task && self.is_recorded(*former) => {
                self.count_until(event.at_ns);
                self.remove(*former);
                self.set_activity(event.task, Activity::Processor);
            }
            EventData::TaskEnds if self.is_recorded(event.task) => {
                self.count_until(event.at_ns);
                self.remove(event.task);
            }
            _ => {}
        }
    }

    /// Returns the time of each activity as records of a recording from `start_ns` to `end_ns`. The
    /// list is empty if no activity is known.
    pub fn finish(mut self, start_ns: u64, end_ns: u64) -> Vec<Record> {
        self.count_until(end_ns);
        let at_ns = end_ns.saturating_sub(start_ns);
        let counted_ns: u64 = self.spent_ns.iter().sum();
        if counted_ns == self.spent_ns[Activity::Unknown as usize] {
            return Vec::new();
        }
        // The rest is the time before the first thread. After the last one, the time is counted as
        // unknown already.
        self.spent_ns[Activity::Unknown as usize] += at_ns.saturating_sub(counted_ns);
        let spent = Activity::ALL.into_iter().zip(self.spent_ns);
        spent
            .filter(|&(_, wall_ns)| wall_ns > 0)
            .map(|(activity, wall_ns)| Record::TimeSpent(TimeSpent { at_ns, activity, wall_ns }))
            .collect()
    }

    /// Adds the time since the last call to the first activity that a thread is in. Called before
    /// an event changes the activities. The first call only starts the count.
    fn count_until(&mut self, at_ns: u64) {
        let passed_ns = match self.counted_until_ns {
            0 => 0,
            counted_until_ns => at_ns.saturating_sub(counted_until_ns),
        };
        self.counted_until_ns = self.counted_until_ns.max(at_ns);
        self.spent_ns[self.present_activity() as usize] += passed_ns;
    }

    /// Activity as which the present moment counts. The requests in flight name the activity of the
    /// threads that wait for completions. Without a request they wait for an event, as a server
    /// does for its next client.
    fn present_activity(&self) -> Activity {
        let mut threads = self.threads;
        let waiting = std::mem::take(&mut threads[Activity::AsyncIo as usize]);
        if waiting > 0 {
            threads[self.async_requests.waited_activity() as usize] += waiting;
        }
        Activity::first_of(&threads)
    }

    /// True if the thread is recorded. The recorder's own thread has events too.
    fn is_recorded(&self, task: u32) -> bool {
        self.activities.contains_key(&task)
    }

    /// Removes a thread.
    fn remove(&mut self, task: u32) {
        if let Some(activity) = self.activities.remove(&task) {
            self.threads[activity as usize] -= 1;
        }
    }

    /// Sets the activity of a thread, if it is recorded.
    fn set_if_recorded(&mut self, task: u32, activity: Activity) {
        if self.is_recorded(task) {
            self.set_activity(task, activity);
        }
    }

    /// Sets the activity of a thread, and the number of threads by activity. A new thread becomes
    /// recorded.
    fn set_activity(&mut self, task: u32, activity: Activity) {
        if let Some(before) = self.activities.insert(task, activity) {
            self.threads[before as usize] -= 1;
        }
        self.threads[activity as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Sleep, SystemCall};
    use super::*;

    /// Switch of a processor. `sleep`: of the task that leaves; `None` if it could go on.
    fn switch(at_ns: u64, from: u32, sleep: Option<Sleep>, to: u32) -> TraceEvent {
        let (from_name, to_name) = (String::new(), String::new());
        let data = EventData::Switch { from, from_name, sleep, to, to_name };
        TraceEvent { at_ns, task: from, data }
    }

    fn wake(at_ns: u64, task: u32) -> TraceEvent {
        TraceEvent { at_ns, task: 0, data: EventData::Wake { task } }
    }

    /// Nanoseconds by activity, of a recording from time 100 to `end_ns`.
    fn time_by_activity(events: &[TraceEvent], end_ns: u64) -> Vec<(Activity, u64)> {
        let mut split = TimeSplit::default();
        split.add_started(7);
        events.iter().for_each(|event| split.process(event));
        finished(split, end_ns)
    }

    /// Nanoseconds by activity of a recording from time 100 to `end_ns` that ends.
    fn finished(split: TimeSplit, end_ns: u64) -> Vec<(Activity, u64)> {
        let records = split.finish(100, end_ns).into_iter();
        let spent = records.map(|record| match record {
            Record::TimeSpent(spent) => (spent.activity, spent.wall_ns),
            other => panic!("{other:?}"),
        });
        spent.collect()
    }

    /// By hand. Task 7 runs from 110, starts thread 8 at 120 and sleeps at 130. Thread 8 runs from
    /// 140 to 170, and from 190 until it ends at 200. Task 7 could run from 160 on, and runs from
    /// 180 to 190. From 160 to 170 a thread runs, so the waiting one does not count.
    #[test]
    fn each_moment_counts_once_as_the_first_activity() {
        let new = EventData::NewTask {
            task: 8,
            name: String::new(),
            is_thread: true,
            is_kernel_io: false,
            shares_files: true,
        };
        let events = [
            // The recorder's thread.
            switch(90, 3, None, 4),
            switch(110, 0, None, 7),
            TraceEvent { at_ns: 120, task: 7, data: new },
            switch(130, 7, Some(Sleep::Interruptible), 0),
            switch(140, 0, None, 8),
            wake(160, 7),
            switch(170, 8, None, 0),
            switch(180, 0, None, 7),
            switch(190, 7, Some(Sleep::Uninterruptible), 8),
            TraceEvent { at_ns: 200, task: 8, data: EventData::TaskEnds },
        ];
        assert_eq!(
            time_by_activity(&events, 220),
            [
                // 110 to 130, 140 to 170, 180 to 200.
                (Activity::Processor, 70),
                // 130 to 140, when thread 8 was new, and 170 to 180.
                (Activity::ProcessorQueue, 20),
                // Up to 110, and from 200 on: task 7 sleeps without a stack.
                (Activity::Unknown, 30),
            ]
        );
    }

    /// By hand, of a recording from 100 to 200. Task 7 runs from 110 on. Its sleep at 330 is later.
    #[test]
    fn event_after_the_end_of_the_recording_adds_no_time() {
        let mut split = TimeSplit::default();
        split.add_started(7);
        split.process(&switch(110, 0, None, 7));
        split.end_at(200);
        split.process(&switch(330, 7, Some(Sleep::Interruptible), 0));
        assert_eq!(finished(split, 200), [(Activity::Processor, 90), (Activity::Unknown, 10)]);
    }

    /// By hand. Task 7 sleeps from 110 to the end with an unknown stack. Its thread 8 waits for it
    /// with a known one from 130 on. The time of a wait that may be one for storage is not theirs.
    #[test]
    fn unknown_wait_is_not_hidden_by_a_thread_that_waits_for_others() {
        let mut split = TimeSplit::default();
        split.set_activity(7, Activity::Processor);
        split.set_activity(8, Activity::Processor);
        split.process(&switch(100, 7, Some(Sleep::Interruptible), 8));
        split.process(&switch(130, 8, Some(Sleep::Interruptible), 0));
        split.set_activity(8, Activity::Others);
        split.count_until(200);
        let [processor, others, unknown] =
            [Activity::Processor, Activity::Others, Activity::Unknown].map(|it| it as usize);
        assert_eq!(split.spent_ns[processor], 30);
        assert_eq!((split.spent_ns[others], split.spent_ns[unknown]), (0, 70));
    }

    /// By hand. Task 7 waits for completions from 110 to 210: with a `POLL_ADD` in flight until
    /// 150, with a read until 180, and with two reads of AIO from 190 on.
    #[test]
    fn wait_for_completions_is_one_for_storage_while_a_request_of_it_is_in_flight() {
        let event = |at_ns, data| TraceEvent { at_ns, task: 7, data };
        let submit = |at_ns, request, operation: &str| {
            event(at_ns, EventData::UringSubmit { request, operation: operation.to_owned() })
        };
        let mut split = TimeSplit::default();
        split.set_activity(7, Activity::AsyncIo);
        split.count_until(110);
        for event in [
            submit(110, 1, "POLL_ADD"),
            submit(150, 2, "READ"),
            event(180, EventData::UringComplete { request: 2, result: 4096 }),
            event(190, EventData::Exit(SystemCall::IoSubmit, 2)),
        ] {
            split.process(&event);
        }
        split.count_until(210);
        let spent = |activity: Activity| split.spent_ns[activity as usize];
        assert_eq!((spent(Activity::AsyncIo), spent(Activity::Others)), (50, 50));
        split.process(&event(210, EventData::Exit(SystemCall::IoGetevents, 2)));
        split.count_until(220);
        assert_eq!(split.spent_ns[Activity::Others as usize], 60);
    }

    /// By hand. Thread 8 runs from 100 on. The main thread, task 7, ends at 110. At 130 thread 8
    /// executes a program and becomes task 7, which sleeps from 150 to the end.
    #[test]
    fn thread_that_executes_a_program_goes_on_as_the_main_thread() {
        let event = |at_ns, task, data| TraceEvent { at_ns, task, data };
        let mut split = TimeSplit::default();
        split.set_activity(7, Activity::Lock);
        split.set_activity(8, Activity::Processor);
        split.count_until(100);
        split.process(&event(110, 7, EventData::TaskEnds));
        split.process(&event(130, 7, EventData::Exec { former: 8 }));
        split.process(&switch(150, 7, Some(Sleep::Interruptible), 0));
        split.set_activity(7, Activity::Sleep);
        split.count_until(200);
        let spent = |activity: Activity| split.spent_ns[activity as usize];
        assert_eq!((spent(Activity::Processor), spent(Activity::Sleep)), (50, 50));
    }

    #[test]
    fn recording_without_events_of_the_scheduler_has_no_activities() {
        assert_eq!(time_by_activity(&[], 1000), []);
    }
}

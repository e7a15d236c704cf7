//! Shortens a scenario that fails: removes threads, actions and faults while it still fails.
//!
//! A removal changes the schedule of everything after it. Each shorter scenario is therefore tried
//! with several schedules, and accepted if one of them fails.

use super::scenario::{Action, Scenario};
use super::world::Report;

/// Number of schedules for each shorter scenario, chosen.
const SCHEDULES_PER_SCENARIO: u64 = 40;

/// Function that runs a scenario and returns the report, with the failure if there was one.
type ScenarioRunner<'a> = &'a dyn Fn(&Scenario) -> Report;

impl Scenario {
    /// Returns the shortest scenario that was found to fail, with the report of its run: `self`,
    /// which fails, if no shorter one does.
    pub fn shrunk(&self) -> (Scenario, Report) {
        self.shrunk_by(&Scenario::run)
    }

    /// Like [`shrunk`](Scenario::shrunk), with a separate function that runs a scenario.
    pub fn shrunk_by(&self, run: ScenarioRunner<'_>) -> (Scenario, Report) {
        let (mut shortest, mut report) = (self.clone(), run(self));
        // After a removal, another one may keep the failure that did not before. The loop ends
        // after a round without a removal that counts.
        loop {
            let length_before = shortest.scenario_length();
            (shortest, report) = shortest.without_faults(report, run);
            (shortest, report) = shortest.without_actions(report, run);
            if shortest.scenario_length() == length_before {
                return (shortest, report);
            }
        }
    }

    /// Number of actions, threads and faults, which measures the length of a scenario. Unexpected
    /// errors are not counted, as no shortening removes them. Neither are `dies_after` and the
    /// reads of an action: their removal alone is no reason for another round.
    fn scenario_length(&self) -> usize {
        let faults = &self.faults;
        let fault_rates = [
            [
                faults.error_one_in,
                faults.short_one_in,
                faults.retry_one_in,
                faults.delay_one_in,
                faults.spurious_wake_one_in,
            ]
            .as_slice(),
            &[
                faults.short_call_one_in,
                faults.out_of_memory_one_in,
                faults.mapping_limit_one_in,
                faults.swapped_out_one_in,
            ],
        ]
        .concat();
        let schedule_rates = [self.settings.freeze_one_in, self.settings.refuse_thread_one_in];
        let nonzero_count = |rates: &[u64]| rates.iter().filter(|&&rate| rate > 0).count();
        let server_faults = self.server.clone().map_or(0, |mut server| {
            server.fault_rates_mut().iter().filter(|rate| ***rate > 0).count()
        });
        let actions: usize = self.threads.iter().map(Vec::len).sum();
        actions
            + self.threads.len()
            + nonzero_count(&fault_rates)
            + nonzero_count(&schedule_rates)
            + faults.bad_pages.len()
            + server_faults
    }

    /// Runs the scenario with several schedules by `run`: with its seed and the ones after it.
    /// Returns the scenario with the first schedule that fails, and its report. `None` if no
    /// schedule fails.
    fn first_failure(&self, run: ScenarioRunner<'_>) -> Option<(Scenario, Report)> {
        (0..SCHEDULES_PER_SCENARIO).find_map(|schedule| {
            let scenario = Scenario { seed: self.seed.wrapping_add(schedule), ..self.clone() };
            let report = run(&scenario);
            report.failure.is_some().then_some((scenario, report))
        })
    }

    /// Removes faults while the scenario still fails. Unexpected errors stay, as they only test
    /// that failures are found: there they are the failure. See
    /// [`unexpected_error_one_in`](super::disk::Faults::unexpected_error_one_in). `report` is the
    /// report of the last run.
    fn without_faults(self, report: Report, run: ScenarioRunner<'_>) -> (Scenario, Report) {
        // The shortest failing scenario so far, and its report.
        let (mut shortest, mut report) = (self.clone(), report);
        let fault_removals: [fn(&mut Scenario); 13] = [
            |scenario| scenario.faults.error_one_in = 0,
            |scenario| scenario.faults.short_one_in = 0,
            |scenario| scenario.faults.retry_one_in = 0,
            |scenario| scenario.faults.delay_one_in = 0,
            |scenario| scenario.faults.spurious_wake_one_in = 0,
            |scenario| scenario.faults.dies_after = 0,
            |scenario| scenario.faults.short_call_one_in = 0,
            |scenario| scenario.faults.out_of_memory_one_in = 0,
            |scenario| scenario.faults.mapping_limit_one_in = 0,
            |scenario| scenario.faults.swapped_out_one_in = 0,
            |scenario| scenario.faults.bad_pages.clear(),
            |scenario| scenario.settings.freeze_one_in = 0,
            |scenario| scenario.settings.refuse_thread_one_in = 0,
        ];
        for remove_fault in fault_removals {
            let mut shorter = shortest.clone();
            remove_fault(&mut shorter);
            (shortest, report) = shorter.first_failure(run).unwrap_or((shortest, report));
        }
        let server_faults =
            self.server.clone().map_or(0, |mut server| server.fault_rates_mut().len());
        for fault_index in 0..server_faults {
            let mut shorter = shortest.clone();
            if let Some(server) = &mut shorter.server {
                *server.fault_rates_mut()[fault_index] = 0;
            }
            (shortest, report) = shorter.first_failure(run).unwrap_or((shortest, report));
        }
        (shortest, report)
    }

    /// Removes threads and actions while the scenario still fails. `report` is the report of its
    /// last run.
    fn without_actions(self, report: Report, run: ScenarioRunner<'_>) -> (Scenario, Report) {
        // The shortest failing scenario so far, and its report. First whole threads are removed.
        let (mut shortest, mut report) = (self, report);
        let mut thread = 0;
        while thread < shortest.threads.len() {
            let mut shorter = shortest.clone();
            shorter.threads.remove(thread);
            match shorter.first_failure(run) {
                Some(failing) => (shortest, report) = failing,
                None => thread += 1,
            }
        }
        // Then parts of the actions of each thread, and reads of the remaining ones.
        for thread in 0..shortest.threads.len() {
            let mut removed_count = shortest.threads[thread].len();
            while removed_count > 0 {
                let mut action_index = 0;
                while action_index < shortest.threads[thread].len() {
                    let mut shorter = shortest.clone();
                    let actions = &mut shorter.threads[thread];
                    actions.drain(action_index..(action_index + removed_count).min(actions.len()));
                    match shorter.first_failure(run) {
                        Some(failing) => (shortest, report) = failing,
                        None => action_index += removed_count,
                    }
                }
                // Long parts are tried first, and then halves of them.
                removed_count /= 2;
            }
            (shortest, report) = shortest.with_fewer_reads(thread, report, run);
        }
        (shortest, report)
    }

    /// Removes reads from each batch and each group of futures of a thread while the scenario still
    /// fails. Each keeps at least one read. `report` is the report of its last run.
    fn with_fewer_reads(
        self,
        thread: usize,
        report: Report,
        run: ScenarioRunner<'_>,
    ) -> (Scenario, Report) {
        // The shortest failing scenario so far, and its report.
        let (mut shortest, mut report) = (self, report);
        for action in 0..shortest.threads[thread].len() {
            let mut read_index = 0;
            loop {
                let mut shorter = shortest.clone();
                let (Action::Batch(ranges, ..) | Action::Futures(ranges, ..)) =
                    &mut shorter.threads[thread][action]
                else {
                    break;
                };
                if read_index >= ranges.len() || ranges.len() == 1 {
                    break;
                }
                ranges.remove(read_index);
                match shorter.first_failure(run) {
                    Some(failing) => (shortest, report) = failing,
                    None => read_index += 1,
                }
            }
        }
        (shortest, report)
    }
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}, files {:?}", self.seed, self.files)?;
        writeln!(f, "{:?}", self.settings)?;
        writeln!(f, "{:?}", self.faults)?;
        if let Some(server) = &self.server {
            writeln!(f, "{server:?}")?;
        }
        for (thread, actions) in self.threads.iter().enumerate() {
            for action in actions {
                writeln!(f, "thread {thread}: {action:?}")?;
            }
        }
        Ok(())
    }
}

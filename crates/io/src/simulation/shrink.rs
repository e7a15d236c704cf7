//! Shortens a scenario that fails: removes threads, actions and faults while it still fails.
//!
//! A removal changes the schedule of everything after it. Each shorter scenario is therefore tried
//! with several schedules, and accepted if one of them fails.

use super::scenario::{Action, Scenario};
use super::world::Report;

/// Number of schedules for each shorter scenario.
const SCHEDULES_PER_SCENARIO: u64 = 40;

/// Function that runs a scenario.
type ScenarioRunner<'a> = &'a dyn Fn(&Scenario) -> Report;

impl Scenario {
    /// Returns the shortest scenario that was found to fail, with its report.
    pub fn shrunk(&self) -> (Scenario, Report) {
        self.shrunk_by(&Scenario::run)
    }

    /// Like [`shrunk`](Scenario::shrunk), with a separate function that runs a scenario.
    pub fn shrunk_by(&self, run: ScenarioRunner<'_>) -> (Scenario, Report) {
        let mut best = (self.clone(), run(self));
        loop {
            let before = best.0.action_count();
            best = best.0.without_faults(best.1, run);
            let (scenario, report) = best;
            best = scenario.without_actions(report, run);
            if best.0.action_count() == before {
                return best;
            }
        }
    }

    /// Number of actions, threads and faults.
    fn action_count(&self) -> usize {
        let faults = &self.faults;
        let parts = [
            [
                faults.error_rate,
                faults.short_rate,
                faults.retry_rate,
                faults.delay_rate,
                faults.spurious_wake_rate,
            ]
            .as_slice(),
            &[
                faults.short_call_rate,
                faults.out_of_memory_rate,
                faults.mapping_limit_rate,
                faults.swapped_out_rate,
            ],
        ]
        .concat();
        let settings = [self.settings.freeze_one_in, self.settings.refuse_thread_one_in];
        let count = |parts: &[u64]| parts.iter().filter(|&&part| part > 0).count();
        let of_server = self
            .server
            .clone()
            .map_or(0, |mut server| server.faults().iter().filter(|part| ***part > 0).count());
        let actions: usize = self.threads.iter().map(Vec::len).sum();
        actions
            + self.threads.len()
            + count(&parts)
            + count(&settings)
            + faults.bad_pages.len()
            + of_server
    }

    /// Returns the first of several schedules with which it fails.
    fn first_failure(&self, run: ScenarioRunner<'_>) -> Option<(Scenario, Report)> {
        (0..SCHEDULES_PER_SCENARIO).find_map(|more| {
            let scenario = Scenario { seed: self.seed.wrapping_add(more), ..self.clone() };
            let report = run(&scenario);
            report.failure.is_some().then_some((scenario, report))
        })
    }

    /// Removes faults while the scenario still fails.
    fn without_faults(self, report: Report, run: ScenarioRunner<'_>) -> (Scenario, Report) {
        let mut best = (self.clone(), report);
        let changes: [fn(&mut Scenario); 13] = [
            |of| of.faults.error_rate = 0,
            |of| of.faults.short_rate = 0,
            |of| of.faults.retry_rate = 0,
            |of| of.faults.delay_rate = 0,
            |of| of.faults.spurious_wake_rate = 0,
            |of| of.faults.dies_after = 0,
            |of| of.faults.short_call_rate = 0,
            |of| of.faults.out_of_memory_rate = 0,
            |of| of.faults.mapping_limit_rate = 0,
            |of| of.faults.swapped_out_rate = 0,
            |of| of.faults.bad_pages.clear(),
            |of| of.settings.freeze_one_in = 0,
            |of| of.settings.refuse_thread_one_in = 0,
        ];
        for change in changes {
            let mut shorter = best.0.clone();
            change(&mut shorter);
            best = shorter.first_failure(run).unwrap_or(best);
        }
        let count = self.server.clone().map_or(0, |mut server| server.faults().len());
        for fault in 0..count {
            let mut shorter = best.0.clone();
            if let Some(server) = &mut shorter.server {
                *server.faults()[fault] = 0;
            }
            best = shorter.first_failure(run).unwrap_or(best);
        }
        best
    }

    /// Removes threads and actions while the scenario still fails.
    fn without_actions(self, report: Report, run: ScenarioRunner<'_>) -> (Scenario, Report) {
        let mut best = (self, report);
        let mut thread = 0;
        while thread < best.0.threads.len() {
            let mut shorter = best.0.clone();
            shorter.threads.remove(thread);
            match shorter.first_failure(run) {
                Some(found) => best = found,
                None => thread += 1,
            }
        }
        for thread in 0..best.0.threads.len() {
            let mut count = best.0.threads[thread].len();
            while count > 0 {
                let mut at = 0;
                while at < best.0.threads[thread].len() {
                    let mut shorter = best.0.clone();
                    let actions = &mut shorter.threads[thread];
                    actions.drain(at..(at + count).min(actions.len()));
                    match shorter.first_failure(run) {
                        Some(found) => best = found,
                        None => at += count,
                    }
                }
                count /= 2;
            }
            best = best.0.with_fewer_reads(thread, best.1, run);
        }
        best
    }

    /// Removes reads from each batch and each group of futures.
    fn with_fewer_reads(
        self,
        thread: usize,
        report: Report,
        run: ScenarioRunner<'_>,
    ) -> (Scenario, Report) {
        let mut best = (self, report);
        for action in 0..best.0.threads[thread].len() {
            let mut at = 0;
            loop {
                let mut shorter = best.0.clone();
                let (Action::Batch(places, ..) | Action::Futures(places, ..)) =
                    &mut shorter.threads[thread][action]
                else {
                    break;
                };
                if at >= places.len() || places.len() == 1 {
                    break;
                }
                places.remove(at);
                match shorter.first_failure(run) {
                    Some(found) => best = found,
                    None => at += 1,
                }
            }
        }
        best
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

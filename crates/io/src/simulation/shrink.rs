//! Shortens a scenario that fails: removes threads, actions and faults while it still fails.
//!
//! A removal changes the schedule of everything after it. Each shorter scenario is therefore tried
//! with several schedules, and accepted if one of them fails.

use super::scenario::{Action, Scenario};
use super::world::Report;

/// Number of schedules for each shorter scenario.
const SCHEDULES: u64 = 40;

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
            let before = best.0.size();
            best = best.0.without_faults(best.1, run);
            let (scenario, report) = best;
            best = scenario.without_actions(report, run);
            if best.0.size() == before {
                return best;
            }
        }
    }

    /// Number of actions, threads and faults.
    fn size(&self) -> usize {
        let faults = &self.faults;
        let parts = [
            [faults.fails, faults.stops, faults.again, faults.late, faults.wakes].as_slice(),
            &[faults.calls_stop, faults.no_memory, faults.no_parts, faults.swapped],
        ]
        .concat();
        let settings = [self.settings.freeze_part, self.settings.refuse_thread_part];
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
            + faults.bad.len()
            + of_server
    }

    /// Returns the first of several schedules with which it fails.
    fn fails(&self, run: ScenarioRunner<'_>) -> Option<(Scenario, Report)> {
        (0..SCHEDULES).find_map(|more| {
            let scenario = Scenario { seed: self.seed.wrapping_add(more), ..self.clone() };
            let report = run(&scenario);
            report.failure.is_some().then_some((scenario, report))
        })
    }

    /// Removes faults while the scenario still fails.
    fn without_faults(self, report: Report, run: ScenarioRunner<'_>) -> (Scenario, Report) {
        let mut best = (self.clone(), report);
        let changes: [fn(&mut Scenario); 13] = [
            |of| of.faults.fails = 0,
            |of| of.faults.stops = 0,
            |of| of.faults.again = 0,
            |of| of.faults.late = 0,
            |of| of.faults.wakes = 0,
            |of| of.faults.dies_after = 0,
            |of| of.faults.calls_stop = 0,
            |of| of.faults.no_memory = 0,
            |of| of.faults.no_parts = 0,
            |of| of.faults.swapped = 0,
            |of| of.faults.bad.clear(),
            |of| of.settings.freeze_part = 0,
            |of| of.settings.refuse_thread_part = 0,
        ];
        for change in changes {
            let mut shorter = best.0.clone();
            change(&mut shorter);
            best = shorter.fails(run).unwrap_or(best);
        }
        let count = self.server.clone().map_or(0, |mut server| server.faults().len());
        for fault in 0..count {
            let mut shorter = best.0.clone();
            if let Some(server) = &mut shorter.server {
                *server.faults()[fault] = 0;
            }
            best = shorter.fails(run).unwrap_or(best);
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
            match shorter.fails(run) {
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
                    match shorter.fails(run) {
                        Some(found) => best = found,
                        None => at += count,
                    }
                }
                count /= 2;
            }
            best = best.0.with_fewer_places(thread, best.1, run);
        }
        best
    }

    /// Removes reads from each batch and each group of futures.
    fn with_fewer_places(
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
                match shorter.fails(run) {
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

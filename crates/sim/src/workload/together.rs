//! Dependencies between processes: jobs that end together, jobs that wait for others, and shares of
//! a flow.
//!
//! All of them are flags or counters that the processes share. They work in virtual time and among
//! threads. The order `Relaxed` suffices, because no other data is read on their account.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::job::{ExitScope, FlowShareRule, Job};

/// Dependencies of one process.
#[derive(Clone, Debug, Default)]
pub struct ProcessDependencies {
    /// Processes that the end of this one ends.
    exit_scope: ExitScope,
    /// Flags that end all processes, its phase, or its reporting group, in this order. A phase has
    /// the jobs between two `stonewall` options.
    end_flags: [Arc<AtomicBool>; 3],
    /// Number of processes of its own job that have not ended.
    unended_in_job: Arc<AtomicU64>,
    /// Number of processes that have not ended, of the job that this process waits for.
    unended_in_awaited_job: Option<Arc<AtomicU64>>,
    /// Share in a flow, if the job has one.
    flow: Option<FlowShare>,
}

/// Share of one process in a flow. A *flow* divides operations among processes by their weights.
#[derive(Clone, Debug)]
struct FlowShare {
    /// Flow number, weight and wait time.
    rule: FlowShareRule,
    /// Operations issued by this process.
    own_operations: u64,
    /// Totals of the flow, which all its processes share.
    all: Arc<FlowTotals>,
}

/// Totals of a flow.
#[derive(Debug, Default)]
struct FlowTotals {
    /// Sum of the weights of all processes that have not ended.
    weight: AtomicU64,
    /// Operations issued by these processes.
    operations: AtomicU64,
}

impl ProcessDependencies {
    /// Returns true if the end of another process has ended this one: one of its flags is set.
    pub fn is_ended_by_other(&self) -> bool {
        self.end_flags.iter().any(|end| end.load(Ordering::Relaxed))
    }

    /// Returns true if the job that this process waits for has processes that have not ended.
    pub fn is_waiting(&self) -> bool {
        self.unended_in_awaited_job.as_ref().is_some_and(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Returns the flow, with its wait time, if the process has issued more than its share of the
    /// operations. `None` if it may issue another one, or has no flow.
    pub fn flow_if_ahead(&self) -> Option<FlowShareRule> {
        let share = self.flow.as_ref()?;
        let all_done = u128::from(share.all.operations.load(Ordering::Relaxed));
        let all_weight = u128::from(share.all.weight.load(Ordering::Relaxed));
        let is_ahead = u128::from(share.own_operations) * all_weight
            > u128::from(share.rule.weight) * all_done;
        is_ahead.then_some(share.rule)
    }

    /// Counts an issued operation in the process's flow, if it has one.
    pub fn on_issue(&mut self) {
        if let Some(share) = &mut self.flow {
            share.own_operations += 1;
            share.all.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the end of the process. Ends the other processes that the exit scope names, frees
    /// processes that wait for its job, and leaves the flow.
    pub fn record_end(&mut self) {
        let flag_index = match self.exit_scope {
            ExitScope::OnlyItself => None,
            ExitScope::All => Some(0),
            ExitScope::Phase => Some(1),
            ExitScope::Group => Some(2),
        };
        if let Some(index) = flag_index {
            self.end_flags[index].store(true, Ordering::Relaxed);
        }
        self.unended_in_job.fetch_sub(1, Ordering::Relaxed);
        if let Some(share) = self.flow.take() {
            // The others share only the operations that they issue themselves.
            share.all.weight.fetch_sub(u64::from(share.rule.weight), Ordering::Relaxed);
            share.all.operations.fetch_sub(share.own_operations, Ordering::Relaxed);
        }
    }
}

/// Builds the dependencies of all processes of a workload, in the order of its jobs.
#[derive(Default)]
pub struct DependencyBuilder {
    /// Flag that ends all processes.
    all_end: Arc<AtomicBool>,
    /// Flags that end the processes of a phase, by its number.
    phase_ends: BTreeMap<u32, Arc<AtomicBool>>,
    /// Number of the present reporting group.
    group: u32,
    /// Flags that end the processes of a reporting group, by its number.
    group_ends: BTreeMap<u32, Arc<AtomicBool>>,
    /// Number of processes of each job that have not ended, by its name. The last one of
    /// several jobs with one name counts.
    unended: BTreeMap<String, Arc<AtomicU64>>,
    /// Totals of the flows, by their numbers.
    flows: BTreeMap<u32, Arc<FlowTotals>>,
}

impl DependencyBuilder {
    /// Returns the dependencies of one process of the next job, which runs in phase number `phase`.
    /// The other processes of the job use clones. The weights of all of them are added to the flow
    /// here. A job with `is_new_group` or `has_stonewall` begins the next reporting group.
    ///
    /// # Errors
    /// Returns the name of a job that it waits for and that does not precede it.
    pub fn add_job(&mut self, job: &Job, phase: u32) -> Result<ProcessDependencies, String> {
        if job.is_new_group || job.has_stonewall {
            self.group += 1;
        }
        let unended_in_awaited_job = match &job.wait_for {
            None => None,
            Some(name) => Some(self.unended.get(name).ok_or_else(|| name.clone())?.clone()),
        };
        let unended = Arc::new(AtomicU64::new(u64::from(job.processes)));
        self.unended.insert(job.name.clone(), unended.clone());
        let flow = job.flow.map(|rule| {
            let total = self.flows.entry(rule.id).or_default().clone();
            let weight = u64::from(rule.weight) * u64::from(job.processes);
            total.weight.fetch_add(weight, Ordering::Relaxed);
            FlowShare { rule, own_operations: 0, all: total }
        });
        Ok(ProcessDependencies {
            exit_scope: job.exit_scope,
            end_flags: [
                self.all_end.clone(),
                self.phase_ends.entry(phase).or_default().clone(),
                self.group_ends.entry(self.group).or_default().clone(),
            ],
            unended_in_job: unended,
            unended_in_awaited_job,
            flow,
        })
    }
}

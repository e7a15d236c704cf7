//! The benchmarks of what the laws cost, in their smoke size: they run to their end.
//! Times are not looked at.

#[path = "../../examples/readahead_cost.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod readahead_cost;
#[path = "../../examples/scheduler_cost.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod scheduler_cost;

#[test]
fn the_cost_benchmarks_run() {
    scheduler_cost::table(300);
    readahead_cost::table(300);
}

//! The benchmark of `examples/scheduler_cost.rs` in its smoke size: it runs to
//! its end. Times are not looked at.

#[path = "../../examples/scheduler_cost.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod scheduler_cost;

#[test]
fn the_cost_benchmark_runs() {
    scheduler_cost::table(300);
}

//! The policies `cfq` and `bfq` in virtual time.

mod bfq;
mod conservation;
mod cooperators;
mod devices;
mod golden;
mod parameters;
mod path;
mod preemption;
mod priorities;
mod rig;
mod spindles;
mod starvation;
mod turns;

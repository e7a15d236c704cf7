//! The law `cfq` in virtual time.

mod golden;
mod priorities;
mod rig;
mod spindles;

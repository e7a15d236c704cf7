//! Pages that are lent to readers past the machine.

mod cache;
mod clerk;
#[path = "../common/mod.rs"]
mod common;
mod held;
mod requests;

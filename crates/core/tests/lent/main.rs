//! Pages that are lent to readers past the machine.

mod cache;
#[path = "../common/mod.rs"]
mod common;
mod held;
mod lender;
mod requests;

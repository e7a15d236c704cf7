//! Pages that are lent to readers past the machine.

mod cache;
mod held;
mod lender;
mod requests;

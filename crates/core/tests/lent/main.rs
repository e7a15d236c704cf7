//! Pages that are shared with readers outside the machine.

mod cache;
mod held;
mod lender;
mod requests;

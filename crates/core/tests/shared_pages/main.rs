//! Pages that are shared with readers outside the machine.

mod cache;
mod pinned;
mod requests;
mod sharer;

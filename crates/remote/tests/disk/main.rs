//! The disk tier: bytes of kept blocks without requests, within the budget, after damage, kills and
//! failures of the folder.

mod children;
mod costs;
mod damage;
mod figures;
mod files;
mod folders;
mod kept;
mod killed;
mod place;
#[path = "../store/support.rs"]
#[allow(dead_code)]
mod support;

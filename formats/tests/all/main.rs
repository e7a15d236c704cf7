//! Readers of file formats over the planned store: requests and bytes in virtual time, and faults
//! of a local server.

mod counts;
mod faults;
#[path = "../../../crates/remote/tests/store/support.rs"]
#[allow(dead_code)]
mod support;

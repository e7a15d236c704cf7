//! The `readpath` command.
fn main() {}

//! The command `readpath`.

use std::process::ExitCode;

fn main() -> ExitCode {
    readpath_cli::main()
}

//! `readpath explain`: what is wrong with a program's reads.

use std::path::PathBuf;

use clap::Args;

use crate::exit::Ended;

/// `readpath explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The recording
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// Print one JSON document in place of the text
    #[arg(long)]
    pub json: bool,
}

/// Explains.
pub fn run(args: &ExplainArgs) -> Ended {
    let _ = args;
    Ok(())
}

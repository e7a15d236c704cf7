//! `readpath reproduce`: the sources' tables, published beside modelled.

use crate::args::ReproduceArgs;
use crate::exit::Ended;

/// Prints the tables that are named, or all that there are.
pub fn run(_args: &ReproduceArgs) -> Ended {
    Ok(())
}

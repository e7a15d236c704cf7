//! `readpath laws`: what there is, one line each; one in full.

use readpath_core::law::{Law, SpecError};
use readpath_core::{cache, readahead, scheduler};

use crate::args::NameArgs;
use crate::exit::{Ended, Failure};

/// The laws by what they decide.
const KINDS: [(&str, &[Law]); 3] =
    [("readahead", readahead::LAWS), ("scheduler", scheduler::LAWS), ("reclaim", cache::LAWS)];

/// Prints the list, or one law in words.
pub fn run(args: &NameArgs) -> Ended {
    match &args.name {
        None => list(),
        Some(name) => return tell(name),
    }
    Ok(())
}

fn list() {
    for (kind, laws) in KINDS {
        println!("{kind}:");
        laws.iter().for_each(|law| println!("  {:14} {}", law.name, law.line));
    }
    println!("\n`readpath laws NAME` tells one in full.");
}

fn tell(name: &str) -> Ended {
    let all = || KINDS.iter().flat_map(|(kind, laws)| laws.iter().map(move |law| (kind, law)));
    let Some((kind, law)) = all().find(|(_, law)| law.name == name) else {
        let known = all().map(|(_, law)| law.name).collect();
        let name = name.to_owned();
        return Err(Failure::usage(SpecError::UnknownName { kind: "law", name, known }));
    };
    println!("{} ({kind}): {}\n", law.name, law.line);
    law.page().for_each(|line| println!("{line}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_law_has_a_page() {
        for law in KINDS.iter().flat_map(|(_, laws)| laws.iter()) {
            assert!(law.page().count() > 3, "{} has no page", law.name);
        }
    }
}

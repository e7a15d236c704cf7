//! `readpath laws`: what there is, one line each; one in full.

use readpath_core::law::{Law, SpecError};
use readpath_core::{raw, readahead, reclaim, scheduler, swapin};

use crate::args::NameArgs;
use crate::exit::{Ended, Failure};
use crate::output::print;

/// The laws by what they decide.
const KINDS: [(&str, &[Law]); 5] = [
    ("readahead", readahead::LAWS),
    ("swap-in", swapin::LAWS),
    ("scheduler", scheduler::LAWS),
    ("raw", raw::LAWS),
    ("reclaim", reclaim::LAWS),
];

/// Prints the list, or one law in words.
pub fn run(args: &NameArgs) -> Ended {
    match &args.name {
        None => print(&list()),
        Some(name) => print(&page(name)?),
    }
}

fn list() -> String {
    let mut text = String::new();
    for (kind, laws) in KINDS {
        text += &format!("{kind}:\n");
        for law in laws {
            text += &format!("  {:14} {}\n", law.name, law.line);
        }
    }
    text + "\n`readpath laws NAME` tells one in full.\n"
}

fn page(name: &str) -> Result<String, Failure> {
    let all = || KINDS.iter().flat_map(|(kind, laws)| laws.iter().map(move |law| (kind, law)));
    // `none` is a law of readahead and one of swap-in.
    let pages: Vec<String> = all()
        .filter(|(_, law)| law.name == name)
        .map(|(kind, law)| {
            let lines: Vec<&str> = law.page().collect();
            format!("{} ({kind}): {}\n\n{}\n", law.name, law.line, lines.join("\n"))
        })
        .collect();
    if pages.is_empty() {
        let known = all().map(|(_, law)| law.name).collect();
        let name = name.to_owned();
        return Err(Failure::usage(SpecError::UnknownName { kind: "law", name, known }));
    }
    Ok(pages.join("\n"))
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

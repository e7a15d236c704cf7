//! `readpath laws`: what there is, one line each; one in full, and in a picture.

use readpath_core::law::{Law, SpecError};
use readpath_core::{raw, readahead, reclaim, scheduler, swapin};

use crate::args::LawsArgs;
use crate::exit::{Ended, Failure};
use crate::output::print;

mod lesson;
mod picture;

/// What a law decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Readahead,
    SwapIn,
    Scheduler,
    Raw,
    Reclaim,
}

/// The laws by what they decide.
const KINDS: [(Kind, &str, &[Law]); 5] = [
    (Kind::Readahead, "readahead", readahead::LAWS),
    (Kind::SwapIn, "swap-in", swapin::LAWS),
    (Kind::Scheduler, "scheduler", scheduler::LAWS),
    (Kind::Raw, "raw", raw::LAWS),
    (Kind::Reclaim, "reclaim", reclaim::LAWS),
];

/// One law of a kind.
struct Found {
    kind: Kind,
    kind_name: &'static str,
    law: &'static Law,
}

/// Prints the list, or one law in words, or draws what it does.
pub fn run(args: &LawsArgs) -> Ended {
    let Some(name) = &args.name else { return print(&list()) };
    let found = find(name)?;
    let Some(file) = &args.picture else { return print(&page(&found)) };
    let [found] = &found[..] else {
        let names: Vec<String> =
            found.iter().map(|found| format!("{}/{}", found.kind_name, found.law.name)).collect();
        return Err(Failure::Usage(format!(
            "{name}: laws of {} kinds have this name, and a picture is of one; name {}",
            names.len(),
            names.join(" or ")
        )));
    };
    let scene = lesson::of(found.kind, found.law.name).map_err(Failure::usage)?;
    std::fs::write(file, picture::svg(&scene)).map_err(|error| {
        Failure::Usage(format!(
            "--picture {}: {error}; name a file that can be written",
            file.display()
        ))
    })?;
    print(&format!("{}: {}\n", file.display(), scene.told))
}

fn list() -> String {
    let mut text = String::new();
    for (_, kind, laws) in KINDS {
        text += &format!("{kind}:\n");
        for law in laws {
            text += &format!("  {:14} {}\n", law.name, law.line);
        }
    }
    text + "\n`readpath laws NAME` tells one in full.\n"
}

/// The laws of this name: `none` is a law of readahead and one of swap-in, `swap-in/none` one alone.
fn find(name: &str) -> Result<Vec<Found>, Failure> {
    let all = || {
        KINDS.iter().flat_map(|&(kind, kind_name, laws)| {
            laws.iter().map(move |law| Found { kind, kind_name, law })
        })
    };
    let (kind, plain) =
        name.split_once('/').map_or((None, name), |(kind, name)| (Some(kind), name));
    let found: Vec<Found> = all()
        .filter(|found| found.law.name == plain && kind.is_none_or(|kind| kind == found.kind_name))
        .collect();
    if found.is_empty() {
        let known = all().map(|found| found.law.name).collect();
        let name = name.to_owned();
        return Err(Failure::usage(SpecError::UnknownName { kind: "law", name, known }));
    }
    Ok(found)
}

fn page(found: &[Found]) -> String {
    let pages: Vec<String> = found
        .iter()
        .map(|Found { kind_name, law, .. }| {
            let lines: Vec<&str> = law.page().collect();
            format!("{} ({kind_name}): {}\n\n{}\n", law.name, law.line, lines.join("\n"))
        })
        .collect();
    pages.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_law_has_a_page() {
        for law in KINDS.iter().flat_map(|(_, _, laws)| laws.iter()) {
            assert!(law.page().count() > 3, "{} has no page", law.name);
        }
    }

    #[test]
    fn a_name_that_two_kinds_have_is_told_apart_by_the_kind() {
        let kinds = |name: &str| -> Vec<Kind> {
            find(name).unwrap().iter().map(|found| found.kind).collect()
        };
        assert_eq!(kinds("none"), [Kind::Readahead, Kind::SwapIn]);
        assert_eq!(kinds("swap-in/none"), [Kind::SwapIn]);
        assert!(find("scheduler/none").is_err());
    }
}

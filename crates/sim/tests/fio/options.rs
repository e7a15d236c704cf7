//! Tables of options and engines, compared with fio's own lists.

use std::process::Command;

use readpath_sim::job::{ENGINES, FioOption, options};

use super::oracle::has_fio;

fn fio_says(argument: &str) -> String {
    let output = Command::new("fio").arg(argument).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Names in a list printed by fio: each at the start of a line, followed by a colon.
fn names(list: &str) -> Vec<String> {
    let is_name = |name: &&str| {
        !name.is_empty()
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
    };
    let named = list.lines().filter_map(|line| line.split_once(':'));
    named.map(|(name, _)| name.trim()).filter(is_name).map(str::to_owned).collect()
}

fn engines() -> Vec<String> {
    let list = fio_says("--enghelp");
    list.lines()
        .skip(1)
        .map(|line| line.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_option_of_fio_is_known() {
    if !has_fio() {
        return;
    }
    let mut listed = names(&fio_says("--cmdhelp=all"));
    assert!(listed.len() > 200, "fio lists its options");
    for engine in engines() {
        listed.extend(names(&fio_says(&format!("--enghelp={engine}"))));
    }
    let unknown: Vec<&String> =
        listed.iter().filter(|name| FioOption::find(name).is_none()).collect();
    assert_eq!(unknown, Vec::<&String>::new());
}

#[test]
fn every_engine_of_fio_is_known() {
    if !has_fio() {
        return;
    }
    let listed = engines();
    assert!(listed.len() > 20, "fio lists its engines");
    let is_known = |name: &String| ENGINES.iter().any(|engine| engine.name == name);
    let unknown: Vec<String> = listed.into_iter().filter(|name| !is_known(name)).collect();
    assert_eq!(unknown, Vec::<String>::new());
}

/// fio's help on an option contains `alias: NAME`.
#[test]
fn option_aliases_match_fio() {
    if !has_fio() {
        return;
    }
    for option in options() {
        let fio_help = fio_says(&format!("--cmdhelp={}", option.name));
        // For an unknown option fio prints the closest one.
        if fio_help.contains("closest match") {
            continue;
        }
        let alias = fio_help.lines().find_map(|line| line.trim().strip_prefix("alias:"));
        if let Some(alias) = alias {
            assert!(option.aliases.contains(&alias.trim()), "{} is {alias} too", option.name);
        }
    }
}

//! `--fio-options`: the handling of each option and engine of fio.

use readpath_sim::job::{ENGINES, EngineClass, FioEngine, FioOption, OptionClass, options};

use crate::exit::CommandResult;
use crate::output::print;
use crate::table::{Column, Table};

/// Columns of the table of options.
const OPTION_COLUMNS: [Column<&FioOption>; 3] = [
    ("option", |option| {
        let names = [option.name].into_iter().chain(option.aliases.iter().copied());
        names.collect::<Vec<&str>>().join(", ")
    }),
    ("class", |option| {
        let class = match option.class {
            OptionClass::Honoured { .. } => "honoured",
            OptionClass::WithoutEffect { .. } => "without effect",
            OptionClass::Refused { .. } => "refused",
        };
        class.to_owned()
    }),
    ("accepted values, or reason", |option| {
        let (OptionClass::Honoured { takes: text }
        | OptionClass::WithoutEffect { because: text }
        | OptionClass::Refused { because: text }) = option.class;
        text.to_owned()
    }),
];

/// Columns of the table of engines.
const ENGINE_COLUMNS: [Column<FioEngine>; 3] = [
    ("ioengine", |engine| engine.name.to_owned()),
    ("class", |engine| match engine.class {
        EngineClass::Supported(_) => "honoured".to_owned(),
        EngineClass::Replaced { replacement, .. } => format!("run as {}", replacement.name()),
        EngineClass::Refused { .. } => "refused".to_owned(),
    }),
    ("why", |engine| match engine.class {
        EngineClass::Supported(_) => String::new(),
        EngineClass::Replaced { difference, .. } => difference.to_owned(),
        EngineClass::Refused { because } => because.to_owned(),
    }),
];

/// Prints the table of options and the table of engines.
pub fn print_all() -> CommandResult {
    let fio_options: Vec<&FioOption> = options().collect();
    // Behind the last column: all are text.
    let numbers_from = 3;
    print(&Table::of(&fio_options, &OPTION_COLUMNS, numbers_from).to_string())?;
    print("\n")?;
    print(&Table::of(ENGINES, &ENGINE_COLUMNS, numbers_from).to_string())
}

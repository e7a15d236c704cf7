//! `readpath completions` and `readpath man`: shell completions and manual pages, generated from
//! the command line's definition.

use std::path::Path;

use clap::CommandFactory;

use crate::args::{CompletionsArgs, ManArgs};
use crate::commands::Cli;
use crate::exit::{CommandResult, Failure};
use crate::output::{print, print_plain};

/// Prints the completion script of a shell.
pub fn print_completions(args: &CompletionsArgs) -> CommandResult {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "readpath", &mut text);
    print_plain(&String::from_utf8(text).expect("completions are UTF-8"))
}

/// Writes a manual page for the command and for each visible subcommand, also of a subcommand, and
/// prints their number.
pub fn write_manual(args: &ManArgs) -> CommandResult {
    let failure = |path: &Path, error| {
        Failure::Usage(format!("{}: {error}; name a folder that can be written", path.display()))
    };
    std::fs::create_dir_all(&args.folder).map_err(|error| failure(&args.folder, error))?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut commands = vec![("readpath".to_owned(), &root)];
    let mut page_count = 0;
    while let Some((name, command)) = commands.pop() {
        let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
        commands
            .extend(subcommands.map(|command| (format!("{name}-{}", command.get_name()), command)));
        let path = args.folder.join(format!("{name}.1"));
        let mut page = Vec::new();
        // `man` finds a page by its name; clap's own display name contains a space.
        clap_mangen::Man::new(command.clone().display_name(name.clone()))
            .title(name)
            .render(&mut page)
            .expect("memory takes what is written");
        std::fs::write(&path, page).map_err(|error| failure(&path, error))?;
        page_count += 1;
    }
    print(&format!("{}: {page_count} pages\n", args.folder.display()))
}

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

/// Writes a manual page for the command and for each visible subcommand, at every depth, and prints
/// the number of pages.
pub fn write_manual(args: &ManArgs) -> CommandResult {
    let failure = |path: &Path, error| {
        Failure::Usage(format!("{}: {error}; name a folder that can be written", path.display()))
    };
    std::fs::create_dir_all(&args.folder).map_err(|error| failure(&args.folder, error))?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut commands = vec![&root];
    let mut page_count = 0;
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().filter(|command| !command.is_hide_set()));
        let page = clap_mangen::Man::new(command.clone());
        let path = args.folder.join(page.get_filename());
        page.generate_to(&args.folder).map_err(|error| failure(&path, error))?;
        page_count += 1;
    }
    print(&format!("{}: {page_count} pages\n", args.folder.display()))
}

//! Commands of `readpath`, by user, and the subcommands of those that have any.

use clap::{Args, Parser, Subcommand};

use crate::args::{
    BenchArgs, CachesimArgs, CheckKernelArgs, CompletionsArgs, EmulateArgs, EvalEvictionArgs,
    ManArgs, NameArgs, PoliciesArgs, ReplayArgs, ReproduceArgs, RunArgs, ValidateArgs,
};
use crate::eval_policies::EvalPoliciesArgs;
use crate::explain::ExplainArgs;
use crate::input::path_argument_parser;
use crate::measure::MeasureArgs;
use crate::record::{AdviseArgs, RecordArgs};
use crate::recordings::RecordingCommand;
use crate::top::TopArgs;
use crate::worker::WorkerTask;

/// Find out why a program waits for storage, help it, and compare policies and devices.
#[derive(Debug, Parser)]
#[command(name = "readpath", version, arg_required_else_help = true, max_term_width = 100)]
#[command(help_template = "{about}\n\n{usage-heading} {usage}\n{before-help}\n\
    Options:\n{options}{after-help}")]
#[command(before_help = GROUPS)]
#[command(
    after_help = "Exit codes: 0 done; 1 some operations failed, or compared things differ; 2 bad input;\n\
    3 this system lacks something that the command needs; 130 interrupted.\n\n\
    `readpath COMMAND --help` has examples. The book:\n\
    https://github.com/readpath/readpath/blob/main/book/src/introduction.md"
)]
pub struct Cli {
    /// Show all columns of a table in a terminal. By default a table fits into its width
    #[arg(long, global = true)]
    pub wide: bool,
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands by user. A test compares the names with the subcommands of [`Command`].
pub const GROUPS: &str = "
My program waits for storage:
  explain       say why a program waits, and what would help
  top           show which programs wait for which files, now
  record        record what a program reads, into a file
  recording     show, cut, merge, anonymize, import and export recordings
  advise        bring pages into the page cache ahead of a program's reads
  replay        make recorded reads again on another device, policy or memory
  bench         compare access patterns with pread, mmap and O_DIRECT in a folder

Jobs and models:
  run           run a fio job, a load on memory or a trace; one row per storage and policy
  devices       list and show modelled devices; measure and validate real ones
  emulate       put a modelled device behind a file, in real time
  reproduce     print the tables of the five sources, published next to modelled

Policies and research:
  policies      list the policies, or print one in full
  cachesim      print miss ratios of eviction policies on block traces
  eval          compare the adaptive policies with the best baseline of each cell
  check-kernel  compare the policy `ondemand` with the running kernel, read by read

Shell:
  completions   print the completions of a shell
  man           write the manual pages into a folder

Start with:
  readpath explain -- COMMAND
  readpath run examples/quickstart.fio --on hdd,ssd
";

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Explain why a program waits for storage, and suggest remedies
    Explain(ExplainArgs),
    /// Show which programs wait for which files, now
    Top(TopArgs),
    /// Record the reads of an unmodified program into a file
    Record(RecordArgs),
    /// Show, cut, merge, anonymize, import and export recordings
    #[command(subcommand)]
    Recording(RecordingCommand),
    /// Bring pages into the page cache ahead of a program's reads
    Advise(AdviseArgs),
    /// Repeat recorded reads on modelled or real storage, or print a scheduler's decisions
    Replay(ReplayArgs),
    /// Compare access patterns of programs with pread, mmap and O_DIRECT, in a folder
    Bench(BenchArgs),
    /// Run a fio job, loads on memory, or a trace: one row per storage and policies
    Run(RunArgs),
    /// List and show modelled devices, measure real storage, validate a model
    Devices(DevicesArgs),
    /// Emulate a modelled device as a file, in real time, for any program
    Emulate(EmulateArgs),
    /// Print tables of published figures next to the modelled ones
    Reproduce(ReproduceArgs),
    /// List the policies, or print one in full
    Policies(PoliciesArgs),
    /// Print miss ratios of eviction policies on block traces, next to Belady's optimum
    Cachesim(CachesimArgs),
    /// Compare the adaptive policies with the best baseline of each cell of a matrix
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Compare the policy `ondemand` with the running kernel, read by read
    CheckKernel(CheckKernelArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Write the manual pages, one for each subcommand, into a folder
    Man(ManArgs),
    /// Do one part of a run in a process of its own; started by other commands
    #[command(hide = true)]
    Worker {
        /// Task of the process
        task: WorkerTask,
    },
}

/// `readpath devices`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  \
    readpath devices\n  \
    readpath devices show nvme\n  \
    readpath devices measure /mnt/data --toml mine.toml")]
pub struct DevicesArgs {
    /// List, show, measure or validate.
    #[command(subcommand)]
    pub command: Option<DevicesCommand>,
    /// A device to show, as with `show`
    #[arg(value_name = "NAME", value_parser = path_argument_parser())]
    pub name: Option<String>,
}

/// Subcommands of `readpath devices`.
#[derive(Debug, Subcommand)]
pub enum DevicesCommand {
    /// List the modelled devices
    List,
    /// Print every parameter of a modelled device, with unit and source
    Show(NameArgs),
    /// Measure real storage gently, and describe it as a device that `--on` takes
    Measure(MeasureArgs),
    /// Compare a modelled disk with a trace of service times measured on the real one
    Validate(ValidateArgs),
}

/// Subcommands of `readpath eval`.
#[derive(Debug, Subcommand)]
pub enum EvalCommand {
    /// Compare `adaptive` with the best baseline readahead policy and scheduler of each cell
    Policies(EvalPoliciesArgs),
    /// Compare the eviction policy `adaptive` with the best other policy in each load
    Eviction(EvalEvictionArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_passes_claps_checks() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn groups_of_the_help_name_every_command() {
        use clap::CommandFactory;
        let command = Cli::command();
        let listed: Vec<&str> = GROUPS
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
            .filter(|word| *word != "readpath")
            .collect();
        let visible: Vec<&str> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        assert_eq!(listed, visible);
    }
}

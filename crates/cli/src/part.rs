//! A process of this same program that does one part of a run, and the talk with it.
//!
//! It is started by a hidden subcommand, takes orders as lines of JSON on its standard input, and
//! answers so on its standard output. Before the first line comes it has done nothing, so that whoever
//! started it can put it into a memory cgroup.

use std::io::{self, BufRead, BufReader, Lines, StdinLock, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use readpath_sim::path_text;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exit::{CommandResult, Failure};
use crate::progress::Interrupt;

/// The longest wait between two looks at whether the run is to end.
const NAP: Duration = Duration::from_millis(50);

/// One process, and what it says. It is killed and waited for when this is dropped.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    answers: Receiver<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Gone {
    /// The process has ended before it gave one.
    Process(ExitStatus),
    /// It said something else, or can't be waited for.
    Said(String),
    /// Time was up.
    TooLate,
    /// Somebody wants the whole run to end.
    Interrupted,
}

impl WorkerProcess {
    /// Starts this program with the subcommand.
    pub fn start(subcommand: &str) -> io::Result<WorkerProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(subcommand)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process, which then ends that one.
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take().expect("it is piped");
        let (sender, answers) = mpsc::channel();
        // Ends when the process does, or when nobody listens any more.
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            let _ = lines.into_iter().try_for_each(|line| sender.send(line));
        });
        Ok(WorkerProcess { child, answers })
    }

    /// The number by which the system knows it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives it an order.
    pub fn tell(&mut self, order: &impl Serialize) -> io::Result<()> {
        let order = serde_json::to_string(order).expect("orders are plain data");
        let input = self.child.stdin.as_mut().expect("it is piped, and never taken");
        writeln!(input, "{order}")
    }

    /// Waits for its next answer, until `deadline` if there is one.
    pub fn answer<A: DeserializeOwned>(
        &mut self,
        deadline: Option<Instant>,
        interrupt: &Interrupt,
    ) -> Result<A, Gone> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.answers.recv_timeout(left.unwrap_or(NAP).min(NAP)) {
                Ok(line) => {
                    let answer = serde_json::from_str(&line);
                    return answer.map_err(|error| Gone::Said(format!("`{line}`: {error}")));
                }
                Err(_) if interrupt.has_come() => return Err(Gone::Interrupted),
                Err(RecvTimeoutError::Timeout) if left == Some(Duration::ZERO) => {
                    return Err(Gone::TooLate);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    return Err(
                        status.map_or_else(|error| Gone::Said(error.to_string()), Gone::Process)
                    );
                }
            }
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Both fail only for a process that is no more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A path in an order, whatever bytes it has.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct OrderPath(pub PathBuf);

impl From<String> for OrderPath {
    fn from(text: String) -> OrderPath {
        OrderPath(path_text::decode(&text))
    }
}

impl From<OrderPath> for String {
    fn from(OrderPath(path): OrderPath) -> String {
        path_text::encode(path.as_os_str())
    }
}

/// The other end: what such a process is told.
#[derive(Debug)]
pub struct Orders {
    lines: Lines<StdinLock<'static>>,
    subcommand: &'static str,
    giver: &'static str,
}

impl Orders {
    /// Of the hidden subcommand, which `giver` starts; with whom it ends.
    pub fn take(subcommand: &'static str, giver: &'static str) -> Orders {
        // Whoever gives the orders measures; without them there is nothing to do.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        Orders { lines: io::stdin().lock().lines(), subcommand, giver }
    }

    /// The next order.
    pub fn next<O: DeserializeOwned>(&mut self) -> Result<O, Failure> {
        let Some(Ok(line)) = self.lines.next() else {
            let Orders { subcommand, giver, .. } = self;
            let problem = format!("{subcommand} takes orders from `readpath {giver}`; run that");
            return Err(Failure::Usage(problem));
        };
        serde_json::from_str(&line).map_err(Failure::usage)
    }
}

/// Answers an order.
pub fn say(answer: &impl Serialize) -> CommandResult {
    let line = serde_json::to_string(answer).expect("answers are plain data");
    let mut output = io::stdout().lock();
    let told = writeln!(output, "{line}").and_then(|()| output.flush());
    told.map_err(|error| Failure::Run(format!("standard output: {error}")))
}

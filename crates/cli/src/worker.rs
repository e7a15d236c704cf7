//! Worker process of this program that does one part of a run, and the communication with it.
//!
//! The hidden subcommand `worker` starts the process. The worker reads orders as lines of JSON from
//! standard input, and writes answers to standard output in the same form. Before the first line it
//! does nothing, which allows the parent to put it into a memory cgroup.

use std::io::{self, BufRead, BufReader, Lines, StdinLock, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use readpath_models::path_text;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exit::{CommandResult, Failure};
use crate::progress::Interrupt;

/// Longest wait between two checks of the interrupt. Chosen, not measured.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Task of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkerTask {
    /// Touches memory: one process of a load on memory of `run`.
    Touch,
    /// Makes one measurement of `bench`.
    Bench,
    /// Replays one row of `replay` on real storage.
    Replay,
}

impl WorkerTask {
    /// Name in the arguments.
    fn name(self) -> &'static str {
        match self {
            WorkerTask::Touch => "touch",
            WorkerTask::Bench => "bench",
            WorkerTask::Replay => "replay",
        }
    }

    /// Command that starts the worker.
    fn parent_command(self) -> &'static str {
        match self {
            WorkerTask::Touch => "run",
            WorkerTask::Bench => "bench",
            WorkerTask::Replay => "replay",
        }
    }
}

/// Worker process and the stream of its answers. Dropping it kills the process and waits for its
/// end.
#[derive(Debug)]
pub struct WorkerProcess {
    /// The process, with its standard input for the orders.
    child: Child,
    /// Lines of its standard output.
    answers: Receiver<String>,
}

/// Reason for a missing answer.
#[derive(Debug)]
pub enum AnswerError {
    /// The process ended before it answered.
    Ended(ExitStatus),
    /// The answer is malformed, or waiting for the process failed.
    Malformed(String),
    /// The deadline passed.
    TimedOut,
    /// The whole run was interrupted.
    Interrupted,
}

impl WorkerProcess {
    /// Starts this program as a worker for the task. A thread reads the answers of the worker.
    pub fn start(task: WorkerTask) -> io::Result<WorkerProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["worker", task.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches only the parent process, which then ends the worker.
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take().expect("standard output of the worker is a pipe");
        let (sender, answers) = mpsc::channel();
        // Ends with the process, or when the receiver is dropped.
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            let _ = lines.into_iter().try_for_each(|line| sender.send(line));
        });
        Ok(WorkerProcess { child, answers })
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order to the process.
    pub fn send_order(&mut self, order: &impl Serialize) -> io::Result<()> {
        let order = serde_json::to_string(order).expect("orders are plain data");
        let input = self
            .child
            .stdin
            .as_mut()
            .expect("standard input of the worker is a pipe, which is never taken");
        writeln!(input, "{order}")
    }

    /// Waits for the next answer, until `deadline` if there is one. Fails after an interrupt, at
    /// the deadline, at the end of the process, or if the answer has another form.
    pub fn receive_answer<A: DeserializeOwned>(
        &mut self,
        deadline: Option<Instant>,
        interrupt: &Interrupt,
    ) -> Result<A, AnswerError> {
        loop {
            let time_left =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.answers.recv_timeout(
                time_left.unwrap_or(INTERRUPT_CHECK_INTERVAL).min(INTERRUPT_CHECK_INTERVAL),
            ) {
                Ok(line) => {
                    let answer = serde_json::from_str(&line);
                    return answer
                        .map_err(|error| AnswerError::Malformed(format!("`{line}`: {error}")));
                }
                Err(_) if interrupt.is_signalled() => return Err(AnswerError::Interrupted),
                Err(RecvTimeoutError::Timeout) if time_left == Some(Duration::ZERO) => {
                    return Err(AnswerError::TimedOut);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    return Err(status.map_or_else(
                        |error| AnswerError::Malformed(error.to_string()),
                        AnswerError::Ended,
                    ));
                }
            }
        }
    }
}

impl Drop for WorkerProcess {
    /// Kills the process and waits for its end.
    fn drop(&mut self) {
        // Both calls fail only for an ended process. The wait leaves no zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of any bytes, serialized as text in an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct OrderPath(pub PathBuf);

impl From<String> for OrderPath {
    /// Path of a text in an order.
    fn from(text: String) -> OrderPath {
        OrderPath(path_text::decode(&text))
    }
}

impl From<OrderPath> for String {
    /// Text of a path, which can stand in JSON also if the path is not UTF-8.
    fn from(OrderPath(path): OrderPath) -> String {
        path_text::encode(path.as_os_str())
    }
}

/// Worker's side: the stream of orders.
#[derive(Debug)]
pub struct Orders {
    /// Lines of the standard input, one order each.
    lines: Lines<StdinLock<'static>>,
    /// Task of this process, for the message of a missing order.
    task: WorkerTask,
}

impl Orders {
    /// Takes the standard input of the worker as its orders, locked until the end of the process.
    /// Arranges that this process dies with its parent.
    pub fn from_stdin(task: WorkerTask) -> Orders {
        // A worker without a parent has no orders left.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        Orders { lines: io::stdin().lock().lines(), task }
    }

    /// Waits for the next order and returns it. The end of the input is a failure.
    pub fn next<O: DeserializeOwned>(&mut self) -> Result<O, Failure> {
        let Some(Ok(line)) = self.lines.next() else {
            let (task, parent) = (self.task.name(), self.task.parent_command());
            let problem = format!("worker {task} takes orders from `readpath {parent}`; run that");
            return Err(Failure::Usage(problem));
        };
        serde_json::from_str(&line).map_err(Failure::usage)
    }
}

/// Writes the answer to an order.
pub fn write_answer(answer: &impl Serialize) -> CommandResult {
    let line = serde_json::to_string(answer).expect("answers are plain data");
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{line}").and_then(|()| output.flush());
    written.map_err(|error| Failure::Run(format!("standard output: {error}")))
}

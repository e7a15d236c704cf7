//! `readpath watch`: what a program reads, recorded from outside.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use readpath_peers::kernel_trace::TraceError;
use readpath_peers::usage::CpuTime;
use readpath_peers::watch::{Summary, Watch};
use readpath_sim::job;
use readpath_sim::recording::Writer;

use crate::exit::{Ended, Failure};

/// `readpath watch`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root, tracefs and the events of system calls (exit code 3 without). \
    The recording has the\nnames of files and threads, and which bytes were read when; nothing of \
    what stands in them, and\nno argument of a command.\n\n\
    Examples:\n  \
    readpath watch -o reads.rec -- tar cf /dev/null /usr/share\n  \
    readpath watch --pid 4242 --for 30s\n  \
    readpath explain reads.rec"
)]
pub struct WatchArgs {
    /// Watch this program, and all that it starts, until it ends
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "pid")]
    pub command: Vec<String>,
    /// Watch this process, and all that it starts meanwhile, until it ends
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pub pid: Option<u32>,
    /// Watch no longer than this, in seconds or with a unit; a program that was started runs on
    #[arg(long = "for", value_name = "TIME")]
    pub span: Option<String>,
    /// The recording; one that is there is replaced
    #[arg(short, long, value_name = "FILE", default_value = "readpath.rec")]
    pub output: PathBuf,
}

/// How often the kernel's buffers are read.
const ROUND: Duration = Duration::from_millis(10);

/// How long after a process has ended its last events may come.
const LAST_ROUNDS: u32 = 3;

/// Watches until the program ends, the time is over, or a signal comes.
pub fn run(args: WatchArgs) -> Ended {
    let span = args.span.as_deref().map(|text| {
        let span = job::span(text)
            .map_err(|expected| Failure::Usage(format!("--for {text}: expected {expected}")))?;
        Ok(Duration::from_nanos(span.ns()))
    });
    let span = span.transpose()?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::Unavailable(format!("can't wait for signals: {error}")))?;
    let mut watch = Watch::start().map_err(refused)?;
    let about = |error| Failure::about(args.output.display(), error);
    let file = File::create(&args.output).map_err(about)?;
    let mut writer = Writer::new(BufWriter::new(file)).map_err(about)?;
    let before = CpuTime::of_children();
    let (name, mut child) = begin(&args, &mut watch)?;
    writer.put(watch.first_record(&name)).map_err(about)?;
    let began = Instant::now();
    let mut status = None;
    let mut has_exited = false;
    while !is_interrupted.load(Ordering::Relaxed) && !has_exited {
        std::thread::sleep(ROUND);
        watch.record(&mut writer).map_err(about)?;
        has_exited = match &mut child {
            Some(child) => {
                status = child.try_wait().map_err(Failure::usage)?;
                status.is_some()
            }
            None => !Path::new(&format!("/proc/{}", args.pid.unwrap_or(0))).exists(),
        };
        if span.is_some_and(|span| began.elapsed() >= span) {
            break;
        }
    }
    // What it started may live on; what it did itself is soon known.
    for _ in 0..LAST_ROUNDS {
        std::thread::sleep(ROUND);
        watch.record(&mut writer).map_err(about)?;
    }
    let spent = CpuTime::of_children().since(before);
    let processor_ns = status.map(|_| (spent.seconds() * 1e9) as u64);
    let summary = watch.finish(writer, processor_ns, has_exited).map_err(about)?;
    tell(&args.output, &summary, child.is_some() && !has_exited);
    match status {
        Some(status) if !status.success() => Err(Failure::Run(how_it_ended(&name, status))),
        _ => Ok(()),
    }
}

/// Starts the program, or finds the process.
fn begin(args: &WatchArgs, watch: &mut Watch) -> Result<(String, Option<Child>), Failure> {
    if let Some(process) = args.pid {
        watch
            .attach(process)
            .map_err(|error| Failure::about(format!("process {process}"), error))?;
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        return Ok((name.trim_end().to_owned(), None));
    }
    let program = &args.command[0];
    let mut command = Command::new(program);
    command.args(&args.command[1..]);
    let child = watch.spawn(command).map_err(|error| Failure::about(program, error))?;
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, Some(child)))
}

fn refused(error: TraceError) -> Failure {
    let mut text = format!("a program's reads can't be watched: {error}");
    if !rustix::process::geteuid().is_root() {
        text += "; run it as root (`sudo readpath watch …`): without, the kernel tells nobody \
            what a program reads, and `strace -f -ttt -T -yy -o FILE COMMAND` with `readpath trace \
            import FILE` records at least its system calls";
    }
    Failure::Unavailable(text)
}

fn tell(path: &Path, summary: &Summary, is_running: bool) {
    let Summary { seconds, lost, unplaced } = summary;
    let path = path.display();
    eprintln!(
        "readpath: recorded {seconds:.2} s in {path}; `readpath explain {path}` says what is \
               wrong"
    );
    if *lost > 0 {
        eprintln!("readpath: {lost} events were lost: the recording has holes");
    }
    if *unplaced > 0 {
        eprintln!(
            "readpath: {unplaced} reads by io_uring past the page cache are not in it: the kernel \
             doesn't tell which bytes they were"
        );
    }
    if is_running {
        eprintln!("readpath: the program runs on");
    }
}

fn how_it_ended(name: &str, status: ExitStatus) -> String {
    format!("{name} ended with {status}; what it read is recorded")
}

//! Output in a terminal: tables fit into its width, `--wide` shows all columns, and the first line
//! is the verdict.

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use support::{RANDOM, Scratch};

const COLUMNS: u16 = 80;

/// The byte 0x1b begins a command to the terminal.
#[test]
fn names_from_files_cannot_command_the_terminal() {
    let scratch = Scratch::new("escapes");
    scratch.file("j.fio", "[a\x1b[31mX]\nrw=randread\nsize=1m\n[b]\nrw=read\nsize=1m\n");
    scratch.file("t\x1b[31m.trace", "0 0 0 8 1\n1 0 8 8 0\n");
    let drive = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/src/hdd/drives/scsi2002.toml");
    let drive = std::fs::read_to_string(drive).unwrap();
    scratch.file("d.toml", drive.replace("name = \"Seagate", "name = \"\\u001b[31mSeagate"));
    for arguments in [
        "run j.fio --on hdd,ssd",
        "run j.fio --on hdd,toml=d.toml",
        "run t\x1b[31m.trace --on hdd,ssd",
        "cachesim t\x1b[31m.trace",
        "devices show hdd,toml=d.toml",
    ] {
        let ran = scratch.run(arguments);
        ran.has_ended(0, arguments);
        assert!(!ran.stdout.contains('\x1b') && !ran.stderr.contains('\x1b'), "{}", ran.stdout);
    }
}

/// Output of a command whose standard output is a terminal with this number of columns.
fn in_terminal(scratch: &Scratch, arguments: &str, columns: u16) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let path = Path::new(name.to_str().unwrap());
    let output = File::options().read(true).write(true).open(path).unwrap();
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&output, size).unwrap();
    let mut command = scratch.command(arguments.split_whitespace());
    let mut child = command.stdout(OwnedFd::from(output)).spawn().unwrap();
    drop(command);
    // The terminal ends (EIO) when the command has closed it.
    let mut text = Vec::new();
    let mut terminal = File::from(terminal);
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = terminal.read(&mut part) {
        text.extend(&part[..read]);
    }
    assert!(child.wait().unwrap().success(), "{arguments}");
    String::from_utf8(text).unwrap().replace('\r', "")
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    folder.join(name).display().to_string()
}

/// Commands with tables, and a word of each one's first line.
fn commands() -> [(String, &'static str); 8] {
    let recording = example("one-at-a-time.rec");
    let (loads, trace) = (example("swap.toml"), example("mixed.trace"));
    [
        ("run j.fio --on hdd,ssd --readahead none,ondemand".to_owned(), "fastest"),
        ("run j.fio --on hdd".to_owned(), "99 % of them within"),
        (format!("run {loads} --on ssd --swapin none,adaptive"), "fastest"),
        (format!("replay {recording} --on hdd,nvme"), "The time of"),
        (format!("cachesim {trace}"), "misses least"),
        (format!("explain {recording}"), "waited for reads of files"),
        ("devices ssd".to_owned(), "ssd"),
        ("run --fio-options".to_owned(), ""),
    ]
}

#[test]
fn tables_fit_into_the_terminal_and_wide_shows_all_columns() {
    let scratch = Scratch::new("terminal");
    scratch.file("j.fio", RANDOM);
    for (arguments, verdict) in commands() {
        let narrow = in_terminal(&scratch, &arguments, COLUMNS);
        let first = narrow.lines().next().unwrap();
        assert!(first.contains(verdict), "{arguments}: {first}");
        let long: Vec<&str> =
            narrow.lines().filter(|line| line.chars().count() > usize::from(COLUMNS)).collect();
        assert!(long.is_empty(), "{arguments}: {long:#?}");
        // Both a pipe and `--wide` have all columns.
        let piped = scratch.run(&arguments).stdout;
        let wide = in_terminal(&scratch, &format!("--wide {arguments}"), COLUMNS);
        let without_times = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        assert_eq!(without_times(&wide), without_times(&piped), "{arguments}");
    }
}

/// A table names its hidden columns. A terminal of 400 columns has room for everything.
#[test]
fn hidden_columns_are_named() {
    let scratch = Scratch::new("hidden-columns");
    scratch.file("j.fio", RANDOM);
    let arguments = "run j.fio --on hdd,ssd";
    let narrow = in_terminal(&scratch, arguments, COLUMNS);
    assert!(narrow.contains("All rows: ") && narrow.contains("--wide shows them"), "{narrow}");
    assert!(narrow.contains("MiB/s") && narrow.contains("p99"), "{narrow}");
    let roomy = in_terminal(&scratch, arguments, 400);
    assert_eq!(roomy, scratch.run(arguments).stdout);
}

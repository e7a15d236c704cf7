//! Lookups in a database under `advise`: reads that cannot be predicted.

use std::process::Command;

use super::support::{Scratch, has};
use super::{can_watch, mib};

/// Database of 88 MB: 300,000 rows of about 260 bytes, and an index of their names. A lookup by
/// name reads a page of the index and one of the table, each of 4 KiB at a random offset.
const MAKE: &str = "import sqlite3
base = sqlite3.connect('lookups.db')
base.execute('create table t (id integer primary key, name text, value text)')
rows = (('key%09d' % (at * 7919 % 1000000007), '%0240d' % at) for at in range(300000))
base.executemany('insert into t (name, value) values (?, ?)', rows)
base.execute('create index i on t (name)')
base.commit()
base.close()
";

const LOOK_UP: &str = "import random, sqlite3
base = sqlite3.connect('file:lookups.db?mode=ro', uri=True)
draw = random.Random(3)
for _ in range(4000):
    name = 'key%09d' % (draw.randrange(300000) * 7919 % 1000000007)
    assert base.execute('select value from t where name = ?', (name,)).fetchone()
";

/// Drops the file's pages from the kernel page cache.
const FORGET: &str = "import os
file = os.open('lookups.db', os.O_RDONLY)
os.fsync(file)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
";

fn python(scratch: &Scratch, program: &str) {
    let mut python = Command::new("python3");
    let status = python.args(["-c", program]).current_dir(&scratch.0).status().unwrap();
    assert!(status.success());
}

/// At most twice the initial 2 MiB is brought in, and twice the used bytes.
#[test]
fn database_lookups_cause_little_prefetching_under_advise() {
    let scratch = Scratch::new("watch-lookups");
    if !can_watch(&scratch) {
        return;
    }
    if !has("python3") {
        return println!("skipped: python3 is not installed");
    }
    python(&scratch, MAKE);
    python(&scratch, FORGET);
    let mut watch = scratch.command(["advise", "--", "python3", "-c", LOOK_UP]);
    let output = watch.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("{stderr}");
    assert!(output.status.success(), "{stderr}");
    assert!(!stderr.contains("a MiB"), "{stderr}");
    let Some(line) =
        stderr.lines().find(|line| line.contains("brought in") && line.contains("used"))
    else {
        assert!(stderr.contains("no page was prefetched"), "{stderr}");
        return;
    };
    let [brought, used, ..] = mib(line)[..] else { panic!("{stderr}") };
    assert!(brought <= 4.0 + 2.0 * used + 0.2, "{stderr}");
    if used < 0.5 * brought && brought > 2.5 {
        // Waits that grow are another reason: a loaded machine has them too.
        let reasons =
            ["% of what was brought in", "had been brought in", "waited longer with advice"];
        assert!(
            stderr.contains("stopped: ") && reasons.iter().any(|it| stderr.contains(it)),
            "{stderr}"
        );
    }
}

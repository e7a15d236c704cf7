//! Job files: accepted and refused input, and the error messages.

use readpath_core::request::{Class, Priority};
use readpath_core::unit::Time;
use readpath_sim::job::{
    AdviceHint, BytesOrPercent, Distribution, Environment, Job, JobEngine, JobFile, JobPattern,
};

fn one(options: &str) -> Job {
    let file = JobFile::parse(&format!("[j]\nrw=read\n{options}\n")).unwrap();
    file.jobs.into_iter().next().unwrap()
}

fn refused(text: &str) -> String {
    JobFile::parse(text).unwrap_err().to_string()
}

/// Defaults from `fio --cmdhelp=OPTION` of 3.33.
#[test]
fn omitted_options_have_the_defaults_of_fio() {
    let job = one("");
    assert_eq!((job.block_bytes_read(), job.block_bytes_write()), (4096, 4096));
    assert_eq!((job.processes, job.depth, job.batch, job.loops), (1, 1, 1, 1));
    assert_eq!(
        (job.engine, job.is_direct, job.hint),
        (JobEngine::Psync, false, AdviceHint::Pattern)
    );
    assert_eq!((job.seed, job.has_random_map), (0x89, true));
    assert_eq!((job.runtime, job.pauses.time, job.pauses.blocks), (None, Time::ZERO, None));
    assert_eq!((job.size, job.io_size, job.offset), (None, None, BytesOrPercent::Bytes(0)));
    assert_eq!(job.priority, None);
}

/// Editors of other systems put a byte order mark before a text and end lines with CR and LF.
#[test]
fn text_of_other_editors_is_read() {
    let marked = JobFile::parse("\u{feff}[a]\r\nrw=randread\r\nbs=8k\r\n").unwrap();
    assert_eq!(marked, JobFile::parse("[a]\nrw=randread\nbs=8k\n").unwrap());
}

#[test]
fn global_options_apply_to_later_jobs_and_accumulate() {
    let text = "\
; a comment
[global]
bs=8k
rw=randread
[first]
[global]
size = 1m   # behind a value too
[second]
bs=16k
\tdirect=1
bs=32k
[third]
";
    let file = JobFile::parse(text).unwrap();
    let seen: Vec<_> = file
        .jobs
        .iter()
        .map(|job| (job.name.as_str(), job.line, job.block_bytes_read(), job.size, job.is_direct))
        .collect();
    let mib = Some(BytesOrPercent::Bytes(1 << 20));
    assert_eq!(
        seen,
        [
            ("first", 5, 8 << 10, None, false),
            ("second", 8, 32 << 10, mib, true),
            ("third", 12, 8 << 10, mib, false),
        ]
    );
}

#[test]
fn each_option_reaches_its_field() {
    assert_eq!(one("rw=randrw").pattern, JobPattern { is_random: true, reads_percent: 50 });
    assert_eq!(one("readwrite=rw\nrwmixread=70").pattern.reads_percent, 70);
    assert_eq!(one("rwmixwrite=70\nrw=randrw").pattern.reads_percent, 30);
    assert_eq!(one("rw=randwrite\nrwmixread=70").pattern.reads_percent, 0);
    let job = one("bs=4k,8k");
    assert_eq!((job.block_bytes_read(), job.block_bytes_write()), (4 << 10, 8 << 10));
    let job = one("blocksize=64k\nbs=,8k");
    assert_eq!((job.block_bytes_read(), job.block_bytes_write()), (64 << 10, 8 << 10));
    assert_eq!(one("size=50%").size, Some(BytesOrPercent::Percent(50)));
    assert_eq!(one("io_size=2m").io_size, Some(BytesOrPercent::Bytes(2 << 20)));
    assert_eq!(one("offset=25%").offset, BytesOrPercent::Percent(25));
    assert_eq!(one("filesize=1g").file_bytes, Some((1 << 30, 1 << 30)));
    assert_eq!(one(r"filename=a:b\:c").file_names, ["a", "b:c"]);
    assert_eq!(one("directory=/data").directories, ["/data"]);
    assert_eq!(one("numjobs=4").processes, 4);
    assert_eq!(one("ioengine=mmap").engine, JobEngine::Mmap);
    assert!(one("buffered=0").is_direct);
    let raw = one("ioengine=raw\niodepth=8");
    assert_eq!((raw.engine, raw.is_direct, raw.depth), (JobEngine::Raw, true, 1));
    assert!(!one("direct=1\nbuffered=1").is_direct);
    assert_eq!(one("runtime=1500ms").runtime, Some(Time::from_ms(1500)));
    assert_eq!(one("runtime=0").runtime, None);
    assert!(one("runtime=10\ntime_based").is_time_based);
    assert_eq!(one("thinktime=100").pauses.time, Time::from_us(100));
    assert_eq!(one("thinktime_blocks=8").pauses.blocks, Some(8));
    assert_eq!(one("fadvise_hint=sequential").hint, AdviceHint::Sequential);
    assert_eq!(one("randseed=42").seed, 42);
    assert_eq!(
        one("random_distribution=zipf").distribution,
        Distribution::Zipf { theta: 1.1, center: None }
    );
    assert_eq!(
        one("random_distribution=zipf:0.9").distribution,
        Distribution::Zipf { theta: 0.9, center: None }
    );
    assert!(!one("norandommap").has_random_map);
    assert!(one("norandommap=0").has_random_map);
    assert!(one("group_reporting").is_group_reported);
    assert_eq!(one("startdelay=2s").start_delay, Time::from_s(2));
    assert!(one("wait_for_previous").has_stonewall);
    assert_eq!(one("description=to see").description.as_deref(), Some("to see"));
    assert_eq!(one("name=other").name, "other");
    assert_eq!(one("loops=3").loops, 3);
}

/// fio: a batch of 0 is the depth, and synchronous engines have a depth of 1. From strace: `prio`
/// alone is best effort, `prioclass` alone level 0.
#[test]
fn interacting_options_are_resolved_as_in_fio() {
    let job = one("ioengine=io_uring\niodepth=32\niodepth_batch=0\niodepth_batch_complete=64");
    assert_eq!((job.depth, job.batch, job.batch_complete), (32, 32, 32));
    let job = one("ioengine=psync\niodepth=32\niodepth_batch=8");
    assert_eq!((job.depth, job.batch, job.batch_complete), (1, 1, 1));
    assert_eq!(one("prio=3").priority, Some(Priority { class: Class::BestEffort, level: 3 }));
    assert_eq!(one("prioclass=1").priority, Some(Priority { class: Class::RealTime, level: 0 }));
    let idle = one("prioclass=3\nprio=2").priority;
    assert_eq!(idle, Some(Priority { class: Class::Idle, level: 2 }));
}

#[test]
fn errors_name_the_line_and_a_remedy() {
    assert_eq!(
        refused("[global]\n\nzonemode=zbd\n[a]\n"),
        "line 3: `zonemode=zbd` is refused: no storage here is a zoned block device"
    );
    assert_eq!(
        refused("[a]\niodepht=4\n"),
        "line 2: fio has no option `iodepht`; is `iodepth` meant?"
    );
    assert_eq!(
        refused("[a]\nrw=trim\n"),
        "line 2: `rw=trim` is refused: no device here takes discards"
    );
    assert_eq!(
        refused("[a]\nioengine=net\n"),
        "line 2: `ioengine=net` is refused: it moves data over a network and reads no file or device"
    );
    assert_eq!(
        refused("[a]\nrw=read\nnumjobs=none\n"),
        "line 3: `numjobs=none`: expected a whole number from 1 to 65536"
    );
    assert_eq!(
        refused("[a]\nrw=read\ndirect\n"),
        "line 3: `direct` has no value; expected a whole number from 0 to 1"
    );
    assert_eq!(
        refused("rw=read\n"),
        "line 1: `rw=read` stands before the first section; write `[global]` or `[JOBNAME]` above it"
    );
    assert_eq!(refused("[a\nrw=read\n"), "line 1: `[a` is no section; write `[JOBNAME]`");
    assert_eq!(
        refused("[a]\nsize=${SIZE}\n"),
        "line 2: `${SIZE}`: variables are not filled in here; write the value itself"
    );
    assert_eq!(
        refused("include other.fio\n"),
        "line 1: `include other.fio`: nothing is included here; copy the lines of that file to here"
    );
    assert_eq!(
        refused("[global]\nrw=read\n"),
        "there is no job in the file; write `[JOBNAME]` and `rw=read` under it"
    );
}

/// A line of a megabyte, and one with a control sequence that moves the cursor.
#[test]
fn error_messages_are_short_and_free_of_control_sequences() {
    let long = refused(&format!("[a]\nsize={}\n", "9".repeat(1 << 20)));
    assert!(long.len() < 600, "{} letters", long.len());
    let long = refused(&format!("[{}\n", "x".repeat(1 << 20)));
    assert!(long.len() < 600, "{} letters", long.len());
    let escaped = refused("[a]\nrw=\x1b[2J\u{202e}\n");
    assert!(escaped.contains("\\u{1b}[2J\\u{202e}"), "{escaped}");
}

/// Includes and environment variables, with a limited depth.
#[test]
fn includes_and_variables_are_expanded() {
    let file = |name: &str| match name {
        "common" => Ok("bs=8k\n[second]\nrw=${WAY}\n".to_owned()),
        "bad" => Ok("bs=8q\n".to_owned()),
        "itself" => Ok("include itself\n".to_owned()),
        _ => Err("No such file".to_owned()),
    };
    let variable = |name: &str| (name == "WAY").then(|| "randread".to_owned());
    let around = Environment {
        file: Some(&file),
        variable: Some(&variable),
        processors: Some(6),
        ..Environment::default()
    };
    let text = "[first]\ninclude common\nnumjobs=$ncpus*2\n";
    let jobs = JobFile::parse_in(text, &around).unwrap().jobs;
    assert_eq!((jobs[0].name.as_str(), jobs[0].block_bytes_read()), ("first", 8 << 10));
    assert_eq!((jobs[1].name.as_str(), jobs[1].processes), ("second", 12));
    assert!(jobs[1].pattern.is_random);
    let wrong = |text: &str| JobFile::parse_in(text, &around).unwrap_err().to_string();
    assert!(wrong("[a]\ninclude bad\n").starts_with("line 2: in `bad`: line 1: `bs=8q`: expected"));
    assert!(wrong("[a]\ninclude none\n").contains("No such file"));
    assert!(wrong("[a]\ninclude itself\n").contains("without an end"));
    assert!(wrong("[a]\nsize=${NONE}\n").contains("set NONE=VALUE"));
    assert!(wrong("[a]\nsize=$mb_memory\n").contains("not known here"));
}

/// Each option is named once, for any number of jobs, and so are replaced engines.
#[test]
fn options_without_effect_are_listed_once() {
    let text =
        "[global]\nthread\nioengine=posixaio\n[a]\ngtod_reduce=1\n[b]\ngtod_reduce=1\nmem=mmap\n";
    assert_eq!(
        JobFile::parse(text).unwrap().note().unwrap(),
        "ioengine=posixaio is run as libaio; without effect here: thread, gtod_reduce, mem"
    );
    assert_eq!(JobFile::parse("[a]\nrw=read\n").unwrap().note(), None);
}

/// fio 3.33 ends with an error at each of these, and reads the file without its last line.
#[test]
fn options_that_fio_refuses_together_are_refused() {
    for (options, words) in [
        ("zonesize=64k", "zonemode=strided"),
        ("zonemode=none\nzonesize=64k", "zonemode=strided"),
        ("zonerange=64k\nzonemode=strided", "zonesize"),
        ("rate=1m\nrate_iops=100", "exclude each other"),
        ("rate=1m\nrate_iops_min=100", "exclude each other"),
        ("rate_iops=100\nrate_iops_min=1000", "above the most"),
        ("rate=,100\nrate_min=1000", "above the most"),
    ] {
        let error = JobFile::parse(&format!("[j]\nrw=rw\nsize=1m\n{options}\n")).unwrap_err();
        assert!(error.to_string().contains(words), "{options}: {error}");
        let (first, _) = options.rsplit_once('\n').unwrap_or_default();
        assert!(JobFile::parse(&format!("[j]\nrw=rw\nsize=1m\n{first}\n")).is_ok(), "{first}");
    }
    for options in ["rate=0", "rate_iops=0", "zonerange=64k", "rate=1m,0"] {
        assert!(JobFile::parse(&format!("[j]\nsize=1m\n{options}\n")).is_ok(), "{options}");
    }
}

/// `random_generator=permutation` is not an option of fio. Its order is of blocks of one size, so
/// options that fio's generators follow and a permutation cannot are refused.
#[test]
fn options_that_a_permutation_cannot_follow_are_refused() {
    let with = |options: &str| {
        JobFile::parse(&format!("[j]\nrw=randrw\nrandom_generator=permutation\n{options}\n"))
    };
    let refused = [
        "random_distribution=pareto:0.3",
        "random_distribution=normal:10",
        "random_distribution=zoned:60/10:40/90",
        "random_distribution=zoned_abs:60/1m:40/3m",
        "random_distribution=zipf:1.2:0.3",
        "bsrange=4k-16k",
        "bssplit=4k/50:16k/50",
        "bs=4k,16k\nbs_is_seq_rand=1",
        "blockalign=16k",
        "zonemode=strided\nzonesize=64k",
    ];
    for options in refused {
        let error = with(options).expect_err(options).to_string();
        assert!(error.starts_with("line 1: the job `j`: a permutation "), "{options}: {error}");
        assert!(error.contains("leave "), "{options}: {error}");
    }
    for options in ["random_distribution=zipf:1.2", "bs=4k,16k", "norandommap", "blockalign=4k"] {
        assert!(with(options).is_ok(), "{options}");
    }
    // Sequential jobs draw no positions.
    assert!(with("rw=read\nbsrange=4k-16k").is_ok());
}

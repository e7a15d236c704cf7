//! Solid-state drives, compared with published figures.

use readpath_core::policy::Spec;
use readpath_core::request::{DeviceRequest, Op, RequestId};
use readpath_core::unit::Time;
use readpath_models::{BoxedDevice, registry};

fn build(text: &str) -> BoxedDevice {
    registry::build(&Spec::parse(text).unwrap(), 0).unwrap()
}

/// Runs `count` requests of `sectors` at `depth`, at the offsets of `place`. Returns the latencies
/// and the end time.
fn run(
    mut device: BoxedDevice,
    op: Op,
    depth: u32,
    count: u32,
    sectors: u32,
    mut place: impl FnMut(u64, u32) -> u64,
) -> (Vec<Time>, Time) {
    let size = device.caps().sectors;
    let (mut now, mut begun) = (Time::ZERO, 0);
    let mut started = vec![Time::ZERO; count as usize];
    let mut latencies = Vec::new();
    while latencies.len() < count as usize {
        while begun < count && begun - (latencies.len() as u32) < depth {
            let start = place(size, begun);
            started[begun as usize] = now;
            device.submit(now, DeviceRequest { id: RequestId(begun), op, start, sectors });
            begun += 1;
        }
        now = device.next_event().unwrap();
        while let Some(completion) = device.poll(now) {
            latencies.push(completion.at - started[completion.id.0 as usize]);
        }
    }
    (latencies, now)
}

fn random_4k(size: u64, index: u32) -> u64 {
    let mixed = (u64::from(index) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((u128::from(mixed) * u128::from(size / 8)) >> 64) as u64 * 8
}

fn sequential(sectors: u32) -> impl Fn(u64, u32) -> u64 {
    move |_, index| u64::from(index) * u64::from(sectors)
}

/// Published of the Intel SSD 520: about 60 MB/s of random 4 KiB reads at depth 3 over 8 GB
/// (AnandTech, 2012), and 50,000 a second at depth 32 (data sheet).
#[test]
fn ssd520_reads_at_depth_3_as_published() {
    let bytes_per_second = |depth, count: u32| {
        let (_, end) = run(build("ssd520,size=8g"), Op::Read, depth, count, 8, random_4k);
        f64::from(count) * 4_096.0 / end.seconds()
    };
    let at_depth_3 = bytes_per_second(3, 9_000);
    assert!((at_depth_3 / 60e6 - 1.0).abs() < 0.03, "{at_depth_3}");
    let at_depth_32 = bytes_per_second(32, 90_000);
    assert!((at_depth_32 / (50_000.0 * 4_096.0) - 1.0).abs() < 0.01, "{at_depth_32}");
}

/// Published: a Micron 7300 PRO answers 4 KiB random reads at depth 1 in three modes,
/// at 88, 116 and 165 µs.
#[test]
fn nvme_reads_at_depth_1_in_the_three_published_modes() {
    let (mut latencies, _) = run(build("nvme"), Op::Read, 1, 9_000, 8, random_4k);
    latencies.sort();
    let us = |index: usize| latencies[index].ns() as f64 / 1e3;
    for (index, published) in [(1_500, 88.0), (4_500, 116.0), (7_500, 165.0)] {
        assert!((us(index) - published).abs() < 0.5, "{} against {published}", us(index));
    }
}

/// Data sheet of the same drive: 520,000 random 4 KiB reads a second; 3,000 MB/s read,
/// 1,900 MB/s written in sequence.
#[test]
fn nvme_reaches_its_data_sheet() {
    let (_, end) = run(build("nvme"), Op::Read, 256, 100_000, 8, random_4k);
    let reads_per_second = 100_000.0 / end.seconds();
    assert!((468e3..572e3).contains(&reads_per_second), "{reads_per_second}");
    let (_, end) = run(build("nvme"), Op::Read, 32, 20_000, 256, sequential(256));
    let mb_per_s = 20_000.0 * 256.0 * 512.0 / end.seconds() / 1e6;
    assert!((2_700.0..3_300.0).contains(&mb_per_s), "{mb_per_s}");
    let (_, end) = run(build("nvme"), Op::Write, 32, 60_000, 256, sequential(256));
    let mb_per_s = 60_000.0 * 256.0 * 512.0 / end.seconds() / 1e6;
    assert!((1_710.0..2_090.0).contains(&mb_per_s), "{mb_per_s}");
}

/// Published: a data-centre TLC drive of 2019 writes 70 to 77 thousand random 4 KiB blocks per
/// second in steady state. No parameter of the model comes from this figure: the cost of garbage
/// collection follows from the spare flash. An empty drive writes at the speed of its flash.
#[test]
fn nvme_random_writes_have_the_published_steady_state_rate() {
    let rate = |text: &str| {
        let (_, end) = run(build(text), Op::Write, 128, 800_000, 8, random_4k);
        800_000.0 / end.seconds()
    };
    let writes_per_second = rate("nvme");
    assert!((63e3..85e3).contains(&writes_per_second), "{writes_per_second}");
    assert!(rate("nvme,used=0") > 5.0 * writes_per_second);
}

/// Latencies in us, sorted, of 40,000 random reads of a sector at random times, next to sequential
/// writes of 128 KiB at a rate.
fn read_latencies_us(drive: &str, reads_per_s: f64, write_bytes_per_s: f64) -> Vec<f64> {
    let mut device = build(drive);
    let mut state = 1_u64;
    let mut draw = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) + 1) as f64 / (1_u64 << 53) as f64
    };
    let sectors = device.caps().sectors;
    let (mut read_at, mut write_at, mut written) = (Time::ZERO, Time::ZERO, 0_u64);
    let write_interval = Time((131_072.0 * 1e9 / write_bytes_per_s) as u64);
    let (mut reads, mut latencies) = (0_u32, Vec::new());
    let mut submitted = vec![Time::ZERO; 40_000];
    while latencies.len() < submitted.len() {
        let next = device.next_event().unwrap_or(read_at).min(read_at).min(write_at);
        while let Some(completion) = device.poll(next) {
            if let Some(since) = submitted.get(completion.id.0 as usize) {
                latencies.push((completion.at - *since).ns() as f64 / 1e3);
            }
        }
        if next == write_at {
            let id = RequestId(1 << 20 | (written as u32 & 0xffff));
            let start = written * 256 % sectors;
            device.submit(next, DeviceRequest { id, op: Op::Write, start, sectors: 256 });
            (written, write_at) = (written + 1, write_at + write_interval);
        } else if next == read_at && (reads as usize) < submitted.len() {
            let start = (draw() * (sectors - 1) as f64) as u64;
            submitted[reads as usize] = next;
            let id = RequestId(reads);
            device.submit(next, DeviceRequest { id, op: Op::Read, start, sectors: 1 });
            reads += 1;
            read_at += Time((-draw().ln() * 1e9 / reads_per_s) as u64 + 1);
        } else if next == read_at {
            read_at = Time(u64::MAX);
        }
    }
    latencies.sort_by(f64::total_cmp);
    latencies
}

/// Growth of the median of reads on `drive` next to three write rates, each with its published one.
///
/// The published drive is a server's half of 1.9 TB (ScyllaDB's `diskplorer`, m7gd.4xlarge). Next
/// to 5, 40 and 70 % of its write rate the median is 1, 9 and 22 % above the one without writes.
/// The whole drive is assumed to have half of these shares, with an idle other half. No source
/// states it.
fn growths_next_to_writes(drive: &str) -> [(f64, f64); 3] {
    let rate = 1_968e6;
    let median =
        |reads_per_s, share: f64| read_latencies_us(drive, reads_per_s, share * rate)[20_000];
    let alone = median(13_436.0, 1e-6);
    [(13_436.0, 0.025, 0.01), (13_436.0, 0.20, 0.09), (67_389.0, 0.35, 0.22)].map(
        |(reads_per_s, share, published)| (median(reads_per_s, share) / alone - 1.0, published),
    )
}

/// The first and the third figure are within four points of the published ones. The second is
/// missed by nine: the model's median does not rise there. The suspension of 100 us, the value
/// before, misses the second and the third by more than nine.
#[test]
fn nvme_median_next_to_writes_has_two_of_three_published_figures() {
    let off = |drive| growths_next_to_writes(drive).map(|(growth, published)| growth - published);
    let [low, middle, high] = off("nvme");
    assert!(low.abs() < 0.04 && high.abs() < 0.04, "{low}, {high}");
    assert!((-0.10..-0.06).contains(&middle), "{middle}");
    let [_, middle, high] = off("nvme,suspend_program=100us");
    assert!(middle > 0.10 && high > 0.10, "{middle}, {high}");
}

/// Published of the Micron 9550 MAX of 6.4 TB: in sequence 14,000 MB/s read and 10,000 MB/s
/// written, 3,300,000 random 4 KiB reads a second, and 60 µs for one read.
#[test]
fn nvme5_reaches_its_published_figures() {
    let mb_per_second = |op, count: u32| {
        let (_, end) = run(build("nvme5"), op, 128, count, 256, sequential(256));
        f64::from(count) * 0.131_072 / end.seconds()
    };
    let (read, written) = (mb_per_second(Op::Read, 40_000), mb_per_second(Op::Write, 200_000));
    assert!((read / 14_000.0 - 1.0).abs() < 0.02, "{read}");
    assert!((written / 10_000.0 - 1.0).abs() < 0.05, "{written}");
    let (_, end) = run(build("nvme5"), Op::Read, 512, 400_000, 8, random_4k);
    let iops = 400_000.0 / end.seconds();
    assert!((iops / 3_300_000.0 - 1.0).abs() < 0.02, "{iops}");
    let (latencies, _) = run(build("nvme5"), Op::Read, 1, 1_000, 8, random_4k);
    assert!(latencies.iter().all(|latency| latency.ns().abs_diff(60_000) < 1_500), "{latencies:?}");
}

/// Four drives of 14 GB/s: 56 GB/s, 52.2 GiB/s, are the bound of their links. 32 reads of 1 MiB at
/// once reach 0.95 of it and never more.
#[test]
fn array_of_four_nvme5_is_bounded_by_its_links() {
    let device = || build("raid0:4xnvme5,stripe=128k");
    let gib_per_second = |depth| {
        let (_, end) = run(device(), Op::Read, depth, 20_000, 2_048, sequential(2_048));
        20_000.0 / 1_024.0 / end.seconds()
    };
    let rates = [1, 4, 32].map(gib_per_second);
    assert!(rates[2] > 0.95 * 52.2 && rates.iter().all(|rate| *rate < 52.2), "{rates:?}");
}

/// Data sheet of the class: 50,000 random 4 KiB reads a second at depth 32, 550 MB/s in sequence.
#[test]
fn the_sata_drive_of_2012_reaches_its_data_sheet() {
    let (_, end) = run(build("ssd"), Op::Read, 32, 50_000, 8, random_4k);
    let reads_per_second = 50_000.0 / end.seconds();
    assert!((45e3..55e3).contains(&reads_per_second), "{reads_per_second}");
    let (_, end) = run(build("ssd"), Op::Read, 32, 10_000, 256, sequential(256));
    let mb_per_s = 10_000.0 * 256.0 * 512.0 / end.seconds() / 1e6;
    assert!((495.0..605.0).contains(&mb_per_s), "{mb_per_s}");
}

/// Worked by hand for `ssd`: controller 5 µs, sensing 75 µs, 4 KiB over a channel of 333 MB/s
/// 12.300 µs, over the link of 550 MB/s 7.447 µs.
#[test]
fn one_read_of_an_idle_drive_takes_the_sum_of_its_parts() {
    let (latencies, _) = run(build("ssd"), Op::Read, 1, 1, 8, |_, _| 0);
    assert_eq!(latencies, [Time(5_000 + 75_000 + 12_300 + 7_447)]);
}

/// Worked by hand for `ssd` with a map of 8 MiB of data in memory, one page of 2,048 entries. The
/// controller takes 5 µs. The map page is sensed in 75 µs and moved, 8 KiB, in 24.600 µs. The data
/// takes 75 + 12.300 + 7.447 µs as above. A read under the same map page finds it in memory, a read
/// under another replaces it.
#[test]
fn read_with_an_uncached_map_page_reads_the_map_first() {
    let places = [0, 16, 16_384, 0];
    let (latencies, _) =
        run(build("ssd,map_span=8m"), Op::Read, 1, 4, 8, |_, index| places[index as usize]);
    let (known, missing) = (Time(5_000 + 75_000 + 12_300 + 7_447), Time(75_000 + 24_600));
    assert_eq!(latencies, [known + missing, known, known + missing, known + missing]);
}

/// Worked by hand for `ssd` with one die and a map of 16 MiB of data in memory, two pages. The read
/// of 8 KiB covers half a flash page under each of two map pages. With one plane, the map pages are
/// sensed and moved in turn, 75 + 24.600 µs each. With two planes they lie in one row: they are
/// sensed together and moved in 49.201 µs. Then the halves, in two rows, take 75 + 12.300 µs each,
/// and the second one 7.447 µs on the link. The next read, of one flash page, finds its map page.
#[test]
fn read_over_two_map_pages_reads_both() {
    for (planes, map_ns) in [(1, 2 * (75_000 + 24_600)), (2, 75_000 + 49_201)] {
        let text = format!("ssd,map_span=16m,channels=1,dies_per_channel=1,planes={planes}");
        let places = [16_376, 16_384];
        let (latencies, _) =
            run(build(&text), Op::Read, 1, 2, 16, |_, index| places[index as usize]);
        let halves_ns = 5_000 + 2 * (75_000 + 12_300) + 7_447;
        let known_ns = 5_000 + 75_000 + 24_600 + 14_894;
        assert_eq!(latencies, [Time(map_ns + halves_ns), Time(known_ns)], "{planes} planes");
    }
}

/// Two reads of one die: the second is sensed when the first has left the channel. Two reads of
/// different channels share only the link and the controller's interval.
#[test]
fn reads_of_one_die_queue_and_reads_of_two_dies_do_not() {
    let page = 16; // sectors of 8 KiB
    let same_die = |_, index| u64::from(index) * 64 * 2 * page;
    let (same, _) = run(build("ssd,command_interval=0"), Op::Read, 2, 2, 8, same_die);
    assert_eq!(same[1] - same[0], Time(75_000 + 12_300));
    let two_channels = |_, index| u64::from(index) * page;
    let (two, _) = run(build("ssd,command_interval=0"), Op::Read, 2, 2, 8, two_channels);
    assert_eq!(two[1] - two[0], Time(7_447));
}

/// With one die, a read during a program waits for it, but not for the 31 queued before it. With
/// suspension it does not wait for that one either.
#[test]
fn read_is_served_before_every_waiting_program() {
    let one_die = "ssd,channels=1,dies_per_channel=1,planes=1,bits_per_cell=1,link_duplex=1";
    let wait = |text: &str| {
        let mut device = build(text);
        let write = DeviceRequest { id: RequestId(0), op: Op::Write, start: 0, sectors: 512 };
        device.submit(Time::ZERO, write);
        let mut now = Time::ZERO;
        while device.poll(now).is_none() {
            now = device.next_event().unwrap();
        }
        let read = DeviceRequest { id: RequestId(1), op: Op::Read, start: 4_096, sectors: 8 };
        device.submit(now, read);
        let start = now;
        loop {
            now = device.next_event().unwrap();
            if let Some(completion) = device.poll(now) {
                return (completion.at - start).ns();
            }
        }
    };
    // Alone 99.747 µs; the program in progress is 400 µs and 24.6 µs of transfer.
    let plain = wait(one_die);
    assert!((99_747..=99_747 + 424_600).contains(&plain), "{plain}");
    assert!(plain > 150_000, "the program in progress is finished first: {plain}");
    let suspending = wait(&format!("{one_die},suspend_program=10us"));
    assert!(suspending <= 99_747 + 10_000, "{suspending}");
}

/// One die, which can suspend a program in 10 µs and serves four reads while one waits. Worked by
/// hand: 8 KiB take 14.894 µs on the link. Then a read in progress ends and four more precede the
/// program or suspend it, 10 + 75 + 12.300 µs each. The program takes 24.600 + 400 µs itself.
#[test]
fn write_ends_in_time_next_to_steady_reads() {
    let drive = "ssd,channels=1,dies_per_channel=1,planes=1,bits_per_cell=1,link_duplex=1,\
                 suspend_program=10us,reads_in_row=4,command_interval=0";
    let bound = Time(14_894 + 5 * (10_000 + 75_000 + 12_300) + 24_600 + 400_000);
    for depth in [1, 2, 8] {
        let mut device = build(drive);
        let (write_id, flush_id) = (RequestId(1_000), RequestId(1_001));
        let read = |id| DeviceRequest { id, op: Op::Read, start: 4_096, sectors: 8 };
        for id in 0..depth {
            device.submit(Time::ZERO, read(RequestId(id)));
        }
        let write = DeviceRequest { id: write_id, op: Op::Write, start: 0, sectors: 16 };
        device.submit(Time::ZERO, write);
        let flushed_at = loop {
            let now = device.next_event().unwrap();
            let Some(completion) = device.poll(now) else { continue };
            match completion.id {
                id if id == write_id => device.flush(now, flush_id),
                id if id == flush_id => break now,
                id => device.submit(now, read(id)),
            }
        };
        assert!(flushed_at <= bound, "depth {depth}: {flushed_at:?}, at most {bound:?}");
    }
}

/// Each cost parameter changes a time in its direction.
#[test]
fn every_cost_parameter_changes_the_time() {
    let time = |text: &str, op, depth| {
        let pattern = |size, index: u32| random_4k(size, index % 700);
        run(build(text), op, depth, 4_000, 8, pattern).1
    };
    for (worse, op, depth) in [
        ("read_lsb=200", Op::Read, 1),
        ("read_msb=200", Op::Read, 1),
        ("bits_per_cell=3,read_csb=500", Op::Read, 1),
        ("channel_rate=10", Op::Read, 1),
        ("link=10", Op::Read, 1),
        ("read_overhead=50", Op::Read, 1),
        ("map_span=1m", Op::Read, 1),
        ("page=64k,planes=1,channels=1,dies_per_channel=1", Op::Read, 8),
        ("channels=1", Op::Read, 16),
        ("dies_per_channel=1", Op::Read, 32),
        ("program_lsb=9ms", Op::Write, 32),
        ("program_msb=9ms", Op::Write, 32),
        ("write_overhead=2ms", Op::Write, 1),
        ("used=1", Op::Write, 32),
        ("used=1,spare=3,kept_free=0", Op::Write, 32),
        ("used=1,kept_free=12", Op::Write, 32),
        ("parity=1", Op::Write, 32),
        ("map_span=1m", Op::Write, 32),
        ("erase=900ms,pages_per_block=1", Op::Write, 32),
        ("planes=1", Op::Write, 32),
    ] {
        let base = match op {
            Op::Read => "ssd,command_interval=0",
            // Few dies and a small buffer, so that writes wait for the flash.
            Op::Write => "ssd,command_interval=0,buffer=2m,channels=2,dies_per_channel=1",
        };
        let worse_spec = format!("{base},{worse}");
        let (better, other) = (time(base, op, depth), time(&worse_spec, op, depth));
        assert!(other > better, "{worse}: {other} against {better}");
    }
    let (fast, slow) = (time("ssd", Op::Read, 32), time("ssd,command_interval=100", Op::Read, 32));
    assert!(slow > fast);
    let (full, half) = (time("ssd,link_duplex=1", Op::Read, 32), time("ssd", Op::Read, 32));
    assert_eq!(full, half, "reads alone never share the wire with writes");
}

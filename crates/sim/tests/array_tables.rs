//! Published tables of a 12-disk array under `deadline` (2010), all modelled with one description
//! of the array.
//!
//! The published runs read 4 GiB per process. Here each process reads less of an equally large
//! file, which costs the model some of its plateau to the start.

use readpath_core::policy::Spec;
use readpath_sim::job::JobFile;
use readpath_sim::run::ProgressAnswer;
use readpath_sim::simulate::{SimulationSetup, simulate};

/// Drives of 10,000 rpm that sort four commands, with adjacent files. With the default of sixteen,
/// 64 readers lose nothing here, but a third in the published runs. Table D has the drives of the
/// source and its files spread over the volume, and needs no such change.
const ARRAY: &str = "array:12xhdd,hdd.window=4";

/// Bytes per second of `processes` processes that each read `mib` MiB of a file of 4 GiB.
fn bytes_per_second(job: &str, processes: u32, mib: u32) -> f64 {
    let text = format!("[j]\nbs=64k\nsize=4g\nnumjobs={processes}\nio_size={mib}m\n{job}\n");
    let setup = SimulationSetup {
        memory_bytes: 1 << 30,
        ..SimulationSetup::new(Spec::parse(ARRAY).unwrap())
    };
    let row =
        simulate("d", &JobFile::parse(&text).unwrap(), &setup, &mut |_| ProgressAnswer::Continue)
            .unwrap();
    row.bytes as f64 / row.seconds
}

/// Compares model and published values. The ratio must be within `bounds`.
fn hold(job: &str, unit: f64, mib: u32, rows: &[(u32, f64, std::ops::Range<f64>)]) {
    for (processes, published, bounds) in rows {
        let model = bytes_per_second(job, *processes, mib) / unit;
        let ratio = model / published;
        println!("{processes:>3} published {published:>6.0} model {model:>6.0} ratio {ratio:.2}");
        assert!(bounds.contains(&ratio), "{job} {processes}: {model} against {published}");
    }
}

const MIB: f64 = 1_048_576.0;

#[test]
fn direct_sequential_rate_rises_to_the_link_and_then_falls() {
    hold(
        "rw=read\ndirect=1",
        MIB,
        64,
        &[
            (1, 271.0, 0.9..1.1),
            (2, 385.0, 0.9..1.01),
            (4, 386.0, 0.9..1.01),
            (16, 384.0, 0.9..1.01),
            (32, 356.0, 0.85..1.05),
            (64, 257.0, 0.85..1.35),
        ],
    );
}

#[test]
fn buffered_sequential_rate_is_flat_at_the_link_and_then_falls() {
    hold(
        "rw=read",
        MIB,
        64,
        &[
            (1, 380.0, 0.9..1.01),
            (8, 383.0, 0.9..1.01),
            (16, 382.0, 0.9..1.01),
            (32, 370.0, 0.9..1.1),
            (64, 234.0, 0.85..1.35),
        ],
    );
}

/// Published: 64 readers get two thirds of the rate of 16, with and without the cache.
#[test]
fn too_many_streams_cost_throughput() {
    for job in ["rw=read\ndirect=1", "rw=read"] {
        let [few, many] = [16, 64].map(|processes| bytes_per_second(job, processes, 64));
        assert!((0.6..0.93).contains(&(many / few)), "{job}: {}", many / few);
    }
}

/// With twelve free spindles eight readers would get over six times the rate of one. This array
/// gives them 1.4 times. The value for one process was published under the other scheduler, which
/// does not matter for one process: 2,771 KiB/s.
#[test]
fn eight_random_readers_gain_half_of_one() {
    let random = "rw=randread\nioengine=mmap";
    hold(random, 1_024.0, 4, &[(1, 2_771.0, 0.85..1.15), (8, 3_973.0, 0.9..1.1)]);
}

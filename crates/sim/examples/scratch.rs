#![allow(missing_docs)]
use readpath_sim::device::hdd::*;
use readpath_sim::validate::*;
fn main() {
    let d = "/work/shared/traces/disksim/";
    for n in ["atlas10k", "barracuda", "cheetah9LP", "hp_c2247a", "ibm18es"] {
        let drive = match drive_from_disksim(format!("{d}{n}.diskspecs").as_ref()) {
            Ok(d) => d,
            Err(e) => {
                println!("{e}");
                continue;
            }
        };
        let hdd = Hdd::new(&drive, 1);
        let reqs = read_trace(format!("{d}{n}.trace").as_ref(), hdd.sectors()).unwrap();
        for (gap, tracks) in
            [(Gap::After, false), (Gap::Before, false), (Gap::After, true), (Gap::Before, true)]
        {
            let s = replay(&reqs, &drive, gap, tracks, 1);
            let v = compare(&reqs, &s);
            println!(
                "{n} {gap:?} {tracks} mean {:.3}/{:.3} rms {:.3} ({:.3}) err {:.3} sd {:.3}",
                v.measured_mean_ms,
                v.modelled_mean_ms,
                v.distance_ms,
                v.distance_relative,
                v.error_mean_ms,
                v.error_deviation_ms
            );
            if gap == Gap::After && !tracks && std::env::args().nth(1).as_deref() == Some("dump") {
                let mut out = String::new();
                for (r, s) in reqs.iter().zip(&s) {
                    out += &format!(
                        "{:?} {} {} {} {} {}\n",
                        r.op, r.start, r.sectors, r.service_ns, r.gap_ns, s
                    );
                }
                std::fs::write(format!("/tmp/dump.{n}"), out).unwrap();
            }
        }
    }
}

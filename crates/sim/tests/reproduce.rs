//! The reproduced tables: what must come out of them.

use readpath_sim::experiment::{EXPERIMENTS, Reproduced};
use readpath_sim::run::Go;

fn tables(name: &str) -> Vec<Reproduced> {
    let experiment = EXPERIMENTS.iter().find(|experiment| experiment.name == name).unwrap();
    experiment.run(1, &mut |_| Go::On).unwrap()
}

/// The device reads of the laws alone, as a model of their rules has them
/// (12,287, 262,144 and 12,256); and the order of the published rates.
#[test]
fn table_a_makes_the_published_laws_requests() {
    let rows = tables("A").remove(0).rows;
    let published = [(12_287, 85.0), (262_144, 4.0), (12_256, 85.6)];
    for (row, (requests, kib)) in rows.iter().zip(published) {
        let made = row.device_requests.unwrap() as f64 / f64::from(requests);
        assert!((0.98..=1.02).contains(&made), "{}: {made} of the requests", row.label);
        let size = row.device_request_kib_mean.unwrap() / kib;
        assert!((0.98..=1.02).contains(&size), "{}: {size} of the size", row.label);
    }
    let [synchronous, shrunk, repaired, direct, _] = &rows[..] else { panic!("five rows") };
    assert!(shrunk.modelled < synchronous.modelled);
    assert!(synchronous.modelled < repaired.modelled);
    assert!(direct.modelled < repaired.modelled, "neighbours of the records become hits");
}

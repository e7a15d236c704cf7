//! Processes that share a folder, and processes that are killed.

use std::io::Read;
use std::process::Child;
use std::time::Duration;

use readpath_core::splitmix;

use crate::children::{BUDGET_BYTES, Objects, start, wait_for_start};
use crate::place::Place;

/// The end of a child that was not killed.
fn assert_success(mut child: Child) {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

/// Kills children at random moments, two at a time and with different versions of the objects.
/// Children that have found a wrong byte end with an error before. After each round a reader in
/// this process compares all of its bytes.
async fn kill_children(kills: u64, mut seed: u64) {
    let place = Place::new();
    let objects = [Objects::new(0).await, Objects::new(1).await];
    let (mut hits, mut damaged) = (0, 0);
    for round in 0..kills / 2 {
        let mut children =
            [0, 1].map(|version| start(&place, version, splitmix::next(&mut seed), u64::MAX));
        children.iter_mut().for_each(wait_for_start);
        for child in &mut children {
            #[expect(clippy::disallowed_methods, reason = "the children run in real time")]
            std::thread::sleep(Duration::from_micros(splitmix::next(&mut seed) % 20_000));
            // A child that is not running has found a wrong byte.
            assert!(child.try_wait().unwrap().is_none(), "round {round}, seed {seed}");
            child.kill().unwrap();
        }
        for child in &mut children {
            child.wait().unwrap();
        }
        let tier = place.tier(BUDGET_BYTES);
        place.assert_counted(BUDGET_BYTES, &tier);
        objects[round as usize % 2].read_randomly(&tier, splitmix::next(&mut seed), 10).await;
        tier.flush();
        place.assert_within(BUDGET_BYTES, &tier);
        let counters = tier.counters();
        assert_eq!(counters.off, None);
        hits += counters.hits;
        damaged += counters.damaged;
        if round % 500 == 499 {
            println!("{} kills", 2 * (round + 1));
        }
    }
    println!("{hits} blocks of killed processes were used, {damaged} were unfinished");
    assert!(hits > kills, "{hits}");
}

#[tokio::test]
async fn killed_processes_leave_no_wrong_byte() {
    kill_children(200, 11).await;
}

#[tokio::test]
#[ignore = "minutes: 10,000 kills"]
async fn ten_thousand_killed_processes_leave_no_wrong_byte() {
    kill_children(10_000, 12).await;
}

/// Three processes with two versions of the objects, and a budget for a third of them.
#[tokio::test]
async fn processes_share_a_folder() {
    let place = Place::new();
    let children = [0, 0, 1].map(|version| start(&place, version, 20 + version, 400));
    let tier = place.tier(BUDGET_BYTES);
    Objects::new(1).await.read_randomly(&tier, 7, 400).await;
    tier.flush();
    assert_eq!(tier.counters().off, None);
    children.into_iter().for_each(assert_success);
    place.assert_within(BUDGET_BYTES, &place.tier(BUDGET_BYTES));
    // A process finds blocks that another one has written after its start.
    let (one, other) = (place.tier(BUDGET_BYTES), place.tier(BUDGET_BYTES));
    let objects = Objects::new(0).await;
    objects.read_randomly(&one, 1, 20).await;
    one.flush();
    objects.read_randomly(&other, 1, 20).await;
    assert!(other.counters().hits >= 10, "{:?}", other.counters());
}

//! A child process that reads through a tier, and compares all bytes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use readpath_core::splitmix;
use readpath_remote::disk::DiskTier;

use crate::place::{Place, read, started};
use crate::support::MIB;

/// Objects of the children, each with a whole block and a part.
const OBJECTS: u64 = 8;
const OBJECT_BYTES: u64 = 400_003;

/// Holds a third of all objects, with two versions of each.
pub const BUDGET_BYTES: u64 = 2 * MIB;

/// All objects in one version. Each version has an ETag of its own, equal in all processes.
pub struct Objects {
    store: Arc<InMemory>,
    bytes: Vec<Bytes>,
}

impl Objects {
    pub async fn new(version: u64) -> Objects {
        let store = Arc::new(InMemory::new());
        // The ETag of the store is the number of the put.
        for object in 0..version * OBJECTS {
            store.put(&path(object % OBJECTS), "older".into()).await.unwrap();
        }
        let mut bytes = Vec::new();
        for object in 0..OBJECTS {
            let mut words = Vec::with_capacity(OBJECT_BYTES as usize + 8);
            let mut seed = OBJECTS * version + object;
            while words.len() < OBJECT_BYTES as usize {
                words.extend_from_slice(&splitmix::next(&mut seed).to_le_bytes());
            }
            bytes.push(Bytes::from(words).slice(..OBJECT_BYTES as usize));
            store.put(&path(object), bytes[object as usize].clone().into()).await.unwrap();
        }
        Objects { store, bytes }
    }

    /// Reads random ranges with an empty memory, and compares them.
    pub async fn read_randomly(&self, tier: &DiskTier, mut seed: u64, reads: u64) {
        let planned = started(Arc::clone(&self.store), tier);
        for _ in 0..reads {
            let object = splitmix::next(&mut seed) % OBJECTS;
            let start = splitmix::next(&mut seed) % OBJECT_BYTES;
            let bytes = 1 + splitmix::next(&mut seed) % 120_000;
            let range = start..(start + bytes).min(OBJECT_BYTES);
            let found = read(&planned, &path(object), range.clone()).await;
            let expected = &self.bytes[object as usize][range.start as usize..range.end as usize];
            assert!(found == expected, "object {object}, {range:?}");
        }
    }
}

fn path(object: u64) -> Path {
    Path::from(format!("object-{object}"))
}

/// Starts a child with this version, seed and number of reads.
pub fn start(place: &Place, version: u64, seed: u64, reads: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "children::child_reads_randomly", "--ignored", "--nocapture"])
        .env("DISK_FOLDER", &place.0)
        .env("DISK_ARGUMENTS", format!("{version} {seed} {reads}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the child opens its tier.
pub fn wait_for_start(child: &mut Child) {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("opens")), "the child starts");
}

#[tokio::test]
#[ignore = "started by other tests"]
async fn child_reads_randomly() {
    #[expect(clippy::disallowed_methods, reason = "arguments of a child")]
    let [folder, arguments] =
        ["DISK_FOLDER", "DISK_ARGUMENTS"].map(|name| std::env::var(name).unwrap());
    let mut numbers = arguments.split(' ').map(|number| number.parse().unwrap());
    let [version, seed, reads] = std::array::from_fn(|_| numbers.next().unwrap());
    let place = std::mem::ManuallyDrop::new(Place(folder.into()));
    let objects = Objects::new(version).await;
    println!("opens");
    let tier = place.tier(BUDGET_BYTES);
    objects.read_randomly(&tier, seed, reads).await;
    tier.flush();
    let counters = tier.counters();
    assert_eq!((counters.off, counters.failures), (None, 0), "{counters:?}");
    println!("{counters:?}");
}

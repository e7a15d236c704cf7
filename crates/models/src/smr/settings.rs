//! Parameters of `smr`, each with its source.

use crate::parameter_spec::{ParameterQuantity, ParameterSpec};

/// Parameters of `smr`, without the ones of the member.
pub const PARAMETERS: [ParameterSpec; 10] = [
    ParameterSpec {
        key: "cache",
        description: "persistent cache on the medium",
        quantity: ParameterQuantity::Bytes,
        default: 32 << 30,
        least: 64 << 20,
        most: 1 << 40,
        source: "published: aicodix, smr, README: random writes to an ST8000AS0002 slow down \
                 after about 32 GiB",
    },
    ParameterSpec {
        key: "map",
        description: "pieces of data that the map of the cache holds",
        quantity: ParameterQuantity::Count,
        default: 182_270,
        least: 16,
        most: 1 << 32,
        source: "published: Aghayev and Desnoyers, FAST 2015, of a 5 TB drive of that maker",
    },
    ParameterSpec {
        key: "band",
        description: "tracks that are written together",
        quantity: ParameterQuantity::Bytes,
        default: 30 << 20,
        least: 1 << 20,
        most: 1 << 30,
        source: "published: Aghayev and Desnoyers, FAST 2015: 15 to 40 MiB, by the zone; one size \
                 is modelled",
    },
    ParameterSpec {
        key: "write_cache",
        description: "1: writes complete in the drive's memory",
        quantity: ParameterQuantity::Switch,
        default: 1,
        least: 0,
        most: 1,
        source: "chosen: on, as SATA drives are delivered",
    },
    ParameterSpec {
        key: "buffer",
        description: "memory for writes",
        quantity: ParameterQuantity::Bytes,
        default: 128 << 20,
        least: 0,
        most: 1 << 34,
        source: "data sheet: 128 MB, all of it",
    },
    ParameterSpec {
        key: "transaction",
        description: "shortest time of a transaction: its data and the record of their places",
        quantity: ParameterQuantity::Time,
        default: 26_000_000,
        least: 0,
        most: 10_000_000_000,
        source: "published: Aghayev and Desnoyers, FAST 2015: a write of 4 KiB without the drive's \
                 memory",
    },
    ParameterSpec {
        key: "checkpoint_every",
        description: "transactions between writes of the map",
        quantity: ParameterQuantity::Count,
        default: 240,
        least: 1,
        most: 1 << 32,
        source: "published: aicodix, smr, README: a slow write every 240 transactions",
    },
    ParameterSpec {
        key: "checkpoint",
        description: "time of the arm to write the map",
        quantity: ParameterQuantity::Time,
        default: 300_000_000,
        least: 0,
        most: 60_000_000_000,
        source: "published: Aghayev and Desnoyers, FAST 2015: 325 ms for each 240th write, less an \
                 ordinary one",
    },
    ParameterSpec {
        key: "idle",
        description: "idle time before cleaning",
        quantity: ParameterQuantity::Time,
        default: 1_000_000_000,
        least: 0,
        most: 3_600_000_000_000,
        source: "chosen: cleaning is published as aggressive, in short idle times",
    },
    ParameterSpec {
        key: "stream",
        description: "bytes in sequence before writes go past the cache",
        quantity: ParameterQuantity::Bytes,
        default: 30 << 20,
        least: 0,
        most: 1 << 34,
        source: "chosen: a band; that streams go directly to their bands is published (borg, \
                 issue 2252)",
    },
];

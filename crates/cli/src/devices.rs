//! `readpath devices`: the list of device models, or one model with every parameter and its source.

use crate::exit::{CommandResult, Failure};
use crate::output::print;
use crate::table::{Column, Table};
use readpath_core::policy::Spec;
use readpath_core::unit::SECTOR_BYTES;
use readpath_models::parameter::DeviceParameter;
use readpath_models::registry;
use readpath_record::notice;

/// Prints the list, or one device in full.
pub fn run(name: Option<&str>) -> CommandResult {
    name.map_or_else(print_list, print_device)
}

/// Prints the name and the description of each device model, one per line.
fn print_list() -> CommandResult {
    let mut text = String::new();
    for (name, line) in registry::devices() {
        text += &format!("{name:10} {line}\n");
    }
    text += "\n`readpath devices show NAME` prints every parameter of one, with unit and source.\n";
    print(&text)
}

/// Prints the limits and the table of parameters of one device.
fn print_device(name: &str) -> CommandResult {
    let spec = Spec::parse(with_example_members(name)).map_err(Failure::usage)?;
    // Any seed serves: only the limits are printed.
    let seed = 1;
    let device = registry::build(&spec, seed).map_err(Failure::usage)?;
    print_unmodelled(&spec);
    let caps = device.caps();
    let columns: [Column<DeviceParameter>; 5] = [
        ("parameter", |parameter| parameter.name.clone()),
        ("value", |parameter| parameter.value.clone()),
        ("unit", |parameter| parameter.unit.to_owned()),
        ("come by", |parameter| parameter.origin.word().to_owned()),
        ("what it is, and the source", |parameter| parameter.source.clone()),
    ];
    let parameters = registry::describe(&spec).map_err(Failure::usage)?;
    // Behind the last column: no column is numeric.
    let numbers_from = columns.len();
    let table = Table::of(&parameters, &columns, numbers_from);
    print(&format!(
        "{spec}: {:.1} GB, requests of up to {} KiB, {} at once, {}\n\n{table}",
        caps.sectors as f64 * SECTOR_BYTES as f64 / 1e9,
        u64::from(caps.request_sectors_max) * SECTOR_BYTES / 1024,
        caps.depth_max,
        if caps.is_rotational { "rotating" } else { "no moving parts" },
    ))
}

/// Prints on standard error the properties of a device description that its model ignores.
pub fn print_unmodelled(spec: &Spec) {
    for text in registry::unmodelled(spec) {
        notice::print(text);
    }
}

/// Adds example members to the name of a composite device, which has no parameters without them.
fn with_example_members(name: &str) -> &str {
    match name {
        "raid0" => "raid0:12xhdd",
        "faulty" => "faulty:nvme",
        "changing" => "changing:nvme+ssd",
        name => name,
    }
}

//! Modelled devices by name: text in, device out.
//!
//! `NAME,key=value,…` names one device. `raid0:12xssd` and `array:12xhdd` name
//! a device over members, `raid0:2xssd+1xnvme` over mixed ones; a key with a
//! member's name before a dot goes to those members: `raid0:12xssd,ssd.size=1g`.
//! What a device takes, with unit and source, is [`describe`]d from the same
//! tables that read the text.

use readpath_core::law::{Spec, SpecError};
use readpath_core::unit::SECTOR_BYTES;

use super::BoxedDevice;
use super::hdd::{self, HddError};
use super::knob::{Knob, Quantity, Settings};
use super::parameter::Parameter;
use super::raid0::{MEMBERS_MAX, Raid0};
use super::ssd::{self, Ssd};

/// What there is, each with one line on what it is.
pub const DEVICES: &[(&str, &str)] = &[
    ("ssd", "a SATA solid-state drive of 2012"),
    ("nvme", "an NVMe solid-state drive of a data centre, TLC flash"),
    ("hdd", "a hard disk: drive=scsi2002 (default), sata2010, sata; toml=FILE; disksim=FILE"),
    ("raid0", "members side by side, as in raid0:12xssd or raid0:2xssd+1xnvme"),
];

/// Builds the device that `spec` names; all that is random in it follows from `seed`.
///
/// # Errors
/// The name or a parameter is unknown, or a value can't be used.
pub fn build(spec: &Spec, seed: u64) -> Result<BoxedDevice, SpecError> {
    match spec.name.split(':').next().unwrap_or_default() {
        "ssd" => Ok(Box::new(Ssd::from_spec(spec, &ssd::sata_2012())?)),
        "nvme" => Ok(Box::new(Ssd::from_spec(spec, &ssd::nvme_today())?)),
        "hdd" => {
            Ok(Box::new(hdd::build_hdd(spec, seed).map_err(|error| refused_hdd(spec, error))?))
        }
        "raid0" => build_raid0(spec, seed),
        _ => Err(unknown(spec)),
    }
}

/// Every parameter of the device that `spec` names, with the value in force.
///
/// # Errors
/// As [`build`].
pub fn describe(spec: &Spec) -> Result<Vec<Parameter>, SpecError> {
    match spec.name.split(':').next().unwrap_or_default() {
        "ssd" => Ok(Settings::read(spec, &ssd::sata_2012())?.parameters()),
        "nvme" => Ok(Settings::read(spec, &ssd::nvme_today())?.parameters()),
        "hdd" => hdd::parameters(spec).map_err(|error| refused_hdd(spec, error)),
        "raid0" => {
            let (own, members) = members(spec, "ssd")?;
            let mut parameters = Settings::read(&own, &RAID0_KNOBS)?.parameters();
            for member in members {
                let prefix = member.spec.name.clone();
                parameters.extend(describe(&member.spec)?.into_iter().map(|parameter| Parameter {
                    name: format!("{prefix}.{}", parameter.name),
                    ..parameter
                }));
            }
            Ok(parameters)
        }
        _ => Err(unknown(spec)),
    }
}

const RAID0_KNOBS: [Knob; 1] = [Knob {
    key: "stripe",
    what: "bytes on one member before the next one's turn",
    quantity: Quantity::Bytes,
    default: 64 << 10,
    least: SECTOR_BYTES,
    most: 1 << 30,
    source: "the record size of the published 12-disk tables; md's own default is 512k",
}];

fn build_raid0(spec: &Spec, seed: u64) -> Result<BoxedDevice, SpecError> {
    let (own, members) = members(spec, "")?;
    let settings = Settings::read(&own, &RAID0_KNOBS)?;
    let stripe_bytes = settings.of("stripe");
    if stripe_bytes % SECTOR_BYTES != 0 {
        return Err(settings.refuse("stripe", "a multiple of 512 bytes".to_owned()));
    }
    let mut devices: Vec<BoxedDevice> = Vec::new();
    for member in &members {
        for _ in 0..member.count {
            let member_seed = seed.wrapping_mul(31).wrapping_add(devices.len() as u64 + 1);
            devices.push(build(&member.spec, member_seed)?);
        }
    }
    let chunk_sectors = stripe_bytes / SECTOR_BYTES;
    if devices.iter().all(|device| device.caps().sectors < chunk_sectors) {
        return Err(settings.refuse("stripe", "no more bytes than a member has".to_owned()));
    }
    Ok(Box::new(Raid0::new(devices, chunk_sectors as u32)))
}

/// So many members of one sort.
struct Members {
    count: u32,
    spec: Spec,
}

/// Splits `NAME:2xA+B,key=…,A.key=…` into the array's own parameters and its members;
/// a bare `NAME` has one member called `alone`.
fn members(spec: &Spec, alone: &str) -> Result<(Spec, Vec<Members>), SpecError> {
    let (name, list) = spec.name.split_once(':').unwrap_or((&spec.name, alone));
    let expected =
        || format!("members as in {name}:12xssd or {name}:2xssd+1xnvme, {MEMBERS_MAX} at most");
    let refused = |value: &str| SpecError::BadValue {
        name: name.to_owned(),
        key: "members".to_owned(),
        value: value.to_owned(),
        expected: expected(),
    };
    let mut members = Vec::new();
    let mut count_all = 0u32;
    for item in list.split('+') {
        let (count, member) = match item.split_once('x') {
            Some((count, member)) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                (count.parse().map_err(|_| refused(list))?, member)
            }
            _ => (1, item),
        };
        count_all = count_all.saturating_add(count);
        if count == 0 || count_all > MEMBERS_MAX || member.is_empty() {
            return Err(refused(list));
        }
        members.push(Members { count, spec: Spec::plain(member) });
    }
    let mut own = Spec::plain(name);
    for (key, value) in &spec.parameters {
        let Some((prefix, member_key)) = key.split_once('.') else {
            own.parameters.insert(key.clone(), value.clone());
            continue;
        };
        let mut is_taken = false;
        for member in members.iter_mut().filter(|member| member.spec.name == prefix) {
            member.spec.parameters.insert(member_key.to_owned(), value.clone());
            is_taken = true;
        }
        if !is_taken {
            return Err(refused(list));
        }
    }
    Ok((own, members))
}

/// A description file is the value of one parameter of the spec that names it.
fn refused_hdd(spec: &Spec, error: HddError) -> SpecError {
    match error {
        HddError::Spec(error) => error,
        HddError::File(error) => {
            let (key, value) = spec.parameters.iter().next_back().expect("a file has a key");
            SpecError::BadValue {
                name: spec.name.clone(),
                key: key.clone(),
                value: value.clone(),
                expected: format!("a file that describes a drive; {error}"),
            }
        }
    }
}

fn unknown(spec: &Spec) -> SpecError {
    SpecError::UnknownName {
        kind: "device",
        name: spec.name.clone(),
        known: DEVICES.iter().map(|(name, _)| *name).collect(),
    }
}

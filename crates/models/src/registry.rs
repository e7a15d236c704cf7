//! Registry of simulated devices: builds a device from its text form.
//!
//! `NAME,key=value,…` names one device. Composed devices name their members after a colon:
//!
//! - `raid0:12xhdd` stripes over twelve equal members, `raid0:2xssd+1xnvme` over mixed ones.
//! - `nfs:ssd` and `faulty:ssd` wrap one member.
//! - `changing:nvme+ssd` takes two members.
//!
//! Members can be composed themselves, as in `nfs:raid0:4xssd`. A key with a member's name before a
//! dot is passed to those members, at any depth: `raid0:12xssd,ssd.size=1g`,
//! `faulty:nfs:raid0:4xssd,nfs.rtt=1ms,ssd.size=1g`. [`describe`] lists the parameters of a device,
//! with unit and source. It uses the same tables as the parser.

use std::sync::{PoisonError, RwLock};

use readpath_core::policy::{RegisterError, Spec, SpecError};
use readpath_core::unit::SECTOR_BYTES;

use super::changing::{self, Changing};
use super::faulty::{self, Faulty};
use super::hdd::{self, HddError};
use super::measured::{self, MeasuredDevice, MeasuredError};
use super::nfs::{self, Nfs};
use super::object::{self, Object};
use super::parameter::DeviceParameter;
use super::parameter_spec::{ParameterQuantity, ParameterSpec, ParameterValues};
use super::raid0::{MEMBERS_MAX, Raid0};
use super::random::SeededRng;
use super::smr::{self, Smr};
use super::ssd::{self, Ssd};
use super::volume::{self, Volume};
use super::{BoxedDevice, array};
use crate::fields::FileError;

/// Names of the devices of this crate, each with a one-line description.
pub const DEVICES: &[(&str, &str)] = &[
    (
        "hdd",
        "a hard disk: drive=scsi2002 (default), scsi2001, sata2010, sata2012, sata, archive; toml=FILE; disksim=FILE; rpm=N, …",
    ),
    ("smr", "a shingled hard disk of 8 TB with a persistent cache: smr, smr:hdd"),
    ("ssd", "a SATA solid-state drive of 2012; twice as fast as an SSD 520 up to depth 4"),
    ("ssd520", "the same with the measured reads of an Intel SSD 520 at low queue depths"),
    ("nvme", "a data centre's NVMe solid-state drive, TLC flash"),
    ("nvme5", "a data centre's NVMe solid-state drive on PCI Express 5.0: 14 GB/s"),
    ("mqsim", "the solid-state drive of the simulator MQSim's default configuration"),
    ("raid0", "striped members: raid0, raid0:4xssd, raid0:2xssd+1xhdd"),
    ("array", "members behind a controller with memory and one link: array, array:6xssd"),
    ("nfs", "an NFS mount; the member is the server's storage: nfs, nfs:raid0:4xhdd"),
    ("object", "an object store, read in ranges"),
    ("gp2", "an Amazon EBS volume: 3 IOPS for each GiB, bursts of 3,000"),
    ("gp3", "an Amazon EBS volume: 3,000 IOPS and 125 MiB/s"),
    ("st1", "an Amazon EBS volume on disks: 40 MiB/s for each TiB, bursts of 250"),
    ("sc1", "an Amazon EBS volume on disks: 12 MiB/s for each TiB, bursts of 80"),
    ("measured", "real storage, measured by `readpath devices measure`: measured,toml=FILE"),
    ("faulty", "a device with configured failures: faulty:nvme,fail_every=100"),
    ("changing", "one member first, another after a given time: changing:nvme+ssd,at=2s"),
];

/// Names of the composed devices, which take members after a colon.
const COMPOSED: [&str; 6] = ["smr", "raid0", "array", "nfs", "faulty", "changing"];

/// A device of another crate, to be [registered](register).
#[derive(Clone, Copy, Debug)]
pub struct DeviceEntry {
    /// Name by which the device is chosen.
    pub name: &'static str,
    /// Description in one line.
    pub line: &'static str,
    /// Parameters, each with unit, bounds and source. [`ParameterValues::read`] reads them.
    pub parameters: &'static [ParameterSpec],
    /// Constructor. All randomness in the device derives from the seed.
    pub build: fn(&Spec, u64) -> Result<BoxedDevice, SpecError>,
}

static REGISTERED: RwLock<Vec<DeviceEntry>> = RwLock::new(Vec::new());

/// Registers a device of another crate. Its name is then valid wherever a device is named: alone,
/// as a member of a composed device, and in the command.
///
/// # Errors
/// The name is malformed or taken.
pub fn register(device: DeviceEntry) -> Result<(), RegisterError> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let built_in = DEVICES.iter().map(|(name, _)| *name);
    let names = built_in.chain(registered.iter().map(|device| device.name));
    RegisterError::check(device.name, names)?;
    registered.push(device);
    Ok(())
}

/// The devices of this crate, then the registered ones: names and one-line descriptions.
pub fn devices() -> Vec<(&'static str, &'static str)> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let registered = registered.iter().map(|device| (device.name, device.line));
    DEVICES.iter().copied().chain(registered).collect()
}

/// Returns the registered device that `spec` names; `None` for any other name.
fn find_registered(spec: &Spec) -> Option<DeviceEntry> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    registered.iter().find(|device| device.name == base_name(spec)).copied()
}

/// Builds the device that `spec` names. All randomness in the device derives from `seed`.
///
/// # Errors
/// Fails when the name or a parameter is unknown, or when a value is invalid.
pub fn build(spec: &Spec, seed: u64) -> Result<BoxedDevice, SpecError> {
    refuse_members(spec)?;
    match base_name(spec) {
        "ssd" => Ok(Box::new(Ssd::from_spec(spec, &ssd::sata_2012())?)),
        "ssd520" => Ok(Box::new(Ssd::from_spec(spec, &ssd::intel_520())?)),
        "nvme" => Ok(Box::new(Ssd::from_spec(spec, &ssd::nvme_today())?)),
        "nvme5" => Ok(Box::new(Ssd::from_spec(spec, &ssd::nvme_gen5())?)),
        "mqsim" => Ok(Box::new(Ssd::from_spec(spec, &ssd::mqsim())?)),
        "hdd" => match hdd::build_hdd(spec, seed) {
            Ok(disk) => Ok(Box::new(disk)),
            Err(error) => Err(disk_error(spec, error)),
        },
        "smr" => {
            let composed = ComposedDevice::parse(spec)?;
            let member = composed.build_only_member(SeededRng::new(seed).bits())?;
            Ok(Box::new(Smr::from_spec(&composed.own_spec, member)?))
        }
        "object" => Ok(Box::new(Object::from_spec(spec, seed)?)),
        "gp2" => Ok(Box::new(Volume::from_spec(spec, &volume::gp2())?)),
        "gp3" => Ok(Box::new(Volume::from_spec(spec, &volume::gp3())?)),
        "st1" => Ok(Box::new(Volume::from_spec(spec, &volume::st1())?)),
        "sc1" => Ok(Box::new(Volume::from_spec(spec, &volume::sc1())?)),
        "measured" => match MeasuredDevice::from_spec(spec, seed) {
            Ok(storage) => Ok(Box::new(storage)),
            Err(error) => Err(measured_error(spec, error)),
        },
        "raid0" => {
            let composed = ComposedDevice::parse(spec)?;
            let settings = ParameterValues::read(&composed.own_spec, &RAID0_PARAMETERS)?;
            Ok(Box::new(composed.build_striped(&settings, seed)?))
        }
        "array" => {
            let composed = ComposedDevice::parse(spec)?;
            let settings = ParameterValues::read(&composed.own_spec, &array::PARAMETERS)?;
            let members = Box::new(composed.build_striped(&settings, seed)?);
            Ok(Box::new(array::build(&settings, members)))
        }
        "nfs" => {
            let composed = ComposedDevice::parse(spec)?;
            let mut rng = SeededRng::new(seed);
            let member = composed.build_only_member(rng.bits())?;
            Ok(Box::new(Nfs::from_spec(&composed.own_spec, member, rng.bits())?))
        }
        "faulty" => {
            let composed = ComposedDevice::parse(spec)?;
            let mut rng = SeededRng::new(seed);
            let member = composed.build_only_member(rng.bits())?;
            let faults = Faulty::faults(&composed.own_spec)?;
            Ok(Box::new(Faulty::new(member, faults, rng.bits())))
        }
        "changing" => {
            let composed = ComposedDevice::parse(spec)?;
            let [first, second] = composed.build_two_members(seed)?;
            Ok(Box::new(Changing::from_spec(&composed.own_spec, first, second)?))
        }
        _ => match find_registered(spec) {
            Some(device) => (device.build)(spec, seed),
            None => Err(unknown_device_error(spec)),
        },
    }
}

/// Returns every parameter of the device that `spec` names, with its current value. The parameters
/// of members follow the device's own, each prefixed with the member's name.
///
/// # Errors
/// Fails when the name or a parameter is unknown, or when a value is invalid. A wrong number of
/// members, a stripe larger than every member, and most contradictions between parameters are
/// errors of [`build`] only.
pub fn describe(spec: &Spec) -> Result<Vec<DeviceParameter>, SpecError> {
    refuse_members(spec)?;
    let own_parameters = |parameter_specs: &[ParameterSpec]| {
        Ok(ParameterValues::read(spec, parameter_specs)?.parameters())
    };
    let with_members = |parameter_specs: &[ParameterSpec]| {
        let composed = ComposedDevice::parse(spec)?;
        let own_values = ParameterValues::read(&composed.own_spec, parameter_specs)?;
        let mut parameters = own_values.parameters();
        for MemberGroup { spec, .. } in &composed.members {
            parameters.extend(describe(spec)?.into_iter().map(|parameter| DeviceParameter {
                name: format!("{}.{}", spec.name, parameter.name),
                ..parameter
            }));
        }
        Ok(parameters)
    };
    match base_name(spec) {
        "ssd" => own_parameters(&ssd::sata_2012()),
        "ssd520" => own_parameters(&ssd::intel_520()),
        "nvme" => own_parameters(&ssd::nvme_today()),
        "nvme5" => own_parameters(&ssd::nvme_gen5()),
        "mqsim" => own_parameters(&ssd::mqsim()),
        "hdd" => hdd::parameters(spec).map_err(|error| disk_error(spec, error)),
        "object" => own_parameters(&object::PARAMETERS),
        "gp2" => own_parameters(&volume::gp2()),
        "gp3" => own_parameters(&volume::gp3()),
        "st1" => own_parameters(&volume::st1()),
        "sc1" => own_parameters(&volume::sc1()),
        "measured" => measured::parameters(spec).map_err(|error| measured_error(spec, error)),
        "raid0" => with_members(&RAID0_PARAMETERS),
        "array" => with_members(&array::PARAMETERS),
        "nfs" => with_members(&nfs::PARAMETERS),
        "smr" => with_members(&smr::PARAMETERS),
        "faulty" => with_members(&faulty::PARAMETERS),
        "changing" => with_members(&changing::PARAMETERS),
        _ => match find_registered(spec) {
            Some(device) => own_parameters(device.parameters),
            None => Err(unknown_device_error(spec)),
        },
    }
}

/// Returns the properties that the device's description states and its model ignores, one sentence
/// each. Only hard disks have any, also as members. The list is empty for a device that cannot be
/// built.
pub fn unmodelled(spec: &Spec) -> Vec<String> {
    match base_name(spec) {
        "hdd" => hdd::drive_of(spec).map(|drive| drive.unmodelled).unwrap_or_default(),
        name if COMPOSED.contains(&name) => {
            let members = ComposedDevice::parse(spec).map(|composed| composed.members);
            members.unwrap_or_default().iter().flat_map(|member| unmodelled(&member.spec)).collect()
        }
        _ => Vec::new(),
    }
}

/// Parameters of `raid0`.
const RAID0_PARAMETERS: [ParameterSpec; 1] = [ParameterSpec {
    key: "stripe",
    description: "bytes on one member before the next one's turn",
    quantity: ParameterQuantity::Bytes,
    default: 512 << 10,
    least: SECTOR_BYTES,
    most: 1 << 30,
    source: "published: mdadm(8), --chunk defaults to 512k",
}];

/// Returns the default members of a composed device whose text names no members.
fn default_members(spec: &Spec) -> &'static str {
    match base_name(spec) {
        "nfs" | "smr" => "hdd",
        "faulty" => "ssd",
        "changing" => "nvme+ssd",
        // `raid0` and `array`.
        _ => "12xhdd",
    }
}

/// Refuses members, or a path, after the name of a built-in device that takes none. A registered
/// device sees the whole text itself.
fn refuse_members(spec: &Spec) -> Result<(), SpecError> {
    let Some((name, rest)) = spec.name.split_once(':') else { return Ok(()) };
    let is_built_in = DEVICES.iter().any(|(built_in, _)| *built_in == name);
    if !is_built_in || COMPOSED.contains(&name) {
        return Ok(());
    }
    let expected = format!(
        "no members: `{name}` takes none; for a real device write file:PATH or kernel:PATH"
    );
    let (key, value) = ("members".to_owned(), rest.to_owned());
    Err(SpecError::BadValue { name: name.to_owned(), key, value, expected })
}

/// Returns the device's own name: the part before the first colon.
fn base_name(spec: &Spec) -> &str {
    spec.name.split(':').next().unwrap_or_default()
}

/// Converts an error of a hard disk. A description file is the value of one parameter of `spec`, so
/// an error in the file is reported as a bad value of that parameter.
fn disk_error(spec: &Spec, error: HddError) -> SpecError {
    match error {
        HddError::Spec(error) => error,
        HddError::File(error) => file_error(spec, "a file that describes a drive", &error),
    }
}

/// Converts an error of a `measured` device, like `disk_error`.
fn measured_error(spec: &Spec, error: MeasuredError) -> SpecError {
    match error {
        MeasuredError::Spec(error) => error,
        MeasuredError::File(error) => {
            file_error(spec, "a file that `readpath devices measure` wrote", &error)
        }
    }
}

/// Reports an error in a description as a bad value of a parameter. This is the parameter that
/// overrides the wrong field, or else the one that names the file. A built-in drive has neither if
/// a field contradicts an overridden one: then it is the first parameter. Without any parameter,
/// key and value are empty.
fn file_error(spec: &Spec, expected: &str, error: &FileError) -> SpecError {
    // A parameter has the block of its field too: `queue.window`.
    let overrides_field =
        |(key, _): &(&String, &String)| key.rsplit('.').next() == Some(error.field.as_str());
    let names_file = |(key, _): &(&String, &String)| matches!(key.as_str(), "toml" | "disksim");
    let parameters = || spec.parameters.iter();
    let overriding = parameters().find(overrides_field);
    let file = overriding.is_none().then(|| parameters().find(names_file)).flatten();
    let parameter = overriding.or(file).or_else(|| parameters().next());
    let (key, value) = parameter
        .map_or((String::new(), String::new()), |(key, value)| (key.clone(), value.clone()));
    let expected = match file {
        Some(_) => format!("{expected}; {error}"),
        None => format!("other values; {error}"),
    };
    SpecError::BadValue { name: spec.name.clone(), key, value, expected }
}

/// Returns the error for an unknown device name, with the list of known names.
fn unknown_device_error(spec: &Spec) -> SpecError {
    SpecError::UnknownName {
        kind: "device",
        name: base_name(spec).to_owned(),
        known: devices().into_iter().map(|(name, _)| name).collect(),
    }
}

/// A composed device, parsed into its own parameters and its members.
struct ComposedDevice {
    /// Name and parameters of the composed device itself.
    own_spec: Spec,
    /// Members, in the order of the text.
    members: Vec<MemberGroup>,
}

/// A number of equal members, each described by `spec`.
struct MemberGroup {
    /// Number of members.
    count: u32,
    spec: Spec,
}

impl ComposedDevice {
    /// Parses `NAME:2xA+B,key=…,A.key=…`: a composed device, its members, and their parameters. A
    /// parameter with a member's name goes to all members of this name, and any other parameter to
    /// the composed device.
    ///
    /// # Errors
    /// A number of members is 0 or no number, a member has no name, or there are more than
    /// [`MEMBERS_MAX`].
    fn parse(spec: &Spec) -> Result<ComposedDevice, SpecError> {
        let (name, list) = spec.name.split_once(':').unwrap_or((&spec.name, default_members(spec)));
        let mut members: Vec<MemberGroup> = Vec::new();
        let mut count_in_all = 0u32;
        // A device with one member passes a `+` on to that member if the member is composed.
        let is_one_member = matches!(name, "nfs" | "smr" | "faulty") && list.contains(':');
        for item in list.split(|letter| letter == '+' && !is_one_member) {
            let (digits, member) = split_count(item);
            let count = digits.map_or(Ok(1), str::parse);
            let count = count.map_err(|_| member_list_error(spec, list))?;
            count_in_all = count_in_all.saturating_add(count);
            if count == 0 || count_in_all > MEMBERS_MAX || member.is_empty() {
                return Err(member_list_error(spec, list));
            }
            members.push(MemberGroup { count, spec: Spec::plain(member) });
        }
        // The default member of `smr` is the `hdd` with the mechanics of a shingled drive.
        if name == "smr" && !spec.name.contains(':') {
            let drive = ("drive".to_owned(), "archive".to_owned());
            members[0].spec.parameters.extend([drive]);
        }
        let mut own_spec = Spec::plain(name);
        for (key, value) in &spec.parameters {
            let mut is_of_member = false;
            for member in &mut members {
                if let Some(member_key) = key_of_member(key, &member.spec) {
                    member.spec.parameters.insert(member_key.to_owned(), value.clone());
                    is_of_member = true;
                }
            }
            if !is_of_member {
                own_spec.parameters.insert(key.clone(), value.clone());
            }
        }
        Ok(ComposedDevice { own_spec, members })
    }

    /// Builds the members as a striped array. `settings` contains the stripe size. Fails if the
    /// stripe is not made of whole sectors, or if it is larger than every member. Each member gets
    /// a seed of its own, drawn from `seed`.
    fn build_striped(&self, settings: &ParameterValues, seed: u64) -> Result<Raid0, SpecError> {
        let stripe_bytes = settings.of("stripe");
        if !stripe_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(settings.contradiction("stripe", "a multiple of 512 bytes".to_owned()));
        }
        let mut rng = SeededRng::new(seed);
        let mut devices: Vec<BoxedDevice> = Vec::new();
        for member in &self.members {
            for _ in 0..member.count {
                devices.push(build(&member.spec, rng.bits())?);
            }
        }
        let chunk_sectors = stripe_bytes / SECTOR_BYTES;
        if devices.iter().all(|device| device.caps().sectors < chunk_sectors) {
            return Err(
                settings.contradiction("stripe", "no more bytes than a member has".to_owned())
            );
        }
        Ok(Raid0::new(devices, chunk_sectors as u32))
    }

    /// Builds the only member of a device that takes exactly one. Any other number is an error.
    fn build_only_member(&self, seed: u64) -> Result<BoxedDevice, SpecError> {
        match self.members.as_slice() {
            [MemberGroup { count: 1, spec }] => build(spec, seed),
            _ => Err(self.member_count_error("one member", "ssd", "raid0:4xhdd")),
        }
    }

    /// Builds the members of a device that takes exactly two. Any other number is an error.
    fn build_two_members(&self, seed: u64) -> Result<[BoxedDevice; 2], SpecError> {
        let mut rng = SeededRng::new(seed);
        match self.members.as_slice() {
            [MemberGroup { count: 1, spec: first }, MemberGroup { count: 1, spec: second }] => {
                Ok([build(first, rng.bits())?, build(second, rng.bits())?])
            }
            _ => Err(self.member_count_error("two members", "nvme+ssd", "raid0:4xhdd+raid0:8xhdd")),
        }
    }

    /// Returns the error for a wrong number of members. `example_1` and `example_2` are valid ones.
    fn member_count_error(&self, expected: &str, example_1: &str, example_2: &str) -> SpecError {
        let count: u32 = self.members.iter().map(|members| members.count).sum();
        let name = &self.own_spec.name;
        SpecError::BadValue {
            name: name.clone(),
            key: "members".to_owned(),
            value: count.to_string(),
            expected: format!("{expected}, as in {name}:{example_1} or {name}:{example_2}"),
        }
    }
}

/// Returns the form in which `member` receives `key`, or `None` when the key is not addressed to
/// it. The prefix is removed if it is the member's name. The key stays complete if it addresses a
/// device further inside the member.
fn key_of_member<'a>(key: &'a str, member: &Spec) -> Option<&'a str> {
    let (name, rest) = key.split_once('.')?;
    if name == member.name || name == base_name(member) {
        return Some(rest);
    }
    let (_, inner) = member.name.split_once(':')?;
    let is_inside = inner.split([':', '+']).any(|item| item == name || split_count(item).1 == name);
    is_inside.then_some(key)
}

/// Splits an item of a list of members, as `12xhdd`, into the digits of its number of members and
/// the member. The number is `None` for an item without one, as `ssd` or the name `xpoint`.
fn split_count(item: &str) -> (Option<&str>, &str) {
    match item.split_once('x') {
        Some((digits, member))
            if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (Some(digits), member)
        }
        _ => (None, item),
    }
}

/// Returns the error for a malformed list of members.
fn member_list_error(spec: &Spec, list: &str) -> SpecError {
    let name = base_name(spec);
    SpecError::BadValue {
        name: name.to_owned(),
        key: "members".to_owned(),
        value: list.to_owned(),
        expected: format!(
            "members after a colon, as in {name}:ssd, {name}:12xhdd or {name}:2xssd+1xhdd; \
             {MEMBERS_MAX} at most"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the message with which `build` rejects a device text.
    fn build_error(text: &str) -> String {
        build(&Spec::parse(text).unwrap(), 0).err().expect(text).to_string()
    }

    /// Returns the size in sectors of the device of a valid text.
    fn sectors(text: &str) -> u64 {
        build(&Spec::parse(text).unwrap(), 0)
            .unwrap_or_else(|error| panic!("{error}"))
            .caps()
            .sectors
    }

    /// A field of a built-in drive that contradicts another one is a bad value of its parameter.
    #[test]
    fn contradicting_fields_of_a_drive_are_reported() {
        for text in [
            "hdd,drive=sata2010,queue.depth=1,queue.window=9",
            "hdd,queue.window=99",
            "hdd,queue.depth=3,queue.window=4",
        ] {
            let message = build_error(text);
            assert!(message.contains("queue.window") && message.contains("depth"), "{message}");
        }
    }

    /// The members' sizes, 1 or 2 GiB, show that each key reaches its member, at any depth.
    #[test]
    fn members_are_counted_mixed_composed_and_given_their_own_parameters() {
        let mib = (1 << 20) / SECTOR_BYTES; // in sectors
        assert_eq!(sectors("raid0:12xssd,ssd.size=1g"), 12 * 1_024 * mib);
        assert_eq!(sectors("raid0:2xssd+1xnvme,ssd.size=1g,nvme.size=2g"), 4 * 1_024 * mib);
        assert_eq!(sectors("nfs:raid0:4xssd,raid0:4xssd.ssd.size=1g"), 4 * 1_024 * mib);
        for size_key in ["ssd.size=1g", "raid0.ssd.size=1g", "nfs.raid0.ssd.size=1g"] {
            let text = format!("faulty:nfs:raid0:4xssd,{size_key},nfs.rtt=1ms,raid0.stripe=64k");
            assert_eq!(sectors(&text), 4 * 1_024 * mib, "{size_key}");
        }
        let mixed = "faulty:raid0:2xssd+1xnvme,ssd.size=1g,nvme.size=2g,fail_every=9";
        assert_eq!(sectors(mixed), 4 * 1_024 * mib);
        assert_eq!(sectors("faulty:array:2xssd"), sectors("raid0:2xssd,stripe=256k"));
    }

    /// The registered device has 1 GiB.
    #[test]
    fn registered_device_whose_name_begins_with_x_is_a_member() {
        fn build_ssd(_: &Spec, seed: u64) -> Result<BoxedDevice, SpecError> {
            build(&Spec::parse("ssd,size=1g").unwrap(), seed)
        }
        let entry =
            DeviceEntry { name: "xpoint", line: "a test", parameters: &[], build: build_ssd };
        register(entry).unwrap();
        let gib = (1 << 30) / SECTOR_BYTES; // in sectors
        assert_eq!(sectors("raid0:xpoint"), gib);
        assert_eq!(sectors("raid0:2xxpoint+xpoint"), 3 * gib);
        assert_eq!(sectors("faulty:raid0:3xxpoint"), 3 * gib);
        // `point` names no member of the list.
        let error = build_error("faulty:nfs:xpoint,point.size=1g");
        assert!(error.contains("no parameter `point.size`"), "{error}");
    }

    #[test]
    fn unknown_devices_and_parameters_are_refused_with_the_known_ones() {
        assert!(build_error("floppy").starts_with("there is no device `floppy`; there are: "));
        assert!(build_error("raid0:2xfloppy").starts_with("there is no device `floppy`"));
        let ssd_error = build_error("ssd,rpm=7200");
        assert!(ssd_error.starts_with("`ssd` has no parameter `rpm`; it takes: size"));
        let member_error = build_error("raid0:2xssd,ssd.rpm=7200");
        assert!(member_error.starts_with("`ssd` has no parameter `rpm`"));
        assert!(build_error("raid0:2xssd,nvme.size=1g").contains("no parameter `nvme.size`"));
        assert!(build_error("faulty:nfs:ssd,nvme.size=1g").contains("no parameter `nvme.size`"));
        for text in ["raid0:", "raid0:0xssd", "raid0:99999xssd", "raid0:2xssd+"] {
            let error = build_error(text);
            assert!(error.contains("members after a colon"), "{text}: {error}");
        }
        let missing = build_error("hdd,toml=/no/such.toml,write=1");
        assert!(missing.starts_with("`hdd,toml=/no/such.toml`: expected a file"), "{missing}");
        assert!(build_error("nfs:2xssd").contains("one member"));
        for text in ["changing:ssd", "changing:2xssd", "changing:ssd+ssd+nvme"] {
            let error = build_error(text);
            assert!(error.contains("two members"), "{text}: {error}");
        }
        assert!(build_error("raid0:2xssd,stripe=1000").contains("a multiple of 512 bytes"));
        assert!(build_error("raid0:2xssd,ssd.size=1m,stripe=2m").contains("no more bytes"));
    }

    #[test]
    fn other_devices_refuse_a_path_and_members_after_their_name() {
        let composed = ["smr", "raid0", "array", "nfs", "faulty", "changing"];
        for (name, _) in DEVICES.iter().filter(|(name, _)| !composed.contains(name)) {
            for text in [format!("{name}:"), format!("{name}:/dev/sdb"), format!("{name}:4xhdd")] {
                assert!(describe(&Spec::parse(&text).unwrap()).is_err(), "{text}");
                let error = build_error(&text);
                assert!(error.contains("takes none; for a real device write file:"), "{error}");
            }
        }
        for text in ["raid0:2xnvme:hdd", "array:6xssd:hdd", "nfs:ssd:x", "changing:nvme+ssd:x"] {
            let error = build_error(text);
            assert!(
                error.contains("`ssd` takes none") || error.contains("`nvme` takes"),
                "{error}"
            );
        }
    }

    #[test]
    fn every_name_in_the_list_can_be_built_and_described_alone() {
        for (name, line) in DEVICES {
            assert!(!line.is_empty());
            let spec = Spec::plain(name);
            assert!(build(&spec, 0).is_ok(), "{name}");
            assert!(!describe(&spec).unwrap().is_empty(), "{name}");
        }
    }
}

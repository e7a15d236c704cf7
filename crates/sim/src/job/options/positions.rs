//! Options about positions: random positions, their distribution and seed, zones.

use super::{FioOption, refused, supported};
use crate::job::draft::ZoneMode;
use crate::job::value::{BYTES_FORM, ExpectedForm, OptionValue};
use crate::job::{Distribution, DistributionZone, Generator};

/// Reason why options of zoned block devices are rejected.
const ZONED: &str = "no storage here is a zoned block device";

/// Default exponent of `zipf`, from fio's manual.
const ZIPF_THETA_DEFAULT: f64 = 1.1;

/// Default power of `pareto`, from fio's manual.
const PARETO_POWER_DEFAULT: f64 = 0.2;

/// Default deviation of `normal`, in percent of the blocks.
const NORMAL_DEVIATION_DEFAULT: f64 = 0.0;

/// Maximum number of zones of a distribution, as in fio.
const DISTRIBUTION_ZONES_MAX: usize = 256;

pub const TABLE: &[FioOption] = &[
    supported("randrepeat", &[], "0: another run, other places (1)", |draft, value| {
        value.switch().map(|on| draft.job.is_repeatable = on)
    }),
    supported(
        "allrandrepeat",
        &[],
        "1: all random numbers are the same in each run, whatever `randseed` is (0)",
        |draft, value| value.switch().map(|on| draft.job.is_all_repeatable = on),
    ),
    supported("randseed", &[], "seed of the random places (137)", |draft, value| {
        (draft.job.seed, draft.job.has_seed) = (value.integer(0..=u64::MAX)?, true);
        Ok(())
    }),
    supported(
        "random_generator",
        &[],
        "tausworthe, lfsr, tausworthe64; permutation, which fio has not (tausworthe)",
        |draft, value| {
            let words = [
                ("tausworthe", Generator::Tausworthe),
                ("lfsr", Generator::Lfsr),
                ("tausworthe64", Generator::Tausworthe64),
                ("permutation", Generator::Permutation),
            ];
            value.one_of(&words).map(|generator| draft.job.generator = generator)
        },
    ),
    supported("norandommap", &[], "random places may repeat", |draft, value| {
        value.switch().map(|on| draft.job.has_random_map = !on)
    }),
    supported(
        "softrandommap",
        &[],
        "random places may repeat where no map can be had",
        |_, value| {
            // A map is always available, or the job is rejected.
            value.switch().map(|_| ())
        },
    ),
    supported(
        "random_distribution",
        &[],
        "random, zipf:THETA, pareto:POWER, normal:DEVIATION, each with :CENTER from 0 to 1; \
         zoned:OPERATIONS/PERCENT:…, zoned_abs:OPERATIONS/BYTES:… (random)",
        |draft, value| parse_distribution(value).map(|spread| draft.job.distribution = spread),
    ),
    supported(
        "percentage_random",
        &[],
        "of a hundred places of a random job, how many are random, or READS,WRITES (100)",
        |draft, value| {
            value.for_each_direction(&mut draft.job.random_percent, |part| part.integer(0..=100))
        },
    ),
    supported("zonemode", &[], "none, strided (none)", |draft, value| {
        if value.text == "zbd" {
            draft.rejection = Some(ZONED);
            return Ok(());
        }
        let words = [("none", ZoneMode::None), ("strided", ZoneMode::Strided)];
        value.one_of(&words).map(|mode| draft.zone_mode = Some(mode))
    }),
    supported(
        "zonesize",
        &["zone_size"],
        "bytes that are moved in each zone; needs zonemode=strided",
        |draft, value| value.bytes_in(0..=u64::MAX).map(|bytes| draft.zone_moved_bytes = bytes),
    ),
    supported("zonerange", &["zone_range"], "bytes in each zone (zonesize)", |draft, value| {
        value.bytes_in(0..=u64::MAX).map(|bytes| draft.zone_range_bytes = bytes)
    }),
    supported("zoneskip", &["zone_skip"], "bytes between two zones (0)", |draft, value| {
        value.bytes_in(0..=u64::MAX).map(|bytes| draft.zone_skip_bytes = bytes)
    }),
    refused("zonecapacity", &["zone_capacity"], &["0"], ZONED),
    refused("read_beyond_wp", &[], &["0"], ZONED),
    refused("max_open_zones", &[], &["0"], ZONED),
    refused("job_max_open_zones", &[], &["0"], ZONED),
    refused("ignore_zone_limits", &[], &["0"], ZONED),
    refused("zone_reset_threshold", &[], &["0"], ZONED),
    refused("zone_reset_frequency", &[], &["0"], ZONED),
    refused("recover_zbd_write_error", &[], &["0"], ZONED),
    refused("fdp", &[], &["0"], "no device here takes placement hints"),
    refused("fdp_pli", &["plids"], &[], "no device here takes placement hints"),
    refused("fdp_pli_select", &["plid_select"], &[], "no device here takes placement hints"),
    refused("dataplacement", &[], &["none"], "no device here takes placement hints"),
    refused("dp_scheme", &[], &[], "no device here takes placement hints"),
    refused(
        "sprandom",
        &[],
        &["0"],
        "it prepares a drive by writing most of it twice; write its job out",
    ),
    refused("spr_op", &[], &[], "it belongs to sprandom"),
    refused("spr_num_regions", &[], &[], "it belongs to sprandom"),
    refused("spr_cs", &[], &[], "it belongs to sprandom"),
];

/// Parses `random_distribution`, such as `zipf:1.2` or `zoned:60/10:40/90`. The number after the
/// name is the parameter of the distribution. A second one, from 0 to 1, is its center: the
/// position of the most frequent block. Without a colon, the parameter has its default.
fn parse_distribution(value: OptionValue<'_>) -> Result<Distribution, ExpectedForm> {
    let mut parts = value.text.splitn(2, ':');
    let word = parts.next().unwrap_or_default();
    let argument = parts.next();
    if let ("zoned" | "zoned_abs", Some(zones)) = (word, argument) {
        let is_absolute = word == "zoned_abs";
        let zones = parse_zones_by_direction(value.part(zones), is_absolute)?;
        return Ok(Distribution::Zoned { zones, is_absolute });
    }
    let (number, center) =
        match argument.map(|argument| argument.split_once(':').unwrap_or((argument, ""))) {
            None => (None, None),
            Some((number, center)) => {
                let center = match center {
                    "" => None,
                    center => Some(value.part(center).fraction(0.0..=1.0)?),
                };
                (Some(value.part(number)), center)
            }
        };
    match word {
        "random" if argument.is_none() => Ok(Distribution::Uniform),
        // fio rejects 1, because its formula divides by 1 - theta, and is slow from 100 on.
        "zipf" => {
            let theta = number.map_or(Ok(ZIPF_THETA_DEFAULT), |theta| theta.fraction(0.0..=100.0));
            let theta = theta.ok().filter(|theta| *theta > 0.0 && *theta < 100.0 && *theta != 1.0);
            let expected = "random, zipf, or zipf:THETA with THETA above 0, below 100, not 1";
            Ok(Distribution::Zipf { theta: theta.ok_or(expected)?, center })
        }
        "pareto" => {
            let power = number.map_or(Ok(PARETO_POWER_DEFAULT), |power| power.fraction(0.0..=1.0));
            let power = power.ok().filter(|power| *power > 0.0 && *power < 1.0);
            let expected = "pareto, or pareto:POWER with POWER above 0, below 1";
            Ok(Distribution::Pareto { power: power.ok_or(expected)?, center })
        }
        "normal" => {
            let deviation = number
                .map_or(Ok(NORMAL_DEVIATION_DEFAULT), |deviation| deviation.fraction(0.0..=100.0));
            let deviation = deviation.ok().filter(|deviation| *deviation < 100.0);
            let expected = "normal, or normal:DEVIATION with DEVIATION from 0, below 100";
            Ok(Distribution::Normal { deviation_percent: deviation.ok_or(expected)?, center })
        }
        _ => {
            Err("random, zipf:THETA, pareto:POWER, normal:DEVIATION, zoned:… or zoned_abs:…"
                .to_owned())
        }
    }
}

/// Parses the zones of reads and the zones of writes. Zones of writes default to the zones of
/// reads. `is_absolute`: lengths are in bytes, otherwise in percent.
fn parse_zones_by_direction(
    value: OptionValue<'_>,
    is_absolute: bool,
) -> Result<[Vec<DistributionZone>; 2], ExpectedForm> {
    let mut zones_by_direction = [Vec::new(), Vec::new()];
    value.for_each_direction(&mut zones_by_direction, |part| parse_zones(part, is_absolute))?;
    Ok(zones_by_direction)
}

/// Parses zones. `60/10:30/20:8/30:2/40` puts 60 % of the operations in the first tenth of the
/// file, 30 % in the next fifth, and so on. `is_absolute`: lengths are in bytes, otherwise in
/// percent. Lengths in percent can be left out: such zones share the rest in equal whole percents.
///
/// Fails if the shares, or lengths in percent, are not 100 together. A rest that the open zones
/// cannot share evenly therefore fails too. Further errors are another form, a missing length in
/// bytes, and more than 256 zones.
fn parse_zones(
    value: OptionValue<'_>,
    is_absolute: bool,
) -> Result<Vec<DistributionZone>, ExpectedForm> {
    let expected = || match is_absolute {
        true => format!("OPERATIONS/BYTES:…, the operations 100 together: {BYTES_FORM}"),
        false => "OPERATIONS/PERCENT:…, each 100 together".to_owned(),
    };
    let mut parsed: Vec<(u8, Option<u64>)> = Vec::new();
    for part in value.text.split(':') {
        let (share, length) = part.split_once('/').unwrap_or((part, ""));
        let share = value.part(share).integer(0..=100).map_err(|_| expected())?;
        let length = match (length.trim(), is_absolute) {
            ("", false) => None,
            (length, true) => Some(value.part(length).bytes().ok_or_else(expected)?),
            (length, false) => {
                let percent = value.part(length).count().filter(|percent| *percent <= 100);
                Some(percent.ok_or_else(expected)?)
            }
        };
        parsed.push((share, length));
    }
    // Zones without a length, which only lengths in percent allow, share the rest equally. Without
    // such a zone, as with lengths in bytes, the divisor is 1 and the quotient is not used.
    // Lengths in bytes may have a sum of more than 2^64.
    let given_lengths = parsed.iter().filter_map(|(_, length)| *length);
    let percent_left = given_lengths.fold(100, u64::saturating_sub);
    let open_zones = parsed.iter().filter(|(_, length)| length.is_none()).count().max(1) as u64;
    let zone = |(share, length): (u8, Option<u64>)| DistributionZone {
        share,
        length: length.unwrap_or(percent_left / open_zones),
    };
    let zones: Vec<DistributionZone> = parsed.into_iter().map(zone).collect();
    let shares: u32 = zones.iter().map(|zone| u32::from(zone.share)).sum();
    let percent: u64 = zones.iter().map(|zone| zone.length).fold(0, u64::saturating_add);
    match shares == 100 && (is_absolute || percent == 100) && zones.len() <= DISTRIBUTION_ZONES_MAX
    {
        true => Ok(zones),
        false => Err(expected()),
    }
}

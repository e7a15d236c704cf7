//! The built-in solid-state drives, with a source for every value.
//!
//! - `ssd` is a SATA drive of 2012. The flash is from MQSim's published configuration (a 25 nm
//!   class MLC part). The link is SATA 6 Gb/s, and the controller rates are from a data sheet of
//!   that year.
//! - `ssd520` is the same drive with a longer overhead of reads, fitted to a review.
//! - `nvme` is a data-centre drive with TLC flash, modelled on the Micron 7300 PRO. The sense times
//!   are derived from the three modes of its published 4 KiB latencies at depth 1. The flash, which
//!   determines the write rate, is from the data sheet of a die of the same maker and generation.
//! - `nvme5` is a data-centre drive on PCI Express 5.0, modelled on the Micron 9550 MAX of 6.4 TB.
//!   The planes of its flash read independently of each other, so each plane is a die of the model.
//!   The program time is derived from the published write rate.
//! - `mqsim` is MQSim's published configuration, complete.

use super::super::parameter_spec::{ParameterQuantity, ParameterSpec};

/// A value and its source.
type ValueAndSource = (u64, &'static str);

/// Parameters whose values differ between the drives. `parameter_specs` describes each of them.
struct DriveValues {
    size: ValueAndSource,
    depth: ValueAndSource,
    link: ValueAndSource,
    link_duplex: ValueAndSource,
    read_overhead: ValueAndSource,
    write_overhead: ValueAndSource,
    power_loss_protection: ValueAndSource,
    command_interval: ValueAndSource,
    buffer: ValueAndSource,
    channels: ValueAndSource,
    dies_per_channel: ValueAndSource,
    planes: ValueAndSource,
    page: ValueAndSource,
    channel_rate: ValueAndSource,
    bits_per_cell: ValueAndSource,
    read_lsb: ValueAndSource,
    read_csb: ValueAndSource,
    read_msb: ValueAndSource,
    program_lsb: ValueAndSource,
    program_csb: ValueAndSource,
    program_msb: ValueAndSource,
    erase: ValueAndSource,
    pages_per_block: ValueAndSource,
    suspend_program: ValueAndSource,
    suspend_erase: ValueAndSource,
    map_span: ValueAndSource,
    spare: ValueAndSource,
    kept_free: ValueAndSource,
    parity: ValueAndSource,
    used: ValueAndSource,
}

/// One µs, in ns.
const US: u64 = 1_000;
/// One ms, in ns.
const MS: u64 = 1_000_000;
const MQSIM: &str = "published: MQSim's ssdconfig.xml (Tavakkol et al., FAST 2018)";
const MICRON_7300: &str =
    "data sheet: Micron 7300 PRO product brief (3,000 / 1,900 MB/s, 520,000 IOPS), 2019";
const B17A: &str =
    "data sheet: UT81NDQ512G8T, eight 512 Gbit TLC dies of Micron's 64-layer B17A, 2022";
const MQSIM_FREE: &str = "published: MQSim's ssdconfig.xml, GC_Exec_Threshold 0.05";
const NO_FIRMWARE: &str = "published: MQSim models no time of its firmware";
const SOURCE_LATENCY_MODES: &str = "derived: published modes of a Micron 7300 PRO's 4 KiB latency at depth 1 (88, 116, 165 µs) less the rest of the path";

/// The drive `ssd`.
const SATA_2012: DriveValues = DriveValues {
    size: (240_057_409_536, "standard: 240 GB drive, 468,862,128 sectors, IDEMA LBA1-03"),
    depth: (32, "standard: Serial ATA 3.0, native command queueing, 32 tags"),
    link: (
        550_000_000,
        "data sheet: SATA 6 Gb/s less 8b/10b and frames, data sheets of 2012 give 550 MB/s",
    ),
    link_duplex: (0, "standard: Serial ATA 3.0, data goes one way at a time"),
    read_overhead: (5 * US, "chosen: with flash and link, 100 µs for 4 KiB at depth 1"),
    write_overhead: (
        78 * US,
        "data sheet: Intel SSD 520, 85 µs typical write latency, less the link",
    ),
    power_loss_protection: (
        0,
        "data sheet: Intel SSD 520, a client drive, without capacitors for its buffer",
    ),
    command_interval: (
        20 * US,
        "data sheet: Intel SSD 520, 50,000 random 4 KiB reads a second at depth 32",
    ),
    buffer: (256 << 20, MQSIM),
    channels: (8, MQSIM),
    dies_per_channel: (8, "published: 4 chips of 2 dies, MQSim's ssdconfig.xml"),
    planes: (2, MQSIM),
    page: (8_192, MQSIM),
    channel_rate: (333_000_000, MQSIM),
    bits_per_cell: (2, "published: MLC, MQSim's ssdconfig.xml"),
    read_lsb: (75 * US, MQSIM),
    read_csb: (75 * US, MQSIM),
    read_msb: (75 * US, MQSIM),
    program_lsb: (
        400 * US,
        "measured: 25 nm MLC, fast page, Grupp et al., MICRO 2009 and FAST 2012",
    ),
    program_csb: (1_300 * US, "chosen: unused with two bits a cell"),
    program_msb: (
        1_600 * US,
        "measured: 25 nm MLC, slow page, Grupp et al., MICRO 2009 and FAST 2012",
    ),
    erase: (3_800 * US, MQSIM),
    pages_per_block: (256, MQSIM),
    suspend_program: (0, "published: MQSim's ssdconfig.xml, erase suspension only"),
    suspend_erase: (700 * US, MQSIM),
    map_span: (0, "chosen: all of it; drives of the class had DRAM, or a cache that hit"),
    spare: (14, "derived: 240 GB of 256 GiB of flash"),
    kept_free: (5, MQSIM_FREE),
    parity: (0, "published: MQSim models none"),
    used: (0, "data sheet: Intel SSD 520, as client drives are stated, fresh out of the box"),
};

/// The Intel SSD 520: the drive `ssd` with the published reads at depth 3.
const INTEL_520: DriveValues = DriveValues {
    read_overhead: (
        105 * US,
        "fitted: 60 MB/s of random 4 KiB reads at depth 3, AnandTech on the SSD 520, 2012",
    ),
    ..SATA_2012
};

/// The drive `nvme`.
const NVME_TODAY: DriveValues = DriveValues {
    size: (3_840_755_982_336, "standard: 3.84 TB drive, 7,501,476,528 sectors, IDEMA LBA1-03"),
    depth: (1_023, "published: Linux nvme driver, queues of 1,024 entries, one kept free"),
    link: (
        3_200_000_000,
        "derived: PCIe 3.0 x4, 3.94 GB/s less 128-byte packets' headers and flow control",
    ),
    link_duplex: (1, "standard: PCI Express, a channel each way"),
    read_overhead: (8 * US, "chosen: what an NVMe controller takes for a 4 KiB read"),
    write_overhead: (20 * US, "data sheet: data-centre drives, about 25 µs typical write latency"),
    power_loss_protection: (1, "data sheet: Micron 7300 PRO product brief, power-loss protection"),
    command_interval: (1_923, MICRON_7300),
    buffer: (64 << 20, "chosen: what capacitors can save in a drive of this class"),
    channels: (8, "chosen: an 8-channel controller, the usual count of the class"),
    dies_per_channel: (8, "derived: 3.84 TB from 64 dies of 512 Gbit"),
    planes: (4, B17A),
    page: (16_384, B17A),
    channel_rate: (667_000_000, B17A),
    bits_per_cell: (3, "data sheet: TLC"),
    read_lsb: (72_600, SOURCE_LATENCY_MODES),
    read_csb: (100_600, SOURCE_LATENCY_MODES),
    read_msb: (149_600, SOURCE_LATENCY_MODES),
    program_lsb: (1_900 * US, B17A),
    program_csb: (1_900 * US, B17A),
    program_msb: (1_900 * US, B17A),
    erase: (15 * MS, B17A),
    pages_per_block: (2_304, B17A),
    suspend_program: (
        25 * US,
        "fitted to the published median of reads next to 40 % of the writes (ScyllaDB's diskplorer, m7gd.4xlarge); MQSim has 100 us",
    ),
    suspend_erase: (700 * US, MQSIM),
    map_span: (0, "data sheet: drives of the class have DRAM for the whole map"),
    spare: (
        16,
        "derived: 64 dies of 4 planes, 504 blocks, 2,304 pages of 16 KiB (UT81NDQ512G8T), less parity, less 2 % for bad blocks (Samsung's NAND FAQ)",
    ),
    kept_free: (5, MQSIM_FREE),
    parity: (
        15,
        "published: Micron, RAIN of its enterprise drives, 15 pages of data and 1 of parity",
    ),
    used: (1, "data sheet: Micron 7300 PRO, as data-centre drives are stated, in steady state"),
};

/// The drive of PCI Express 5.0.
const NVME_GEN5: DriveValues = DriveValues {
    size: (6_401_252_745_216, "standard: 6.4 TB drive, 12,502,446,768 sectors, IDEMA LBA1-03"),
    link: (14_000_000_000, MICRON_9550),
    read_overhead: (8 * US, "chosen: as `nvme`"),
    write_overhead: (15 * US, "published: Micron 9550 MAX, typical write latency of 15 µs, 2024"),
    power_loss_protection: (1, "published: Micron 9550, power-loss protection, 2024"),
    command_interval: (303, MICRON_9550),
    buffer: (256 << 20, "chosen: a size that capacitors can save in a drive of this class"),
    channels: (16, "chosen: the usual count of controllers for PCI Express 5.0"),
    dies_per_channel: (24, "derived: 64 dies of 1 Tbit with six planes that read independently"),
    planes: (1, "published: Micron, 232-layer NAND, independent reads of each plane, 2022"),
    channel_rate: (2_400_000_000, "published: Micron, 232-layer NAND, 2.4 GB/s, 2022"),
    read_lsb: (50 * US, READ_9550),
    read_csb: (50 * US, READ_9550),
    read_msb: (50 * US, READ_9550),
    program_lsb: (590 * US, PROGRAM_9550),
    program_csb: (590 * US, PROGRAM_9550),
    program_msb: (590 * US, PROGRAM_9550),
    spare: (
        26,
        "derived: 64 dies of 1 Tbit for 6.4 TB, less parity, less 2 % for bad blocks (Samsung's NAND FAQ)",
    ),
    used: (1, "published: Micron 9550, as data-centre drives are stated, in steady state"),
    ..NVME_TODAY
};
const MICRON_9550: &str =
    "published: Micron 9550 MAX, 14,000 / 10,000 MB/s, 3,300,000 random reads a second, 2024";
const READ_9550: &str = "derived: published typical read latency of a Micron 9550 MAX, 60 µs, less the rest of the path";
const PROGRAM_9550: &str =
    "derived: published 10,000 MB/s of a Micron 9550 MAX, and parity, over 384 planes of 16 KiB";

/// The drive `mqsim`.
const MQSIM_DEFAULT: DriveValues = DriveValues {
    size: (
        511_274_123_264,
        "derived: 549.8 GB of flash less Overprovisioning_Ratio 0.07, MQSim's ssdconfig.xml",
    ),
    depth: (65_535, MQSIM),
    link: (400_000_000, "published: 4 lanes of 0.1 GB/s, MQSim's ssdconfig.xml"),
    link_duplex: (1, "standard: PCI Express, a channel each way"),
    read_overhead: (0, NO_FIRMWARE),
    write_overhead: (0, NO_FIRMWARE),
    power_loss_protection: (0, "published: MQSim models none"),
    command_interval: (0, NO_FIRMWARE),
    read_csb: (75 * US, MQSIM),
    program_lsb: (75 * US, MQSIM),
    program_csb: (75 * US, MQSIM),
    program_msb: (75 * US, MQSIM),
    map_span: (
        1_908_874_240,
        "derived: CMT_Capacity of 2 MiB, 9 bytes for each page of 8 KiB, MQSim's ssdconfig.xml",
    ),
    spare: (7, "published: Overprovisioning_Ratio 0.07, MQSim's ssdconfig.xml"),
    used: (1, "published: Enabled_Preconditioning, MQSim's ssdconfig.xml"),
    ..SATA_2012
};

/// Parameters of `ssd`.
pub fn sata_2012() -> Vec<ParameterSpec> {
    parameter_specs(&SATA_2012)
}

/// Parameters of the Intel SSD 520.
pub fn intel_520() -> Vec<ParameterSpec> {
    parameter_specs(&INTEL_520)
}

/// Parameters of `nvme`.
pub fn nvme_today() -> Vec<ParameterSpec> {
    parameter_specs(&NVME_TODAY)
}

/// Parameters of the drive of PCI Express 5.0.
pub fn nvme_gen5() -> Vec<ParameterSpec> {
    parameter_specs(&NVME_GEN5)
}

/// Parameters of `mqsim`.
pub fn mqsim() -> Vec<ParameterSpec> {
    parameter_specs(&MQSIM_DEFAULT)
}

/// Bounds of bandwidths, in bytes per second.
const BANDWIDTH_BOUNDS: (u64, u64) = (1_000_000, 64_000_000_000);

/// Bounds of durations, in ns.
const DURATION_BOUNDS: (u64, u64) = (0, 1_000 * MS);

/// Declares the parameters of a drive, with its values as defaults.
fn parameter_specs(drive: &DriveValues) -> Vec<ParameterSpec> {
    let mut specs = controller_specs(drive);
    specs.extend(flash_layout_specs(drive));
    specs.extend(flash_time_specs(drive));
    specs.extend(spare_space_specs(drive));
    specs
}

/// Declares one parameter, with its default and its bounds. The bounds are chosen: they only
/// exclude senseless values.
fn parameter_spec(
    key: &'static str,
    description: &'static str,
    quantity: ParameterQuantity,
    (default, source): ValueAndSource,
    (least, most): (u64, u64),
) -> ParameterSpec {
    ParameterSpec { key, description, quantity, default, least, most, source }
}

/// Parameters of the host link and the controller: for each its default, its source and its bounds.
fn controller_specs(drive: &DriveValues) -> Vec<ParameterSpec> {
    use ParameterQuantity::{Bytes, BytesPerSecond, Count, Switch, Time};
    vec![
        parameter_spec("size", "capacity", Bytes, drive.size, (1 << 20, 1 << 50)),
        parameter_spec("depth", "commands at once", Count, drive.depth, (1, 65_535)),
        parameter_spec(
            "request_max",
            "largest request",
            Bytes,
            (
                1_280 << 10,
                "published: Linux block layer, max_sectors_kb unless the drive says less",
            ),
            (4 << 10, 32 << 20),
        ),
        parameter_spec("link", "host link", BytesPerSecond, drive.link, BANDWIDTH_BOUNDS),
        parameter_spec("link_duplex", "both ways at once", Switch, drive.link_duplex, (0, 1)),
        parameter_spec(
            "read_overhead",
            "controller's time for a read",
            Time,
            drive.read_overhead,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "write_overhead",
            "controller's time for a write",
            Time,
            drive.write_overhead,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "power_loss_protection",
            "the buffer survives a loss of power: a flush asks for nothing",
            Switch,
            drive.power_loss_protection,
            (0, 1),
        ),
        parameter_spec(
            "command_interval",
            "least time between two commands",
            Time,
            drive.command_interval,
            DURATION_BOUNDS,
        ),
        parameter_spec("buffer", "write buffer", Bytes, drive.buffer, (1 << 20, 4 << 30)),
        parameter_spec(
            "map_span",
            "data whose map is in memory; 0: all of it",
            Bytes,
            drive.map_span,
            (0, 1 << 50),
        ),
    ]
}

/// Parameters of the layout of the flash, and of its channels.
fn flash_layout_specs(drive: &DriveValues) -> Vec<ParameterSpec> {
    use ParameterQuantity::{Bytes, BytesPerSecond, Count};
    vec![
        parameter_spec("channels", "flash channels", Count, drive.channels, (1, 64)),
        parameter_spec(
            "dies_per_channel",
            "dies on each channel",
            Count,
            drive.dies_per_channel,
            (1, 64),
        ),
        parameter_spec("planes", "planes in a die", Count, drive.planes, (1, 8)),
        parameter_spec(
            "page",
            "flash page, a power of two",
            Bytes,
            drive.page,
            (4 << 10, 64 << 10),
        ),
        parameter_spec(
            "pages_per_block",
            "pages in an erase block",
            Count,
            drive.pages_per_block,
            (1, 65_536),
        ),
        parameter_spec(
            "channel_rate",
            "flash channel",
            BytesPerSecond,
            drive.channel_rate,
            BANDWIDTH_BOUNDS,
        ),
        parameter_spec(
            "bits_per_cell",
            "page types in turn: lsb; lsb, msb; lsb, csb, msb",
            Count,
            drive.bits_per_cell,
            (1, 3),
        ),
    ]
}

/// Parameters of the times of flash operations: for each its default, its source and its bounds.
fn flash_time_specs(drive: &DriveValues) -> Vec<ParameterSpec> {
    use ParameterQuantity::Time;
    vec![
        parameter_spec(
            "read_lsb",
            "sensing a page of the lowest bit",
            Time,
            drive.read_lsb,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "read_csb",
            "sensing a page of the middle bit",
            Time,
            drive.read_csb,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "read_msb",
            "sensing a page of the highest bit",
            Time,
            drive.read_msb,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "program_lsb",
            "programming a page of the lowest bit",
            Time,
            drive.program_lsb,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "program_csb",
            "programming a page of the middle bit",
            Time,
            drive.program_csb,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "program_msb",
            "programming a page of the highest bit",
            Time,
            drive.program_msb,
            DURATION_BOUNDS,
        ),
        parameter_spec("erase", "erasing a block", Time, drive.erase, DURATION_BOUNDS),
        parameter_spec(
            "suspend_program",
            "suspending a program for a read; 0: never",
            Time,
            drive.suspend_program,
            DURATION_BOUNDS,
        ),
        parameter_spec(
            "suspend_erase",
            "suspending an erase for a read; 0: never",
            Time,
            drive.suspend_erase,
            DURATION_BOUNDS,
        ),
    ]
}

/// Parameters of the spare space, its collection, and the order of reads and programs.
fn spare_space_specs(drive: &DriveValues) -> Vec<ParameterSpec> {
    use ParameterQuantity::{Count, Percent, Switch};
    vec![
        parameter_spec(
            "spare",
            "flash beyond the capacity, for what is overwritten",
            Percent,
            drive.spare,
            (1, 1_000),
        ),
        parameter_spec(
            "kept_free",
            "blocks that collection keeps free",
            Percent,
            drive.kept_free,
            (0, 50),
        ),
        parameter_spec(
            "used",
            "written full before the run, by such requests as come; 0: empty",
            Switch,
            drive.used,
            (0, 1),
        ),
        parameter_spec(
            "parity",
            "programs for each of parity over them; 0: none",
            Count,
            drive.parity,
            (0, 1_024),
        ),
        parameter_spec(
            "reads_in_row",
            "reads that a die serves while a program waits",
            Count,
            (64, "chosen: MQSim has no limit, and can starve its writes"),
            (1, 1 << 20),
        ),
    ]
}

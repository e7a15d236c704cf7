//! Formats quantities for humans.

/// Formats nanoseconds in the largest unit (ns, µs, ms, s) that is not above the value.
pub(in super::super) fn duration_text(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..1e6 => format!("{:.0} µs", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Formats bytes in the largest binary unit (KiB, MiB, GiB) that is not above the value. Values
/// below 100 have one decimal if their fraction is at least 0.05. Values below 1 KiB are in bytes.
pub(in super::super) fn bytes_text(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    let (value, unit) = match bytes {
        ..KIB => return format!("{bytes:.0} bytes"),
        ..1_048_576.0 => (bytes / KIB, "KiB"),
        ..1_073_741_824.0 => (bytes / KIB / KIB, "MiB"),
        _ => (bytes / KIB / KIB / KIB, "GiB"),
    };
    if value >= 100.0 || value.fract() < 0.05 {
        return format!("{value:.0} {unit}");
    }
    format!("{value:.1} {unit}")
}

/// Returns the name of a device for a sentence. Devices of file systems in user space and over a
/// network have none.
pub(super) fn device_text(name: &str) -> &str {
    if name.is_empty() { "a device without a name (FUSE, network)" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each unit once, and 1.6e6 bytes and 3e9 bytes divided by 2^20 and 2^30.
    #[test]
    fn times_and_sizes_are_printed_in_a_fitting_unit() {
        let times = [999.0, 54_300.0, 1_250_000.0, 4_125_000_000.0].map(duration_text);
        assert_eq!(times, ["999 ns", "54 µs", "1.2 ms", "4.12 s"]);
        let sizes = [512.0, 4096.0, 1_600_000.0, 3e9].map(bytes_text);
        assert_eq!(sizes, ["512 bytes", "4 KiB", "1.5 MiB", "2.8 GiB"]);
    }
}

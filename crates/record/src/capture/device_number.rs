//! Device numbers in the kernel's form.
//!
//! The kernel's events have its `dev_t`: the major number × 2²⁰ + the minor one (`MINORBITS` in
//! `linux/kdev_t.h`). `stat(2)` returns another form, for which `libc` has functions.

/// Number of bits of the minor number.
const MINOR_BITS: u32 = 20;

/// Returns the device number of a major and a minor number.
pub(super) fn from_parts(major: u64, minor: u64) -> u64 {
    major << MINOR_BITS | minor
}

/// Returns the major and the minor number of a device.
pub(super) fn parts(device: u64) -> (u64, u64) {
    (device >> MINOR_BITS, device & ((1 << MINOR_BITS) - 1))
}

/// Returns true for a file system without a block device of its own, such as `/proc`, an overlay,
/// btrfs or a network mount. Its major number is 0.
pub(crate) fn is_without_block_device(device: u64) -> bool {
    let (major, _) = parts(device);
    major == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's `MKDEV(8, 17)`, in hexadecimal digits: 5 of them are the minor number.
    #[test]
    fn device_number_has_20_bits_of_minor_number() {
        assert_eq!(from_parts(8, 17), 0x8_00011);
        assert_eq!(parts(0x8_00011), (8, 17));
        assert_eq!(parts(0x103_fffff), (259, 0xf_ffff));
        assert!(is_without_block_device(0xf_ffff) && !is_without_block_device(0x10_0000));
    }
}

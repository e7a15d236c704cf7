//! Reads of a block device (a loop device, which needs root). Its limits are the kernel's. Reads
//! past the end of its truncated backing file fail with `EIO`, which must reach exactly the
//! requests for those bytes.

use std::path::PathBuf;
use std::process::Command;

use crate::device::*;
use crate::support::*;
use readpath::{Direct, Mode};
use readpath_core::readahead::Advice;
use readpath_core::request::{DeviceError, Outcome, RequestId};
use readpath_core::unit::PageRange;
use readpath_eval::clock::Clock;
use readpath_eval::kernel::{KernelEngine, KernelFile, KernelOptions};

/// A loop device over a file; both are removed on drop.
struct LoopDevice {
    path: PathBuf,
    backing: TempFile,
}

impl LoopDevice {
    /// `None`, with the reason on standard error, if no loop device is available.
    fn over(backing: TempFile) -> Option<LoopDevice> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&backing.path).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).unwrap().trim().into();
                Some(LoopDevice { path, backing })
            }
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_string();
                eprintln!("skipped: no loop device: {reason}");
                None
            }
            Err(error) => {
                eprintln!("skipped: no losetup: {error}");
                None
            }
        }
    }

    /// Number in a sysfs file of the device.
    fn limit(&self, name: &str) -> u64 {
        let device = self.path.file_name().unwrap().to_str().unwrap();
        let path = format!("/sys/block/{device}/queue/{name}");
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn block_device_limits_equal_the_kernels() {
    let Some(disk) = LoopDevice::over(TempFile::new(1 << 20)) else { return };
    let target = open(&disk.path, Direct::Required);
    assert_eq!((target.bytes(), target.mode()), (1 << 20, Mode::Direct));
    assert!(target.is_block_device());
    let queue = target.queue().unwrap();
    assert_eq!(queue.read_ahead_bytes, disk.limit("read_ahead_kb") * 1024);
    let caps = target.caps();
    assert_eq!(caps.sectors, 2_048);
    assert_eq!(u64::from(caps.request_sectors_max), disk.limit("max_sectors_kb").min(4_096) * 2);
    assert_eq!(u64::from(caps.depth_max), disk.limit("nr_requests"));
    assert_eq!(caps.is_rotational, disk.limit("rotational") == 1);
    assert_eq!(caps.alignment_sectors == 1, disk.limit("logical_block_size") == 512);
}

#[test]
fn block_device_reads_are_right_up_to_its_end() {
    let Some(disk) = LoopDevice::over(TempFile::new(1 << 20)) else { return };
    for backend in BACKENDS {
        for direct in DIRECTS {
            let mut device = device(open(&disk.path, direct), backend, 300);
            for (offset, bytes) in [(0, 1 << 20), (100, 5_000), (1_048_000, 10_000), (1 << 20, 1)] {
                let got = read_bytes(&mut device, offset, bytes);
                assert!(got == pread(&disk.backing.path, offset, bytes), "{bytes} at {offset}");
            }
        }
    }
}

#[test]
fn medium_error_fails_exactly_the_requests_for_those_bytes() {
    let Some(disk) = LoopDevice::over(TempFile::new(1 << 20)) else { return };
    let cut = std::fs::File::options().write(true).open(&disk.backing.path).unwrap();
    cut.set_len(1 << 19).unwrap();
    for backend in BACKENDS {
        for direct in DIRECTS {
            eprintln!("{backend:?}, direct {direct:?}");
            let mut device = device(open(&disk.path, direct), backend, 64);
            // Pages 0 to 127 exist, 128 to 255 do not. One request covers both.
            let ranges = [(0, 16), (200, 4), (112, 16), (128, 1), (120, 16), (60, 8)];
            let mut frame = 0;
            for (id, (first, count)) in ranges.into_iter().enumerate() {
                let frames: Vec<u32> = (frame..frame + count as u32).collect();
                frame += count as u32;
                device.submit(read_pages(id as u32, PageRange::new(first, count)), &frames);
            }
            for _ in ranges {
                let completion = completion(&mut device);
                let RequestId(id) = completion.id;
                let (first, count) = ranges[id as usize];
                let expected = match first + count <= 128 {
                    true => Outcome::Done,
                    false => Outcome::Failed(DeviceError::Medium),
                };
                assert_eq!(completion.outcome, expected, "pages from {first}");
            }
            assert_eq!(device.in_flight(), 0);
        }
    }
}

#[test]
fn kernel_baseline_survives_a_medium_error_with_every_engine() {
    let Some(disk) = LoopDevice::over(TempFile::new(1 << 20)) else { return };
    let cut = std::fs::File::options().write(true).open(&disk.backing.path).unwrap();
    cut.set_len(1 << 19).unwrap();
    for engine in [KernelEngine::Psync, KernelEngine::Mmap, KernelEngine::IoUring] {
        let options = KernelOptions {
            invalidates: true,
            engine,
            is_direct: false,
            depth: 4,
            bytes_max: 65_536,
            is_writable: false,
            advice: Advice::Random,
            mapping_advice: Advice::Random,
        };
        let mut peer = KernelFile::open(&disk.path, options, Clock::start()).unwrap();
        let failed = Outcome::Failed(DeviceError::Medium);
        // The file ends at 524,288. Failing reads come twice, to see that a failure leaves no
        // state.
        for (offset, expected) in [
            (0, Outcome::Done),
            (600_000, failed),
            (520_000, failed),
            (600_000, failed),
            (524_288 - 65_536, Outcome::Done),
        ] {
            peer.read(RequestId(1), offset, 65_536);
            let (outcome, bytes) = loop {
                if let Some((completion, bytes)) = peer.poll() {
                    break (completion.outcome, bytes.to_vec());
                }
                peer.wait(None).unwrap();
            };
            assert_eq!(outcome, expected, "{engine:?} at {offset}");
            if outcome == Outcome::Done {
                assert!(
                    bytes == pread(&disk.backing.path, offset, 65_536),
                    "{engine:?} at {offset}"
                );
            }
        }
    }
}

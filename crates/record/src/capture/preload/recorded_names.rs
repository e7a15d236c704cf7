//! Numbers of files, disks and threads in a recording. The first use of each writes its name. The
//! functions fail only if this write fails.

use std::fs;
use std::io::{self, Write};

use readpath_trace::recording::{FileRecord, OFFSET_MAX, Record, RecordingWriter, ThreadName};

use super::super::event::Inode;
use super::super::names::{FileNames, NamedFile};
use super::Preload;

impl Preload {
    /// Returns the number of a file in the recording. The first call for it writes a name record.
    /// `named`: path and length in bytes for this record; without it the path is empty.
    pub(super) fn file_number<W: Write>(
        &mut self,
        device_and_inode: (u64, u64),
        named: Option<(String, u64)>,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<u32> {
        if let Some(&file) = self.files.get(&device_and_inode) {
            return Ok(file);
        }
        let (device, inode) = device_and_inode;
        let disk = self.disk_number(device, writer)?;
        let file = self.files.len() as u32;
        self.files.insert(device_and_inode, file);
        let (path, bytes) = named.unzip();
        let path = path.unwrap_or_default();
        // An unknown length is passed as the largest number. Lengths from `OFFSET_MAX` on are
        // false reports.
        let bytes = bytes.filter(|&bytes| bytes < OFFSET_MAX);
        let record = FileRecord { file, device: disk, inode, bytes, path };
        if let Some(advisor) = &mut self.advisor {
            let named = NamedFile { path: record.path.clone(), bytes };
            self.system.add_name(Inode { device, number: inode }, named);
            advisor.on_file(file, Inode { device, number: inode });
        }
        writer.put(Record::File(record))?;
        Ok(file)
    }

    /// Returns the number of the disk of a device, which may be a partition. The first call for a
    /// disk writes its name, and starts the samples of other programs' requests to it.
    pub(super) fn disk_number<W: Write>(
        &mut self,
        device: u64,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<u64> {
        if let Some(&disk) = self.disks.get(&device) {
            return Ok(disk);
        }
        let record = self.system.disk(device);
        let disk = record.device;
        if !self.disks.values().any(|known| *known == disk) {
            writer.put(Record::Device(record))?;
            self.states.iter().for_each(|states| states.watch_disk(disk));
        }
        self.disks.insert(device, disk);
        Ok(disk)
    }

    /// Returns the number of a thread in the recording. Writes its name at its first occurrence,
    /// an empty one if it has ended by then. `task` has the process in its upper 32 bits and the
    /// thread in its lower ones.
    pub(super) fn thread<W: Write>(
        &mut self,
        task: u64,
        writer: &mut RecordingWriter<W>,
    ) -> io::Result<u32> {
        if let Some(&thread) = self.threads.get(&task) {
            return Ok(thread);
        }
        let (process, number) = ((task >> 32) as u32, task as u32);
        let thread = self.threads.len() as u32;
        self.threads.insert(task, thread);
        let name = fs::read_to_string(format!("/proc/{process}/task/{number}/comm"));
        let name = name.unwrap_or_default().trim_end().to_owned();
        writer.put(Record::Thread(ThreadName { thread, task: number, process, name }))?;
        Ok(thread)
    }
}

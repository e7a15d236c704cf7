//! Memory with served faults in a simulated world. The servers of mappings and regions, called
//! *pagers*, are unchanged, over a simulated userfaultfd ([memory](super::memory)). A seed decides
//! storage, time and the order of threads.
//!
//! A region is compared with a copy. The bytes of each eighth of a page follow from the number of
//! its last write. Bytes that are too old, too new or of another page differ from them. A mapping
//! is compared with its file. Each block shows the file at some time since the mapping was made, or
//! the current file in a window delegated to the kernel. A touch may end in a bus error if the
//! storage has failed or the file has been shorter, and never in other bytes.
//!
//! Each change of a file has a number, and the bytes of the file show it ([disk](super::disk)).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use readpath_core::machine::ReadError;
use readpath_core::readahead::Advice;
use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;

use super::disk::{BLOCK, fill_content};
use super::memory::Bus;
use super::scenario::{Action, MappingTouch, Paged, Scenario};
use super::world::{TaskId, World, world};
use crate::pager::{LoadError, Mapping, PagerError, Region};

mod build;
mod random_scenarios;

use build::build_memory;
pub use build::open_region;

/// Size of a page in bytes, as an index.
const PAGE: usize = PAGE_BYTES as usize;
/// Number of parts of a region's page that are compared separately.
const PAGE_PARTS: usize = 8;
/// Argument `writes_page` of a touch that only reads the page.
const READS_ONLY: bool = false;

/// Name of the only file, which is its index, and its path.
const FILE: usize = 0;
const FILE_PATH: &str = "0";
/// Inode number of the file that the memory was built on. A file that replaces it has another one.
const INODE: u32 = 0;
/// Number of the change that wrote the initial content of a file.
const FIRST_CHANGE: u64 = 0;

/// State shared by the threads of a run.
struct PagedShared {
    /// The region or the mapping under test.
    memory_object: MemoryObject,
    /// Start address of the memory.
    base: usize,
    /// Length of the memory in pages.
    pages: u64,
    /// Number of the last write to each part of each page of a region; 0 if there was none. These
    /// numbers are the copy of the region.
    last_writes: RefCell<Vec<[u64; PAGE_PARTS]>>,
    /// By page: true after a drop by the program, until the page is checked again. Until then the
    /// page has its content or zeros.
    may_be_zero: RefCell<Vec<bool>>,
    /// By page: true if the program has dropped the page at any time.
    was_ever_dropped: RefCell<Vec<bool>>,
    /// Number of writes to the region so far, which is the number of the last one.
    write_count: Cell<u64>,
    /// Pages whose touch has ended in a bus error.
    failed_pages: RefCell<BTreeSet<u64>>,
    /// Length of the memory in bytes; the last page of a mapping may be incomplete.
    bytes: u64,
    /// True if transfers fail in this run, or pages are unreadable.
    can_fail: bool,
    /// True if only one thread touches delegated windows and all of them can be taken back.
    is_delegation_checkable: bool,
}

/// Memory with served faults.
enum MemoryObject {
    /// Borrowed by all threads that touch it, or mutably by one that discards.
    Region(RefCell<Region>),
    /// Only read, except by other programs, which change its file.
    Mapping(Mapping),
}

/// Runs a scenario of memory with served faults as the first task of its world: builds the memory,
/// runs the threads on it, and checks for leaks. Ends early if the memory cannot be built because
/// the scenario forbids thread starts.
pub(super) fn run_paged_scenario(scenario: &Rc<Scenario>, paged: &Paged) {
    let world = world().expect("a run is in its world");
    let (memory_object, bytes) = match build_memory(&world, scenario, paged) {
        Ok(built) => built,
        Err(PagerError::System(_)) if scenario.settings.refuse_thread_one_in > 0 => return,
        Err(error) => world.fail_run(format!("there is no memory: {error}")),
    };
    let shared = Rc::new(PagedShared::new(memory_object, bytes, scenario, paged));
    let threads: Vec<TaskId> = (0..scenario.threads.len())
        .map(|thread_index| {
            let (shared, scenario) = (Rc::clone(&shared), Rc::clone(scenario));
            world.spawn(Box::new(move || {
                let world = super::world::world().expect("a thread is a task");
                for (action_index, action) in scenario.threads[thread_index].iter().enumerate() {
                    world.set_action(action_index + 1);
                    shared.perform(&world, action);
                }
            }))
        })
        .collect();
    threads.into_iter().for_each(|thread| world.join(thread));
    let Ok(shared) = Rc::try_unwrap(shared).map_err(drop) else {
        world.fail_run("a thread has not let go of what all share".to_owned());
    };
    drop(shared);
    if world.area_count() > 0 {
        world.fail_run("memory is left".to_owned());
    }
}

/// Content of part number `part` of a page of a region after the write number `write`: 512 bytes.
/// They are zeros for write 0, which means that the part was never written.
fn part_content(page: u64, part: usize, write: u64) -> [u8; PAGE / PAGE_PARTS] {
    let word = match write {
        0 => 0,
        write => splitmix::mixed(page << 40 ^ (part as u64) << 32 ^ write),
    };
    let mut bytes = [0; PAGE / PAGE_PARTS];
    bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word.to_le_bytes()));
    bytes
}

impl PagedShared {
    /// State of a run with memory of `bytes` bytes, before the first touch.
    fn new(
        memory_object: MemoryObject,
        bytes: u64,
        scenario: &Scenario,
        paged: &Paged,
    ) -> PagedShared {
        let base = match &memory_object {
            MemoryObject::Region(region) => region.borrow().as_slice().as_ptr().addr(),
            MemoryObject::Mapping(mapping) => mapping.as_slice().as_ptr().addr(),
        };
        let pages = bytes.div_ceil(PAGE_BYTES);
        PagedShared {
            memory_object,
            base,
            pages,
            last_writes: RefCell::new(vec![[0; PAGE_PARTS]; pages as usize]),
            may_be_zero: RefCell::new(vec![false; pages as usize]),
            was_ever_dropped: RefCell::new(vec![false; pages as usize]),
            write_count: Cell::new(0),
            failed_pages: RefCell::default(),
            bytes,
            can_fail: scenario.faults.error_one_in > 0 || !scenario.faults.bad_pages.is_empty(),
            is_delegation_checkable: matches!(paged, Paged::MappingWithDelegation(_))
                && scenario.threads.len() == 1
                && scenario.faults.mapping_limit_one_in == 0,
        }
    }

    /// Performs an action of a thread on the memory, on the storage below it, or on the time.
    /// Panics for actions on open files, which these scenarios never draw.
    fn perform(&self, world: &World, action: &Action) {
        match action {
            Action::Touch(touch) => self.perform_touch(world, touch),
            Action::Write(name, first, count) => {
                world.disk.borrow_mut().write(*name, *first, *count);
            }
            Action::Resize(name, bytes) => world.disk.borrow_mut().resize(*name, *bytes),
            Action::Replace(name, bytes) => world.disk.borrow_mut().replace(*name, *bytes),
            Action::Pause(pause_us) => world.pause(pause_us * 1_000),
            _ => unreachable!("these threads touch memory"),
        }
    }

    /// Performs an action on the memory. For a region, waits until no other thread discards. The
    /// borrow `_borrow` lasts to the end, so that no thread discards meanwhile.
    fn perform_touch(&self, world: &World, touch: &MappingTouch) {
        if let MappingTouch::Discard(first, count) = *touch
            && let MemoryObject::Region(region) = &self.memory_object
        {
            return self.discard(world, region, first, count);
        }
        let _borrow = match &self.memory_object {
            MemoryObject::Region(region) => {
                Some(wait_for_borrow(world, || region.try_borrow().ok()))
            }
            MemoryObject::Mapping(_) => None,
        };
        match *touch {
            MappingTouch::Read(first, count) => self.read(world, first, count),
            MappingTouch::ReadDown(first, count) => {
                for page in (first..(first + count).min(self.pages)).rev() {
                    self.touch_and_check(world, page, READS_ONLY);
                }
            }
            MappingTouch::Write(first, count, part) => {
                // A mapping is only read.
                for page in first..(first + count).min(self.pages) {
                    let writes_page = matches!(self.memory_object, MemoryObject::Region(_));
                    if self.touch_and_check(world, page, writes_page) {
                        self.write(page, part as usize);
                    }
                }
            }
            MappingTouch::Load(first, count) => {
                let (offset, bytes) = self.byte_range(first, count);
                self.check_result(world, first, count, self.load(offset, bytes));
            }
            MappingTouch::WillNeed(first, count) => {
                let (offset, bytes) = self.byte_range(first, count);
                match &self.memory_object {
                    MemoryObject::Region(region) => region.borrow().will_need(offset, bytes),
                    MemoryObject::Mapping(mapping) => {
                        mapping.advise(Advice::WillNeed, offset, bytes)
                    }
                }
            }
            MappingTouch::Discard(first, count) => self.discard_from_mapping(world, first, count),
            MappingTouch::ReadAt(offset, bytes) => self.read_at(world, offset, bytes),
            MappingTouch::Advise(advice_index) => {
                if let MemoryObject::Mapping(mapping) = &self.memory_object {
                    // Two of the five numbers select random access, and two sequential access.
                    let advice = match advice_index {
                        0 | 1 => Advice::Random,
                        2 | 3 => Advice::Sequential,
                        _ => Advice::Normal,
                    };
                    let offset = 0;
                    mapping.advise(advice, offset, self.bytes);
                }
            }
            MappingTouch::Hold { page, writes_page, use_us } => {
                self.use_in_system_call(world, page, writes_page, use_us)
            }
            MappingTouch::Lock { first, count, is_locked } => {
                let count = count.min(self.pages.saturating_sub(first));
                world.set_locked(self.address(first), count, is_locked);
                if is_locked {
                    // Locking touches the pages, which brings them into memory (mlock(2)).
                    self.read(world, first, count);
                }
            }
            MappingTouch::DropByMadvise(first, count) => self.drop_by_madvise(world, first, count),
            MappingTouch::CheckCounters => self.check_counters(world),
        }
    }

    /// Drops the memory of `count` pages of a mapping from page `first` on. If it can be checked,
    /// none of them is delegated afterwards. No effect on a region.
    fn discard_from_mapping(&self, world: &World, first: u64, count: u64) {
        if let MemoryObject::Mapping(mapping) = &self.memory_object {
            let (offset, bytes) = self.byte_range(first, count);
            mapping.advise(Advice::DontNeed, offset, bytes);
            if self.is_delegation_checkable {
                // After the answer to this command, the advice is in effect.
                mapping.stats();
                self.check_none_delegated(world, first, count);
            }
        }
    }

    /// Drops the memory of `count` pages from page `first` on, one at a time, without the pager.
    fn drop_by_madvise(&self, world: &World, first: u64, count: u64) {
        for page in first..(first + count).min(self.pages) {
            self.may_be_zero.borrow_mut()[page as usize] = true;
            self.was_ever_dropped.borrow_mut()[page as usize] = true;
            let page_count = 1;
            let is_by_pager = false;
            world.drop_pages(self.address(page), page_count, is_by_pager);
            world.preemption_point();
        }
    }

    /// Checks that none of `count` pages from page `first` on is delegated, after their drop.
    fn check_none_delegated(&self, world: &World, first: u64, count: u64) {
        let mut memory = world.memory.borrow_mut();
        let mut pages = first..(first + count).min(self.pages);
        if let Some(page) = pages.find(|&page| memory.is_delegated(self.address(page))) {
            drop(memory);
            world.fail_run(format!("page {page} is delegated still, though it was given up"));
        }
    }

    /// Reads the counters, and checks that they agree with the failed touches and with the memory's
    /// limit. Pages delegated to the kernel are counted since the start, and pages present as of
    /// now.
    fn check_counters(&self, world: &World) {
        let failed_pages = self.failed_pages.borrow().len() as u64;
        let pages_max = world.memory.borrow().pages_max;
        let (counters, is_consistent) = match &self.memory_object {
            MemoryObject::Region(region) => {
                let region = region.borrow();
                let stats = region.stats();
                let is_consistent = stats.poisoned_pages >= failed_pages
                    && stats.memory_pages <= stats.memory_pages_max;
                let check = region.check();
                // A failed touch must also fail this check.
                if check.is_ok() && failed_pages > 0 {
                    world.fail_run(format!(
                        "all is well, though {failed_pages} touches have failed"
                    ));
                }
                let first_page = 0;
                self.check_result(world, first_page, self.pages, check);
                (format!("{stats:?}"), is_consistent)
            }
            MemoryObject::Mapping(mapping) => {
                let delegated = world.memory.borrow().kernel_memory.delegated_total;
                let stats = mapping.stats();
                let is_consistent = stats.poisoned_pages >= failed_pages
                    && stats.resident_pages <= pages_max
                    && stats.delegated_pages >= delegated;
                (format!("{stats:?}"), is_consistent)
            }
        };
        if !is_consistent {
            world.fail_run(format!(
                "{failed_pages} pages have failed, and so many may be there: {counters}"
            ));
        }
    }

    /// Converts `count` pages from page `first` on into offset and length in bytes, cut to the
    /// memory.
    fn byte_range(&self, first: u64, count: u64) -> (u64, u64) {
        let offset = (first * PAGE_BYTES).min(self.bytes);
        (offset, (count * PAGE_BYTES).min(self.bytes - offset))
    }

    /// Address of a page.
    fn address(&self, page: u64) -> usize {
        self.base + page as usize * PAGE
    }

    /// Touches `count` pages from page `first` on in ascending order, and checks their bytes.
    fn read(&self, world: &World, first: u64, count: u64) {
        for page in first..(first + count).min(self.pages) {
            self.touch_and_check(world, page, READS_ONLY);
        }
    }

    /// Touches a page, for writing if `writes_page` is true, and checks its bytes. They may be used
    /// until the next touch. Returns false after a bus error that is permitted; any other bus error
    /// fails the run.
    fn touch_and_check(&self, world: &World, page: u64, writes_page: bool) -> bool {
        let touched = world.touch(self.address(page), writes_page);
        let is_delegated = world.memory.borrow_mut().is_delegated(self.address(page));
        match touched {
            Ok(()) => {
                let bytes = (self.bytes - page * PAGE_BYTES).min(PAGE_BYTES) as usize;
                // SAFETY: the page is present, and no other task runs before this block ends.
                let bytes =
                    unsafe { std::slice::from_raw_parts(self.address(page) as *const u8, bytes) };
                let check_result = match self.memory_object {
                    MemoryObject::Region(_) => self.check_region_page(page, bytes),
                    MemoryObject::Mapping(_) if is_delegated => {
                        check_against_current(world, page * PAGE_BYTES, bytes)
                    }
                    MemoryObject::Mapping(_) => {
                        check_against_history(world, page * PAGE_BYTES, bytes)
                    }
                };
                assert_ok(world, check_result);
                true
            }
            Err(Bus) if self.may_fail(world, page, 1) => {
                // Failures in a window are not counted by the pager.
                if !is_delegated {
                    self.failed_pages.borrow_mut().insert(page);
                }
                false
            }
            Err(Bus) => world.fail_run(format!("a bus error at page {page}")),
        }
    }

    /// Compares the bytes of a page of a region with the numbers of its last writes, from which the
    /// right bytes follow. An error describes a difference. The first check after a drop by the
    /// program also accepts zeros, and then sets the copy to zeros. A page that was not in memory
    /// at the drop keeps its content.
    fn check_region_page(&self, page: u64, bytes: &[u8]) -> Result<(), String> {
        let index = page as usize;
        if std::mem::take(&mut self.may_be_zero.borrow_mut()[index])
            && bytes.iter().all(|&byte| byte == 0)
        {
            self.last_writes.borrow_mut()[index] = [0; PAGE_PARTS];
        }
        let last_writes = self.last_writes.borrow()[index];
        for (part, bytes) in bytes.chunks_exact(PAGE / PAGE_PARTS).enumerate() {
            if *bytes != part_content(page, part, last_writes[part]) {
                let matching_write = (0..=self.write_count.get())
                    .find(|&write| *bytes == part_content(page, part, write));
                return Err(format!(
                    "page {page}, part {part}, is not as after write {}, but {}: {:02x?}",
                    last_writes[part],
                    matching_write
                        .map_or("as never".to_owned(), |write| format!("as after {write}")),
                    &bytes[..16],
                ));
            }
        }
        Ok(())
    }

    /// Writes new content to a part of a page that was touched for writing, and to the copy. No
    /// effect on a mapping.
    fn write(&self, page: u64, part: usize) {
        let MemoryObject::Region(_) = self.memory_object else { return };
        let write = self.write_count.get() + 1;
        self.write_count.set(write);
        self.last_writes.borrow_mut()[page as usize][part] = write;
        let bytes = part_content(page, part, write);
        let address = (self.address(page) + part * bytes.len()) as *mut u8;
        // SAFETY: the page is present and writable, and no other task runs before this block ends.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
    }

    /// Uses a page in a system call for `use_us` microseconds, and checks that it stays in its
    /// place. If `writes_page` is true, the call writes to the page at its end, provided that it is
    /// a page of a region in its place. No effect past the end of the memory, or after a bus error.
    fn use_in_system_call(&self, world: &World, page: u64, writes_page: bool, use_us: u64) {
        let writes_page = writes_page && matches!(self.memory_object, MemoryObject::Region(_));
        if page >= self.pages || !self.touch_and_check(world, page, writes_page) {
            return;
        }
        let pinned_page = world.begin_use(self.address(page));
        world.pause(use_us * 1_000);
        let is_in_place = world.is_page_in_place(&pinned_page);
        if is_in_place && writes_page {
            // Any of the parts, selected by the duration.
            self.write(page, use_us as usize % PAGE_PARTS);
        }
        world.end_use(&[pinned_page]);
        // A mapping may drop the page and read it again. A region must leave a used page in place.
        if !is_in_place
            && !self.was_ever_dropped.borrow()[page as usize]
            && matches!(self.memory_object, MemoryObject::Region(_))
        {
            world.fail_run(format!("page {page} was taken away while a call held it"));
        }
    }

    /// Discards `count` pages of a region from page `first` on. Their content is zeros in the copy.
    fn discard(&self, world: &World, region: &RefCell<Region>, first: u64, count: u64) {
        let mut region = wait_for_borrow(world, || region.try_borrow_mut().ok());
        let (offset, bytes) = self.byte_range(first, count);
        region.discard(offset, bytes);
        for page in first..(first + count).min(self.pages) {
            self.last_writes.borrow_mut()[page as usize] = [0; PAGE_PARTS];
            self.may_be_zero.borrow_mut()[page as usize] = false;
        }
    }

    /// Loads `bytes` bytes of the memory from byte `offset` on, and waits until they are present.
    fn load(&self, offset: u64, bytes: u64) -> Result<(), ReadError> {
        match &self.memory_object {
            MemoryObject::Region(region) => region.borrow().load(offset, bytes),
            MemoryObject::Mapping(mapping) => {
                mapping.load(offset, bytes).map_err(|error| match error {
                    LoadError::Read(error) => error,
                    LoadError::PastEnd { .. } => panic!("the range was cut to what there is"),
                })
            }
        }
    }

    /// Copies up to `bytes` bytes of a mapping from `offset` on, and checks them against the
    /// history of the file. The range is cut at the end of the mapping. A region is not read.
    fn read_at(&self, world: &World, offset: u64, bytes: u64) {
        let MemoryObject::Mapping(mapping) = &self.memory_object else { return };
        let offset = offset.min(self.bytes);
        let mut buffer = vec![0; bytes.min(self.bytes - offset) as usize];
        match mapping.read_exact_at(&mut buffer, offset) {
            Ok(()) => assert_ok(world, check_against_history(world, offset, &buffer)),
            Err(LoadError::Read(error)) => {
                let first = offset / PAGE_BYTES;
                let count = (offset + bytes).div_ceil(PAGE_BYTES) - first;
                self.check_result(world, first, count, Err(error));
            }
            Err(error) => world.fail_run(format!("{bytes} bytes at {offset}: {error}")),
        }
    }

    /// Fails the run if the result is an error and none of `count` pages from page `first` on may
    /// fail.
    fn check_result(&self, world: &World, first: u64, count: u64, result: Result<(), ReadError>) {
        match result {
            Err(error) if !self.may_fail(world, first, count) => {
                world.fail_run(format!("{count} pages from {first} on: {error}"));
            }
            _ => {}
        }
    }

    /// True if one of `count` pages from page `first` on may fail: the storage fails, or the file
    /// was too short at some time.
    fn may_fail(&self, world: &World, first: u64, count: u64) -> bool {
        let end = ((first + count) * PAGE_BYTES).min(self.bytes);
        let disk = world.disk.borrow();
        self.can_fail
            || matches!(self.memory_object, MemoryObject::Mapping(_))
                && disk.inodes[INODE as usize].lengths_since(FIRST_CHANGE).any(|bytes| bytes < end)
    }
}

/// Calls `try_borrow` until it returns a value, and returns that. The pauses of virtual time
/// between the calls double from 1 us up to 100 ms, so that a wait of seconds takes few steps.
fn wait_for_borrow<T>(world: &World, try_borrow: impl Fn() -> Option<T>) -> T {
    let mut pause_ns = 1_000;
    loop {
        match try_borrow() {
            Some(borrow) => return borrow,
            None => world.pause(pause_ns),
        }
        pause_ns = (pause_ns * 2).min(100_000_000);
    }
}

/// Compares bytes at `offset` with a file that other programs change: each block must be as one of
/// the changes wrote it, at any time since the file was created.
fn check_against_history(world: &World, offset: u64, bytes: &[u8]) -> Result<(), String> {
    let disk = world.disk.borrow();
    let file = &disk.inodes[INODE as usize];
    let mut expected = [0; BLOCK as usize];
    let (mut position, mut unchecked) = (offset, bytes);
    while !unchecked.is_empty() {
        let count =
            ((position / BLOCK + 1) * BLOCK - position).min(unchecked.len() as u64) as usize;
        let writes = file.writes_since(position / PAGE_BYTES, FIRST_CHANGE);
        let is_expected = |&change: &u64| {
            fill_content(INODE, position, change, &mut expected[..count]);
            expected[..count] == unchecked[..count]
        };
        if !writes.iter().any(is_expected) {
            return Err(format!("wrong bytes at {position}: {:02x?}", &unchecked[..count.min(16)]));
        }
        (position, unchecked) = (position + count as u64, &unchecked[count..]);
    }
    Ok(())
}

/// Compares bytes of a window at `offset` with the current file. Bytes beyond its end are zeros.
///
/// # Errors
/// Describes the first bytes of a window that shows other ones.
pub fn check_against_current(world: &World, offset: u64, bytes: &[u8]) -> Result<(), String> {
    let disk = world.disk.borrow();
    let file = &disk.inodes[INODE as usize];
    let mut expected = vec![0; bytes.len()];
    let bytes_in_file = (file.bytes.saturating_sub(offset) as usize).min(bytes.len());
    file.read_current(INODE, offset, &mut expected[..bytes_in_file]);
    if expected != bytes {
        let first_bytes = &bytes[..bytes.len().min(16)];
        return Err(format!("a window shows other bytes at {offset}: {first_bytes:02x?}"));
    }
    Ok(())
}

/// Ends the run as failed if the check has failed; the text of its error describes the failure.
fn assert_ok(world: &World, result: Result<(), String>) {
    if let Err(failure) = result {
        world.fail_run(failure);
    }
}

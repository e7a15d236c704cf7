//! Memory of a load, touched and checked page by page.
//!
//! Each page begins with a word that identifies the page and its mapping. `fill` writes it,
//! followed by words that differ from page to page. Each touch compares the first word. A run thus
//! detects a swap area that returns a wrong page.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use readpath_core::splitmix;
use readpath_core::unit::PAGE_BYTES;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// Number of 64-bit words in a page.
const WORDS: usize = (PAGE_BYTES / 8) as usize;

/// Anonymous or memfd memory, mapped into this process.
///
/// Invariant: `address` is the start of a live, readable and writable mapping of `pages` whole
/// pages, more than 0.
#[derive(Debug)]
pub struct LoadMemory {
    /// Start of the mapping.
    address: *mut u64,
    /// Length of the mapping in pages.
    pages: u64,
    /// Mixed into the words, so that mappings differ.
    tag: u64,
}

/// Error of a page whose contents differ from the written ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongPage {
    /// Page number from the start of the mapping.
    pub page: u64,
    /// First word of the page.
    pub found: u64,
    /// First word as written.
    pub expected: u64,
}

impl std::fmt::Display for WrongPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let WrongPage { page, found, expected } = self;
        write!(
            f,
            "page {page} holds {found:#x} where {expected:#x} was written: memory was lost on its \
             way through swap"
        )
    }
}

impl LoadMemory {
    /// Maps `bytes` bytes of private memory of this process. `tag` is a number of the mapping that
    /// its page contents include.
    ///
    /// # Errors
    /// The process may not map that much memory.
    pub fn private(bytes: u64, tag: u64) -> io::Result<LoadMemory> {
        let length = whole_pages(bytes)?;
        // SAFETY: a new mapping at an address chosen by the kernel.
        let address = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE)?
        };
        Ok(LoadMemory { address: address.cast(), pages: bytes / PAGE_BYTES, tag })
    }

    /// Maps the first `bytes` bytes of a [`shared_object`] file, which other processes may map too,
    /// with the same `tag`.
    ///
    /// # Errors
    /// The process may not map that much memory, or the file is shorter.
    pub fn shared(object: impl AsFd, bytes: u64, tag: u64) -> io::Result<LoadMemory> {
        let length = whole_pages(bytes)?;
        if rustix::fs::fstat(&object)?.st_size < length as i64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a new mapping at an address chosen by the kernel, within the object. The object's
        // seals prevent it from shrinking.
        let address = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, object, 0)?
        };
        Ok(LoadMemory { address: address.cast(), pages: bytes / PAGE_BYTES, tag })
    }

    /// Number of pages in the mapping.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Writes all words of a page.
    pub fn fill(&self, page: u64) {
        let first = self.word_address(page);
        for (index, word) in page_words(self.first_word(page)).take(WORDS).enumerate() {
            // SAFETY: `index` is below the number of words in a page, and the page lies in the
            // mapping. Volatile, since other processes may map the memory.
            unsafe { first.add(index).write_volatile(word) };
        }
    }

    /// Reads the first word of a page.
    ///
    /// # Errors
    /// The word differs from the one written by [`LoadMemory::fill`].
    pub fn read(&self, page: u64) -> Result<(), WrongPage> {
        // SAFETY: the word lies in the mapping. Volatile, because this read is measured.
        let found = unsafe { self.word_address(page).read_volatile() };
        let expected = self.first_word(page);
        match found == expected {
            true => Ok(()),
            false => Err(WrongPage { page, found, expected }),
        }
    }

    /// Writes `value`, any number, to the second word of a page, and reads its first word. Only the
    /// first word is checked.
    ///
    /// # Errors
    /// As [`LoadMemory::read`].
    pub fn write(&self, page: u64, value: u64) -> Result<(), WrongPage> {
        // SAFETY: the second word of a page in the mapping. Volatile, because this write is
        // measured.
        unsafe { self.word_address(page).add(1).write_volatile(value) };
        self.read(page)
    }

    /// Address of the first word of a page.
    fn word_address(&self, page: u64) -> *mut u64 {
        assert!(page < self.pages, "page {page} of {} is not in the mapping", self.pages);
        // SAFETY: the page lies in the mapping.
        unsafe { self.address.add(page as usize * WORDS) }
    }

    /// First word of a page of this mapping.
    fn first_word(&self, page: u64) -> u64 {
        first_word(page, self.tag)
    }
}

/// First word of page number `page` of the mapping with this tag, by which a touch identifies the
/// page. Never 0, the value of untouched memory.
pub fn first_word(page: u64, tag: u64) -> u64 {
    // A multiplier of the hash function MurmurHash3. The tag changes the upper half.
    (page + 1).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ tag.rotate_left(32) | 1
}

/// Words of a page that begins with `first`. Pages with different first words differ in all words.
pub fn page_words(first: u64) -> impl Iterator<Item = u64> {
    let mut next = first;
    (0..).map(move |index: u64| {
        let word = next;
        next = word.wrapping_mul(splitmix::STEP).rotate_left(29) ^ index;
        word
    })
}

impl Drop for LoadMemory {
    /// Unmaps the memory.
    fn drop(&mut self) {
        // SAFETY: a mapping owned here and no longer used.
        let unmapped =
            unsafe { rustix::mm::munmap(self.address.cast(), (self.pages * PAGE_BYTES) as usize) };
        debug_assert!(unmapped.is_ok(), "the whole of one mapping can be unmapped");
    }
}

/// Creates an unnamed file (memfd) of `bytes` bytes that several processes can map. Child processes
/// inherit it.
///
/// # Errors
/// The system refuses the file.
pub fn shared_object(bytes: u64) -> io::Result<File> {
    let object = rustix::fs::memfd_create("readpath-load", MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&object, bytes)?;
    rustix::fs::fcntl_add_seals(&object, rustix::fs::SealFlags::SHRINK)?;
    Ok(object.into())
}

/// Returns the file that a parent process left open as `descriptor`.
///
/// # Errors
/// `descriptor` is not an open file, or its use is refused.
pub fn shared_object_passed_on(descriptor: i32) -> io::Result<File> {
    if descriptor < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: borrowed for one call only, which fails if the number is not an open file.
    let inherited = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(inherited.try_clone_to_owned()?.into())
}

/// Checks that `bytes` is a positive multiple of a page, and returns it.
fn whole_pages(bytes: u64) -> io::Result<usize> {
    let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    match bytes {
        0 => Err(io::ErrorKind::InvalidInput.into()),
        _ if !bytes.is_multiple_of(PAGE_BYTES) => Err(io::ErrorKind::InvalidInput.into()),
        _ => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pages are filled. The swap area is simulated by writes to the shared object.
    #[test]
    fn wrong_page_content_is_detected() {
        let object = shared_object(3 * PAGE_BYTES).unwrap();
        let (tag, other_tag) = (7, 8);
        let memory = LoadMemory::shared(&object, 3 * PAGE_BYTES, tag).unwrap();
        (0..3).for_each(|page| memory.fill(page));
        let (page, value) = (1, 9);
        assert_eq!(memory.write(page, value), Ok(()));
        assert_eq!((memory.read(0), memory.read(1), memory.read(2)), (Ok(()), Ok(()), Ok(())));
        // The last page returns with the contents of the first, as from a wrong slot.
        let mut page = [0u8; PAGE_BYTES as usize];
        rustix::io::pread(&object, &mut page, 0).unwrap();
        rustix::io::pwrite(&object, &page, 2 * PAGE_BYTES).unwrap();
        let wrong = memory.read(2).unwrap_err();
        assert_eq!((wrong.page, wrong.found.to_ne_bytes()), (2, page[..8].try_into().unwrap()));
        // Pages differ, and so do mappings.
        let mut other = [0u8; PAGE_BYTES as usize];
        rustix::io::pread(&object, &mut other, PAGE_BYTES).unwrap();
        assert_ne!(page, other);
        let private = LoadMemory::private(PAGE_BYTES, other_tag).unwrap();
        assert!(private.read(0).is_err(), "untouched memory has other contents");
        private.fill(0);
        assert_eq!(private.read(0), Ok(()));
        assert_ne!(private.first_word(0), memory.first_word(0));
    }

    #[test]
    #[should_panic(expected = "page 1 of 1 is not in the mapping")]
    fn page_outside_the_mapping_panics() {
        let tag = 0;
        let memory = LoadMemory::private(PAGE_BYTES, tag).unwrap();
        let _ = memory.read(1);
    }

    /// No whole pages, more than the address space, and more than the shared object has.
    #[test]
    fn impossible_mapping_sizes_are_errors() {
        let tag = 0;
        assert!(LoadMemory::private(100, tag).is_err());
        assert!(LoadMemory::private(1 << 62, tag).is_err());
        let object = shared_object(PAGE_BYTES).unwrap();
        assert!(LoadMemory::shared(&object, 2 * PAGE_BYTES, tag).is_err());
    }
}

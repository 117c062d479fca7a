//! Memory from the system: one large zeroed mapping. Also reports how much memory the machine has.
//!
//! [`Mapping`] is the memory of an arena. It is private to the process and aligned to 2 MiB, so
//! that huge pages can serve it. Each page takes memory only once it is touched. Other threads use
//! the mapping at any time: all of it is shared bytes in the sense of [`super::copy`].
//!
//! | | Linux | portable |
//! |---|---|---|
//! | memory | mmap(2), no swap reserved | the zeroing allocator |
//! | huge pages; wiped in a child of fork(2) | madvise(2) | nothing |
//! | memory given back | madvise(2) | nothing: it stays backed |
//!
//! A host page may have 4 to 64 KiB.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

use super::process::Process;

/// The alignment of large mappings, and the size of a huge page on most machines, in bytes.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// The smallest host page of any system, and the smallest alignment of a mapping, in bytes.
const SMALLEST_PAGE: usize = 4096;

/// Returns the unit in which the host maps memory, in bytes: 4096 or more.
pub(crate) fn host_page_size() -> usize {
    #[cfg(unix)]
    {
        // SAFETY: the call reads a constant of the system.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two())
            .unwrap_or(64 << 10)
    }
    #[cfg(not(unix))]
    {
        // The largest page of all systems other than Unix. If this host's pages are smaller, ranges
        // are only rounded more coarsely.
        64 << 10
    }
}

/// A kind of the host's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Huge pages, where they fit.
    Huge,
    /// Pages of the smallest size only.
    Small,
}

/// A range of zeroed memory from the system. Dropping it unmaps the range, but only in the process
/// that created it.
///
/// It gives out addresses, not slices: its owner decides which bytes may be touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    maker: Process,
}

// SAFETY: a mapping is a range of addresses with no tie to a thread. Its methods are system calls.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeros. They are aligned to 2 MiB if there are at least that many,
    /// otherwise to 4096. They cost memory only once they are touched (in the portable form, if the
    /// allocator works that way).
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0 or does not fit in the address space; otherwise the system's
    /// error.
    pub(crate) fn new(len: usize) -> io::Result<Mapping> {
        if len == 0 || len > isize::MAX as usize - HUGE_PAGE {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(Mapping {
            base: platform::map(len, alignment_for(len))?,
            len,
            maker: Process::current(),
        })
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Asks for huge pages. This is advice, which a system without them ignores.
    pub(crate) fn advise_huge(&self) {
        self.advise_pages(0..self.len, Pages::Huge);
    }

    /// Asks that pages of this kind back a range from now on. Returns whether the host took the
    /// advice, or ignores such advice anyway.
    pub(crate) fn advise_pages(&self, range: Range<usize>, pages: Pages) -> bool {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is inside the mapping.
        let start = unsafe { self.base.add(range.start) };
        range.is_empty() || platform::advise_pages(start, range.len(), pages)
    }

    /// Gives back the memory of the whole host pages in a range. These pages are zeros from now on,
    /// unless the host refused. (If the memory was part of a huge page, the host takes it back only
    /// when it needs memory, but no longer counts it as the process's.) Nothing else may use the
    /// range meanwhile.
    pub(crate) fn discard(&self, range: Range<usize>) {
        let page = host_page_size();
        let start = range.start.next_multiple_of(page);
        let end = range.end.min(self.len) / page * page;
        if start < end {
            // SAFETY: the address is inside the mapping.
            platform::discard(unsafe { self.base.add(start) }, end - start);
        }
    }

    /// Asks that a child of fork(2) gets zeros in place of this memory, or no mapping where zeros
    /// are not supported. This is advice, which the system may ignore.
    pub(crate) fn advise_wipe_on_fork(&self) {
        platform::advise_wipe_on_fork(self.base, self.len);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A child of fork(2) may lack the mapping, or have another one in its place.
        if self.maker.is_current() {
            // SAFETY: `map` made the range with this length and alignment in this process, and its
            // owner is gone.
            unsafe { platform::unmap(self.base, self.len, alignment_for(self.len)) }
        }
    }
}

fn alignment_for(len: usize) -> usize {
    if len >= HUGE_PAGE {
        HUGE_PAGE
    } else {
        SMALLEST_PAGE
    }
}

#[cfg(all(target_os = "linux", not(any(portable, miri))))]
mod platform {
    use super::super::calls;
    use super::{NonNull, Pages, io};

    /// Maps `len` bytes aligned to `align`, a power of two of at least 4096.
    pub(super) fn map(len: usize, align: usize) -> io::Result<NonNull<u8>> {
        let room = len + align;
        let address = calls::map_private(room, libc::PROT_READ | libc::PROT_WRITE)?;
        let before = address.addr().next_multiple_of(align) - address.addr();
        // SAFETY: both ends are parts of the mapping just made, which nothing else uses. They
        // consist of whole host pages: the kernel's address is a multiple of the host page, and
        // so is `align` unless the host page is larger; then `before` is 0.
        unsafe {
            calls::unmap(address, before);
            let base = address.add(before);
            let end = len.next_multiple_of(super::host_page_size());
            calls::unmap(base.add(end), (room - before).saturating_sub(end));
            NonNull::new(base).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
        }
    }

    /// Unmaps the memory of a mapping. Safety: `base` and `len` come from one call to [`map`], and
    /// nothing uses the memory.
    pub(super) unsafe fn unmap(base: NonNull<u8>, len: usize, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { calls::unmap(base.as_ptr(), len) }
    }

    fn advise(base: NonNull<u8>, len: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the kinds of advice used here change no content, except for MADV_DONTNEED, whose
        // caller has the range to itself.
        unsafe { calls::advise(base.as_ptr(), len, advice) }
    }

    pub(super) fn advise_pages(base: NonNull<u8>, len: usize, pages: Pages) -> bool {
        let advice = match pages {
            Pages::Huge => libc::MADV_HUGEPAGE,
            Pages::Small => libc::MADV_NOHUGEPAGE,
        };
        // A kernel without huge pages refuses both kinds of advice with EINVAL.
        advise(base, len, advice)
            .or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => Ok(()),
                _ => Err(error),
            })
            .is_ok()
    }

    pub(super) fn discard(base: NonNull<u8>, len: usize) {
        let _ = advise(base, len, libc::MADV_DONTNEED);
    }

    pub(super) fn advise_wipe_on_fork(base: NonNull<u8>, len: usize) {
        if advise(base, len, libc::MADV_WIPEONFORK).is_err() {
            let _ = advise(base, len, libc::MADV_DONTFORK);
        }
    }
}

#[cfg(not(all(target_os = "linux", not(any(portable, miri)))))]
mod platform {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::{NonNull, Pages, io};

    fn layout(len: usize, align: usize) -> Layout {
        Layout::from_size_align(len, align).expect("the length was checked by `Mapping::new`")
    }

    pub(super) fn map(len: usize, align: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: the length is not 0, as `Mapping::new` has checked.
        let base = unsafe { alloc_zeroed(layout(len, align)) };
        NonNull::new(base).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// Frees the memory of a mapping. Safety: all three arguments come from one call to [`map`],
    /// and nothing uses the memory.
    pub(super) unsafe fn unmap(base: NonNull<u8>, len: usize, align: usize) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(base.as_ptr(), layout(len, align)) }
    }

    pub(super) fn advise_pages(_: NonNull<u8>, _: usize, _: Pages) -> bool {
        true
    }

    pub(super) fn discard(_: NonNull<u8>, _: usize) {}

    pub(super) fn advise_wipe_on_fork(_: NonNull<u8>, _: usize) {}
}

/// Returns the most memory that this process can use, in bytes: all of the machine's memory, or the
/// limit of the process's container if that is lower. Returns `None` where the system does not
/// report it.
pub(crate) fn memory_of_machine() -> Option<u64> {
    let machine = kb_of(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")? * 1024;
    Some(
        container_limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"))
            .map_or(machine, |limit| limit.min(machine)),
    )
}

/// Returns the number in a line such as `MemTotal:      1234 kB`.
fn kb_of(text: &str, field: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Returns the lowest memory limit of the control groups of this process, in bytes. Their ancestors
/// limit the process, too.
///
/// `membership` has lines of the form `number:controllers:/path`. In version 2 of control groups
/// the number is 0 and there are no controllers. A path that does not exist under `root` belongs to
/// another namespace. Then only `root` itself is read, which is the process's own group there.
fn container_limit(membership: &Path, root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(membership).ok()?;
    let groups = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if number == "0" && controllers.is_empty() {
            Some((root.to_path_buf(), path, "memory.max"))
        } else if controllers
            .split(',')
            .any(|controller| controller == "memory")
        {
            Some((root.join("memory"), path, "memory.limit_in_bytes"))
        } else {
            None
        }
    });
    groups
        .filter_map(|(top, path, file)| lowest_limit(&top, path, file))
        .min()
}

/// Returns the lowest number in `file` of the group `path` below `top` and of its ancestors.
fn lowest_limit(top: &Path, path: &str, file: &str) -> Option<u64> {
    let group = top.join(path.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|ancestor| ancestor.starts_with(top))
        .filter_map(|ancestor| std::fs::read_to_string(ancestor.join(file)).ok())
        // "max" means no limit, and so does a number near 2^63 in version 1.
        .filter_map(|text| text.trim().parse().ok())
        .filter(|limit| *limit < 1 << 62)
        .min()
}

#[cfg(all(test, target_os = "linux", not(any(portable, miri, loom, shuttle))))]
mod for_tests {
    use super::*;

    impl Mapping {
        /// Returns how many host pages of a range, which consists of whole pages, have memory.
        pub(crate) fn resident_pages(&self, range: Range<usize>) -> usize {
            assert!(range.start <= range.end && range.end <= self.len);
            let mut pages = vec![0_u8; range.len() / host_page_size()];
            // SAFETY: the range is inside the mapping, and there is a byte for each of its pages.
            let result = unsafe {
                let start = self.base.add(range.start).as_ptr();
                libc::mincore(start.cast(), range.len(), pages.as_mut_ptr())
            };
            assert_eq!(result, 0, "mincore");
            pages.iter().filter(|page| **page & 1 == 1).count()
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::fs;
    use std::ops::Range;

    use super::*;
    use crate::sys::copy;

    fn bytes(mapping: &Mapping, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0xFF; range.len()];
        // SAFETY: tests ask for ranges inside the mapping.
        unsafe { copy::copy_in(&mut bytes, mapping.base().add(range.start)) };
        bytes
    }

    fn fill(mapping: &Mapping, range: Range<usize>, byte: u8) {
        // SAFETY: as above.
        unsafe { copy::fill(mapping.base().add(range.start), byte, range.len()) }
    }

    #[test]
    fn a_mapping_is_zeroed_and_aligned() {
        let lengths = [1, 4096, 5000, HUGE_PAGE, HUGE_PAGE + 4096, 3 * HUGE_PAGE];
        // Under Miri a mebibyte takes minutes.
        for len in lengths.into_iter().take(if cfg!(miri) { 3 } else { 6 }) {
            let mapping = Mapping::new(len).expect("a small mapping");
            assert_eq!(mapping.len(), len);
            assert!(
                mapping.base().addr().is_multiple_of(alignment_for(len)),
                "{len} bytes"
            );
            assert!(bytes(&mapping, 0..len).iter().all(|byte| *byte == 0));
            mapping.advise_huge();
            mapping.advise_wipe_on_fork();
            fill(&mapping, 0..len, 7);
            assert!(bytes(&mapping, 0..len).iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(any(portable, miri, loom, shuttle))))]
    fn discarded_memory_is_zero_and_the_rest_stays() {
        let page = host_page_size();
        let mapping = Mapping::new(2 * HUGE_PAGE).unwrap();
        assert!(mapping.advise_pages(0..HUGE_PAGE, Pages::Huge));
        assert!(mapping.advise_pages(HUGE_PAGE..2 * HUGE_PAGE, Pages::Small));
        fill(&mapping, 0..2 * HUGE_PAGE, 7);
        mapping.discard(page - 1..3 * page + 1);
        // This is checked before the bytes: a read of a discarded page would map the page of zeros.
        let resident = |range: Range<usize>| mapping.resident_pages(range);
        assert_eq!((resident(0..page), resident(page..3 * page)), (1, 0));
        assert!(
            bytes(&mapping, page..3 * page)
                .iter()
                .all(|byte| *byte == 0)
        );
        assert!(bytes(&mapping, 0..page).iter().all(|byte| *byte == 7));
        assert_eq!(bytes(&mapping, 3 * page..3 * page + 1), [7]);
        mapping.discard(page..page);
        mapping.discard(0..2 * HUGE_PAGE);
        assert_eq!(resident(0..2 * HUGE_PAGE), 0);
        assert!(
            bytes(&mapping, 0..2 * HUGE_PAGE)
                .iter()
                .all(|byte| *byte == 0)
        );
    }

    #[test]
    #[cfg(all(target_os = "linux", not(any(portable, miri, loom, shuttle))))]
    fn a_child_has_zeros_of_its_own_and_gives_no_memory_back() {
        let mapping = Mapping::new(HUGE_PAGE).unwrap();
        mapping.advise_wipe_on_fork();
        fill(&mapping, 0..4096, 7);
        let (base, len) = (mapping.base(), mapping.len());
        let mut first = [1; 8];
        let mut mapping = Some(mapping);
        assert!(crate::sys::process::tests::in_child(|| {
            // SAFETY: the range is mapped in the child, too.
            unsafe { copy::copy_in(&mut first, base) };
            // SAFETY: as above.
            unsafe { copy::fill(base, 9, 8) };
            drop(mapping.take());
            // SAFETY: the call only asks about a range of addresses.
            first == [0; 8] && unsafe { libc::msync(base.cast(), len, libc::MS_ASYNC) == 0 }
        }));
        assert_eq!(bytes(&mapping.unwrap(), 0..8), [7; 8]);
    }

    #[test]
    fn impossible_lengths_are_errors() {
        for len in [0, usize::MAX, isize::MAX as usize] {
            let error = Mapping::new(len).expect_err("no such mapping");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn the_machine_says_how_much_memory_there_is() {
        let machine = memory_of_machine().expect("Linux says so");
        assert!(machine > 16 << 20, "{machine} bytes");
        let text = "MemTotal:       12 kB\nMemFree: 7 kB\n";
        assert_eq!(kb_of(text, "MemTotal"), Some(12));
        assert_eq!(kb_of(text, "MemT"), None);
        assert!(host_page_size() >= 4096);
    }

    #[test]
    fn a_size_is_read_from_its_line() {
        let text = "Name:\ttest\nVmRSSx:\t1 kB\nVmRSS:\t   1234 kB\nThreads:\t3\n";
        assert_eq!(kb_of(text, "VmRSS"), Some(1234));
        assert_eq!(kb_of(text, "Threads"), None);
        assert_eq!(kb_of(text, "VmHWM"), None);
    }

    // spec: M20
    #[cfg(not(miri))]
    #[test]
    fn the_lowest_limit_of_a_groups_ancestors_counts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        };
        let limit = |membership: &str| {
            put("membership", membership);
            container_limit(&root.join("membership"), root)
        };
        put("a/memory.max", "3000000\n");
        put("a/b/memory.max", "max\n");
        put("a/b/c/memory.max", "5000000\n");
        assert_eq!(limit("0::/a/b/c\n"), Some(3_000_000));
        assert_eq!(limit("0::/\n"), None);
        put("memory.max", "9000000\n");
        assert_eq!(limit("0::/not/here\n"), Some(9_000_000));
        put("memory/x/memory.limit_in_bytes", "7000000\n");
        put("memory/y/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("3:cpu:/a\n2:foo,memory:/x\n"), Some(7_000_000));
        assert_eq!(limit("2:memory:/y\n"), None);
        assert_eq!(container_limit(&root.join("nothing"), root), None);
    }
}

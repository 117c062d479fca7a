//! Watching a page from which code is fetched; `code` has the protocol.

use crate::cache::Revoke;
use crate::exec::reentry::is_in_callback;
use crate::space::access::accessor::Accessor;
use crate::space::access::single::Single;
use crate::space::code::{Code, CodePage};
use crate::space::core::address::page_start;
use crate::space::core::fault::{AccessKind, Fault, FaultKind};
use crate::space::vma::area::MappedFile;
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::{PAGE_SIZE, VirtAddr};

impl Accessor {
    /// Watches the page of `at` for changes; the page's mapping must allow execution. Call this,
    /// then fetch and translate. The translation is stale as soon as [`CodePage::is_current`] is
    /// false.
    ///
    /// Every store to the page by an accessor of this space counts as a change. For a page of a
    /// file, so do stores through other mappings of the file, in this space, in its forks and in
    /// other spaces of the same [`Memory`](crate::Memory), and calls on the file such as
    /// [`PagedFile::write_at`](crate::PagedFile::write_at), once they return. Writes to the file by
    /// other processes do not count, nor do writes through a pin.
    ///
    /// The call waits for grace periods, which costs a few microseconds. The space remembers each
    /// watched page, in about 200 bytes.
    ///
    /// There is no `try_` form, because the call has to wait for grace periods. It may also wait
    /// for the page itself, which [`Accessor::try_fetch`] or [`Space::ready`](crate::Space::ready)
    /// can bring in beforehand, and for changes of the mappings.
    ///
    /// ```
    /// # use innerspace::{MIB, Map, Memory, space::Protection};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// let all = Protection::READ_WRITE | Protection::EXECUTE;
    /// let at = space.map(Map::anonymous(4096).protection(all))?;
    /// let mut a = space.accessor()?;
    /// a.store(at, 0x13_u32)?;
    /// let page = a.watch_code(at)?;
    /// let _translated = a.fetch::<u32>(at)?;
    /// assert!(page.is_current());
    /// a.store(at, 0x6f_u32)?;
    /// assert!(!page.is_current(), "translate it again");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The [`Fault`] of a fetch at `at`; [`FaultKind::Limit`] if the group has no room to remember
    /// the page.
    pub fn watch_code(&mut self, at: VirtAddr) -> Result<CodePage, Fault> {
        let space = self.core.space.clone();
        if is_in_callback(space.id) {
            // The call is refused even if the page is there, because the change that led to the
            // callback may hold the writer lock.
            let kind = FaultKind::Reentered;
            return Err(Fault::new(kind, at, AccessKind::Fetch, 0));
        }
        self.core.ensure_page_in::<Single>(at, AccessKind::Fetch)?;
        let page = page_start(at.0);
        let generation = space.code.watch(&space.group, page);
        let full = |error| space.limit_fault(at, AccessKind::Fetch, error);
        let generation = generation.map_err(full)?;
        let domain = &space.pool.domain;
        let writer = space.gate.write();
        let mapped = writer.vmas.find_containing(page);
        let file = mapped.and_then(|vma| Some((vma.file()?.clone(), vma.file_page(page))));
        if let Some((file, number)) = &file {
            let of_file = (file.key(), *number);
            space.code.register(&space.pool.watched, page, of_file);
        }
        let counted = generation.load(Ordering::Acquire);
        let closed = writer.close(domain, &(page..page + PAGE_SIZE as u64), || ());
        failpoint!(PageGated);
        space.end_writes(std::iter::once(page..page + 1));
        failpoint!(WritesEnded);
        if let Some((file, number)) = &file {
            // Sessions are not waited for: they use only mappings that they have faulted in.
            domain.synchronize_with(|_| false);
            file.mappers().revoke(*number..number + 1, Revoke::Write);
        }
        domain.synchronize_with(|owner| {
            let of_file = |(file, _): &(MappedFile, u64)| file.mappers().has_owner(owner);
            owner == space.id || file.as_ref().is_some_and(of_file)
        });
        let seen = match &file {
            Some(_) => counted,
            None => generation.load(Ordering::Acquire),
        };
        drop(closed);
        drop(writer);
        Ok(Code::page(generation, seen))
    }
}

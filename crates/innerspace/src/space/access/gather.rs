//! Many reads in one call: the pages that are not in memory are requested in batches, and the call
//! does not wait for any page of a batch before it has requested all of them.

use super::accessor::Accessor;
use super::forms::forms;
use super::single::{Core, Sectioned, Single};
use crate::VirtAddr;
use crate::cache::{FileInner, Wait};
use crate::exec::reentry::{Inside, is_in_callback};
use crate::space::core::address::page_start;
use crate::space::core::fault::{AccessKind, Fault};
use crate::space::vma::area::MappedFile;
use crate::space::vma::protection::Protection;
use crate::sync::Arc;

forms! { Accessor, Single => {
    /// Reads each of these ranges into its buffer, like consecutive calls to [`Accessor::read`].
    /// Before it reads, it requests the file pages that are not in memory from their stores, up to
    /// 64 in one batch, so a store that can serve several reads at a time does so. The requests use
    /// only memory that is available without waiting: in one batch at most an eighth, and in all at
    /// most half, of the lowest limit of the groups that pay for the file. `try_gather` requests
    /// nothing from a store; to read in the background, make this call in a [`Task`](crate::Task).
    ///
    /// ```
    /// # use innerspace::{MIB, Map, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// # let at = space.map(Map::anonymous(MIB))?;
    /// # let mut a = space.accessor()?;
    /// let (mut key, mut value) = ([0; 8], [0; 100]);
    /// a.gather(&mut [(at + 16, &mut key[..]), (at + 500_000, &mut value[..])])?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The [`Fault`] of the first byte, in the given order, that cannot be read. All bytes before
    /// that one are in their buffers.
    fn gather, try_gather(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Fault> {
        self.core.gather::<M>(reads)
    }
} }

impl Core {
    pub(crate) fn gather<S: Sectioned>(
        &mut self,
        reads: &mut [(VirtAddr, &mut [u8])],
    ) -> Result<(), Fault> {
        if S::WAIT == Wait::Yes {
            let ranges = reads.iter().map(|(at, buffer)| (*at, buffer.len()));
            self.ask_together(ranges);
        }
        for (at, buffer) in reads {
            self.read::<S>(*at, buffer)?;
        }
        Ok(())
    }

    /// Requests the pages of files in these ranges that are not in memory. This is only a hint.
    /// Does nothing if fewer than two pages of the ranges lack a valid translation, or in a
    /// callback of the space.
    fn ask_together(&mut self, ranges: impl Iterator<Item = (VirtAddr, usize)>) {
        let mut missing = Vec::new();
        for (at, len) in ranges {
            for (start, piece) in self.space.pieces(at, len) {
                self.translator.sections.enter();
                let hit = self.translator.hit(start, piece, AccessKind::Load);
                if hit.is_none() {
                    missing.push(page_start(start));
                }
                self.translator.sections.leave();
            }
        }
        missing.sort_unstable();
        missing.dedup();
        if missing.len() < 2 || is_in_callback(self.space.id) {
            return;
        }
        for (file, pages) in self.files_of(&missing) {
            let _inside = Inside::callback(self.space.id);
            file.fill_together(&pages);
        }
    }

    /// Returns the cached files that are mapped readable at these addresses, each with the pages
    /// that are mapped there.
    fn files_of(&self, addresses: &[u64]) -> Vec<(Arc<FileInner>, Vec<u64>)> {
        let mut files: Vec<(Arc<FileInner>, Vec<u64>)> = Vec::new();
        self.space.inside(|vmas| {
            for at in addresses {
                let vma = vmas.find_containing(*at);
                let readable = vma.filter(|vma| vma.protection.allows(Protection::READ));
                let Some((vma, Some(MappedFile::Cached(file)))) =
                    readable.map(|vma| (vma, vma.file()))
                else {
                    continue;
                };
                let page = vma.file_page(*at);
                match files.iter_mut().find(|(known, _)| Arc::ptr_eq(known, file)) {
                    Some((_, pages)) => pages.push(page),
                    None => files.push((file.clone(), vec![page])),
                }
            }
        });
        files
    }
}

//! Snapshots in files.
//!
//! All numbers are little-endian. A file is a header, then records up to the one that marks the
//! end:
//!
//! ```text
//! header   magic "INNERSNP", version u32, CRC-32 of the twelve bytes before it, u32
//! record   kind u32, check u32, length of the payload u64, payload
//!   4 width    bits of an address u32; the first record, and the only one of its kind
//!   1 mapping  start u64, end u64, first page of the file u64, protection u8, sharing u8,
//!              backing u8, 0 u8, file's name
//!   2 pages    address u64, then whole pages
//!   3 end      mappings u64, pages u64
//! ```
//!
//! Pages of anonymous memory that are all zeros are left out. So are pages of files, unless a store
//! through a private mapping has copied them: only the file's name is saved, and the caller that
//! loads the snapshot says which file it is.
//!
//! A record's check is the CRC-32 of the check before it (for the first record, the header's), its
//! kind, its length and its payload. So a record is valid only at its own place in its own file: if
//! a record is replaced, lost, repeated or taken from an older save, its own check or that of the
//! next record fails. The end is a record too, so its check covers the whole file. Bytes after the
//! end are not read.
//!
//! Other versions are not read: in versions 1 and 2 a check did not depend on the one before it, so
//! a file with a replaced record could not be told from a good one.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use super::error::SnapshotFileError;
use super::frozen::Snapshot;
use crate::cache::{Cache, PagedFile};
use crate::group::Group;
use crate::space::AddressWidth;
use crate::space::change::map::Map;
use crate::space::core::error::SpaceError;
use crate::space::core::space::{Space, SpaceInner};
use crate::space::vma::area::{Backing, MappedFile, Vma};
use crate::space::vma::protection::{Protection, Sharing};
use crate::sync::Arc;
use crate::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};

const MAGIC: [u8; 8] = *b"INNERSNP";
/// The version that is written, and the only one that is read.
const VERSION: u32 = 3;
const MAPPING: u32 = 1;
const PAGES: u32 = 2;
const END: u32 = 3;
const WIDTH: u32 = 4;
/// The most pages in one record.
const BATCH: usize = 64;
/// The longest payload. A greater length is damage, and no memory is allocated for it.
const LONGEST: u64 = (BATCH * PAGE_SIZE) as u64 + 8;
/// The number of bytes of a mapping's payload before the name.
const MAPPING_BYTES: usize = 28;
/// The most bytes that a file's name can have in a record.
const LONGEST_NAME: u64 = LONGEST - MAPPING_BYTES as u64;
/// The most bytes of address space that one section looks through for private pages.
const STRIDE: u64 = 2 << 20;
const PAGE: u64 = PAGE_SIZE as u64;

impl Snapshot {
    /// Writes the snapshot: its mappings with their protections, and its private bytes. Locks
    /// ([`Space::lock`]) and advice on reading ([`Advice`](crate::space::Advice)) are left out: a
    /// loaded snapshot has neither. The call buffers only a batch of pages; pass a `BufWriter` if
    /// small writes are expensive, and sync the file yourself. As with [`std::io`], `to` may be a
    /// `&mut` of a writer.
    ///
    /// # Errors
    /// [`SnapshotFileError::Io`]; or, for the first mapping that cannot be saved,
    /// [`SnapshotFileError::Device`], [`SnapshotFileError::Dax`] or
    /// [`SnapshotFileError::LongName`]. The bytes written up to an error are not a snapshot.
    pub fn save(&self, mut to: impl Write) -> Result<(), SnapshotFileError> {
        let mut out = Records::new(&mut to);
        out.header()?;
        out.record(WIDTH, &bits(self.0.0.width).to_le_bytes())?;
        let space = &*self.0.0;
        let vmas: Vec<Vma> = space.inside(|vmas| vmas.iter().cloned().collect());
        for vma in &vmas {
            out.record(MAPPING, &mapping_payload(vma)?)?;
        }
        let mut pages = 0_u64;
        for vma in &vmas {
            pages += save_pages(space, vma, &mut out)?;
        }
        let end = [vmas.len() as u64, pages].map(u64::to_le_bytes);
        out.record(END, end.as_flattened())
    }

    /// Fills a new space of `group` with the saved pages, and freezes it. `open` returns the file
    /// of a given name.
    pub(crate) fn load(
        cache: &Arc<Cache>,
        group: &Group,
        from: &mut impl Read,
        open: impl FnMut(&str) -> Option<PagedFile>,
    ) -> Result<Snapshot, SnapshotFileError> {
        let mut records = Records::new(from);
        records.read_header()?;
        let width = records.read_width()?;
        let space = Space::new(cache, group, width).map_err(SpaceError::Limit)?;
        let mut load = Load {
            space: &space,
            open,
            offset: 0,
            mappings: BTreeMap::new(),
            pages: 0,
        };
        loop {
            load.offset = records.offset;
            let (kind, payload) = records.read_record()?;
            match kind {
                MAPPING => load.mapping(&payload)?,
                PAGES => load.pages(&payload)?,
                END => {
                    load.end(&payload)?;
                    return Ok(space.freeze()?);
                }
                _ => return Err(load.damaged("an unknown record")),
            }
        }
    }
}

/// Writes the private pages of a mapping, except pages of anonymous memory that are all zeros.
/// Returns the number of pages written.
fn save_pages(
    space: &SpaceInner,
    vma: &Vma,
    out: &mut Records<impl Write>,
) -> Result<u64, SnapshotFileError> {
    let nodes = space.nodes();
    let mut saved = 0;
    // Adjacent pages, to be written as one record, and the address after them.
    let (mut payload, mut next) = (Vec::new(), 0);
    let mut at = vma.start;
    while at < vma.end {
        let end = vma.end.min((at & !(STRIDE - 1)) + STRIDE);
        for page in space.inside(|_| nodes.private_pages(&(at..end))) {
            let mut bytes = [0; PAGE_SIZE];
            // The page is read through the table, not through an accessor, so that pages without
            // read permission are saved too.
            space.inside(|_| nodes.copy_still_page(page, &mut bytes));
            if vma.file().is_none() && bytes == [0; PAGE_SIZE] {
                continue;
            }
            if !payload.is_empty() && (page != next || payload.len() as u64 == LONGEST) {
                out.record(PAGES, &payload)?;
                payload.clear();
            }
            if payload.is_empty() {
                payload.extend(page.to_le_bytes());
            }
            payload.extend(bytes);
            next = page + PAGE;
            saved += 1;
        }
        at = end;
    }
    if !payload.is_empty() {
        out.record(PAGES, &payload)?;
    }
    Ok(saved)
}

/// Returns the payload of a mapping's record. Returns an error for a device, whose state is not in
/// memory; for a direct-access file, which `load` cannot open by name; and for a name so long that
/// `load` would take it for damage.
fn mapping_payload(vma: &Vma) -> Result<Vec<u8>, SnapshotFileError> {
    let at = VirtAddr(vma.start);
    let mut payload = Vec::with_capacity(MAPPING_BYTES + 32);
    payload.extend(vma.start.to_le_bytes());
    payload.extend(vma.end.to_le_bytes());
    let (backing, name) = match (&vma.backing, vma.file_of_bytes()) {
        (_, Some(MappedFile::Direct(file))) => {
            let name = file.name().to_string();
            return Err(SnapshotFileError::Dax { name, at });
        }
        (_, Some(MappedFile::Cached(file))) => (1, file.id.own_name.to_string()),
        (Backing::Device(_), None) => return Err(SnapshotFileError::Device { at }),
        _ => (0, String::new()),
    };
    let (bytes, most) = (name.len() as u64, LONGEST_NAME);
    if bytes > most {
        return Err(SnapshotFileError::LongName { at, bytes, most });
    }
    payload.extend(vma.first_page.to_le_bytes());
    let sharing = u8::from(vma.sharing == Sharing::Shared);
    payload.extend([vma.protection.bits(), sharing, backing, 0]);
    payload.extend(name.as_bytes());
    Ok(payload)
}

/// A stream of records, and the position in it.
struct Records<'io, S> {
    inner: &'io mut S,
    offset: u64,
    /// The check of the record that was written or read last; before the first record, that of the
    /// header.
    check: u32,
}

impl<'io, S> Records<'io, S> {
    fn new(inner: &'io mut S) -> Records<'io, S> {
        Records {
            inner,
            offset: 0,
            check: 0,
        }
    }

    /// Returns the check that a record with this kind and payload has if it comes next.
    fn next_check(&self, kind: u32, payload: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.check.to_le_bytes());
        hasher.update(&kind.to_le_bytes());
        hasher.update(&(payload.len() as u64).to_le_bytes());
        hasher.update(payload);
        hasher.finalize()
    }
}

impl<W: Write> Records<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotFileError> {
        let offset = self.offset;
        let io = |source| SnapshotFileError::Io { offset, source };
        self.inner.write_all(bytes).map_err(io)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn header(&mut self) -> Result<(), SnapshotFileError> {
        let mut header = [0; 16];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        self.check = crc32fast::hash(&header[..12]);
        header[12..].copy_from_slice(&self.check.to_le_bytes());
        self.write(&header)
    }

    fn record(&mut self, kind: u32, payload: &[u8]) -> Result<(), SnapshotFileError> {
        self.check = self.next_check(kind, payload);
        let mut head = [0; 16];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&self.check.to_le_bytes());
        head[8..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        self.write(&head)?;
        self.write(payload)
    }
}

fn bits(width: AddressWidth) -> u32 {
    width.end().ilog2()
}

fn le_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn le_u64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

fn damaged(what: &'static str, offset: u64) -> SnapshotFileError {
    SnapshotFileError::Damaged { what, offset }
}

impl<R: Read> Records<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotFileError> {
        let offset = self.offset;
        let read = self.inner.read_exact(bytes);
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => damaged("the end is missing", offset),
            _ => SnapshotFileError::Io { offset, source },
        })?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn read_header(&mut self) -> Result<(), SnapshotFileError> {
        let mut header = [0; 16];
        match self.read(&mut header) {
            Err(SnapshotFileError::Damaged { .. }) => return Err(SnapshotFileError::NotASnapshot),
            read => read?,
        }
        if header[..8] != MAGIC {
            return Err(SnapshotFileError::NotASnapshot);
        }
        self.check = crc32fast::hash(&header[..12]);
        if self.check != le_u32(&header[12..]) {
            return Err(damaged("the header's checksum", 0));
        }
        match le_u32(&header[8..]) {
            VERSION => Ok(()),
            version => Err(SnapshotFileError::OtherVersion {
                version,
                read: VERSION,
            }),
        }
    }

    fn read_width(&mut self) -> Result<AddressWidth, SnapshotFileError> {
        let offset = self.offset;
        let (kind, payload) = self.read_record()?;
        let is_width = kind == WIDTH && payload.len() == 4;
        let known = [AddressWidth::Bits32, AddressWidth::Bits48].into_iter();
        let mut known = known.filter(|width| is_width && bits(*width) == le_u32(&payload));
        known
            .next()
            .ok_or_else(|| damaged("the width of addresses", offset))
    }

    fn read_record(&mut self) -> Result<(u32, Vec<u8>), SnapshotFileError> {
        let offset = self.offset;
        let mut head = [0; 16];
        self.read(&mut head)?;
        let (kind, check, len) = (le_u32(&head), le_u32(&head[4..]), le_u64(&head[8..]));
        if len > LONGEST {
            return Err(damaged("a record's length", offset));
        }
        let mut payload = vec![0; len as usize];
        self.read(&mut payload)?;
        self.check = self.next_check(kind, &payload);
        match self.check == check {
            true => Ok((kind, payload)),
            false => Err(damaged("a record's checksum", offset)),
        }
    }
}

/// A space being filled. Until the end record is read, its private mappings allow stores, whatever
/// protection they will get.
struct Load<'space, Open> {
    space: &'space Space,
    open: Open,
    /// The position at which the current record begins.
    offset: u64,
    /// The mappings by their first addresses.
    mappings: BTreeMap<u64, Mapping>,
    pages: u64,
}

/// A mapping of a space being filled.
struct Mapping {
    end: u64,
    /// The protection that the mapping gets once the end record is read.
    protection: Protection,
    sharing: Sharing,
    /// The file that a private mapping gets once the end record is read. Until then the mapping is
    /// anonymous: a store to a private mapping of the file would first read the page, which the
    /// file may no longer have.
    file: Option<Map>,
}

impl<Open: FnMut(&str) -> Option<PagedFile>> Load<'_, Open> {
    fn damaged(&self, what: &'static str) -> SnapshotFileError {
        damaged(what, self.offset)
    }

    fn mapping(&mut self, payload: &[u8]) -> Result<(), SnapshotFileError> {
        let Some((fixed, name)) = payload.split_at_checked(MAPPING_BYTES) else {
            return Err(self.damaged("a short mapping"));
        };
        let (start, end) = (le_u64(fixed), le_u64(&fixed[8..]));
        let protection = Protection::from_bits(fixed[24]).filter(|_| start < end);
        let protection = protection.ok_or_else(|| self.damaged("a mapping"))?;
        let name = std::str::from_utf8(name).map_err(|_| self.damaged("a file's name"))?;
        let sharing = match fixed[25] {
            0 => Sharing::Private,
            1 => Sharing::Shared,
            _ => return Err(self.damaged("a mapping's sharing")),
        };
        let file = match (fixed[26], sharing) {
            (0, Sharing::Private) => None,
            (1, _) => {
                let file = (self.open)(name).ok_or_else(|| SnapshotFileError::UnknownFile {
                    name: name.to_owned(),
                })?;
                let from = le_u64(&fixed[16..]).checked_mul(PAGE);
                let from = from.ok_or_else(|| self.damaged("a file's page"))?;
                let map = Map::file(&file).range(from..from.saturating_add(end - start));
                Some(map.protection(protection))
            }
            _ => return Err(self.damaged("a mapping's backing")),
        };
        let (map, file) = match (sharing, file) {
            (Sharing::Shared, Some(file)) => (file.shared(), None),
            (_, file) => (Map::anonymous(end - start), file),
        };
        self.space.map(map.at(VirtAddr(start)).with_null())?;
        let mapping = Mapping {
            end,
            protection,
            sharing,
            file,
        };
        self.mappings.insert(start, mapping);
        Ok(())
    }

    fn pages(&mut self, payload: &[u8]) -> Result<(), SnapshotFileError> {
        let Some((at, bytes)) = payload.split_at_checked(8) else {
            return Err(self.damaged("short pages"));
        };
        let at = le_u64(at);
        let has_them = |mapping: &&Mapping| bytes.len() as u64 <= mapping.end.saturating_sub(at);
        let before = self.mappings.range(..=at).next_back();
        let mapping = before.map(|(_, mapping)| mapping).filter(has_them);
        let whole = bytes.len().is_multiple_of(PAGE_SIZE) && at.is_multiple_of(PAGE);
        let Some(mapping) = mapping.filter(|_| !bytes.is_empty() && whole) else {
            return Err(self.damaged("pages outside every mapping"));
        };
        // Pages of a shared mapping would be stored to the file, and `save` writes none.
        if mapping.sharing == Sharing::Shared {
            return Err(self.damaged("pages of a shared mapping"));
        }
        let mut accessor = self.space.accessor().map_err(SpaceError::from)?;
        let written = accessor.write(VirtAddr(at), bytes);
        written.map_err(|fault| SnapshotFileError::Pages(self.space.explain(fault)))?;
        self.pages += (bytes.len() >> PAGE_SHIFT) as u64;
        Ok(())
    }

    fn end(&mut self, payload: &[u8]) -> Result<(), SnapshotFileError> {
        if payload.len() != 16 {
            return Err(self.damaged("the end"));
        }
        let counted = (le_u64(payload), le_u64(&payload[8..]));
        if counted != (self.mappings.len() as u64, self.pages) {
            return Err(self.damaged("the number of mappings or pages"));
        }
        for (start, mapping) in std::mem::take(&mut self.mappings) {
            let (at, len) = (VirtAddr(start), mapping.end - start);
            self.space.protect(at, len, mapping.protection)?;
            if let Some(file) = mapping.file {
                self.space.map_behind(&file.replacing(at).with_null())?;
            }
        }
        Ok(())
    }
}

//! Host files as devices: opening one, and what other processes can do to it meanwhile.
//!
//! A file is opened as a store opens it. Only regular files are opened. A file that is to be
//! written gets an exclusive advisory lock before anything is changed. Its identity is determined
//! as for a store, so that a file is recognised whichever way it is opened.
//!
//! **Another process that truncates a host file under us** takes bytes away from the mapping: the
//! next access to them is a SIGBUS from the host, which this library does not catch. Some things
//! help against that, and some do not:
//! - A sealed file in memory cannot be cut. [`DaxDevice::memfd`](super::DaxDevice::memfd) makes
//!   such devices. A file with a name cannot be sealed.
//! - The advisory lock keeps out programs that ask for it, such as every user of this library.
//! - A lease (`F_SETLEASE`) does not help, and none is taken. It can be taken only while no other
//!   process has the file open; its holder learns of a truncation by a signal, which a library must
//!   not claim; and the kernel breaks it after /proc/sys/fs/lease-break-time whether or not the
//!   holder has released it. A lease delays the cut and does not turn it into an error.
//! - The host is asked for the length again after every allocation of a block, so that a cut is
//!   noticed before a new page past the end is handed out. And calls can use the descriptor instead
//!   of the mapping ([`HostFile::read_at`], [`HostFile::write_at`]), where a cut is an error; that
//!   costs a system call.

use std::io;

use super::error::{DaxError, DaxFeature};
use crate::store::{FileAccess, KnownLen, LockedFile, Opened, Opening, shown, uninterrupted};
use crate::sync::Arc;
use crate::sys::file::{self as sys, Keep};
use crate::sys::shared;
use crate::units::PAGE_SIZE;

/// A file of the host, open for direct access. Dropping the last reference unlocks and closes it.
#[derive(Debug)]
pub(crate) struct HostFile {
    /// The open file, locked if it is writable.
    pub(super) file: LockedFile,
    access: FileAccess,
    pub(super) name: Arc<str>,
    /// The file's length; 0 at first if the file is to be emptied.
    pub(super) len: KnownLen,
}

impl HostFile {
    /// Makes a host file of an open file, which is locked if it is to be written. The second value
    /// lets the caller empty the file, once nothing else can fail.
    ///
    /// # Errors
    /// [`DaxError::Unsupported`] if the file system has blocks smaller than a page, so that a part
    /// of a page may be a hole.
    pub(crate) fn new(locked: Opened<'_>) -> Result<(Arc<HostFile>, Opening<'_>), DaxError> {
        let (opening, metadata) = (locked.opening, locked.metadata);
        let host = HostFile {
            access: opening.access,
            name: shown(opening.path).into(),
            len: KnownLen::new(opening.len(&metadata)),
            file: locked.file,
        };
        match sys::block_size(&metadata) {
            Some(size) if size < PAGE_SIZE as u64 => {
                let text = format!("its file system has blocks of {size}");
                let error = io::Error::new(io::ErrorKind::Unsupported, text);
                let name = host.name.clone();
                Err(DaxError::unsupported(name, DaxFeature::PageBlocks, error))
            }
            _ => Ok((Arc::new(host), opening)),
        }
    }

    /// Returns whether the file accepts writes.
    pub(crate) fn writable(&self) -> bool {
        self.access == FileAccess::ReadWrite
    }

    /// Returns the length that the host reports now.
    pub(crate) fn len_now(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Reads all of `buf` by a call to the host.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the last of these bytes.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        transfer(buf.len(), io::ErrorKind::UnexpectedEof, |done| {
            let at = offset + done as u64;
            sys::read_at(&self.file, &mut buf[done..], at, Keep::Cached)
        })
    }

    /// Asks the host to provide room for these bytes, which are inside the file. Succeeds if the
    /// file system cannot allocate ahead of writes.
    ///
    /// # Errors
    /// The host's error.
    pub(crate) fn find_room(&self, offset: u64, len: u64) -> io::Result<()> {
        match shared::allocate(&self.file, offset, len) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            found => found,
        }
    }

    /// Shortens or lengthens the host's file.
    ///
    /// # Errors
    /// The host's error.
    pub(crate) fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.len.get();
        let resized = self.len.resizing(&self.file, len, || {
            #[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
            shared::faulty::ask(shared::faulty::Call::SetLen, 0..len as usize)?;
            self.file.set_len(len)
        });
        if resized.is_err() {
            // The direct-access file keeps its length, and so does `len`. If another process has
            // cut the host's file, the missing part must be noticed, or a store there would raise a
            // signal.
            self.len.grew_to(before);
        }
        resized
    }

    /// Makes these bytes, which are whole pages, a hole.
    ///
    /// # Errors
    /// The host's error; some of the pages may be a hole.
    pub(crate) fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
        shared::faulty::ask(
            shared::faulty::Call::Punch,
            offset as usize..(offset + len) as usize,
        )?;
        sys::punch(&self.file, offset, len)
    }

    /// Writes all of `buf` by a call to the host, which lengthens the file if needed.
    ///
    /// # Errors
    /// The host's error; some of the bytes may be written.
    pub(crate) fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
        shared::faulty::ask(
            shared::faulty::Call::Write,
            offset as usize..offset as usize + buf.len(),
        )?;
        transfer(buf.len(), io::ErrorKind::WriteZero, |done| {
            let at = offset + done as u64;
            sys::write_at(&self.file, &buf[done..], at, Keep::Cached)
        })
    }
}

/// Repeats `call` until `len` bytes are transferred. Each time, `call` gets the number of bytes
/// transferred so far, and returns how many more it has transferred. If that is 0, the error is
/// `ended`.
fn transfer(
    len: usize,
    ended: io::ErrorKind,
    mut call: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match uninterrupted(|| call(done))? {
            0 => return Err(ended.into()),
            count => done += count,
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod for_tests {
    use super::*;
    use std::path::Path;

    use crate::store::Create;

    impl HostFile {
        /// Opens or creates a file. An existing one is not changed before it is locked.
        ///
        /// # Errors
        /// [`DaxError::Open`], as for a store, and the errors of [`HostFile::new`].
        pub(crate) fn open(
            path: &Path,
            access: FileAccess,
            create: Create,
        ) -> Result<Arc<HostFile>, DaxError> {
            let (host, opening) = HostFile::new(Opened::begin(path, access, create)?.lock_any()?)?;
            opening.empty(&host.file)?;
            Ok(host)
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle), not(miri)))]
mod tests {
    use super::*;
    use crate::store::Create;
    use crate::store::{FileOpenError, FileStore, LockHolder};
    use std::path::Path;

    #[test]
    fn a_host_file_is_opened_made_and_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        let host = HostFile::open(&path, FileAccess::ReadWrite, Create::New).unwrap();
        host.write_at(b"some bytes", 5000).unwrap();
        assert_eq!((host.len.get(), host.len_now().unwrap()), (0, 5010));
        drop(host);
        let host = HostFile::open(&path, FileAccess::ReadOnly, Create::Never).unwrap();
        assert!(!host.writable());
        let mut bytes = [0; 10];
        host.read_at(&mut bytes, 5000).unwrap();
        assert_eq!(&bytes, b"some bytes");
        let end = host.read_at(&mut bytes, 5001).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        host.write_at(b"x", 0).unwrap_err();
        let host = HostFile::open(&path, FileAccess::ReadWrite, Create::Truncate).unwrap();
        assert_eq!(host.len.get(), 0);
    }

    #[test]
    fn a_file_that_is_in_use_or_none_is_refused_with_a_clear_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        let text = |path: &Path, access, create| {
            HostFile::open(path, access, create)
                .unwrap_err()
                .to_string()
        };
        let shown = path.display();
        let missing = text(&path, FileAccess::ReadOnly, Create::Never);
        assert_eq!(missing, format!("{shown}: no such file"));
        let folder_text = text(folder.path(), FileAccess::ReadOnly, Create::Never);
        assert!(
            folder_text.ends_with(": is a directory, not a file"),
            "{folder_text}"
        );
        let _open = FileStore::create(&path).unwrap();
        let error = HostFile::open(&path, FileAccess::ReadWrite, Create::Truncate).unwrap_err();
        let DaxError::Open(error) = &error else {
            panic!("{error}")
        };
        assert!(
            matches!(
                &**error,
                // `Unknown`: in a PID namespace, or without /proc/locks.
                FileOpenError::InUse {
                    holder: LockHolder::ThisProcess | LockHolder::Unknown,
                    ..
                }
            ),
            "{error}"
        );
        #[cfg(unix)]
        {
            let null = text("/dev/null".as_ref(), FileAccess::ReadWrite, Create::Never);
            assert_eq!(null, "/dev/null: is a character device, not a regular file");
        }
    }

    #[test]
    fn a_writable_host_file_keeps_stores_out_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        let host = HostFile::open(&path, FileAccess::ReadWrite, Create::New).unwrap();
        let second = HostFile::open(&path, FileAccess::ReadWrite, Create::IfMissing);
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        FileStore::open_rw(&path).unwrap_err();
        drop(host);
        FileStore::open_rw(&path).unwrap();
    }
}

//! What of a database is in the kernel's page cache.

use std::fs::File;
use std::os::fd::AsRawFd;

use innerspace::store::kernel_cached_pages;

use crate::common::{create, open, open_unix, set_journal, verify};

/// The first page is what each shared lock looks at. The kernel must not read others ahead.
#[test]
fn reading_leaves_the_first_page_alone_in_the_kernels_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    for mode in ["DELETE", "WAL"] {
        let _ = std::fs::remove_file(&path);
        let connection = open_unix(&path);
        set_journal(&connection, mode);
        create(&connection);
        connection.close().unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        let dropped = libc::POSIX_FADV_DONTNEED;
        // SAFETY: the descriptor is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, dropped) };
        if kernel_cached_pages(&path).unwrap().bytes() > 0 {
            eprintln!("skipped: this file system is a memory");
            return;
        }
        let connection = open(&path);
        assert_eq!(verify(&connection), 0);
        let pages = kernel_cached_pages(&path).unwrap();
        assert!(pages.bytes() <= 4096, "{mode}: {pages:?}");
    }
}

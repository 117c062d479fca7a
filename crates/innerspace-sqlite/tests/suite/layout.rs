//! SQLite's structs and numbers are what SQLite says.

use std::mem::offset_of;

use innerspace_sqlite::layout;
use rusqlite::ffi;

#[test]
fn structs_are_those_of_sqlite() {
    assert_eq!(
        size_of::<layout::SqliteVfs>(),
        size_of::<ffi::sqlite3_vfs>()
    );
    assert_eq!(
        size_of::<layout::IoMethods>(),
        size_of::<ffi::sqlite3_io_methods>()
    );
    assert_eq!(
        size_of::<layout::SqliteFile>(),
        size_of::<ffi::sqlite3_file>()
    );
    macro_rules! same {
        ($ours:ident, $theirs:ident: $($own:ident $field:ident),*) => {
            $(assert_eq!(
                offset_of!(layout::$ours, $own),
                offset_of!(ffi::$theirs, $field),
                stringify!($field)
            );)*
        };
    }
    same!(SqliteVfs, sqlite3_vfs: version iVersion, file_bytes szOsFile, max_path mxPathname,
        next pNext, name zName, app_data pAppData, open xOpen, delete xDelete, access xAccess,
        full_pathname xFullPathname, dl_open xDlOpen, dl_error xDlError, dl_sym xDlSym,
        dl_close xDlClose, randomness xRandomness, sleep xSleep, current_time xCurrentTime,
        get_last_error xGetLastError, current_time_int64 xCurrentTimeInt64,
        set_system_call xSetSystemCall, get_system_call xGetSystemCall,
        next_system_call xNextSystemCall);
    same!(IoMethods, sqlite3_io_methods: version iVersion, close xClose, read xRead, write xWrite,
        truncate xTruncate, sync xSync, file_size xFileSize, lock xLock, unlock xUnlock,
        check_reserved_lock xCheckReservedLock, file_control xFileControl,
        sector_size xSectorSize, device_characteristics xDeviceCharacteristics, shm_map xShmMap,
        shm_lock xShmLock, shm_barrier xShmBarrier, shm_unmap xShmUnmap, fetch xFetch,
        unfetch xUnfetch);
}

#[test]
fn numbers_are_those_of_sqlite() {
    macro_rules! theirs {
        ($($name:ident)*) => { [$((stringify!($name), ffi::$name),)*] };
    }
    let theirs = theirs!(SQLITE_OK SQLITE_ERROR SQLITE_INTERNAL SQLITE_BUSY SQLITE_NOMEM
        SQLITE_READONLY SQLITE_IOERR SQLITE_NOTFOUND SQLITE_FULL SQLITE_CANTOPEN SQLITE_PROTOCOL
        SQLITE_MISUSE SQLITE_NOTADB SQLITE_NOTICE SQLITE_WARNING SQLITE_IOERR_READ SQLITE_IOERR_SHORT_READ
        SQLITE_IOERR_WRITE SQLITE_IOERR_FSYNC SQLITE_IOERR_DIR_FSYNC SQLITE_IOERR_TRUNCATE
        SQLITE_IOERR_FSTAT SQLITE_IOERR_UNLOCK SQLITE_IOERR_RDLOCK SQLITE_IOERR_DELETE
        SQLITE_IOERR_NOMEM SQLITE_IOERR_ACCESS SQLITE_IOERR_CHECKRESERVEDLOCK SQLITE_IOERR_LOCK
        SQLITE_IOERR_CLOSE SQLITE_IOERR_SHMOPEN SQLITE_IOERR_SHMSIZE SQLITE_IOERR_SHMLOCK
        SQLITE_IOERR_SHMMAP SQLITE_IOERR_DELETE_NOENT SQLITE_READONLY_CANTINIT
        SQLITE_READONLY_DIRECTORY
        SQLITE_CANTOPEN_ISDIR SQLITE_OK_LOAD_PERMANENTLY SQLITE_OPEN_READONLY
        SQLITE_OPEN_READWRITE SQLITE_OPEN_CREATE SQLITE_OPEN_DELETEONCLOSE SQLITE_OPEN_EXCLUSIVE
        SQLITE_OPEN_MAIN_DB SQLITE_OPEN_TEMP_DB SQLITE_OPEN_TRANSIENT_DB SQLITE_OPEN_MAIN_JOURNAL
        SQLITE_OPEN_TEMP_JOURNAL SQLITE_OPEN_SUBJOURNAL SQLITE_OPEN_SUPER_JOURNAL SQLITE_OPEN_WAL
        SQLITE_LOCK_NONE SQLITE_LOCK_SHARED SQLITE_LOCK_RESERVED SQLITE_LOCK_PENDING
        SQLITE_LOCK_EXCLUSIVE SQLITE_SYNC_NORMAL SQLITE_SYNC_FULL SQLITE_SYNC_DATAONLY
        SQLITE_ACCESS_EXISTS SQLITE_ACCESS_READWRITE SQLITE_ACCESS_READ SQLITE_SHM_UNLOCK
        SQLITE_SHM_LOCK SQLITE_SHM_SHARED SQLITE_SHM_EXCLUSIVE SQLITE_IOCAP_POWERSAFE_OVERWRITE
        SQLITE_IOCAP_IMMUTABLE SQLITE_IOCAP_SUBPAGE_READ SQLITE_FCNTL_LOCKSTATE
        SQLITE_FCNTL_SIZE_HINT SQLITE_FCNTL_CHUNK_SIZE SQLITE_FCNTL_PERSIST_WAL
        SQLITE_FCNTL_VFSNAME SQLITE_FCNTL_POWERSAFE_OVERWRITE SQLITE_FCNTL_PRAGMA
        SQLITE_FCNTL_TEMPFILENAME SQLITE_FCNTL_MMAP_SIZE SQLITE_FCNTL_HAS_MOVED
        SQLITE_FCNTL_EXTERNAL_READER SQLITE_UTF8 SQLITE_DIRECTONLY);
    for (name, number) in layout::NUMBERS {
        let full = format!("SQLITE_{name}");
        let theirs = theirs.iter().find(|(name, _)| *name == full);
        assert_eq!(theirs.map(|(_, number)| *number), Some(*number), "{full}");
    }
}

//! Files over each engine: where the kernel refuses an engine, from the beginning or later, and
//! which pages each engine leaves in the kernel's page cache.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use innerspace::store::{
    CacheMode, FileAccess, FileEngine, FileOptions, FileStore, Store, SyncWhat, kernel_cached_pages,
};
use innerspace::{MIB, file::Ready};

use super::*;

const LEN: usize = 8 << 20;
const LONG: Duration = Duration::from_secs(60);

fn pattern() -> Vec<u8> {
    (0..LEN).map(|at| (at / 7 % 253) as u8).collect()
}

/// Writes a file, and has the kernel drop the pages that it cached of the file, if it can be told
/// to.
fn write_uncached(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let options = FileOptions::new().access(FileAccess::ReadWrite);
    let Ok(store) = options.cache_mode(CacheMode::DropAfterUse).open(path) else {
        return;
    };
    store.write_at(bytes, 0).unwrap();
    store.sync(SyncWhat::All).unwrap();
}

/// A file of the memory, the store below it, and the file's bytes.
struct Case {
    memory: Memory,
    file: PagedFile,
    store: Arc<FileStore>,
    expected: Vec<u8>,
    path: PathBuf,
    rounds: u8,
}

impl Case {
    fn new(path: &Path, cache: CacheMode) -> Case {
        let expected = pattern();
        write_uncached(path, &expected);
        let options = FileOptions::new().access(FileAccess::ReadWrite);
        let store = Arc::new(options.cache_mode(cache).open(path).unwrap());
        let memory = Memory::with_limit(2 * MIB).unwrap();
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options.open_store(store.clone()).unwrap();
        Case {
            memory,
            file,
            store,
            expected,
            path: path.to_owned(),
            rounds: 0,
        }
    }

    /// Makes concurrent reads, a scan, writes and a sync, and checks all of them.
    fn work(&mut self) {
        let ready = self.begin_reads();
        self.end_reads(ready);
        let mut at = 0;
        let expected = &self.expected;
        (self.file)
            .scan(.., |piece| {
                assert!(*piece == expected[at..at + piece.len()], "at {at}");
                at += piece.len();
            })
            .unwrap();
        assert_eq!(at, LEN);
        self.rounds += 1;
        let piece = vec![self.rounds; 3 * BLOCK + 100];
        for place in (0..LEN - piece.len()).step_by(LEN / 10) {
            self.file.write_at(&piece, place as u64).unwrap();
            self.expected[place..place + piece.len()].copy_from_slice(&piece);
        }
        let long = vec![self.rounds; 1 << 20];
        self.file.write_at(&long, 5 << 20).unwrap();
        self.expected[5 << 20..6 << 20].copy_from_slice(&long);
        self.file.sync_all().unwrap();
    }

    fn begin_reads(&self) -> Vec<(usize, Ready)> {
        let places = (0..LEN).step_by(BLOCK * 9);
        let begin = |place| {
            let mut ready = self.file.ready(place as u64..place as u64 + 10);
            let _ = Pin::new(&mut ready).poll(&mut Context::from_waker(Waker::noop()));
            (place, ready)
        };
        places.map(begin).collect()
    }

    fn end_reads(&self, reads: Vec<(usize, Ready)>) {
        for (place, mut ready) in reads {
            let view = ready.wait_timeout(LONG).expect("in time").unwrap();
            assert!(view[..] == self.expected[place..place + 10], "at {place}");
        }
    }

    fn end(self) {
        self.memory.validate();
        drop((self.file, self.store));
        assert!(self.memory.take_errors().is_empty());
        assert!(std::fs::read(&self.path).unwrap() == self.expected);
    }
}

/// From here on, makes the kernel answer calls for rings with this error, in all threads.
#[cfg(target_os = "linux")]
fn forbid_rings(number: i32) {
    const SETUP: u32 = libc::SYS_io_uring_setup as u32;
    const ENTER: u32 = libc::SYS_io_uring_enter as u32;
    const REGISTER: u32 = libc::SYS_io_uring_register as u32;
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let is = |call, jt| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, 0, call);
    let answer = |k| statement(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        is(SETUP, 3),
        is(ENTER, 2),
        is(REGISTER, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | number as u32),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: changes what this process may do; it was started for that.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    // SAFETY: the filter and its program live as long as the call.
    let set = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// Runs without rings from the beginning.
#[cfg(target_os = "linux")]
pub(super) fn work_without_rings(path: &Path, number: i32) {
    forbid_rings(number);
    let mut case = Case::new(path, CacheMode::Auto);
    assert_eq!(case.store.engine(), FileEngine::Calls);
    case.work();
    assert_eq!(case.store.engine(), FileEngine::Calls);
    case.end();
    say("done");
}

/// Rings are refused while one is in use: requests in flight arrive, and calls continue.
#[cfg(target_os = "linux")]
pub(super) fn work_while_rings_go(path: &Path, number: i32) {
    let mut case = Case::new(path, CacheMode::Auto);
    let before = case.store.engine();
    case.work();
    assert_eq!(case.store.engine(), before);
    let ready = case.begin_reads();
    forbid_rings(number);
    case.end_reads(ready);
    for _ in 0..2 {
        case.work();
    }
    assert_eq!(case.store.engine(), FileEngine::Calls);
    // The same holds for a file that is opened now.
    let other = Case::new(&path.with_extension("other"), CacheMode::Auto);
    let ready = other.begin_reads();
    other.end_reads(ready);
    assert_eq!(other.store.engine(), FileEngine::Calls);
    other.end();
    case.end();
    say("done");
}

/// Runs with no lockable memory, and without privileges.
#[cfg(target_os = "linux")]
pub(super) fn work_without_locked_memory(path: &Path) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    std::fs::write(path, []).unwrap();
    std::os::unix::fs::chown(path, Some(65534), None).unwrap();
    // SAFETY: the limit lives as long as the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) }, 0);
    // SAFETY: changes the user of this process, which was started for that.
    let _privileged = unsafe { libc::setuid(65534) } != 0;
    let mut case = Case::new(path, CacheMode::Auto);
    case.work();
    case.end();
    say("done");
}

/// Runs with the engine that the environment names: all bytes are right, and no page stays in the
/// kernel's page cache.
pub(super) fn work_and_leave_nothing(path: &Path) {
    let mut case = Case::new(path, CacheMode::Auto);
    for _ in 0..3 {
        case.work();
        if case.store.cache_mode() == CacheMode::Kernel {
            say("left out: nothing can be kept from the page cache");
            break;
        }
        match kernel_cached_pages(path) {
            // Pages that were under way when they were to be dropped may be left.
            Ok(left) => assert!(left.0 <= 8, "{}: {} pages", case.store.engine(), left.0),
            Err(_) => break,
        }
    }
    case.end();
    say("done");
}

/// Runs on another kind of file system: the mode says what is in force, and the engine follows it.
#[cfg(target_os = "linux")]
pub(super) fn work_on_tmpfs(path: &Path) {
    let mut case = Case::new(path, CacheMode::Auto);
    case.work();
    if case.store.cache_mode() != CacheMode::Direct {
        assert_eq!(case.store.engine(), FileEngine::Calls);
    }
    case.end();
    // The file system has no O_DIRECT at all.
    let mut case = Case::new(path, CacheMode::Kernel);
    assert_eq!(case.store.engine(), FileEngine::Calls);
    case.work();
    case.end();
    say("done");
}

#[cfg(target_os = "linux")]
fn runs(part: &str) {
    let folder = disk_folder();
    // The process has another user by the time that it opens the folder.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let path = folder.path().join("data.bin");
    let child = other(&[], part, &path).spawn().unwrap();
    assert!(ends_well(child), "{part}: see above");
}

// spec: R15
#[cfg(target_os = "linux")]
#[test]
fn a_kernel_that_refuses_rings_is_asked_by_calls() {
    runs("no rings, ENOSYS");
    runs("no rings, EPERM");
}

// spec: R15
#[cfg(target_os = "linux")]
#[test]
fn rings_that_are_refused_later_are_given_up_and_nothing_is_lost() {
    runs("rings go, ENOSYS");
    runs("rings go, EPERM");
}

// spec: R15
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_may_lock_no_memory_reads_and_writes() {
    runs("no locked memory");
}

// spec: R15
#[cfg(target_os = "linux")]
#[test]
fn a_file_in_memory_goes_by_what_its_file_system_takes() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return eprintln!("left out: no /dev/shm");
    };
    let child = other(&[], "tmpfs", &folder.path().join("data.bin"));
    let mut child = child;
    assert!(ends_well(child.spawn().unwrap()), "see above");
}

// spec: R15, R16
#[cfg(target_os = "linux")]
#[test]
fn with_each_engine_all_is_right_and_the_kernel_keeps_nothing() {
    for engine in forked::ENGINES {
        let folder = disk_folder();
        let path = folder.path().join("data.bin");
        let mut child = other(&[], "leave nothing", &path);
        let child = child.env("INNERSPACE_FALLBACK", engine).spawn().unwrap();
        assert!(ends_well(child), "{engine}: see above");
    }
}

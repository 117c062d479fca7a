//! The kernel's side: each space is a process, forked from that of its parent.
//!
//! This process tells the others what to do through one pipe each, by the number of the step, and
//! reads one line back. They access memory by having the kernel copy between the memory and a pipe,
//! which fails with EFAULT where an access would raise a signal. To learn which signal, they fork a
//! child that makes the access.

use std::ffi::c_void;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use crate::program::{
    Allowed, BASE, FILES, Op, PAGE, Place, Program, READ_ONLY, SPACES, Source, WINDOW, WRITTEN,
    bytes, digest, first_bytes, pieces,
};

/// The flag for the step that prints one page; the page's number is in the other bits.
const SHOW: u64 = 1 << 32;
const STOP: u64 = u64::MAX;

struct Pipe {
    read: File,
    write: File,
}

fn pipe() -> Pipe {
    let mut ends = [0; 2];
    // SAFETY: there is room for two numbers, and the descriptors that come back belong only to us.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        Pipe {
            read: File::from_raw_fd(ends[0]),
            write: File::from_raw_fd(ends[1]),
        }
    }
}

/// The state that all processes share.
struct Host<'a> {
    program: &'a Program,
    files: Vec<File>,
    /// The pipes for steps, one for each space.
    orders: Vec<Pipe>,
    answers: Pipe,
    /// This process's own pipe for copying, empty between steps.
    scratch: Pipe,
}

pub(crate) fn run(program: &Program) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let files = (0..FILES).map(|number| {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, first_bytes(number)).unwrap();
        let mut options = File::options();
        options.read(true).write(number != READ_ONLY);
        options.open(path).unwrap()
    });
    let mut host = Host {
        program,
        files: files.collect(),
        orders: (0..SPACES).map(|_| pipe()).collect(),
        answers: pipe(),
        scratch: pipe(),
    };
    host.spawn(0);
    let mut spaces = 1;
    let mut lines = Vec::new();
    for (step, (number, op)) in program.steps.iter().enumerate() {
        if matches!(op, Op::Fork) && spaces == SPACES {
            lines.push("no more".to_owned());
            continue;
        }
        lines.push(host.ask(number % spaces, step as u64));
        spaces += usize::from(matches!(op, Op::Fork));
    }
    for number in 0..spaces {
        lines.extend((0..WINDOW).map(|page| host.ask(number, SHOW + page)));
    }
    for number in 0..FILES {
        lines.push(digest(&host.file_bytes(number, 0, u64::MAX)));
    }
    (0..spaces).for_each(|number| host.order(number, STOP));
    lines
}

impl Host<'_> {
    fn order(&mut self, number: usize, step: u64) {
        self.orders[number]
            .write
            .write_all(&step.to_le_bytes())
            .unwrap();
    }

    fn ask(&mut self, number: usize, step: u64) -> String {
        self.order(number, step);
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            self.answers.read.read_exact(&mut byte).unwrap();
            if byte == *b"\n" {
                return String::from_utf8(line).unwrap();
            }
            line.push(byte[0]);
        }
    }

    /// Forks a process that is space `number`, and does not return in it.
    fn spawn(&mut self, number: usize) {
        // SAFETY: there is one thread, and the child continues with a copy of everything.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            self.scratch = pipe();
            self.serve(number);
        }
    }

    fn serve(&mut self, number: usize) -> ! {
        loop {
            let mut step = [0; 8];
            self.orders[number].read.read_exact(&mut step).unwrap();
            let line = match u64::from_le_bytes(step) {
                // SAFETY: this ends the process without running the code that its parent is to run.
                STOP => unsafe { libc::_exit(0) },
                page if page >= SHOW => {
                    let place = Place {
                        page: page - SHOW,
                        offset: 0,
                    };
                    self.read(place, PAGE)
                }
                step => self.step(step as usize),
            };
            writeln!(self.answers.write, "{line}").unwrap();
        }
    }

    fn step(&mut self, step: usize) -> String {
        match self.program.steps[step].1 {
            Op::Map {
                at,
                pages,
                source,
                allowed,
                replace,
            } => self.map(at, pages, source, allowed, replace),
            Op::Unmap { at, pages } => {
                // SAFETY: only this program uses the window, and no Rust object is in it.
                told(unsafe { libc::munmap(pointer(at), bytes(at, pages) as usize) })
            }
            Op::Protect { at, pages, allowed } => {
                // SAFETY: as above.
                let done = unsafe {
                    libc::mprotect(pointer(at), bytes(at, pages) as usize, flags(allowed))
                };
                told(done)
            }
            Op::Remap { at, old, new, to } => remap(at, old, new, to),
            Op::DontNeed { at, pages } => {
                let len = bytes(at, pages) as usize;
                // SAFETY: as above.
                told(unsafe { libc::madvise(pointer(at), len, libc::MADV_DONTNEED) })
            }
            Op::Sync { at, pages } => {
                // SAFETY: as above.
                told(unsafe { libc::msync(pointer(at), bytes(at, pages) as usize, libc::MS_SYNC) })
            }
            Op::Fork => {
                // Finds the next space that has no process yet.
                let forks = self.program.steps[..step].iter();
                let number = 1 + forks.filter(|(_, op)| matches!(op, Op::Fork)).count();
                self.spawn(number);
                "ok".to_owned()
            }
            Op::Read { at, len } => self.read(at, len),
            Op::Write { at, len, value } => self.write(at, len, value),
            Op::Truncate { file, pages } => {
                self.files[file].set_len(pages * PAGE).unwrap();
                "ok".to_owned()
            }
            Op::Punch { file, page, pages } => {
                let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let (start, len) = ((page * PAGE) as i64, (pages * PAGE) as i64);
                // SAFETY: the call names no memory of ours.
                told(unsafe { libc::fallocate(self.files[file].as_raw_fd(), how, start, len) })
            }
            Op::WriteFile { file, at, value } => {
                use std::os::unix::fs::FileExt;
                self.files[file]
                    .write_all_at(&[value; WRITTEN as usize], at)
                    .unwrap();
                "ok".to_owned()
            }
            Op::ReadFile { file, page } => digest(&self.file_bytes(file, page * PAGE, PAGE)),
        }
    }

    fn map(
        &self,
        at: Place,
        pages: u64,
        source: Source,
        allowed: Allowed,
        replace: bool,
    ) -> String {
        let fixed = match replace {
            true => libc::MAP_FIXED,
            false => libc::MAP_FIXED_NOREPLACE,
        };
        let (how, file, first) = match source {
            Source::Anonymous => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
            Source::Private { file, first } => {
                (libc::MAP_PRIVATE, self.files[file].as_raw_fd(), first)
            }
            Source::Shared { file, first } => {
                (libc::MAP_SHARED, self.files[file].as_raw_fd(), first)
            }
        };
        // SAFETY: see `step`.
        let done = unsafe {
            libc::mmap(
                pointer(at),
                bytes(at, pages) as usize,
                flags(allowed),
                how | fixed,
                file,
                (first * PAGE) as i64,
            )
        };
        told_map(done)
    }

    fn read(&mut self, place: Place, len: u64) -> String {
        let mut bytes = Vec::new();
        for (at, len) in pieces(place.address(), len) {
            // SAFETY: the kernel checks the addresses.
            let got =
                unsafe { libc::write(self.scratch.write.as_raw_fd(), at as *const c_void, len) };
            if got < 0 {
                return format!("{} {}", digest(&bytes), why(at, Access::Read));
            }
            assert_eq!(got as usize, len, "a part of a page was read");
            let done = bytes.len();
            bytes.resize(done + len, 0);
            self.scratch.read.read_exact(&mut bytes[done..]).unwrap();
        }
        format!("{} ok", digest(&bytes))
    }

    fn write(&mut self, place: Place, len: u64, value: u8) -> String {
        let mut done = 0;
        for (at, len) in pieces(place.address(), len) {
            let bytes: Vec<u8> = (done..done + len as u64)
                .map(|i| value.wrapping_add(i as u8))
                .collect();
            self.scratch.write.write_all(&bytes).unwrap();
            // SAFETY: the kernel checks the addresses, which are in the window.
            let got = unsafe { libc::read(self.scratch.read.as_raw_fd(), at as *mut c_void, len) };
            if got < 0 {
                self.scratch.read.read_exact(&mut vec![0; len]).unwrap();
                return format!("{} after {done}", why(at, Access::Write));
            }
            assert_eq!(got as usize, len, "a part of a page was written");
            done += len as u64;
        }
        "ok".to_owned()
    }

    fn file_bytes(&self, file: usize, at: u64, len: u64) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let file = &self.files[file];
        let len = len.min(file.metadata().unwrap().len().saturating_sub(at));
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

fn remap(at: Place, old: u64, new: u64, to: Option<Place>) -> String {
    let (old, new) = (bytes(at, old) as usize, bytes(at, new) as usize);
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: only this program uses the window, and no Rust object is in it.
    told_map(unsafe {
        match to {
            None => libc::mremap(pointer(at), old, new, 0),
            Some(to) => libc::mremap(pointer(at), old, new, how, pointer(to)),
        }
    })
}

fn pointer(place: Place) -> *mut c_void {
    assert!((BASE..BASE + 2 * WINDOW * PAGE).contains(&place.address()));
    place.address() as *mut c_void
}

fn flags(allowed: Allowed) -> i32 {
    match allowed {
        Allowed::Nothing => libc::PROT_NONE,
        Allowed::Read => libc::PROT_READ,
        Allowed::Write => libc::PROT_READ | libc::PROT_WRITE,
        Allowed::Execute => libc::PROT_READ | libc::PROT_EXEC,
    }
}

fn last_error() -> String {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL) => "EINVAL".to_owned(),
        Some(libc::EEXIST) => "EEXIST".to_owned(),
        Some(libc::ENOMEM) => "ENOMEM".to_owned(),
        Some(libc::EFAULT) => "EFAULT".to_owned(),
        Some(libc::EACCES) => "EACCES".to_owned(),
        other => format!("errno {other:?}"),
    }
}

fn told(result: i32) -> String {
    match result {
        0 => "ok".to_owned(),
        _ => last_error(),
    }
}

fn told_map(result: *mut c_void) -> String {
    match result {
        libc::MAP_FAILED => last_error(),
        _ => "ok".to_owned(),
    }
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

const NOT_MAPPED: i32 = 101;
const FORBIDDEN: i32 = 102;
const PAST_END: i32 = 103;

extern "C" fn end(signal: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
    /// SEGV_MAPERR, as in the system's headers.
    const MAPERR: i32 = 1;
    // SAFETY: the kernel passes a valid pointer, and `_exit` may be called in a handler.
    unsafe {
        let code = match (signal, (*info).si_code) {
            (libc::SIGBUS, _) => PAST_END,
            (_, MAPERR) => NOT_MAPPED,
            _ => FORBIDDEN,
        };
        libc::_exit(code);
    }
}

/// Returns the signal that a failed access would get.
fn why(at: u64, access: Access) -> &'static str {
    // SAFETY: there is one thread. The child makes the access that the kernel refused, in its own
    // copy of the memory, and ends in its handler. It writes nothing to shared memory, since the
    // access was refused.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = end as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            match access {
                Access::Read => drop((at as *const u8).read_volatile()),
                Access::Write => (at as *mut u8).write_volatile(1),
            }
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: there is room for a number.
    unsafe { libc::waitpid(child, &mut status, 0) };
    match libc::WEXITSTATUS(status) {
        NOT_MAPPED => "not mapped",
        FORBIDDEN => "forbidden",
        PAST_END => "past end",
        other => panic!("an access that was refused went through, or so: {other}"),
    }
}

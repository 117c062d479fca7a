//! One run of one contender, in a process of its own. It prints what it took as a line of JSON.

use std::error::Error;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use clap::Args;
use innerspace::{Map, Memory, PagedFile, Ready};

use super::{Run, uring};

const PAGE: u64 = 4096;

/// Who reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    /// Calls of a file of the library.
    Calls,
    /// An accessor on a mapping.
    Mapping,
    /// Futures on one thread.
    Futures,
    /// The kernel's positioned calls.
    Pread,
    /// The kernel's mapping.
    Mmap,
    /// The bare loop.
    Uring,
}

impl Contender {
    const ALL: [Contender; 6] = [
        Contender::Calls,
        Contender::Mapping,
        Contender::Futures,
        Contender::Pread,
        Contender::Mmap,
        Contender::Uring,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Calls => "calls",
            Contender::Mapping => "mapping",
            Contender::Futures => "futures",
            Contender::Pread => "pread",
            Contender::Mmap => "mmap",
            Contender::Uring => "io_uring",
        }
    }

    /// Whether it uses the kernel's page cache.
    pub(super) fn is_kernels(self) -> bool {
        matches!(self, Contender::Pread | Contender::Mmap)
    }

    pub(super) fn is_ours_by_name(name: &str) -> bool {
        ["calls", "mapping", "futures"].contains(&name)
    }
}

/// What is done.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// The whole file, in order, a part for each thread.
    Scan,
    /// Pages at random, by threads or, of futures and the bare loop, so many in flight.
    Random,
    /// Operations of 16 reads of 16 KiB in a file of twice the limit.
    Sixteen { skewed: bool },
    /// Operations of 256 bytes, 30 of 100 of them writes, and a sync.
    Mixed,
    /// A file that grows, with a sync each 16 MiB.
    Append,
    /// A file that is written as a whole, and synced.
    Load,
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(super) name: &'static str,
    work: Work,
    /// Threads, or reads in flight.
    many: usize,
    /// Operations, or bytes.
    amount: u64,
    /// The amount is one of bytes.
    pub(super) is_bytes: bool,
    pub(super) contenders: &'static [Contender],
}

const READERS: &[Contender] = &[
    Contender::Calls,
    Contender::Mapping,
    Contender::Pread,
    Contender::Mmap,
    Contender::Uring,
];
const RANDOM: &[Contender] = &[
    Contender::Calls,
    Contender::Pread,
    Contender::Mmap,
    Contender::Uring,
];
const FUTURES: &[Contender] = &[Contender::Futures, Contender::Uring];
const WITH_MMAP: &[Contender] = &[Contender::Calls, Contender::Pread, Contender::Mmap];
const WRITERS: &[Contender] = &[Contender::Calls, Contender::Pread];

const fn row(
    name: &'static str,
    work: Work,
    many: usize,
    amount: u64,
    contenders: &'static [Contender],
) -> Row {
    let is_bytes = matches!(work, Work::Scan | Work::Append | Work::Load);
    Row {
        name,
        work,
        many,
        amount,
        is_bytes,
        contenders,
    }
}

pub(super) const ROWS: [Row; 13] = [
    row("scan, 1 thread", Work::Scan, 1, 0, READERS),
    row("scan, 2 threads", Work::Scan, 2, 0, READERS),
    row("random 4 KiB, 1 thread", Work::Random, 1, 20_000, RANDOM),
    row("random 4 KiB, 2 threads", Work::Random, 2, 40_000, RANDOM),
    row("random 4 KiB, 8 threads", Work::Random, 8, 60_000, RANDOM),
    row("random 4 KiB, 32 threads", Work::Random, 32, 60_000, RANDOM),
    row(
        "random 4 KiB, 32 futures",
        Work::Random,
        32,
        60_000,
        FUTURES,
    ),
    row(
        "random 4 KiB, 1,000 futures",
        Work::Random,
        1_000,
        60_000,
        FUTURES,
    ),
    row(
        "16 reads of 16 KiB, uniform, 8 threads",
        Work::Sixteen { skewed: false },
        8,
        8_000,
        WITH_MMAP,
    ),
    row(
        "16 reads of 16 KiB, skewed, 8 threads",
        Work::Sixteen { skewed: true },
        8,
        8_000,
        WITH_MMAP,
    ),
    row(
        "70/30 of 256 bytes, then a sync",
        Work::Mixed,
        1,
        60_000,
        WITH_MMAP,
    ),
    row(
        "append, a sync each 16 MiB",
        Work::Append,
        1,
        512 << 20,
        WRITERS,
    ),
    row("load 1 GiB", Work::Load, 1, 1 << 30, WRITERS),
];

#[derive(Debug, Args)]
pub(crate) struct ChildArguments {
    #[arg(long)]
    row: String,
    #[arg(long)]
    contender: String,
    #[arg(long)]
    path: PathBuf,
    #[arg(long)]
    limit: u64,
    #[arg(long)]
    cgroup: Option<PathBuf>,
    #[arg(long)]
    quick: bool,
}

/// One run.
struct Task<'a> {
    row: &'a Row,
    amount: u64,
    path: &'a Path,
    limit: u64,
    /// Bytes of the file.
    len: u64,
}

pub(crate) fn run(arguments: &ChildArguments) -> Result<(), Box<dyn Error>> {
    if let Some(procs) = &arguments.cgroup {
        fs::write(procs, std::process::id().to_string())?;
    }
    let row = ROWS.iter().find(|row| row.name == arguments.row);
    let row = row.ok_or("no such row")?;
    let contender = Contender::ALL
        .into_iter()
        .find(|one| one.name() == arguments.contender)
        .ok_or("no such contender")?;
    let task = Task {
        row,
        amount: row.amount / if arguments.quick { 8 } else { 1 },
        path: &arguments.path,
        limit: arguments.limit,
        len: fs::metadata(&arguments.path)?.len(),
    };
    let (cpu, read) = (cpu_seconds(), read_bytes());
    let start = Instant::now();
    let work = match contender {
        Contender::Calls | Contender::Mapping | Contender::Futures => task.ours(contender)?,
        Contender::Pread => task.pread()?,
        Contender::Mmap => task.mmap()?,
        Contender::Uring => task.uring()?,
    };
    let run = Run {
        seconds: start.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu,
        read_bytes: read_bytes() - read,
        work,
        cached_pages: 0,
    };
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &run)?;
    out.flush()?;
    Ok(())
}

/// Processor time of this process so far.
fn cpu_seconds() -> f64 {
    // SAFETY: plain integers, for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a whole rusage, which outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Bytes that the disk has read for this process so far.
fn read_bytes() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A page tells its number.
fn check(bytes: &[u8], offset: u64) {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[..8]);
    let number = u64::from_le_bytes(number);
    assert_eq!(number, offset / PAGE, "another page was read");
}

/// Numbers without an order, the same in each run.
struct Dice(u64);

impl Dice {
    fn new(seed: usize) -> Dice {
        Dice((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % end
    }
}

impl Task<'_> {
    /// The part of the file that a thread scans.
    fn part(&self, thread: usize) -> std::ops::Range<u64> {
        let pages = self.len / PAGE;
        let many = self.row.many as u64;
        let at = |thread: u64| pages * thread / many * PAGE;
        at(thread as u64)..at(thread as u64 + 1)
    }

    /// Bytes in which the operations of 16 reads are.
    fn span(&self) -> u64 {
        self.len.min(2 * self.limit)
    }

    /// Has every thread do its part of `work`.
    fn on_threads(&self, work: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for thread in 0..self.row.many {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
    }

    /// Where a thread reads: pages at random, or places of 16 KiB for its operations.
    fn places(&self, thread: usize) -> Vec<u64> {
        let mut dice = Dice::new(thread);
        let operations = self.amount / self.row.many as u64;
        match self.row.work {
            Work::Sixteen { skewed } => {
                let blocks = self.span() / (4 * PAGE);
                let hot = (blocks / 5).max(1);
                let place = |_| {
                    let is_hot = skewed && dice.below(10) < 8;
                    4 * PAGE * dice.below(if is_hot { hot } else { blocks })
                };
                (0..operations * 16).map(place).collect()
            }
            _ => {
                let pages = self.len / PAGE;
                (0..operations).map(|_| PAGE * dice.below(pages)).collect()
            }
        }
    }

    /// Where an operation of the mixed row is, behind the page's number; and whether it writes.
    fn mixed(&self) -> impl Iterator<Item = (u64, bool)> + use<> {
        let (mut dice, pages, amount) = (Dice::new(7), self.len / PAGE, self.amount);
        (0..amount).map(move |_| {
            let at = dice.below(pages) * PAGE + 64 + dice.below(14) * 256;
            (at, dice.below(100) < 30)
        })
    }

    fn work_done(&self) -> u64 {
        match self.row.work {
            Work::Scan => self.len,
            Work::Random | Work::Sixteen { .. } | Work::Mixed => self.amount,
            Work::Append | Work::Load => self.amount,
        }
    }

    /// The file that is written anew.
    fn written(&self) -> PathBuf {
        self.path.with_extension("written")
    }

    fn ours(&self, contender: Contender) -> Result<u64, Box<dyn Error>> {
        let memory = Memory::with_limit(self.limit)?;
        match self.row.work {
            Work::Scan if contender == Contender::Mapping => {
                let file = memory.open(self.path)?;
                let space = memory.space()?;
                let at = space.map(Map::file(&file))?;
                self.on_threads(|thread| {
                    let mut accessor = space.accessor();
                    let mut page = [0; PAGE as usize];
                    for offset in self.part(thread).step_by(PAGE as usize) {
                        accessor.read(at + offset, &mut page).expect("it is there");
                        check(&page, offset);
                    }
                });
            }
            Work::Scan => {
                let file = memory.open(self.path)?;
                self.on_threads(|thread| {
                    let file = file.clone();
                    let part = self.part(thread);
                    let mut at = part.start;
                    let each = |piece: &[u8]| {
                        check(piece, at);
                        at += piece.len() as u64;
                        sum(piece);
                    };
                    file.scan(part, each).expect("it can be read");
                });
            }
            Work::Random if contender == Contender::Futures => {
                let file = memory.open(self.path)?;
                let places = self.places_of_all();
                futures(&file, self.row.many, &places);
            }
            Work::Random => {
                let file = memory.open(self.path)?;
                self.on_threads(|thread| {
                    let file = file.clone();
                    for at in self.places(thread) {
                        check(&file.view(at..at + PAGE).expect("it can be read"), at);
                    }
                });
            }
            Work::Sixteen { .. } => {
                let file = memory.open(self.path)?;
                self.on_threads(|thread| {
                    let file = file.clone();
                    let mut bytes = [0; 4 * PAGE as usize];
                    for at in self.places(thread) {
                        file.read_exact_at(&mut bytes, at).expect("it can be read");
                        check(&bytes, at);
                    }
                });
            }
            Work::Mixed => {
                let file = memory.open_rw(self.path)?;
                let mut bytes = [0; 256];
                for (at, writes) in self.mixed() {
                    match writes {
                        true => file.write_at(&bytes, at)?,
                        false => file.read_exact_at(&mut bytes, at)?,
                    }
                }
                file.sync_all()?;
            }
            Work::Append => {
                let file = memory.create(self.written())?;
                let bytes = vec![7; 64 << 10];
                for chunk in 1..=self.amount / bytes.len() as u64 {
                    file.append(&bytes)?;
                    if chunk % 256 == 0 {
                        file.sync_data()?;
                    }
                }
                file.sync_all()?;
            }
            Work::Load => {
                let file = memory.create(self.written())?;
                let bytes = vec![7; 1 << 20];
                for at in (0..self.amount).step_by(bytes.len()) {
                    file.write_at(&bytes, at)?;
                }
                file.sync_all()?;
            }
        }
        Ok(self.work_done())
    }

    /// Where all threads together read.
    fn places_of_all(&self) -> Vec<u64> {
        let (mut dice, pages) = (Dice::new(0), self.len / PAGE);
        (0..self.amount).map(|_| PAGE * dice.below(pages)).collect()
    }

    fn pread(&self) -> Result<u64, Box<dyn Error>> {
        let file = File::open(self.path)?;
        match self.row.work {
            Work::Scan => self.on_threads(|thread| {
                let mut bytes = vec![0; 64 << 10];
                for at in self.part(thread).step_by(bytes.len()) {
                    let got = file.read_at(&mut bytes, at).expect("it can be read");
                    for (page, at) in bytes[..got].chunks(PAGE as usize).zip((at..).step_by(4096)) {
                        check(page, at);
                        sum(page);
                    }
                }
            }),
            Work::Random | Work::Sixteen { .. } => self.on_threads(|thread| {
                let len = match self.row.work {
                    Work::Random => PAGE,
                    _ => 4 * PAGE,
                };
                let mut bytes = vec![0; len as usize];
                for at in self.places(thread) {
                    file.read_exact_at(&mut bytes, at).expect("it can be read");
                    check(&bytes, at);
                }
            }),
            Work::Mixed => {
                let file = File::options().read(true).write(true).open(self.path)?;
                let mut bytes = [0; 256];
                for (at, writes) in self.mixed() {
                    match writes {
                        true => file.write_all_at(&bytes, at)?,
                        false => file.read_exact_at(&mut bytes, at)?,
                    }
                }
                file.sync_all()?;
            }
            Work::Append | Work::Load => {
                let appends = matches!(self.row.work, Work::Append);
                let mut file = File::create(self.written())?;
                let bytes = vec![7; if appends { 64 << 10 } else { 1 << 20 }];
                for chunk in 1..=self.amount / bytes.len() as u64 {
                    file.write_all(&bytes)?;
                    if appends && chunk % 256 == 0 {
                        file.sync_data()?;
                    }
                }
                file.sync_all()?;
            }
        }
        Ok(self.work_done())
    }

    fn mmap(&self) -> Result<u64, Box<dyn Error>> {
        let file = File::options().read(true).write(true).open(self.path)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (len, fd) = (self.len as usize, file.as_raw_fd());
        // SAFETY: a new mapping of an open file.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        if !matches!(self.row.work, Work::Scan) {
            // SAFETY: the mapping that was made just now.
            unsafe { libc::madvise(base, len, libc::MADV_RANDOM) };
        }
        let base = base.expose_provenance();
        let page = |at: u64, len: u64| {
            // SAFETY: inside the mapping, which stays to the end of the process; nobody cuts the file, and who writes is this thread.
            unsafe {
                std::slice::from_raw_parts(
                    std::ptr::with_exposed_provenance::<u8>(base + at as usize),
                    len as usize,
                )
            }
        };
        match self.row.work {
            Work::Scan => self.on_threads(|thread| {
                for at in self.part(thread).step_by(PAGE as usize) {
                    check(page(at, PAGE), at);
                    sum(page(at, PAGE));
                }
            }),
            Work::Random => self.on_threads(|thread| {
                self.places(thread)
                    .into_iter()
                    .for_each(|at| check(page(at, PAGE), at));
            }),
            Work::Sixteen { .. } => self.on_threads(|thread| {
                let mut bytes = [0; 4 * PAGE as usize];
                for at in self.places(thread) {
                    bytes.copy_from_slice(page(at, 4 * PAGE));
                    check(&bytes, at);
                }
            }),
            Work::Mixed => {
                let mut bytes = [0u8; 256];
                for (at, writes) in self.mixed() {
                    match writes {
                        // SAFETY: inside the mapping, of which no slice is alive.
                        true => unsafe {
                            let to =
                                std::ptr::with_exposed_provenance_mut::<u8>(base + at as usize);
                            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, 256);
                        },
                        false => bytes.copy_from_slice(page(at, 256)),
                    }
                }
                file.sync_all()?;
            }
            Work::Append | Work::Load => return Err("not by mmap".into()),
        }
        Ok(self.work_done())
    }

    fn uring(&self) -> Result<u64, Box<dyn Error>> {
        match self.row.work {
            Work::Scan => self.on_threads(|thread| {
                let offsets = self.part(thread).step_by(1 << 20);
                let each = |bytes: &[u8], at: u64| {
                    check(bytes, at);
                    sum(bytes);
                };
                uring::read(self.path, 1 << 20, 4, offsets, each).expect("it can be read");
            }),
            _ => {
                let places = self.places_of_all();
                let offsets = places.into_iter();
                uring::read(self.path, PAGE as usize, self.row.many, offsets, check)?;
            }
        }
        Ok(self.work_done())
    }
}

/// Looks at some of the bytes, as a program would.
fn sum(bytes: &[u8]) {
    black_box(bytes.iter().step_by(64).fold(0u8, |sum, byte| sum ^ byte));
}

/// Which tasks are to be polled.
struct Bell {
    woken: Mutex<Vec<usize>>,
    thread: std::thread::Thread,
}

struct Waking(Arc<Bell>, usize);

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        self.0.woken.lock().expect("no panic").push(self.1);
        self.0.thread.unpark();
    }
}

/// Views of all places, `depth` futures at a time on this thread.
fn futures(file: &PagedFile, depth: usize, places: &[u64]) {
    let bell = Arc::new(Bell {
        woken: Mutex::default(),
        thread: std::thread::current(),
    });
    let waker = |task| Waker::from(Arc::new(Waking(bell.clone(), task)));
    let wakers: Vec<Waker> = (0..depth).map(waker).collect();
    let mut places = places.iter().copied();
    let mut next = || {
        let at = places.next()?;
        Some((at, Box::pin(file.ready(at..at + PAGE))))
    };
    let mut tasks: Vec<Option<(u64, Pin<Box<Ready>>)>> = (0..depth).map(|_| next()).collect();
    let mut left = tasks.iter().flatten().count();
    let mut polled: Vec<usize> = (0..depth).collect();
    while left > 0 {
        for task in polled.drain(..) {
            while let Some((at, future)) = &mut tasks[task] {
                let context = &mut Context::from_waker(&wakers[task]);
                let Poll::Ready(view) = std::future::Future::poll(future.as_mut(), context) else {
                    break;
                };
                check(&view.expect("it can be read"), *at);
                tasks[task] = next();
                left -= usize::from(tasks[task].is_none());
            }
        }
        std::mem::swap(&mut polled, &mut bell.woken.lock().expect("no panic"));
        if polled.is_empty() && left > 0 {
            std::thread::park();
        }
    }
}

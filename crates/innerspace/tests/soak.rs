//! A long mixed run under limits. Usage is at or under every limit whenever it is checked, and the
//! process never has more resident memory than the limit and a constant.
//!
//! The run is short in the suite. For ten minutes:
//! `INNERSPACE_SOAK_SECONDS=600 cargo test --release --test soak -- --nocapture`. The test is alone
//! in its file, because resident memory is the process's. If a control group can be had, the test
//! runs in one as well; otherwise it leaves that part out and prints why.
#![cfg(target_os = "linux")]

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use innerspace::store::Store;
use innerspace::{
    Group, KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, View, file::FileAccess,
};

const PAGE: u64 = PAGE_SIZE as u64;

/// The limit of the memory.
const LIMIT: u64 = 48 * MIB;

/// The memory that the process may have beyond the limit: stacks and heaps of the threads, lists of
/// mappings and of dirty blocks, code that is paged in.
const BESIDE: u64 = 8 * MIB;

/// Whether resident memory can be compared with the limit. ThreadSanitizer, whose build is the one
/// with `portable`, keeps a shadow several times as large as the memory touched.
const WITHOUT_SHADOW: bool = cfg!(not(portable));

/// The number of rounds of each thread in the suite.
const ROUNDS: u64 = 400;

const SOAK: &str = "resident_memory_stays_under_the_limit_and_a_constant";

/// A store of computed bytes, which drops written ones, and so has no memory of its own.
struct Computed(u64);

impl Store for Computed {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = buffer.len().min(self.0.saturating_sub(offset) as usize);
        buffer[..len].fill((offset / PAGE) as u8 | 1);
        Ok(len)
    }

    fn write_at(&self, buffer: &[u8], _offset: u64) -> io::Result<usize> {
        Ok(buffer.len())
    }

    fn writable(&self) -> bool {
        true
    }
}

/// Returns a size from /proc/self/status, in bytes.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * KIB
}

/// Lists what is resident, mapping by mapping, with the part in huge pages: the text of a failure.
fn resident_mappings() -> String {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let size = |line: &str| {
        line.split_whitespace()
            .nth(1)
            .map_or(0, |kib| kib.parse().unwrap())
    };
    let (mut name, mut resident, mut list) = ("", 0u64, String::new());
    for line in text.lines() {
        match line.split_whitespace().next().unwrap_or("") {
            "Rss:" => resident = size(line),
            "AnonHugePages:" if resident >= 128 => {
                list += &format!("\n{resident:>7} KiB, {} huge: {name}", size(line));
            }
            first if !first.ends_with(':') => name = line,
            _ => {}
        }
    }
    list
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The thread of one tenant. It makes every kind of call that takes memory, and accepts errors of
/// the limit.
struct Tenant {
    memory: Memory,
    group: Group,
    random: Random,
    files: Vec<PagedFile>,
    spaces: Vec<Space>,
    views: Vec<View>,
    refused: u64,
}

impl Tenant {
    fn new(memory: &Memory, number: u64) -> Tenant {
        let group = memory
            .create_group(
                &format!("tenant-{number}"),
                [30 * MIB, 20 * MIB, 12 * MIB][number as usize],
            )
            .unwrap();
        let sizes = [PAGE, 64 * KIB];
        let files = sizes.map(|block| {
            let options = memory.file_options().access(FileAccess::ReadWrite);
            let options = options.group(&group).block_size(block);
            options.open_store(Computed(40 * MIB)).unwrap()
        });
        Tenant {
            memory: memory.clone(),
            group,
            random: Random(number + 1),
            files: files.into(),
            spaces: Vec::new(),
            views: Vec::new(),
            refused: 0,
        }
    }

    /// Makes some operations of each kind.
    fn round(&mut self) {
        for _ in 0..4 {
            self.files_and_views();
        }
        self.address_spaces();
    }

    fn files_and_views(&mut self) {
        let file = self.files[self.random.below(2) as usize].clone();
        let at = self.random.below(40 * MIB / PAGE - 64) * PAGE;
        let mut buffer = vec![0; 64 * KIB as usize];
        let done = match self.random.below(4) {
            0 => file.write_at(&buffer, at),
            1 => file.scan(at..at + 256 * KIB, |_| {}),
            2 => file.view(at..at + PAGE).map(|view| self.views.push(view)),
            _ => file.read_at(&mut buffer, at).map(|_| ()),
        };
        self.refused += u64::from(done.is_err());
        if self.views.len() > 200 || done.is_err() {
            self.views.clear();
        }
    }

    fn address_spaces(&mut self) {
        let Ok(space) = self.memory.create_space_in(&self.group) else {
            self.spaces.clear();
            return;
        };
        let pages = 1 + self.random.below(400);
        let own = space.map(Map::anonymous(pages * PAGE)).unwrap();
        let file = self.files[self.random.below(2) as usize].clone();
        let shown = space.map(Map::file(&file).shared().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        let mut refused = 0;
        for page in 0..pages {
            refused += u64::from(a.store(own + page * PAGE, page).is_err());
            let place = shown + self.random.below(40 * MIB / PAGE) * PAGE;
            let touched = match page % 8 {
                0 => a.store(place, page),
                _ => a.load::<u8>(place).map(|_| ()),
            };
            refused += u64::from(touched.is_err());
        }
        if let Ok(child) = space.fork() {
            let mut in_child = child.accessor().unwrap();
            for page in 0..pages / 4 {
                refused += u64::from(in_child.store(own + page * PAGE, 0u64).is_err());
            }
            drop(in_child);
            self.spaces.push(child);
        }
        drop(a);
        self.spaces.push(space);
        if self.spaces.len() > 6 || refused > 0 {
            self.spaces.clear();
        }
        self.refused += refused;
    }
}

/// Checks that usage is at or under the limit, in every group.
fn assert_under(memory: &Memory) {
    for group in &memory.stats().groups {
        if let Some(max) = group.max {
            assert!(group.peak <= max, "{group}");
        }
    }
}

// spec: M18
#[test]
fn resident_memory_stays_under_the_limit_and_a_constant() {
    let seconds = std::env::var("INNERSPACE_SOAK_SECONDS").ok();
    let until = seconds.map(|text| Instant::now() + Duration::from_secs(text.parse().unwrap()));
    // The peak is measured from here on: earlier memory of the test harness does not count.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let start = status("VmRSS");
    // A huge page of which a part was given back counts in a control group as a whole, until the
    // kernel splits it.
    let is_caged = std::env::var_os("CAGE").is_some();
    let builder = Memory::builder(LIMIT).huge_pages(!is_caged);
    let memory = builder.build().unwrap();
    let tenants: Vec<_> = (0..3)
        .map(|number| {
            let memory = memory.clone();
            std::thread::spawn(move || {
                let mut tenant = Tenant::new(&memory, number);
                let mut round = 0;
                while until.map_or(round < ROUNDS, |until| Instant::now() < until) {
                    tenant.round();
                    round += 1;
                    if round % 16 == 0 {
                        assert_under(&memory);
                        let resident = status("VmRSS").saturating_sub(start);
                        assert!(
                            !WITHOUT_SHADOW || resident <= LIMIT + BESIDE,
                            "{resident} bytes resident in round {round}, {start} at the start; \
                             {}{}",
                            memory.stats(),
                            resident_mappings()
                        );
                    }
                }
                (round, tenant.refused)
            })
        })
        .collect();
    let ends: Vec<_> = tenants
        .into_iter()
        .map(|tenant| tenant.join().unwrap())
        .collect();
    let peak = status("VmHWM").saturating_sub(start);
    assert_under(&memory);
    println!(
        "peak resident {:.1} MiB of {} + {} MiB; rounds and refusals {ends:?}",
        peak as f64 / MIB as f64,
        LIMIT / MIB,
        BESIDE / MIB
    );
    assert!(
        !WITHOUT_SHADOW || peak <= LIMIT + BESIDE,
        "{peak} bytes resident at the peak, {start} at the start; {}{}",
        memory.stats(),
        resident_mappings()
    );
    // The run must have filled the memory to prove anything.
    assert!(peak >= LIMIT / 2, "{peak} bytes resident at the peak");
    assert!(memory.stats().totals.pgsteal > 1000);
    memory.tick();
    memory.validate();
}

/// The two interfaces of control groups for memory.
#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

/// A control group made for one process, and removed when this is dropped.
struct Cage {
    path: PathBuf,
    version: Version,
}

impl Cage {
    /// Creates one with this limit, of whichever version the system has, or returns why it cannot.
    fn new(limit: u64) -> Result<Cage, String> {
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        Cage::of_version_two(&own, limit)
            .or_else(|two| Cage::of_version_one(&own, limit).map_err(|one| format!("{two}; {one}")))
    }

    /// Creates it below the group of this process, or next to it: only groups without processes can
    /// share memory out.
    fn of_version_two(own: &str, limit: u64) -> Result<Cage, String> {
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.ok_or("this process is in no control group of version 2")?;
        let mount = Path::new("/sys/fs/cgroup");
        if !mount.join("cgroup.controllers").exists() {
            return Err("control groups of version 2 are not mounted at /sys/fs/cgroup".into());
        }
        let own = mount.join(own);
        let places = [
            Some(&*own),
            own.parent().filter(|above| above.starts_with(mount)),
        ];
        let mut reason = String::new();
        for place in places.into_iter().flatten() {
            match Cage::below(place, Version::Two, limit) {
                Ok(cage) => return Ok(cage),
                Err(error) => reason = format!("{}: {error}", place.display()),
            }
        }
        Err(reason)
    }

    /// Creates it below the group that this process is in for memory.
    fn of_version_one(own: &str, limit: u64) -> Result<Cage, String> {
        let own = own.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(":/")?;
            controllers
                .split(',')
                .any(|one| one == "memory")
                .then_some(path)
        });
        let own = own.ok_or("this process is in no control group of version 1 for memory")?;
        let place = Path::new("/sys/fs/cgroup/memory").join(own);
        Cage::below(&place, Version::One, limit)
            .map_err(|error| format!("{}: {error}", place.display()))
    }

    fn below(place: &Path, version: Version, limit: u64) -> io::Result<Cage> {
        let path = place.join(format!("innerspace-soak-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        let cage = Cage { path, version };
        // If there were swap, an excess would go there unnoticed.
        let (max, with_swap, most) = match version {
            Version::One => (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                limit,
            ),
            Version::Two => ("memory.max", "memory.swap.max", 0),
        };
        std::fs::write(cage.path.join(max), limit.to_string())?;
        let _ = std::fs::write(cage.path.join(with_swap), most.to_string());
        Ok(cage)
    }

    /// Returns the group's counts of killed processes: lines that begin with `oom`.
    fn events(&self) -> io::Result<String> {
        std::fs::read_to_string(self.path.join(match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        }))
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Makes the same run in a process that is killed if it takes one page too many.
// spec: M18
#[test]
fn the_soak_fits_in_a_control_group_of_its_limit_and_a_constant() {
    if !WITHOUT_SHADOW {
        return println!("left out: the shadow of what is touched does not fit in");
    }
    let cage = match Cage::new(LIMIT + BESIDE) {
        Ok(cage) => cage,
        Err(reason) => return println!("left out: no control group for memory ({reason})"),
    };
    let mut command = Command::new("sh");
    command.args(["-c", r#"echo $$ > "$CAGE/cgroup.procs" && exec "$0" "$@""#]);
    command.arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", SOAK, "--nocapture"])
        .env("CAGE", &cage.path);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let events = cage.events().unwrap();
    let passed = output.status.success() && text.contains("1 passed");
    assert!(
        passed,
        "{text}{}{events}",
        String::from_utf8_lossy(&output.stderr)
    );
    // In version 1 the first line says whether the group kills at all.
    let counts = |line: &&str| line.starts_with("oom") && !line.starts_with("oom_kill_disable");
    let counts: Vec<&str> = events.lines().filter(counts).collect();
    assert!(!counts.is_empty(), "{events}");
    assert!(counts.iter().all(|line| line.ends_with(" 0")), "{events}");
}

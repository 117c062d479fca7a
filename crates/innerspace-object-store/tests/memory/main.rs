//! How much memory a process needs beyond the limit, while it reads a hundred files at once. The
//! server runs in the parent; the readers are a process of their own, whose heap is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};

use innerspace::{MIB, Memory};
use innerspace_object_store::object_store::ObjectStore;
use innerspace_object_store::object_store::aws::AmazonS3Builder;
use innerspace_object_store::{ObjectStoreFile, RequestLimit, Tier, install_tls};
use innerspace_test_s3::{BUCKET, S3Server};

/// The bytes on the heap now, and the most at any time.
static NOW: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);

struct Counting;

fn count(bytes: i64) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the allocator's rules.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps the allocator's rules.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LIMIT: u64 = 16 * MIB;
const FILES: u64 = 100;
const LEN: u64 = MIB;
/// The variable that makes this program a reader: whether with a tier, and in which folder.
const ROLE: &str = "INNERSPACE_MEMORY_TEST";

fn byte(file: u64, offset: u64) -> u8 {
    (offset / 512 * 37 + file * 11) as u8
}

/// Returns the process's peak of memory in bytes, if the system says it.
fn high_water() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Reads all files at once, each on a thread of its own, and prints what that took.
fn read_all(test: &str, tier: Option<&str>, requests: Option<u32>) {
    install_tls();
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(BUCKET);
    builder = builder.with_allow_http(true);
    let client: std::sync::Arc<dyn ObjectStore> = std::sync::Arc::new(builder.build().unwrap());
    let memory = Memory::with_limit(LIMIT).unwrap();
    let tier = tier.map(|folder| Tier::open(folder, FILES * LEN / 2).unwrap());
    let limit = RequestLimit::new(requests.unwrap_or(u32::MAX >> 4));
    let before = (NOW.load(Ordering::Relaxed), high_water());
    MOST.store(before.0, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for number in 0..FILES {
            let (memory, client, tier, limit) = (&memory, &client, &tier, &limit);
            scope.spawn(move || {
                let key = format!("file-{number}").into();
                let options = ObjectStoreFile::options().request_limit(limit);
                let object = options.open_on(client.clone(), &key).unwrap();
                let opener = memory.file_options();
                let file = match tier {
                    Some(tier) => opener.open_store(tier.store(object).unwrap()).unwrap(),
                    None => opener.open_store(object).unwrap(),
                };
                let mut at = 0;
                file.scan(.., |piece| {
                    for step in (0..piece.len()).step_by(512) {
                        assert_eq!(piece[step], byte(number, at + step as u64));
                    }
                    at += piece.len() as u64;
                })
                .unwrap();
                assert_eq!(at, LEN);
            });
        }
    });
    assert!(memory.stats().peak <= LIMIT);
    let heap = MOST.load(Ordering::Relaxed) - before.0;
    let process = match (high_water(), before.1) {
        (Some(after), Some(before)) => after - before,
        _ => 0,
    };
    let most = limit.stats().most_in_flight;
    println!("{test}: heap {heap} process {process} requests {most}");
}

fn number(text: &str, name: &str) -> u64 {
    let (_, rest) = text.split_once(name).expect("the reader's line");
    let end = rest.find(|letter: char| !letter.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().unwrap()
}

/// Runs the readers, and checks what they need beyond the limit, on the heap and in all.
fn check(test: &str, with_tier: bool, requests: Option<u32>, most: u64) {
    if let Ok(folder) = std::env::var(ROLE) {
        return read_all(test, with_tier.then_some(&folder), requests);
    }
    let server = S3Server::start();
    for file in 0..FILES {
        let bytes: Vec<u8> = (0..LEN).map(|at| byte(file, at)).collect();
        server.put(&format!("file-{file}"), bytes);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture"])
        .stdin(Stdio::null());
    command.env(ROLE, folder.path()).envs(server.environment());
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let (heap, process) = (number(&text, "heap "), number(&text, "process "));
    let in_flight = number(&text, "requests ");
    println!("{test}: heap {heap}, process {process}, {in_flight} requests");
    assert!(
        heap <= most,
        "{heap} of {most} bytes on the heap, {in_flight} requests"
    );
    // Besides the heap: stacks of 100 threads, and what the allocator keeps for later.
    let in_all = LIMIT + 2 * most + 8 * MIB;
    assert!(process <= in_all, "{process} of {in_all} bytes in all");
}

#[test]
fn a_hundred_files_at_once() {
    check("a_hundred_files_at_once", false, None, 16 * MIB);
}

#[test]
fn a_hundred_files_that_share_eight_requests() {
    check(
        "a_hundred_files_that_share_eight_requests",
        false,
        Some(8),
        8 * MIB,
    );
}

#[test]
fn a_hundred_files_with_a_tier() {
    check("a_hundred_files_with_a_tier", true, None, 32 * MIB);
}

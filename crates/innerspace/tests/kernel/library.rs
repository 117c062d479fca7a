//! The library's side of the comparison.

use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::{
    Accessor, MIB, Map, Memory, PagedFile, Space, Threads, VirtAddr,
    file::FileAccess,
    space::{Fault, FaultKind, Protection, Remap, SpaceError},
};

use crate::program::{
    Allowed, FILES, Op, PAGE, Place, Program, READ_ONLY, SPACES, Source, WINDOW, WRITTEN, bytes,
    digest, first_bytes, pieces,
};

struct World {
    _memory: Memory,
    files: Vec<PagedFile>,
    spaces: Vec<(Space, Accessor)>,
}

fn protection(allowed: Allowed) -> Protection {
    match allowed {
        Allowed::Nothing => Protection::NONE,
        Allowed::Read => Protection::READ,
        Allowed::Write => Protection::READ_WRITE,
        Allowed::Execute => Protection::READ | Protection::EXECUTE,
    }
}

fn at(place: Place) -> VirtAddr {
    VirtAddr(place.address())
}

fn fault_name(fault: Fault) -> &'static str {
    match fault.kind() {
        FaultKind::NotMapped => "not mapped",
        FaultKind::Forbidden => "forbidden",
        FaultKind::PastEnd => "past end",
        _ => panic!("{fault}"),
    }
}

/// Returns the errno that the kernel has for the same error.
fn errno(error: &SpaceError, not_mapped: &'static str, overlaps: &'static str) -> &'static str {
    match error {
        SpaceError::Empty { .. } | SpaceError::Unaligned { .. } => "EINVAL",
        SpaceError::OutOfRange { .. } => "EINVAL",
        SpaceError::Overlaps { .. } => overlaps,
        SpaceError::NotMapped { .. } => not_mapped,
        SpaceError::NoRoom { .. } => "ENOMEM",
        SpaceError::Forbidden { .. } => "EACCES",
        other => panic!("{other}"),
    }
}

fn told<T>(
    done: Result<T, SpaceError>,
    not_mapped: &'static str,
    overlaps: &'static str,
) -> String {
    match done {
        Ok(_) => "ok".to_owned(),
        Err(error) => errno(&error, not_mapped, overlaps).to_owned(),
    }
}

pub(crate) fn run(program: &Program) -> Vec<String> {
    let memory = Memory::builder(16 * MIB)
        .threads(Threads::None)
        .build()
        .unwrap();
    let files = (0..FILES).map(|number| {
        let store = Arc::new(MemoryStore::from_bytes(&first_bytes(number)));
        let access = match number {
            READ_ONLY => FileAccess::ReadOnly,
            _ => FileAccess::ReadWrite,
        };
        memory
            .file_options()
            .access(access)
            .open_store(store)
            .unwrap()
    });
    let files = files.collect();
    let space = memory.create_space().unwrap();
    let accessor = space.accessor().unwrap();
    let mut world = World {
        files,
        spaces: vec![(space, accessor)],
        _memory: memory,
    };
    let mut lines: Vec<String> = Vec::new();
    for (number, op) in &program.steps {
        let number = number % world.spaces.len();
        let line = world.step(number, op);
        world.spaces.iter().for_each(|(space, _)| space.validate());
        lines.push(line);
    }
    for number in 0..world.spaces.len() {
        for page in 0..WINDOW {
            let place = Place { page, offset: 0 };
            lines.push(world.read(number, place, PAGE));
        }
    }
    for file in 0..FILES {
        lines.push(digest(&world.file_bytes(file, 0, u64::MAX)));
    }
    lines
}

impl World {
    fn step(&mut self, number: usize, op: &Op) -> String {
        let spaces = self.spaces.len();
        let (space, accessor) = &mut self.spaces[number];
        match *op {
            Op::Map {
                at: place,
                pages,
                source,
                allowed,
                replace,
            } => {
                let shown = |first: u64| first * PAGE..first * PAGE + bytes(place, pages);
                let map = match source {
                    Source::Anonymous => Map::anonymous(bytes(place, pages)),
                    Source::Private { file, first } => {
                        Map::file(&self.files[file]).range(shown(first)).private()
                    }
                    Source::Shared { file, first } => {
                        Map::file(&self.files[file]).range(shown(first)).shared()
                    }
                };
                let map = map.protection(protection(allowed));
                let map = match replace {
                    true => map.replacing(at(place)),
                    false => map.at(at(place)),
                };
                told(space.map(map), "ENOMEM", "EEXIST")
            }
            Op::Unmap { at: place, pages } => {
                told(space.unmap(at(place), bytes(place, pages)), "", "")
            }
            Op::Protect {
                at: place,
                pages,
                allowed,
            } => {
                let wanted = protection(allowed);
                by_pages(place, pages, Stops::AtFirst, |at, len| {
                    space.protect(at, len, wanted)
                })
            }
            Op::Remap {
                at: place,
                old,
                new,
                to,
            } => {
                let to = to.map_or(Remap::InPlace, |to| Remap::Replacing(at(to)));
                let done = space.remap(at(place), bytes(place, old), bytes(place, new), to);
                told(done, "EFAULT", "EINVAL")
            }
            Op::DontNeed { at: place, pages } => {
                by_pages(place, pages, Stops::Never, |at, len| space.discard(at, len))
            }
            Op::Sync { at: place, pages } => {
                by_pages(place, pages, Stops::Never, |at, len| space.sync(at, len))
            }
            Op::Fork => {
                if spaces == SPACES {
                    return "no more".to_owned();
                }
                let child = space.fork().unwrap();
                let accessor = child.accessor().unwrap();
                self.spaces.push((child, accessor));
                "ok".to_owned()
            }
            Op::Read { at: place, len } => self.read(number, place, len),
            Op::Write {
                at: place,
                len,
                value,
            } => {
                let bytes: Vec<u8> = (0..len).map(|i| value.wrapping_add(i as u8)).collect();
                match accessor.write(at(place), &bytes) {
                    Ok(()) => "ok".to_owned(),
                    Err(fault) => {
                        let done = fault.address().0 - place.address();
                        format!("{} after {done}", fault_name(fault))
                    }
                }
            }
            Op::Truncate { file, pages } => {
                self.files[file].set_len(pages * PAGE).unwrap();
                "ok".to_owned()
            }
            Op::Punch { file, page, pages } => {
                self.files[file]
                    .punch(page * PAGE..(page + pages) * PAGE)
                    .unwrap();
                "ok".to_owned()
            }
            Op::WriteFile { file, at, value } => {
                let bytes = [value; WRITTEN as usize];
                self.files[file].write_at(&bytes, at).unwrap();
                "ok".to_owned()
            }
            Op::ReadFile { file, page } => digest(&self.file_bytes(file, page * PAGE, PAGE)),
        }
    }

    fn read(&mut self, number: usize, place: Place, len: u64) -> String {
        let mut buffer = vec![0; len as usize];
        let end = self.spaces[number].1.read(at(place), &mut buffer);
        let (done, end) = match end {
            Ok(()) => (len, "ok"),
            Err(fault) => (fault.address().0 - place.address(), fault_name(fault)),
        };
        format!("{} {end}", digest(&buffer[..done as usize]))
    }

    fn file_bytes(&self, file: usize, at: u64, len: u64) -> Vec<u8> {
        let file = &self.files[file];
        let len = len.min(file.len().saturating_sub(at));
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

/// How the kernel treats a range of which a part is not mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stops {
    /// It does everything up to that part.
    AtFirst,
    /// It does all mapped parts, and then reports the gap.
    Never,
}

/// Does an operation page by page. If a part of a range is not mapped, the library does nothing and
/// the kernel a part; for single pages, both are the same.
fn by_pages(
    place: Place,
    pages: u64,
    stops: Stops,
    act: impl Fn(VirtAddr, u64) -> Result<(), SpaceError>,
) -> String {
    let whole = act(at(place), bytes(place, pages));
    if !matches!(
        whole,
        Err(SpaceError::NotMapped { .. } | SpaceError::Forbidden { .. })
    ) {
        return told(whole, "ENOMEM", "");
    }
    let mut end = None;
    for (page, len) in pieces(place.address(), pages * PAGE) {
        if let Err(error) = act(VirtAddr(page), len as u64) {
            end.get_or_insert(errno(&error, "ENOMEM", ""));
            if stops == Stops::AtFirst {
                break;
            }
        }
    }
    end.expect("a page was refused, as the whole was")
        .to_owned()
}

//! The text of an error is whole, and its sources repeat nothing of it: for each family of
//! [`innerspace::error`], and through every call that returns the errors of others.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use innerspace::error::{
    DaxAction, DaxError, DaxFeature, DeviceError, FileError, FileOpenError, GroupError, LimitError,
    MemoryError, OpenError, ParseVirtAddrError, SnapshotFileError, SpaceError, StoreAction,
    StoreError, causes, raw_os_error,
};
use innerspace::store::Store;
use innerspace::{KIB, MIB, Map, Memory, PagedFile, VirtAddr, file::FileAccess};

/// An error in the manner of those that leave the reason to their source.
#[derive(Debug)]
struct LinkDown(CableCut);

#[derive(Debug)]
struct CableCut;

impl fmt::Display for LinkDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the link is down")
    }
}

impl fmt::Display for CableCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cable 7 is cut")
    }
}

impl Error for LinkDown {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

impl Error for CableCut {}

fn link_down() -> io::Error {
    io::Error::other(LinkDown(CableCut))
}

const LINK: [&str; 2] = ["the link is down", "cable 7 is cut"];

/// The number of a full disk, and what the system says of it.
const NO_SPACE: i32 = 28;

fn no_space() -> io::Error {
    io::Error::from_raw_os_error(NO_SPACE)
}

/// A store over a link that is down, for reading or for writing.
struct Remote {
    reads: bool,
}

impl Store for Remote {
    fn len(&self) -> io::Result<u64> {
        Ok(MIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        match self.reads {
            true => Ok(buf.len()),
            false => Err(link_down()),
        }
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        Err(link_down())
    }

    fn writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        "remote".into()
    }
}

fn remote(memory: &Memory, reads: bool) -> PagedFile {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    options.open_store(Remote { reads }).unwrap()
}

/// An error, its family, and what its text has to say, once each.
struct Case {
    family: &'static str,
    error: Box<dyn Error>,
    says: Vec<String>,
}

fn case<E: Error + 'static>(family: &'static str, error: E, says: &[&str]) -> Case {
    Case {
        family,
        error: error.into(),
        says: says.iter().map(ToString::to_string).collect(),
    }
}

/// Errors as calls return them.
fn of_calls() -> Vec<Case> {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let dead = remote(&memory, false);
    let store = || dead.view(0..8).unwrap_err();
    let too_small = memory.root_group().set_max(4 * KIB).unwrap_err();
    let space = memory.create_space().unwrap();
    let populated = space.map(Map::file(&dead).populated()).unwrap_err();
    let mapped = space.map(Map::file(&dead)).unwrap();
    let mut accessor = space.accessor().unwrap();
    let fault = accessor.load::<u64>(mapped).unwrap_err();
    let unsaved = space.freeze().unwrap().save(&mut Down).unwrap_err();
    let refusing = remote(&memory, true);
    refusing.write_at(b"x", 0).unwrap();
    let unclosed = refusing.close().unwrap_err();

    let cramped = memory.create_group("g", 256 * KIB).unwrap();
    let limited = memory.create_space_in(&cramped).unwrap();
    let at = limited.map(Map::anonymous(MIB)).unwrap();
    let mut writer = limited.accessor().unwrap();
    let full = writer.write(at, &[1; MIB as usize]).unwrap_err();
    let explained = writer.explain(full);
    let limit = explained.cause().unwrap();
    let limit = limit.downcast_ref::<LimitError>().unwrap().clone();
    let group = ["group root/g "];
    vec![
        case("FileError", store(), &LINK),
        case("FileError", FileError::Limit(limit.clone()), &group),
        case("OpenError", OpenError::File(store()), &LINK),
        case("SpaceError", SpaceError::File(store()), &LINK),
        case("SpaceError", SpaceError::Limit(limit.clone()), &group),
        case("SpaceError", populated, &LINK),
        case("Fault", fault, &["load of 8 bytes"]),
        case("Explanation", accessor.explain(fault), &LINK),
        case("Explanation", explained, &group),
        case("GroupError", too_small, &["group root: limit"]),
        case("GroupError", GroupError::Limit(limit.clone()), &group),
        case("LimitError", limit, &group),
        case("SnapshotFileError", unsaved, &LINK),
        case("CloseError", unclosed, &LINK),
    ]
}

/// A writer over the link that is down.
struct Down;

impl io::Write for Down {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(link_down())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Errors that no call can be made to return everywhere.
fn made() -> Vec<Case> {
    let space = no_space().to_string();
    let space = [space.as_str()];
    let store = |source| FileError::Store {
        file: "data.bin".into(),
        action: StoreAction::Write,
        offset: 4096,
        len: 512,
        source: Arc::new(source),
    };
    let unwritten = FileError::Unwritten {
        file: "data.bin".into(),
        dirty: 4096,
        source: Arc::new(store(no_space())),
    };
    let path = || FileOpenError::Io {
        path: "data.bin".into(),
        step: "read its length",
        source: no_space(),
    };
    let dax = |what, offset| DaxError::Io {
        file: "data.bin".into(),
        what,
        offset,
        source: Arc::new(no_space()),
    };
    vec![
        case(
            "FileError",
            store(StoreError::Device.into()),
            &["input/output error"],
        ),
        case("FileError", unwritten, &[space[0], "data.bin: write"]),
        case("FileOpenError", path(), &space),
        case("OpenError", OpenError::Path(path()), &space),
        case("DaxError", DaxError::Open(Arc::new(path())), &space),
        case("DaxError", dax(DaxAction::Map, 0), &space),
        case(
            "SpaceError",
            SpaceError::Dax(dax(DaxAction::Resize, 9)),
            &space,
        ),
        case(
            "DaxError",
            DaxError::Unsupported {
                file: "data.bin".into(),
                what: DaxFeature::Punching,
                source: Arc::new(no_space()),
            },
            &space,
        ),
        case(
            "MemoryError",
            MemoryError::System {
                limit: MIB,
                source: no_space(),
            },
            &space,
        ),
        case(
            "SnapshotFileError",
            SnapshotFileError::from(SpaceError::File(store(no_space()))),
            &space,
        ),
        case("StoreError", StoreError::Device, &["input/output error"]),
        case(
            "DeviceError",
            DeviceError::new("no such register"),
            &["no such register"],
        ),
        case(
            "ParseVirtAddrError",
            "west".parse::<VirtAddr>().unwrap_err() as ParseVirtAddrError,
            &["west"],
        ),
    ]
}

/// Checks what is said of an error: each thing once, and none again by a source.
fn check(family: &str, error: &(dyn Error + 'static), says: &[String]) {
    let text = error.to_string();
    for part in says {
        assert_eq!(
            text.matches(part).count(),
            1,
            "{family}: {part:?} in {text:?}"
        );
    }
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let (text, source) = (error.to_string(), next.map(ToString::to_string));
        if let Some(source) = source {
            assert!(
                !text.contains(&source),
                "{family}: {text:?} repeats {source:?}"
            );
        }
    }
    // What is below is still to be had as a value, and the text has it.
    for cause in causes(error) {
        let cause = cause.to_string();
        assert!(text.contains(&cause), "{family}: {cause:?} in {text:?}");
    }
    match says {
        [first, second] if [first, second] == LINK => {
            let last = causes(error).last().unwrap();
            assert!(last.is::<CableCut>(), "{family}: {last:?}");
        }
        [first, ..] if *first == no_space().to_string() => {
            assert_eq!(raw_os_error(error), Some(NO_SPACE), "{family}");
        }
        _ => {}
    }
}

#[test]
fn a_text_is_whole_and_no_source_repeats_it() {
    let cases: Vec<Case> = of_calls().into_iter().chain(made()).collect();
    for Case {
        family,
        error,
        says,
    } in &cases
    {
        check(family, &**error, says);
    }
    // Every family is here.
    let listed = include_str!("../src/error.rs");
    let names = listed.lines().filter(|line| !line.starts_with("//"));
    let names = names.flat_map(|line| line.split(|c: char| !c.is_alphanumeric()));
    let is_family =
        |name: &&str| name.ends_with("Error") || ["Fault", "Explanation"].contains(name);
    let families: BTreeSet<&str> = names.filter(is_family).collect();
    let tested: BTreeSet<&str> = cases.iter().map(|case| case.family).collect();
    assert_eq!(families, tested);
}

/// A program keeps only the `io::Error`, with a file in a store of another file's bytes between.
#[test]
fn the_number_of_the_system_is_found_through_every_layer() {
    let inner = FileError::Store {
        file: "inner".into(),
        action: StoreAction::Read,
        offset: 0,
        len: 1,
        source: Arc::new(no_space()),
    };
    let outer = FileError::Store {
        file: "outer".into(),
        action: StoreAction::Read,
        offset: 0,
        len: 1,
        source: Arc::new(inner.into()),
    };
    let error = io::Error::from(SpaceError::File(outer));
    check("io::Error", &error, &[no_space().to_string()]);
    assert_eq!(raw_os_error(&error), Some(NO_SPACE));
    let closed = FileError::Closed { file: "f".into() };
    assert_eq!(raw_os_error(&io::Error::from(closed)), None);
}

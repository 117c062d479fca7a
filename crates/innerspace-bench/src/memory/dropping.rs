//! The time in which many objects of one kind are dropped, for each of them: 100,000 objects
//! compared with 10,000.

use std::error::Error;

use innerspace::{
    DaxFile, GIB, Group, MIB, Map, Memory, PagedFile, Task, VirtAddr,
    dax::{DaxDevice, DaxError},
    file::FileError,
    space::{AtFork, SpaceError},
};

use super::{Zeros, begin};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory, thread_time};
use crate::host::PAGE;

/// The number of objects of each kind.
const MANY: u64 = 100_000;
/// The smaller contender has this part of them.
const PART: u64 = 10;

/// Adds a row for each kind of object that a tenant can make in large numbers.
pub(super) fn rows(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let memory = memory(2 * GIB)?;
    let group = memory.create_group("tenant", 2 * GIB - 64 * MIB)?;
    let mut kinds = Kinds {
        plan,
        memory: &memory,
        rows,
    };
    files(&memory, &group, &mut kinds)?;
    direct_files(&memory, &group, &mut kinds)?;
    spaces(&memory, &group, &mut kinds)?;
    kinds.add("watches", |_| Ok(group.watch()?))
}

fn files(memory: &Memory, group: &Group, kinds: &mut Kinds) -> Result<(), Box<dyn Error>> {
    let open = || memory.file_options().group(group).open_store(Zeros);
    kinds.add("files", |_| Ok(open()?))?;
    let file = open()?;
    kinds.add("file handles", |_| Ok(file.clone()))?;
    kinds.add("block readers", |_| Ok(file.block_reader()))?;
    kinds.add("views", |number| {
        let start = number % 200 * PAGE as u64;
        Ok(file.view(start..start + 8)?)
    })?;
    kinds.add("futures of calls", |_| {
        let task: Task<(), FileError> = file.defer(PagedFile::sync_all);
        Ok(begin(task))
    })?;
    kinds.add("futures of bytes", |_| Ok(begin(file.ready(..8))))
}

fn direct_files(memory: &Memory, group: &Group, kinds: &mut Kinds) -> Result<(), Box<dyn Error>> {
    let device = DaxDevice::memory(MIB)?;
    let direct = || {
        memory
            .dax_options()
            .group(group)
            .create_on(&device, "direct")
    };
    kinds.add("direct files", |_| Ok(direct()?))?;
    let file = direct()?;
    file.set_len(MIB)?;
    kinds.add("pins of a direct file", |_| Ok(file.pin(0..8)?))?;
    kinds.add("futures of a direct file", |_| {
        let task: Task<(), DaxError> = file.defer(DaxFile::sync_all);
        Ok(begin(task))
    })
}

fn spaces(memory: &Memory, group: &Group, kinds: &mut Kinds) -> Result<(), Box<dyn Error>> {
    let space = memory.create_space_in(group)?;
    let at = space.map(Map::anonymous(MIB))?;
    space.accessor()?.store(at, 1_u64)?;
    kinds.add("accessors", |_| Ok(space.accessor()?))?;
    kinds.add("pins", |_| Ok(space.pin(at, 8, AtFork::Copy)?))?;
    let refuse = AtFork::Refuse;
    kinds.add("pins that refuse forks", |_| Ok(space.pin(at, 8, refuse)?))?;
    kinds.add("futures of a space", |_| {
        let task: Task<(), SpaceError> = space.defer(move |space| space.sync(at, PAGE as u64));
        Ok(begin(task))
    })?;
    kinds.add("spaces", |_| Ok(memory.create_space_in(group)?))?;
    kinds.add("forks", |_| Ok(space.fork()?))?;
    kinds.add("snapshots", |_| Ok(space.freeze()?))?;
    // Every second page is mapped, so that no mappings merge.
    kinds.add("mappings", |number| {
        let at = VirtAddr(MIB + 2 * number * PAGE as u64);
        space.map(Map::anonymous(PAGE as u64).at(at))?;
        Ok(Unmapped(&space, at))
    })
}

/// A mapping that is unmapped when this is dropped.
struct Unmapped<'s>(&'s innerspace::Space, VirtAddr);

impl Drop for Unmapped<'_> {
    fn drop(&mut self) {
        let unmapped = self.0.unmap(self.1, PAGE as u64);
        unmapped.expect("a mapping of its own has a table of its own");
    }
}

struct Kinds<'a, 'r> {
    plan: Plan,
    memory: &'a Memory,
    rows: &'a mut Rows<'r>,
}

impl Kinds<'_, '_> {
    /// Adds the row of one kind of object.
    fn add<T>(
        &mut self,
        name: &str,
        make: impl Fn(u64) -> Result<T, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let many = self.plan.operations(MANY);
        let drop_all = |count: u64| -> Outcome {
            let objects: Vec<T> = (0..count).map(&make).collect::<Result<_, _>>()?;
            thread_time(count, || {
                drop(objects);
                self.memory.tick();
                Ok(())
            })
        };
        self.rows.add(Row {
            name: format!("dropping {name}"),
            unit: Unit::Nanoseconds,
            contenders: vec![
                Contender::new("all at once", || drop_all(many)),
                Contender::new("a tenth of them", || drop_all((many / PART).max(1))),
            ],
            subject: "all at once",
            baseline: "a tenth of them",
            budget: Budget::Ratio(3.0),
        })
    }
}

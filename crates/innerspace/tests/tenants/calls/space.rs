//! Spaces: what is mapped in them, and what is made of them.

use std::time::Duration;

use innerspace::{
    Map, VirtAddr,
    space::{AccessKind, AddressWidth, Advice, AtFork, Protection, Remap, SpaceOptions},
};

use super::{Arguments, Entry, PAGE, calls};
use crate::held::Held;

const ADVICE: [Advice; 6] = [
    Advice::WillNeed,
    Advice::Cold,
    Advice::Normal,
    Advice::Random,
    Advice::Sequential,
    Advice::PageOut,
];
const ACCESSES: [AccessKind; 4] = [
    AccessKind::Load,
    AccessKind::Store,
    AccessKind::Exchange,
    AccessKind::Fetch,
];

fn protection(x: &mut Arguments) -> Protection {
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    x.one_of(&[
        Protection::READ,
        Protection::READ_WRITE,
        Protection::EXECUTE,
        all,
    ])
}

fn anonymous(x: &mut Arguments) -> Map {
    Map::anonymous(x.number())
}

/// Saved, with some bytes changed.
fn damaged(h: &Held, x: &mut Arguments) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut saved = Vec::new();
    h.pages(3)?;
    h.space()?.freeze()?.save(&mut saved)?;
    for _ in 0..x.below(3) {
        let at = x.below(saved.len() as u64) as usize;
        saved[at] = x.next() as u8;
    }
    Ok(saved)
}

calls! {
    Memory {
        create_space_in: |h, _| h.space_of(h.memory.create_space_in(&h.group)?);
        create_space_with: |h, _| h.space_of(h.memory.create_space_with(&SpaceOptions::new().group(&h.group))?);
        load_snapshot_in: |h, x| {
            let (saved, file) = (damaged(h, x)?, h.file()?);
            let open = |_: &str| Some(file.clone());
            h.keep(h.memory.load_snapshot_in(&h.group, &mut &saved[..], open)?)
        };
    }
    SpaceOptions {
        group: |h, x| {
            let inner = h.group.create_child("of a space", x.number())?;
            h.space_of(h.memory.create_space_with(&SpaceOptions::new().group(&inner))?)
        };
        width: |h, _| {
            let options = SpaceOptions::new().group(&h.group).width(AddressWidth::Bits32);
            h.space_of(h.memory.create_space_with(&options)?)
        };
    }
    Map {
        anonymous: |h, x| h.map(anonymous(x))?;
        file: |h, x| h.map(Map::file(&h.file()?).range(x.range()))?;
        dax: |h, x| h.map(Map::dax(&h.direct(x)?))?;
        device: |h, x| h.map(Map::device(h.callee(x.conduct()), x.number()))?;
        range: |h, x| h.map(Map::dax(&h.direct(x)?).range(x.range()).writable())?;
        shared: |h, x| h.map(Map::file(&h.file()?).range(x.range()).shared().writable())?;
        private: |h, x| h.map(Map::file(&h.file()?).range(x.range()).private().writable())?;
        writable: |h, x| h.map(Map::dax(&h.direct(x)?).shared().writable())?;
        protection: |h, x| h.map(anonymous(x).protection(protection(x)))?;
        at: |h, x| h.map(anonymous(x).at(h.at(x)))?;
        replacing: |h, x| h.map(anonymous(x).replacing(h.at(x)))?;
        with_null: |h, x| h.map(anonymous(x).at(VirtAddr(0)).with_null())?;
        populated: |h, x| h.map(anonymous(x).populated())?;
    }
    Space {
        group: |h, _| h.keep(h.space()?.group().clone());
        stats: |h, _| h.space()?.stats().to_string();
        mapping_at: |h, x| h.space()?.mapping_at(h.at(x));
        map: |h, x| h.map(anonymous(x))?;
        unmap: |h, x| h.space()?.unmap(h.at(x), x.number())?;
        protect: |h, x| h.space()?.protect(h.at(x), x.number(), protection(x))?;
        remap: |h, x| {
            let to = [Remap::InPlace, Remap::MayMove, Remap::Replacing(h.at(x))];
            h.space()?.remap(h.at(x), x.number(), x.number(), x.one_of(&to))?
        };
        create_region: |h, x| h.keep(h.space()?.create_region(x.number())?);
        advise: |h, x| h.space()?.advise(h.at(x), x.number(), x.one_of(&ADVICE))?;
        discard: |h, x| h.space()?.discard(h.at(x), x.number())?;
        sync: |h, x| h.space()?.sync(h.at(x), x.number())?;
        wait_for_calls: |h, _| h.space()?.wait_for_calls()?;
        populate: |h, x| h.space()?.populate(h.at(x), x.number())?;
        lock: |h, x| h.space()?.lock(h.at(x), x.number())?;
        unlock: |h, x| h.space()?.unlock(h.at(x), x.number())?;
        fork: |h, _| h.space_of(h.space()?.fork()?);
        fork_in: |h, x| {
            let inner = h.group.create_child("of a fork", x.number())?;
            h.space_of(h.space()?.fork_in(&inner)?)
        };
        freeze: |h, _| h.keep(h.space()?.freeze()?);
        restore: |h, x| {
            let (space, snapshot) = (h.space()?, h.space()?.freeze()?);
            space.accessor()?.store(h.at(x), 1_u64)?;
            space.restore(&snapshot)?
        };
        changed_since: |h, x| {
            let (space, snapshot) = (h.space()?, h.space()?.freeze()?);
            space.accessor()?.store(h.at(x), 1_u64)?;
            space.changed_since(&snapshot)?
        };
        take_dirty: |h, x| h.space()?.take_dirty(h.at(x), x.number())?;
        pin: |h, x| {
            let at_fork = x.one_of(&[AtFork::Copy, AtFork::Refuse]);
            h.keep(h.space()?.pin(h.at(x), x.number(), at_fork)?)
        };
        defer: |h, x| h.poll(h.space()?.defer(|space| space.fork()), x.conduct());
        ready: |h, x| {
            let ready = h.space()?.ready(h.at(x), x.below(1 << 20), x.one_of(&ACCESSES));
            h.poll(ready, x.conduct())
        };
        accessor: |h, _| h.keep(h.space()?.accessor()?);
        explain: |h, x| {
            let (space, mut accessor) = (h.space()?, h.space()?.accessor()?);
            let fault = accessor.store(VirtAddr(x.number()), 1_u8);
            fault.map_err(|fault| space.explain(fault).to_string())
        };
    }
    SpaceReady {
        wait_timeout: |h, x| {
            let mut ready = h.space()?.ready(h.at(x), x.below(1 << 20), x.one_of(&ACCESSES));
            ready.wait_timeout(Duration::from_millis(1))??
        };
    }
    Region {
        start: |h, x| h.keep(h.space()?.create_region(x.number())?.start());
        len: |h, x| h.space()?.create_region(x.number())?.len();
        is_empty: |h, x| h.space()?.create_region(x.number())?.is_empty();
        set_len: |h, x| {
            let region = h.space()?.create_region(x.number())?;
            region.set_len(x.number())?;
            region.set_len(x.number())?;
            h.keep(region)
        };
    }
    Pinned {
        start: |h, x| h.pinned(x.below(8))?.start();
        pages: |h, x| h.pinned(x.below(8))?.pages();
        pieces: |h, x| h.pinned(x.below(8))?.pieces().count();
        read: |h, x| h.pinned(x.below(8))?.read(x.below(PAGE), &mut [0; 9]);
        write: |h, x| {
            let pinned = h.pinned(x.below(8))?;
            h.space()?.unmap(pinned.start(), PAGE)?;
            pinned.write(x.below(PAGE), &[1; 9]);
            h.keep(pinned)
        };
    }
    Snapshot {
        accessor: |h, x| {
            let mut accessor = h.space()?.freeze()?.accessor()?;
            let loaded = accessor.load::<u64>(h.at(x));
            h.keep(accessor);
            loaded?
        };
        fork: |h, _| h.space_of(h.space()?.freeze()?.fork()?);
        fork_in: |h, x| {
            let inner = h.group.create_child("of a snapshot", x.number())?;
            h.space_of(h.space()?.freeze()?.fork_in(&inner)?)
        };
        group: |h, _| h.keep(h.space()?.freeze()?.group().clone());
        stats: |h, _| h.space()?.freeze()?.stats().to_string();
        diff: |h, x| {
            let (space, first) = (h.space()?, h.space()?.freeze()?);
            space.accessor()?.store(h.at(x), 2_u64)?;
            first.diff(&space.freeze()?)?
        };
        save: |h, _| h.space()?.freeze()?.save(&mut std::io::sink())?;
        view: |h, x| h.keep(h.space()?.freeze()?.view(h.at(x), x.len() as u64)?);
    }
}

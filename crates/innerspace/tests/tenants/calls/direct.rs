//! Direct-access files and their devices.

use std::io::{Seek, SeekFrom};
use std::time::Duration;

use innerspace::store::FileLock;
use innerspace::{
    KIB,
    dax::{DaxDevice, HoleWrites, OnShrink},
    file::FileAccess,
};

use super::{Arguments, Entry, PAGE, calls};
use crate::held::Held;

const ACCESSES: [FileAccess; 2] = [FileAccess::ReadOnly, FileAccess::ReadWrite];

calls! {
    DaxDevice {
        memory: |h, x| h.on(&DaxDevice::memory(x.one_of(&[0, 1, 64 * KIB, u64::MAX]))?, x)?;
        memfd: |h, x| h.on(&DaxDevice::memfd(x.one_of(&[0, 1, 64 * KIB, u64::MAX]))?, x)?;
        huge_pages: |_, x| DaxDevice::huge_pages(x.one_of(&[0, 1, 1 << 62]))?;
        len: |h, _| h.device.len();
        durability: |h, _| h.device.durability();
        free_pages: |h, _| h.device.free_pages().0;
    }
    DaxOpener {
        group: |h, x| {
            let inner = h.group.create_child("of a direct file", x.number())?;
            h.keep(h.dax_options().group(&inner).create_on(&h.device, "other")?)
        };
        share: |h, _| h.keep(h.dax_options().share().create_on(&h.device, "shared")?);
        access: |h, x| h.keep(h.dax_options().access(x.one_of(&ACCESSES)).open(h.path(x))?);
        hole_writes: |h, x| {
            let what = x.one_of(&[HoleWrites::OnePage, HoleWrites::Large]);
            h.keep(h.dax_options().hole_writes(what).create_on(&h.device, "large")?)
        };
        on_shrink: |h, x| {
            h.keep(h.dax_options().on_shrink(OnShrink::Error).open(h.path(x))?)
        };
        capacity: |h, x| h.keep(h.dax_options().capacity(x.number()).open(h.path(x))?);
        create_on: |h, x| h.keep(h.on(&h.device, x)?);
        open_file: |h, x| {
            h.keep(h.dax_options().open_file(std::fs::File::open(h.path(x))?)?)
        };
        create_new: |h, x| h.keep(h.dax_options().capacity(64 * KIB).create_new(h.path(x))?);
        open_or_create: |h, x| {
            h.keep(h.dax_options().capacity(64 * KIB).open_or_create(h.path(x))?)
        };
        lock: |h, x| h.keep(h.dax_options().lock(FileLock::Exclusive).open(h.path(x))?);
        open: |h, x| h.keep(h.dax_options().open(h.path(x))?);
        create: |h, x| h.keep(h.dax_options().capacity(64 * KIB).create(h.path(x))?);
    }
    DaxFile {
        name: |h, x| h.direct(x)?.name().len();
        len: |h, x| h.direct(x)?.len();
        is_empty: |h, x| h.direct(x)?.is_empty();
        device: |h, x| h.keep(h.direct(x)?.device().clone());
        access: |h, x| h.direct(x)?.access();
        group: |h, x| h.keep(h.direct(x)?.group().clone());
        stats: |h, x| h.direct(x)?.stats().to_string();
        read_at: |h, x| h.direct(x)?.read_at(&mut x.buffer(), x.number())?;
        read_exact_at: |h, x| h.direct(x)?.read_exact_at(&mut x.buffer(), x.number())?;
        read_to_vec: |h, x| h.direct(x)?.read_to_vec(x.short_range())?;
        write_at: |h, x| h.direct(x)?.write_at(&x.buffer(), x.number())?;
        cursor: |h, x| h.direct(x)?.cursor().seek(SeekFrom::Start(x.number()))?;
        set_len: |h, x| h.direct(x)?.set_len(x.number())?;
        set_len_within: |h, x| {
            h.direct(x)?.set_len_within(x.number(), Duration::from_millis(1))?
        };
        punch: |h, x| h.direct(x)?.punch(x.range())?;
        sync_all: |h, x| h.direct(x)?.sync_all()?;
        sync_data: |h, x| h.direct(x)?.sync_data()?;
        append: |h, x| h.direct(x)?.append(&x.buffer())?;
        sync_range: |h, x| h.direct(x)?.sync_range(x.range())?;
        invalidate: |h, x| h.direct(x)?.invalidate(x.range())?;
        pin: |h, x| h.keep(h.direct(x)?.pin(x.range())?);
        try_pin: |h, x| h.keep(h.direct(x)?.try_pin(x.range())?);
        try_read_at: |h, x| h.direct(x)?.try_read_at(&mut x.buffer(), x.number())?;
        try_read_exact_at: |h, x| h.direct(x)?.try_read_exact_at(&mut x.buffer(), x.number())?;
        try_write_at: |h, x| h.direct(x)?.try_write_at(&x.buffer(), x.number())?;
        defer: |h, x| {
            let (bytes, at) = (x.buffer(), x.number());
            h.poll(h.direct(x)?.defer(move |file| file.write_at(&bytes, at)), x.conduct())
        };
    }
    DaxPin {
        bytes: |h, x| h.direct(x)?.pin(0..PAGE)?.bytes();
        pieces: |h, x| h.direct(x)?.pin(0..x.number())?.pieces().count();
    }
}

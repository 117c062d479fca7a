//! Files, cached.

use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use innerspace::file::{FileAccess, Reading, WriteOrder};
use innerspace::store::FileLock;

use super::{Arguments, Entry, PAGE, calls};
use crate::held::Held;

/// Long enough for work that is under way, short enough to be called often.
const MOMENT: Duration = Duration::from_millis(1);

const ACCESSES: [FileAccess; 2] = [FileAccess::ReadOnly, FileAccess::ReadWrite];
const LOCKS: [FileLock; 4] = [
    FileLock::Auto,
    FileLock::None,
    FileLock::Shared,
    FileLock::Exclusive,
];
const ORDERS: [WriteOrder; 3] = [
    WriteOrder::Background,
    WriteOrder::OnSync,
    WriteOrder::Ordered,
];

calls! {
    FileOpener {
        block_size: |h, x| {
            let size = x.one_of(&[0, 512, 3000, PAGE, 16 * PAGE, 512 * PAGE, 1 << 40]);
            h.file_of(h.options().block_size(size).open_store(h.store(x))?)
        };
        access: |h, x| h.file_of(h.options().access(x.one_of(&ACCESSES)).open_store(h.store(x))?);
        write_order: |h, x| h.file_of(h.options().write_order(x.one_of(&ORDERS)).open_store(h.store(x))?);
        group: |h, x| {
            let inner = h.group.create_child("of a file", x.number())?;
            h.file_of(h.options().group(&inner).open_store(h.store(x))?)
        };
        share: |h, x| h.file_of(h.options().share().open_store(h.store(x))?);
        name: |h, x| {
            // Texts about a space repeat it for each mapping of the file.
            let name = "\u{1b}[31m/".repeat(x.below(100) as usize);
            h.file_of(h.options().name(&name).open_store(h.store(x))?)
        };
        open_store: |h, x| {
            h.file_of(h.options().open_store(h.store(x))?);
            let store = Arc::new(h.store(x));
            h.file_of(h.options().open_store(store.clone())?);
            h.file_of(h.options().access(x.one_of(&ACCESSES)).open_store(store)?)
        };
        open: |h, x| h.file_of(h.options().access(x.one_of(&ACCESSES)).open(h.path(x))?);
        create: |h, x| h.file_of(h.options().create(h.path(x))?);
        create_new: |h, x| h.file_of(h.options().create_new(h.path(x))?);
        open_file: |h, x| h.file_of(h.options().open_file(std::fs::File::open(h.path(x))?)?);
        cache_mode: |h, x| {
            let options = h.options().cache_mode(innerspace::store::CacheMode::Kernel);
            h.file_of(options.open(h.path(x))?)
        };
        lock: |h, x| h.file_of(h.options().lock(x.one_of(&LOCKS)).open(h.path(x))?);
        open_or_create: |h, x| h.file_of(h.options().open_or_create(h.path(x))?);
    }
    PagedFile {
        name: |h, _| h.file()?.name().len();
        len: |h, _| h.file()?.len();
        is_empty: |h, _| h.file()?.is_empty();
        block_size: |h, _| h.file()?.block_size();
        access: |h, _| h.file()?.access();
        write_order: |h, _| h.file()?.write_order();
        group: |h, _| h.keep(h.file()?.group().clone());
        stats: |h, _| h.file()?.stats().to_string();
        view: |h, x| h.keep(h.file()?.view(x.range())?);
        read_at: |h, x| h.file()?.read_at(&mut x.buffer(), x.number())?;
        read_exact_at: |h, x| h.file()?.read_exact_at(&mut x.buffer(), x.number())?;
        read_to_vec: |h, x| h.file()?.read_to_vec(x.short_range())?;
        scan: |h, x| h.file()?.scan(x.short_range(), |_| ())?;
        scan_until: |h, x| {
            let mut blocks = 0;
            h.file()?.scan_until(x.range(), |_| {
                blocks += 1;
                if blocks > 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?
        };
        read_at_uncached: |h, x| h.file()?.read_at_uncached(&mut x.buffer(), x.number())?;
        scan_uncached: |h, x| h.file()?.scan_uncached(x.short_range(), |_| ())?;
        write_at: |h, x| h.file()?.write_at(&x.buffer(), x.number())?;
        append: |h, x| h.file()?.append(&x.buffer())?;
        set_len: |h, x| h.file()?.set_len(x.number())?;
        punch: |h, x| h.file()?.punch(x.range())?;
        sync_data: |h, _| h.file()?.sync_data()?;
        sync_all: |h, _| h.file()?.sync_all()?;
        sync_range: |h, x| h.file()?.sync_range(x.range())?;
        discard: |h, _| h.file()?.discard()?;
        invalidate: |h, x| h.file()?.invalidate(x.range())?;
        evict: |h, x| h.file()?.evict(x.range())?;
        set_reading: |h, x| {
            let orders = [Reading::Normal, Reading::Random, Reading::Sequential];
            h.file()?.set_reading(x.one_of(&orders))
        };
        prefetch: |h, x| h.file()?.prefetch(x.range())?;
        set_barrier: |h, x| h.file()?.set_barrier(x.number());
        release_through: |h, x| h.file()?.release_through(x.number());
        close: |h, _| h.file()?.close()?;
        chunks: |h, x| h.file()?.chunks(x.range())?.take(50).for_each(drop);
        scatter: |h, x| h.keep(h.file()?.scatter(x.range())?);
        block_reader: |h, _| h.keep(h.file()?.block_reader());
        array: |h, _| h.keep(h.file()?.array::<u32>()?);
        cursor: |h, _| h.keep(h.file()?.cursor());
        ready: |h, x| h.poll(h.file()?.ready(x.range()), x.conduct());
        defer: |h, x| {
            let (bytes, at) = (x.buffer(), x.number());
            h.poll(h.file()?.defer(move |file| file.write_at(&bytes, at)), x.conduct())
        };
        defer_shared: |h, x| {
            let range = x.short_range();
            h.poll(h.file()?.defer_shared(move |file| file.scan(range, |_| ())), x.conduct())
        };
        try_view: |h, x| h.keep(h.file()?.try_view(x.range())?);
        try_read_at: |h, x| h.file()?.try_read_at(&mut x.buffer(), x.number())?;
        try_read_exact_at: |h, x| h.file()?.try_read_exact_at(&mut x.buffer(), x.number())?;
        try_write_at: |h, x| h.file()?.try_write_at(&x.buffer(), x.number())?;
        try_append: |h, x| h.file()?.try_append(&x.buffer())?;
        try_sync_data: |h, _| h.file()?.try_sync_data()?;
        try_sync_all: |h, _| h.file()?.try_sync_all()?;
        try_sync_range: |h, x| h.file()?.try_sync_range(x.range())?;
        try_evict: |h, x| h.file()?.try_evict(x.range())?;
    }
    CloseError {
        error: |h, x| {
            let file = h.options().open_store(h.store(x))?;
            let _ = file.write_at(&x.buffer(), 0);
            file.close().map_err(|error| error.error().to_string())?
        };
        into_file: |h, x| {
            let file = h.options().open_store(h.store(x))?;
            let _ = file.write_at(&x.buffer(), 0);
            file.close().or_else(|error| error.into_file().discard())?
        };
    }
    ScatterView {
        len: |h, x| h.file()?.scatter(x.short_range())?.len();
        is_empty: |h, x| h.file()?.scatter(x.short_range())?.is_empty();
        chunk: |h, x| h.file()?.scatter(x.short_range())?.chunk().len();
        advance: |h, x| {
            let mut view = h.file()?.scatter(x.short_range())?;
            view.advance(view.chunk().len());
            h.keep(view)
        };
    }
    View {
        slice: |h, x| {
            let view = h.file()?.view(x.short_range())?;
            h.keep(view.slice(view.len() / 3..));
        };
        cast: |h, x| h.file()?.view(x.short_range())?.cast::<u32>().is_ok();
    }
    Array {
        len: |h, _| h.file()?.array::<u64>()?.len();
        is_empty: |h, _| h.file()?.array::<u64>()?.is_empty();
        get: |h, x| h.file()?.array::<u64>()?.get(x.number())?;
        try_get: |h, x| h.file()?.array::<u64>()?.try_get(x.number())?;
        read: |h, x| h.file()?.array()?.read(x.number(), &mut x.buffer())?;
        try_read: |h, x| h.file()?.array()?.try_read(x.number(), &mut x.buffer())?;
        set: |h, x| h.file()?.array()?.set(x.number(), 7_u16)?;
        try_set: |h, x| h.file()?.array()?.try_set(x.number(), 7_u16)?;
        write: |h, x| h.file()?.array()?.write(x.number(), &x.buffer())?;
        try_write: |h, x| h.file()?.array()?.try_write(x.number(), &x.buffer())?;
    }
    BlockReader {
        read_at: |h, x| h.file()?.block_reader().read_at(&mut x.buffer(), x.number())?;
        try_read_at: |h, x| h.file()?.block_reader().try_read_at(&mut x.buffer(), x.number())?;
        view_block: |h, x| h.keep(h.file()?.block_reader().view_block(x.number())?);
        try_view_block: |h, x| h.keep(h.file()?.block_reader().try_view_block(x.number())?);
        clear: |h, x| {
            let mut reader = h.file()?.block_reader();
            reader.view_block(x.below(16))?;
            reader.clear();
            h.keep(reader)
        };
    }
    Cursor {
        position: |h, x| {
            let mut cursor = h.file()?.cursor();
            cursor.seek(SeekFrom::Start(x.number()))?;
            let _read = cursor.read(&mut x.buffer())?;
            let _written = cursor.write(&x.buffer())?;
            cursor.seek(SeekFrom::End(x.number() as i64))?;
            cursor.position()
        };
        file: |h, _| h.keep(h.file()?.cursor().file().clone());
    }
    Ready {
        wait_timeout: |h, x| h.keep(h.file()?.ready(x.range()).wait_timeout(MOMENT)??);
    }
    Task {
        wait_timeout: |h, x| {
            let range = x.range();
            let mut task = h.file()?.defer(move |file| file.view(range));
            let done = task.wait_timeout(MOMENT);
            h.keep(task);
            h.keep(done??)
        };
    }
}

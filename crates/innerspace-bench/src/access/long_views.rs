//! Views over several blocks: a whole file as one slice, and small ones over a block's end.
//!
//! The whole file is compared with mmap of a file in the kernel's memory, with a load from each
//! page. The small views are compared with small views inside a block.

use std::cell::OnceCell;
use std::error::Error;
use std::io;

use innerspace::store::Store;
use innerspace::{MIB, Memory, PagedFile};

use crate::harness::{
    Budget, Contender, Plan, Row, Rows, Seeds, Unit, below, memory, thread_time, xorshift,
};
use crate::host::{PAGE, Region, memory_file};

const WHOLE: &str = "a whole file of 1 GiB as one slice, a load from each page";
const AGAIN: &str = "the same, of blocks read in no order, the first time";
const SMALL: &str = "view of 64 bytes over a block's end, 8 bytes, drop";

/// Pages of the whole file.
const PAGES: u64 = 262_144;

/// A file of which each page has its number everywhere.
struct Numbers(u64);

impl Store for Numbers {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.0.saturating_sub(offset).min(buf.len() as u64) as usize;
        let page = offset / PAGE as u64;
        for (number, part) in (page..).zip(buf[..len].chunks_mut(PAGE)) {
            part.fill(number as u8);
        }
        Ok(len)
    }
}

fn open(bytes: u64) -> Result<(Memory, PagedFile), Box<dyn Error>> {
    // Under twice the file's length.
    let memory = memory(2 * bytes + 16 * MIB)?;
    let file = memory.file_options().open_store(Numbers(bytes))?;
    Ok((memory, file))
}

/// Eight bytes of each page, added up.
fn touch(bytes: &[u8]) -> u64 {
    let word = |page: &[u8]| u64::from_le_bytes(page[..8].try_into().expect("eight of them"));
    let words = bytes.chunks_exact(PAGE).map(word);
    words.fold(0, u64::wrapping_add)
}

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let bytes = plan.pages(PAGES) * PAGE as u64;
    if rows.wants(WHOLE) {
        measure_whole(bytes, rows)?;
    }
    if rows.wants(AGAIN) {
        measure_again(bytes, rows)?;
    }
    if rows.wants(SMALL) {
        measure_small(plan, rows)?;
    }
    Ok(())
}

fn mapped(file: &std::fs::File, bytes: u64) -> Result<u64, Box<dyn Error>> {
    let region = Region::shared(file, bytes as usize)?;
    Ok(region.read_every(PAGE))
}

fn kernel_file(bytes: u64) -> Result<std::fs::File, Box<dyn Error>> {
    let file = memory_file()?;
    file.set_len(bytes)?;
    Region::shared(&file, bytes as usize)?.write_every(PAGE, 1);
    Ok(file)
}

fn measure_whole(bytes: u64, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let (_memory, file) = open(bytes)?;
    let kernel = kernel_file(bytes)?;
    let pages = bytes / PAGE as u64;
    let contenders = vec![
        Contender::new("mmap", || thread_time(pages, || mapped(&kernel, bytes))),
        Contender::new("innerspace", || {
            thread_time(pages, || Ok(touch(&file.view(..)?)))
        }),
        Contender::new("innerspace, block by block", || {
            thread_time(pages, || {
                let mut sum = 0_u64;
                for chunk in file.chunks(..)? {
                    sum = sum.wrapping_add(touch(&chunk?));
                }
                Ok(sum)
            })
        }),
    ];
    rows.add(Row {
        name: WHOLE.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "mmap",
        budget: Budget::Ratio(1.2),
    })?;
    Ok(())
}

fn measure_again(bytes: u64, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let kernel = kernel_file(bytes)?;
    let pages = bytes / PAGE as u64;
    let contenders = vec![
        Contender::new("mmap", || thread_time(pages, || mapped(&kernel, bytes))),
        Contender::new("innerspace", || {
            let (_memory, file) = open(bytes)?;
            for page in (0..pages).rev() {
                drop(file.view(page * PAGE as u64..page * PAGE as u64 + 1)?);
            }
            thread_time(pages, || Ok(touch(&file.view(..)?)))
        }),
    ];
    rows.add(Row {
        name: AGAIN.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "mmap",
        budget: Budget::None,
    })?;
    Ok(())
}

fn measure_small(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let pages = plan.pages(100_000);
    let bytes = pages * PAGE as u64;
    let (_memory, file) = open(bytes)?;
    let count = plan.operations(400_000);
    let seeds = OnceCell::<std::cell::RefCell<Seeds>>::new();
    let seed = || seeds.get_or_init(Default::default).borrow_mut().next();
    let views = |inside: u64| {
        let mut seed = seed();
        thread_time(count, || {
            let mut sum = 0_u64;
            for _ in 0..count {
                let page = below(pages - 1, xorshift(&mut seed));
                let start = page * PAGE as u64 + inside;
                let view = file.view(start..start + 64)?;
                sum = sum.wrapping_add(u64::from(view[0]) + u64::from(view[63]));
            }
            Ok(sum)
        })
    };
    file.prefetch(..)?;
    let contenders = vec![
        Contender::new("inside a block", || views(1000)),
        Contender::new("over its end", || views(PAGE as u64 - 32)),
    ];
    rows.add(Row {
        name: SMALL.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "over its end",
        baseline: "inside a block",
        budget: Budget::Ratio(2.0),
    })?;
    Ok(())
}

//! Every call of the API that a tenant has, with arguments that are sane, at an edge or extreme.
//!
//! A table for each subject names its calls as the documentation does. A test at the end compares
//! the tables with the sources: a call that is added to the library is missing here until it has an
//! entry, or stands among those that are not a tenant's, with the reason.

mod access;
mod coverage;
mod direct;
mod file;
mod group;
mod space;
mod stores;

use std::fmt;
use std::ops::Range;

use innerspace::PAGE_SIZE;

use crate::foreign::Conduct;
use crate::held::{Ended, Held};

const PAGE: u64 = PAGE_SIZE as u64;

/// A call, as the documentation names it.
pub(crate) struct Entry {
    name: &'static str,
    call: fn(&Held, &mut Arguments) -> Ended,
}

const TABLES: [&[Entry]; 6] = [
    file::CALLS,
    space::CALLS,
    access::CALLS,
    direct::CALLS,
    group::CALLS,
    stores::CALLS,
];

/// Defines a table of calls. What a call returns is dropped.
macro_rules! calls {
    ($($type:ident { $($name:ident: |$held:pat_param, $with:pat_param| $call:expr;)+ })+) => {
        pub(super) const CALLS: &[Entry] = &[$($(Entry {
            name: concat!(stringify!($type), "::", stringify!($name)),
            call: |$held: &Held, $with: &mut Arguments| {
                let _ = $call;
                Ok(())
            },
        },)+)+];
    };
}
use calls;

/// One call of a table, with arguments that a number stands for.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    which: u16,
    arguments: u32,
}

impl Call {
    /// Returns the call with this number, counted through all tables and around again.
    pub(crate) fn new(which: u16, arguments: u32) -> Call {
        Call { which, arguments }
    }

    fn entry(self) -> &'static Entry {
        let all = || TABLES.iter().copied().flatten();
        let which = usize::from(self.which) % all().count();
        all().nth(which).expect("less than all")
    }

    pub(crate) fn make(self, held: &Held) -> Ended {
        (self.entry().call)(held, &mut Arguments(self.arguments.into()))
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.entry().name, self.arguments)
    }
}

/// How many calls the tables have.
pub(crate) fn count() -> u16 {
    TABLES.iter().map(|table| table.len() as u16).sum()
}

/// The arguments of one call, drawn one after the other.
pub(crate) struct Arguments(u64);

impl Arguments {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A number of bytes, pages or anything: most often below 4 MiB.
    pub(crate) fn number(&mut self) -> u64 {
        match self.below(10) {
            0 => self.one_of(&[0, 1, PAGE - 1, PAGE, PAGE + 1, 2 << 20]),
            1 => self.one_of(&[
                1 << 30,
                1 << 46,
                1 << 48,
                1 << 62,
                i64::MAX as u64,
                u64::MAX,
            ]),
            2..=5 => self.below(1024) * PAGE,
            _ => self.below(4 << 20),
        }
    }

    /// A number of bytes that A's own heap may well take.
    pub(crate) fn len(&mut self) -> usize {
        match self.below(4) {
            0 => self.one_of(&[0, 1, 8, PAGE_SIZE]),
            1 => self.below(64 << 10) as usize,
            _ => self.below(PAGE) as usize,
        }
    }

    fn buffer(&mut self) -> Vec<u8> {
        vec![self.0 as u8; self.len()]
    }

    fn range(&mut self) -> Range<u64> {
        let start = self.number();
        start..start.saturating_add(self.number())
    }

    /// Of at most 1 MiB: for calls that go through all of it.
    fn short_range(&mut self) -> Range<u64> {
        let start = self.number();
        start..start.saturating_add(self.below(1 << 20))
    }

    /// Works, as a rule.
    pub(crate) fn conduct(&mut self) -> Conduct {
        match self.below(12) {
            0 => Conduct::Hangs,
            1 => Conduct::Panics,
            2 => Conduct::Fails,
            3 => Conduct::Lies,
            _ => Conduct::Works,
        }
    }
}

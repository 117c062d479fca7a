//! Programs: sequences of steps, made from a seed.

/// The number of pages in the window in which everything happens.
pub(crate) const WINDOW: u64 = 48;
/// The address of the window, on both sides.
pub(crate) const BASE: u64 = 0x2000_0000_0000;
/// The number of pages that each file has at first.
pub(crate) const FILE_PAGES: u64 = 12;
pub(crate) const PAGE: u64 = 4096;
/// The greatest number of spaces, forks included.
pub(crate) const SPACES: usize = 4;

/// The number of files. Two may be written, and the second of these may become shorter; the third
/// is open for reading only.
pub(crate) const FILES: usize = 3;
pub(crate) const READ_ONLY: usize = 2;
const SHRINKS: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    Nothing,
    Read,
    Write,
    Execute,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Anonymous,
    Private { file: usize, first: u64 },
    Shared { file: usize, first: u64 },
}

/// A place in the window: a page, and an offset into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) page: u64,
    pub(crate) offset: u64,
}

impl Place {
    pub(crate) fn address(self) -> u64 {
        BASE + self.page * PAGE + self.offset
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Map {
        at: Place,
        pages: u64,
        source: Source,
        allowed: Allowed,
        replace: bool,
    },
    Unmap {
        at: Place,
        pages: u64,
    },
    Protect {
        at: Place,
        pages: u64,
        allowed: Allowed,
    },
    /// Resizes a mapping in place, or moves it to another page of the window.
    Remap {
        at: Place,
        old: u64,
        new: u64,
        to: Option<Place>,
    },
    DontNeed {
        at: Place,
        pages: u64,
    },
    Sync {
        at: Place,
        pages: u64,
    },
    Fork,
    Read {
        at: Place,
        len: u64,
    },
    Write {
        at: Place,
        len: u64,
        value: u8,
    },
    Truncate {
        file: usize,
        pages: u64,
    },
    /// Punches whole pages, some of them past the file's end.
    Punch {
        file: usize,
        page: u64,
        pages: u64,
    },
    WriteFile {
        file: usize,
        at: u64,
        value: u8,
    },
    ReadFile {
        file: usize,
        page: u64,
    },
}

/// A program: steps, each in one of the spaces that exist (the number modulo their count).
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) steps: Vec<(usize, Op)>,
}

struct Random(u64);

impl Random {
    /// Returns the next number of splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a place: mostly in the first pages, so that operations meet, and rarely unaligned.
    fn place(&mut self) -> Place {
        let page = if self.one_in(3) {
            self.below(WINDOW - 8)
        } else {
            self.below(16)
        };
        let offset = if self.one_in(24) {
            1 + self.below(4095)
        } else {
            0
        };
        Place { page, offset }
    }

    fn byte_place(&mut self) -> Place {
        let page = if self.one_in(3) {
            self.below(WINDOW - 8)
        } else {
            self.below(16)
        };
        let offset = if self.one_in(2) { 0 } else { self.below(4096) };
        Place { page, offset }
    }

    fn allowed(&mut self) -> Allowed {
        match self.below(8) {
            0 => Allowed::Nothing,
            1 => Allowed::Read,
            2 => Allowed::Execute,
            _ => Allowed::Write,
        }
    }

    fn map(&mut self) -> Op {
        let first = self.below(FILE_PAGES + 2);
        let (source, allowed) = match self.below(7) {
            0..3 => (Source::Anonymous, self.allowed()),
            // The file that becomes shorter is never mapped privately.
            3 => (Source::Private { file: 0, first }, self.allowed()),
            4 => (
                Source::Private {
                    file: READ_ONLY,
                    first,
                },
                self.allowed(),
            ),
            5 => {
                let file = self.below(2) as usize;
                (Source::Shared { file, first }, self.allowed())
            }
            _ => (
                Source::Shared {
                    file: READ_ONLY,
                    first,
                },
                self.allowed(),
            ),
        };
        // It is unspecified which of two refusals comes first.
        let two_refusals = matches!(
            source,
            Source::Shared {
                file: READ_ONLY,
                ..
            }
        );
        let empty = self.one_in(30) && !two_refusals;
        let mut at = self.place();
        if two_refusals {
            at.offset = 0;
        }
        Op::Map {
            at,
            pages: if empty { 0 } else { 1 + self.below(7) },
            source,
            allowed,
            replace: two_refusals || !self.one_in(4),
        }
    }

    fn remap(&mut self) -> Op {
        let at = self.place();
        let new = if self.one_in(20) {
            0
        } else {
            1 + self.below(4)
        };
        match self.one_in(2) {
            true => {
                let old = 1 + self.below(4);
                Op::Remap {
                    at,
                    // A range that grows has to be in one mapping. One page is, whatever has
                    // merged.
                    old: if old < new { 1 } else { old },
                    new,
                    to: None,
                }
            }
            false => Op::Remap {
                at,
                old: 1,
                new,
                to: Some(self.place()),
            },
        }
    }

    fn op(&mut self) -> Op {
        let pages = 1 + self.below(7);
        match self.below(41) {
            0..9 => self.map(),
            9..12 => Op::Unmap {
                at: self.place(),
                pages: if self.one_in(20) { 0 } else { pages },
            },
            12..15 => Op::Protect {
                at: self.place(),
                pages,
                allowed: self.allowed(),
            },
            15..18 => self.remap(),
            18..20 => Op::DontNeed {
                at: self.place(),
                pages,
            },
            20 => Op::Sync {
                at: self.place(),
                pages,
            },
            21 => Op::Fork,
            22..29 => Op::Read {
                at: self.byte_place(),
                len: 1 + self.below(9000),
            },
            29..36 => Op::Write {
                at: self.byte_place(),
                len: 1 + self.below(6000),
                value: self.next() as u8,
            },
            36 => {
                let file = self.below(2) as usize;
                let least = if file == SHRINKS { 0 } else { FILE_PAGES };
                Op::Truncate {
                    file,
                    pages: least + self.below(FILE_PAGES),
                }
            }
            37 => Op::WriteFile {
                file: self.below(2) as usize,
                at: self.below(FILE_PAGES * PAGE),
                value: self.next() as u8,
            },
            38 => Op::Punch {
                file: self.below(2) as usize,
                page: self.below(FILE_PAGES),
                pages,
            },
            _ => Op::ReadFile {
                file: self.below(FILES as u64) as usize,
                page: self.below(FILE_PAGES),
            },
        }
    }
}

impl Program {
    pub(crate) fn new(seed: u64, steps: usize) -> Program {
        let mut random = Random(seed);
        let mut length = [FILE_PAGES; FILES];
        let mut step = || {
            let space = random.below(SPACES as u64) as usize;
            let mut op = random.op();
            match &mut op {
                // Files that are mapped privately only grow.
                Op::Truncate { file, pages } if *file != SHRINKS => {
                    *pages = (*pages).max(length[*file]);
                    length[*file] = *pages;
                }
                Op::Truncate { file, pages } => length[*file] = *pages,
                // Never past the end: lengths would then be no multiples of the page.
                Op::WriteFile { file, at, .. } if *at + WRITTEN > length[*file] * PAGE => {
                    op = Op::ReadFile {
                        file: *file,
                        page: 0,
                    };
                }
                _ => {}
            }
            (space, op)
        };
        let steps = (0..steps).map(|_| step()).collect();
        Program { steps }
    }

    /// Returns the steps up to this one as text, one on each line.
    pub(crate) fn told(&self, last: usize) -> String {
        let steps = self.steps.iter().enumerate().take(last + 1);
        let lines =
            steps.map(|(number, (space, op))| format!("{number:4} space {space}: {op:?}\n"));
        lines.collect()
    }
}

/// The number of bytes that one `WriteFile` writes.
pub(crate) const WRITTEN: u64 = 600;

/// Returns a file's first bytes.
pub(crate) fn first_bytes(file: usize) -> Vec<u8> {
    (0..FILE_PAGES * PAGE)
        .map(|at| (at / PAGE * 16 + at % 13 + file as u64 * 5 + 1) as u8)
        .collect()
}

/// Returns the length in bytes to request for `pages` pages: now and then less than whole pages,
/// which both sides round up.
pub(crate) fn bytes(at: Place, pages: u64) -> u64 {
    let fewer = if (at.page * 5 + pages).is_multiple_of(7) {
        1 + at.page * 83
    } else {
        0
    };
    (pages * PAGE).saturating_sub(fewer)
}

/// Returns a short text for the bytes of a page or of a piece of one.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{}:{hash:016x}", bytes.len())
}

/// Splits a range by pages.
pub(crate) fn pieces(at: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
    let end = at + len;
    let mut next = at;
    std::iter::from_fn(move || {
        let start = next;
        next = end.min((start / PAGE + 1) * PAGE);
        (start < end).then_some((start, (next - start) as usize))
    })
}

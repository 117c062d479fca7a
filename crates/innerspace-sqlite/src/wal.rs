//! The frames of a WAL, for the branches that began while it had them.
//!
//! A database with a WAL is its file and the newest frame of each page in the WAL. A branch takes
//! its pages from the frames up to the last one of its moment, and from the file. Frames are never
//! overwritten until the WAL starts over; before that its frames are copied.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use innerspace::store::{Store, read_exact_or_eof};
use innerspace::{FileOpener, PagedFile};

use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::temporary::spill;

/// The lengths of the headers of a WAL and of a frame.
pub(crate) const HEADER: u64 = 32;
pub(crate) const FRAME_HEADER: u64 = 24;
/// The most bytes of frames that are read in one step.
const COPY_STEP: usize = 256 << 10;

/// What the index of a WAL says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WalState {
    /// A number that every transaction changes.
    pub(crate) change: u32,
    pub(crate) page_size: u32,
    /// The last frame of a committed transaction.
    pub(crate) last: u32,
    /// The database's length in pages.
    pub(crate) pages: u32,
    pub(crate) salts: [u32; 2],
}

/// A WAL from one start to the next.
pub(crate) struct Generation {
    salts: [u32; 2],
    page_size: u32,
    state: Mutex<State>,
}

struct State {
    frames: Frames,
    /// The frames of each page, in ascending order.
    of_page: HashMap<u32, Vec<u32>>,
    /// The last frame that is in `of_page`.
    known: u32,
    /// The last frame that a branch needs.
    needed: u32,
}

enum Frames {
    /// The WAL itself.
    Live(Arc<dyn Store>),
    /// A copy of it.
    Saved(PagedFile),
}

impl Generation {
    pub(crate) fn new(state: &WalState, wal: Arc<dyn Store>) -> Generation {
        Generation {
            salts: state.salts,
            page_size: state.page_size,
            state: Mutex::new(State {
                frames: Frames::Live(wal),
                of_page: HashMap::new(),
                known: 0,
                needed: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the WAL has not started over.
    pub(crate) fn is(&self, state: &WalState) -> bool {
        (self.salts, self.page_size) == (state.salts, state.page_size)
    }

    /// Notes that a branch needs the frames up to one.
    pub(crate) fn need(&self, last: u32) {
        let mut state = self.state();
        state.needed = state.needed.max(last);
    }

    fn frame(&self, number: u32) -> u64 {
        let frame = FRAME_HEADER + u64::from(self.page_size);
        HEADER + u64::from(number - 1) * frame
    }

    /// Copies the frames that branches need, since the WAL is about to lose them.
    pub(crate) fn keep(&self, options: &FileOpener) -> Outcome {
        let mut state = self.state();
        let Frames::Live(wal) = &state.frames else {
            return Ok(());
        };
        let copy = spill(options, "WAL for branches")?;
        let end = self.frame(state.needed + 1);
        let mut at = 0;
        let mut piece = vec![0; COPY_STEP];
        while at < end {
            let len = (end - at).min(COPY_STEP as u64) as usize;
            let read = read_exact_or_eof(&**wal, &mut piece[..len], at);
            let read = read.map_err(|error| cannot_read(&error))?;
            if read < len {
                return Err(cannot_read(&io::ErrorKind::UnexpectedEof.into()));
            }
            let written = copy.write_at(&piece[..len], at);
            written.map_err(|error| Failure::file(raw::IOERR_WRITE, &error))?;
            at += len as u64;
        }
        state.frames = Frames::Saved(copy);
        Ok(())
    }

    /// Reads bytes of one page as they were when frame `last` was the last one. `false` if no frame
    /// has the page.
    pub(crate) fn read(&self, last: u32, buf: &mut [u8], at: u64) -> Outcome<bool> {
        let mut state = self.state();
        self.learn(&mut state, last)?;
        let page = (at / u64::from(self.page_size)) as u32 + 1;
        let Some(frames) = state.of_page.get(&page) else {
            return Ok(false);
        };
        let older = frames.partition_point(|frame| *frame <= last);
        let Some(newest) = older.checked_sub(1).map(|newest| frames[newest]) else {
            return Ok(false);
        };
        let inside = at % u64::from(self.page_size);
        state
            .frames
            .read(buf, self.frame(newest) + FRAME_HEADER + inside)?;
        Ok(true)
    }

    /// Learns which pages the frames up to one have.
    fn learn(&self, state: &mut State, last: u32) -> Outcome {
        let frame = FRAME_HEADER as usize + self.page_size as usize;
        let step = (COPY_STEP / frame).max(1) as u32;
        while state.known < last {
            let count = (last - state.known).min(step);
            let mut frames = vec![0; count as usize * frame];
            state
                .frames
                .read(&mut frames, self.frame(state.known + 1))?;
            for bytes in frames.chunks(frame) {
                let page = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                state.known += 1;
                let known = state.known;
                state.of_page.entry(page).or_default().push(known);
            }
        }
        Ok(())
    }
}

impl Frames {
    fn read(&self, buf: &mut [u8], at: u64) -> Outcome {
        match self {
            Frames::Saved(copy) => {
                let read = copy.read_exact_at(buf, at);
                read.map_err(|error| Failure::file(raw::IOERR_READ, &error))
            }
            Frames::Live(wal) => match read_exact_or_eof(&**wal, buf, at) {
                Ok(read) if read == buf.len() => Ok(()),
                Ok(_) => Err(cannot_read(&io::ErrorKind::UnexpectedEof.into())),
                Err(error) => Err(cannot_read(&error)),
            },
        }
    }
}

fn cannot_read(error: &io::Error) -> Failure {
    Failure::io(raw::IOERR_READ, "cannot read", "the WAL of a branch", error)
}

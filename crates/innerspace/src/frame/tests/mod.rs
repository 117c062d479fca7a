//! Tests of the layer through its own interface: allocation, also of several frames together, the
//! hold word, the lock, tags.

mod alloc;
mod hold;
mod lock;
mod singles;
mod tag;
mod window;

use super::*;
use crate::FrameId;

/// The size of an arena that is large enough for magazines. Under Miri it is only just large
/// enough, because there each check of the metadata takes time in proportion to its size.
const WITH_MAGAZINES: u32 = if cfg!(miri) { 127 } else { 8_000 };

/// Makes an arena of `frames` usable frames, with the usual options.
fn arena(frames: u32) -> Frames {
    Frames::new(&ArenaOptions::new(frames)).unwrap()
}

/// Publishes an anonymous frame with one reference.
fn published(frames: &Frames) -> FrameId {
    let mut frame = frames.alloc(0, Source::Ordinary).unwrap();
    frame.set_kind(Kind::Anonymous);
    frame.publish(HoldState::refs_only(1))
}

/// A small generator of numbers that look random (xorshift, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

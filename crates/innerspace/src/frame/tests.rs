//! The layer through its own interface.

use super::*;

#[test]
fn a_frame_lives_and_dies() {
    let frames = Frames::new(&ArenaOptions::new(256)).unwrap();
    assert_eq!(
        (frames.total(), frames.free_frames(), frames.reserve()),
        (256, 256, 32)
    );
    let mut frame = frames.alloc(0, Source::Ordinary).unwrap();
    frame.zero();
    frame.bytes_mut()[5] = 7;
    frame.set_kind(Kind::Anonymous);
    frame.set_flags(FlagSet::UPTODATE);
    frame.set_index(99);
    let id = frame.publish(HoldState::refs_only(1));
    assert_eq!(frames.free_frames(), 255);
    assert_eq!(frames.frame_of(frames.host(id) as usize + 4095), id);
    let meta = frames.meta(id);
    assert_eq!(
        (meta.kind(), meta.index(), meta.order()),
        (Kind::Anonymous, 99, 0)
    );
    frames.lock(id);
    assert!(!frames.try_lock(id));
    frames.unlock(id);
    frames.validate();
    assert_eq!(meta.hold.put(), Dropped::Last);
    frames.free(id);
    assert_eq!(frames.free_frames(), 256);
    frames.validate();
}

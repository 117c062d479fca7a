//! Tests of reads as generated code makes them, through [`TranslationLayout`].

use super::translator::Translator;
use crate::space::access::layout::TranslationLayout;
use crate::space::core::address::{LEAF_SHIFT, SLOTS};
use crate::sync::domain::{Domain, Post};
use crate::sync::raw::{AtomicU64, Ordering};

/// Reads the tags and the first word of `leaf` as generated code does.
///
/// Safety: the translator of this layout lives, and is not being used.
unsafe fn seen(layout: &TranslationLayout, leaf: u64) -> (bool, bool, u64) {
    let slot = leaf as usize % TranslationLayout::LEAVES;
    // SAFETY: inside the arrays; the word is read only if its leaf is remembered.
    unsafe {
        let visible = *layout.current;
        let tags = [TranslationLayout::READ_TAGS, TranslationLayout::WRITE_TAGS];
        let [read, write] = tags.map(|tags| visible.byte_add(tags).add(slot).read() == leaf);
        let first = (*layout.words.add(slot)).wrapping_add(leaf as usize * SLOTS);
        let word = match read {
            true => AtomicU64::from_ptr(first.cast_mut()).load(Ordering::Acquire),
            false => 0,
        };
        (read, write, word)
    }
}

// For Miri: the addresses stay valid while the library writes through them and moves their owner.
#[test]
fn the_addresses_stay_good_through_changes_and_moves() {
    let domain = Domain::new();
    let mut translator = Translator::new(&domain, 1);
    let layout = TranslationLayout::of(&translator);
    let words: [AtomicU64; SLOTS] = std::array::from_fn(|number| AtomicU64::new(number as u64 + 7));
    // SAFETY: here and below, the translator lives and is not being used.
    let look = |leaf| unsafe { seen(&layout, leaf) };
    assert_eq!(look(3), (false, false, 0));
    translator.enter_and_drain();
    translator.fill(3 << LEAF_SHIFT, &words, false);
    assert_eq!(look(3), (true, false, 7));
    words[0].store(8, Ordering::Release);
    assert_eq!(look(3), (true, false, 8));
    translator.sections.leave();
    let mut moved = Box::new(translator);
    moved.enter_and_drain();
    moved.fill(3 << LEAF_SHIFT, &words, true);
    assert_eq!(look(3), (true, true, 8));
    moved.sections.leave();
    // SAFETY: as above.
    let has_mail = || unsafe { *layout.current } != layout.tags;
    assert!(!has_mail());
    moved.sections.participant().post(Post::One(4));
    assert!(has_mail());
    assert_eq!(look(3), (false, false, 0));
    moved.enter_and_drain();
    assert!(!has_mail());
    assert_eq!(look(3), (true, true, 8));
    moved.sections.leave();
    moved.sections.participant().post(Post::One(3));
    moved.enter_and_drain();
    assert!(!has_mail());
    assert_eq!(look(3), (false, false, 0));
    moved.sections.leave();
}

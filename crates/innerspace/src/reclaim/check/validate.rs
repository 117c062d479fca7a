//! Recomputing what the pool caches, for tests and fuzzers. No other thread may use the pool
//! meanwhile.

use std::collections::HashMap;

use crate::frame::Kind;
use crate::group::GroupId;
use crate::reclaim::lists::{ListKind, LruState, pages_of};
use crate::reclaim::pool::Pool;
use crate::units::FrameId;

impl Pool {
    /// Checks lists, places, batches, charges and frames against each other.
    ///
    /// # Panics
    /// Where they disagree, naming the frame or group.
    pub(crate) fn validate(&self) {
        self.frames.validate();
        self.groups
            .validate()
            .unwrap_or_else(|message| panic!("{message}"));
        let mut listed = HashMap::new();
        for group in self.groups.subtree(GroupId::ROOT) {
            self.validate_lists(group, &mut listed);
        }
        for (number, id) in self.lru.waiting() {
            let state = LruState::Batch(number);
            // Otherwise it was taken out. It may have come twice.
            if LruState::load(self.frames.meta(id)) == state {
                let before = listed.insert(id, state);
                assert!(
                    before.is_none_or(|before| before == state),
                    "{id:?} is in two places"
                );
            }
        }
        self.validate_frames(&listed);
    }

    fn validate_lists(&self, group: GroupId, listed: &mut HashMap<FrameId, LruState>) {
        let metas = self.frames.metas();
        let locked = self.lru.lock(group);
        let sizes = self.lru.sizes(group);
        assert_eq!(
            locked.isolated(),
            0,
            "group {}: frames are isolated",
            group.0
        );
        for kind in ListKind::ALL {
            let list = locked.list(kind);
            let (mut frames, mut pages) = (0, 0);
            let mut next = list.front();
            while let Some(id) = next {
                let meta = &metas[id.index()];
                let place = LruState::List(kind);
                assert_eq!(
                    LruState::load(meta),
                    place,
                    "{id:?} on a list of group {}",
                    group.0
                );
                assert_eq!(meta.group(), group.0, "{id:?} is on another group's list");
                if kind != ListKind::Unevictable {
                    assert_eq!(
                        ListKind::by_flags(meta),
                        kind,
                        "{id:?}: flag ACTIVE and list disagree"
                    );
                }
                assert!(
                    listed.insert(id, place).is_none(),
                    "{id:?} is in two places"
                );
                frames += 1;
                pages += pages_of(meta);
                next = list.after(metas, id);
            }
            assert_eq!(
                frames,
                list.len(),
                "group {}: frames on the {kind:?} list",
                group.0
            );
            assert_eq!(
                pages,
                sizes.of(kind).0,
                "group {}: pages on the {kind:?} list",
                group.0
            );
        }
    }

    /// Every frame that says it is somewhere is there, and every published frame is charged (I3).
    fn validate_frames(&self, listed: &HashMap<FrameId, LruState>) {
        let mut charged: HashMap<u16, (u64, u64)> = HashMap::new();
        let mut number = 1;
        while number < self.frames.arena_frames() {
            let id = FrameId(number);
            let meta = self.frames.meta(id);
            let kind = meta.kind();
            number += match kind {
                Kind::Part | Kind::Free | Kind::Magazine | Kind::Zero => 1,
                _ => 1 << meta.order(),
            };
            if !kind.is_live() || kind == Kind::Owned {
                continue;
            }
            let expected = listed.get(&id).copied().unwrap_or(LruState::None);
            assert_eq!(
                LruState::load(meta),
                expected,
                "{id:?} is not where it says"
            );
            let sums = charged.entry(meta.group()).or_default();
            sums.0 += pages_of(meta);
            if kind.has_words() {
                sums.1 += pages_of(meta);
            }
        }
        for (group, (pages, tables)) in charged {
            let group = GroupId(group);
            let own = self.groups.own(group).0;
            assert!(
                pages <= own,
                "group {}: {pages} pages in frames, {own} charged (I3)",
                group.0
            );
            assert_eq!(
                tables,
                self.groups.tables(group).0,
                "group {}: table pages",
                group.0
            );
        }
    }
}

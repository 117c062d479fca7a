//! Recomputes the data that the pool caches, for tests and fuzzers. No other thread may use the
//! pool meanwhile.

use std::collections::HashMap;

use crate::frame::Kind;
use crate::group::GroupId;
use crate::reclaim::lists::{ListKind, LruState, pages_of};
use crate::reclaim::pool::Pool;
use crate::units::FrameId;

/// The place where each listed frame was found.
type Listed = HashMap<FrameId, LruState>;

impl Pool {
    /// Checks lists, states, batches, charges and frames against each other.
    ///
    /// # Panics
    /// If they disagree. The message names the frame or group.
    pub(crate) fn validate(&self) {
        self.frames.validate();
        self.groups
            .validate()
            .unwrap_or_else(|message| panic!("{message}"));
        let mut listed = Listed::new();
        for group in self.groups.subtree(GroupId::ROOT) {
            self.validate_lists(group, &mut listed);
        }
        for (number, id) in self.lru.waiting() {
            let state = LruState::Batch(number);
            // A number with another state was removed from the batch. A number may be there twice.
            if LruState::load(self.frames.meta(id)) == state {
                let before = listed.insert(id, state).unwrap_or(state);
                assert_eq!(before, state, "{id:?} is in two places");
            }
        }
        self.validate_frames(&listed);
    }

    fn validate_lists(&self, group: GroupId, listed: &mut Listed) {
        let metas = self.frames.metas();
        let locked = self.lru.lock(group);
        let sizes = self.lru.sizes(group);
        assert_eq!(locked.isolated(), 0, "isolated pages of group {}", group.0);
        for kind in ListKind::ALL {
            let list = locked.list(kind);
            let name = format!("the {kind:?} list of group {}", group.0);
            let mut pages = 0;
            let mut next = list.front();
            while let Some(id) = next {
                let meta = &metas[id.index()];
                let state = LruState::List(kind);
                assert_eq!(LruState::load(meta), state, "{id:?} on {name}");
                assert_eq!(meta.group(), group.0, "{id:?} on {name}");
                if kind != ListKind::Unevictable {
                    let by_flags = ListKind::by_flags(meta);
                    assert_eq!(by_flags, kind, "{id:?}: flag ACTIVE and list disagree");
                }
                let before = listed.insert(id, state);
                assert_eq!(before, None, "{id:?} is in two places");
                pages += pages_of(meta);
                next = list.after(metas, id);
            }
            let counted = match kind {
                ListKind::Inactive => sizes.inactive,
                ListKind::Active => sizes.active,
                ListKind::Unevictable => sizes.unevictable,
            };
            assert_eq!(pages, counted.0, "pages on {name}");
        }
    }

    /// Checks that every frame is where its state says, and that every published frame is charged
    /// (I3).
    fn validate_frames(&self, listed: &Listed) {
        let mut charged: HashMap<u16, (u64, u64)> = HashMap::new();
        let mut number = 1;
        while number < self.frames.arena_frames() {
            let id = FrameId(number);
            let meta = self.frames.meta(id);
            let kind = meta.kind();
            number += match kind {
                Kind::Part | Kind::Free | Kind::Magazine | Kind::Fresh | Kind::Zero => 1,
                _ => 1 << meta.order(),
            };
            if !kind.is_live() || kind == Kind::Owned {
                continue;
            }
            let expected = listed.get(&id).copied().unwrap_or(LruState::None);
            assert_eq!(LruState::load(meta), expected, "{id:?} is not there");
            let (pages, tables) = charged.entry(meta.group()).or_default();
            *pages += pages_of(meta);
            if kind.has_words() {
                *tables += pages_of(meta);
            }
        }
        for (number, (pages, tables)) in charged {
            let group = GroupId(number);
            let own = self.groups.own(group).0;
            assert!(
                pages <= own,
                "group {number}: {pages} pages in frames, {own} charged (I3)"
            );
            let counted = self.groups.tables(group).0;
            assert_eq!(tables, counted, "table pages of group {number}");
        }
    }
}

//! Compares the index with plain maps, and checks the forms that a tree takes.

use std::collections::BTreeMap;

use super::*;

/// Nodes on the heap, with numbers from 1.
struct TestNodes {
    words: Vec<Box<[AtomicU64; NODE_WORDS]>>,
    live: Vec<AtomicU64>,
    free: Vec<FrameId>,
    tags: std::sync::Mutex<BTreeMap<FrameId, Tag>>,
}

impl TestNodes {
    fn new(count: usize) -> TestNodes {
        TestNodes {
            words: (0..count)
                .map(|_| Box::new([const { AtomicU64::new(0) }; NODE_WORDS]))
                .collect(),
            live: (0..count).map(|_| AtomicU64::new(0)).collect(),
            free: (1..=count as u32).map(FrameId).collect(),
            tags: std::sync::Mutex::default(),
        }
    }

    /// Returns the frames that have tags, with these tags.
    fn tagged(&self) -> BTreeMap<FrameId, u64> {
        let tags = self.tags.lock().unwrap();
        let tagged = tags.iter().filter(|(_, tag)| **tag != Tag::NONE);
        tagged.map(|(frame, tag)| (*frame, tag.number())).collect()
    }

    fn take(&mut self) -> FrameId {
        let node = self.free.pop().expect("enough nodes");
        self.words(node)
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        node
    }
}

impl Nodes for TestNodes {
    fn words(&self, node: FrameId) -> &[AtomicU64; NODE_WORDS] {
        &self.words[node.index() - 1]
    }
    fn live(&self, node: FrameId) -> u32 {
        self.live[node.index() - 1].load(Ordering::Relaxed) as u32
    }
    fn set_live(&self, node: FrameId, live: u32) {
        self.live[node.index() - 1].store(u64::from(live), Ordering::Relaxed);
    }
    fn set_tag(&self, frame: FrameId, tag: Tag) {
        self.tags.lock().unwrap().insert(frame, tag);
    }
}

/// Inserts one block with the nodes that it needs. Returns the shadow that it replaced, or `Err` if
/// another block is there.
fn insert(index: &Index, nodes: &mut TestNodes, block: u64, frame: u32) -> Result<Option<u64>, ()> {
    let ids = [FrameId(frame)];
    let (mut spares, mut shadows) = (Vec::new(), Vec::new());
    loop {
        let mut writer = index.write();
        let result = writer.insert(nodes, block, &ids, &mut spares, &mut shadows);
        drop(writer);
        let Some(need) = result.need_nodes else {
            nodes.free.append(&mut spares);
            let done = result.blocks == 1;
            return done.then(|| shadows.pop()).ok_or(());
        };
        while spares.len() < need {
            spares.push(nodes.take());
        }
    }
}

fn remove(index: &Index, nodes: &mut TestNodes, block: u64, frame: u32, shadow: Option<u64>) {
    let mut freed = Vec::new();
    index
        .write()
        .remove(nodes, block, FrameId(frame), shadow, &mut freed);
    nodes.free.append(&mut freed);
}

#[test]
fn words_come_apart_as_they_were_put_together() {
    for word in [
        Word::Empty,
        Word::Block(FrameId(u32::MAX)),
        Word::Shadow((1 << 60) - 1),
        Word::Node(FrameId(7), MAX_HEIGHT),
    ] {
        assert_eq!(Word::decode(word.encode()), word);
    }
    assert_eq!(
        [
            height_for(0),
            height_for(1),
            height_for(511),
            height_for(512)
        ],
        [0, 1, 1, 2]
    );
    assert_eq!(height_for((1 << 51) - 1), MAX_HEIGHT);
}

#[test]
fn a_file_of_one_block_needs_no_node() {
    let mut nodes = TestNodes::new(0);
    let index = Index::default();
    assert_eq!(insert(&index, &mut nodes, 0, 5), Ok(None));
    assert_eq!(index.load(&nodes, 0), Word::Block(FrameId(5)));
    assert_eq!(index.load(&nodes, 1), Word::Empty);
    assert_eq!(insert(&index, &mut nodes, 0, 6), Err(()));
    remove(&index, &mut nodes, 0, 5, None);
    assert_eq!(index.counts(), Counts::default());
}

// spec: P7
#[test]
fn a_shadow_reads_as_absent_and_a_create_replaces_it() {
    let mut nodes = TestNodes::new(4);
    let index = Index::default();
    insert(&index, &mut nodes, 3, 30).unwrap();
    insert(&index, &mut nodes, 4, 40).unwrap();
    remove(&index, &mut nodes, 3, 30, Some(99));
    assert_eq!(index.load(&nodes, 3), Word::Shadow(99));
    assert_eq!(index.next_block(&nodes, 0, 10), Some((4, FrameId(40))));
    assert_eq!(
        index.counts(),
        Counts {
            blocks: 1,
            shadows: 1,
            nodes: 1
        }
    );
    index.validate(&nodes);
    assert_eq!(insert(&index, &mut nodes, 3, 31), Ok(Some(99)));
    assert_eq!(
        index.counts(),
        Counts {
            blocks: 2,
            shadows: 0,
            nodes: 1
        }
    );
    index.validate(&nodes);
    // The shadows in a node are dropped with its last block.
    remove(&index, &mut nodes, 3, 31, Some(100));
    remove(&index, &mut nodes, 4, 40, Some(101));
    assert_eq!(index.counts(), Counts::default());
    assert_eq!(nodes.free.len(), 4);
}

#[test]
fn it_agrees_with_a_map_through_growth_and_removal() {
    let mut nodes = TestNodes::new(200);
    let index = Index::ranked(Rank::Index, Tags::of_file(1));
    let mut model: BTreeMap<u64, u32> = BTreeMap::new();
    let mut random = 12345u64;
    for step in 0..4000u32 {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let spread = [3, 9, 12, 20, 40, 51][(random >> 60) as usize % 6];
        let block = (random >> 8) & ((1 << spread) - 1);
        match model.get(&block).copied() {
            Some(frame) => {
                let shadow = (step % 3 == 0).then_some(u64::from(step));
                remove(&index, &mut nodes, block, frame, shadow);
                model.remove(&block);
            }
            None if model.len() < 30 => {
                let done = insert(&index, &mut nodes, block, step + 1);
                assert!(done.is_ok());
                model.insert(block, step + 1);
            }
            None => {
                let (old, frame) = model.pop_first().expect("30 of them");
                remove(&index, &mut nodes, old, frame, None);
            }
        }
        if step % 64 == 0 {
            index.validate(&nodes);
        }
        assert_eq!(index.counts().blocks, model.len() as u64);
        let from = block.saturating_sub(5);
        let next = model
            .range(from..)
            .next()
            .map(|(block, frame)| (*block, FrameId(*frame)));
        assert_eq!(index.next_block(&nodes, from, u64::MAX), next);
        if step % 64 == 0 {
            let tag = |(block, frame): (&u64, &u32)| {
                (FrameId(*frame), index.tags().given(*block).number())
            };
            let mut expected: BTreeMap<FrameId, u64> = model.iter().map(tag).collect();
            expected.retain(|_, tag| *tag != Tag::NONE.number());
            assert_eq!(nodes.tagged(), expected, "I10: tags are in step");
        }
    }
    for (block, frame) in &model {
        assert_eq!(index.load(&nodes, *block), Word::Block(FrameId(*frame)));
    }
    index.write().drop_shadows(&nodes, 0);
    assert_eq!(index.counts().shadows, 0);
    index.validate(&nodes);
}

#[test]
fn a_block_that_moves_takes_its_tag_along() {
    let mut nodes = TestNodes::new(4);
    let index = Index::ranked(Rank::Index, Tags::of_file(1));
    insert(&index, &mut nodes, 3, 30).unwrap();
    index.write().replace(&nodes, 3, FrameId(30), FrameId(31));
    let tag = index.tags().given(3).number();
    assert_eq!(nodes.tagged(), BTreeMap::from([(FrameId(31), tag)]));
}

#[test]
fn a_run_goes_in_as_its_blocks_would_and_ends_at_one_that_is_there() {
    let [mut nodes, mut single_nodes] = [(); 2].map(|()| TestNodes::new(64));
    let [index, singles] = [(); 2].map(|()| Index::ranked(Rank::Index, Tags::of_file(1)));
    let mut random = 99u64;
    for step in 0..400u32 {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        // These places are around the borders of nodes, and where the tree grows.
        let near = [0, 505, 1_015, 5_000][(random >> 61) as usize % 4];
        let first = near + (random >> 8) % 20;
        if step % 5 == 4 {
            for (index, nodes) in [(&index, &mut nodes), (&singles, &mut single_nodes)] {
                if let Word::Block(frame) = index.load(nodes, first) {
                    remove(index, nodes, first, frame.0, Some(u64::from(step)));
                }
            }
            continue;
        }
        let ids: Vec<FrameId> = (1..=(random >> 20) as u32 % 16)
            .map(|id| FrameId(step * 16 + id))
            .collect();
        let (mut spares, mut shadows, mut done) = (Vec::new(), Vec::new(), 0);
        loop {
            let inserted = index.write().insert(
                &nodes,
                first + done as u64,
                &ids[done..],
                &mut spares,
                &mut shadows,
            );
            done += inserted.blocks;
            let Some(need) = inserted.need_nodes else {
                break;
            };
            while spares.len() < need {
                spares.push(nodes.take());
            }
        }
        nodes.free.append(&mut spares);
        let mut replaced = Vec::new();
        let one_by_one = (first..).zip(&ids).take_while(|(block, id)| {
            match insert(&singles, &mut single_nodes, *block, id.0) {
                Ok(shadow) => replaced.extend(shadow),
                Err(()) => return false,
            }
            true
        });
        assert_eq!(done, one_by_one.count());
        assert_eq!(shadows, replaced);
        assert_eq!(index.counts(), singles.counts());
        assert_eq!(nodes.tagged(), single_nodes.tagged());
        index.validate(&nodes);
        for block in first..first + 20 {
            assert_eq!(
                index.load(&nodes, block),
                singles.load(&single_nodes, block)
            );
        }
        let (from, to) = (first.saturating_sub(30), first + 10);
        let scanned = (from..to).find_map(|block| match index.load(&nodes, block) {
            Word::Block(frame) => Some((block, frame)),
            _ => None,
        });
        assert_eq!(index.next_block(&nodes, from, to), scanned);
    }
}

/// Returns the number of nodes that an insertion requests if it is given none.
fn nodes_for(index: &Index, nodes: &TestNodes, block: u64) -> Option<usize> {
    let (none, shadows) = (&mut Vec::new(), &mut Vec::new());
    let refused = index
        .write()
        .insert(nodes, block, &[FrameId(1)], none, shadows);
    assert_eq!(refused.blocks, 0);
    refused.need_nodes
}

#[test]
fn a_missing_node_is_asked_for_before_anything_changes() {
    let mut nodes = TestNodes::new(10);
    let index = Index::default();
    assert_eq!(nodes_for(&index, &nodes, 513), Some(2));
    insert(&index, &mut nodes, 0, 9).unwrap();
    assert_eq!(nodes_for(&index, &nodes, 513), Some(3));
    assert_eq!(
        index.counts(),
        Counts {
            blocks: 1,
            shadows: 0,
            nodes: 0
        }
    );
    insert(&index, &mut nodes, 513, 1).unwrap();
    assert_eq!(index.load(&nodes, 0), Word::Block(FrameId(9)));
    assert_eq!(
        index.counts(),
        Counts {
            blocks: 2,
            shadows: 0,
            nodes: 3
        }
    );
    index.validate(&nodes);
}

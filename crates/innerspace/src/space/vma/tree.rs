//! A persistent tree of ranges with wide nodes, which stores the mappings of a space.
//!
//! This is a B+ tree over ranges that do not overlap, up to [`WIDTH`] in a node, keyed by their
//! ends: addresses, or any other ordered type. A tree is a value: cloning it takes one reference,
//! and a change of a clone copies only the O(log n) nodes on the way. A reader's clone never
//! changes, whatever happens to other clones; a space publishes a new root (`sync::rcu_cell`), and
//! a fork keeps the parent's. A node that only one clone has is changed in place, so a run of
//! changes copies each node at most once.
//!
//! An inner node records, for each child, where the ranges below it start and end, and one number:
//! the greatest of the gaps between neighbouring ranges and of the ranges' own numbers
//! ([`Ranged::most`]). A mapping's own number is 0, and so is every gap of the reverse map. So a
//! free range is found without reading the ranges, and a search skips the children that cannot have
//! what it looks for.
//!
//! Nodes are counted in a [`Ledger`], which charges a group for them.

mod gap;
#[cfg(all(test, not(shuttle)))]
mod tests;

use arrayvec::ArrayVec;

use super::ledger::{Entry, Ledger};
use crate::sync::Arc;

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/tree.rs"]
mod validate;

/// The most ranges or children in a node. Small under shuttle, so that small models split and merge
/// nodes.
pub(crate) const WIDTH: usize = if cfg!(shuttle) { 4 } else { 16 };
/// The fewest ranges or children in a node other than the root.
const LEAST: usize = if WIDTH / 2 > 2 { WIDTH / 2 - 1 } else { 2 };
/// More levels than a tree of 2^36 pages can have.
const MAX_TREE_DEPTH: usize = 24;

/// A range and its data.
pub(crate) trait Ranged: Clone {
    /// The type of a range's start and end.
    type Key: Copy + Ord + std::fmt::Debug;

    fn start(&self) -> Self::Key;

    /// Returns the end, which is above `start`.
    fn end(&self) -> Self::Key;

    /// Returns the range's own number: in the reverse map, the end of its pages in the file;
    /// otherwise 0. [`RangeTree::iter_reaching`] skips subtrees in which every range's number is
    /// too small.
    fn most(&self) -> u64 {
        0
    }

    /// Returns the distance from the end of one range to the start of the next; 0 by default, for
    /// trees in which no gap is searched for.
    fn gap(_end: Self::Key, _start: Self::Key) -> u64 {
        0
    }
}

/// The tree that this module describes.
#[derive(Clone)]
pub(crate) struct RangeTree<V: Ranged> {
    root: Option<Arc<Node<V>>>,
    /// Counts the nodes that changes to this tree create.
    ledger: Arc<Ledger>,
}

struct Node<V: Ranged> {
    body: Body<V>,
    _entry: Entry,
}

#[derive(Clone)]
enum Body<V: Ranged> {
    Leaf(Row<V>),
    Inner(Row<Child<V>>),
}

/// The items of a node, in order.
type Row<T> = ArrayVec<T, WIDTH>;

#[derive(Clone)]
struct Child<V: Ranged> {
    node: Arc<Node<V>>,
    /// The start of the node's first range.
    start: V::Key,
    /// The end of the node's last range.
    end: V::Key,
    /// The greatest of the gaps between neighbouring ranges, and of the ranges' own numbers.
    most: u64,
}

impl<V: Ranged> Ranged for Child<V> {
    type Key = V::Key;

    fn start(&self) -> V::Key {
        self.start
    }

    fn end(&self) -> V::Key {
        self.end
    }

    fn most(&self) -> u64 {
        self.most
    }

    fn gap(end: V::Key, start: V::Key) -> u64 {
        V::gap(end, start)
    }
}

/// Returns the index of the first item that ends above `at`.
fn place<T: Ranged>(row: &Row<T>, at: T::Key) -> usize {
    row.partition_point(|item| item.end() <= at)
}

/// Returns the first start, the last end, and the greatest of the gaps between neighbouring items
/// and of the items' own numbers.
fn bounds<T: Ranged>(row: &Row<T>) -> (T::Key, T::Key, u64) {
    let between = row
        .windows(2)
        .map(|pair| T::gap(pair[0].end(), pair[1].start()));
    let said = row.iter().map(Ranged::most);
    let most = between.chain(said).max().unwrap_or(0);
    (row[0].start(), row[row.len() - 1].end(), most)
}

impl<V: Ranged> Node<V> {
    fn new(body: Body<V>, ledger: &Arc<Ledger>) -> Arc<Node<V>> {
        let _entry = Entry::new(ledger, RangeTree::<V>::NODE_BYTES);
        Arc::new(Node { body, _entry })
    }
}

impl<V: Ranged> Child<V> {
    fn new(node: Arc<Node<V>>) -> Child<V> {
        let (start, end, most) = node.body.bounds();
        Child {
            node,
            start,
            end,
            most,
        }
    }
}

impl<V: Ranged> Body<V> {
    fn len(&self) -> usize {
        match self {
            Body::Leaf(row) => row.len(),
            Body::Inner(row) => row.len(),
        }
    }

    fn bounds(&self) -> (V::Key, V::Key, u64) {
        match self {
            Body::Leaf(row) => bounds(row),
            Body::Inner(row) => bounds(row),
        }
    }
}

/// Returns the body of a node, to be changed. If another tree has the node too, a copy first takes
/// its place.
fn own<'a, V: Ranged>(node: &'a mut Arc<Node<V>>, ledger: &Arc<Ledger>) -> &'a mut Body<V> {
    if Arc::get_mut(node).is_none() {
        *node = Node::new(node.body.clone(), ledger);
    }
    &mut Arc::get_mut(node).expect("nobody else has it").body
}

impl<V: Ranged> RangeTree<V> {
    /// The heap bytes of a node.
    pub(crate) const NODE_BYTES: usize = size_of::<Node<V>>() + 2 * size_of::<usize>();

    /// Creates an empty tree whose nodes are counted in `ledger`.
    pub(crate) fn new(ledger: Arc<Ledger>) -> RangeTree<V> {
        RangeTree { root: None, ledger }
    }

    /// Returns a clone of the tree whose new nodes are counted in `ledger`.
    pub(crate) fn with_ledger(&self, ledger: Arc<Ledger>) -> RangeTree<V> {
        RangeTree {
            ledger,
            ..self.clone()
        }
    }

    /// Returns whether the two trees share their root, or are both empty.
    pub(crate) fn is_clone_of(&self, other: &RangeTree<V>) -> bool {
        match (&self.root, &other.root) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    /// Returns the ledger in which new nodes of this tree are counted.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Returns the first range that ends above `at`. The range may also start above `at`.
    #[inline]
    pub(crate) fn find(&self, at: V::Key) -> Option<&V> {
        let mut node = self.root.as_deref()?;
        loop {
            crate::sync::interleave();
            match &node.body {
                Body::Leaf(row) => return row.get(place(row, at)),
                Body::Inner(row) => node = &row.get(place(row, at))?.node,
            }
        }
    }

    /// Returns the last range that ends at or below `at`.
    pub(crate) fn before(&self, at: V::Key) -> Option<&V> {
        self.root.as_deref()?.before(at)
    }

    /// Returns the ranges that end above `at`, in order.
    pub(crate) fn iter_from(&self, at: V::Key) -> Iter<'_, V> {
        self.iter_reaching(Some(at), 0)
    }

    /// Returns all ranges, in order.
    pub(crate) fn iter(&self) -> Iter<'_, V> {
        self.iter_reaching(None, 0)
    }

    /// Returns, in order, the ranges that end above `at`, or all if it is `None`. Skips subtrees
    /// whose number ([`Child::most`]) is below `least`.
    pub(crate) fn iter_reaching(&self, at: Option<V::Key>, least: u64) -> Iter<'_, V> {
        let mut iter = Iter {
            above: ArrayVec::new(),
            leaf: [].iter(),
            least,
        };
        if let Some(root) = self.root.as_deref() {
            iter.descend(root, at);
        }
        iter
    }

    /// Adds a range that overlaps no other.
    pub(crate) fn insert(&mut self, value: V) {
        let Some(root) = &mut self.root else {
            let row = Row::from_iter([value]);
            self.root = Some(Node::new(Body::Leaf(row), &self.ledger));
            return;
        };
        if let Some(upper) = insert_below(root, value, &self.ledger) {
            let row = Row::from_iter([Child::new(root.clone()), upper]);
            self.root = Some(Node::new(Body::Inner(row), &self.ledger));
        }
    }

    /// Removes the range that contains `at`.
    ///
    /// # Panics
    /// Panics if there is none.
    pub(crate) fn remove(&mut self, at: V::Key) {
        let root = self.root.as_mut().expect("a range to remove");
        remove_below(root, at, &self.ledger);
        let lone = match &root.body {
            Body::Leaf(row) => row.is_empty().then_some(None),
            Body::Inner(row) => (row.len() == 1).then(|| Some(row[0].node.clone())),
        };
        if let Some(new_root) = lone {
            self.root = new_root;
        }
    }
}

fn insert_below<V: Ranged>(
    node: &mut Arc<Node<V>>,
    value: V,
    ledger: &Arc<Ledger>,
) -> Option<Child<V>> {
    match own(node, ledger) {
        Body::Leaf(row) => {
            let upper = insert_item(row, place(row, value.start()), value);
            upper.map(|upper| Child::new(Node::new(Body::Leaf(upper), ledger)))
        }
        Body::Inner(row) => {
            let place = place(row, value.start()).min(row.len() - 1);
            let split = insert_below(&mut row[place].node, value, ledger);
            row[place] = Child::new(row[place].node.clone());
            let upper = insert_item(row, place + 1, split?);
            upper.map(|upper| Child::new(Node::new(Body::Inner(upper), ledger)))
        }
    }
}

/// Inserts an item into a row at `place`. If the row is full, splits it and returns the upper half.
fn insert_item<T: Ranged>(row: &mut Row<T>, place: usize, item: T) -> Option<Row<T>> {
    if !row.is_full() {
        row.insert(place, item);
        return None;
    }
    let mut upper: Row<T> = row.drain(WIDTH / 2..).collect();
    match place.checked_sub(row.len()) {
        Some(place) if place > 0 => upper.insert(place, item),
        _ => row.insert(place, item),
    }
    Some(upper)
}

fn remove_below<V: Ranged>(node: &mut Arc<Node<V>>, at: V::Key, ledger: &Arc<Ledger>) {
    match own(node, ledger) {
        Body::Leaf(row) => {
            let place = place(row, at);
            assert!(row[place].start() <= at, "a range to remove");
            row.remove(place);
        }
        Body::Inner(row) => {
            let place = place(row, at);
            remove_below(&mut row[place].node, at, ledger);
            match row[place].node.body.len() < LEAST {
                true => rebalance(row, place, ledger),
                false => row[place] = Child::new(row[place].node.clone()),
            }
        }
    }
}

/// Merges a child that has too few items with a neighbour, or shares their items evenly.
fn rebalance<V: Ranged>(row: &mut Row<Child<V>>, place: usize, ledger: &Arc<Ledger>) {
    let left = place.min(row.len() - 2);
    let (lower, upper) = match (&row[left].node.body, &row[left + 1].node.body) {
        (Body::Leaf(a), Body::Leaf(b)) => {
            let (lower, upper) = shared_out(a, b);
            (Body::Leaf(lower), upper.map(Body::Leaf))
        }
        (Body::Inner(a), Body::Inner(b)) => {
            let (lower, upper) = shared_out(a, b);
            (Body::Inner(lower), upper.map(Body::Inner))
        }
        _ => unreachable!("all leaves have the same depth"),
    };
    row[left] = Child::new(Node::new(lower, ledger));
    match upper {
        Some(upper) => row[left + 1] = Child::new(Node::new(upper, ledger)),
        None => drop(row.remove(left + 1)),
    }
}

fn shared_out<T: Ranged>(a: &Row<T>, b: &Row<T>) -> (Row<T>, Option<Row<T>>) {
    let mut all = a.iter().chain(b).cloned();
    let count = a.len() + b.len();
    if count <= WIDTH {
        return (all.collect(), None);
    }
    let lower = all.by_ref().take(count / 2).collect();
    (lower, Some(all.collect()))
}

impl<V: Ranged> Node<V> {
    fn before(&self, at: V::Key) -> Option<&V> {
        match &self.body {
            Body::Leaf(row) => row.get(place(row, at).checked_sub(1)?),
            Body::Inner(row) => {
                let place = place(row, at);
                let inside = row.get(place).and_then(|child| child.node.before(at));
                inside.or_else(|| row[place.checked_sub(1)?].node.last())
            }
        }
    }

    fn last(&self) -> Option<&V> {
        match &self.body {
            Body::Leaf(row) => row.last(),
            Body::Inner(row) => row.last()?.node.last(),
        }
    }
}

/// An iterator over ranges in order; see [`RangeTree::iter_reaching`].
pub(crate) struct Iter<'a, V: Ranged> {
    /// For each level above the leaf, the children still to visit.
    above: ArrayVec<std::slice::Iter<'a, Child<V>>, MAX_TREE_DEPTH>,
    leaf: std::slice::Iter<'a, V>,
    /// Children whose number ([`Child::most`]) is smaller are skipped.
    least: u64,
}

impl<'a, V: Ranged> Iter<'a, V> {
    fn descend(&mut self, mut node: &'a Node<V>, at: Option<V::Key>) {
        loop {
            match &node.body {
                Body::Leaf(row) => {
                    self.leaf = row[at.map_or(0, |at| place(row, at))..].iter();
                    return;
                }
                Body::Inner(row) => {
                    let mut rest = row[at.map_or(0, |at| place(row, at))..].iter();
                    let Some(child) = rest.find(|child| child.most >= self.least) else {
                        return;
                    };
                    self.above.push(rest);
                    node = &child.node;
                }
            }
        }
    }
}

impl<'a, V: Ranged> Iterator for Iter<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        loop {
            if let Some(value) = self.leaf.next() {
                return Some(value);
            }
            let least = self.least;
            match self.above.last_mut()?.find(|child| child.most >= least) {
                Some(child) => self.descend(&child.node, None),
                None => drop(self.above.pop()),
            }
        }
    }
}

//! The operations, as data that can be drawn and shrunk. Numbers are taken modulo the number of
//! objects.

use innerspace::store::faulty::{AfterTear, Failure, Fault, OperationKind};
use proptest::collection::vec;
use proptest::prelude::*;

/// A place in a space. An even number means a page of the window, an odd one a page that is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) page: u16,
    pub(crate) offset: u16,
}

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) file: u8,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    Anonymous,
    Private,
    Shared,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    Chosen,
    Free,
    Replacing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    Nothing,
    Read,
    Write,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Width {
    One,
    Four,
    Eight,
    Sixteen,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ViewKind {
    View,
    Try,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SyncKind {
    Data,
    All,
    Range,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Read(Part),
    Scan(Part),
    Write(Part, u8),
    Append(Part, u8),
    View(Part, ViewKind),
    DropView(u8),
    SetLen(Part),
    Punch(Part),
    Sync(Part, SyncKind),
    Evict(Part),
    Invalidate(Part),
    Prefetch(Part),
    Reclaim(u16),
    Tick,
    Map {
        space: u8,
        backing: Backing,
        part: Part,
        pages: u8,
        place: Place,
        at: Where,
        allowed: Allowed,
    },
    Unmap(u8, Place, u8),
    Protect(u8, Place, u8, Allowed),
    Fork(u8),
    DropSpace(u8),
    Load(u8, Place, Width),
    Store(u8, Place, Width, u64),
    Exchange(u8, Place, u64),
    ReadBytes(u8, Place, u16),
    WriteBytes(u8, Place, u16, u8),
    Fill(u8, Place, u16, u8),
    Copy(u8, Place, Place, u16),
    Session(u8, Vec<(Place, u64)>),
    Break {
        file: u8,
        kind: OperationKind,
        fault: Fault,
        nth: u8,
        times: u8,
    },
    Heal(u8),
}

fn place() -> impl Strategy<Value = Place> {
    // Offsets are often near a page's ends.
    let offset = prop_oneof![3 => 0u16..4096, 1 => 0u16..24, 2 => 4072u16..4096];
    (any::<u16>(), offset).prop_map(|(page, offset)| Place { page, offset })
}

fn part() -> impl Strategy<Value = Part> {
    let len = prop_oneof![
        4 => 0u32..300,
        3 => 0u32..9_000,
        2 => 0u32..100_000,
        1 => Just(4096u32),
    ];
    let offset = prop_oneof![3 => any::<u32>(), 1 => (0u32..80).prop_map(|page| page * 4096)];
    (any::<u8>(), offset, len).prop_map(|(file, offset, len)| Part { file, offset, len })
}

fn allowed() -> impl Strategy<Value = Allowed> {
    prop_oneof![1 => Just(Allowed::Nothing), 2 => Just(Allowed::Read), 5 => Just(Allowed::Write)]
}

fn width() -> impl Strategy<Value = Width> {
    use Width::*;
    prop_oneof![Just(One), Just(Four), Just(Eight), Just(Sixteen)]
}

fn map() -> impl Strategy<Value = Op> {
    use self::Backing::*;
    let backing = prop_oneof![2 => Just(Anonymous), 3 => Just(Private), 4 => Just(Shared)];
    let at = prop_oneof![
        Just(Where::Chosen),
        Just(Where::Free),
        Just(Where::Replacing)
    ];
    let all = (
        any::<u8>(),
        backing,
        part(),
        1u8..24,
        place(),
        at,
        allowed(),
    );
    all.prop_map(
        |(space, backing, part, pages, place, at, allowed)| Op::Map {
            space,
            backing,
            part,
            pages,
            place,
            at,
            allowed,
        },
    )
}

fn fault() -> impl Strategy<Value = Op> {
    use OperationKind::*;
    let failing = prop_oneof![
        3 => Just(Read),
        5 => Just(Write),
        1 => Just(Sync),
        2 => Just(SetLen),
        2 => Just(Punch),
        1 => Just(Seek),
        1 => Just(Len),
    ];
    let failure = prop_oneof![
        3 => Just(Failure::Io),
        2 => Just(Failure::NoSpace),
        1 => Just(Failure::Interrupted),
    ];
    let plain = (failing, failure).prop_map(|(kind, failure)| (kind, Fault::Fail(failure)));
    let short = prop_oneof![Just(Read), Just(Write)].prop_map(|kind| (kind, Fault::Short));
    let then = AfterTear::Fail;
    let tear = (0u64..20).prop_map(move |sectors| (Write, Fault::Tear { sectors, then }));
    let which = prop_oneof![6 => plain, 1 => short, 1 => tear];
    (any::<u8>(), which, 1u8..8, 1u8..6).prop_map(|(file, (kind, fault), nth, times)| Op::Break {
        file,
        kind,
        fault,
        nth,
        times,
    })
}

fn file_op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![3 => Just(ViewKind::View), 1 => Just(ViewKind::Try)];
    let sync = prop_oneof![
        Just(SyncKind::Data),
        Just(SyncKind::All),
        Just(SyncKind::Range)
    ];
    prop_oneof![
        4 => part().prop_map(Op::Read),
        2 => part().prop_map(Op::Scan),
        8 => (part(), any::<u8>()).prop_map(|(part, byte)| Op::Write(part, byte)),
        1 => (part(), any::<u8>()).prop_map(|(part, byte)| Op::Append(part, byte)),
        4 => (part(), kind).prop_map(|(part, kind)| Op::View(part, kind)),
        2 => any::<u8>().prop_map(Op::DropView),
        3 => part().prop_map(Op::SetLen),
        3 => part().prop_map(Op::Punch),
        3 => (part(), sync).prop_map(|(part, kind)| Op::Sync(part, kind)),
        2 => part().prop_map(Op::Evict),
        1 => part().prop_map(Op::Invalidate),
        1 => part().prop_map(Op::Prefetch),
        1 => any::<u16>().prop_map(Op::Reclaim),
        1 => Just(Op::Tick),
    ]
}

fn space_op() -> impl Strategy<Value = Op> {
    let s = any::<u8>;
    let session = vec((place(), any::<u64>()), 1..6);
    let len = || prop_oneof![3 => 0u16..200, 2 => 0u16..20_000];
    prop_oneof![
        6 => map(),
        2 => (s(), place(), 1u8..16).prop_map(|(s, at, pages)| Op::Unmap(s, at, pages)),
        2 => (s(), place(), 1u8..8, allowed()).prop_map(|(s, at, pages, to)| Op::Protect(s, at, pages, to)),
        2 => s().prop_map(Op::Fork),
        1 => s().prop_map(Op::DropSpace),
        5 => (s(), place(), width()).prop_map(|(s, at, width)| Op::Load(s, at, width)),
        7 => (s(), place(), width(), any::<u64>()).prop_map(|(s, at, w, value)| Op::Store(s, at, w, value)),
        2 => (s(), place(), any::<u64>()).prop_map(|(s, at, value)| Op::Exchange(s, at, value)),
        3 => (s(), place(), len()).prop_map(|(s, at, len)| Op::ReadBytes(s, at, len)),
        4 => (s(), place(), len(), any::<u8>()).prop_map(|(s, at, len, byte)| Op::WriteBytes(s, at, len, byte)),
        1 => (s(), place(), len(), any::<u8>()).prop_map(|(s, at, len, byte)| Op::Fill(s, at, len, byte)),
        1 => (s(), place(), place(), len()).prop_map(|(s, to, from, len)| Op::Copy(s, to, from, len)),
        1 => (s(), session).prop_map(|(s, stores)| Op::Session(s, stores)),
    ]
}

/// Draws the memory's limit in bytes: the smallest possible, with which operations often lack
/// memory, or a larger one.
pub(crate) fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![Just(256 << 10), Just(384 << 10), Just(1 << 20)]
}

/// Draws the steps of one case.
pub(crate) fn operations(len: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => file_op(),
        12 => space_op(),
        1 => fault(),
        1 => any::<u8>().prop_map(Op::Heal),
    ];
    vec(op, 1..=len)
}

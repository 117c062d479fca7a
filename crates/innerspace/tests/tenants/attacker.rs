//! A: every safe call of a tenant, in large numbers and with foreign code that misbehaves.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use innerspace::{
    Group, KIB, MIB, Map, Memory, PAGE_SIZE,
    space::{Advice, AtFork},
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::BOUND;
use crate::calls::{self, Call};
use crate::foreign::Conduct;
use crate::held::{Ended, Held, own};

const PAGE: u64 = PAGE_SIZE as u64;

/// One hostile act. A number says how many times, or how many objects.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Calls of the API, with arguments of any kind.
    Calls(Vec<Call>),
    Accessors(u16),
    Files(u16, Conduct, Conduct),
    Handles(u16),
    Direct(u16),
    Readers(u16),
    Groups(u16),
    Nested(u16),
    /// Futures that are polled once, with a waker of this conduct.
    Ready(u16, Conduct),
    Tasks(u16, Conduct),
    Watches(u16, Conduct),
    Spaces(u16),
    Maps(u16),
    Pins(u16),
    Views(u16),
    Forks(u16),
    Snapshots(u16),
    /// Writes this many pages to a file whose store writes with this conduct.
    Dirty(u16, Conduct),
    Sync(Conduct),
    ReadBy(Conduct),
    Cut,
    Punches(u16),
    Anonymous(u16),
    Device(Conduct),
    /// A session of a space of A's own, held open.
    Session,
    Max(u32),
    Min(u32),
    Low(u32),
    High(u32),
    Reclaim(u32),
    /// A read of more bytes than any memory has, as a call in the background.
    Huge,
    DropHalf,
    DropAll,
}

pub(crate) fn acts() -> impl Strategy<Value = Act> {
    let conduct = || {
        prop_oneof![
            Just(Conduct::Works),
            Just(Conduct::Hangs),
            Just(Conduct::Panics),
            Just(Conduct::Fails),
            Just(Conduct::Lies),
        ]
    };
    let call = (0..calls::count(), any::<u32>()).prop_map(|(which, with)| Call::new(which, with));
    let many = || prop_oneof![4 => 1..40_u16, 1 => 40..3000_u16];
    let bytes = || prop_oneof![0..64 * KIB as u32, 0..u32::MAX];
    let crowds = prop_oneof![
        many().prop_map(Act::Accessors),
        (many(), conduct(), conduct()).prop_map(|(n, r, w)| Act::Files(n, r, w)),
        many().prop_map(Act::Handles),
        many().prop_map(Act::Direct),
        many().prop_map(Act::Readers),
        many().prop_map(Act::Groups),
        many().prop_map(Act::Nested),
        (many(), conduct()).prop_map(|(n, c)| Act::Ready(n, c)),
        (many(), conduct()).prop_map(|(n, c)| Act::Tasks(n, c)),
        (many(), conduct()).prop_map(|(n, c)| Act::Watches(n, c)),
        many().prop_map(Act::Spaces),
        many().prop_map(Act::Maps),
        many().prop_map(Act::Pins),
        many().prop_map(Act::Views),
        many().prop_map(Act::Forks),
        many().prop_map(Act::Snapshots),
        (many(), conduct()).prop_map(|(n, c)| Act::Dirty(n, c)),
        conduct().prop_map(Act::Sync),
        conduct().prop_map(Act::ReadBy),
        Just(Act::Cut),
        many().prop_map(Act::Punches),
        many().prop_map(Act::Anonymous),
        conduct().prop_map(Act::Device),
        Just(Act::Session),
        bytes().prop_map(Act::Max),
        bytes().prop_map(Act::Min),
        bytes().prop_map(Act::Low),
        bytes().prop_map(Act::High),
        bytes().prop_map(Act::Reclaim),
        Just(Act::Huge),
        Just(Act::DropHalf),
        Just(Act::DropAll),
    ];
    prop_oneof![
        1 => vec(call, 1..24).prop_map(Act::Calls),
        2 => crowds,
    ]
}

/// Milliseconds after which an act seems to hang.
const PATIENCE: u32 = 60;

/// A, with a thread for each act, because an act may hang.
pub(crate) struct Attacker {
    held: Arc<Held>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Attacker {
    pub(crate) fn new(memory: &Memory, group: &Group) -> Attacker {
        Attacker {
            held: Arc::new(Held::new(memory, group)),
            threads: Vec::new(),
        }
    }

    /// Begins an act, and continues when it has ended or seems to hang.
    pub(crate) fn begin(&mut self, act: &Act) {
        let (held, act) = (Arc::clone(&self.held), act.clone());
        let act = thread::Builder::new().stack_size(256 << 10).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| held.act(&act)));
            // A's errors are A's own affair. So are its panics, but not those of the library.
            ended.map_or_else(|panic| own(&*panic), |_| Ok(()))
        });
        let thread = act.unwrap();
        for _ in 0..PATIENCE {
            if thread.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.threads.push(thread);
    }

    /// Cuts the rope, drops all that A holds and waits for every act, which may need some of that
    /// to go.
    ///
    /// # Errors
    /// When an act panicked, other than by A's own doing, or does not end.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.held.rope.cut();
        // Above its own `high` A is slowed down, for minutes if it writes much.
        let _ = self.held.group.set_high(None);
        let start = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                self.held.drop_all()?;
                thread::sleep(Duration::from_millis(1));
                if start.elapsed() > 3 * BOUND {
                    let act = self.held.noted(thread.thread().id());
                    return Err(format!("A's own act does not end: {act}"));
                }
            }
            thread.join().unwrap()?;
        }
        self.held.drop_all()
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.held.rope.cut();
    }
}

impl Held {
    fn act(&self, act: &Act) -> Ended {
        let works = Conduct::Works;
        self.note(act);
        match *act {
            Act::Calls(ref calls) => calls.iter().for_each(|call| {
                self.note(call);
                let _ = call.make(self);
            }),
            Act::Accessors(n) => {
                let space = self.space()?;
                for _ in 0..n {
                    self.keep(space.accessor()?);
                }
            }
            Act::Files(n, reads, writes) => {
                for _ in 0..n {
                    self.foreign(reads, writes)?;
                }
            }
            Act::Handles(n) => {
                let file = self.file()?;
                for _ in 0..n {
                    self.keep(file.clone());
                }
            }
            Act::Direct(n) => {
                for i in 0..n {
                    let options = self.memory.dax_options().group(&self.group);
                    self.keep(options.create_on(&self.device, &format!("direct {i}"))?);
                }
            }
            Act::Readers(n) => {
                let file = self.file()?;
                for _ in 0..n {
                    self.keep(file.block_reader());
                }
            }
            Act::Groups(n) => {
                for i in 0..n {
                    self.keep(self.group.create_child_unlimited(&format!("child {i}"))?);
                }
            }
            Act::Nested(n) => {
                let mut group = self.group.clone();
                for _ in 0..n {
                    group = group.create_child_unlimited("nested")?;
                    self.keep(group.clone());
                }
            }
            Act::Ready(n, conduct) => {
                let file = self.file()?;
                let waker = Waker::from(Arc::new(self.callee(conduct)));
                for i in 0..u64::from(n) {
                    let mut ready = Box::pin(file.ready(i * PAGE..(i + 1) * PAGE));
                    let _ = ready.as_mut().poll(&mut Context::from_waker(&waker));
                    self.keep(ready);
                }
            }
            Act::Tasks(n, conduct) => {
                let file = self.file()?;
                let waker = Waker::from(Arc::new(self.callee(conduct)));
                for _ in 0..n {
                    let mut task = Box::pin(file.defer(|file| file.sync_all()));
                    let _ = task.as_mut().poll(&mut Context::from_waker(&waker));
                    self.keep(task);
                }
            }
            Act::Watches(n, conduct) => {
                for _ in 0..n {
                    let callee = self.callee(conduct);
                    self.keep(self.group.on_events(move |_| callee.call())?);
                }
            }
            Act::Spaces(n) => {
                for _ in 0..n {
                    self.keep(self.memory.create_space_in(&self.group)?);
                }
            }
            Act::Maps(n) => {
                let (space, file) = (self.space()?, self.file()?);
                for i in 0..u64::from(n) {
                    space.map(Map::file(&file).range(i * PAGE..(i + 1) * PAGE))?;
                    space.map(Map::device(self.callee(works), PAGE))?;
                }
            }
            Act::Pins(n) => {
                let (space, at) = self.pages(u64::from(n).min(64))?;
                for i in 0..u64::from(n) {
                    self.keep(space.pin(at + i % 64 * PAGE, PAGE, AtFork::Refuse)?);
                }
            }
            Act::Views(n) => {
                let file = self.file()?;
                for i in 0..u64::from(n) {
                    self.keep(file.view(i * PAGE..(i + 1) * PAGE)?);
                }
            }
            Act::Forks(n) => {
                let (space, _) = self.pages(u64::from(n) % 8 + 1)?;
                for _ in 0..n {
                    self.keep(space.fork()?);
                }
            }
            Act::Snapshots(n) => {
                let (space, at) = self.pages(u64::from(n) % 8 + 1)?;
                for i in 0..u64::from(n) {
                    self.keep(space.freeze()?);
                    space.accessor()?.store(at + i % 8 * PAGE, i)?;
                }
            }
            Act::Dirty(n, conduct) => {
                let file = self.foreign(works, conduct)?;
                for i in 0..u64::from(n) {
                    file.write_at(&[1; PAGE_SIZE], i * 2 * PAGE)?;
                }
            }
            Act::Sync(conduct) => {
                let file = self.foreign(works, conduct)?;
                file.write_at(&[2; 8 * PAGE_SIZE], 0)?;
                file.sync_all()?;
            }
            Act::ReadBy(conduct) => {
                let file = self.foreign(conduct, works)?;
                file.read_at(&mut [0; 8 * PAGE_SIZE], 0)?;
            }
            Act::Cut => {
                let file = self.file()?;
                file.write_at(&[3; 8 * PAGE_SIZE], 0)?;
                file.set_len(5 * PAGE - 1)?;
                file.set_len(64 * MIB)?;
            }
            Act::Punches(n) => {
                let file = self.file()?;
                for i in 0..u64::from(n) {
                    file.punch(i * 2 * PAGE..(i * 2 + 1) * PAGE)?;
                }
            }
            Act::Anonymous(n) => {
                self.pages(u64::from(n))?;
            }
            Act::Device(conduct) => {
                let space = self.space()?;
                let at = space.map(Map::device(self.callee(conduct), PAGE))?;
                let mut accessor = space.accessor()?;
                accessor.load::<u32>(at)?;
                accessor.store(at, 1_u32)?;
            }
            Act::Session => {
                let (space, at) = self.pages(1)?;
                let rope = self.rope.clone();
                space.accessor()?.session(|session| {
                    let _ = session.load::<u8>(at);
                    let _ = rope.behave(Conduct::Hangs);
                });
            }
            Act::Max(bytes) => self.group.set_max(u64::from(bytes))?,
            Act::Min(bytes) => self.group.set_min(Some(bytes.into()))?,
            Act::Low(bytes) => self.group.set_low(Some(bytes.into()))?,
            Act::High(bytes) => self.group.set_high(Some(bytes.into()))?,
            Act::Reclaim(bytes) => {
                self.group.reclaim(bytes.into());
                let space = self.space()?;
                let at = space.map(Map::file(&self.file()?).range(..MIB))?;
                space.advise(at, MIB, Advice::PageOut)?;
            }
            Act::Huge => {
                let file = self.file()?;
                file.set_len(1 << 62)?;
                let mut task = file.defer(|file| file.read_to_vec(..).map(|bytes| bytes.len()));
                let _ = pin!(&mut task).poll(&mut Context::from_waker(Waker::noop()));
                self.keep(task);
            }
            Act::DropHalf => self.drop_half(),
            Act::DropAll => self.drop_all()?,
        }
        Ok(())
    }
}

//! Foreign code of A: stores, devices, wakers and hooks that work, or misbehave in one stated way.

use std::io;
use std::panic;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::task::Wake;

use innerspace::store::{Batch, Identity, Limits, Request, Store, SyncWhat, Version};
use innerspace::{
    MIB,
    space::{Device, DeviceError},
};

use crate::calls::Arguments;

/// The message of every panic that A causes on purpose.
pub(crate) const PANIC: &str = "A's own panic";

/// Keeps A's own panics from being printed: a backtrace reads debug information, some 30 MB of
/// heap, which would count as A's.
pub(crate) fn silence_own_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload_as_str() != Some(PANIC) {
                others(info);
            }
        }));
    });
}

/// How foreign code behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Conduct {
    Works,
    /// The call does not return until the rope is cut.
    Hangs,
    Panics,
    /// The call fails, as on a full disk.
    Fails,
    /// The call reports that all bytes were transferred, and transfers none.
    Lies,
}

/// Holds every call that hangs, until the rope is cut.
#[derive(Clone, Default)]
pub(crate) struct Rope(Arc<(Mutex<Held>, Condvar)>);

#[derive(Default)]
struct Held {
    is_cut: bool,
    requests: Vec<Request>,
}

impl Rope {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hang(&self) {
        let hangs = |held: &mut Held| !held.is_cut;
        drop(self.0.1.wait_while(self.held(), hangs));
    }

    /// Keeps a request in flight.
    fn hold(&self, request: Request) {
        let mut held = self.held();
        if !held.is_cut {
            held.requests.push(request);
        }
    }

    pub(crate) fn cut(&self) {
        let mut held = self.held();
        held.is_cut = true;
        let requests = std::mem::take(&mut held.requests);
        drop(held);
        self.0.1.notify_all();
        drop(requests);
    }

    /// Behaves with this conduct. Returns an error if that is the conduct.
    pub(crate) fn behave(&self, conduct: Conduct) -> io::Result<()> {
        match conduct {
            Conduct::Works | Conduct::Lies => {}
            Conduct::Hangs => self.hang(),
            Conduct::Panics => panic!("{PANIC}"),
            Conduct::Fails => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(())
    }
}

/// A store of computed bytes, which drops written ones, so that it has no memory of its own.
pub(crate) struct Foreign {
    reads: Conduct,
    writes: Conduct,
    /// What is odd in what the store says of itself, and in its requests in flight; `None` if it is
    /// like most stores.
    odd: Option<Odd>,
    rope: Rope,
}

/// What a store may answer besides.
struct Odd {
    in_flight: Conduct,
    limits: Limits,
    identity: Option<Identity>,
    uses_files: bool,
}

impl Foreign {
    const LEN: u64 = 64 * MIB;

    pub(crate) fn new(reads: Conduct, writes: Conduct, rope: &Rope) -> Foreign {
        Foreign {
            reads,
            writes,
            odd: None,
            rope: rope.clone(),
        }
    }

    /// Perhaps with odd answers.
    pub(crate) fn or_worse(mut self, with: &mut Arguments) -> Foreign {
        if with.below(2) == 0 {
            let limits = Limits::aligned(1 << with.below(40));
            self.odd = Some(Odd {
                in_flight: with.conduct(),
                limits: limits
                    .requests(with.number() as u32)
                    .preferred_size(with.len()),
                identity: (with.below(2) == 0).then(|| Identity::new("odd", [with.below(4), 0])),
                uses_files: with.below(2) == 0,
            });
        }
        self
    }

    fn end(&self, mut request: Request, conduct: Conduct) {
        let len = request.len();
        match conduct {
            Conduct::Works => {
                request.fill(&vec![0xaa; len]);
                request.complete(Ok(len));
            }
            Conduct::Hangs => self.rope.hold(request),
            Conduct::Panics => panic!("{PANIC}"),
            Conduct::Fails => request.complete(Err(io::ErrorKind::Other.into())),
            Conduct::Lies => request.complete(Ok(len)),
        }
    }
}

impl Store for Foreign {
    fn len(&self) -> io::Result<u64> {
        Ok(Foreign::LEN)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.rope.behave(self.reads)?;
        let len = (buf.len() as u64).min(Foreign::LEN.saturating_sub(offset)) as usize;
        if self.reads != Conduct::Lies {
            buf[..len].fill(0xaa);
        }
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], _: u64) -> io::Result<usize> {
        self.rope.behave(self.writes)?;
        Ok(buf.len())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        self.rope.behave(self.writes)
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        self.rope.behave(self.writes)
    }

    fn sync(&self, _: SyncWhat) -> io::Result<()> {
        self.rope.behave(self.writes)
    }

    fn writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        "A's store".to_owned()
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.rope.behave(self.reads)?;
        Ok(match self.reads {
            Conduct::Lies => Some(offset / 2),
            _ => Some(offset).filter(|offset| *offset < Foreign::LEN),
        })
    }

    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        self.rope.behave(self.reads)?;
        Ok(match self.reads {
            Conduct::Lies => u64::MAX - offset,
            _ => Foreign::LEN.max(offset),
        })
    }

    fn version(&self) -> io::Result<Option<Version>> {
        let odd = self.odd.is_some();
        let version = || self.rope.behave(self.reads).map(|()| Some(Version::new(1)));
        if odd { version() } else { Ok(None) }
    }

    fn limits(&self) -> Limits {
        self.odd
            .as_ref()
            .map_or(Limits::default(), |odd| odd.limits)
    }

    fn identity(&self) -> Option<Identity> {
        self.odd.as_ref().and_then(|odd| odd.identity)
    }

    fn uses_files(&self) -> bool {
        self.odd.as_ref().is_some_and(|odd| odd.uses_files)
    }

    fn submit(&self, mut batch: Batch) {
        let Some(odd) = &self.odd else {
            return batch.call(self);
        };
        while let Some(request) = batch.take() {
            self.end(request, odd.in_flight);
        }
    }
}

/// A device, a waker and a hook in one.
#[derive(Clone)]
pub(crate) struct Callee {
    pub(crate) conduct: Conduct,
    pub(crate) rope: Rope,
}

impl Callee {
    pub(crate) fn call(&self) {
        let _ = self.rope.behave(self.conduct);
    }

    fn answer(&self) -> Result<(), DeviceError> {
        let done = self.rope.behave(self.conduct);
        done.map_err(|error| DeviceError::new(error.to_string()))
    }
}

impl Device for Callee {
    fn load(&self, _: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(0xbb);
        self.answer()
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        self.answer()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.call();
        vec![0xbb; 99]
    }

    fn restore(&self, _: &[u8]) {
        self.call();
    }
}

impl Wake for Callee {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

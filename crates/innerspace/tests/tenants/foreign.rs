//! Foreign code of A: stores, devices, wakers and hooks that work, or misbehave in one stated way.

use std::io;
use std::panic;
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::task::Wake;

use innerspace::store::{Store, SyncWhat};
use innerspace::{Device, DeviceError};

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
pub(crate) struct Rope(Arc<(Mutex<bool>, Condvar)>);

impl Rope {
    fn hang(&self) {
        let (is_cut, changed) = &*self.0;
        let mut is_cut = is_cut.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_cut {
            is_cut = changed.wait(is_cut).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn cut(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
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
    pub(crate) len: u64,
    pub(crate) reads: Conduct,
    pub(crate) writes: Conduct,
    pub(crate) rope: Rope,
}

impl Store for Foreign {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.rope.behave(self.reads)?;
        let len = (buf.len() as u64).min(self.len.saturating_sub(offset)) as usize;
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
}

/// A device, a waker and a hook in one.
#[derive(Clone)]
pub(crate) struct Callee {
    pub(crate) conduct: Conduct,
    pub(crate) rope: Rope,
}

impl Device for Callee {
    fn load(&self, _: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(0xbb);
        let done = self.rope.behave(self.conduct);
        done.map_err(|error| DeviceError::new(error.to_string()))
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        let done = self.rope.behave(self.conduct);
        done.map_err(|error| DeviceError::new(error.to_string()))
    }
}

impl Wake for Callee {
    fn wake(self: Arc<Self>) {
        let _ = self.rope.behave(self.conduct);
    }
}

//! [`FaultyStore`]: another store behind a device that misbehaves on demand, for tests.
//!
//! # Fault model
//!
//! Between the caller and the inner store is a device with a volatile write cache and sectors of
//! [`SECTOR`] bytes. The device *answers* with the inner store's content. The content of the
//! *medium* differs from it in the sectors changed since the last sync. The device remembers the
//! old content of those sectors.
//!
//! | fault | what happens | the caller sees |
//! |---|---|---|
//! | [`Fault::Fail`] | nothing is done | an error, one of [`Failure`] |
//! | [`Fault::Short`] | half of the bytes are transferred | a short count |
//! | [`Fault::Hang`] | nothing, until the test releases it | a call that does not return |
//! | [`Fault::Tear`] | only the first sectors of a write reach the medium | an error |
//! | [`Fault::Lose`] | a write, punch, resize or sync is dropped | success |
//! | [`Fault::Forget`] | writes and punches since the last good sync are lost | a failed sync |
//! | [`Fault::Misdirect`] | a read or write goes to another place, some sectors away | success |
//! | [`Fault::Rot`] | one bit flips, in the bytes that a read returns or a write stores | success |
//! | [`FaultyStore::power_cut`] | changes since the last sync are lost: all, none, some | errors |
//!
//! `Forget` does not undo changes of the length.
//!
//! The device never tears a sector. It never loses or changes bytes that a successful sync covered,
//! unless a `Lose` hit that very sync, or a `Misdirect` or `Rot` hit a later write. A failed call
//! has no effect, except by `Tear` and `Forget`. A call that began before a power cut has no effect
//! after it.
//!
//! **When faults happen.** By countdown: a [`Rule`] fires on the nth matching operation, once,
//! several times or for ever, in a byte range or everywhere. If several rules are due, the one
//! added first fires. By seed: [`FaultyStore::seed`] draws a fault for each operation that no rule
//! hit. The same seed gives the same faults to the same sequence of operations. No fault depends on
//! time: an operation hangs until [`FaultyStore::release`].
//!
//! **Sharing.** The test keeps an `Arc` of the store and gives a clone to the file. While the file
//! is in use the test can change faults, wait for hanging calls and read the log of operations.
//!
//! Locking: one mutex. It is held during a call that changes the inner store, and while that call
//! first reads the old content, so that a power cut falls between operations. It is not held during
//! the reads that a caller asks for, nor while an operation hangs.

mod medium;
mod plan;

use std::fmt;
use std::io::{self, IoSliceMut};

use super::{Identity, Limits, Store, StoreError, SyncWhat, Version};
use crate::sync::{Condvar, Mutex, MutexGuard};
use medium::Medium;
use plan::Plan;

pub use medium::Unsynced;
pub use plan::{AfterTear, Failure, Fault, OperationKind, Rates, Rule};

/// The size of a sector in bytes. The device writes each sector as a whole, or not at all.
pub const SECTOR: u64 = 512;

/// The maximum number of operations in the log. Older ones are dropped.
const LOG_LEN: usize = 65_536;

/// A store that puts faults between its caller and the store `S`. See the module's fault model.
///
/// ```
/// use innerspace::store::faulty::{Failure, Fault, FaultyStore, OperationKind, Rule};
/// use innerspace::store::{MemoryStore, Store, StoreErrorKind};
///
/// let store = FaultyStore::new(MemoryStore::new());
/// store.add(Rule::new(Fault::Fail(Failure::NoSpace)).on(&[OperationKind::Write]).nth(2));
/// store.write_at(b"first", 0)?;
/// let error = store.write_at(b"second", 5).unwrap_err();
/// assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::NoSpace);
/// store.write_at(b"second", 5)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct FaultyStore<S> {
    inner: S,
    control: Mutex<Control>,
    /// Notified when an operation begins to hang, when operations are released, and when the power
    /// is cut.
    changed: Condvar,
}

/// All state, guarded by `FaultyStore::control`.
struct Control {
    power: Power,
    plan: Plan,
    medium: Medium,
    hanging: usize,
    /// The number of releases so far. An operation hangs until this number changes, or until the
    /// power is cut.
    releases: u64,
    released_to: Release,
    log: std::collections::VecDeque<Record>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Power {
    On,
    Off,
}

/// The outcome of hanging operations when they are released.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Release {
    /// They continue as if nothing had happened.
    Proceed,
    /// They fail without an effect.
    Fail(Failure),
}

/// An operation in the log. The log is in the order in which operations ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Record {
    /// The kind of operation.
    pub kind: OperationKind,
    /// The offset in bytes. For `SetLen`, the new length.
    pub offset: u64,
    /// The length in bytes. 0 for operations without a range.
    pub len: u64,
    /// The fault that hit the operation, if any.
    pub fault: Option<Fault>,
    /// The result for the caller: the number of bytes transferred or punched, or an error.
    pub outcome: Result<u64, io::ErrorKind>,
}

/// An operation under way.
#[derive(Clone, Copy)]
struct Call {
    kind: OperationKind,
    offset: u64,
    len: u64,
}

impl<S: Store> FaultyStore<S> {
    /// Makes a store that has no faults yet.
    pub fn new(inner: S) -> FaultyStore<S> {
        FaultyStore {
            inner,
            control: Mutex::new(Control {
                power: Power::On,
                plan: Plan::default(),
                medium: Medium::default(),
                hanging: 0,
                releases: 0,
                released_to: Release::Proceed,
                log: Default::default(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Returns the inner store. Calls to it meet no faults, and its content is the one with which
    /// the device answers.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Adds a rule, which counts operations from now on.
    pub fn add(&self, rule: Rule) {
        self.control.lock().plan.add(rule);
    }

    /// Makes the store draw a fault, at these rates, for every operation from now on that no rule
    /// hits.
    pub fn seed(&self, seed: u64, rates: Rates) {
        self.control.lock().plan.seed(seed, rates);
    }

    /// Removes all rules and rates. Hanging operations keep hanging, and power that is off stays
    /// off.
    pub fn heal(&self) {
        self.control.lock().plan.clear();
    }

    /// Releases all operations that hang now.
    pub fn release(&self, to: Release) {
        let mut control = self.control.lock();
        control.releases += 1;
        control.released_to = to;
        self.changed.notify_all();
    }

    /// Waits until at least `count` operations hang.
    pub fn wait_hanging(&self, count: usize) {
        let mut control = self.control.lock();
        while control.hanging < count {
            control = self.changed.wait(control);
        }
    }

    /// Returns the number of operations that hang now.
    pub fn hanging(&self) -> usize {
        self.control.lock().hanging
    }

    /// Cuts the power. `unsynced` says what happens to unsynced changes. Every operation, even one
    /// that hangs, fails until [`FaultyStore::power_on`].
    ///
    /// # Errors
    /// Those of the inner store, from undoing the lost changes in it.
    pub fn power_cut(&self, unsynced: Unsynced) -> io::Result<()> {
        self.cut(&mut self.control.lock(), unsynced)
    }

    /// Turns the power on again. The store then has the content of the medium.
    pub fn power_on(&self) {
        self.control.lock().power = Power::On;
    }

    /// Returns the number of sectors that a power cut could lose.
    pub fn unsynced_sectors(&self) -> usize {
        self.control.lock().medium.unsynced()
    }

    /// Returns the last operations, at most 65,536, in the order in which they ended.
    pub fn log(&self) -> Vec<Record> {
        self.control.lock().log.iter().copied().collect()
    }

    /// Forgets the operations logged so far.
    pub fn clear_log(&self) {
        self.control.lock().log.clear();
    }

    fn cut(&self, control: &mut Control, unsynced: Unsynced) -> io::Result<()> {
        control.power = Power::Off;
        self.changed.notify_all();
        control.medium.lose(&self.inner, unsynced)
    }

    /// Picks the fault for a call, and applies the part of it that is the same for all calls.
    /// Returns with the lock held, so that the rest of the call happens entirely before a power cut
    /// or after it.
    fn begin(&self, call: Call) -> (MutexGuard<'_, Control>, Option<Fault>, io::Result<()>) {
        let mut control = self.control.lock();
        if control.power == Power::Off {
            return (control, None, Err(StoreError::NoPower.into()));
        }
        let fault = control.plan.pick(call.kind, call.offset, call.len);
        let result = match fault {
            Some(Fault::Fail(failure)) => Err(failure.error()),
            Some(Fault::Hang) => {
                let result;
                (control, result) = self.hang(control);
                result
            }
            _ => Ok(()),
        };
        (control, fault, result)
    }

    fn hang<'a>(
        &self,
        mut control: MutexGuard<'a, Control>,
    ) -> (MutexGuard<'a, Control>, io::Result<()>) {
        let before = control.releases;
        control.hanging += 1;
        self.changed.notify_all();
        while control.releases == before && control.power == Power::On {
            control = self.changed.wait(control);
        }
        control.hanging -= 1;
        let result = match (control.power, control.released_to) {
            (Power::Off, _) => Err(StoreError::NoPower.into()),
            (Power::On, Release::Fail(failure)) => Err(failure.error()),
            (Power::On, Release::Proceed) => Ok(()),
        };
        (control, result)
    }

    /// Runs a call that changes the store, with its fault, under the lock, and logs it.
    fn change(
        &self,
        call: Call,
        run: impl FnOnce(&mut Control, Option<Fault>) -> io::Result<u64>,
    ) -> io::Result<u64> {
        let (mut control, fault, begun) = self.begin(call);
        let result = match (begun, fault) {
            (Err(error), _) => Err(error),
            // The call is reported as done, but is not done.
            (Ok(()), Some(Fault::Lose)) => Ok(call.len),
            (Ok(()), fault) => run(&mut control, fault),
        };
        control.record(call, fault, &result);
        result
    }

    /// Runs a call that changes nothing, with its fault, outside the lock, and logs it.
    fn look<T>(
        &self,
        call: Call,
        run: impl FnOnce(Option<Fault>, u64) -> io::Result<(T, u64)>,
    ) -> io::Result<T> {
        let (mut control, fault, begun) = self.begin(call);
        let dice = control.plan.dice();
        drop(control);
        let result = begun.and_then(|()| run(fault, dice));
        let outcome = match &result {
            Ok((_, count)) => Ok(*count),
            Err(error) => Err(io::Error::from(error.kind())),
        };
        self.control.lock().record(call, fault, &outcome);
        result.map(|(value, _)| value)
    }

    /// Writes `buf`, and applies the faults that change a write: `Short`, `Tear`, `Misdirect` and
    /// `Rot`.
    fn write_faulty(
        &self,
        control: &mut Control,
        fault: Option<Fault>,
        buf: &[u8],
        offset: u64,
    ) -> io::Result<u64> {
        match fault {
            Some(Fault::Short) => {
                let half = buf.len().div_ceil(2);
                control.medium.write(&self.inner, &buf[..half], offset)
            }
            Some(Fault::Tear { sectors, then }) => {
                let end = (offset / SECTOR)
                    .saturating_add(sectors)
                    .saturating_mul(SECTOR);
                let count = end.saturating_sub(offset).min(buf.len() as u64);
                control
                    .medium
                    .write(&self.inner, &buf[..count as usize], offset)?;
                control.medium.reached(offset, count);
                match then {
                    AfterTear::Fail => Err(StoreError::Device.into()),
                    AfterTear::PowerCut(unsynced) => {
                        self.cut(control, unsynced)?;
                        Err(StoreError::NoPower.into())
                    }
                }
            }
            Some(Fault::Misdirect { sectors }) => {
                control
                    .medium
                    .write(&self.inner, buf, beside(offset, sectors))
            }
            Some(Fault::Rot) => {
                let mut rotten = buf.to_vec();
                flip_bit(&mut rotten, control.plan.dice());
                control.medium.write(&self.inner, &rotten, offset)
            }
            _ => control.medium.write(&self.inner, buf, offset),
        }
    }
}

impl Control {
    fn record(&mut self, call: Call, fault: Option<Fault>, result: &io::Result<u64>) {
        let Call { kind, offset, len } = call;
        let outcome = result.as_ref().map(|&count| count).map_err(io::Error::kind);
        if self.log.len() == LOG_LEN {
            self.log.pop_front();
        }
        self.log.push_back(Record {
            kind,
            offset,
            len,
            fault,
            outcome,
        });
    }
}

/// Returns the offset `sectors` sectors after `offset`, or before it if `sectors` is negative, but
/// not below 0.
fn beside(offset: u64, sectors: i64) -> u64 {
    offset.saturating_add_signed(sectors.saturating_mul(SECTOR as i64))
}

/// Flips the bit of `buf` that `dice` selects.
fn flip_bit(buf: &mut [u8], dice: u64) {
    if !buf.is_empty() {
        let at = (dice >> 3) % buf.len() as u64;
        buf[at as usize] ^= 1 << (dice & 7);
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn len(&self) -> io::Result<u64> {
        let call = Call {
            kind: OperationKind::Len,
            offset: 0,
            len: 0,
        };
        self.look(call, |_, _| Ok((self.inner.len()?, 0)))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let call = Call {
            kind: OperationKind::Read,
            offset,
            len: buf.len() as u64,
        };
        self.look(call, |fault, dice| {
            let count = match fault {
                Some(Fault::Short) => {
                    let half = buf.len().div_ceil(2);
                    self.inner.read_at(&mut buf[..half], offset)?
                }
                Some(Fault::Misdirect { sectors }) => {
                    self.inner.read_at(buf, beside(offset, sectors))?
                }
                _ => self.inner.read_at(buf, offset)?,
            };
            if fault == Some(Fault::Rot) {
                flip_bit(&mut buf[..count], dice);
            }
            Ok((count, count as u64))
        })
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        if let [only] = bufs {
            return self.read_at(only, offset);
        }
        // The vectored read counts as one operation, so it has one fault at most.
        let mut whole = vec![0; bufs.iter().map(|buf| buf.len()).sum()];
        let count = self.read_at(&mut whole, offset)?;
        let mut rest = &whole[..count];
        for buf in bufs {
            let (now, later) = rest.split_at(rest.len().min(buf.len()));
            buf[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(count)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let call = Call {
            kind: OperationKind::Write,
            offset,
            len: buf.len() as u64,
        };
        let count = self.change(call, |control, fault| {
            self.write_faulty(control, fault, buf, offset)
        })?;
        Ok(count as usize)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let call = Call {
            kind: OperationKind::SetLen,
            offset: len,
            len: 0,
        };
        self.change(call, |control, _| {
            control.medium.set_len(&self.inner, len).map(|()| 0)
        })?;
        Ok(())
    }

    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        let call = Call {
            kind: OperationKind::Sync,
            offset: 0,
            len: 0,
        };
        self.change(call, |control, fault| {
            if let Some(Fault::Forget(failure)) = fault {
                control.medium.forget(&self.inner)?;
                return Err(failure.error());
            }
            self.inner.sync(what)?;
            control.medium.synced();
            Ok(0)
        })?;
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let call = Call {
            kind: OperationKind::Punch,
            offset,
            len,
        };
        self.change(call, |control, _| {
            control.medium.punch(&self.inner, offset, len)?;
            Ok(len)
        })?;
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let call = Call {
            kind: OperationKind::Seek,
            offset,
            len: 0,
        };
        self.look(call, |_, _| Ok((self.inner.next_data(offset)?, 0)))
    }

    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        let call = Call {
            kind: OperationKind::Seek,
            offset,
            len: 0,
        };
        self.look(call, |_, _| Ok((self.inner.next_hole(offset)?, 0)))
    }

    fn identity(&self) -> Option<Identity> {
        self.inner.identity()
    }

    fn version(&self) -> io::Result<Option<Version>> {
        self.inner.version()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn uses_files(&self) -> bool {
        self.inner.uses_files()
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

impl<S: fmt::Debug> fmt::Debug for FaultyStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let control = self.control.lock();
        f.debug_struct("FaultyStore")
            .field("inner", &self.inner)
            .field("power", &control.power)
            .field("plan", &control.plan)
            .field("hanging", &control.hanging)
            .finish_non_exhaustive()
    }
}

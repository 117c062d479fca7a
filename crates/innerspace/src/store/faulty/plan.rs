//! The choice of faults for operations: first by rules that count down, then by rates and a seed.

use std::io;
use std::ops::Range;

use super::super::StoreError;
use super::medium::Unsynced;

/// A kind of operation on a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum OperationKind {
    /// `len`.
    Len,
    /// `read_at`. A vectored read counts as one.
    Read,
    /// `write_at`. A vectored write counts as one for each buffer.
    Write,
    /// `set_len`.
    SetLen,
    /// `sync`.
    Sync,
    /// `punch`.
    Punch,
    /// `next_data` and `next_hole`.
    Seek,
}

/// A way in which an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The device fails (EIO).
    Io,
    /// No space is left.
    NoSpace,
    /// No answer comes in time.
    TimedOut,
    /// A signal interrupts the call; the caller should repeat it.
    Interrupted,
    /// The device has become read-only.
    ReadOnly,
}

impl Failure {
    pub(super) fn error(self) -> io::Error {
        match self {
            Failure::Io => StoreError::Device.into(),
            Failure::NoSpace => io::ErrorKind::StorageFull.into(),
            Failure::TimedOut => io::ErrorKind::TimedOut.into(),
            Failure::Interrupted => io::ErrorKind::Interrupted.into(),
            Failure::ReadOnly => StoreError::ReadOnly.into(),
        }
    }
}

/// The way in which a torn write ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AfterTear {
    /// With an input/output error. The store continues to work.
    Fail,
    /// With a power cut. The value says what happens to the other unsynced changes.
    PowerCut(Unsynced),
}

/// One way in which the store misbehaves. See the module's fault model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Does nothing, and reports an error.
    Fail(Failure),
    /// Transfers half of the bytes, at least one.
    Short,
    /// Does not return until released.
    Hang,
    /// Lets only the first sectors of a write reach the medium.
    Tear {
        /// The number of sectors, counted from the one in which the write begins.
        sectors: u64,
        /// The way in which the write ends.
        then: AfterTear,
    },
    /// Does nothing, and reports success.
    Lose,
    /// Fails a sync, and drops writes and punches since the last successful one. Lengths stay.
    Forget(Failure),
    /// Does the operation this many sectors further on, or further back for a negative number.
    Misdirect {
        /// The number of sectors.
        sectors: i64,
    },
    /// Flips one bit.
    Rot,
}

impl Fault {
    /// Returns whether an operation of this kind can have the fault.
    fn fits(self, kind: OperationKind) -> bool {
        use OperationKind::{Punch, Read, SetLen, Sync, Write};
        match self {
            Fault::Fail(_) | Fault::Hang => true,
            Fault::Short | Fault::Misdirect { .. } | Fault::Rot => matches!(kind, Read | Write),
            Fault::Tear { .. } => kind == Write,
            Fault::Forget(_) => kind == Sync,
            Fault::Lose => matches!(kind, Write | SetLen | Sync | Punch),
        }
    }
}

/// A fault, and the operations that have it. A new rule applies once, to the next operation that
/// can have the fault.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub struct Rule {
    fault: Fault,
    kinds: Option<Vec<OperationKind>>,
    range: Range<u64>,
    /// The number of matching operations still to skip.
    skip: u64,
    /// The number of matching operations still to hit, after those to skip. `u64::MAX` for all.
    times: u64,
}

impl Rule {
    /// Makes a rule for `fault` on the next operation that can have it.
    pub fn new(fault: Fault) -> Rule {
        Rule {
            fault,
            kinds: None,
            range: 0..u64::MAX,
            skip: 0,
            times: 1,
        }
    }

    /// Restricts the rule to operations of these kinds.
    pub fn on(mut self, kinds: &[OperationKind]) -> Rule {
        self.kinds = Some(kinds.to_vec());
        self
    }

    /// Restricts the rule to operations that touch this range of bytes. `Len` and `Sync` count as
    /// touching byte 0.
    pub fn within(mut self, range: Range<u64>) -> Rule {
        self.range = range;
        self
    }

    /// Makes the rule begin with the nth matching operation after it is added. 1 is the next one.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn nth(mut self, n: u64) -> Rule {
        self.skip = n.checked_sub(1).expect("operations are counted from 1");
        self
    }

    /// Makes the rule hit this many consecutive matching operations.
    pub fn times(mut self, times: u64) -> Rule {
        self.times = times;
        self
    }

    /// Makes the rule hit every matching operation from its first one on, until the store is
    /// healed.
    pub fn forever(self) -> Rule {
        self.times(u64::MAX)
    }

    fn matches(&self, kind: OperationKind, offset: u64, len: u64) -> bool {
        self.fault.fits(kind)
            && self
                .kinds
                .as_ref()
                .is_none_or(|kinds| kinds.contains(&kind))
            && offset < self.range.end
            && offset.saturating_add(len.max(1)) > self.range.start
    }
}

/// The rate of each fault: of a million operations that can have the fault, this many do. The sum
/// should be below a million. Otherwise the faults at the end of the list are drawn less often than
/// stated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rates {
    /// [`Failure::Io`].
    pub io: u32,
    /// [`Failure::NoSpace`], on operations that change something.
    pub no_space: u32,
    /// [`Failure::Interrupted`].
    pub interrupted: u32,
    /// [`Fault::Short`].
    pub short: u32,
    /// [`Fault::Tear`] after 0 to 7 sectors, then [`AfterTear::Fail`].
    pub tear: u32,
    /// [`Fault::Lose`].
    pub lose: u32,
    /// [`Fault::Misdirect`] by 1 to 8 sectors.
    pub misdirect: u32,
    /// [`Fault::Rot`].
    pub rot: u32,
}

/// Rules, rates and the state of the dice.
#[derive(Debug, Default)]
pub(super) struct Plan {
    rules: Vec<Rule>,
    rates: Option<Rates>,
    dice: Dice,
}

impl Plan {
    pub(super) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    pub(super) fn seed(&mut self, seed: u64, rates: Rates) {
        self.dice = Dice(seed);
        self.rates = Some(rates);
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.rates = None;
    }

    /// Returns a random number for the details of a fault.
    pub(super) fn dice(&mut self) -> u64 {
        self.dice.roll()
    }

    /// Picks the fault for an operation. The operation counts for every matching rule that still
    /// skips operations, and for the one rule that is picked.
    pub(super) fn pick(&mut self, kind: OperationKind, offset: u64, len: u64) -> Option<Fault> {
        let mut picked = None;
        for rule in self
            .rules
            .iter_mut()
            .filter(|rule| rule.matches(kind, offset, len))
        {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if picked.is_none() && rule.times > 0 {
                rule.times -= u64::from(rule.times != u64::MAX);
                picked = Some(rule.fault);
            }
        }
        self.rules.retain(|rule| rule.times > 0);
        picked.or_else(|| self.draw(kind))
    }

    fn draw(&mut self, kind: OperationKind) -> Option<Fault> {
        use OperationKind::{Punch, SetLen, Write};
        let rates = self.rates?;
        let (mut number, detail) = (self.dice.roll() % 1_000_000, self.dice.roll());
        let changes = matches!(kind, Write | SetLen | Punch);
        let faults = [
            (rates.io, Fault::Fail(Failure::Io)),
            (
                if changes { rates.no_space } else { 0 },
                Fault::Fail(Failure::NoSpace),
            ),
            (rates.interrupted, Fault::Fail(Failure::Interrupted)),
            (rates.short, Fault::Short),
            (
                rates.tear,
                Fault::Tear {
                    sectors: detail % 8,
                    then: AfterTear::Fail,
                },
            ),
            (rates.lose, Fault::Lose),
            (
                rates.misdirect,
                Fault::Misdirect {
                    sectors: 1 + (detail % 8) as i64,
                },
            ),
            (rates.rot, Fault::Rot),
        ];
        for (rate, fault) in faults.into_iter().filter(|(_, fault)| fault.fits(kind)) {
            match number.checked_sub(u64::from(rate)) {
                Some(left) => number = left,
                None => return Some(fault),
            }
        }
        None
    }
}

/// Pseudo-random numbers, the same for the same seed (Steele, Lea, Flood: SplitMix64).
#[derive(Debug, Default)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

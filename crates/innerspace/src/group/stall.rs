//! Records how long requests of a group were stalled for memory, in the last minute and in total.
//!
//! As in Linux's pressure stall information ("some"), an instant counts once, however many requests
//! are stalled in it. The last minute is kept in half seconds; the half second in which a window
//! begins counts in proportion.

use std::fmt;
use std::time::Duration;

/// The length of one slot in nanoseconds.
const SLOT: u64 = 500_000_000;

/// The number of slots in the longest window, and one more for the slot in which it begins.
const SLOTS: usize = 121;

/// How much of the time a group's requests were stalled for memory: they were evicting, waiting for
/// other threads to evict, or being slowed down above `high`. `Display` prints one line.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Pressure {
    /// The share of the last ten seconds, from 0 to 1. In a younger memory, the share of its age.
    pub ten_seconds: f64,
    /// The share of the last minute, from 0 to 1. In a younger memory, the share of its age.
    pub minute: f64,
    /// The total stalled time since the group was created.
    pub total: Duration,
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "stood still for {:.1} % of ten seconds, {:.1} % of a minute, {:.1?} in all",
            self.ten_seconds * 100.0,
            self.minute * 100.0,
            self.total
        )
    }
}

/// The record of one group's stalls. Times are nanoseconds since a moment that the caller chooses,
/// and never decrease.
#[derive(Debug)]
pub(super) struct Stalls {
    /// The number of requests that are stalled now.
    now: u32,
    /// The time since which at least one request has been stalled.
    since: u64,
    total: u64,
    /// Slots of time, each with its number and the nanoseconds stalled in it. A slot is at its
    /// number modulo the array's length, in place of an older one. (The numbers last for 68 years.)
    slots: [(u32, u32); SLOTS],
}

impl Stalls {
    pub(super) fn new() -> Stalls {
        Stalls {
            now: 0,
            since: 0,
            total: 0,
            slots: [(0, 0); SLOTS],
        }
    }

    /// Begins a stall of a request.
    pub(super) fn begin(&mut self, time: u64) {
        if self.now == 0 {
            self.since = time;
        }
        self.now += 1;
    }

    /// Ends a stall. If the node was reused for another group meanwhile, there is no stall to end.
    pub(super) fn end(&mut self, time: u64) {
        if self.now == 0 {
            return;
        }
        self.now -= 1;
        if self.now == 0 {
            self.record(self.since, time);
        }
    }

    fn record(&mut self, from: u64, to: u64) {
        self.total += to.saturating_sub(from);
        let oldest = to.saturating_sub((SLOTS as u64 - 1) * SLOT) / SLOT * SLOT;
        let mut at = from.max(oldest);
        while at < to {
            let number = at / SLOT;
            let end = ((number + 1) * SLOT).min(to);
            let slot = &mut self.slots[number as usize % SLOTS];
            if u64::from(slot.0) != number {
                *slot = (number as u32, 0);
            }
            slot.1 += (end - at) as u32;
            at = end;
        }
    }

    /// Returns the stalled share of the window that ends at `time` (and begins no earlier than time
    /// 0).
    fn share(&self, time: u64, window: u64) -> f64 {
        let start = time.saturating_sub(window);
        let mut sum = 0.0;
        for number in start / SLOT..=time / SLOT {
            let (found, stalled) = self.slots[number as usize % SLOTS];
            if u64::from(found) == number {
                let begin = start.max(number * SLOT);
                let inside = ((number + 1) * SLOT - begin) as f64 / SLOT as f64;
                sum += f64::from(stalled) * inside;
            }
        }
        if self.now > 0 {
            sum += (time - self.since.max(start)) as f64;
        }
        (sum / (time - start).max(1) as f64).min(1.0)
    }

    pub(super) fn pressure(&self, time: u64) -> Pressure {
        let running = match self.now {
            0 => 0,
            _ => time - self.since,
        };
        Pressure {
            ten_seconds: self.share(time, 10_000_000_000),
            minute: self.share(time, 60_000_000_000),
            total: Duration::from_nanos(self.total + running),
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_pressure_prints_as_shares_and_a_time() {
        let pressure = Pressure {
            ten_seconds: 0.5,
            minute: 0.0123,
            total: Duration::from_millis(1500),
        };
        assert_eq!(
            pressure.to_string(),
            "stood still for 50.0 % of ten seconds, 1.2 % of a minute, 1.5s in all"
        );
    }

    // spec: M19
    #[test]
    fn shares_agree_with_every_instant_counted() {
        // Compares the record with a count by the millisecond: bursts and rests of all lengths,
        // with several requests stalled at a time.
        const STEP: u64 = SECOND / 1000;
        let (mut stalls, mut instants) = (Stalls::new(), Vec::new());
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |bound: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % bound
        };
        let mut worst: f64 = 0.0;
        let mut standing: Vec<u64> = Vec::new();
        let mut next = 0;
        // Miri is some thousand times slower.
        let ticks: u64 = if cfg!(miri) { 2_000 } else { 200_000 };
        for tick in 0..ticks {
            let time = tick * STEP;
            while let Some(at) = standing.iter().position(|end| *end == tick) {
                standing.swap_remove(at);
                stalls.end(time);
            }
            if tick == next {
                stalls.begin(time);
                let (stall, rest) = (below(3) as usize, below(3) as usize);
                standing.push(tick + 1 + below([20, 400, 9000][stall]));
                next = tick + 1 + below([50, 1000, 15_000][rest]);
            }
            instants.push(!standing.is_empty());
            if tick % 97 == 0 && tick > 0 {
                let now = time + STEP;
                let pressure = stalls.pressure(now);
                for (share, length) in [(pressure.ten_seconds, 10_000), (pressure.minute, 60_000)] {
                    let window = &instants[instants.len().saturating_sub(length)..];
                    let count = window.iter().filter(|stood| **stood).count();
                    worst = worst.max((share - count as f64 / window.len() as f64).abs());
                }
            }
        }
        assert!(worst <= 0.05, "{worst}");
        let counted = instants.iter().filter(|stood| **stood).count() as u64;
        let total = stalls.pressure(ticks * STEP).total.as_nanos() as u64;
        assert_eq!(total, counted * STEP);
    }

    #[test]
    fn a_record_takes_a_kilobyte() {
        assert!(size_of::<Stalls>() <= 1024);
    }

    #[test]
    fn a_long_rest_clears_and_a_long_stall_fills() {
        let mut stalls = Stalls::new();
        stalls.begin(SECOND);
        let during = stalls.pressure(121 * SECOND);
        assert_eq!((during.ten_seconds, during.minute), (1.0, 1.0));
        stalls.end(121 * SECOND);
        let after = stalls.pressure(131 * SECOND);
        assert_eq!(after.ten_seconds, 0.0);
        assert!((after.minute - 50.0 / 60.0).abs() < 0.001, "{after:?}");
        assert_eq!(after.total, Duration::from_secs(120));
        assert_eq!(stalls.pressure(1000 * SECOND).minute, 0.0);
        // Slots are written again after all of them have become too old.
        stalls.begin(1000 * SECOND);
        stalls.end(1001 * SECOND);
        let again = stalls.pressure(1001 * SECOND);
        assert!((again.ten_seconds - 0.1).abs() < 0.001, "{again:?}");
    }
}

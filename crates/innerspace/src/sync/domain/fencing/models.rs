//! A model of adaptive fencing: readers that are told to fence and to stop, concurrently with a
//! revoker, in all interleavings. The machine's store buffers are part of the state, as in x86's
//! memory model (Owens, Sarkar, Sewell: "A better x86 memory model: x86-TSO", 2009).
//!
//! Each thread is a program of a few steps, and all orders of the steps are tried. The model
//! contains no code of the library; the tests of `domain` run that code on the processor itself.

use std::collections::HashSet;

/// The state of memory and of each thread's program. Steps that hold the list's lock are merged
/// into one where their order relative to the reader's steps does not matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct World {
    /// Whether the reader's `state` is odd, as other threads see it. The reader's own view is ahead
    /// while stores are in `buffered`.
    odd: bool,
    /// The stores to `odd` in the reader's buffer, oldest first. At most two are under way.
    buffered: [Option<bool>; 2],
    /// The reader's flag `fenced`, and the domain's.
    told: bool,
    domain: bool,
    /// Three flags: the word's change is in the revoker's store buffer; it is in memory; the page
    /// to which the word led was freed.
    revoking: bool,
    revoked: bool,
    freed: bool,
    lock: Option<Who>,
    reader: u8,
    /// The number of sections that the reader has yet to open.
    sections: u8,
    /// Whether the reader has found the old word in this section.
    using: bool,
    revoker: u8,
    /// Whether the revoker found the domain fenced.
    found: bool,
    teller: u8,
    /// The stores in the teller's buffer: to `told`, to `domain`, and the unlocking. The unlocking
    /// reaches memory last. The other two may do so in either order, which is more than x86 allows.
    telling: Option<bool>,
    telling_domain: Option<bool>,
    unlocking: bool,
    /// The number of changes that the teller has yet to make. Odd ones are "fence", even ones
    /// "stop".
    changes: u8,
    used_freed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Who {
    Revoker,
    Teller,
}

/// The protocol, with a switch for each part that can be left out.
#[derive(Clone, Copy)]
struct Protocol {
    /// A heavy barrier stands between telling the reader and telling the domain.
    barrier_between: bool,
    /// The revoker checks the domain's flag again with the list locked.
    looks_again: bool,
    /// The reader checks `fenced` after it has entered.
    looks_inside: bool,
    /// Neither the compiler nor the processor moves the reader's later reads before that check.
    reads_after_look: bool,
    /// The thread that tells readers to stop locks the list.
    locks_to_stop: bool,
}

const WHOLE: Protocol = Protocol {
    barrier_between: true,
    looks_again: true,
    looks_inside: true,
    reads_after_look: true,
    locks_to_stop: true,
};

impl World {
    fn store(&mut self, odd: bool) {
        let place = self.buffered.iter().position(Option::is_none);
        self.buffered[place.expect("a reader that cannot store waits")] = Some(odd);
    }

    fn may_store(&self) -> bool {
        self.buffered[1].is_none()
    }

    /// Lets the reader's oldest store reach memory.
    fn drain_one(&mut self) {
        if let [Some(odd), next] = self.buffered {
            self.odd = odd;
            self.buffered = [next, None];
        }
    }

    /// Performs a full fence of the reader: its own, or another thread's heavy barrier.
    fn drain(&mut self) {
        self.drain_one();
        self.drain_one();
    }

    /// Lets the revoker's store reach memory.
    fn revoke_for_all(&mut self) {
        self.revoked |= std::mem::take(&mut self.revoking);
    }

    /// Takes the reader's next step: enter, check the flag, fence if told, read the word, use the
    /// page, leave.
    fn read(mut self, protocol: Protocol) -> Option<World> {
        // The number of the next step says what the check found: step 2 fences, step 3 goes on
        // without a fence. Steps 6 and 7 are the same for a reader that checked before its section.
        // At step 8 the reader has loaded the word already and has yet to check.
        match self.reader {
            0 if self.sections == 0 => return None,
            0 if !protocol.looks_inside => self.reader = if self.told { 6 } else { 7 },
            0 | 6 | 7 => {
                if !self.may_store() {
                    return None;
                }
                self.store(true);
                self.reader = match self.reader {
                    0 => 1,
                    6 => 2,
                    _ => 3,
                };
            }
            1 => self.reader = if self.told { 2 } else { 3 },
            8 => self.reader = if self.told { 2 } else { 4 },
            2 => {
                self.drain();
                self.reader = 3;
            }
            3 => {
                self.using = !self.revoked;
                self.reader = 4;
            }
            4 => {
                self.used_freed |= self.using && self.freed;
                self.reader = 5;
            }
            _ => {
                if !self.may_store() {
                    return None;
                }
                self.store(false);
                self.using = false;
                self.sections -= 1;
                self.reader = 0;
            }
        }
        Some(self)
    }

    /// Lets the reader's load of the word overtake its check of the flag.
    fn read_early(mut self, protocol: Protocol) -> Option<World> {
        if protocol.reads_after_look || self.reader != 1 {
            return None;
        }
        self.using = !self.revoked;
        self.reader = 8;
        Some(self)
    }

    /// Lets the teller's store to `told` reach memory.
    fn tell_reader(&mut self) {
        self.told = self.telling.take().unwrap_or(self.told);
    }

    fn tell_domain(&mut self) {
        self.domain = self.telling_domain.take().unwrap_or(self.domain);
    }

    fn unlock_for_all(&mut self) {
        if self.unlocking && self.telling.is_none() && self.telling_domain.is_none() {
            self.unlocking = false;
            if self.lock == Some(Who::Teller) {
                self.lock = None;
            }
        }
    }

    /// Takes the revoker's next step: change the word, check the domain, lock or barrier, wait,
    /// free.
    fn revoke(mut self, protocol: Protocol) -> Option<World> {
        match self.revoker {
            0 => {
                self.revoking = true;
                self.revoker = 1;
            }
            1 => {
                self.found = self.domain;
                self.revoker = 2;
            }
            2 if !self.found => {
                self.revoke_for_all();
                self.drain(); // a heavy barrier
                self.revoker = 3;
            }
            2 | 3 if self.lock.is_some() => return None,
            2 => {
                self.lock = Some(Who::Revoker);
                self.revoker = 4;
            }
            3 => {
                self.lock = Some(Who::Revoker);
                self.revoker = 5;
            }
            4 if protocol.looks_again && !self.domain => {
                self.lock = None;
                self.found = false;
                self.revoker = 2;
            }
            4 => self.revoker = 8,
            8 => {
                self.revoke_for_all(); // a full fence
                self.revoker = 5;
            }
            // Reads `state` and unlocks the list. If `state` is odd, step 6 waits until it changes.
            5 => {
                self.lock = None;
                self.revoker = if self.odd { 6 } else { 7 };
            }
            6 if self.odd => return None,
            6 => self.revoker = 7,
            7 => {
                self.freed = true;
                self.revoker = 9;
            }
            _ => return None,
        }
        Some(self)
    }

    /// Takes the teller's next step: it tells the reader to fence, or to stop.
    fn tell(mut self, protocol: Protocol) -> Option<World> {
        let fence = self.changes % 2 == 1;
        match self.teller {
            0 if self.changes == 0 || self.unlocking => return None,
            0 if !fence && !protocol.locks_to_stop => self.teller = 1,
            0 if self.lock.is_some() => return None,
            0 => {
                self.lock = Some(Who::Teller);
                self.teller = 1;
            }
            1 if fence => {
                self.telling = Some(true);
                self.teller = 2;
            }
            1 => {
                self.telling_domain = Some(false);
                self.teller = 3;
            }
            2 => {
                if protocol.barrier_between {
                    self.tell_reader();
                    self.drain();
                }
                self.teller = 3;
            }
            3 if fence => {
                self.telling_domain = Some(true);
                self.teller = 4;
            }
            3 => {
                self.telling = Some(false);
                self.teller = 4;
            }
            _ => {
                self.unlocking = true;
                self.changes -= 1;
                self.teller = 0;
            }
        }
        Some(self)
    }
}

/// Returns whether the reader uses the freed page in any order of steps.
fn goes_wrong(protocol: Protocol) -> bool {
    // Readers begin fenced or not fenced, and there are one to four changes.
    let begins = [(false, 1), (false, 3), (true, 2), (true, 4)];
    begins.into_iter().any(|(fenced, changes)| {
        let begin = World {
            told: fenced,
            domain: fenced,
            sections: 2,
            changes,
            ..World::default()
        };
        let mut seen = HashSet::from([begin]);
        let mut open = vec![begin];
        while let Some(world) = open.pop() {
            if world.used_freed {
                return true;
            }
            let after = |reach_memory: fn(&mut World)| {
                let mut world = world;
                reach_memory(&mut world);
                Some(world)
            };
            let steps = [
                world.read(protocol),
                world.read_early(protocol),
                world.revoke(protocol),
                world.tell(protocol),
                after(World::drain_one),
                after(World::revoke_for_all),
                after(World::tell_reader),
                after(World::tell_domain),
                after(World::unlock_for_all),
            ];
            let new = steps
                .into_iter()
                .flatten()
                .filter(|next| seen.insert(*next));
            open.extend(new);
        }
        false
    })
}

#[test]
fn what_is_freed_after_a_grace_period_is_not_in_use_however_readers_are_told_to_fence() {
    assert!(!goes_wrong(WHOLE));
}

#[test]
fn each_step_of_telling_readers_is_needed() {
    let broken = [
        Protocol {
            barrier_between: false,
            ..WHOLE
        },
        Protocol {
            looks_again: false,
            ..WHOLE
        },
        Protocol {
            looks_inside: false,
            ..WHOLE
        },
        Protocol {
            reads_after_look: false,
            ..WHOLE
        },
        Protocol {
            locks_to_stop: false,
            ..WHOLE
        },
    ];
    for (number, protocol) in broken.into_iter().enumerate() {
        assert!(goes_wrong(protocol), "number {number}");
    }
}

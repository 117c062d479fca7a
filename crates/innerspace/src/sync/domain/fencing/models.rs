//! All interleavings of readers that are told to fence, and to stop, beside a revoker: the
//! machine's store buffers are part of the state, as in x86's memory model (Owens, Sarkar, Sewell:
//! "A better x86 memory model: x86-TSO", 2009). Each model is a program of a few steps, tried in
//! every order; nothing of it is the library's code, which the tests of `domain` run on the
//! processor itself.

use std::collections::HashSet;

/// The state of memory. The lock of the list is not in it: each step that holds it is taken as one,
/// where its order to the reader's does not matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct World {
    /// The reader's `state` is odd, as others see it; the reader's own is ahead of it while it is
    /// `buffered`.
    odd: bool,
    /// The stores to `odd` in the reader's buffer, oldest first; at most two are under way.
    buffered: [Option<bool>; 2],
    /// The reader's `fenced`, and the domain's.
    told: bool,
    domain: bool,
    /// Three flags: the word's change is in the revoker's store buffer; it is in memory; the page
    /// that the word led to was freed.
    revoking: bool,
    revoked: bool,
    freed: bool,
    lock: Option<Who>,
    reader: u8,
    /// Sections that the reader has left to do.
    sections: u8,
    /// The reader has found the old word, in this section.
    using: bool,
    revoker: u8,
    /// The revoker found the domain fenced.
    found: bool,
    teller: u8,
    /// The stores in the teller's buffer: to `told`, to `domain`, and the unlocking. Unlocking
    /// comes last; in which order the others reach memory is left open, which is more than x86
    /// does.
    telling: Option<bool>,
    telling_domain: Option<bool>,
    unlocking: bool,
    /// Changes that the teller has left to do; odd ones are "fence", even ones "stop".
    changes: u8,
    used_freed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Who {
    Revoker,
    Teller,
}

/// The protocol, with the parts that can be left out.
#[derive(Clone, Copy)]
struct Protocol {
    /// A heavy barrier between telling the reader and telling the domain.
    barrier_between: bool,
    /// The revoker looks again with the list locked.
    looks_again: bool,
    /// The reader looks at `fenced` after it has entered.
    looks_inside: bool,
    /// Its later reads are loaded after the look, by both the compiler and the processor.
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

    /// The oldest store of the reader reaches memory.
    fn drain_one(&mut self) {
        if let [Some(odd), next] = self.buffered {
            self.odd = odd;
            self.buffered = [next, None];
        }
    }

    /// A full fence of the reader, by itself or by a heavy barrier of another.
    fn drain(&mut self) {
        self.drain_one();
        self.drain_one();
    }

    /// The revoker's store reaches memory.
    fn revoke_for_all(&mut self) {
        self.revoked |= std::mem::take(&mut self.revoking);
    }

    /// The reader's next step: enter, look, fence if it was told, read the word, use it, leave.
    fn read(mut self, protocol: Protocol) -> Option<World> {
        // The number of the next step tells what the look found: 2 fences, 3 goes on without. 6 and
        // 7 are the same for a reader that looked before its section; 8 is a reader that has yet to
        // look and has loaded the word already.
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

    /// The reader's load of the word overtakes its look.
    fn read_early(mut self, protocol: Protocol) -> Option<World> {
        if protocol.reads_after_look || self.reader != 1 {
            return None;
        }
        self.using = !self.revoked;
        self.reader = 8;
        Some(self)
    }

    /// A store of the teller reaches memory; with all of them, its unlocking.
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

    /// The revoker's: change the word, look at the domain, lock or barrier, wait, free.
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
                self.drain(); // heavy
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
            // Reads `state`: even, or it waits until it has changed, with the list unlocked.
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

    /// Tells the reader to fence, or to stop.
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

/// Whether the reader uses the freed page, in any order of steps.
fn goes_wrong(protocol: Protocol) -> bool {
    // It begins fenced or not fenced, and there are one to four changes.
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

//! The asymmetric barrier: free on the side that runs often, expensive on the side that runs
//! seldom.
//!
//! An accessor announces itself and then reads a page-table entry. A revoker changes the entry and
//! then checks whether any accessor has announced itself. At least one of the two must see the
//! other. A full fence on every access costs more than the access itself. So the accessor only
//! prevents reordering by the compiler (the light side). The revoker makes every other processor
//! execute the fence in the accessor's place (the heavy side), by membarrier(2), command
//! `PRIVATE_EXPEDITED`. `docs/protocols/sections.md` says why that is right.
//!
//! **Without membarrier.** Where membarrier is missing (old kernel, a seccomp policy, another
//! system) or not wanted (model checkers, Miri, `--cfg portable`, the environment variable
//! `INNERSPACE_BARRIER=fences`), both sides are `SeqCst` fences, and the argument is the C++ memory
//! model's. ThreadSanitizer models neither form. Code that is to be checked by it therefore asks
//! for the [`BarrierMode`] and uses read-modify-writes in `Fences` mode.
//!
//! The mode is decided once in a process and never changes: threads with light fences and a revoker
//! without membarrier would corrupt data silently. (`sync::domain` makes readers fence for a time,
//! by a protocol of its own that begins with membarrier.)
//!
//! Sources: membarrier(2); the descriptions (not the code) of the asymmetric fences of C++ proposal
//! P1202, Folly and liburcu. This module knows nothing of sections and grace periods, which belong
//! to `sync`.

use crate::sync::atomic::{Ordering, fence};

/// The form of the two sides of the barrier in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BarrierMode {
    /// Light is a compiler fence, heavy is a system call that fences all running threads.
    Membarrier,
    /// Light and heavy are `SeqCst` fences.
    Fences,
}

impl BarrierMode {
    /// Performs the cheap side, between a reader's announcement and its read of a word that may be
    /// revoked.
    #[inline(always)]
    pub(crate) fn light(self) {
        match self {
            BarrierMode::Membarrier => crate::sync::atomic::compiler_fence(Ordering::SeqCst),
            BarrierMode::Fences => {
                std::hint::cold_path();
                fence(Ordering::SeqCst);
            }
        }
    }

    /// Performs the expensive side, between the revocation and the check for announcements.
    ///
    /// Takes about 0.4 us when no other thread runs. When another runs it takes 8 to 25 us, and
    /// that thread also loses some us. Batch these calls where possible. Where they take a large
    /// share of the time, fence on the light side instead, as `sync::domain` does.
    ///
    /// # Panics
    /// If the kernel granted membarrier at the start and refuses it now, because of a seccomp
    /// policy that was installed meanwhile. There is no sound way to continue.
    #[inline]
    pub(crate) fn heavy(self) {
        match self {
            BarrierMode::Membarrier => platform::heavy(),
            BarrierMode::Fences => fence(Ordering::SeqCst),
        }
    }
}

/// Returns the mode of this process. The first call detects the mode, which never changes.
#[inline]
pub(crate) fn mode() -> BarrierMode {
    platform::mode()
}

/// Performs the cheap side in the process's mode.
#[cfg(test)]
pub(crate) fn light() {
    mode().light();
}

/// Performs the expensive side in the process's mode. See [`BarrierMode::heavy`].
pub(crate) fn heavy() {
    mode().heavy();
}

#[cfg(all(target_os = "linux", not(any(portable, loom, shuttle, miri))))]
mod platform {
    use std::io;
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    use super::BarrierMode;

    #[inline]
    pub(super) fn mode() -> BarrierMode {
        static MODE: OnceLock<BarrierMode> = OnceLock::new();
        *MODE.get_or_init(|| {
            let told = std::env::var_os("INNERSPACE_BARRIER").is_some_and(|to| to == "fences");
            match !told && register() {
                true => BarrierMode::Membarrier,
                false => BarrierMode::Fences,
            }
        })
    }

    fn membarrier(command: libc::c_int) -> io::Result<()> {
        // SAFETY: the call reads and writes no memory of ours. Flags and processor number are 0, as
        // both commands used here demand.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Tells the kernel that this process will use the expedited command, and tries the command
    /// once. Returns whether both succeeded.
    fn register() -> bool {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok()
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_ok()
    }

    pub(super) fn heavy() {
        compiler_fence(Ordering::SeqCst);
        // The registration belongs to the address space, so it is renewed in a child of fork(2)
        // that lost it.
        let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_ok() || register();
        assert!(
            done,
            "membarrier(2) was granted at the start of the process and is refused now"
        );
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(not(all(target_os = "linux", not(any(portable, loom, shuttle, miri)))))]
mod platform {
    use super::BarrierMode;

    #[inline(always)]
    pub(super) fn mode() -> BarrierMode {
        BarrierMode::Fences
    }

    pub(super) fn heavy() {
        unreachable!("the mode is always Fences here");
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::{Arc, thread};

    #[repr(align(128))]
    #[derive(Default)]
    struct Alone(AtomicU32);

    #[derive(Default)]
    struct Dekker {
        announced: Alone,
        revoked: Alone,
        round: [Alone; 2],
    }

    impl Dekker {
        /// Waits until the other side has entered `round` too. It uses only release and acquire:
        /// draining the store buffer is left to the barrier. Outside Miri it seldom yields, so that
        /// both sides leave at almost the same moment.
        fn meet(&self, me: usize, round: u32) {
            // The load brings the other side's word into this cache, so that a slow store races
            // with a fast load.
            let other = [&self.revoked, &self.announced][me]
                .0
                .load(Ordering::Relaxed);
            assert!(other < round, "the word of round {round} before it began");
            self.round[me].0.store(round, Ordering::Release);
            let mut spins = 0;
            while self.round[1 - me].0.load(Ordering::Acquire) < round {
                spins += 1;
                if cfg!(miri) || spins % 4096 == 0 {
                    thread::yield_now();
                }
            }
        }
    }

    /// Counts the rounds in which neither side saw the other. Both sides meet before the next
    /// round's words are written, so a round never sees those words.
    fn rounds_unseen(rounds: u32, light: fn(), heavy: fn()) -> usize {
        let shared = Arc::new(Dekker::default());
        let theirs = shared.clone();
        let accessor = thread::spawn(move || {
            let mut saw = Vec::new();
            for round in 1..=rounds {
                theirs.meet(0, round);
                theirs.announced.0.store(round, Ordering::Relaxed);
                light();
                saw.push(theirs.revoked.0.load(Ordering::Relaxed) == round);
            }
            saw
        });
        let mut unseen = Vec::new();
        for round in 1..=rounds {
            shared.meet(1, round);
            shared.revoked.0.store(round, Ordering::Relaxed);
            heavy();
            unseen.push(shared.announced.0.load(Ordering::Relaxed) != round);
        }
        let saw = accessor.join().expect("the accessor's thread");
        unseen
            .iter()
            .zip(&saw)
            .filter(|(unseen, saw)| **unseen && !**saw)
            .count()
    }

    const ROUNDS: u32 = if cfg!(miri) { 50 } else { 50_000 };

    // Both modes are in one test. Two tests would run at the same time and take each other's
    // processors, and the two threads of a pair would hardly ever run at the same moment.
    #[test]
    fn one_side_always_sees_the_other() {
        assert_eq!(
            rounds_unseen(ROUNDS, light, heavy),
            0,
            "in {:?} mode",
            mode()
        );
        let fences = (
            || BarrierMode::Fences.light(),
            || BarrierMode::Fences.heavy(),
        );
        assert_eq!(rounds_unseen(ROUNDS, fences.0, fences.1), 0, "with fences");
    }

    #[cfg(all(target_os = "linux", not(portable), not(miri)))]
    mod detection {
        use std::os::unix::process::CommandExt;
        use std::process::Command;

        use super::*;

        const CHILD: &str = "INNERSPACE_TEST_WANTS_FENCES";

        /// Returns a command that runs only the test `the_child_has_fences` of this test binary.
        fn child() -> Command {
            let mut command = Command::new(std::env::current_exe().expect("path of the test"));
            command.args([
                "--exact",
                "sys::barrier::tests::detection::the_child_has_fences",
            ]);
            command.env(CHILD, "1").env_remove("INNERSPACE_BARRIER");
            command
        }

        fn assert_passes(mut command: Command) {
            let output = command.output().expect("the child runs");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && text.contains("1 passed"),
                "{text}"
            );
        }

        #[test]
        fn the_child_has_fences() {
            if std::env::var_os(CHILD).is_some() {
                assert_eq!(mode(), BarrierMode::Fences);
                assert_eq!(rounds_unseen(ROUNDS, light, heavy), 0);
            }
        }

        #[test]
        fn fences_are_used_where_the_environment_asks_for_them() {
            let mut command = child();
            command.env("INNERSPACE_BARRIER", "fences");
            assert_passes(command);
        }

        #[test]
        fn fences_are_used_where_a_policy_refuses_membarrier() {
            for errno in [libc::EPERM, libc::ENOSYS] {
                let mut command = child();
                // SAFETY: the closure runs between fork and exec, makes two system calls and
                // allocates nothing.
                unsafe { command.pre_exec(move || refuse_membarrier(errno)) };
                assert_passes(command);
            }
        }

        /// Runs tests of the layers above once more, in a process that is refused membarrier.
        // spec: A14
        #[test]
        fn the_suite_passes_without_membarrier() {
            const LAYERS: [&str; 6] = [
                "sync::",
                "frame::",
                "reclaim::",
                "cache::",
                "space::",
                "memory::",
            ];
            let mut command = Command::new(std::env::current_exe().expect("path of the test"));
            command.args(LAYERS).arg("the_child_has_fences");
            command.env(CHILD, "1").env_remove("INNERSPACE_BARRIER");
            // SAFETY: the closure runs between fork and exec, makes two system calls and allocates
            // nothing.
            unsafe { command.pre_exec(|| refuse_membarrier(libc::EPERM)) };
            let output = command.output().expect("the child runs");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}");
            for layer in LAYERS.iter().chain(&["the_child_has_fences"]) {
                let ran = |line: &str| line.contains(layer) && line.ends_with("... ok");
                assert!(text.lines().any(ran), "nothing of {layer} ran");
            }
        }

        /// Installs a seccomp filter that answers membarrier with `errno` and allows all other
        /// calls.
        fn refuse_membarrier(errno: libc::c_int) -> std::io::Result<()> {
            let filter = |code: u32, jump_true, jump_false, k| libc::sock_filter {
                code: code as u16,
                jt: jump_true,
                jf: jump_false,
                k,
            };
            let mut program = [
                // The number of the call is the first word of `struct seccomp_data`.
                filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
                filter(
                    libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                    0,
                    1,
                    libc::SYS_membarrier as u32,
                ),
                filter(
                    libc::BPF_RET | libc::BPF_K,
                    0,
                    0,
                    libc::SECCOMP_RET_ERRNO | errno as u32,
                ),
                filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let program = libc::sock_fprog {
                len: program.len() as u16,
                filter: program.as_mut_ptr(),
            };
            // SAFETY: the filter program outlives the calls, which copy it.
            let result = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
                    | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
            };
            if result != 0 {
                Err(std::io::Error::last_os_error())
            } else {
                Ok(())
            }
        }
    }
}

//! The bare loop: direct reads by io_uring, so many in flight, one thread.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use io_uring::{IoUring, opcode, types};

/// Reads of `len` bytes at the offsets, `depth` in flight; `check` gets each with its offset.
pub(super) fn read(
    path: &Path,
    len: usize,
    depth: usize,
    mut offsets: impl Iterator<Item = u64>,
    mut check: impl FnMut(&[u8], u64),
) -> io::Result<()> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut ring = IoUring::new(depth.next_power_of_two() as u32)?;
    let fd = types::Fd(file.as_raw_fd());
    // Aligned as direct I/O wants it.
    let mut memory = vec![0u8; depth * len + 4096];
    let begin = memory.as_ptr().addr().wrapping_neg() % 4096;
    let base = memory[begin..].as_mut_ptr();
    let mut at = vec![0u64; depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let mut in_flight = 0;
    loop {
        while let Some(slot) = free.last().copied()
            && let Some(offset) = offsets.next()
        {
            free.pop();
            at[slot] = offset;
            // SAFETY: each slot has `len` bytes of `memory` of its own.
            let buffer = unsafe { base.add(slot * len) };
            let read = opcode::Read::new(fd, buffer, len as u32).offset(offset);
            let entry = read.build().user_data(slot as u64);
            // SAFETY: the memory and the file outlive the loop, which ends when nothing is in flight.
            unsafe { ring.submission().push(&entry) }
                .expect("the ring has room for all that are in flight");
            in_flight += 1;
        }
        if in_flight == 0 {
            return Ok(());
        }
        if let Err(error) = ring.submit_and_wait(1) {
            // Reads are in flight, to memory of this function.
            eprintln!("{error}");
            std::process::exit(1);
        }
        for entry in ring.completion() {
            let slot = entry.user_data() as usize;
            let count = usize::try_from(entry.result());
            let Ok(count) = count else {
                // Other reads are in flight, to memory of this function.
                eprintln!("{}", io::Error::from_raw_os_error(-entry.result()));
                std::process::exit(1);
            };
            // SAFETY: the kernel is done with this slot's bytes.
            let bytes = unsafe { std::slice::from_raw_parts(base.add(slot * len), count) };
            check(bytes, at[slot]);
            free.push(slot);
            in_flight -= 1;
        }
    }
}

//! Accesses to one aligned piece of shared memory, of 1, 2 or 4 bytes.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

/// The unit that is never torn, in bytes.
pub(super) const WORD: usize = 8;

/// Records a shared access of the portable form in tests; does nothing elsewhere.
#[inline(always)]
pub(super) fn accessed(address: *const u8, size: usize) {
    #[cfg(test)]
    super::trace::record(address.addr(), size);
    #[cfg(not(test))]
    let _ = (address, size);
}

/// Reads an aligned shared piece of `size` bytes (1, 2 or 4) as one access; the rest is zero.
///
/// Safety: `address` is aligned to `size` and valid for reads that others may race with.
#[inline(always)]
pub(super) unsafe fn get_piece(address: *const u8, size: usize) -> [u8; 4] {
    accessed(address, size);
    let address = address.cast_mut();
    let mut piece = [0; 4];
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => piece[0] = AtomicU8::from_ptr(address).load(Ordering::Relaxed),
            2 => {
                let half = AtomicU16::from_ptr(address.cast()).load(Ordering::Relaxed);
                piece[..2].copy_from_slice(&half.to_ne_bytes());
            }
            _ => {
                piece = AtomicU32::from_ptr(address.cast())
                    .load(Ordering::Relaxed)
                    .to_ne_bytes()
            }
        }
    }
    piece
}

/// Writes `size` bytes (1, 2 or 4) from private memory to an aligned shared piece as one access.
///
/// Safety: `address` is aligned to `size` and valid for writes that others may race with; `from` is
/// valid for reads of `size` bytes that nobody writes.
#[inline(always)]
pub(super) unsafe fn put_piece(address: *mut u8, from: *const u8, size: usize) {
    accessed(address, size);
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(address).store(from.read(), Ordering::Relaxed),
            2 => AtomicU16::from_ptr(address.cast())
                .store(from.cast::<u16>().read_unaligned(), Ordering::Relaxed),
            _ => AtomicU32::from_ptr(address.cast())
                .store(from.cast::<u32>().read_unaligned(), Ordering::Relaxed),
        }
    }
}

/// Writes the first `size` bytes (1, 2 or 4) of a piece to private memory at any alignment.
///
/// Safety: `address` is valid for writes of `size` bytes, and nobody else uses them.
#[inline(always)]
pub(super) unsafe fn put_private(address: *mut u8, piece: [u8; 4], size: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => address.write(piece[0]),
            2 => address.cast::<[u8; 2]>().write([piece[0], piece[1]]),
            _ => address.cast::<[u8; 4]>().write(piece),
        }
    }
}

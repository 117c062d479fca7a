//! Single accesses to shared bytes: loads and stores of 1 to 16 bytes at any alignment, and
//! read-modify-writes at aligned addresses.
//!
//! An aligned load or store of up to 8 bytes is one access. On x86-64 every load or store of up to
//! 8 bytes compiles to a single `mov` without a branch, and the processor's moves are atomic when
//! aligned. The load is a volatile access of an unaligned type, whose races the target defines. The
//! store is assembly, because the compiler sends such a volatile store through the stack.
//!
//! Elsewhere (and under Miri, the models and `--cfg portable`) an aligned access is a relaxed
//! atomic, and an unaligned one goes byte by byte. An access of 16 bytes is two halves of 8.

use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
};

/// A plain number of 1, 2, 4, 8 or 16 bytes: the unit of a typed load or store. Every pattern of
/// bits is a value, and there is no padding.
///
/// Implemented for the integers `u8` to `u128` and `i8` to `i128`, and for `f32` and `f64`, in the
/// byte order of the machine. No other crate can implement it.
pub trait Scalar: Copy + Send + Sync + 'static + private::Access {}

/// An integer of 1, 2, 4 or 8 bytes: the unit of an atomic access. The address must be a multiple
/// of its size.
///
/// No other crate can implement this trait.
pub trait AtomicScalar: Scalar + Eq + private::AtomicAccess {}

/// Whether loads and stores are plain moves in this build.
const MOVES: bool = cfg!(all(
    target_arch = "x86_64",
    not(any(portable, shuttle, miri, loom))
));

use private::Access;
pub(crate) use private::Modify;

mod private {
    use std::sync::atomic::Ordering;

    /// The accesses of a scalar: plain moves if `MOVES`, and otherwise the portable form. Tests
    /// compare the two.
    ///
    /// Safety of all methods: the address stays valid for the access during the call, at any
    /// alignment. Others may access the same bytes, but only through this module or atomics.
    #[allow(
        clippy::missing_safety_doc,
        reason = "stated once for the whole trait, which is private"
    )]
    pub trait Access: Sized {
        unsafe fn load<const MOVES: bool>(address: *const u8) -> Self;
        unsafe fn store<const MOVES: bool>(address: *mut u8, value: Self);
    }

    /// The operation of a read-modify-write.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Modify {
        Swap,
        /// Wraps around, as `Subtract` does.
        Add,
        Subtract,
        And,
        Or,
        Xor,
        Min,
        Max,
    }

    /// The atomic accesses of a scalar. Safety: as for [`Access`], and the address is a multiple of
    /// the size.
    #[allow(
        clippy::missing_safety_doc,
        reason = "stated once for the whole trait, which is private"
    )]
    pub trait AtomicAccess: Sized {
        unsafe fn load_atomic(at: *const u8, order: Ordering) -> Self;
        unsafe fn store_atomic(at: *mut u8, value: Self, order: Ordering);
        unsafe fn compare_exchange(
            at: *mut u8,
            current: Self,
            new: Self,
            orders: [Ordering; 2],
        ) -> Result<Self, Self>;
        unsafe fn modify(at: *mut u8, how: Modify, operand: Self, order: Ordering) -> Self;
    }
}

/// Loads from shared bytes.
///
/// # Safety
/// `address` stays valid for reads of `size_of::<T>()` bytes during the call, at any alignment.
/// Others may write them, but only through this module or atomics.
#[inline(always)]
pub(crate) unsafe fn load<T: Scalar>(address: *const u8) -> T {
    crate::sync::interleave();
    // SAFETY: the caller's promise is the same.
    unsafe { T::load::<MOVES>(address) }
}

/// Stores to shared bytes.
///
/// # Safety
/// `address` stays valid for writes of `size_of::<T>()` bytes during the call, at any alignment.
/// Others may read and write them, but only through this module or atomics.
#[inline(always)]
pub(crate) unsafe fn store<T: Scalar>(address: *mut u8, value: T) {
    crate::sync::interleave();
    // SAFETY: the caller's promise is the same.
    unsafe { T::store::<MOVES>(address, value) }
}

/// Loads a value with the given ordering.
///
/// # Safety
/// `address` is valid for reads and writes of `size_of::<T>()` bytes, and a multiple of that size.
/// Others may read and write them, but only through this module or atomics.
#[inline(always)]
pub(crate) unsafe fn load_atomic<T: AtomicScalar>(address: *const u8, order: Ordering) -> T {
    debug_assert!(address.addr().is_multiple_of(size_of::<T>()));
    crate::sync::interleave();
    // SAFETY: the caller's promise is the same.
    unsafe { T::load_atomic(address, order) }
}

/// Stores a value with the given ordering.
///
/// # Safety
/// As for [`load_atomic`].
#[inline(always)]
pub(crate) unsafe fn store_atomic<T: AtomicScalar>(address: *mut u8, value: T, order: Ordering) {
    debug_assert!(address.addr().is_multiple_of(size_of::<T>()));
    crate::sync::interleave();
    // SAFETY: the caller's promise is the same.
    unsafe { T::store_atomic(address, value, order) }
}

/// Replaces the value with `new` if it is `current`, with the first ordering, and returns
/// `current`. Otherwise returns the value as `Err`, loaded with the second ordering.
///
/// # Safety
/// As for [`load_atomic`].
#[inline(always)]
pub(crate) unsafe fn compare_exchange<T: AtomicScalar>(
    address: *mut u8,
    current: T,
    new: T,
    orders: [Ordering; 2],
) -> Result<T, T> {
    debug_assert!(address.addr().is_multiple_of(size_of::<T>()));
    crate::sync::interleave();
    // SAFETY: the caller's promise is the same.
    unsafe { T::compare_exchange(address, current, new, orders) }
}

/// Applies `how` to a value and `operand`, stores the result, and returns the previous value.
///
/// # Safety
/// As for [`load_atomic`].
#[inline(always)]
pub(crate) unsafe fn modify<T: AtomicScalar>(
    address: *mut u8,
    how: Modify,
    operand: T,
    order: Ordering,
) -> T {
    debug_assert!(address.addr().is_multiple_of(size_of::<T>()));
    crate::sync::interleave();
    // SAFETY: the caller's promise is the same.
    unsafe { T::modify(address, how, operand, order) }
}

/// A wrapper with an alignment of 1, so that a volatile access to it is one unaligned move.
#[repr(C, packed)]
struct Unaligned<T>(T);

macro_rules! integers {
    ($($integer:ty, $atomic:ty, $store:literal, $class:ident;)*) => {$(
        impl Scalar for $integer {}
        impl AtomicScalar for $integer {}

        impl Access for $integer {
            #[inline(always)]
            unsafe fn load<const MOVES: bool>(address: *const u8) -> Self {
                // SAFETY: valid by the trait's promise. `Unaligned` has an alignment of 1. The
                // atomic is used only if the address is aligned for it.
                unsafe {
                    if MOVES {
                        address.cast::<Unaligned<Self>>().read_volatile().0
                    } else if address.cast::<$atomic>().is_aligned() {
                        <$atomic>::from_ptr(address.cast_mut().cast()).load(Ordering::Relaxed)
                    } else {
                        Self::from_ne_bytes(load_bytes(address))
                    }
                }
            }

            #[inline(always)]
            unsafe fn store<const MOVES: bool>(address: *mut u8, value: Self) {
                // SAFETY: as above. The instruction needs no alignment.
                unsafe {
                    #[cfg(target_arch = "x86_64")]
                    if MOVES {
                        std::arch::asm!(
                            $store,
                            address = in(reg) address,
                            value = in($class) value,
                            options(nostack, preserves_flags),
                        );
                        return;
                    }
                    if address.cast::<$atomic>().is_aligned() {
                        <$atomic>::from_ptr(address.cast()).store(value, Ordering::Relaxed);
                    } else {
                        store_bytes(address, value.to_ne_bytes());
                    }
                }
            }
        }

        impl private::AtomicAccess for $integer {
            #[inline(always)]
            unsafe fn load_atomic(at: *const u8, order: Ordering) -> Self {
                // SAFETY: valid and aligned by the trait's promise.
                unsafe { <$atomic>::from_ptr(at.cast_mut().cast()) }.load(order)
            }

            #[inline(always)]
            unsafe fn store_atomic(at: *mut u8, value: Self, order: Ordering) {
                // SAFETY: as above.
                unsafe { <$atomic>::from_ptr(at.cast()) }.store(value, order)
            }

            #[inline(always)]
            unsafe fn compare_exchange(
                at: *mut u8,
                current: Self,
                new: Self,
                [success, failure]: [Ordering; 2],
            ) -> Result<Self, Self> {
                // SAFETY: as above.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                word.compare_exchange(current, new, success, failure)
            }

            #[inline(always)]
            unsafe fn modify(at: *mut u8, how: Modify, operand: Self, order: Ordering) -> Self {
                // SAFETY: as above.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                match how {
                    Modify::Swap => word.swap(operand, order),
                    Modify::Add => word.fetch_add(operand, order),
                    Modify::Subtract => word.fetch_sub(operand, order),
                    Modify::And => word.fetch_and(operand, order),
                    Modify::Or => word.fetch_or(operand, order),
                    Modify::Xor => word.fetch_xor(operand, order),
                    Modify::Min => word.fetch_min(operand, order),
                    Modify::Max => word.fetch_max(operand, order),
                }
            }
        }
    )*};
}

integers! {
    u8, AtomicU8, "mov byte ptr [{address}], {value}", reg_byte;
    u16, AtomicU16, "mov word ptr [{address}], {value:x}", reg;
    u32, AtomicU32, "mov dword ptr [{address}], {value:e}", reg;
    u64, AtomicU64, "mov qword ptr [{address}], {value:r}", reg;
    i8, AtomicI8, "mov byte ptr [{address}], {value}", reg_byte;
    i16, AtomicI16, "mov word ptr [{address}], {value:x}", reg;
    i32, AtomicI32, "mov dword ptr [{address}], {value:e}", reg;
    i64, AtomicI64, "mov qword ptr [{address}], {value:r}", reg;
}

macro_rules! floats {
    ($($float:ty, $integer:ty;)*) => {$(
        impl Scalar for $float {}

        impl Access for $float {
            #[inline(always)]
            unsafe fn load<const MOVES: bool>(address: *const u8) -> Self {
                // SAFETY: the trait's promise, for the integer of the same size.
                <$float>::from_bits(unsafe { <$integer>::load::<MOVES>(address) })
            }

            #[inline(always)]
            unsafe fn store<const MOVES: bool>(address: *mut u8, value: Self) {
                // SAFETY: as above.
                unsafe { <$integer>::store::<MOVES>(address, value.to_bits()) }
            }
        }
    )*};
}

floats! {
    f32, u32;
    f64, u64;
}

macro_rules! wide_integers {
    ($($integer:ty;)*) => {$(
        impl Scalar for $integer {}

        impl Access for $integer {
            #[inline(always)]
            unsafe fn load<const MOVES: bool>(address: *const u8) -> Self {
                // SAFETY: the trait's promise covers both halves. They have all of the value's
                // bytes, and every pattern of bits is a value.
                unsafe {
                    let halves = [u64::load::<MOVES>(address), u64::load::<MOVES>(address.add(8))];
                    std::mem::transmute::<[u64; 2], Self>(halves)
                }
            }

            #[inline(always)]
            unsafe fn store<const MOVES: bool>(address: *mut u8, value: Self) {
                // SAFETY: as above.
                unsafe {
                    let [first, second] = std::mem::transmute::<Self, [u64; 2]>(value);
                    u64::store::<MOVES>(address, first);
                    u64::store::<MOVES>(address.add(8), second);
                }
            }
        }
    )*};
}

wide_integers! {
    u128;
    i128;
}

/// Loads byte by byte. Safety: `address` is valid for reads of `N` bytes. Others may access them,
/// but only through this module or atomics.
unsafe fn load_bytes<const N: usize>(address: *const u8) -> [u8; N] {
    // SAFETY: `i < N`.
    std::array::from_fn(|i| unsafe {
        AtomicU8::from_ptr(address.cast_mut().add(i)).load(Ordering::Relaxed)
    })
}

/// Stores byte by byte. Safety: `address` is valid for writes of `N` bytes. Others may access them,
/// but only through this module or atomics.
unsafe fn store_bytes<const N: usize>(address: *mut u8, bytes: [u8; N]) {
    for (i, byte) in bytes.into_iter().enumerate() {
        // SAFETY: `i < N`.
        unsafe { AtomicU8::from_ptr(address.add(i)).store(byte, Ordering::Relaxed) }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// Stores and loads `value` at every alignment, in each form of the store with each form of the
    /// load. The neighbouring bytes must not change.
    fn round_trip<T: Scalar + PartialEq + Debug>(value: T) {
        let size = size_of::<T>();
        type Load<T> = unsafe fn(*const u8) -> T;
        type Store<T> = unsafe fn(*mut u8, T);
        let mut loads: Vec<Load<T>> = vec![T::load::<false>, load::<T>];
        let mut stores: Vec<Store<T>> = vec![T::store::<false>, store::<T>];
        if cfg!(all(target_arch = "x86_64", not(miri))) {
            loads.push(T::load::<true>);
            stores.push(T::store::<true>);
        }
        for offset in 0..16 {
            for store in &stores {
                let mut room = [0xA5_u8; 48];
                // SAFETY: the 16 bytes from offset 16 + 15 on are inside the 48 bytes.
                let seen = unsafe {
                    let address = room.as_mut_ptr().add(16 + offset);
                    store(address, value);
                    loads.iter().map(|load| load(address)).collect::<Vec<_>>()
                };
                assert!(
                    seen.iter().all(|seen| *seen == value),
                    "{seen:?} for {value:?}"
                );
                let around = room.iter().enumerate().all(|(i, byte)| {
                    (16 + offset..16 + offset + size).contains(&i) || *byte == 0xA5
                });
                assert!(
                    around,
                    "a store of {size} bytes at {offset} wrote beside them: {room:x?}"
                );
            }
        }
    }

    #[test]
    fn scalars_round_trip_at_every_alignment() {
        round_trip(0x12_u8);
        round_trip(0x1234_u16);
        round_trip(0x1234_5678_u32);
        round_trip(0x1234_5678_9abc_def0_u64);
        round_trip(0x1234_5678_9abc_def0_0fed_cba9_8765_4321_u128);
        round_trip(-2_i8);
        round_trip(-2345_i16);
        round_trip(-234_567_i32);
        round_trip(-2_345_678_901_234_i64);
        round_trip(-170_141_183_460_469_231_731_687_303_715_i128);
        round_trip(1.5_f32);
        round_trip(-2.25e100_f64);
    }

    #[test]
    fn memory_order_is_the_machines() {
        let mut room: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
        let (bytes, shared) = (room, room.as_mut_ptr());
        // SAFETY: the array has 16 bytes.
        unsafe {
            assert_eq!(load::<u128>(shared), u128::from_ne_bytes(bytes));
            assert_eq!(load::<u16>(shared.add(1)), u16::from_ne_bytes([2, 3]));
        }
    }

    #[test]
    fn read_modify_writes_do_what_their_names_say() {
        fn check<T: AtomicScalar + Debug>(three: T, four: T, seven: T) {
            let mut room = 0_u64;
            let address = (&raw mut room).cast::<u8>();
            // SAFETY: the room has 8 aligned bytes.
            unsafe {
                store(address, three);
                assert_eq!(
                    compare_exchange(address, four, seven, [Ordering::SeqCst; 2]),
                    Err(three)
                );
                assert_eq!(
                    compare_exchange(address, three, four, [Ordering::SeqCst; 2]),
                    Ok(three)
                );
                assert_eq!(modify(address, Modify::Add, three, Ordering::SeqCst), four);
                assert_eq!(
                    modify(address, Modify::Swap, three, Ordering::SeqCst),
                    seven
                );
                assert_eq!(load::<T>(address), three);
            }
        }
        check::<u8>(3, 4, 7);
        check::<u16>(3, 4, 7);
        check::<u32>(3, 4, 7);
        check::<u64>(3, 4, 7);
        check::<i8>(-3, -4, -7);
        check::<i16>(-3, -4, -7);
        check::<i32>(-3, -4, -7);
        check::<i64>(-3, -4, -7);
    }
}

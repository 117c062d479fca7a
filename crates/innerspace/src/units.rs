//! Units as types, so that a frame number, an address and a count of pages are never mixed up.

use std::fmt;
use std::ops::{Bound, RangeBounds};

/// One kibibyte, in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte, in bytes.
pub const GIB: u64 = 1 << 30;

/// The base-2 logarithm of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// The page size: 4096 bytes, whatever the host's page size is.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

/// Returns the first number of a range, and the number after its last one (`None` if the range has
/// no end).
#[inline]
pub(crate) fn start_and_end(range: &impl RangeBounds<u64>) -> (u64, Option<u64>) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => Some(last.saturating_add(1)),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => None,
    };
    (start, end)
}

/// Returns `len` zeros on the heap, or `None` if that much memory cannot be allocated.
pub(crate) fn zeros(len: u64) -> Option<Vec<u8>> {
    let len = usize::try_from(len).ok()?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    Some(bytes)
}

/// The number of a frame of the arena, valid only in its own `Memory`. Frame 0 is the zero frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct FrameId(pub(crate) u32);

impl FrameId {
    /// The common zero frame, which is never written, counted, charged or listed (I4).
    pub(crate) const ZERO: FrameId = FrameId(0);

    /// Returns the frame's number as an array index.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// An address in a space. It is not a host address and cannot be dereferenced.
///
/// ```
/// use innerspace::VirtAddr;
/// let at: VirtAddr = "0x7f_1000".parse()?;
/// assert_eq!((at.page(), at.page_offset()), (0x7f1, 0));
/// assert_eq!(at + 0x234, VirtAddr(0x7f1234));
/// assert_eq!(VirtAddr(0x7f1234) - at, 0x234);
/// # Ok::<(), innerspace::ParseVirtAddrError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// Returns the number of the page that contains the address.
    pub fn page(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// Returns the address's offset inside its page, `0..PAGE_SIZE`.
    pub fn page_offset(self) -> usize {
        self.0 as usize & (PAGE_SIZE - 1)
    }

    /// Returns the address `bytes` after this one, or `None` if that does not fit in 64 bits.
    pub fn checked_add(self, bytes: u64) -> Option<VirtAddr> {
        self.0.checked_add(bytes).map(VirtAddr)
    }
}

impl From<u64> for VirtAddr {
    fn from(address: u64) -> VirtAddr {
        VirtAddr(address)
    }
}

impl From<VirtAddr> for u64 {
    fn from(address: VirtAddr) -> u64 {
        address.0
    }
}

impl std::ops::Add<u64> for VirtAddr {
    type Output = VirtAddr;

    /// Returns the address `bytes` after this one. Wraps around at 2^64, where no space has
    /// addresses.
    fn add(self, bytes: u64) -> VirtAddr {
        VirtAddr(self.0.wrapping_add(bytes))
    }
}

impl std::ops::AddAssign<u64> for VirtAddr {
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

impl std::ops::Sub<u64> for VirtAddr {
    type Output = VirtAddr;

    /// Returns the address `bytes` before this one. Wraps around below 0, to addresses that are in
    /// no space.
    fn sub(self, bytes: u64) -> VirtAddr {
        VirtAddr(self.0.wrapping_sub(bytes))
    }
}

impl std::ops::SubAssign<u64> for VirtAddr {
    fn sub_assign(&mut self, bytes: u64) {
        *self = *self - bytes;
    }
}

impl std::ops::Sub for VirtAddr {
    type Output = u64;

    /// Returns the number of bytes from `start` to this address. Wraps around at 2^64 if `start` is
    /// larger.
    fn sub(self, start: VirtAddr) -> u64 {
        self.0.wrapping_sub(start.0)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The error for a text that is not a [`VirtAddr`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no address: write it as 0x7f00_0000, or in decimal digits; at most 64 bits")]
pub struct ParseVirtAddrError {
    text: String,
}

impl From<ParseVirtAddrError> for std::io::Error {
    fn from(error: ParseVirtAddrError) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidInput, error)
    }
}

/// Reads an address as [`Display`](fmt::Display) prints it (`0x7f0000`), or in decimal digits. Both
/// may have `_` anywhere after the first digit.
impl std::str::FromStr for VirtAddr {
    type Err = ParseVirtAddrError;

    fn from_str(text: &str) -> Result<VirtAddr, ParseVirtAddrError> {
        let prefixed = text.strip_prefix("0x").or(text.strip_prefix("0X"));
        let (digits, radix) = prefixed.map_or((text, 10), |digits| (digits, 16));
        let is_plain = digits.starts_with(|first: char| first.is_digit(radix));
        let parsed = u64::from_str_radix(&digits.replace('_', ""), radix);
        let address = parsed.ok().filter(|_| is_plain).map(VirtAddr);
        address.ok_or_else(|| ParseVirtAddrError {
            text: text.to_owned(),
        })
    }
}

impl fmt::LowerHex for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::UpperHex for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::UpperHex::fmt(&self.0, f)
    }
}

/// A number of pages of [`PAGE_SIZE`] bytes.
///
/// ```
/// use innerspace::PageCount;
/// assert_eq!((PageCount::floor(5000), PageCount::ceil(5000)), (PageCount(1), PageCount(2)));
/// assert_eq!(PageCount(2).bytes(), 8192);
/// assert_eq!(PageCount(2).to_string(), "2 pages");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PageCount(pub u64);

impl PageCount {
    /// Returns the number of whole pages that fit into `bytes`.
    pub fn floor(bytes: u64) -> PageCount {
        PageCount(bytes >> PAGE_SHIFT)
    }

    /// Returns the number of pages needed to hold `bytes`.
    pub const fn ceil(bytes: u64) -> PageCount {
        PageCount(bytes.div_ceil(PAGE_SIZE as u64))
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// Returns the number of pages left when `others` are subtracted, or 0 if there are fewer than
    /// `others`.
    #[must_use]
    pub const fn saturating_sub(self, others: PageCount) -> PageCount {
        PageCount(self.0.saturating_sub(others.0))
    }
}

/// Adds two counts. Panics or wraps around where `u64` addition does.
impl std::ops::Add for PageCount {
    type Output = PageCount;

    fn add(self, others: PageCount) -> PageCount {
        PageCount(self.0 + others.0)
    }
}

impl std::ops::AddAssign for PageCount {
    fn add_assign(&mut self, others: PageCount) {
        *self = *self + others;
    }
}

/// Subtracts a count. Panics or wraps around where `u64` subtraction does.
impl std::ops::Sub for PageCount {
    type Output = PageCount;

    fn sub(self, others: PageCount) -> PageCount {
        PageCount(self.0 - others.0)
    }
}

impl std::ops::SubAssign for PageCount {
    fn sub_assign(&mut self, others: PageCount) {
        *self = *self - others;
    }
}

impl std::iter::Sum for PageCount {
    fn sum<I: Iterator<Item = PageCount>>(counts: I) -> PageCount {
        counts.fold(PageCount(0), std::ops::Add::add)
    }
}

impl fmt::Display for PageCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 page"),
            pages => write!(f, "{} pages", Grouped(pages)),
        }
    }
}

/// Prints a byte count for people: `64.0 MiB`, `512 B`.
///
/// ```
/// assert_eq!(innerspace::ByteSize(64 << 20).to_string(), "64.0 MiB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= GIB => (GIB, "GiB"),
            n if n >= MIB => (MIB, "MiB"),
            n if n >= KIB => (KIB, "KiB"),
            n => return write!(f, "{n} B"),
        };
        write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
    }
}

/// Prints a number with thousands separators: `1,073,741,824`.
///
/// ```
/// assert_eq!(innerspace::Grouped(1 << 30).to_string(), "1,073,741,824");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grouped(pub u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// Prints a number of bytes in full: `1 byte`, `4096 bytes`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 byte"),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_bytes_between_them() {
        let (start, end) = (VirtAddr(0x1000), VirtAddr(0x1000) + 5);
        assert_eq!((end - start, end - 5), (5, start));
        assert_eq!((start - 0x1001) + 0x1001, start);
        assert_eq!((start - end).wrapping_add(5), 0);
        let mut at = start;
        at += 8;
        at -= 3;
        assert_eq!(at, end);
        assert_eq!((VirtAddr::from(0x1000), u64::from(start)), (start, 0x1000));
    }

    #[test]
    fn an_address_prints_in_hexadecimal() {
        let at = VirtAddr(0xab00);
        assert_eq!(
            format!("{at} {at:?} {at:x} {at:X} {at:#010x}"),
            "0xab00 0xab00 ab00 AB00 0x0000ab00"
        );
    }

    #[test]
    fn an_address_is_read_back_from_its_text() {
        for address in [0, 7, 0xab00, u64::MAX] {
            let address = VirtAddr(address);
            assert_eq!(address.to_string().parse(), Ok(address));
            assert_eq!(address.0.to_string().parse(), Ok(address));
        }
        assert_eq!("0X7f_ff".parse(), Ok(VirtAddr(0x7fff)));
        for wrong in [
            "",
            "0x",
            "_1",
            "+1",
            "-1",
            "0x+1",
            "ab",
            " 1",
            "0x1_0000_0000_0000_0000",
        ] {
            let error = wrong.parse::<VirtAddr>().unwrap_err();
            assert!(error.to_string().contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn counts_of_pages_add_up_and_print() {
        let (a, b) = (PageCount(3), PageCount::ceil(4097));
        assert_eq!((a + b, a - b), (PageCount(5), PageCount(1)));
        assert_eq!(b.saturating_sub(a), PageCount(0));
        let mut sum = [a, b].into_iter().sum::<PageCount>();
        sum += PageCount(1);
        sum -= PageCount(5);
        assert_eq!(sum.to_string(), "1 page");
        assert_eq!(PageCount(1024).to_string(), "1,024 pages");
    }

    #[test]
    fn sizes_and_numbers_print_for_people() {
        assert_eq!(ByteSize(512).to_string(), "512 B");
        assert_eq!(ByteSize(64 * MIB).to_string(), "64.0 MiB");
        assert_eq!(Bytes(1).to_string(), "1 byte");
        assert_eq!(Bytes(4096).to_string(), "4096 bytes");
        assert_eq!(Grouped(7).to_string(), "7");
        assert_eq!(Grouped(1_048_576).to_string(), "1,048,576");
    }
}

//! The texts of faults, and addresses too large for any space.

use super::*;
use crate::space::core::fault::*;

#[test]
fn a_fault_says_what_was_wanted_where_and_why() {
    let fault = Fault::new(
        FaultKind::NotMapped,
        VirtAddr(0x7f00_0000_1000),
        AccessKind::Load,
        8,
    );
    assert_eq!(
        fault.to_string(),
        "load of 8 bytes at 0x7f0000001000: not mapped"
    );
    assert_eq!(fault.address(), VirtAddr(0x7f00_0000_1000));
    assert_eq!(
        (fault.kind(), fault.access()),
        (FaultKind::NotMapped, AccessKind::Load)
    );
    let fault = Fault::new(
        FaultKind::PastEnd,
        VirtAddr(0x1000),
        AccessKind::Store,
        4096,
    );
    assert_eq!(
        fault.to_string(),
        "store at 0x1000: past the end of the mapped file"
    );
    assert_eq!(fault.kind().to_string(), "past the end of the mapped file");
}

#[test]
fn an_address_beyond_every_space_is_told_as_such() {
    for (at, told) in [
        (0x1_0000_0000_1000, 0x1_0000_0000_0000),
        (0xab00_7f12_3456_7890, 0xab00_7f12_3456_0000),
        (u64::MAX, 0xffff_ffff_ffff_0000),
        (0xffff_ffff_ffff, 0xffff_ffff_ffff),
    ] {
        let fault = Fault::new(FaultKind::NotMapped, VirtAddr(at), AccessKind::Fetch, 16);
        assert_eq!(fault.address(), VirtAddr(told));
        assert_eq!(fault.access(), AccessKind::Fetch);
    }
    let at = VirtAddr(0x1_0000_0000_1000);
    let fault = Fault::new(FaultKind::NotMapped, at, AccessKind::Load, 8);
    assert_eq!(
        fault.to_string(),
        "load of 8 bytes at or after 0x1000000000000: an address has at most 48 bits"
    );
}

#[test]
fn a_direct_file_that_would_block_is_a_cause_that_would_block() {
    let cause = |file: &str, offset| {
        let file = file.into();
        Cause::from(DaxError::WouldBlock { file, offset })
    };
    assert!(cause("data.bin", 4096).would_block());
    let past_end = Cause::from(DaxError::PastEnd {
        file: "data.bin".into(),
        offset: 4096,
        len: 1,
        size: 4096,
    });
    assert!(!past_end.would_block());
}

//! Room for stores to pages that have their blocks, as the host gives it and refuses it.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use super::reminding::{create, cut, path_in};
use super::*;
use crate::sys::shared::faults::{Answered, Call, answer};

/// A file of so many pages of sevens, all of them clean.
fn clean(path: &Path, pages: usize) -> DaxFile {
    let file = create(path, DaxSetup::default());
    file.write_all_at(&vec![7; pages * PAGE_SIZE], 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty, 0);
    file
}

/// A host where a store to the page at `refused` would be a signal, and that says `why` to who asks for a block.
fn without_room(refused: usize, mut why: impl FnMut() -> Result<()> + 'static) -> Answered {
    answer(move |call, bytes| match call {
        Call::Room if bytes.contains(&refused) => Err(Error::from_raw_os_error(libc::EFAULT)),
        Call::Allocate => why(),
        _ => Ok(()),
    })
}

#[test]
fn a_store_that_is_refused_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = clean(&path, 2);
    let refused = |why: Option<ErrorKind>| {
        let _host = without_room(PAGE_SIZE, move || why.map_or(Ok(()), |why| Err(why.into())));
        let reach = Reach::Pages { end: 2 };
        let fault = file.core().fault(1, FaultKind::Write, reach, 0);
        let (fault, call) = (fault.unwrap_err(), file.write_at(&[1], PAGE).unwrap_err());
        assert_eq!(fault.to_string(), call.to_string());
        assert_eq!(file.stats().dirty, 0);
        (call.kind(), call.to_string())
    };
    let (kind, text) = refused(None);
    assert_eq!(kind, ErrorKind::StorageFull);
    assert!(text.contains("data.bin: allocate at 4,096"), "{text}");
    for why in [ErrorKind::ReadOnlyFilesystem, ErrorKind::QuotaExceeded] {
        assert_eq!(refused(Some(why)).0, why);
    }
    // Who cannot say has no room.
    let (kind, _) = refused(Some(ErrorKind::Unsupported));
    assert_eq!(kind, ErrorKind::StorageFull);
    cut(&path, PAGE);
    assert_eq!(refused(None).0, ErrorKind::UnexpectedEof);
}

#[test]
fn a_long_store_has_the_pages_before_the_one_that_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = clean(&path_in(&folder), 8);
    let _host = without_room(3 * PAGE_SIZE, || Ok(()));
    let reach = Reach::Pages { end: 8 };
    let had = file.core().fault(0, FaultKind::Write, reach, 7).unwrap();
    assert_eq!(had.pages(), 0..3);
}

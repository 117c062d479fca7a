//! Answers that a test gives its own thread in place of the system's.

use std::cell::RefCell;
use std::io;
use std::ops::Range;

/// The requests that a test can answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// [`SharedMapping::sync`](super::SharedMapping::sync).
    Sync,
    /// [`SharedMapping::touch`](super::SharedMapping::touch).
    Touch,
    /// [`SharedMapping::make_storable`](super::SharedMapping::make_storable).
    Room,
    /// [`allocate`](super::allocate), with the bytes of the file.
    Allocate,
    /// A write by a call to a file that is mapped, with the bytes of the file.
    Write,
    /// A change of the length of a file that is mapped, with the bytes that it is to have.
    SetLen,
    /// The freeing of pages of a file that is mapped, with the bytes of the file.
    Punch,
}

type Answer = Box<dyn FnMut(Call, Range<usize>) -> io::Result<()>>;

std::thread_local! {
    static ANSWER: RefCell<Option<Answer>> = const { RefCell::new(None) };
}

/// Proof that the test answers. Dropping it lets the system answer again.
pub(crate) struct Answered(());

/// Makes this thread ask `answer` before the system, with the request and the range of bytes. If
/// `answer` returns an error, it counts as the system's; otherwise the system is asked.
pub(crate) fn answer(
    answer: impl FnMut(Call, Range<usize>) -> io::Result<()> + 'static,
) -> Answered {
    ANSWER.set(Some(Box::new(answer)));
    Answered(())
}

impl Drop for Answered {
    fn drop(&mut self) {
        ANSWER.set(None);
    }
}

/// Returns the test's answer, or `Ok` if the test has none.
pub(crate) fn ask(call: Call, bytes: Range<usize>) -> io::Result<()> {
    ANSWER.with_borrow_mut(|answer| match answer {
        Some(answer) => answer(call, bytes),
        None => Ok(()),
    })
}

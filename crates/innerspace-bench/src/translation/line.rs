//! The part of an accessor that other threads see: its section word, its request word, its mailbox.
//!
//! The owner writes the section word at each access; a revoker writes the request word and the
//! mailbox, rarely. They share a pair of cache lines with no other accessor.
//!
//! A revoker changes the page table, posts, issues the heavy barrier, and then waits for a section
//! that it finds open. If the section word is only ever 1 or 0, the revoker must not wait until it
//! reads a 0, because it may never do so while the accessor is busy. So it raises the request word,
//! and waits for 0 or until the owner has taken the request, whichever comes first.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// The most posts that a mailbox holds; one more turns them into a flush.
const MAILBOX_POSTS: usize = 64;

#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Line {
    section: AtomicU64,
    /// Not 0 if the mailbox holds a post, or a section is requested to close.
    request: AtomicU64,
    mailbox: Mutex<Mailbox>,
}

/// The numbers (of pages, or of leaves) whose translations have ended.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    numbers: Vec<u64>,
    overflowed: bool,
}

/// The content of a mailbox, as its owner finds it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mail {
    Numbers(Vec<u64>),
    Flush,
}

impl Line {
    /// Tells the owner that a translation has ended.
    pub(super) fn post(&self, number: u64) {
        let mut mailbox = self.mailbox.lock().expect("no holder panics");
        if mailbox.numbers.len() < MAILBOX_POSTS {
            mailbox.numbers.push(number);
        } else {
            mailbox.overflowed = true;
        }
        self.request.store(1, Ordering::Release);
    }

    /// Whether the owner must take the slow path before it translates.
    #[inline(always)]
    pub(super) fn is_requested(&self) -> bool {
        self.request.load(Ordering::Relaxed) != 0
    }

    /// Takes the request and the mail. The section must be closed. The request is taken first: a
    /// post that comes in between raises it again.
    pub(super) fn take_mail(&self) -> Mail {
        self.request.swap(0, Ordering::AcqRel);
        let mut mailbox = self.mailbox.lock().expect("no holder panics");
        let Mailbox {
            numbers,
            overflowed,
        } = std::mem::take(&mut *mailbox);
        if overflowed {
            Mail::Flush
        } else {
            Mail::Numbers(numbers)
        }
    }
}

/// How a section is entered and left.
pub(super) trait Section {
    fn enter(line: &Line);
    fn leave(line: &Line);
}

/// The constants 1 and 0; the barrier is the revoker's.
#[derive(Debug)]
pub(super) struct Flag;

/// An odd number inside, an even one outside; the barrier is the revoker's.
#[derive(Debug)]
pub(super) struct Counter;

/// Constants, written by a locked exchange on entry: for systems where the revoker cannot issue a
/// barrier for other threads.
#[derive(Debug)]
pub(super) struct Exchange;

impl Section for Flag {
    #[inline(always)]
    fn enter(line: &Line) {
        line.section.store(1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn leave(line: &Line) {
        line.section.store(0, Ordering::Release);
    }
}

impl Section for Counter {
    #[inline(always)]
    fn enter(line: &Line) {
        line.section
            .store(line.section.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline(always)]
    fn leave(line: &Line) {
        line.section
            .store(line.section.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

impl Section for Exchange {
    #[inline(always)]
    fn enter(line: &Line) {
        line.section.swap(1, Ordering::SeqCst);
    }

    #[inline(always)]
    fn leave(line: &Line) {
        line.section.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_is_taken_once_and_in_order() {
        let line = Line::default();
        line.post(3);
        line.post(4);
        assert!(line.is_requested());
        assert_eq!(line.take_mail(), Mail::Numbers(vec![3, 4]));
        assert!(!line.is_requested());
        assert_eq!(line.take_mail(), Mail::Numbers(vec![]));
    }

    #[test]
    fn one_post_too_many_is_a_flush() {
        let line = Line::default();
        (0..MAILBOX_POSTS as u64).for_each(|number| line.post(number));
        line.post(1);
        assert_eq!(line.take_mail(), Mail::Flush);
        assert_eq!(line.take_mail(), Mail::Numbers(vec![]));
    }
}

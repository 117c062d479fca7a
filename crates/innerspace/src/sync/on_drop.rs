//! A guard for work that must be done whether a call returns or panics.

/// Does its work when it is dropped.
#[must_use = "the work is done when this is dropped"]
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

//! Lets a view stand in for its bytes: the traits by which other code compares, hashes, keeps and
//! shares bytes.

use super::view::View;

/// Implements the traits of bytes for a type that derefs to its bytes, which never change. A view
/// compares and hashes as its bytes do, so a map keyed by views can be searched by a slice.
macro_rules! as_bytes {
    ($view:ty) => {
        impl AsRef<[u8]> for $view {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }

        impl std::borrow::Borrow<[u8]> for $view {
            fn borrow(&self) -> &[u8] {
                self
            }
        }

        impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for $view {
            fn eq(&self, other: &T) -> bool {
                **self == *other.as_ref()
            }
        }

        impl Eq for $view {}

        impl PartialOrd for $view {
            fn partial_cmp(&self, other: &$view) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $view {
            fn cmp(&self, other: &$view) -> std::cmp::Ordering {
                (**self).cmp(&**other)
            }
        }

        impl std::hash::Hash for $view {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                std::hash::Hash::hash(&**self, state);
            }
        }

        /// Makes no copy: the view's memory stays charged until the last clone or slice is dropped.
        #[cfg(feature = "bytes_1")]
        impl From<$view> for bytes::Bytes {
            fn from(view: $view) -> bytes::Bytes {
                bytes::Bytes::from_owner(view)
            }
        }
    };
}

pub(crate) use as_bytes;

as_bytes!(View);

// SAFETY: a view's bytes are in frames of the arena or in a static, never in the view itself, so
// they stay where they are when the view is moved. Its hold keeps the frames from being moved,
// written or freed while it lives, and `Deref` always returns the same slice of them.
#[cfg(feature = "stable_deref_trait_1")]
unsafe impl stable_deref_trait::StableDeref for View {}

// SAFETY: a clone holds the same frames, so it derefs to the same slice as the original, even after
// the original is dropped.
#[cfg(feature = "stable_deref_trait_1")]
unsafe impl stable_deref_trait::CloneStableDeref for View {}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    #[test]
    fn a_view_compares_and_hashes_as_its_bytes() {
        let (view, same, longer) = (View::zeros(3), View::zeros(3), View::zeros(4));
        assert_eq!(view, same);
        assert_eq!(view, [0, 0, 0]);
        assert_eq!(view, vec![0, 0, 0]);
        assert_eq!(view, "\0\0\0");
        assert_eq!(view, &[0_u8, 0, 0][..]);
        assert_ne!(view, longer);
        assert!(view < longer);
        let by_view = HashMap::from([(view, "three")]);
        assert_eq!(by_view.get(&[0_u8; 3][..]), Some(&"three"));
        assert!(BTreeSet::from([longer]).contains(&[0_u8; 4][..]));
    }

    #[cfg(feature = "bytes_1")]
    #[test]
    fn a_view_as_bytes_is_no_copy() {
        let view = View::zeros(100);
        let place = view.as_ptr();
        let bytes = bytes::Bytes::from(view);
        assert_eq!((bytes.as_ptr(), bytes.len()), (place, 100));
    }

    #[cfg(feature = "stable_deref_trait_1")]
    #[test]
    fn a_view_may_own_what_borrows_from_it() {
        fn assert_stable<T: stable_deref_trait::CloneStableDeref>(_: &T) {}
        let view = View::zeros(100);
        assert_stable(&view);
        let place = view.as_ptr();
        let moved = Box::new(view);
        assert_eq!((moved.as_ptr(), moved.clone().as_ptr()), (place, place));
    }
}

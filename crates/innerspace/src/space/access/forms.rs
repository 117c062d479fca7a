//! The two forms of an access: one that may wait, and one that never does.
//!
//! An access is written once, generic over a [`Sectioned`](super::single::Sectioned) that says
//! whether a session has opened its section, and whether it may wait. [`forms!`] gives the access
//! its two public names: `load`, for example, which may wait, and `try_load`, which fails with
//! [`FaultKind::WouldBlock`](crate::space::FaultKind::WouldBlock) instead. A hit runs the same code
//! in both. On a miss both take the same steps (`fault`), and `try_load` ends where a step would
//! have to sleep.

/// Defines accesses of some handles, each under two names: the first form waits, the second does
/// not. In a body, `M` is the handle's [`Sectioned`](super::single::Sectioned), with `true` for the
/// form that waits. The text after `panics` says when both forms panic.
macro_rules! forms {
    ($($type:ty, $section:ident);+ => $accesses:tt) => {
        $(forms! { @handle $type, $section, $accesses })+
    };
    (@handle $type:ty, $section:ident, { $(
        $(#[$attribute:meta])*
        fn $name:ident, $try_name:ident $(panics $when:literal)? $(<$T:ident: $bound:ident $(+ $more:ident)*>)?
            (&mut $self:ident $(, $argument:ident: $kind:ty)* $(,)?) -> $result:ty $body:block
    )+ }) => {
        impl $type { $(
            $(#[$attribute])*
            $(#[doc = concat!("\n\n# Panics\n", $when)])?
            #[inline]
            pub fn $name $(<$T: $bound $(+ $more)*>)? (&mut $self $(, $argument: $kind)*) -> $result {
                type M = $section<true>;
                $body
            }

            #[doc = concat!("[`Self::", stringify!($name), "`] that never waits.")]
            ///
            /// # Errors
            /// The same errors, and [`FaultKind::WouldBlock`](crate::space::FaultKind::WouldBlock).
            $(#[doc = concat!("\n\n# Panics\n", $when)])?
            #[inline]
            pub fn $try_name $(<$T: $bound $(+ $more)*>)? (&mut $self $(, $argument: $kind)*) -> $result {
                type M = $section<false>;
                $body
            }
        )+ }
    };
}
pub(crate) use forms;

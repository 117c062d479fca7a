//! Helpers for the public enums and errors of all layers: fixed texts, and the conversion into an
//! [`std::io::Error`].

/// Declares an enum whose `Display` prints each value as a fixed text.
macro_rules! texts {
    ($(#[$about:meta])* pub enum $name:ident {
        $($(#[$one:meta])* $value:ident = $text:literal,)*
    }) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$one])* $value,)*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($name::$value => $text,)*
                })
            }
        }
    };
}
pub(crate) use texts;

/// Implements the conversion of an error into an `io::Error`. The second argument computes the
/// kind; without this argument, the error's method `kind` does.
macro_rules! into_io_error {
    ($error:ty) => {
        into_io_error!($error, |error| error.kind());
    };
    ($error:ty, |$it:ident| $kind:expr) => {
        impl From<$error> for std::io::Error {
            fn from($it: $error) -> std::io::Error {
                std::io::Error::new($kind, $it)
            }
        }
    };
}
pub(crate) use into_io_error;

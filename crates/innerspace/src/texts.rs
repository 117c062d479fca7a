//! What the public enums and errors of all layers have in common: fixed texts, and their way into
//! an [`std::io::Error`].

/// Declares an enum each of whose values has one text, by which it is printed.
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

/// Makes an error one of std's, of the kind that the second argument says, or its method `kind`.
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

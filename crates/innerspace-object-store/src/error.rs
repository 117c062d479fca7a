//! Errors, with the URL, the place and the reason. No message has a credential in it: URLs are
//! shown without user names, passwords and query strings, and so are those in a server's answer.

use std::error::Error;
use std::io;
use std::time::Duration;

use innerspace::store::StoreError;
use object_store::client::HttpError;

/// The longest part of a server's answer in a message, in bytes.
const MOST_DETAIL: usize = 200;

/// Why a request of an object failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// There is no such object, or no such bucket.
    #[error("there is no such object ({detail}); check the bucket and the key")]
    NotFound {
        /// What the server said.
        detail: String,
    },
    /// The object was deleted after it was opened.
    #[error("the object was deleted after it was opened; open it again once it is back")]
    Deleted,
    /// The object was replaced after it was opened.
    #[error("the object was replaced after it was opened; open it again to read the new one")]
    Changed,
    /// An object with this name exists already, and was not to be replaced.
    #[error("the object exists already; choose another name, or replace it on purpose")]
    Exists,
    /// The credentials do not allow the request.
    #[error("no permission ({detail}); check the credentials in the environment, and their rights")]
    Denied {
        /// What the server said.
        detail: String,
    },
    /// There are no credentials.
    #[error(
        "no credentials in the environment; set {variables}, or allow anonymous access with {anonymous}"
    )]
    NoCredentials {
        /// The variables that are missing.
        variables: &'static str,
        /// The variable that makes requests anonymous.
        anonymous: &'static str,
    },
    /// The server cannot be reached.
    #[error("the server cannot be reached ({detail}); check the network and the endpoint")]
    Unreachable {
        /// What the system said.
        detail: String,
    },
    /// The server gave no answer, or no more bytes, in time.
    #[error("no answer within {after:?}; check the network, or raise the deadline")]
    TimedOut {
        /// How long the request was tried.
        after: Duration,
    },
    /// The server keeps failing.
    #[error("the server keeps failing ({detail}); try again later")]
    Failing {
        /// What the server said last.
        detail: String,
    },
    /// The server refused the request.
    #[error("the server refused the request ({detail})")]
    Refused {
        /// What the server said.
        detail: String,
    },
    /// The server delivered a wrong number of bytes, or not the bytes that were requested.
    #[error("the server delivered other bytes than were requested ({detail}); check the server")]
    WrongLength {
        /// What was wanted, and what came.
        detail: String,
    },
    /// The server cannot deliver parts of an object.
    #[error("the server does not serve ranges of bytes, so the object can only be copied whole")]
    NoRanges,
    /// The file that collects the new object's bytes failed.
    #[error("the staging file failed: {detail}")]
    Staging {
        /// The system's error.
        detail: String,
    },
}

impl Reason {
    /// Returns the kind of the `io::Error` that stands for this.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Reason::NotFound { .. } | Reason::Deleted => io::ErrorKind::NotFound,
            Reason::Exists => io::ErrorKind::AlreadyExists,
            Reason::Denied { .. } | Reason::NoCredentials { .. } => io::ErrorKind::PermissionDenied,
            Reason::TimedOut { .. } => io::ErrorKind::TimedOut,
            Reason::Unreachable { .. } => io::ErrorKind::NotConnected,
            Reason::WrongLength { .. } => io::ErrorKind::InvalidData,
            Reason::NoRanges => io::ErrorKind::Unsupported,
            Reason::Changed
            | Reason::Failing { .. }
            | Reason::Refused { .. }
            | Reason::Staging { .. } => io::ErrorKind::Other,
        }
    }
}

/// An error of a store's call. A replaced object is [`StoreError::Changed`], as for every store;
/// the library adds the URL and the offset.
impl From<Reason> for io::Error {
    fn from(reason: Reason) -> io::Error {
        match reason {
            Reason::Changed => StoreError::Changed.into(),
            reason => io::Error::new(reason.kind(), reason),
        }
    }
}

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The URL cannot be used.
    #[error("{url}: {problem}")]
    Url {
        /// The URL, without credentials.
        url: String,
        /// What is wrong with it, and what to write instead.
        problem: String,
    },
    /// The client cannot be set up: something in the environment is missing or wrong.
    #[error("{url}: cannot set up the client: {problem}")]
    Settings {
        /// The URL, without credentials.
        url: String,
        /// What is missing or wrong.
        problem: String,
    },
    /// The object cannot be opened.
    #[error("{url}: {reason}")]
    Open {
        /// The URL, without credentials.
        url: String,
        /// Why.
        reason: Reason,
    },
    /// Bytes cannot be read.
    #[error("{url}: read of {len} bytes at {offset} failed: {reason}")]
    Read {
        /// The URL, without credentials.
        url: String,
        /// Where the read began, in bytes.
        offset: u64,
        /// How many bytes it wanted.
        len: u64,
        /// Why.
        reason: Reason,
    },
    /// The new object cannot be written.
    #[error("{url}: cannot be written: {reason}")]
    Write {
        /// The URL, without credentials.
        url: String,
        /// Why.
        reason: Reason,
    },
}

impl RemoteError {
    /// Returns the reason, if it came from a request.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            RemoteError::Open { reason, .. }
            | RemoteError::Read { reason, .. }
            | RemoteError::Write { reason, .. } => Some(reason),
            RemoteError::Url { .. } | RemoteError::Settings { .. } => None,
        }
    }
}

impl From<RemoteError> for io::Error {
    fn from(error: RemoteError) -> io::Error {
        let kind = error.reason().map(Reason::kind);
        io::Error::new(kind.unwrap_or(io::ErrorKind::InvalidInput), error)
    }
}

/// Whether a request that failed may be made again.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It would fail again.
    Final(Reason),
    /// It may succeed later.
    Again(Reason),
}

impl Failure {
    /// Sorts an error of the client. `opened` says whether the object was there before.
    pub(crate) fn of(error: &object_store::Error, opened: bool) -> Failure {
        use object_store::Error as E;
        let detail = || detail_of(error);
        match error {
            E::NotFound { .. } if opened => Failure::Final(Reason::Deleted),
            E::NotFound { .. } => Failure::Final(Reason::NotFound { detail: detail() }),
            E::Precondition { .. } | E::NotModified { .. } => Failure::Final(Reason::Changed),
            E::AlreadyExists { .. } => Failure::Final(Reason::Exists),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                Failure::Final(Reason::Denied { detail: detail() })
            }
            E::Generic { store, source } => generic(store, &**source, detail()),
            _ => Failure::Final(Reason::Refused { detail: detail() }),
        }
    }

    pub(crate) fn reason(self) -> Reason {
        match self {
            Failure::Final(reason) | Failure::Again(reason) => reason,
        }
    }
}

/// Sorts the errors for which the client has no kind, by their texts where the client does not
/// expose their types. An unknown error is worth another attempt.
fn generic(store: &str, source: &(dyn Error + 'static), detail: String) -> Failure {
    let text = source.to_string();
    if text.contains("169.254.169.254") || text.contains("metadata.google.internal") {
        let (variables, anonymous) = match store {
            "S3" => (
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                "AWS_SKIP_SIGNATURE=true",
            ),
            "GCS" => (
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SKIP_SIGNATURE=true",
            ),
            _ => ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_SKIP_SIGNATURE=true"),
        };
        return Failure::Final(Reason::NoCredentials {
            variables,
            anonymous,
        });
    }
    if text.contains("non-partial response") {
        return Failure::Final(Reason::NoRanges);
    }
    if text.starts_with("Requested ") {
        return Failure::Again(Reason::WrongLength { detail });
    }
    match status_in(&text) {
        // The object no longer reaches as far as it did.
        Some(416) => return Failure::Final(Reason::Changed),
        Some(408 | 429) => {}
        Some(400..=499) => return Failure::Final(Reason::Refused { detail }),
        _ => {}
    }
    let mut next = Some(source);
    while let Some(error) = next {
        if error.downcast_ref::<HttpError>().is_some() {
            return Failure::Again(Reason::Unreachable { detail });
        }
        next = error.source();
    }
    Failure::Again(Reason::Failing { detail })
}

/// Returns the HTTP status in a text of the client.
fn status_in(text: &str) -> Option<u16> {
    let at = text.find("status code: ")? + "status code: ".len();
    text.get(at..at + 3)?.parse().ok()
}

/// Returns what the server said, in one short line, without query strings.
fn detail_of(error: &object_store::Error) -> String {
    let mut last: &(dyn Error + 'static) = error;
    // The innermost error says the most, and does not repeat the path.
    let mut text = last.to_string();
    while let Some(inner) = last.source() {
        last = inner;
        text = last.to_string();
    }
    let text = one_line(&text);
    let text = text.strip_prefix(STATUS).unwrap_or(&text);
    text.trim_end_matches([' ', ':']).to_owned()
}

/// The beginning of the client's text for an answer that has a status and perhaps a body.
const STATUS: &str = "Server returned non-2xx status code: ";

/// Makes one short line of a server's or a client's text. Of an XML answer, the code and the
/// message are kept.
pub(crate) fn one_line(text: &str) -> String {
    let text = match (between(text, "Code"), between(text, "Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => text.to_owned(),
    };
    let mut line = String::new();
    for word in text.split_whitespace() {
        let word = without_secrets(word);
        if line.len() + word.len() > MOST_DETAIL {
            line.push_str(" ...");
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word.chars().filter(|letter| !letter.is_control()));
    }
    line
}

fn between<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{tag}>"))?;
    let (inner, _) = rest.split_once(&format!("</{tag}>"))?;
    Some(inner)
}

/// Returns a word without what may be secret in a URL: the user's part, and the query string.
pub(crate) fn without_secrets(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else {
        return word.to_owned();
    };
    let rest = match rest.find(['?', '#']) {
        Some(at) => &rest[..at],
        None => rest,
    };
    let (host, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    // Only a password is secret: of `az://container@account.host` all is kept.
    let host = match host.rsplit_once('@') {
        Some((user, host)) if user.contains(':') || scheme.starts_with("http") => host,
        _ => host,
    };
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_of_a_url_is_shown() {
        for (url, shown) in [
            ("https://me:pw@host/a/b?sig=secret#x", "https://host/a/b"),
            ("https://me@host/a", "https://host/a"),
            ("s3://key:pw@bucket/a", "s3://bucket/a"),
            (
                "abfss://container@account.dfs.core.windows.net/a",
                "abfss://container@account.dfs.core.windows.net/a",
            ),
            ("https://host?sig=secret", "https://host"),
            ("no-url", "no-url"),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }

    #[test]
    fn a_long_answer_becomes_a_short_line() {
        let xml = "<Error>\n<Code>SlowDown</Code><Message>not so\n fast</Message></Error>";
        assert_eq!(one_line(xml), "SlowDown: not so fast");
        assert!(one_line(&"word ".repeat(1000)).len() < 2 * MOST_DETAIL);
        assert_eq!(one_line("a\u{1b}[2Jb"), "a[2Jb");
        assert_eq!(
            one_line("error for https://h/x?X-Amz-Signature=abc (now)"),
            "error for https://h/x (now)"
        );
    }
}

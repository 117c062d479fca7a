//! Clients by URL, with credentials only from the usual environment.
//!
//! | URL | variables |
//! |---|---|
//! | `s3://bucket/key` | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT`, `AWS_SKIP_SIGNATURE` |
//! | `gs://bucket/key` | `GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_BASE_URL`, `GOOGLE_SKIP_SIGNATURE` |
//! | `az://container/key` | `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_KEY`, `AZURE_STORAGE_ENDPOINT`, `AZURE_SKIP_SIGNATURE` |
//! | `https://host/path`, `http://host/path` | none |
//! | `file:///path` | none |
//!
//! The clients do not retry and have no deadline: the files above them retry and have a deadline.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::{Position, Url};

use crate::error::{RemoteError, one_line, without_secrets};

/// A client, the object's path in it, and the URL to show.
pub(crate) struct Target {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    pub(crate) shown: String,
}

/// The client's own deadline, which is longer than any of this crate's.
const NEVER: &str = "1 day";

/// Makes the client for a URL.
pub(crate) fn target(text: &str) -> Result<Target, RemoteError> {
    let shown = one_line(&without_secrets(text));
    let wrong = |problem: &str| RemoteError::Url {
        url: shown.clone(),
        problem: problem.to_owned(),
    };
    let url = Url::parse(text).map_err(|_| {
        wrong(
            "not a URL; write s3://bucket/key, gs://bucket/key, az://container/key, \
             https://host/path or file:///path",
        )
    })?;
    let is_http = matches!(url.scheme(), "http" | "https");
    if url.password().is_some() || (is_http && !url.username().is_empty()) {
        return Err(wrong(
            "credentials do not belong in a URL; put them in the environment",
        ));
    }
    if url.query().is_some() {
        return Err(wrong(
            "query strings are not supported; write a ? in a key as %3F, and give credentials \
             by the environment",
        ));
    }
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|_| match url.scheme() {
        "s3" | "gs" | "az" | "file" => wrong(
            "the URL is not complete; write s3://bucket/key, gs://bucket/key, \
             az://container/key or file:///path",
        ),
        _ => wrong("unknown kind of URL; use s3://, gs://, az://, https://, http:// or file://"),
    })?;
    if path.as_ref().is_empty() {
        return Err(wrong("the URL has no key; name an object, not a bucket"));
    }
    let settings = |problem: String| RemoteError::Settings {
        url: shown.clone(),
        problem,
    };
    let store = store(&scheme, &url).map_err(|fault| match fault {
        Fault::Client(error) => settings(one_line(&error.to_string())),
        Fault::Variable(problem) => settings(problem),
        Fault::Kind => {
            wrong("unknown kind of URL; use s3://, gs://, az://, https://, http:// or file://")
        }
    })?;
    Ok(Target { store, path, shown })
}

/// Why there is no client.
enum Fault {
    /// The kind of URL is not supported.
    Kind,
    /// A variable of the environment cannot be used. Clients panic at some of these.
    Variable(String),
    /// The client refuses its settings.
    Client(object_store::Error),
}

impl From<object_store::Error> for Fault {
    fn from(error: object_store::Error) -> Fault {
        Fault::Client(error)
    }
}

/// Checks that the values of the variables with a prefix can be sent in a header.
fn check_variables(prefix: &str) -> Result<(), Fault> {
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if name.starts_with(prefix) && value.contains(char::is_control) {
            return Err(Fault::Variable(format!(
                "the value of {name} has a line break or another control character; set it again \
                 without"
            )));
        }
    }
    Ok(())
}

/// Checks an endpoint, and returns whether it is one without TLS.
fn check_endpoint(endpoint: Option<String>, variable: &str) -> Result<bool, Fault> {
    let Some(endpoint) = endpoint else {
        return Ok(false);
    };
    match Url::parse(&endpoint) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
            Ok(url.scheme() == "http")
        }
        _ => Err(Fault::Variable(format!(
            "the endpoint in the environment is no address; set {variable} to https://host or \
             http://host:port, or unset it"
        ))),
    }
}

/// Checks the region, which becomes a part of a server's name.
fn check_region(region: Option<String>) -> Result<(), Fault> {
    let is_name = |region: &str| {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        !region.is_empty() && region.chars().all(is_letter)
    };
    match region {
        Some(region) if !is_name(&region) => Err(Fault::Variable(
            "the region in the environment is no name; set AWS_REGION to one such as us-east-1"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Chooses ring for the TLS of the process, unless the program has chosen a provider before.
///
/// This crate's own clients do it by themselves. A program that makes a client of the crate
/// `object_store`, for [`open_on`](crate::RemoteOptions::open_on) or a
/// [`CachedObjectStore`](crate::CachedObjectStore), has to call it first, or choose a provider
/// itself: the client's library panics without one.
///
/// ```
/// use innerspace_object_store::{install_tls, object_store::aws::AmazonS3Builder};
///
/// install_tls();
/// let client = AmazonS3Builder::new().with_bucket_name("bucket").build();
/// assert!(client.is_ok());
/// ```
pub fn install_tls() {
    // A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Makes a client.
fn store(scheme: &ObjectStoreScheme, url: &Url) -> Result<Arc<dyn ObjectStore>, Fault> {
    install_tls();
    let retry = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    let address = url.to_string();
    // An endpoint with http:// is used without TLS.
    const PLAIN: ClientConfigKey = ClientConfigKey::AllowHttp;
    const TIMEOUT: ClientConfigKey = ClientConfigKey::Timeout;
    Ok(match scheme {
        ObjectStoreScheme::AmazonS3 => {
            use AmazonS3ConfigKey as Key;
            check_variables("AWS_")?;
            let mut builder = AmazonS3Builder::from_env()
                .with_url(address)
                .with_config(Key::Client(TIMEOUT), NEVER)
                .with_retry(retry);
            check_region(builder.get_config_value(&Key::Region))?;
            let endpoint = builder.get_config_value(&Key::Endpoint);
            if check_endpoint(endpoint, "AWS_ENDPOINT")? {
                builder = builder.with_config(Key::Client(PLAIN), "true");
            }
            Arc::new(builder.build()?)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            use GoogleConfigKey as Key;
            check_variables("GOOGLE_")?;
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_url(address)
                .with_config(Key::Client(TIMEOUT), NEVER)
                .with_retry(retry);
            let endpoint = builder.get_config_value(&Key::BaseUrl);
            if check_endpoint(endpoint, "GOOGLE_BASE_URL")? {
                builder = builder.with_config(Key::Client(PLAIN), "true");
            }
            Arc::new(builder.build()?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            use AzureConfigKey as Key;
            check_variables("AZURE_")?;
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_url(address)
                .with_config(Key::Client(TIMEOUT), NEVER)
                .with_retry(retry);
            let endpoint = builder.get_config_value(&Key::Endpoint);
            if check_endpoint(endpoint, "AZURE_STORAGE_ENDPOINT")? {
                builder = builder.with_config(Key::Client(PLAIN), "true");
            }
            Arc::new(builder.build()?)
        }
        ObjectStoreScheme::Http => Arc::new(
            HttpBuilder::new()
                .with_url(&url[..Position::BeforePath])
                .with_client_options(
                    ClientOptions::new()
                        .with_allow_http(true)
                        .with_timeout_disabled(),
                )
                .with_retry(retry)
                .build()?,
        ),
        ObjectStoreScheme::Local => Arc::new(LocalFileSystem::new()),
        _ => return Err(Fault::Kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str) -> String {
        match target(url) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{url} is no fault"),
        }
    }

    #[test]
    fn a_wrong_url_is_told_what_to_write_instead() {
        assert!(problem("data.bin").contains("not a URL; write s3://"));
        assert!(problem("ftp://host/a").contains("unknown kind"));
        assert!(problem("s3://bucket").contains("no key"));
        for url in ["s3://", "s3:///a", "file://host/a"] {
            assert!(problem(url).contains("not complete"), "{url}");
        }
        assert!(problem("memory:///a").contains("unknown kind"));
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for url in [
            "https://me:geheim@host/a",
            "https://host/a?sig=geheim",
            "s3://me:geheim@bucket/a",
        ] {
            let text = problem(url);
            assert!(!text.contains("geheim"), "{text}");
            assert!(text.contains("environment"), "{text}");
        }
    }

    #[test]
    fn settings_at_which_clients_panic_are_refused() {
        let refused = |fault: Result<bool, Fault>| matches!(fault, Err(Fault::Variable(_)));
        for endpoint in ["", "nonsense", "http://", "127.0.0.1:7070", "ftp://host"] {
            assert!(
                refused(check_endpoint(Some(endpoint.into()), "NAME")),
                "{endpoint}"
            );
        }
        assert!(matches!(
            check_endpoint(Some("http://h:1".into()), ""),
            Ok(true)
        ));
        assert!(matches!(
            check_endpoint(Some("https://h".into()), ""),
            Ok(false)
        ));
        for region in ["", "us east", "a/b"] {
            assert!(check_region(Some(region.into())).is_err(), "{region}");
        }
        assert!(check_region(Some("us-east-1".into())).is_ok());
    }

    #[test]
    fn a_file_url_leads_to_a_path() {
        let target = target("file:///tmp/with%20space").unwrap();
        assert_eq!(target.path.as_ref(), "tmp/with space");
    }
}

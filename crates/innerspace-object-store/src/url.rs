//! Clients by URL, with credentials by the usual environment alone.
//!
//! | URL | variables |
//! |---|---|
//! | `s3://bucket/key` | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT`, `AWS_SKIP_SIGNATURE` |
//! | `gs://bucket/key` | `GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_SKIP_SIGNATURE` |
//! | `az://container/key` | `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_KEY`, `AZURE_SKIP_SIGNATURE` |
//! | `https://host/path`, `http://host/path` | none |
//! | `file:///path` | none |
//!
//! The clients retry nothing and have no deadline: the files above them do and have.

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
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|_| {
        wrong("unknown kind of URL; use s3://, gs://, az://, https://, http:// or file://")
    })?;
    if path.as_ref().is_empty() {
        return Err(wrong("the URL has no key; name an object, not a bucket"));
    }
    let store = store(&scheme, &url).map_err(|error| match error {
        Some(error) => RemoteError::Settings {
            url: shown.clone(),
            problem: one_line(&error.to_string()),
        },
        None => wrong("unknown kind of URL; use s3://, gs://, az://, https://, http:// or file://"),
    })?;
    Ok(Target { store, path, shown })
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

/// Makes a client. Returns `Err(None)` for a kind that is not supported.
fn store(
    scheme: &ObjectStoreScheme,
    url: &Url,
) -> Result<Arc<dyn ObjectStore>, Option<object_store::Error>> {
    install_tls();
    let retry = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    let address = url.to_string();
    Ok(match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = AmazonS3Builder::from_env()
                .with_url(address)
                .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), NEVER)
                .with_retry(retry);
            // An endpoint that says http:// means it.
            let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
            let plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
            let builder = match plain {
                true => builder.with_allow_http(true),
                false => builder,
            };
            Arc::new(builder.build()?)
        }
        ObjectStoreScheme::GoogleCloudStorage => Arc::new(
            GoogleCloudStorageBuilder::from_env()
                .with_url(address)
                .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), NEVER)
                .with_retry(retry)
                .build()?,
        ),
        ObjectStoreScheme::MicrosoftAzure => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_url(address)
                .with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), NEVER)
                .with_retry(retry)
                .build()?,
        ),
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
        _ => return Err(None),
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
    fn a_file_url_leads_to_a_path() {
        let target = target("file:///tmp/with%20space").unwrap();
        assert_eq!(target.path.as_ref(), "tmp/with space");
    }
}

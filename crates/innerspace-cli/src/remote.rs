//! `cat` and `stat` of objects in object storage. Every failure is one line and exit code 2.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use innerspace::file::FileStats;
use innerspace::store::Store;
use innerspace::{ByteSize, GIB, MIB, Memory, PagedFile};
use innerspace_object_store::{ObjectStoreFile, Tier};

use crate::size;
use crate::stations::Failure;

/// What both commands say about URLs.
pub(crate) const URLS: &str = "\
URLs: s3://bucket/key, gs://bucket/key, az://container/key, https://host/path, file:///path.
Credentials come from the environment alone: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT; GOOGLE_APPLICATION_CREDENTIALS; AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY.
AWS_SKIP_SIGNATURE=true reads a public bucket.

Exit code: 0 done, 1 the output was closed, 2 anything else, with one line that says why";

#[derive(Debug, Args)]
pub(crate) struct CatArguments {
    /// The object to print
    url: String,
    /// The most memory for the object's bytes
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size::parse)]
    limit: u64,
    /// A folder on local disk that keeps what was fetched, for the next run
    #[arg(long, value_name = "DIR")]
    tier: Option<PathBuf>,
    /// The most bytes in that folder [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    tier_size: Option<u64>,
    /// Print at the end what came from where, to standard error
    #[arg(long)]
    stats: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatArguments {
    /// The object
    url: String,
}

fn failed(error: impl ToString) -> Failure {
    Failure::Arguments(error.to_string())
}

/// Prints an object.
pub(crate) fn cat(arguments: &CatArguments) -> Result<(), Failure> {
    // The requests of two windows have to fit in an eighth of the limit.
    let preferred = (arguments.limit / 64).clamp(64 << 10, 4 * MIB) as usize;
    let options = ObjectStoreFile::options().preferred_size(preferred);
    let tier = match &arguments.tier {
        Some(folder) => {
            let size = arguments.tier_size.unwrap_or(2 * GIB);
            Some(Tier::open(folder, size).map_err(failed)?)
        }
        None if arguments.tier_size.is_some() => {
            return Err(failed("--tier-size needs a folder: add --tier DIR"));
        }
        None => None,
    };
    let object = options.open(&arguments.url).map_err(failed)?;
    let memory = Memory::with_limit(arguments.limit).map_err(failed)?;
    let blocks = match &tier {
        Some(tier) => print(&memory, tier.store(object.clone()).map_err(failed)?)?,
        None => print(&memory, object.clone())?,
    };
    if arguments.stats {
        let stats = object.stats();
        let mut text = format!(
            "{} fetched in {} requests, {} repeated",
            ByteSize(stats.bytes_fetched),
            stats.requests,
            stats.retries
        );
        if let Some(tier) = &tier {
            let stats = tier.stats();
            text += &format!("; {} from {tier}", ByteSize(stats.bytes_from_disk));
            let failures = stats.write_errors + stats.read_errors;
            if failures > 0 {
                text += &format!(", whose disk failed ({failures} chunks): make room there");
            }
        }
        let early = blocks.read_ahead - blocks.read_ahead_unused;
        text += &format!(
            "; {early} of {} blocks were in memory when wanted",
            blocks.filled
        );
        let peak = memory.stats().peak;
        text += &format!("; at most {} of memory", ByteSize(peak));
        let _ = writeln!(io::stderr(), "{text}");
    }
    Ok(())
}

/// Prints a store, and returns what was read of it.
fn print(memory: &Memory, store: impl Store) -> Result<FileStats, Failure> {
    let file: PagedFile = memory.file_options().open_store(store).map_err(failed)?;
    file.set_reading(innerspace::file::Reading::Sequential);
    let mut out = io::stdout().lock();
    let ended = file.scan_until(.., |piece| match out.write_all(piece) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    });
    let written = match ended.map_err(failed)? {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => out.flush(),
    };
    match written {
        Ok(()) => Ok(file.stats()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        Err(error) => Err(failed(format!("cannot print: {error}"))),
    }
}

/// Prints what is known of an object.
pub(crate) fn stat(arguments: &StatArguments) -> Result<(), Failure> {
    let object = ObjectStoreFile::open(&arguments.url).map_err(failed)?;
    let meta = object.meta();
    let mut text = format!("url       {}\n", object.url());
    text += &format!("size      {} bytes ({})\n", meta.size, ByteSize(meta.size));
    text += &format!("modified  {}\n", meta.last_modified.to_rfc3339());
    for (name, value) in [("tag", &meta.e_tag), ("version", &meta.version)] {
        if let Some(value) = value {
            text += &format!("{name:<9} {}\n", value.escape_debug());
        }
    }
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => Ok(()),
        Err(_) => Err(Failure::OutputClosed),
    }
}

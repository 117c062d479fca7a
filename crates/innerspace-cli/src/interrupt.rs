//! The temporary folder, which is removed at the end, however the end comes: also after Ctrl-C and
//! similar signals.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stations::Result;

/// Set by Ctrl-C and similar signals. The temporary folder is then being removed, and errors caused
/// by that do not count as findings.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Makes a folder that is removed when the program ends, for whatever reason. To be called once.
pub(crate) fn temporary_folder(prefix: &str) -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir();
    let folder = folder.map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let path = folder.path().to_owned();
    ctrlc::set_handler(move || {
        INTERRUPTED.store(true, Ordering::SeqCst);
        // The program continues until the process exits, and may be creating a file at this moment.
        while path.exists() && fs::remove_dir_all(&path).is_err() {
            std::thread::yield_now();
        }
        std::process::exit(130);
    })?;
    Ok(folder)
}

/// Never returns once the program is interrupted: the handler ends the process.
pub(crate) fn wait_if_interrupted() {
    while interrupted() {
        std::thread::park();
    }
}

//! A plain store to the flags of a published frame must not compile.
//!
//! The source file of the flags byte is compiled as a part of a small program, in the same place as
//! in the library, with one more line that stands for a layer above. The compiler has to refuse
//! that line, for the stated reason and no other.
#![cfg(not(any(miri, loom, shuttle)))]

use std::path::Path;
use std::process::Command;

/// Returns the compiler's error codes for the program with `line` in it; empty if it compiles.
fn errors_of(line: &str) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let program = format!(
        r#"
        mod sync {{ pub(crate) use std::sync::atomic; }}
        mod frame {{
            #[path = {flags:?}] mod flags;
            pub(crate) use flags::{{FlagSet, Flags}};
        }}
        mod cache {{
            use crate::frame::{{FlagSet, Flags}};
            pub(crate) fn mark(flags: &Flags) {{ {line} }}
        }}
        "#,
        flags = source.join("frame/flags.rs"),
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("program.rs");
    std::fs::write(&file, program).expect("a file");
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args([
            "--edition=2024",
            "--crate-type=lib",
            "--emit=metadata",
            "-Awarnings",
        ])
        .arg("--out-dir")
        .arg(folder.path())
        .arg(&file)
        .output()
        .expect("the compiler runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("error[") || line.starts_with("error: "))
        .filter(|line| !line.contains("aborting due to"))
        .map(|line| line[..line.find(']').map_or(line.len(), |end| end + 1)].to_owned())
        .collect();
    assert_eq!(output.status.success(), errors.is_empty(), "{text}");
    errors
}

// spec: P3
#[test]
fn a_plain_store_to_the_flags_of_a_published_frame_does_not_compile() {
    assert_eq!(
        errors_of("flags.set(FlagSet::REFERENCED)"),
        [""; 0],
        "the atomic setter"
    );
    assert_eq!(
        errors_of("flags.store_owned(FlagSet::REFERENCED)"),
        ["error[E0624]"]
    );
    assert_eq!(
        errors_of("flags.0.store(1, std::sync::atomic::Ordering::Relaxed)"),
        ["error[E0616]"]
    );
    assert_eq!(
        errors_of("flags.byte().store(1, std::sync::atomic::Ordering::Relaxed)"),
        ["error[E0624]"]
    );
    assert_eq!(
        errors_of("*flags = Flags::new(FlagSet::REFERENCED)"),
        ["error[E0599]"],
        "it is there in the models' builds alone"
    );
}

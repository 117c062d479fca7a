//! Checks how `cargo xtask` reads its arguments.

use std::process::{Command, Output};

fn xtask(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).output().expect("it can be run")
}

#[test]
fn wrong_arguments_are_exit_code_2() {
    for (arguments, text) in [
        (&[][..], "no command given"),
        (&["lnit"], "no command lnit"),
        (&["lint", "all"], "lint takes no arguments"),
        (&["loom", "a", "b"], "loom takes at most one filter"),
        (
            &["loom", "--list"],
            "--list, --also-pass and --budget belong to mutants",
        ),
        (
            &["mutants", "--budget", "long"],
            "cannot parse argument \"long\"",
        ),
        (&["mutants", "--fast"], "invalid option '--fast'"),
    ] {
        let output = xtask(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.starts_with(&format!("xtask: {text}")), "{told}");
    }
}

#[test]
fn help_is_no_error() {
    for arguments in [&["help"][..], &["--help"], &["lint", "-h"]] {
        let output = xtask(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stdout.starts_with(b"cargo xtask COMMAND\n"));
    }
}

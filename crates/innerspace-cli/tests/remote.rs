//! `cat` and `stat` as their users see them, against a real S3 server on loopback.

use std::process::{Command, Output, Stdio};

use innerspace_test_s3::{Fault, On, S3Server};

fn bytes(len: u32) -> Vec<u8> {
    (0..len)
        .flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

fn command(server: &S3Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_innerspace"));
    command.args(arguments).stdin(Stdio::null());
    for (name, value) in server.environment() {
        command.env(name, value);
    }
    command
}

fn run(server: &S3Server, arguments: &[&str]) -> Output {
    command(server, arguments).output().unwrap()
}

/// Checks that a command failed with one line that has a text in it, and nothing secret.
fn check_refused(output: &Output, text: &str, server: &S3Server) {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(
        error.starts_with("error: ") && error.contains(text),
        "{text:?}: {error}"
    );
    assert!(!error.contains(server.secret()), "{error}");
}

#[test]
fn an_object_is_printed_and_the_second_time_from_the_tier() {
    let server = S3Server::start();
    let data = bytes(700_000);
    server.put("folder/data.bin", data.clone());
    let folder = tempfile::tempdir().unwrap();
    let tier = folder.path().join("tier");
    let tier = tier.to_str().unwrap();
    let url = "s3://bucket/folder/data.bin";
    let arguments = ["cat", url, "--limit", "1MiB", "--stats"];
    let first = run(&server, &arguments);
    assert!(first.stdout == data);
    let stats = String::from_utf8(first.stderr).unwrap();
    assert!(stats.starts_with("2.7 MiB fetched in"), "{stats}");
    let with_tier = ["cat", url, "--tier", tier, "--tier-size", "8MiB", "--stats"];
    assert!(run(&server, &with_tier).stdout == data);
    let second = run(&server, &with_tier);
    assert!(second.stdout == data);
    let stats = String::from_utf8(second.stderr).unwrap();
    assert!(stats.starts_with("0 B fetched in 1 requests"), "{stats}");
    assert!(stats.contains("2.7 MiB from"), "{stats}");
}

#[test]
fn stat_shows_size_time_and_tag() {
    let server = S3Server::start();
    server.put("data", bytes(1000));
    let output = run(&server, &["stat", "s3://bucket/data"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("size      4000 bytes"), "{text}");
    assert!(
        text.contains("modified  20") && text.contains("tag "),
        "{text}"
    );
}

#[test]
fn mistakes_are_one_line_that_says_what_to_do() {
    let server = S3Server::start();
    server.put("data", bytes(1000));
    for (url, text) in [
        ("data.bin", "not a URL; write s3://bucket/key"),
        ("ftp://host/data", "unknown kind of URL"),
        ("s3://bucket", "name an object, not a bucket"),
        ("s3://nowhere/data", "check the bucket and the key"),
        ("s3://bucket/none", "check the bucket and the key"),
        ("https://me:pw@host/data", "put them in the environment"),
        ("file:///does/not/exist", "no such object"),
        ("http://127.0.0.1:9/data", "check the network"),
    ] {
        for command in ["cat", "stat"] {
            check_refused(&run(&server, &[command, url]), text, &server);
        }
    }
    server.inject_always(On::Any, Fault::Status(403));
    check_refused(
        &run(&server, &["cat", "s3://bucket/data"]),
        "no permission",
        &server,
    );
    server.heal();
    let mut wrong = command(&server, &["cat", "s3://bucket/data"]);
    wrong.env("AWS_SECRET_ACCESS_KEY", "wrong");
    check_refused(&wrong.output().unwrap(), "check the credentials", &server);
    let no_folder = ["cat", "s3://bucket/data", "--tier", "/proc/tier"];
    check_refused(
        &run(&server, &no_folder),
        "choose a folder on a local disk",
        &server,
    );
    let no_tier = ["cat", "s3://bucket/data", "--tier-size", "8MiB"];
    check_refused(&run(&server, &no_tier), "add --tier DIR", &server);
    let no_size = ["cat", "s3://bucket/data", "--limit", "lots"];
    check_refused(
        &run(&server, &no_size),
        "see innerspace cat --help",
        &server,
    );
}

#[test]
fn an_object_replaced_while_it_is_printed_is_an_error() {
    let server = S3Server::start();
    server.put("data", bytes(1_000_000));
    server.inject_always(On::Get, Fault::Status(412));
    let output = run(&server, &["cat", "s3://bucket/data"]);
    check_refused(&output, "another program has changed", &server);
}

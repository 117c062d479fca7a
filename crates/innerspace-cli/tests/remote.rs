//! `cat` and `stat` as their users see them, against a real S3 server on loopback.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use innerspace_test_s3::{CERTIFICATE, Fault, On, PlainServer, S3Server};

fn bytes(len: u32) -> Vec<u8> {
    (0..len)
        .flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_innerspace"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn command(server: &S3Server, arguments: &[&str]) -> Command {
    let mut command = tool(arguments);
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
    let error = check_one_line(output, text);
    assert!(!error.contains(server.secret()), "{error}");
}

/// Checks that a command failed with one line that has a text in it, and returns it.
fn check_one_line(output: &Output, text: &str) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(
        error.starts_with("error: ") && error.contains(text),
        "{text:?}: {error}"
    );
    error
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
    // All but the first are read ahead. The last request may be counted a little later.
    let early = stats.split("; ").nth(1).unwrap();
    assert!(
        early.ends_with("blocks were in memory when wanted"),
        "{stats}"
    );
    let early: u32 = early.split(' ').next().unwrap().parse().unwrap();
    assert!((600..684).contains(&early), "{stats}");
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

#[test]
fn objects_of_google_azure_and_web_servers_are_printed() {
    let data = bytes(300_000);
    let files = ["/bucket/key", "/container/key", "/account/container/key"];
    let files = || files.map(|path| (path.to_owned(), data.clone().into()));
    let plain = PlainServer::start(files());
    let tls = PlainServer::start_tls(files());
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("certificate.pem");
    std::fs::write(&trusted, CERTIFICATE).unwrap();
    let run = |command: &str, url: &str| {
        let mut command = tool(&[command, url]);
        command
            .env("GOOGLE_BASE_URL", plain.endpoint())
            .env("GOOGLE_SKIP_SIGNATURE", "true")
            .env("AZURE_STORAGE_ENDPOINT", plain.endpoint())
            .env("AZURE_STORAGE_ACCOUNT_NAME", "account")
            .env("AZURE_SKIP_SIGNATURE", "true")
            .env("SSL_CERT_FILE", &trusted);
        command.output().unwrap()
    };
    for url in [
        "gs://bucket/key",
        "az://container/key",
        &format!("{}/bucket/key", plain.endpoint()),
        &format!("{}/bucket/key", tls.endpoint()),
    ] {
        let output = run("cat", url);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout == data, "{url}: {error}");
        let output = run("stat", url);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("size      1200000 bytes"), "{url}: {text}");
        let missing = run("cat", &url.replace("key", "none"));
        check_one_line(&missing, "check the bucket and the key");
    }
    // A server with a certificate that nobody vouches for.
    let url = format!("{}/bucket/key", tls.endpoint());
    let output = tool(&["cat", &url]).output().unwrap();
    check_one_line(&output, "check the network and the endpoint");
}

#[test]
fn ctrl_c_ends_a_stalled_download_and_leaves_a_tier_that_can_be_used() {
    let server = S3Server::start();
    let data = bytes(700_000);
    server.put("data", data.clone());
    let folder = tempfile::tempdir().unwrap();
    let tier = folder.path().to_str().unwrap();
    let arguments = [
        "cat",
        "s3://bucket/data",
        "--tier",
        tier,
        "--tier-size",
        "8MiB",
    ];
    server.inject_always(On::Get, Fault::StallAfter(10_000));
    let mut child = command(&server, &arguments)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    // It has opened the object, and waits for its bytes.
    while server.requests() < 2 {
        assert!(began.elapsed() < Duration::from_secs(30), "no request");
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: sends a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
    server.heal();
    assert!(run(&server, &arguments).stdout == data);
}

/// Runs the tool with a folder on a small disk of its own, for which the process gets a mount
/// namespace. Returns `None` where the machine allows none.
fn on_a_disk(server: &S3Server, folder: &Path, mount: &str, arguments: &str) -> Option<Output> {
    let namespace = ["--user", "--map-root-user", "--mount"];
    let granted = Command::new("unshare").args(namespace).arg("true").output();
    if !granted.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("left out: no mounts of one's own here (unshare: {granted:?})");
        return None;
    }
    let mut unshare = Command::new("unshare");
    let script = format!("mount -t tmpfs {mount} tmpfs \"$1\" && exec \"$0\" {arguments}");
    unshare
        .args(namespace)
        .args(["sh", "-c", &script, env!("CARGO_BIN_EXE_innerspace")])
        .arg(folder)
        .stdin(Stdio::null());
    for (name, value) in server.environment() {
        unshare.env(name, value);
    }
    Some(unshare.output().unwrap())
}

#[test]
fn a_tier_on_a_read_only_or_full_disk_is_one_line_or_costs_speed_only() {
    let server = S3Server::start();
    let data = bytes(700_000);
    server.put("data", data.clone());
    let folder = tempfile::tempdir().unwrap();
    let cat = r#"cat s3://bucket/data --stats --tier "$1/tier" --tier-size 8MiB"#;
    // Read-only; no inode left; no page left for the tier's header.
    for (mount, text) in [
        (
            "-o ro",
            "choose a folder on a local disk that you may write",
        ),
        ("-o nr_inodes=1", "make room there"),
    ] {
        if let Some(output) = on_a_disk(&server, folder.path(), mount, cat) {
            check_refused(&output, text, &server);
        }
    }
    // The disk becomes full while the tier is filled.
    if let Some(output) = on_a_disk(&server, folder.path(), "-o size=512k", cat) {
        let stats = String::from_utf8(output.stderr).unwrap();
        assert!(output.stdout == data, "{stats}");
        assert!(stats.contains("whose disk failed ("), "{stats}");
    }
}

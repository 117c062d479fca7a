//! A process that writes is killed. Afterwards the database is whole, and has every transaction
//! that the process had reported.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use crate::common::{child, create, open, open_unix, role, set_journal, transact, verify};

fn kill(test: &str, mode: &str, settings: &str, times: u64) {
    if let Some((_, folder)) = role() {
        let connection = open(&folder.join("data.db"));
        connection.execute_batch(settings).unwrap();
        connection
            .pragma_update(None, "wal_autocheckpoint", 10)
            .unwrap();
        loop {
            let number = transact(&connection, "killed").unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "committed {number}").unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let first = open_unix(&path);
    set_journal(&first, mode);
    create(&first);
    drop(first);
    let mut last = 0;
    for n in 0..times {
        let mut command = child(test, "write", folder.path());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let number = |line: &str| line.split_once("committed ")?.1.parse::<i64>().ok();
        let mut committed = last;
        let mut left = 1 + n * 7 % 23;
        while left > 0 {
            let line = lines
                .next()
                .expect("the process writes until it is killed")
                .unwrap();
            if let Some(number) = number(&line) {
                committed = number;
                left -= 1;
            }
        }
        // A moment inside some later transaction.
        std::thread::sleep(Duration::from_micros(n * 613 % 3000));
        process.kill().unwrap();
        process.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            committed = number(&line).unwrap_or(committed).max(committed);
        }
        last = match n % 2 {
            0 => verify(&open_unix(&path)),
            _ => verify(&open(&path)),
        };
        assert!(
            (committed..=committed + 1).contains(&last),
            "{committed}, {last}"
        );
    }
}

#[test]
fn a_rollback_journal_survives_kills() {
    let test = "kills::a_rollback_journal_survives_kills";
    kill(test, "DELETE", "PRAGMA synchronous = OFF", 8);
}

#[test]
fn a_wal_survives_kills() {
    kill("kills::a_wal_survives_kills", "WAL", "", 12);
}

/// `cargo test -p innerspace-sqlite -- --ignored kills`
#[test]
#[ignore = "takes minutes; see CONTRIBUTING.md"]
fn two_hundred_kills() {
    let test = "kills::two_hundred_kills";
    kill(test, "DELETE", "PRAGMA synchronous = OFF", 100);
    if role().is_none() {
        kill(test, "WAL", "", 100);
    }
}

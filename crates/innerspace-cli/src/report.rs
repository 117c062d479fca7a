//! The output, and the findings of a station.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use innerspace::ByteSize;

use crate::interrupt::interrupted;
use crate::stations::Station;

/// The findings of a station. Its claim is verified only if `failures` is empty.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    here: Vec<String>,
    kernel: Vec<String>,
    /// What ordinary SQLite does.
    #[cfg(all(feature = "sqlite", unix))]
    sqlite: Vec<String>,
    failures: Vec<String>,
}

impl Findings {
    /// Adds a line of evidence.
    pub(crate) fn here(&mut self, line: impl Into<String>) {
        self.here.push(line.into());
    }

    /// Adds a line about the kernel's result in the same case.
    pub(crate) fn kernel(&mut self, line: impl Into<String>) {
        self.kernel.push(line.into());
    }

    /// Adds a line about the result of ordinary SQLite in the same case.
    #[cfg(all(feature = "sqlite", unix))]
    pub(crate) fn sqlite(&mut self, line: impl Into<String>) {
        self.sqlite.push(line.into());
    }

    /// Adds a line about a result that is not as claimed.
    pub(crate) fn fail(&mut self, line: impl Into<String>) {
        self.failures.push(line.into());
    }

    pub(crate) fn holds(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The number of columns for a mark and evidence.
const COLUMNS: usize = 96;
const NOT_VERIFIED: &str = "NOT VERIFIED: ";

/// Breaks the line at spaces into pieces of at most `columns` columns; a longer word stays whole.
fn wrap(mut line: &str, columns: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    while let Some((last, letter)) = line.char_indices().nth(columns) {
        let Some(space) = line[..last + letter.len_utf8()]
            .rfind(' ')
            .or_else(|| line.find(' '))
        else {
            break;
        };
        pieces.push(&line[..space]);
        line = &line[space + 1..];
    }
    pieces.push(line);
    pieces
}

/// Standard output, which may be closed at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    terminal: bool,
}

impl Report {
    pub(crate) fn new() -> Report {
        Report {
            terminal: io::stdout().is_terminal() && io::stderr().is_terminal(),
        }
    }

    /// Creates a progress bar, which is drawn only on a terminal.
    fn bar(&self, len: u64) -> ProgressBar {
        let target = match self.terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        ProgressBar::with_draw_target(Some(len), target)
    }

    /// Creates a progress bar over bytes.
    pub(crate) fn bytes_bar(&self, doing: &'static str, bytes: u64) -> ProgressBar {
        let style = "  {msg:<24} {wide_bar} {bytes:>10} of {total_bytes}";
        self.styled_bar(doing, bytes, style)
    }

    /// Creates a progress bar over things that are counted.
    #[cfg(all(feature = "sqlite", unix))]
    pub(crate) fn count_bar(&self, doing: &'static str, count: u64) -> ProgressBar {
        self.styled_bar(doing, count, "  {msg:<24} {wide_bar} {pos:>6} of {len}")
    }

    fn styled_bar(&self, doing: &'static str, len: u64, style: &str) -> ProgressBar {
        let bar = self.bar(len).with_message(doing);
        bar.with_style(ProgressStyle::with_template(style).expect("a valid template"))
    }

    /// Creates a spinner for work of unknown length.
    pub(crate) fn spinner(&self, doing: &'static str) -> ProgressBar {
        let bar = self.styled_bar(doing, 0, "  {spinner} {msg}");
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    fn line(&self, line: impl Display) -> io::Result<()> {
        if interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }

    pub(crate) fn open(&self, name: &str, size: u64, limit: u64) -> io::Result<()> {
        let (size, limit) = (ByteSize(size), ByteSize(limit));
        self.title(format_args!("{name}: {size}, with a limit of {limit}"))
    }

    /// Prints the first line.
    pub(crate) fn title(&self, title: impl Display) -> io::Result<()> {
        self.line(title)
    }

    pub(crate) fn begin<T>(
        &self,
        number: usize,
        of: usize,
        station: &Station<T>,
    ) -> io::Result<()> {
        let Station { name, claim, .. } = station;
        self.line(format_args!("\n{number} of {of}  {name}\n  {claim}"))
    }

    pub(crate) fn end(&self, findings: &Findings) -> io::Result<()> {
        self.marked("here    ", &findings.here)?;
        self.marked("kernel  ", &findings.kernel)?;
        #[cfg(all(feature = "sqlite", unix))]
        self.marked("SQLite  ", &findings.sqlite)?;
        for line in &findings.failures {
            self.marked(NOT_VERIFIED, [line])?;
        }
        if findings.holds() {
            self.line("  verified")?;
        }
        Ok(())
    }

    pub(crate) fn failed(&self, error: &dyn std::error::Error) -> io::Result<()> {
        self.marked(NOT_VERIFIED, [error.to_string()])
    }

    /// Prints lines, broken where they are too long, with a mark before the first.
    fn marked<L: AsRef<str>>(
        &self,
        mark: &str,
        lines: impl IntoIterator<Item = L>,
    ) -> io::Result<()> {
        let width = mark.len();
        let mut marks = std::iter::once(mark).chain(std::iter::repeat(""));
        for line in lines {
            for piece in wrap(line.as_ref(), COLUMNS - width) {
                let mark = marks.next().unwrap_or_default();
                self.line(format_args!("  {mark:<width$}{piece}"))?;
            }
        }
        Ok(())
    }

    /// Prints a reason for a failed station that is not the library's fault: the file has changed.
    pub(crate) fn changed(&self, name: &str) -> io::Result<()> {
        self.line(format_args!(
            "\n{name} was changed by another program during the tour"
        ))
    }

    pub(crate) fn sum(&self, verified: usize, of: usize) -> io::Result<()> {
        self.line(format_args!("\n{verified} of {of} verified"))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn long_lines_are_broken_at_spaces() {
        fn wrap(line: &str) -> Vec<&str> {
            super::wrap(line, 88)
        }
        assert_eq!(wrap("a  short line"), ["a  short line"]);
        assert_eq!(wrap(""), [""]);
        let words = format!("{0} {0} {0}", "x".repeat(40));
        let (two, one) = (format!("{0} {0}", "x".repeat(40)), "x".repeat(40));
        assert_eq!(wrap(&words), [two, one]);
        let long = "é".repeat(200);
        assert_eq!(wrap(&long), [&*long]);
        assert_eq!(wrap(&format!("{long} b")), [&*long, "b"]);
        let exact = "y".repeat(88);
        assert_eq!(wrap(&format!("{exact} b")), [&*exact, "b"]);
    }
}

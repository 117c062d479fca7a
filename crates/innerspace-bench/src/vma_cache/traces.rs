//! Recorded mappings and page faults of programs, for table T5: the conversion of perf's output to
//! a short text, and its replay.
//!
//! A line of the short text is an event. Numbers are hexadecimal; addresses and lengths are in
//! pages.
//!
//! | line | event |
//! |---|---|
//! | `T thread space` | the following events are of this thread of this space |
//! | `N` | the space begins anew, because a program is started |
//! | `C space` | that space begins as a copy of this one: a fork |
//! | `M start len kind` | maps, in place of what is there |
//! | `U start len` | unmaps |
//! | `F page` | faults there |

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::BufRead;

use super::replay::{Lookups, Replay, Scheme};

use crate::host::PAGE;

/// How far the stack may grow down from its end; perf reports only its size at the beginning.
const STACK_PAGES: u64 = 2048;
/// The kinds of anonymous mappings. Mappings of files get several kinds in turn, because neighbours
/// are of different files, or of different parts.
const ANONYMOUS: [(&str, usize); 3] = [("rw", 0), ("r-", 1), ("--", 3)];
const FILES: [usize; 2] = [2, 4];

/// An event of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Turn { thread: usize, space: usize },
    New,
    Copy { space: usize },
    Map { start: u64, len: u64, kind: usize },
    Unmap { start: u64, len: u64 },
    Fault { page: u64 },
}

/// Reads the short text.
pub(crate) fn parse(text: &str) -> Result<Vec<Event>, Box<dyn Error>> {
    text.lines().map(parse_line).collect()
}

fn parse_line(line: &str) -> Result<Event, Box<dyn Error>> {
    let mut words = line.split(' ');
    let what = words.next();
    let mut number = || -> Result<u64, Box<dyn Error>> {
        let word = words
            .next()
            .ok_or_else(|| format!("a number is missing: {line:?}"))?;
        Ok(u64::from_str_radix(word, 16)?)
    };
    Ok(match what {
        Some("T") => Event::Turn {
            thread: number()? as usize,
            space: number()? as usize,
        },
        Some("N") => Event::New,
        Some("C") => Event::Copy {
            space: number()? as usize,
        },
        Some("M") => Event::Map {
            start: number()?,
            len: number()?,
            kind: number()? as usize,
        },
        Some("U") => Event::Unmap {
            start: number()?,
            len: number()?,
        },
        Some("F") => Event::Fault { page: number()? },
        _ => return Err(format!("no event: {line:?}").into()),
    })
}

/// The result of a replay.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Replayed {
    pub(crate) calls: u64,
    pub(crate) hits: u64,
    /// The faults at places where no mapping was known.
    pub(crate) lost: u64,
}

/// Replays a trace: each space with threads of its own, which take turns as they did.
pub(crate) fn replay(events: &[Event], scheme: Scheme) -> Replayed {
    let threads = |event: &Event| match event {
        Event::Turn { thread, .. } => thread + 1,
        _ => 0,
    };
    let threads = events.iter().map(threads).max().unwrap_or(0);
    let new = || Replay::new(scheme, threads);
    let mut done = Replayed::default();
    let mut count = |ended: &Replay| {
        let Lookups { calls, hits } = ended.lookups();
        done.calls += calls;
        done.hits += hits;
    };
    let mut spaces: Vec<Replay> = Vec::new();
    let (mut thread, mut space, mut lost) = (0, 0, 0);
    let page = PAGE as u64;
    for event in events {
        match *event {
            Event::Turn {
                thread: who,
                space: its,
            } => {
                (thread, space) = (who, its);
                while spaces.len() <= space {
                    spaces.push(new());
                }
            }
            Event::New => {
                count(&spaces[space]);
                spaces[space] = new();
            }
            Event::Copy { space: copy } => {
                while spaces.len() <= copy {
                    spaces.push(new());
                }
                spaces[copy] = spaces[space].fork();
            }
            Event::Map { start, len, kind } => {
                spaces[space].map(start * page, (start + len) * page, kind);
            }
            Event::Unmap { start, len } => spaces[space].unmap(start * page, (start + len) * page),
            Event::Fault { page: at } => {
                lost += u64::from(spaces[space].find(thread, at * page).is_none());
            }
        }
    }
    spaces.iter().for_each(count);
    Replayed { lost, ..done }
}

/// Creates the short text from the output of
/// `perf script --show-mmap-events -F comm,pid,tid,time,event,trace`; see `traces/record.sh`.
pub(crate) fn reduce(perf: impl BufRead) -> Result<String, Box<dyn Error>> {
    let lines: Vec<String> = perf.lines().collect::<Result<_, _>>()?;
    let lines: Vec<Line<'_>> = lines.iter().filter_map(|line| Line::of(line)).collect();
    let mut reducer = Reducer {
        process_of: lines
            .iter()
            .map(|line| (line.thread, line.process))
            .collect(),
        ..Reducer::default()
    };
    for line in &lines {
        reducer.turn(line);
        reducer
            .line(line)
            .ok_or_else(|| format!("not understood: {line:?}"))?;
    }
    Ok(reducer.text)
}

/// A line of perf's output: the thread, the event, and the rest.
#[derive(Clone, Copy, Debug)]
struct Line<'a> {
    process: u64,
    thread: u64,
    event: &'a str,
    rest: &'a str,
}

impl<'a> Line<'a> {
    /// Splits a line. Returns `None` for events of the kernel's own.
    fn of(line: &'a str) -> Option<Line<'a>> {
        // The name before it may contain blanks, but no slash between digits.
        let ids = line.split_whitespace().find_map(|word| {
            let (process, thread) = word.split_once('/')?;
            Some((word, process.parse().ok()?, thread.parse().ok()?))
        });
        let (word, process, thread) = ids.filter(|(_, process, _)| *process != 0)?;
        let (_, after) = line.split_once(word)?;
        let (_time, after) = after.trim_start().split_once(' ')?;
        let after = after.trim_start();
        let (event, rest) = after.split_once(' ')?;
        let event = event.trim_end_matches(':');
        let event = event.rsplit(':').next().unwrap_or(event);
        Some(Line {
            process,
            thread,
            event,
            rest: rest.trim(),
        })
    }

    /// Returns the number after `name`, up to the next blank or comma.
    fn number(&self, name: &str) -> Option<u64> {
        let (_, after) = self.rest.split_once(name)?;
        number(after.split([' ', ',']).find(|word| !word.is_empty())?)
    }
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[derive(Default)]
struct Reducer {
    text: String,
    /// The process of each thread that does anything.
    process_of: BTreeMap<u64, u64>,
    /// The number of each thread in the short text, in order of appearance.
    threads: BTreeMap<u64, usize>,
    spaces: BTreeMap<u64, usize>,
    turn: Option<u64>,
    /// The end of a process's heap.
    heap: BTreeMap<u64, u64>,
    /// The arguments of a thread's current call of mremap.
    moving: BTreeMap<u64, (u64, u64, u64)>,
    files: usize,
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64)
}

impl Reducer {
    fn put(&mut self, event: char, numbers: &[u64]) {
        self.text.push(event);
        for number in numbers {
            write!(self.text, " {number:x}").expect("a string takes everything");
        }
        self.text.push('\n');
    }

    fn space(&mut self, process: u64) -> u64 {
        let next = self.spaces.len();
        *self.spaces.entry(process).or_insert(next) as u64
    }

    fn turn(&mut self, line: &Line<'_>) {
        if self.turn != Some(line.thread) {
            self.turn = Some(line.thread);
            let next = self.threads.len();
            let thread = *self.threads.entry(line.thread).or_insert(next) as u64;
            let space = self.space(line.process);
            self.put('T', &[thread, space]);
        }
    }

    /// Returns `None` for a line that it does not understand.
    fn line(&mut self, line: &Line<'_>) -> Option<()> {
        let Line {
            process, thread, ..
        } = *line;
        match line.event {
            "page_fault_user" => {
                let address = line.rest.split_once("address=")?.1.split(' ').next()?;
                self.put('F', &[number(address)? / PAGE as u64]);
            }
            "PERF_RECORD_MMAP2" => self.map(line)?,
            "sys_enter_munmap" => {
                let start = line.number("addr:")? / PAGE as u64;
                self.put('U', &[start, pages(line.number("len:")?)]);
            }
            "sys_exit_brk" => {
                let end = number(line.rest)?;
                let before = self.heap.insert(process, end).unwrap_or(end);
                if pages(end) < pages(before) {
                    self.put('U', &[pages(end), pages(before) - pages(end)]);
                }
            }
            "sys_enter_mremap" => {
                let call = ["addr:", "old_len:", "new_len:"].map(|name| line.number(name));
                self.moving.insert(thread, (call[0]?, call[1]?, call[2]?));
            }
            "sys_exit_mremap" => {
                let (at, old, new) = self.moving.remove(&thread)?;
                if let Some(to) = number(line.rest).filter(|to| to.is_multiple_of(PAGE as u64)) {
                    self.put('U', &[at / PAGE as u64, pages(old)]);
                    self.put('M', &[to / PAGE as u64, pages(new), 0]);
                }
            }
            "sched_process_fork" => {
                let child = line.rest.split_once("child_pid=")?.1.trim().parse().ok()?;
                if self.process_of.get(&child) == Some(&child) {
                    let copy = self.space(child);
                    self.put('C', &[copy]);
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Handles a line such as
    /// `1985/1985: [0x7f0dc61b7000(0x6000) @ 0x1cf000 fe:00 326269 0]: rw-p /usr/lib/libc.so.6`.
    fn map(&mut self, line: &Line<'_>) -> Option<()> {
        let (_, after) = line.rest.split_once('[')?;
        let (range, after) = after.split_once(')')?;
        let (start, len) = range.split_once('(')?;
        let (start, len) = (number(start)? / PAGE as u64, pages(number(len)?));
        let (rights, name) = after.rsplit_once("]: ")?.1.split_once(' ')?;
        if name == "[stack]" && rights.starts_with("rw") && len < STACK_PAGES {
            // This is the first mapping of a new program.
            self.put('N', &[]);
            self.heap.remove(&line.process);
            let end = start + len;
            self.put('M', &[end - STACK_PAGES, STACK_PAGES, 0]);
            return Some(());
        }
        let anonymous = name.starts_with("//anon") || name.starts_with("[heap]");
        let known = ANONYMOUS
            .iter()
            .find(|(first, _)| rights.starts_with(first));
        let kind = match known {
            Some((_, kind)) if anonymous => *kind,
            _ => {
                self.files += 1;
                FILES[self.files % FILES.len()]
            }
        };
        self.put('M', &[start, len, kind as u64]);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERF: &str = "\
         swapper     0/0         0.000000000: PERF_RECORD_MMAP -1/0: [0xffffffff81000000(0x1206448) @ 0]: x [kernel.kallsyms]_text
              sh  1985/1985  1.941145766: PERF_RECORD_MMAP2 1985/1985: [0x7ffe6b450000(0x21000) @ 0x7ffffffde000 00:00 0 0]: rw-p [stack]
              sh  1985/1985  1.941161098: PERF_RECORD_MMAP2 1985/1985: [0x55b503438000(0x13000) @ 0x4000 fe:00 247072 0]: r-xp /bin/sh
              sh  1985/1985  1.941174203: PERF_RECORD_MMAP2 1985/1985: [0x55b503454000(0x2000) @ 0x55b503454000 00:00 0 0]: rw-p //anon
              sh  1985/1985  1.941262102:       syscalls:sys_exit_brk: 0x55b50b6df000
              sh  1985/1985  1.941262103:       syscalls:sys_exit_brk: 0x55b50b6de000
              sh  1985/1985  1.942000001: exceptions:page_fault_user: address=0x55b503454040 ip=0x7f error_code=0x4
              sh  1985/1985  1.942064981:    sched:sched_process_fork: comm=sh pid=1985 child_comm=sh child_pid=1987
              sh  1985/1985  1.942064982:    sched:sched_process_fork: comm=sh pid=1985 child_comm=sh child_pid=1990
   a name of b  1987/1987  1.943000001: exceptions:page_fault_user: address=0x7ffe6b400000 ip=0x7f error_code=0x4
              sh  1985/1990  1.943000002:  syscalls:sys_enter_munmap: addr: 0x55b503438000, len: 0x00013000
              sh  1985/1990  1.943000003: exceptions:page_fault_user: address=0x55b503438000 ip=0x7f error_code=0x4
";

    #[test]
    fn what_perf_prints_becomes_events_and_these_can_be_replayed() {
        let text = reduce(PERF.as_bytes()).unwrap();
        let expected = "T 0 0\nN\nM 7ffe6ac71 800 0\nM 55b503438 13 4\nM 55b503454 2 0\nU 55b50b6de 1\n\
                        F 55b503454\nC 1\nT 1 1\nF 7ffe6b400\nT 2 0\nU 55b503438 13\nF 55b503438\n";
        assert_eq!(text, expected);
        let events = parse(&text).unwrap();
        let done = replay(&events, Scheme::PerThread);
        assert_eq!((done.calls, done.hits, done.lost), (3, 0, 1));
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for wrong in ["X 1", "F", "F zz", "M 1 2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

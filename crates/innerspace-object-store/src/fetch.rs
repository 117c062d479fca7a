//! One read of one object: a range of one version, with retries, a deadline, and a second request
//! where the first is late.

use std::io::IoSliceMut;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use innerspace::store::Request;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::time::{sleep, timeout};

use crate::error::{Failure, Reason};
use crate::limit::Limits;

/// How long reads fail at once after one has failed for good. The cache reads a window that failed
/// again, block by block, and must not wait for the deadline with each of them.
const DOWN: Duration = Duration::from_secs(1);

/// How a request is repeated.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// How often in a row a request may fail without delivering a byte.
    pub(crate) retries: u32,
    /// The pause after the first failure; it doubles with each.
    pub(crate) first_pause: Duration,
    /// How long a read is tried in all.
    pub(crate) deadline: Duration,
    /// How long an attempt may wait for an answer, or for more bytes.
    pub(crate) stall: Duration,
    /// The time without an answer after which a second request is made.
    pub(crate) hedge_after: Option<Duration>,
}

const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The resolution of times in headers.
const SECOND: Duration = Duration::from_secs(1);

/// One version of one object, and how it is read.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    pub(crate) meta: ObjectMeta,
    pub(crate) limits: Limits,
    pub(crate) patience: Patience,
    health: Mutex<Health>,
}

/// What earlier reads found out.
#[derive(Debug, Default)]
struct Health {
    /// Set if the version is gone, so that no read will succeed.
    gone: Option<Reason>,
    /// Set if the last read failed: until this time other reads fail for the same reason.
    down: Option<(Instant, Reason)>,
}

/// Memory that is filled from front to back.
pub(crate) trait Sink {
    fn wanted(&self) -> usize;
    fn filled(&self) -> usize;
    /// Appends bytes, for which there is room.
    fn push(&mut self, bytes: &[u8]);
}

impl Sink for Request {
    fn wanted(&self) -> usize {
        self.len()
    }

    fn filled(&self) -> usize {
        Request::filled(self)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.fill(bytes);
    }
}

/// The buffers of a plain call.
pub(crate) struct Slices<'a, 'b> {
    pub(crate) bufs: &'a mut [IoSliceMut<'b>],
    pub(crate) wanted: usize,
    filled: usize,
    /// The buffer to be filled next, and how much of it is filled.
    at: (usize, usize),
}

impl<'a, 'b> Slices<'a, 'b> {
    pub(crate) fn new(bufs: &'a mut [IoSliceMut<'b>], wanted: usize) -> Slices<'a, 'b> {
        Slices {
            bufs,
            wanted,
            filled: 0,
            at: (0, 0),
        }
    }
}

impl Sink for Slices<'_, '_> {
    fn wanted(&self) -> usize {
        self.wanted
    }

    fn filled(&self) -> usize {
        self.filled
    }

    fn push(&mut self, mut bytes: &[u8]) {
        self.filled += bytes.len();
        while !bytes.is_empty() {
            let (buf, start) = self.at;
            let room = &mut self.bufs[buf][start..];
            let len = room.len().min(bytes.len());
            room[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            self.at = match len == room.len() {
                true => (buf + 1, 0),
                false => (buf, start + len),
            };
        }
    }
}

impl Source {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        limits: Limits,
        patience: Patience,
    ) -> Source {
        Source {
            store,
            path: meta.location.clone(),
            meta,
            limits,
            patience,
            health: Mutex::default(),
        }
    }

    /// Returns the metadata of an object that is to be opened. Retries as reads do.
    pub(crate) async fn head(
        store: &dyn ObjectStore,
        path: &Path,
        limits: &Limits,
        patience: &Patience,
    ) -> Result<ObjectMeta, Reason> {
        let _permits = limits.acquire().await;
        let mut trial = Trial::new(patience);
        loop {
            limits.count(|counters| &counters.requests, 1);
            let tried = timeout(patience.stall.min(trial.left()), store.head(path)).await;
            let failure = match tried {
                Ok(Ok(meta)) => return Ok(meta),
                Ok(Err(error)) => Failure::of(&error, false),
                Err(_) => Failure::Again(trial.timed_out()),
            };
            trial.next(failure, limits).await?;
        }
    }

    /// Fills the sink with the bytes from `offset` on. The object has them all.
    pub(crate) async fn fetch<S: Sink>(&self, offset: u64, sink: &mut S) -> Result<(), Reason> {
        let _permits = self.limits.acquire().await;
        // A read that waited for its place may come after one that failed.
        self.check_health()?;
        let mut trial = Trial::new(&self.patience);
        loop {
            let before = sink.filled();
            let attempt = timeout(trial.left(), self.attempt(offset, sink)).await;
            let failure = match attempt {
                Ok(Ok(())) => {
                    self.health().down = None;
                    return Ok(());
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Again(trial.timed_out()),
            };
            if sink.filled() > before {
                trial.note_progress();
            }
            if let Err(reason) = trial.next(failure, &self.limits).await {
                self.limits.count(|counters| &counters.failures, 1);
                self.note_failure(&reason);
                return Err(reason);
            }
        }
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_health(&self) -> Result<(), Reason> {
        let health = self.health();
        if let Some(reason) = &health.gone {
            return Err(reason.clone());
        }
        match &health.down {
            Some((until, reason)) if Instant::now() < *until => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    fn note_failure(&self, reason: &Reason) {
        let mut health = self.health();
        match reason {
            Reason::Changed => health.gone = Some(reason.clone()),
            _ => health.down = Some((Instant::now() + DOWN, reason.clone())),
        }
    }

    /// Makes one request for what the sink still needs, and fills it.
    async fn attempt<S: Sink>(&self, offset: u64, sink: &mut S) -> Result<(), Failure> {
        let range = offset + sink.filled() as u64..offset + sink.wanted() as u64;
        let stall = self.patience.stall;
        let late = || Failure::Again(Reason::TimedOut { after: stall });
        let answer = match timeout(stall, self.answer(&range)).await {
            Ok(answer) => answer.map_err(|error| Failure::of(&error, true))?,
            Err(_) => return Err(late()),
        };
        self.check_version(&answer.meta)?;
        if answer.range != range {
            return Err(Failure::Again(wrong_length(&range, answer.range)));
        }
        let mut bytes = answer.into_stream();
        loop {
            let next = match timeout(stall, bytes.next()).await {
                Ok(next) => next,
                Err(_) => return Err(late()),
            };
            let Some(chunk) = next else { break };
            let chunk = chunk.map_err(|error| Failure::of(&error, true))?;
            self.limits
                .count(|counters| &counters.bytes_fetched, chunk.len() as u64);
            if chunk.len() > sink.wanted() - sink.filled() {
                // It is unknown which of the bytes are the right ones.
                let got = range.start..range.end + chunk.len() as u64;
                return Err(Failure::Final(wrong_length(&range, got)));
            }
            sink.push(&chunk);
        }
        let end = offset + sink.filled() as u64;
        match end == range.end {
            true => Ok(()),
            false => Err(Failure::Again(wrong_length(&range, range.start..end))),
        }
    }

    /// Asks for a range of the version. If the answer is late, asks a second time, and returns the
    /// answer that comes first.
    async fn answer(&self, range: &Range<u64>) -> object_store::Result<GetResult> {
        let ask = || {
            self.limits.count(|counters| &counters.requests, 1);
            self.store.get_opts(&self.path, self.get_options(range))
        };
        let first = ask();
        let Some(after) = self.patience.hedge_after else {
            return first.await;
        };
        let mut first = pin!(first);
        if let Ok(answer) = timeout(after, first.as_mut()).await {
            return answer;
        }
        let Some(_permits) = self.limits.try_acquire() else {
            return first.await;
        };
        self.limits.count(|counters| &counters.hedges, 1);
        let second = pin!(ask());
        match select(first, second).await {
            Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
            Either::Left((Err(_), other)) => other.await,
            Either::Right((Err(_), other)) => other.await,
        }
    }

    /// Returns the choices of a request, which names the version in each way that the server may
    /// understand.
    fn get_options(&self, range: &Range<u64>) -> GetOptions {
        let tag = self.strong_tag();
        let is_tagged = tag.is_some() || self.meta.version.is_some();
        GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: tag.map(str::to_owned),
            version: self.meta.version.clone(),
            // Without a tag, the time has to serve. It has whole seconds in a header, and some
            // servers compare it with a finer one of theirs. The answer is checked for the very
            // same time.
            if_unmodified_since: (!is_tagged).then_some(self.meta.last_modified + SECOND),
            ..GetOptions::default()
        }
    }

    /// Returns the entity tag, unless it is a weak one, for which If-Match never holds.
    fn strong_tag(&self) -> Option<&str> {
        let tag = self.meta.e_tag.as_deref()?;
        (!tag.starts_with("W/")).then_some(tag)
    }

    /// Checks that an answer has the version that was opened, for servers that ignore conditions.
    fn check_version(&self, meta: &ObjectMeta) -> Result<(), Failure> {
        let was = &self.meta;
        let is_same = meta.size == was.size
            && match (&was.e_tag, &meta.e_tag) {
                (Some(was), Some(now)) => was == now,
                (None, _) => meta.last_modified == was.last_modified,
                // An answer to a request that named the version has the right version.
                (Some(_), None) => was.version.is_some() && meta.version == was.version,
            };
        match is_same {
            true => Ok(()),
            false => Err(Failure::Final(Reason::Changed)),
        }
    }
}

fn wrong_length(wanted: &Range<u64>, got: Range<u64>) -> Reason {
    let detail = format!(
        "wanted bytes {} to {}, got {} to {}",
        wanted.start, wanted.end, got.start, got.end
    );
    Reason::WrongLength { detail }
}

/// The attempts of one read.
struct Trial<'a> {
    patience: &'a Patience,
    began: Instant,
    /// Failures in a row, without a byte.
    failures: u32,
    pause: Duration,
}

impl Trial<'_> {
    fn new(patience: &Patience) -> Trial<'_> {
        Trial {
            patience,
            began: Instant::now(),
            failures: 0,
            pause: patience.first_pause,
        }
    }

    fn left(&self) -> Duration {
        self.patience.deadline.saturating_sub(self.began.elapsed())
    }

    fn timed_out(&self) -> Reason {
        let after = self.patience.deadline.min(self.patience.stall);
        Reason::TimedOut { after }
    }

    fn note_progress(&mut self) {
        self.failures = 0;
        self.pause = self.patience.first_pause;
    }

    /// Pauses before the next attempt, or returns the reason why there is none.
    async fn next(&mut self, failure: Failure, limits: &Limits) -> Result<(), Reason> {
        let reason = match failure {
            Failure::Final(reason) => return Err(reason),
            Failure::Again(reason) => reason,
        };
        self.failures += 1;
        if self.failures > self.patience.retries || self.pause >= self.left() {
            return Err(reason);
        }
        limits.count(|counters| &counters.retries, 1);
        sleep(self.jittered()).await;
        self.pause = self.pause.saturating_mul(2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// Returns half to all of the pause, so that readers that failed together come back apart. The
    /// clock's last digits are random enough for that.
    fn jittered(&self) -> Duration {
        let nanos = u64::from(self.began.elapsed().subsec_nanos());
        self.pause / 2 + self.pause.mul_f64((nanos % 997) as f64 / 2000.0)
    }
}

//! Waiting: always with a deadline, always able to say what was seen last.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// What one look at the world showed.
#[derive(Debug)]
pub enum Look<T> {
    /// It is as wanted.
    Done(T),
    /// Not yet; the text says what was seen.
    NotYet(String),
}

/// `Done(())` if `reached`, else what was seen.
pub fn when(reached: bool, seen: impl std::fmt::Debug) -> Look<()> {
    if reached { Look::Done(()) } else { Look::NotYet(format!("{seen:?}")) }
}

/// Looks every 100 ms until `look` is done; returns its value and how long it took.
///
/// An error of `look` counts as "not yet": API servers and pods restart under these tests.
///
/// # Errors
/// The deadline passed; the message names `what` and the last look. One look may take at most 20 s.
pub async fn until<T, F, Fut>(what: &str, limit: Duration, mut look: F) -> Result<(T, Duration)>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Look<T>>>,
{
    let began = Instant::now();
    let limit = limit.mul_f64(crate::env::patience());
    loop {
        let seen = match tokio::time::timeout(Duration::from_secs(20), look()).await {
            Ok(Ok(Look::Done(value))) => return Ok((value, began.elapsed())),
            Ok(Ok(Look::NotYet(seen))) => seen,
            Ok(Err(error)) => format!("error: {error:#}"),
            Err(_) => "no answer within 20 s".to_owned(),
        };
        if began.elapsed() >= limit {
            bail!("{what}: not within {:.0} s; last seen: {seen}", limit.as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Looks every 100 ms for the whole of `span`: `look` must be `Done` each time.
///
/// # Errors
/// What was seen when it didn't hold.
pub async fn always<F, Fut>(what: &str, span: Duration, mut look: F) -> Result<usize>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Look<()>>>,
{
    let began = Instant::now();
    let mut looks = 0;
    while began.elapsed() < span {
        match look().await? {
            Look::Done(()) => looks += 1,
            Look::NotYet(seen) => bail!("{what}: broken after {:.1} s; seen: {seen}", began.elapsed().as_secs_f64()),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(looks)
}

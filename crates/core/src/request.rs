//! Requests: control-plane calls that have been started.
//!
//! Each control call is start / test / cancel, so that it can cross a C table: starting returns a [`Request`], which
//! is tested, waited for with a deadline, or dropped (which cancels it). It is also a future, for hosts that have an
//! executor; polled as one it never blocks and asks to be polled again at once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::ControlError;

/// A started call, as a transport implements it. Dropping it cancels the call.
pub trait Pending<T>: Send {
    /// The result, if it is there; never blocks. Not called again after it returned one.
    fn test(&mut self) -> Option<Result<T, ControlError>>;

    /// Blocks on the call's own event until a test may succeed, at most for `timeout`.
    fn park(&mut self, timeout: Duration);

    /// What is being waited for, for the time-out error.
    fn describe(&self) -> String;
}

/// A started control call.
#[must_use = "dropping a request cancels it"]
pub struct Request<T>(State<T>);

enum State<T> {
    Done(Option<Result<T, ControlError>>),
    Pending(Box<dyn Pending<T>>),
}

impl<T> Request<T> {
    /// A call that ended when it was started.
    pub fn done(result: Result<T, ControlError>) -> Self {
        Self(State::Done(Some(result)))
    }

    /// A call that goes on.
    pub fn pending(pending: impl Pending<T> + 'static) -> Self {
        Self(State::Pending(Box::new(pending)))
    }

    /// The result, if it is there; never blocks.
    ///
    /// # Panics
    /// If the result was already taken.
    pub fn test(&mut self) -> Option<Result<T, ControlError>> {
        match &mut self.0 {
            State::Done(result) => Some(result.take().expect("the result of a request is taken once")),
            State::Pending(pending) => {
                let result = pending.test();
                if result.is_some() {
                    self.0 = State::Done(None);
                }
                result
            }
        }
    }

    /// Whether a test will give the result without doing anything for the call.
    pub fn is_done(&self) -> bool {
        matches!(self.0, State::Done(_))
    }

    /// A call whose result is made of this one's.
    ///
    /// ```
    /// use campanile_core::Request;
    /// let length = Request::done(Ok("four")).map(str::len);
    /// assert_eq!(length.wait(std::time::Duration::ZERO).unwrap(), 4);
    /// ```
    pub fn map<U>(self, make: impl FnOnce(T) -> U + Send + 'static) -> Request<U>
    where
        T: 'static,
        U: 'static,
    {
        match self.0 {
            State::Done(result) => Request(State::Done(result.map(|result| result.map(make)))),
            State::Pending(pending) => Request::pending(Mapped { pending, make: Some(make) }),
        }
    }

    /// Blocks on the call's own event until a test may succeed, at most for `timeout`; not at all if it is done.
    pub fn park(&mut self, timeout: Duration) {
        if let State::Pending(pending) = &mut self.0 {
            pending.park(timeout);
        }
    }

    /// What is being waited for.
    pub fn describe(&self) -> String {
        match &self.0 {
            State::Done(_) => "nothing".to_owned(),
            State::Pending(pending) => pending.describe(),
        }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// The call's own, or [`ControlError::Timeout`]; after that the call is cancelled.
    pub fn wait(mut self, timeout: Duration) -> Result<T, ControlError> {
        let start = Instant::now();
        loop {
            if let Some(result) = self.test() {
                return result;
            }
            let State::Pending(pending) = &mut self.0 else { unreachable!("a tested request that is done returned") };
            match timeout.checked_sub(start.elapsed()) {
                Some(left) if !left.is_zero() => pending.park(left),
                _ => return Err(ControlError::Timeout { what: pending.describe(), waited: start.elapsed() }),
            }
        }
    }
}

/// A call that goes on, and what is made of its result.
struct Mapped<T, F> {
    pending: Box<dyn Pending<T>>,
    /// Taken when the result is there.
    make: Option<F>,
}

impl<T, U, F: FnOnce(T) -> U + Send> Pending<U> for Mapped<T, F> {
    fn test(&mut self) -> Option<Result<U, ControlError>> {
        let result = self.pending.test()?;
        let make = self.make.take().expect("a call is not tested again after it returned its result");
        Some(result.map(make))
    }

    fn park(&mut self, timeout: Duration) {
        self.pending.park(timeout);
    }

    fn describe(&self) -> String {
        self.pending.describe()
    }
}

impl<T: Unpin> Future for Request<T> {
    type Output = Result<T, ControlError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.test() {
            Some(result) => Poll::Ready(result),
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl<T> std::fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            State::Done(_) => "Request(done)",
            State::Pending(_) => "Request(pending)",
        })
    }
}

//! A C request as the core's.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use campanile_abi as abi;
use campanile_core::{ControlError, Pending, Request};

use super::record::{failure, record};
use super::transport::Opened;
use crate::text;

/// How long a request without a `park` of its own is left alone between two tests.
const NAP: Duration = Duration::from_micros(200);

/// Where a plugin writes a result.
pub(super) trait Place: Send + 'static {
    /// The pointer that the plugin gets.
    fn pointer(&mut self) -> *mut c_void;
}

/// A started call of a plugin.
struct Waiting<P, T> {
    request: abi::Request,
    place: P,
    finish: Finish<P, T>,
    call: &'static str,
    /// Requests end before their transport.
    opened: Arc<Opened>,
}

type Finish<P, T> = fn(&Arc<Opened>, &mut P) -> Result<T, ControlError>;

// SAFETY: the functions of a request may be called from any thread, one at a time (the contract of requests), and this type
// is not Sync.
unsafe impl<P: Send, T> Send for Waiting<P, T> {}

/// Starts a call: `begin` is given the place of the result, the request and the error record.
pub(super) fn start<P: Place, T: 'static>(
    opened: &Arc<Opened>,
    call: &'static str,
    mut place: P,
    begin: impl FnOnce(*mut c_void, *mut abi::Request, *mut abi::Error) -> i32,
    finish: Finish<P, T>,
) -> Request<T> {
    let struct_size = size_of::<abi::Request>() as u64;
    let mut request =
        abi::Request { struct_size, ctx: std::ptr::null_mut(), test: None, park: None, describe: None, drop: None };
    let name = opened.info().name;
    match begin(place.pointer(), &raw mut request, record()) {
        abi::STATUS_OK => Request::done(finish(opened, &mut place)),
        abi::STATUS_PENDING if request.test.is_some() => {
            Request::pending(Waiting { request, place, finish, call, opened: Arc::clone(opened) })
        }
        status if status < 0 => Request::done(Err(failure(status).into_control(name, call))),
        status => Request::done(Err(ControlError::System {
            what: call.to_owned(),
            reason: format!("transport {name} answered {status} and gave no request"),
        })),
    }
}

impl<P: Place, T> Pending<T> for Waiting<P, T> {
    fn test(&mut self) -> Option<Result<T, ControlError>> {
        let test = self.request.test.expect("`start` made sure");
        // SAFETY: the request's function and context; the place lives as long as the request, the record is this call's.
        match unsafe { test(self.request.ctx, self.place.pointer(), record()) } {
            abi::STATUS_PENDING => None,
            status if status < 0 => Some(Err(failure(status).into_control(self.opened.info().name, self.call))),
            _ => Some((self.finish)(&self.opened, &mut self.place)),
        }
    }

    fn park(&mut self, timeout: Duration) {
        match self.request.park {
            // SAFETY: the request's function and context.
            Some(park) => unsafe { park(self.request.ctx, crate::codes::nanoseconds(timeout)) },
            None => std::thread::park_timeout(timeout.min(NAP)),
        }
    }

    fn describe(&self) -> String {
        let said = self.request.describe.map(|describe| {
            // SAFETY: the request's function and context; the sink is this call's.
            text::collect_text(|sink| unsafe { describe(self.request.ctx, sink) }).0
        });
        said.filter(|text| !text.is_empty())
            .unwrap_or_else(|| format!("{} of transport {}", self.call, self.opened.info().name))
    }
}

impl<P, T> Drop for Waiting<P, T> {
    fn drop(&mut self) {
        if let Some(drop) = self.request.drop {
            // SAFETY: the request's function and context, used for the last time.
            unsafe { drop(self.request.ctx) };
        }
    }
}

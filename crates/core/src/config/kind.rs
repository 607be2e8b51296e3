//! Kinds of values: from text, to text, and what is allowed, in words.

use std::time::Duration;

use super::choice::Choice;
use super::{ConfigError, Source};
use crate::QueueOptions;
use crate::selection::Preference;

/// How values of one kind are read and shown. What [`show`](Self::show) makes of a value, [`parse`](Self::parse)
/// accepts exactly if the value is allowed.
pub(super) struct Kind<T> {
    allowed: fn() -> String,
    parse: fn(&str) -> Option<T>,
    show: fn(&T) -> String,
}

impl<T> Kind<T> {
    /// What is allowed, in words.
    pub(super) fn allowed(&self) -> String {
        (self.allowed)()
    }

    /// The value that `text` says, if it is allowed.
    pub(super) fn parse(&self, text: &str) -> Option<T> {
        (self.parse)(text)
    }

    /// The text that says `value`.
    pub(super) fn show(&self, value: &T) -> String {
        (self.show)(value)
    }
}

impl<T: Choice> Kind<T> {
    /// One of a few names.
    pub(super) const CHOICE: Self = Self { allowed: T::names, parse: T::named, show: |value| value.name().to_owned() };
}

impl Kind<Preference> {
    /// Transports, by preference.
    pub(super) const PREFERENCE: Self =
        Self { allowed: || Preference::ALLOWED.to_owned(), parse: Preference::parse, show: ToString::to_string };
}

impl Kind<Option<String>> {
    /// Any text but none, or nothing.
    pub(super) const OPTIONAL_TEXT: Self = Self {
        allowed: || "a text that is not empty, or unset".to_owned(),
        parse: |text| optional(text, |text| (!text.is_empty()).then(|| text.to_owned())),
        show: |value| value.clone().unwrap_or_else(|| UNSET.to_owned()),
    };
}

impl Kind<Option<u32>> {
    /// A number from 0, or nothing.
    pub(super) const RANK: Self = Self {
        allowed: || "a number from 0 to 4294967295, or unset".to_owned(),
        parse: |text| optional(text, decimal),
        show: show_number,
    };

    /// A number from 1, or nothing.
    pub(super) const RANKS: Self = Self {
        allowed: || "a number from 1 to 4294967295, or unset".to_owned(),
        parse: |text| optional(text, |text| decimal(text).filter(|&ranks| ranks > 0)),
        show: show_number,
    };
}

impl Kind<usize> {
    /// Slots of a queue.
    pub(super) const DEPTH: Self = Self {
        allowed: || format!("a power of two from 1 to {}", QueueOptions::MAX_DEPTH),
        parse: |text| {
            let depth = decimal(text)? as usize;
            (depth.is_power_of_two() && depth <= QueueOptions::MAX_DEPTH).then_some(depth)
        },
        show: ToString::to_string,
    };
}

impl Kind<Duration> {
    /// A time to wait for.
    pub(super) const DURATION: Self =
        Self { allowed: || DURATION_ALLOWED.to_owned(), parse: duration, show: show_duration };
}

/// The text of a value that is not there.
const UNSET: &str = "unset";

fn optional<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if text == UNSET { Some(None) } else { parse(text).map(Some) }
}

fn show_number(value: &Option<u32>) -> String {
    value.map_or_else(|| UNSET.to_owned(), |number| number.to_string())
}

/// Digits only: `u32::from_str` would accept a sign.
fn decimal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

const DURATION_ALLOWED: &str = "seconds, as 30 or 0.5, or a number with a unit, as 500ms, 30s or 2min (us, ms, s, min); more \
    than 0 and at most a year";

/// An upper bound keeps `Instant` arithmetic far from overflow; who wants to wait longer does not want a deadline.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A time to wait for, from text: seconds, or a number with a unit.
///
/// # Errors
/// [`ConfigError::Value`].
pub fn parse_duration(text: &str) -> Result<Duration, ConfigError> {
    duration(text).ok_or_else(|| ConfigError::Value {
        name: "timeout".to_owned(),
        given: text.to_owned(),
        origin: Source::Code,
        allowed: DURATION_ALLOWED.to_owned(),
    })
}

fn duration(text: &str) -> Option<Duration> {
    let is_number = |byte: char| byte.is_ascii_digit() || byte == '.';
    let (number, unit) = text.split_at(text.find(|byte| !is_number(byte)).unwrap_or(text.len()));
    let number: f64 = number.parse().ok()?;
    // Divided, not multiplied by an inexact 1e-3: the quotient is the nearest one.
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" | "" => number,
        "min" => number * 60.0,
        _ => return None,
    };
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    (!duration.is_zero() && duration <= MAX_DURATION).then_some(duration)
}

fn show_duration(duration: &Duration) -> String {
    match (duration.as_secs(), duration.subsec_nanos()) {
        (seconds, 0) => format!("{seconds}s"),
        (0, nanos) if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
        (seconds, nanos) => format!("{}s", format!("{seconds}.{nanos:09}").trim_end_matches('0')),
    }
}

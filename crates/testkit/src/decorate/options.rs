//! Options of a decorator, from text.

use std::time::Duration;

use campanile_core::{parse_duration, suggest};

use super::StackError;

/// The options that were given to one decorator. Names are checked when they are read from the text, values when they
/// are asked for.
pub(super) struct Options<'a> {
    decorator: &'a str,
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Options<'a> {
    /// Reads `option=value, …`, where the options are some of `known`, each at most once.
    pub(super) fn parse(decorator: &'a str, text: &'a str, known: &[&str]) -> Result<Self, StackError> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let syntax = |reason| StackError::Syntax { given: part.to_owned(), reason };
            let (name, value) = part.split_once('=').ok_or_else(|| syntax("an option without a value"))?;
            let (name, value) = (name.trim(), value.trim());
            if !known.contains(&name) {
                let nearest = match known {
                    [] => "it has none".to_owned(),
                    known => suggest(name, known.iter().map(|&name| name.to_owned())),
                };
                return Err(StackError::Option { decorator: decorator.to_owned(), given: name.to_owned(), nearest });
            }
            if given.iter().any(|(other, _)| *other == name) {
                return Err(syntax("an option that was given before"));
            }
            given.push((name, value));
        }
        Ok(Self { decorator, given })
    }

    /// The value of `option`, if it was given, as `parse` reads it.
    pub(super) fn get<T>(
        &self,
        option: &str,
        allowed: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, StackError> {
        let Some((_, value)) = self.given.iter().find(|(name, _)| *name == option) else { return Ok(None) };
        parse(value).map(Some).ok_or_else(|| StackError::Value {
            decorator: self.decorator.to_owned(),
            option: option.to_owned(),
            given: (*value).to_owned(),
            allowed,
        })
    }

    /// A time.
    pub(super) fn duration(&self, option: &str) -> Result<Option<Duration>, StackError> {
        self.get(option, "a time of more than 0, as 5us, 1ms or 0.5s", |text| parse_duration(text).ok())
    }

    /// A number from 0.
    pub(super) fn number(&self, option: &str) -> Result<Option<u64>, StackError> {
        self.get(option, "a number from 0", decimal)
    }

    /// A number from 1: which one of a row.
    pub(super) fn ordinal(&self, option: &str) -> Result<Option<u64>, StackError> {
        self.get(option, "a number from 1", |text| decimal(text).filter(|&number| number > 0))
    }

    /// `yes` or `no`.
    pub(super) fn switch(&self, option: &str) -> Result<Option<bool>, StackError> {
        self.get(option, "yes or no", |text| match text {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        })
    }

    /// A rate, in bytes a nanosecond.
    pub(super) fn rate(&self, option: &str) -> Result<Option<f64>, StackError> {
        self.get(option, "bytes a second of more than 0, as 1GB/s, 100MB/s or 64KB/s (powers of 1000)", |text| {
            let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
            let number: f64 = number.trim_end().parse().ok()?;
            let per_ns = match unit {
                "GB/s" => number,
                "MB/s" => number / 1e3,
                "KB/s" => number / 1e6,
                "B/s" => number / 1e9,
                _ => return None,
            };
            (per_ns.is_finite() && per_ns > 0.0).then_some(per_ns)
        })
    }
}

/// Digits only: `u64::from_str` would accept a sign.
fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Writes the text of a decorator: `name`, and in parentheses the options that are there.
pub(super) struct Written(String, bool);

impl Written {
    pub(super) fn new(name: &str) -> Self {
        Self(name.to_owned(), false)
    }

    /// With an option, if it has a value.
    pub(super) fn option(mut self, name: &str, value: Option<impl std::fmt::Display>) -> Self {
        use std::fmt::Write as _;
        if let Some(value) = value {
            let before = if self.1 { ", " } else { "(" };
            write!(self.0, "{before}{name}={value}").expect("writing to a string does not fail");
            self.1 = true;
        }
        self
    }

    /// With an option that is a time, unless it is 0.
    pub(super) fn duration(self, name: &str, value: Duration) -> Self {
        // As many digits as are needed, which is what `parse_duration` reads back exactly.
        self.option(name, (!value.is_zero()).then(|| format!("{}us", value.as_nanos() as f64 / 1e3)))
    }
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)?;
        f.write_str(if self.1 { ")" } else { "" })
    }
}

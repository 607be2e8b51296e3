//! A check: what was found, whether it matters, what to do.

use std::fmt::Write;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Nothing that the configured job needs, but something else may.
    Note,
    /// It runs, but slower or with less than it could.
    Warning,
    /// The job cannot run.
    Broken,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Broken => "broken",
        }
    }
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// For whom it matters.
    pub matters: &'static str,
    /// What to do, if there is anything.
    pub todo: Option<String>,
}

impl Check {
    /// As it should be.
    pub fn ok(name: &'static str, found: impl Into<String>, matters: &'static str) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), matters, todo: None }
    }

    /// Not as it should be, and what to do.
    pub fn not(
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        matters: &'static str,
        todo: impl Into<String>,
    ) -> Self {
        Self { name, verdict, found: found.into(), matters, todo: Some(todo.into()) }
    }
}

/// The checks for people: what was found, below it for whom it matters, and what to do.
pub fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for Check { name, verdict, found, matters, todo } in checks {
        writeln!(text, "{:<7}  {name:<width$}  {found}", verdict.name()).expect("a string takes it");
        writeln!(text, "{:<7}  {:<width$}    {matters}", "", "").expect("a string takes it");
        if let Some(todo) = todo {
            writeln!(text, "{:<7}  {:<width$}    to do: {todo}", "", "").expect("a string takes it");
        }
    }
    text
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

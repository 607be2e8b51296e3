//! The side `campanile`: this project, through its program.
//!
//! The parser asks for little, so that the program may grow: one JSON object on standard output, in which it finds
//!
//! | case | place | keys, first match counts |
//! |---|---|---|
//! | moe | objects `dispatch`, `combine` | `median_us`, `p50_us`, `median`; `p10_us`, `p90_us`, `p99_us` if there |
//! | barrier | object `barrier`, else the top | the same |
//! | broadcast, all_gather | list `rows` | `bytes`, `form`, and as moe |
//! | put | list `rows` (or a list per path) | `bytes` or `size`; `path`, `via` or `kind` names the path; the time as `half_round_trip_us`, `half_rtt_us`, `latency_us`, `median_us` or `p50_us`, beside the names or in an object per path |
//!
//! Samples are `iters` if that is there. A `verified` that is false fails the whole run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::case::{COLLECTIVE_BYTES, Case, Cell};
use crate::effort::Effort;
use crate::launch::Launch;
use crate::peer::{Arm, Format, NotRun};
use crate::row::Figure;

/// Name of the side.
pub const NAME: &str = "campanile";

/// Sizes of the put case that the other sides measure, too.
pub const PUT_BYTES: [usize; 3] = [8, 1 << 20, 16 << 20];

const TIME_KEYS: [&str; 3] = ["median_us", "p50_us", "median"];
const PUT_KEYS: [&str; 6] = ["half_round_trip_us", "half_rtt_us", "latency_us", "median_us", "p50_us", "median"];

/// The program.
#[derive(Debug)]
pub struct Campanile {
    program: PathBuf,
}

impl Campanile {
    /// Takes the program given, else the one beside this executable.
    pub fn find(given: Option<&Path>) -> Result<Campanile, NotRun> {
        let remedy = "cargo build --release -p campanile-cli, or --campanile PATH";
        let program = match given {
            Some(path) => path.to_path_buf(),
            None => std::env::current_exe().unwrap_or_default().with_file_name(NAME),
        };
        if program.is_file() {
            Ok(Campanile { program })
        } else {
            Err(NotRun::new(NAME, "the program is not there", remedy))
        }
    }

    /// The cell's operation.
    pub fn arms(&self, cell: &Cell, effort: &Effort) -> Vec<Arm> {
        let command = match cell.case {
            Case::Moe => format!(
                "bench moe --ranks {} --tokens {} --hidden 7168 --topk 8 --experts 256 --dtype bf16 --iters {} --warmup {} --json",
                cell.ranks,
                cell.tokens,
                effort.iterations(cell),
                effort.warmup(cell)
            ),
            Case::Put => "bench put -b 8 -e 16M -f 2 --json".into(),
            Case::Barrier => format!("bench barrier --ranks {} --json", cell.ranks),
            Case::Broadcast | Case::AllGather => format!(
                "bench {} --ranks {} --min-bytes 1K --max-bytes 16M --step 4 --batches {} --json",
                cell.case.name().replace('_', "-"),
                cell.ranks,
                effort.batches
            ),
        };
        let launch = Launch::new(&self.program, command.split(' '));
        vec![Arm { peer: NAME.into(), variant: "default".into(), launch, format: Format::Campanile }]
    }
}

/// Whether the program says that its result was wrong.
pub fn denies(stdout: &str) -> bool {
    serde_json::from_str::<Value>(stdout).is_ok_and(|object| object.get("verified") == Some(&Value::Bool(false)))
}

/// Reads the JSON object that `campanile bench` printed for `cell`; see the head of this file.
pub fn parse(cell: &Cell, stdout: &str) -> Result<Vec<Figure>> {
    let object: Value = serde_json::from_str(stdout).context("standard output is not one JSON value")?;
    ensure!(object.is_object(), "standard output is not a JSON object");
    let samples = object.get("iters").and_then(Value::as_u64).map(|n| n as usize);
    let figure = |from: &Value, keys: &[&str], variant: &str, metric: &str, size| -> Result<Figure> {
        let median = number(from, keys).with_context(|| format!("{metric}: none of the keys {}", keys.join(", ")))?;
        Ok(Figure {
            case: cell.case.name().into(),
            ranks: cell.ranks,
            size,
            variant: variant.into(),
            metric: metric.into(),
            unit: "us".into(),
            median,
            p10: number(from, &["p10_us", "p10"]),
            p90: number(from, &["p90_us", "p90"]),
            p99: number(from, &["p99_us", "p99"]),
            samples,
        })
    };
    match cell.case {
        Case::Moe => ["dispatch", "combine"]
            .iter()
            .map(|phase| {
                let from = object.get(phase).with_context(|| format!("no object {phase:?}"))?;
                figure(from, &TIME_KEYS, "default", phase, cell.tokens)
            })
            .collect(),
        Case::Barrier => {
            Ok(vec![figure(object.get("barrier").unwrap_or(&object), &TIME_KEYS, "default", "barrier", 0)?])
        }
        Case::Broadcast | Case::AllGather => {
            let rows = object.get("rows").and_then(Value::as_array).context("no list \"rows\"")?;
            let mut figures = Vec::new();
            for row in rows {
                let bytes = number(row, &["bytes"]).context("a row without \"bytes\"")? as usize;
                let form = row.get("form").and_then(Value::as_str).context("a row without \"form\"")?;
                figures.push(figure(row, &TIME_KEYS, form, cell.case.name(), bytes)?);
            }
            let missing = COLLECTIVE_BYTES.iter().find(|bytes| figures.iter().all(|figure| figure.size != **bytes));
            ensure!(missing.is_none(), "no row of {missing:?} bytes");
            Ok(figures)
        }
        Case::Put => {
            let mut figures = Vec::new();
            for (bytes, path, from) in put_rows(&object)? {
                if PUT_BYTES.contains(&bytes) {
                    figures.push(figure(from, &PUT_KEYS, &path, "half_round_trip", bytes)?);
                }
            }
            ensure!(!figures.is_empty(), "no row of 8 bytes, 1 MiB or 16 MiB");
            Ok(figures)
        }
    }
}

/// (bytes, path, object with the time) of each row.
fn put_rows(object: &Value) -> Result<Vec<(usize, String, &Value)>> {
    let mut found = Vec::new();
    match object.get("rows").context("no list \"rows\"")? {
        Value::Array(rows) => rows.iter().try_for_each(|row| put_row(row, None, &mut found))?,
        Value::Object(paths) => {
            for (path, rows) in paths {
                let rows = rows.as_array().with_context(|| format!("rows.{path} is not a list"))?;
                rows.iter().try_for_each(|row| put_row(row, Some(path), &mut found))?;
            }
        }
        _ => bail!("\"rows\" is neither a list nor an object"),
    }
    Ok(found)
}

fn put_row<'a>(row: &'a Value, path: Option<&str>, found: &mut Vec<(usize, String, &'a Value)>) -> Result<()> {
    let bytes = number(row, &["bytes", "size"]).context("a row without \"bytes\"")? as usize;
    let named = ["path", "via", "kind"].iter().find_map(|key| row.get(key)?.as_str());
    if number(row, &PUT_KEYS).is_some() {
        found.push((bytes, path.or(named).unwrap_or("default").to_owned(), row));
        return Ok(());
    }
    // One object per path inside the row.
    let fields = row.as_object().into_iter().flatten();
    found.extend(fields.filter(|(_, v)| v.is_object()).map(|(name, value)| (bytes, name.clone(), value)));
    Ok(())
}

fn number(from: &Value, keys: &[&str]) -> Option<f64> {
    keys.iter().find_map(|key| from.get(key)?.as_f64()).filter(|value| value.is_finite() && *value >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(case: Case) -> Cell {
        Cell { case, ranks: 2, tokens: 128 }
    }

    #[test]
    fn moe() {
        let json = r#"{"iters": 50, "verified": true, "new": [1],
            "dispatch": {"median_us": 90.5, "p99_us": 120}, "combine": {"p50_us": 80}}"#;
        let figures = parse(&cell(Case::Moe), json).unwrap();
        let short: Vec<_> = figures.iter().map(|f| (f.metric.as_str(), f.median, f.p99, f.size)).collect();
        assert_eq!(short, [("dispatch", 90.5, Some(120.0), 128), ("combine", 80.0, None, 128)]);
        assert_eq!(figures[0].samples, Some(50));
    }

    #[test]
    fn barrier_at_the_top_or_below() {
        for json in [r#"{"median_us": 0.4}"#, r#"{"barrier": {"median_us": 0.4}, "median_us": 9}"#] {
            assert_eq!(parse(&cell(Case::Barrier), json).unwrap()[0].median, 0.4);
        }
    }

    #[test]
    fn put_in_three_shapes() {
        for json in [
            r#"{"rows": [{"bytes": 8, "path": "load_store", "half_rtt_us": 0.2},
                         {"bytes": 16, "path": "load_store", "half_rtt_us": 0.3},
                         {"bytes": 8, "path": "queue", "half_rtt_us": 0.5}]}"#,
            r#"{"rows": {"load_store": [{"size": 8, "median_us": 0.2}], "queue": [{"size": 8, "median_us": 0.5}]}}"#,
            r#"{"rows": [{"bytes": 8, "load_store": {"median_us": 0.2}, "queue": {"median_us": 0.5}}]}"#,
        ] {
            let figures = parse(&cell(Case::Put), json).unwrap();
            let short: Vec<_> = figures.iter().map(|f| (f.size, f.variant.as_str(), f.median)).collect();
            assert_eq!(short, [(8, "load_store", 0.2), (8, "queue", 0.5)], "{json}");
        }
    }

    #[test]
    fn collectives_in_two_forms() {
        let row = |bytes| format!(r#"{{"bytes": {bytes}, "form": "input", "median_us": 2, "p10_us": 1}}"#);
        let rows = COLLECTIVE_BYTES.map(row);
        let json = format!(r#"{{"verified": true, "rows": [{}]}}"#, rows.join(","));
        let figures = parse(&cell(Case::AllGather), &json).unwrap();
        let last = figures.last().unwrap();
        assert_eq!((figures.len(), last.size, last.variant.as_str()), (8, 16 << 20, "input"));
        assert_eq!((last.metric.as_str(), last.median, last.p10), ("all_gather", 2.0, Some(1.0)));
        let short = format!(r#"{{"rows": [{}]}}"#, rows[0]);
        assert!(parse(&cell(Case::Broadcast), &short).unwrap_err().to_string().contains("4096"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |json: &str, case| format!("{:#}", parse(&cell(case), json).unwrap_err());
        assert!(error(r#"{"dispatch": {"median_us": 1}}"#, Case::Moe).contains("combine"));
        assert!(error(r#"{"dispatch": {}, "combine": {}}"#, Case::Moe).contains("median_us"));
        assert!(error(r#"{"rows": [{"bytes": 16, "median_us": 1}]}"#, Case::Put).contains("16 MiB"));
        assert!(error("Progress…", Case::Moe).contains("JSON"));
    }

    #[test]
    fn only_an_explicit_no_denies() {
        assert!(denies(r#"{"verified": false}"#));
        assert!(!denies(r#"{"verified": true}"#) && !denies("{}") && !denies("nonsense"));
    }
}

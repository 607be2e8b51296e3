//! Results: what a program printed, and under which conditions.

use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// A figure from one launch. Quantiles are over the samples of that launch; a side that does not give one leaves it out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// `moe`, `put`, `barrier`, `broadcast` or `all_gather`.
    pub case: String,
    /// Ranks.
    pub ranks: usize,
    /// Tokens per rank (moe), bytes (put, collectives), 0 (barrier).
    pub size: usize,
    /// Which form of the operation, e.g. `processes nt exact`, `dedup_p2p`.
    pub variant: String,
    /// `dispatch`, `combine`, `half_round_trip`, or the case.
    pub metric: String,
    /// Unit of the quantiles: `us`.
    pub unit: String,
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub p10: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Number of samples.
    pub samples: Option<usize>,
}

/// The conditions of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Conditions {
    /// From 1.
    pub round: usize,
    /// Share of the cores' time that other programs used meanwhile, in percent.
    pub others_percent: f64,
    /// Ticks (10 ms) that the hypervisor gave to other guests meanwhile.
    pub steal_ticks: u64,
    /// Time of a cache line from the first core to the second, before and after, in ns; see [`crate::core_distance`].
    pub core_distance_ns: [Option<f64>; 2],
    /// Launches that were needed; all but the quietest are dropped.
    pub attempts: usize,
}

/// A figure and its conditions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Whose figure: `direct`, `campanile`, or the name of an MPI implementation.
    pub peer: String,
    /// The figure.
    #[serde(flatten)]
    pub figure: Figure,
    /// Its conditions.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// What a C program printed.
#[derive(Debug, Default, PartialEq)]
pub struct Output {
    /// Its `ROW` lines.
    pub figures: Vec<Figure>,
    /// Its `LIBRARY` line: the MPI implementation as it names itself.
    pub library: Option<String>,
}

/// Parses the standard output of a C program: `ROW,…` as `programs/row.h` says, `LIBRARY,…`; other lines are ignored.
pub fn parse(stdout: &str) -> Result<Output> {
    let mut output = Output::default();
    for line in stdout.lines() {
        if let Some(fields) = line.strip_prefix("ROW,") {
            output.figures.push(parse_figure(fields).with_context(|| format!("in the line {line:?}"))?);
        } else if let Some(library) = line.strip_prefix("LIBRARY,") {
            output.library = Some(library.trim().to_owned());
        }
    }
    ensure!(!output.figures.is_empty(), "the program printed no ROW line");
    Ok(output)
}

fn parse_figure(fields: &str) -> Result<Figure> {
    let fields: Vec<&str> = fields.split(',').collect();
    ensure!(fields.len() == 11, "a row has 11 fields after ROW, this one {}", fields.len());
    let number = |index: usize| -> Result<f64> {
        let value: f64 = fields[index].parse().with_context(|| format!("{:?} is not a number", fields[index]))?;
        ensure!(value.is_finite() && value >= 0.0, "{value} is not a time");
        Ok(value)
    };
    Ok(Figure {
        case: fields[0].to_owned(),
        ranks: fields[1].parse().context("ranks")?,
        size: fields[2].parse().context("size")?,
        variant: fields[3].to_owned(),
        metric: fields[4].to_owned(),
        unit: fields[5].to_owned(),
        median: number(6)?,
        p10: Some(number(7)?),
        p90: Some(number(8)?),
        p99: Some(number(9)?),
        samples: Some(fields[10].parse().context("samples")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_among_other_lines() {
        let output = parse(
            "LIBRARY,Open MPI v4.1.4\nsome warning\n\
             ROW,moe,2,128,dedup_nt,dispatch,us,283.2,246,325.5,400,200\n",
        )
        .unwrap();
        assert_eq!(output.library.as_deref(), Some("Open MPI v4.1.4"));
        let figure = &output.figures[0];
        assert_eq!((figure.ranks, figure.size, figure.samples), (2, 128, Some(200)));
        assert_eq!((figure.median, figure.p10, figure.p90), (283.2, Some(246.0), Some(325.5)));
    }

    #[test]
    fn bad_rows_are_errors() {
        for bad in [
            "",
            "ROW,moe,2,128,dedup,dispatch,us,1,2,3,4",
            "ROW,moe,2,128,dedup,dispatch,us,nan,2,3,4,5",
            "ROW,moe,two,128,dedup,dispatch,us,1,2,3,4,5",
        ] {
            assert!(parse(bad).is_err(), "{bad:?} was accepted");
        }
    }
}

//! From launches to cells: one figure per side, form and cell.

use serde::Serialize;

use crate::quiet::LIMIT_PERCENT;
use crate::row::Row;

/// Core distances may differ by this factor from the usual one; two threads of one core and two cores differ by four.
const DISTANCE_FACTOR: f64 = 1.5;

/// A side's figure over all rounds. Launches during which others used too much of the CPU, or the cores were not at
/// their usual distance, are left out, unless there is no other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Whose.
    pub peer: String,
    /// As in [`crate::row::Figure`].
    pub case: String,
    /// Ranks.
    pub ranks: usize,
    /// Tokens per rank (moe), bytes (put), 0 (barrier).
    pub size: usize,
    /// Which form of the operation.
    pub variant: String,
    /// What was timed.
    pub metric: String,
    /// Unit of the quantiles.
    pub unit: String,
    /// Median of the launches' medians.
    pub median: f64,
    /// Lowest 10th percentile of a launch.
    pub p10: Option<f64>,
    /// Highest 90th percentile of a launch.
    pub p90: Option<f64>,
    /// Launches that count.
    pub rounds: usize,
    /// Whether these had the machine for themselves, with its cores at their usual distance.
    pub quiet: bool,
}

/// The usual core distance in ns: of all measured ones the one in the middle (never a mean of two, which may lie between
/// the two worlds).
pub fn usual_distance(rows: &[Row]) -> Option<f64> {
    let mut distances: Vec<f64> = rows.iter().flat_map(|row| row.conditions.core_distance_ns).flatten().collect();
    distances.sort_by(f64::total_cmp);
    distances.get(distances.len() / 2).copied()
}

/// Whether a launch had the machine for itself, with the cores at this distance all the time.
pub fn is_quiet(row: &Row, usual_distance: Option<f64>) -> bool {
    let near = |ns: f64| usual_distance.is_none_or(|usual| ns.max(usual) <= DISTANCE_FACTOR * ns.min(usual));
    let distances = row.conditions.core_distance_ns;
    row.conditions.others_percent <= LIMIT_PERCENT && distances.into_iter().flatten().all(near)
}

/// Sums rows up, in the order of their first appearance.
pub fn summarise(rows: &[Row]) -> Vec<Summary> {
    let usual = usual_distance(rows);
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| key(group[0]) == key(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.into_iter().map(|group| of_group(group, usual)).collect()
}

fn key(row: &Row) -> (&str, &str, usize, usize, &str, &str) {
    let figure = &row.figure;
    (&row.peer, &figure.case, figure.ranks, figure.size, &figure.variant, &figure.metric)
}

fn of_group(group: Vec<&Row>, usual_distance: Option<f64>) -> Summary {
    let quiet: Vec<&Row> = group.iter().copied().filter(|row| is_quiet(row, usual_distance)).collect();
    let any_quiet = !quiet.is_empty();
    let counted = if any_quiet { quiet } else { group };
    let first = &counted[0].figure;
    Summary {
        peer: counted[0].peer.clone(),
        case: first.case.clone(),
        ranks: first.ranks,
        size: first.size,
        variant: first.variant.clone(),
        metric: first.metric.clone(),
        unit: first.unit.clone(),
        median: median(counted.iter().map(|row| row.figure.median).collect()),
        p10: counted.iter().filter_map(|row| row.figure.p10).min_by(f64::total_cmp),
        p90: counted.iter().filter_map(|row| row.figure.p90).max_by(f64::total_cmp),
        rounds: counted.len(),
        quiet: any_quiet,
    }
}

/// Of at least one value; of an even number the mean of the middle two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::row::{Conditions, Figure};

    /// A row for tests of this crate.
    pub fn row(peer: &str, case: &str, (ranks, size): (usize, usize), variant: &str, metric: &str, median: f64) -> Row {
        let figure = Figure {
            case: case.into(),
            ranks,
            size,
            variant: variant.into(),
            metric: metric.into(),
            unit: "us".into(),
            median,
            p10: Some(median * 0.9),
            p90: Some(median * 1.1),
            p99: None,
            samples: Some(20),
        };
        Row { peer: peer.into(), figure, conditions: Conditions { round: 1, attempts: 1, ..Conditions::default() } }
    }

    fn disturbed(mut row: Row) -> Row {
        row.conditions.others_percent = 40.0;
        row
    }

    #[test]
    fn disturbed_launches_are_left_out() {
        let at = |median| row("direct", "barrier", (2, 0), "threads", "barrier", median);
        let summary = &summarise(&[at(1.0), disturbed(at(50.0)), at(3.0)])[0];
        assert_eq!((summary.median, summary.rounds, summary.quiet), (2.0, 2, true));
        assert_eq!((summary.p10, summary.p90), (Some(0.9), Some(3.0 * 1.1)));
    }

    #[test]
    fn unless_there_is_no_other() {
        let at = |median| disturbed(row("direct", "barrier", (2, 0), "threads", "barrier", median));
        let summary = &summarise(&[at(7.0), at(9.0), at(8.0)])[0];
        assert_eq!((summary.median, summary.rounds, summary.quiet), (8.0, 3, false));
    }

    #[test]
    fn launches_at_another_core_distance_are_left_out() {
        let at = |median, before, after| {
            let mut row = row("direct", "barrier", (2, 0), "threads", "barrier", median);
            row.conditions.core_distance_ns = [Some(before), Some(after)];
            row
        };
        let rows = [at(1.0, 250.0, 240.0), at(0.2, 60.0, 58.0), at(3.0, 255.0, 260.0), at(0.5, 250.0, 60.0)];
        assert_eq!(usual_distance(&rows), Some(250.0));
        let summary = &summarise(&rows)[0];
        assert_eq!((summary.median, summary.rounds, summary.quiet), (2.0, 2, true));
    }

    #[test]
    fn cells_and_metrics_stay_apart() {
        let rows = [
            row("direct", "moe", (2, 128), "nt", "dispatch", 1.0),
            row("direct", "moe", (2, 128), "nt", "combine", 2.0),
            row("direct", "moe", (2, 1024), "nt", "dispatch", 3.0),
            row("direct", "moe", (4, 128), "nt", "dispatch", 4.0),
            row("direct", "moe", (2, 128), "memcpy", "dispatch", 5.0),
            row("mpich-system", "moe", (2, 128), "nt", "dispatch", 6.0),
        ];
        assert_eq!(summarise(&rows).len(), rows.len());
    }
}

//! Everything that a run found, and its form as data.

use serde::Serialize;

use crate::machine::Machine;
use crate::peer::NotRun;
use crate::row::Row;
use crate::summary::{Summary, is_quiet, summarise, usual_distance};

/// The outcome of a run.
#[derive(Debug)]
pub struct Results {
    /// The command, without paths of the machine.
    pub command: String,
    /// Where it ran.
    pub machine: Machine,
    /// Rounds.
    pub rounds: usize,
    /// MPI implementations: name here, name they give themselves.
    pub libraries: Vec<(String, String)>,
    /// What was not measured.
    pub not_run: Vec<NotRun>,
    /// All launches.
    pub rows: Vec<Row>,
    /// The same, one per side, form and cell.
    pub summary: Vec<Summary>,
}

impl Results {
    /// Sums the rows up.
    pub fn new(
        command: String,
        machine: Machine,
        rounds: usize,
        mut libraries: Vec<(String, String)>,
        not_run: Vec<NotRun>,
        rows: Vec<Row>,
    ) -> Self {
        libraries.sort();
        let summary = summarise(&rows);
        Results { command, machine, rounds, libraries, not_run, rows, summary }
    }

    /// How many figures are from a quiet machine, of how many; and the usual core distance in ns.
    pub fn launches(&self) -> (usize, usize, Option<f64>) {
        let usual = usual_distance(&self.rows);
        (self.rows.iter().filter(|row| is_quiet(row, usual)).count(), self.rows.len(), usual)
    }

    /// As JSON, one row a line, so that two runs can be compared with `diff`.
    pub fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Library<'a> {
            peer: &'a str,
            library: &'a str,
        }
        let libraries: Vec<Library<'_>> =
            self.libraries.iter().map(|(peer, library)| Library { peer, library }).collect();
        Ok(format!(
            "{{\n\"command\": {},\n\"machine\": {},\n\"core_distance_ns\": {},\n\"rounds\": {},\n\"libraries\": {},\n\"not_run\": {},\n\"summary\": {},\n\"rows\": {}\n}}\n",
            serde_json::to_string(&self.command)?,
            serde_json::to_string(&self.machine)?,
            serde_json::to_string(&usual_distance(&self.rows))?,
            self.rounds,
            lines(&libraries)?,
            lines(&self.not_run)?,
            lines(&self.summary)?,
            lines(&self.rows)?,
        ))
    }
}

fn lines(items: &[impl Serialize]) -> serde_json::Result<String> {
    if items.is_empty() {
        return Ok("[]".into());
    }
    let items = items.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("[\n  {}\n]", items.join(",\n  ")))
}

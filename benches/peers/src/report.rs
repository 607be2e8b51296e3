//! The results as Markdown for a reader.

use std::fmt::Write;

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::case::COLLECTIVE_BYTES;
use crate::results::Results;
use crate::summary::Summary;
use crate::{campanile, direct, mpi};

/// Nothing to show.
const NONE: &str = "–";

const HEAD: &str = "\
# CPU peers

Campanile beside MPI implementations and hand-written shared memory, all sides in one run, interleaved, bound to the same
cores. What each side is, what a case is and which traps there are: `benches/peers/README.md`. Written by `campanile-peers`;
the launches behind these tables are in `{name}.json`.

";

const LEGEND: &str = "\
Times in µs: median of the launches' medians [lowest p10 – highest p90 inside a launch]; lower is better. Launches during
which other programs used over 10 % of the cores, or the hypervisor had moved the cores (their distance was not the usual
one), are left out; `*`: there was no other. `†`: more ranks than cores under an MPI that spins without giving its core
away; the figure shows scheduler ticks, and *best MPI* ignores it.

";

const LEGEND_BY_HAND: &str = "\
*By hand* is the best form of `direct`: memcpy or non-temporal stores, processes or threads, whichever was fastest in that
cell. *Flushing* is the same with the CPU's bf16 rounding, which loses subnormals; the other column rounds exactly, as
Campanile does. Ratios: campanile / by hand (1 = the limit, lower is better); MPI / campanile (higher is better).

";

const LEGEND_COLLECTIVES: &str = "\
A size is what ends up on every rank. Calls follow each other without a barrier, every rank in turn is the root. Campanile
with the bytes that are sent in memory of the caller's (*copy*), as MPI has them, and in the collective's *input*. Ratios:
MPI / campanile (higher is better).

";

/// The whole document, whose files have this name.
pub fn markdown(results: &Results, name: &str) -> String {
    let mut text = HEAD.replace("{name}", name);
    let view = View { results };
    text.push_str(&results.machine.markdown());
    let (quiet, launches, distance) = results.launches();
    if let Some(ns) = distance {
        writeln!(text, "* a cache line takes {ns:.0} ns from core to core").expect("a String takes all");
    }
    writeln!(text, "* {quiet} of {launches} figures are from a quiet machine").expect("a String takes all");
    write!(text, "* rounds: {}\n\n```\n{}\n```\n\n", results.rounds, results.command).expect("a String takes all");
    text.push_str(LEGEND);
    if ["moe", "put", "barrier"].iter().any(|case| view.of(case).next().is_some()) {
        text.push_str(LEGEND_BY_HAND);
    }
    if ["broadcast", "all_gather"].iter().any(|case| view.of(case).next().is_some()) {
        text.push_str(LEGEND_COLLECTIVES);
    }
    text.push_str(&view.overview());
    text.push_str(&view.all_sides());
    text.push_str(&view.peers());
    text
}

/// The tables with the ratios only.
pub fn overview(results: &Results) -> String {
    View { results }.overview()
}

struct View<'a> {
    results: &'a Results,
}

impl View<'_> {
    fn overview(&self) -> String {
        let mut text = String::new();
        section(&mut text, "MoE dispatch and combine", self.moe_overview());
        section(&mut text, "Put", self.put_overview());
        section(&mut text, "Barrier", self.barrier_overview());
        section(&mut text, "Broadcast", self.collective_overview("broadcast"));
        section(&mut text, "All-gather", self.collective_overview("all_gather"));
        text
    }

    fn all_sides(&self) -> String {
        let mut text = String::new();
        for (ranks, tokens) in self.cells("moe") {
            let title = format!("All sides: MoE, {ranks} ranks, {tokens} tokens each");
            section(
                &mut text,
                &title,
                self.sides("moe", &["dispatch", "combine"], |s| {
                    (s.ranks == ranks && s.size == tokens).then(|| s.metric.clone())
                }),
            );
        }
        let sizes = campanile::PUT_BYTES.map(bytes);
        let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
        section(&mut text, "All sides: put, half round trip", self.sides("put", &sizes, |s| Some(bytes(s.size))));
        let ranks: Vec<String> = self.cells("barrier").iter().map(|(ranks, _)| format!("{ranks} ranks")).collect();
        let ranks: Vec<&str> = ranks.iter().map(String::as_str).collect();
        section(&mut text, "All sides: barrier", self.sides("barrier", &ranks, |s| Some(format!("{} ranks", s.ranks))));
        for case in ["broadcast", "all_gather"] {
            let mut ranks: Vec<usize> = self.of(case).map(|s| s.ranks).collect();
            ranks.sort_unstable();
            ranks.dedup();
            for ranks in ranks {
                let sizes = COLLECTIVE_BYTES.map(bytes);
                let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
                let of_size = |s: &Summary| (s.ranks == ranks).then(|| bytes(s.size));
                section(&mut text, &format!("All sides: {case}, {ranks} ranks"), self.sides(case, &sizes, of_size));
            }
        }
        text
    }

    fn peers(&self) -> String {
        let mut text = String::new();
        if !self.results.libraries.is_empty() {
            let mut table = table(&["peer", "calls itself"]);
            for (peer, library) in &self.results.libraries {
                table.add_row([peer, library]);
            }
            section(&mut text, "MPI implementations", Some(table));
        }
        if !self.results.not_run.is_empty() {
            let mut table = table(&["what", "why", "how to get it"]);
            for entry in &self.results.not_run {
                let remedy = if entry.remedy.is_empty() { NONE } else { &entry.remedy };
                table.add_row([&one_line(&entry.what), &one_line(&entry.why), &one_line(remedy)]);
            }
            section(&mut text, "Not run", Some(table));
        }
        text
    }

    fn moe_overview(&self) -> Option<Table> {
        let mut table = table(&[
            "ranks",
            "tokens",
            "phase",
            "campanile",
            "by hand",
            "by hand, flushing",
            "best MPI",
            "campanile / by hand",
            "campanile / flushing",
            "MPI / campanile",
        ]);
        for (ranks, tokens) in self.cells("moe") {
            for phase in ["dispatch", "combine"] {
                let here = |s: &Summary| s.metric == phase && s.ranks == ranks && s.size == tokens;
                let ours = self.best("moe", |s| s.peer == campanile::NAME && here(s));
                let exact = self.best("moe", |s| is_direct(s) && s.variant.ends_with("exact") && here(s));
                // Dispatch does not round.
                let flushing = self
                    .best("moe", |s| is_direct(s) && s.variant.ends_with("hardware") && here(s))
                    .filter(|_| phase == "combine");
                let mpi = self.best("moe", |s| self.is_fair_mpi(s) && here(s));
                table.add_row([
                    ranks.to_string(),
                    tokens.to_string(),
                    phase.into(),
                    time(ours),
                    named(exact, |s| s.variant.trim_end_matches(" exact").into()),
                    named(flushing, |s| s.variant.trim_end_matches(" hardware").into()),
                    named(mpi, |s| format!("{} {}", s.peer, s.variant)),
                    ratio(ours, exact),
                    ratio(ours, flushing),
                    ratio(mpi, ours),
                ]);
            }
        }
        filled(table)
    }

    fn put_overview(&self) -> Option<Table> {
        let mut table = table(&[
            "bytes",
            "campanile",
            "cache line",
            "by hand",
            "best MPI",
            "campanile / cache line",
            "rate of campanile / rate by hand",
            "MPI / campanile",
        ]);
        for size in campanile::PUT_BYTES {
            let here = |s: &Summary| s.size == size;
            let line = self.best("put", |s| s.variant == "processes cache_line" && here(s));
            let hand = self.best("put", |s| s.variant.starts_with("processes direct") && here(s));
            let mpi = self.best("put", |s| self.is_fair_mpi(s) && here(s));
            let mut paths: Vec<Option<&Summary>> =
                self.of("put").filter(|s| s.peer == campanile::NAME && here(s)).map(Some).collect();
            if paths.is_empty() {
                paths.push(None);
            }
            for ours in paths {
                table.add_row([
                    bytes(size),
                    named(ours, |s| s.variant.clone()),
                    time(line),
                    named(hand, |s| s.variant.clone()),
                    named(mpi, |s| format!("{} {}", s.peer, s.variant)),
                    ratio(ours, line),
                    ratio(hand, ours),
                    ratio(mpi, ours),
                ]);
            }
        }
        self.of("put").next()?;
        filled(table)
    }

    fn barrier_overview(&self) -> Option<Table> {
        let mut table = table(&["ranks", "campanile", "by hand", "best MPI", "campanile / by hand", "MPI / campanile"]);
        for (ranks, _) in self.cells("barrier") {
            let here = |s: &Summary| s.ranks == ranks;
            let ours = self.best("barrier", |s| s.peer == campanile::NAME && here(s));
            let hand = self.best("barrier", |s| is_direct(s) && here(s));
            let mpi = self.best("barrier", |s| self.is_fair_mpi(s) && here(s));
            table.add_row([
                ranks.to_string(),
                time(ours),
                named(hand, |s| s.variant.clone()),
                named(mpi, |s| s.peer.clone()),
                ratio(ours, hand),
                ratio(mpi, ours),
            ]);
        }
        filled(table)
    }

    fn collective_overview(&self, case: &str) -> Option<Table> {
        let head = ["ranks", "size", "copy", "input", "best MPI", "MPI / copy", "MPI / input"];
        let mut table = table(&head);
        for (ranks, size) in self.cells(case) {
            let here = |s: &Summary| s.ranks == ranks && s.size == size;
            let ours = |form: &str| self.best(case, |s| s.peer == campanile::NAME && s.variant == form && here(s));
            let mpi = self.best(case, |s| self.is_fair_mpi(s) && here(s));
            table.add_row([
                ranks.to_string(),
                bytes(size),
                time(ours("copy")),
                time(ours("input")),
                named(mpi, |s| s.peer.clone()),
                ratio(mpi, ours("copy")),
                ratio(mpi, ours("input")),
            ]);
        }
        filled(table)
    }

    /// A line per side and form, a column per value of `column`.
    fn sides(&self, case: &str, columns: &[&str], column: impl Fn(&Summary) -> Option<String>) -> Option<Table> {
        let mut head = vec!["side", "form"];
        head.extend(columns);
        let mut table = table(&head);
        let mut lines: Vec<(&str, &str)> = Vec::new();
        for summary in self.of(case).filter(|s| column(s).is_some()) {
            let line = (summary.peer.as_str(), summary.variant.as_str());
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.sort_by_key(|(peer, _)| (*peer != campanile::NAME, *peer != direct::NAME, *peer));
        for (peer, variant) in lines {
            let mut cells = vec![peer.to_owned(), variant.to_owned()];
            for wanted in columns {
                let found = self
                    .of(case)
                    .find(|s| s.peer == peer && s.variant == variant && column(s).as_deref() == Some(wanted));
                let mark = if found.is_some_and(|s| self.crowded_spinner(s)) { " †" } else { "" };
                cells.push(format!("{}{mark}", time(found)));
            }
            table.add_row(cells);
        }
        filled(table)
    }

    fn of<'b>(&'b self, case: &str) -> impl Iterator<Item = &'b Summary> {
        self.results.summary.iter().filter(move |s| s.case == case)
    }

    /// (ranks, size), ascending.
    fn cells(&self, case: &str) -> Vec<(usize, usize)> {
        let mut cells: Vec<_> = self.of(case).map(|s| (s.ranks, s.size)).collect();
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    /// The fastest. A figure from a quiet machine beats one from a disturbed one.
    fn best(&self, case: &str, filter: impl Fn(&Summary) -> bool) -> Option<&Summary> {
        self.of(case).filter(|s| filter(s)).min_by(|a, b| b.quiet.cmp(&a.quiet).then(a.median.total_cmp(&b.median)))
    }

    fn crowded_spinner(&self, summary: &Summary) -> bool {
        mpi::spins(&summary.peer) && summary.ranks > self.results.machine.cores
    }

    fn is_fair_mpi(&self, summary: &Summary) -> bool {
        mpi::names().any(|name| name == summary.peer) && !self.crowded_spinner(summary)
    }
}

fn is_direct(summary: &Summary) -> bool {
    summary.peer == direct::NAME
}

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(head.iter().copied());
    table
}

fn filled(table: Table) -> Option<Table> {
    (!table.is_empty()).then_some(table)
}

fn section(text: &mut String, title: &str, table: Option<Table>) {
    if let Some(table) = table {
        write!(text, "## {title}\n\n{table}\n\n").expect("a String takes all");
    }
}

fn time(summary: Option<&Summary>) -> String {
    let Some(summary) = summary else { return NONE.into() };
    let mut text = number(summary.median);
    if !summary.quiet {
        text.push('*');
    }
    if let (Some(low), Some(high)) = (summary.p10, summary.p90) {
        write!(text, " [{} – {}]", number(low), number(high)).expect("a String takes all");
    }
    text
}

/// The time without its spread, and which form it was.
fn named(summary: Option<&Summary>, name: impl Fn(&Summary) -> String) -> String {
    summary.map_or(NONE.into(), |s| {
        let star = if !s.quiet { "*" } else { "" };
        format!("{}{star} ({})", number(s.median), name(s))
    })
}

fn ratio(above: Option<&Summary>, below: Option<&Summary>) -> String {
    match (above, below) {
        (Some(above), Some(below)) if below.median > 0.0 => {
            let star = if above.quiet && below.quiet { "" } else { "*" };
            format!("{:.2}{star}", above.median / below.median)
        }
        _ => NONE.into(),
    }
}

/// Three digits or more, thousands apart.
fn number(value: f64) -> String {
    match value {
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => {
            let digits = format!("{v:.0}");
            let mut text = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && (digits.len() - index).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
    }
}

fn bytes(size: usize) -> String {
    match size {
        s if s >= 1 << 20 => format!("{} MiB", s >> 20),
        s if s >= 1 << 10 => format!("{} KiB", s >> 10),
        s => format!("{s} B"),
    }
}

/// For a table cell.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::peer::NotRun;
    use crate::summary::tests::row;

    fn results(rows: Vec<crate::row::Row>) -> Results {
        let machine = Machine {
            model: "CPU".into(),
            cores: 2,
            virtual_machine: true,
            caches: vec!["L2 1024K".into()],
            memory_gib: 8.0,
            kernel: "6.1".into(),
            huge_pages: ["madvise".into(), "never".into()],
            compiler: "cc 12".into(),
        };
        let not_run = vec![NotRun::new("impi-pypi", "not\nthere", "pip")];
        Results::new("run".into(), machine, 1, vec![("mpich-system".into(), "MPICH 4".into())], not_run, rows)
    }

    fn text_of(rows: Vec<crate::row::Row>) -> String {
        markdown(&results(rows), "cpu_peers")
    }

    /// The cells of the first table line that starts with these.
    fn line(text: &str, start: &[&str]) -> Vec<String> {
        let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
        let fits = |line: &Vec<String>| line.len() > start.len() && line[1..].iter().zip(start).all(|(a, b)| a == b);
        text.lines().map(cells).find(fits).unwrap()
    }

    #[test]
    fn ratios_are_to_the_best_exact_form_and_the_best_fair_mpi() {
        let moe = |peer, variant, metric, median| row(peer, "moe", (4, 128), variant, metric, median);
        let text = text_of(vec![
            moe("campanile", "default", "combine", 110.0),
            moe("direct", "threads nt exact", "combine", 100.0),
            moe("direct", "processes memcpy exact", "combine", 120.0),
            moe("direct", "processes memcpy hardware", "combine", 50.0),
            moe("openmpi-system", "dedup", "combine", 220.0),
            moe("mpich-system", "dedup", "combine", 70.0), // 4 ranks on 2 cores: not boasted with
        ]);
        let cells = line(&text, &["4", "128", "combine"]);
        assert_eq!(cells[4], "110 [99.0 – 121]");
        assert_eq!(cells[5], "100 (threads nt)");
        assert_eq!(cells[6], "50.0 (processes memcpy)");
        assert_eq!(cells[7], "220 (openmpi-system dedup)");
        assert_eq!(cells[8..11], ["1.10", "2.20", "2.00"]);
        assert!(line(&text, &["mpich-system", "dedup"])[4].ends_with('†'), "{text}");
        assert_eq!(line(&text, &["impi-pypi"])[2], "not there");
    }

    #[test]
    fn without_campanile_there_are_no_ratios() {
        let text = text_of(vec![row("direct", "barrier", (2, 0), "threads", "barrier", 0.3)]);
        assert_eq!(line(&text, &["2"])[2..7], ["–", "0.300 (threads)", "–", "–", "–"]);
    }

    #[test]
    fn put_compares_rates_and_the_cache_line() {
        let put = |peer, variant, bytes, median| row(peer, "put", (2, bytes), variant, "half_round_trip", median);
        let text = text_of(vec![
            put("campanile", "load_store", 8, 0.3),
            put("campanile", "queue", 8, 0.6),
            put("direct", "processes cache_line", 8, 0.25),
            put("direct", "threads cache_line", 8, 0.1), // the gate is between processes
            put("campanile", "load_store", 1 << 20, 60.0),
            put("direct", "processes direct_nt", 1 << 20, 57.0),
        ]);
        assert_eq!(line(&text, &["8 B", "0.600 (queue)"])[6], "2.40");
        assert_eq!(line(&text, &["8 B", "0.300 (load_store)"])[6], "1.20");
        assert_eq!(line(&text, &["1 MiB"])[7], "0.95");
    }

    #[test]
    fn numbers() {
        let texts = [0.2499, 3.456, 34.56, 345.6, 3456.0, 1234567.0].map(number);
        assert_eq!(texts, ["0.250", "3.46", "34.6", "346", "3,456", "1,234,567"]);
    }

    #[test]
    fn json_holds_all_launches() {
        let results = results(vec![row("direct", "barrier", (2, 0), "threads", "barrier", 0.3)]);
        let json: serde_json::Value = serde_json::from_str(&results.json().unwrap()).unwrap();
        assert_eq!(json["rows"][0]["median"], 0.3);
        assert_eq!(json["rows"][0]["others_percent"], 0.0);
        assert_eq!(json["summary"][0]["rounds"], 1);
        assert_eq!(json["libraries"][0]["peer"], "mpich-system");
    }

    #[test]
    fn collectives_in_both_forms_beside_the_best_fair_mpi() {
        let at = |peer, variant, median| row(peer, "broadcast", (4, 1 << 10), variant, "broadcast", median);
        let text = text_of(vec![
            at("campanile", "copy", 2.0),
            at("campanile", "input", 1.0),
            at("openmpi-system", "MPI_Bcast", 6.0),
            at("impi-pypi", "MPI_Bcast", 3.0),
            at("mpich-system", "MPI_Bcast", 0.5), // spins on too few cores
        ]);
        let cells = line(&text, &["4", "1 KiB"]);
        assert_eq!(cells[5..8], ["3.00 (impi-pypi)", "1.50", "3.00"]);
        assert!(text.contains("All sides: broadcast, 4 ranks") && !text.contains("By hand"));
    }
}

//! What a run of `campanile moe` did: for people ([`Report::text`]) and for programs ([`Report::json`]).
//!
//! Both say the same: what the problem was, who moved how much to whom, how long it took and how near the memory limit
//! that is, and how the result was verified. Definitions, for both phases:
//!
//! - A row is what a token sends to one rank, or gets back from it, with all that goes with it. Dispatch moves rows from
//!   source to destination; combine moves one back for each.
//! - *Wire* bytes go to another rank; *own* rows stay on their rank. *Logical* bytes are both.
//! - A phase lasts from the first rank's start to the last rank's end, on one clock; max / mean is over the ranks' own
//!   times.
//! - GB/s is 10^9 bytes a second, of all ranks together. The limit is the rate at which as many ranks copy the same
//!   bytes, or on devices that of peer stores, for a combine by pull of peer loads; the share of it is wire GB/s over
//!   that.

use comfy_table::presets::{NOTHING, UTF8_HORIZONTAL_ONLY};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, LineStyle, Table};
use serde::Serialize;

use crate::device::{EMULATED, Kind};

/// Columns that the text fits into.
const WIDTH: usize = 100;

/// One run of `campanile moe`.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was exchanged.
    pub problem: Shape,
    /// How.
    pub run: Run,
    /// Rows by source, then destination: `[R][R]`.
    pub rows: Vec<Vec<u64>>,
    /// Tokens to their experts.
    pub dispatch: Phase,
    /// Results back.
    pub combine: Phase,
    /// Whether the result is right, and how that is known.
    pub verification: Verification,
}

/// Sizes of a problem.
#[derive(Clone, Debug, Serialize)]
pub struct Shape {
    /// Where it is from: a file, or how it was made.
    pub input: String,
    /// Tokens of each rank.
    pub tokens: Vec<usize>,
    /// Elements of a row.
    pub hidden: usize,
    /// Slots of a token.
    pub topk: usize,
    /// Number of experts.
    pub experts: usize,
    /// Type of x; not that which is dispatched where dispatch quantises.
    pub x_dtype: &'static str,
    /// Type that is dispatched.
    pub dtype: &'static str,
    /// Type in which results come back.
    pub combine_dtype: &'static str,
    /// Whether slots have weights.
    pub weighted: bool,
    /// Whether experts have a factor each.
    pub expert_scale: bool,
}

/// The choices of a run, by the names that the command line accepts.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What ranks are: processes or threads.
    pub ranks_as: String,
    /// Where the data lay: host, gpu or emulator.
    pub device: String,
    /// Which transport carried the bytes.
    pub transport: String,
    /// Which path they took.
    pub path: String,
    /// Schedule.
    pub mode: String,
    /// Who moves the results: pull or push.
    pub combine: String,
    /// In which layout the experts work.
    pub layout: String,
    /// The file that the result was written to, if any.
    pub output: Option<String>,
}

/// One phase, measured.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Bytes of a row, with the scales, routing and weights that go with it.
    pub row_bytes: u64,
    /// µs from the first rank's start to the last rank's end.
    pub us: f64,
    /// µs of each rank.
    pub rank_us: Vec<f64>,
    /// The memory limit in GB/s, if it was measured.
    pub limit_gbps: Option<f64>,
}

impl Phase {
    /// The phase of ranks that started and ended at these nanoseconds of one clock.
    pub fn new(row_bytes: u64, spans: &[[u64; 2]], limit_gbps: Option<f64>) -> Self {
        let us = |start: u64, end: u64| end.saturating_sub(start) as f64 / 1e3;
        let start = spans.iter().map(|span| span[0]).min().unwrap_or(0);
        let end = spans.iter().map(|span| span[1]).max().unwrap_or(0);
        let rank_us = spans.iter().map(|&[start, end]| us(start, end)).collect();
        Self { row_bytes, us: us(start, end), rank_us, limit_gbps }
    }
}

/// How the result was checked.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// Elements of the output that were compared bit for bit with the scalar f32 model.
    pub elements: u64,
    /// Received rows that were compared byte for byte with what was sent; 0 if they were not kept.
    pub received_rows: u64,
    /// What differed.
    pub mismatches: u64,
    /// Where the first difference is, and what it is.
    pub first_mismatch: Option<String>,
    /// The largest distance of an element from the sum in f64.
    pub max_error: f64,
    /// The largest share that an element takes of its error bound; more than 1 is wrong.
    pub max_error_over_bound: f64,
}

impl Verification {
    /// Whether all is right.
    pub fn verified(&self) -> bool {
        self.mismatches == 0 && self.max_error_over_bound <= 1.0
    }
}

/// What a phase moved, and how fast.
#[derive(Clone, Copy, Debug, Serialize)]
struct Moved {
    us: f64,
    max_over_mean: f64,
    row_bytes: u64,
    wire_bytes: u64,
    own_bytes: u64,
    logical_bytes: u64,
    wire_gbps: f64,
    logical_gbps: f64,
    limit_gbps: Option<f64>,
    ratio: Option<f64>,
}

impl Report {
    /// Number of ranks.
    fn ranks(&self) -> usize {
        self.problem.tokens.len()
    }

    /// Rows that stay on their rank, by rank.
    fn own_rows(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().enumerate().map(|(rank, row)| row[rank])
    }

    /// Rows that each rank sends to others.
    fn sent_rows(&self) -> impl Iterator<Item = u64> {
        self.rows.iter().zip(self.own_rows()).map(|(row, own)| row.iter().sum::<u64>() - own)
    }

    /// Rows that each rank receives from others.
    fn received_rows(&self) -> impl Iterator<Item = u64> {
        let column = |rank: usize| self.rows.iter().map(move |row| row[rank]).sum::<u64>();
        self.own_rows().enumerate().map(move |(rank, own)| column(rank) - own)
    }

    fn moved(&self, phase: &Phase) -> Moved {
        let wire_bytes = self.sent_rows().sum::<u64>() * phase.row_bytes;
        let own_bytes = self.own_rows().sum::<u64>() * phase.row_bytes;
        let gbps = |bytes: u64| bytes as f64 / phase.us / 1e3;
        let mean = phase.rank_us.iter().sum::<f64>() / phase.rank_us.len() as f64;
        Moved {
            us: phase.us,
            max_over_mean: phase.rank_us.iter().copied().fold(0.0, f64::max) / mean,
            row_bytes: phase.row_bytes,
            wire_bytes,
            own_bytes,
            logical_bytes: wire_bytes + own_bytes,
            wire_gbps: gbps(wire_bytes),
            logical_gbps: gbps(wire_bytes + own_bytes),
            limit_gbps: phase.limit_gbps,
            ratio: phase.limit_gbps.map(|limit| gbps(wire_bytes) / limit),
        }
    }

    /// The report as one JSON object on one line. What has no value, such as a rate over no time, is null.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            ranks: usize,
            problem: &'a Shape,
            run: &'a Run,
            rows: &'a [Vec<u64>],
            dispatch: Moved,
            combine: Moved,
            verified: bool,
            verification: &'a Verification,
        }

        let json = Json {
            ranks: self.ranks(),
            problem: &self.problem,
            run: &self.run,
            rows: &self.rows,
            dispatch: self.moved(&self.dispatch),
            combine: self.moved(&self.combine),
            verified: self.verification.verified(),
            verification: &self.verification,
        };
        serde_json::to_string(&json).expect("numbers, strings and sequences are always JSON")
    }

    /// The report for people: at most 100 columns, with a line break at its end; with escape sequences for a terminal
    /// if `colour`.
    pub fn text(&self, colour: bool) -> String {
        let (traffic, legend) = self.traffic();
        let mut times = "Times from the first start to the last end; GB/s of all ranks together".to_owned();
        if self.run.device == Kind::Emulator.name() {
            times += &format!("\n {EMULATED}");
        }
        let sections = [("", self.summary()), (legend, traffic), (&*times, self.phases()), ("", self.verdict())];
        let mut text = String::new();
        for (title, mut table) in sections {
            if colour {
                table.enforce_styling();
            } else {
                table.force_no_tty();
            }
            if !text.is_empty() {
                text.push('\n');
            }
            let title = (!title.is_empty()).then_some(format!(" {title}"));
            for line in title.into_iter().chain(table.lines()) {
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        text
    }

    /// What was exchanged, and how.
    fn summary(&self) -> Table {
        let Shape { tokens, hidden, topk, experts, x_dtype, dtype, combine_dtype, .. } = &self.problem;
        let (ranks, all) = (tokens.len(), tokens.iter().sum::<usize>());
        let (least, most) = (tokens.iter().min().unwrap_or(&0), tokens.iter().max().unwrap_or(&0));
        let each = if least == most { grouped(*most as u64) } else { format!("{least} to {most}") };
        let sent = if x_dtype == dtype { (*dtype).into() } else { format!("{x_dtype} quantised to {dtype}") };
        let types = if dtype == combine_dtype { sent } else { format!("{sent}, results {combine_dtype}") };
        let factors = match (self.problem.weighted, self.problem.expert_scale) {
            (true, true) => "weights and expert scales",
            (true, false) => "weights",
            _ => "no weights",
        };
        let mut table = key_values();
        let mut add = |key: &str, values: &[String]| {
            table.add_row([Cell::new(key).add_attribute(Attribute::Bold), Cell::new(values.join(" · "))]);
        };
        add(
            "MoE",
            &[
                counted(ranks as u64, "rank"),
                format!("{} ({each} a rank)", counted(all as u64, "token")),
                format!("hidden {hidden}"),
                format!("top-{topk} of {}", counted(*experts as u64, "expert")),
                types,
            ],
        );
        add("input", &[self.problem.input.clone(), factors.into()]);
        let Run { ranks_as, device, transport, path, mode, combine, layout, output } = &self.run;
        let ranks_as = if device == "host" { ranks_as.clone() } else { format!("{ranks_as} on {device}") };
        add("ranks", &[ranks_as, format!("transport {transport}"), format!("path {path}")]);
        add("run", &[format!("mode {mode}"), format!("combine {combine}"), format!("layout {layout}")]);
        if let Some(output) = output {
            add("output", std::slice::from_ref(output));
        }
        table
    }

    /// Who dispatched how many rows to whom, and how to read that: pair by pair where it fits, else the extremes.
    fn traffic(&self) -> (Table, &'static str) {
        // A column takes more than 4 characters.
        let pairs = (self.ranks() <= WIDTH / 4).then(|| self.pairs());
        match pairs.filter(|pairs| pairs.lines().all(|line| line.chars().count() <= WIDTH)) {
            Some(pairs) => (pairs, "Rows from a rank (down) to a rank (across); those in brackets stay where they are"),
            None => (self.extremes(), "Rows from and to ranks"),
        }
    }

    fn pairs(&self) -> Table {
        let ranks = (0..self.ranks()).map(|rank| format!("to {rank}"));
        let mut table = figures(row("rows", ranks, ["sent", "wire"]));
        let wire = |count: u64| bytes(count * self.dispatch.row_bytes);
        for (source, sent) in self.sent_rows().enumerate() {
            let cell = |(destination, &count): (usize, &u64)| match destination == source {
                true => format!("({})", rows(count)),
                false => rows(count),
            };
            let cells = self.rows[source].iter().enumerate().map(cell);
            table.add_row(row(format!("from {source}"), cells, [rows(sent), wire(sent)]));
        }
        let all = self.received_rows().sum();
        table.add_row(row("received", self.received_rows().map(rows), [rows(all), wire(all)]));
        table
    }

    fn extremes(&self) -> Table {
        let mut table = figures(row("rows", ["least", "mean", "most", "all"], ["bytes"]));
        let rank = |(rank, count): (usize, u64)| (count, format!("rank {rank}"));
        let pairs = self.rows.iter().enumerate().flat_map(|(source, row)| {
            row.iter().enumerate().map(move |(destination, &count)| (source, destination, count))
        });
        let pairs = pairs.filter(|(source, destination, _)| source != destination);
        let pair = |(source, destination, count)| (count, format!("{source} to {destination}"));
        let lines: [(&str, Vec<(u64, String)>); 4] = [
            ("sent to others", self.sent_rows().enumerate().map(rank).collect()),
            ("received from others", self.received_rows().enumerate().map(rank).collect()),
            ("that stay", self.own_rows().enumerate().map(rank).collect()),
            ("between two ranks", pairs.map(pair).collect()),
        ];
        for (name, counts) in lines {
            // The first of equals: its number says most.
            let least = counts.iter().min_by_key(|(count, _)| *count);
            let most = counts.iter().rev().max_by_key(|(count, _)| *count);
            let shown = |extreme: Option<&(u64, String)>| {
                extreme.map_or_else(String::new, |(count, who)| format!("{} ({who})", rows(*count)))
            };
            let sum = counts.iter().map(|(count, _)| count).sum();
            let mean = format!("{:.1}", sum as f64 / counts.len() as f64);
            let sums = [rows(sum), bytes(sum * self.dispatch.row_bytes)];
            table.add_row(row(name, [shown(least), mean, shown(most)], sums));
        }
        table
    }

    fn phases(&self) -> Table {
        let header = ["time", "max/mean", "a row", "wire", "wire GB/s", "logical", "limit"];
        let mut table = figures(row("phase", header, ["of limit"]));
        for (name, phase) in [("dispatch", &self.dispatch), ("combine", &self.combine)] {
            let moved = self.moved(phase);
            let cells = [
                time(moved.us),
                figure(moved.max_over_mean),
                bytes(moved.row_bytes),
                bytes(moved.wire_bytes),
                figure(moved.wire_gbps),
                figure(moved.logical_gbps),
                moved.limit_gbps.map_or_else(missing, figure),
            ];
            table.add_row(row(name, cells, [moved.ratio.map_or_else(missing, percent)]));
        }
        table
    }

    fn verdict(&self) -> Table {
        let Verification { elements, received_rows, mismatches, first_mismatch, .. } = &self.verification;
        let (verdict, colour) =
            if self.verification.verified() { ("verified", Color::Green) } else { ("WRONG", Color::Red) };
        let mut lines = Vec::new();
        if *mismatches > 0 {
            let first = first_mismatch.as_deref().unwrap_or("unknown");
            lines.push(format!("{}; the first: {first}", counted(*mismatches, "difference")));
        }
        lines.push(format!("{} compared bit for bit with a scalar f32 model", counted(*elements, "element")));
        if *received_rows > 0 {
            let rows = counted(*received_rows, "received row");
            lines.push(format!("{rows} compared byte for byte with what was sent"));
        }
        let error = self.verification.max_error;
        lines.push(format!(
            "distance from the sum in f64: at most {}, {} of its bound",
            if error == 0.0 { "0".into() } else { format!("{error:.2e}") },
            percent(self.verification.max_error_over_bound)
        ));
        let mut table = key_values();
        let verdict = Cell::new(verdict).add_attribute(Attribute::Bold).fg(colour);
        table.add_row([verdict, Cell::new(lines.join("\n"))]);
        table
    }
}

/// The cells of a row.
fn row<T: Into<String>, U: Into<String>>(
    head: impl Into<String>,
    cells: impl IntoIterator<Item = T>,
    tail: impl IntoIterator<Item = U>,
) -> Vec<String> {
    let mut row = vec![head.into()];
    row.extend(cells.into_iter().map(Into::into));
    row.extend(tail.into_iter().map(Into::into));
    row
}

/// An empty table of figures: the first column says of what.
fn figures(header: Vec<String>) -> Table {
    let mut table = Table::new();
    // A line around the table and below its header, none between its rows.
    table.load_style(UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()));
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// An empty table of keys and what there is to say of them, wrapped.
fn key_values() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH as u16);
    table
}

/// "1 rank", "1,024 ranks".
fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Rows: all digits while they are few.
fn rows(count: u64) -> String {
    match count {
        0..10_000_000 => grouped(count),
        10_000_000..10_000_000_000 => format!("{} M", figure(count as f64 / 1e6)),
        _ => format!("{} G", figure(count as f64 / 1e9)),
    }
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(",")
}

/// Two decimals at most, none from 100 on; a dash for what is not a number.
fn figure(value: f64) -> String {
    match value {
        _ if !value.is_finite() => missing(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn bytes(bytes: u64) -> String {
    let scaled = |unit: f64| figure(bytes as f64 / unit);
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..1_000_000 => format!("{} kB", scaled(1e3)),
        1_000_000..1_000_000_000 => format!("{} MB", scaled(1e6)),
        1_000_000_000..1_000_000_000_000 => format!("{} GB", scaled(1e9)),
        _ => format!("{} TB", scaled(1e12)),
    }
}

fn time(us: f64) -> String {
    match us {
        1e6.. => format!("{} s", figure(us / 1e6)),
        1e4.. => format!("{} ms", figure(us / 1e3)),
        _ => format!("{} µs", figure(us)),
    }
}

fn percent(share: f64) -> String {
    match share.is_finite() {
        true => format!("{:.0} %", share * 100.0),
        false => missing(),
    }
}

fn missing() -> String {
    "–".into()
}

#[cfg(test)]
mod tests;

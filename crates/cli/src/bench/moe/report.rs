//! What `campanile bench moe` prints.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::Serialize;

use crate::bench::Summary;
use crate::device::{EMULATED, Kind};

#[derive(Serialize)]
pub(super) struct Phase {
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// Median of the slowest rank's kernel, on a device.
    pub(super) kernel_us: Option<f64>,
    /// From the first rank's call to the last rank's return: the median, again.
    pub(super) end_to_end_us: f64,
    /// Blocks and threads of the kernel, on a device.
    pub(super) grid: Option<[u32; 2]>,
    /// Its schedule, on a device.
    pub(super) schedule: Option<String>,
    pub(super) wire_bytes: u64,
    pub(super) logical_bytes: u64,
    pub(super) wire_gbps: f64,
    pub(super) limit_gbps: Option<f64>,
    pub(super) ratio: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub(super) ranks: usize,
    pub(super) ranks_as: &'static str,
    pub(super) device: &'static str,
    pub(super) tokens: usize,
    pub(super) hidden: usize,
    pub(super) topk: usize,
    pub(super) experts: usize,
    pub(super) dtype: &'static str,
    pub(super) combine_dtype: &'static str,
    pub(super) iters: usize,
    pub(super) warmup: usize,
    pub(super) transport: String,
    pub(super) path: &'static str,
    pub(super) mode: &'a str,
    pub(super) combine_by: &'a str,
    /// Multiprocessors that the kernels take, on a device.
    pub(super) sms: Option<u32>,
    pub(super) graph: bool,
    pub(super) dispatch: Phase,
    pub(super) combine: Phase,
    /// Median of a round in a graph of many, the slowest rank.
    pub(super) round_us: Option<f64>,
    pub(super) verified: bool,
}

impl Report<'_> {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        text += &format!(
            "MoE of {} {} on {}, {} tokens each, hidden {}, top-{} of {} experts, {}; mode {}, combine by {}, path {}; {} \
             rounds\n",
            self.ranks,
            self.ranks_as,
            self.device,
            self.tokens,
            self.hidden,
            self.topk,
            self.experts,
            self.dtype,
            self.mode,
            self.combine_by,
            self.path,
            self.iters
        );
        let mut table = comfy_table::Table::new();
        table.load_style(UTF8_HORIZONTAL_ONLY);
        let limit = if self.sms.is_some() { "link GB/s" } else { "cold copy GB/s" };
        let kernel = self.sms.is_some().then_some("kernel µs");
        let head = ["", "median µs", "p99 µs", "max/mean"].into_iter().chain(kernel);
        table.set_header(head.chain(["wire MB", "wire GB/s", limit, "ratio"]));
        for (name, phase) in [("dispatch", &self.dispatch), ("combine", &self.combine)] {
            let optional = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
            let mut row = vec![
                name.to_owned(),
                format!("{:.1}", phase.summary.median_us),
                format!("{:.1}", phase.summary.p99_us),
                format!("{:.2}", phase.summary.max_over_mean),
            ];
            row.extend(phase.kernel_us.map(|us| format!("{us:.1}")));
            row.extend([
                format!("{:.2}", phase.wire_bytes as f64 / 1e6),
                format!("{:.2}", phase.wire_gbps),
                optional(phase.limit_gbps),
                optional(phase.ratio),
            ]);
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
        text += &format!("{table}\n");
        text += match (self.sms, self.graph) {
            (None, _) => {
                "The limit is a copy of the same bytes by the same ranks, cold: what stays in caches may beat it.\n"
                    .to_owned()
            }
            (Some(sms), graph) => format!(
                "Kernels on {sms} multiprocessors, launched {};\nrates are by kernel time. The limit is that of peer stores, \
                 or for a combine by pull of peer loads,\nby a kernel that only copies.\n",
                if graph { "and timed by graphs" } else { "one by one and timed by events, which take some µs too" }
            ),
        }
        .as_str();
        if let (Some(dispatch), Some(combine)) = (&self.dispatch.schedule, &self.combine.schedule) {
            text += &format!("Schedule of dispatch: {dispatch}; of combine: {combine}.\n");
        }
        if let Some(us) = self.round_us {
            text += &format!("A round in a graph of ten takes {us:.1} µs.\n");
        }
        if self.device == Kind::Emulator.name() {
            text += &format!("{EMULATED}\n");
        }
        text += "First and last round verified bit for bit against the scalar model.\n";
        text
    }
}

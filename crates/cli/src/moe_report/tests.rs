use serde_json::Value;

use super::*;

/// The default run, with made-up figures.
fn sample() -> Report {
    Report {
        problem: Shape {
            input: "uniform routing, seed 0".into(),
            tokens: vec![128; 4],
            hidden: 7168,
            topk: 8,
            experts: 256,
            x_dtype: "bf16",
            dtype: "bf16",
            combine_dtype: "bf16",
            weighted: true,
            expert_scale: true,
        },
        run: Run {
            ranks_as: "processes".into(),
            device: "host".into(),
            transport: "shm".into(),
            path: "direct".into(),
            mode: "throughput".into(),
            combine: "pull".into(),
            layout: "rows".into(),
            output: None,
        },
        rows: vec![
            vec![116, 117, 120, 114],
            vec![119, 115, 118, 113],
            vec![121, 112, 117, 116],
            vec![110, 118, 115, 119],
        ],
        dispatch: Phase::new(
            14_404,
            &[[1_000, 400_000], [2_000, 401_000], [1_500, 380_000], [1_200, 451_000]],
            Some(48.5),
        ),
        combine: Phase::new(14_368, &[[0, 12_000_000], [0, 12_000_000], [0, 12_000_000], [0, 12_000_000]], None),
        verification: Verification {
            elements: 3_670_016,
            received_rows: 1860,
            mismatches: 0,
            first_mismatch: None,
            max_error: 0.015625,
            max_error_over_bound: 0.431,
        },
    }
}

/// [`sample`] on as many ranks, of which each sends `rows` rows to each, at about the same speed.
fn on(ranks: usize, rows: u64) -> Report {
    let mut report = sample();
    let ns = (ranks * ranks) as u64 * rows * 200;
    report.dispatch = Phase::new(14_404, &vec![[0, ns]; ranks], Some(48.5));
    report.problem.tokens = vec![rows as usize; ranks];
    report.rows = vec![vec![rows; ranks]; ranks];
    report
}

#[test]
fn people_read_this() {
    let expected = r"
 MoE    4 ranks · 512 tokens (128 a rank) · hidden 7168 · top-8 of 256 experts · bf16
 input  uniform routing, seed 0 · weights and expert scales
 ranks  processes · transport shm · path direct
 run    mode throughput · combine pull · layout rows

 Rows from a rank (down) to a rank (across); those in brackets stay where they are
────────────────────────────────────────────────────────────
 rows        to 0    to 1    to 2    to 3    sent      wire
════════════════════════════════════════════════════════════
 from 0     (116)     117     120     114     351   5.06 MB
 from 1       119   (115)     118     113     350   5.04 MB
 from 2       121     112   (117)     116     349   5.03 MB
 from 3       110     118     115   (119)     343   4.94 MB
 received     350     347     353     343   1,393   20.1 MB
────────────────────────────────────────────────────────────

 Times from the first start to the last end; GB/s of all ranks together
────────────────────────────────────────────────────────────────────────────────────────────
 phase         time   max/mean     a row      wire   wire GB/s   logical   limit   of limit
════════════════════════════════════════════════════════════════════════════════════════════
 dispatch    450 µs       1.11   14.4 kB   20.1 MB        44.6      59.5    48.5       92 %
 combine    12.0 ms       1.00   14.4 kB   20.0 MB        1.67      2.23       –          –
────────────────────────────────────────────────────────────────────────────────────────────

 verified  3,670,016 elements compared bit for bit with a scalar f32 model
           1,860 received rows compared byte for byte with what was sent
           distance from the sum in f64: at most 1.56e-2, 43 % of its bound
";
    assert_eq!(format!("\n{}", sample().text(false)), expected);
}

#[test]
fn what_differs_from_the_usual_is_said() {
    let mut report = sample();
    report.problem.tokens = vec![128, 0, 7, 1000];
    report.problem.combine_dtype = "f32";
    report.problem.expert_scale = false;
    report.run.output = Some("out.safetensors".into());
    let text = report.text(false);
    let expected = r"
 MoE     4 ranks · 1,135 tokens (0 to 1000 a rank) · hidden 7168 · top-8 of 256 experts · bf16,
         results f32
 input   uniform routing, seed 0 · weights
 ranks   processes · transport shm · path direct
 run     mode throughput · combine pull · layout rows
 output  out.safetensors
";
    assert!(format!("\n{text}").starts_with(expected), "{text}");
}

#[test]
fn many_ranks_are_summed_up() {
    let mut report = on(64, 10);
    report.rows[3][60] = 0;
    report.rows[60][7] = 5_000;
    let expected = r"
 Rows from and to ranks
───────────────────────────────────────────────────────────────────────────────────
 rows                           least    mean              most      all     bytes
═══════════════════════════════════════════════════════════════════════════════════
 sent to others          620 (rank 3)   707.8   5,620 (rank 60)   45,300    653 MB
 received from others   620 (rank 60)   707.8    5,620 (rank 7)   45,300    653 MB
 that stay                10 (rank 0)    10.0       10 (rank 0)      640   9.22 MB
 between two ranks        0 (3 to 60)    11.2   5,000 (60 to 7)   45,300    653 MB
───────────────────────────────────────────────────────────────────────────────────
";
    let text = report.text(false);
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_wrong_result_is_not_called_verified() {
    let mut report = sample();
    report.verification.mismatches = 1;
    report.verification.first_mismatch = Some("out.2, token 3, element 7: 0x3f80, expected 0x3f81".into());
    let text = report.text(false);
    assert!(
        text.contains(" WRONG  1 difference; the first: out.2, token 3, element 7: 0x3f80, expected 0x3f81\n"),
        "{text}"
    );
    assert!(!text.contains("verified"), "{text}");
    assert!(report.json().contains(r#""verified":false"#));

    let mut report = sample();
    report.verification.max_error_over_bound = 1.5;
    assert!(report.text(false).contains("150 % of its bound") && !report.verification.verified());
    report.verification.max_error_over_bound = f64::NAN;
    assert!(!report.verification.verified(), "what cannot be compared is not within its bound");
}

#[test]
fn any_shape_fits_into_100_columns() {
    for ranks in [0, 1, 2, 5, 8, 9, 16, 64, 300] {
        for rows in [0, 1, 1 << 10, 1 << 20] {
            let mut report = on(ranks, rows);
            report.problem.input = "a/long/path/".repeat(20);
            report.run.output = Some("a b ".repeat(50));
            report.verification.first_mismatch = Some("x".repeat(300));
            report.verification.mismatches = u64::MAX;
            let text = report.text(false);
            for line in text.lines() {
                assert!(line.chars().count() <= 100 && !line.ends_with(' '), "{ranks} ranks, {rows} rows: {line:?}");
            }
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            assert!(!text.contains('\u{1b}'));
            serde_json::from_str::<Value>(&report.json()).unwrap();
        }
    }
}

#[test]
fn colour_changes_nothing_but_colour() {
    let report = sample();
    let (plain, mut coloured) = (report.text(false), report.text(true));
    assert!(coloured.contains("\u{1b}["));
    while let Some(start) = coloured.find('\u{1b}') {
        let end = start + coloured[start..].find('m').unwrap();
        coloured.replace_range(start..=end, "");
    }
    assert_eq!(plain, coloured);
}

#[test]
fn programs_read_this() {
    let json = sample().json();
    assert!(!json.contains('\n'));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["ranks"], 4);
    assert_eq!(json["problem"]["tokens"], serde_json::json!([128, 128, 128, 128]));
    assert_eq!(json["run"]["combine"], "pull");
    assert_eq!(json["run"]["output"], Value::Null);
    assert_eq!(json["rows"][2][1], 112);
    assert_eq!(json["verified"], true);
    assert_eq!(json["verification"]["elements"], 3_670_016);
    // 1393 rows cross and 467 stay.
    let dispatch = &json["dispatch"];
    assert_eq!(dispatch["us"], 450.0);
    assert_eq!(dispatch["wire_bytes"], 1393 * 14_404);
    assert_eq!(dispatch["own_bytes"], 467 * 14_404);
    assert_eq!(dispatch["logical_bytes"], 1860 * 14_404);
    let close = |value: &Value, expected: f64| (value.as_f64().unwrap() / expected - 1.0).abs() < 1e-12;
    assert!(close(&dispatch["wire_gbps"], 1393.0 * 14_404.0 / 450e-6 / 1e9));
    assert!(close(&dispatch["logical_gbps"], 1860.0 * 14_404.0 / 450e-6 / 1e9));
    assert!(close(&dispatch["ratio"], 1393.0 * 14_404.0 / 450e-6 / 48.5e9));
    // 399, 399, 378.5 and 449.8 µs.
    assert!(close(&dispatch["max_over_mean"], 449.8 / 406.575));
    assert_eq!(json["combine"]["limit_gbps"], Value::Null);
    assert_eq!(json["combine"]["ratio"], Value::Null);
}

#[test]
fn figures_are_short() {
    let grouped = [0, 999, 1000, 1_234_567].map(grouped);
    assert_eq!(grouped, ["0", "999", "1,000", "1,234,567"]);
    let rows = [0, 9_999_999, 10_000_000, 30_000_000_000].map(rows);
    assert_eq!(rows, ["0", "9,999,999", "10.0 M", "30.0 G"]);
    let bytes = [0, 9_999, 10_000, 999_999, 20_064_772, 4_000_000_000, 5_000_000_000_000].map(bytes);
    assert_eq!(bytes, ["0 B", "9999 B", "10.0 kB", "1000 kB", "20.1 MB", "4.00 GB", "5.00 TB"]);
    let times = [0.0, 1.25, 450.4, 12_345.0, 2e6].map(time);
    assert_eq!(times, ["0.00 µs", "1.25 µs", "450 µs", "12.3 ms", "2.00 s"]);
    assert_eq!([f64::NAN, f64::INFINITY].map(figure), ["–", "–"]);
    assert_eq!([0.0, 0.431, 1.5, f64::NAN].map(percent), ["0 %", "43 %", "150 %", "–"]);
}

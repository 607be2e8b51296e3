//! What a layout must be, from what the model says came; and the layout that a rank has, held against it.

use std::collections::HashMap;

use campanile_gpu::Stream;
use campanile_moe::exchange::Layout;
use campanile_moe::gpu::LayoutMap;
use campanile_moe::gpu::exchange::Arranged;
use campanile_moe::{MoeConfig, Received};

use super::Result;

/// The map of a layout, from its definition.
fn expected(
    received: &Received,
    ranks: usize,
    experts: usize,
    topk: usize,
    layout: Layout,
    alignment: usize,
) -> LayoutMap {
    let mut next = vec![0; ranks];
    let rows: Vec<[u32; 3]> = received
        .src
        .as_chunks::<2>()
        .0
        .iter()
        .map(|&[source, token]| {
            next[source as usize] += 1;
            [source as u32, next[source as usize] - 1, token as u32]
        })
        .collect();
    let place = |[source, row, token]: [u32; 3], slot: u32| Some([source, row, slot, token]);
    let (mut map, mut offsets) = (Vec::new(), vec![0]);
    if layout == Layout::Compact {
        map = rows.iter().map(|row| place(*row, u32::MAX)).collect();
        offsets.extend(next.iter().scan(0, |sum, rows| {
            *sum += rows;
            Some(*sum)
        }));
    } else {
        for expert in 0..experts {
            for (at, _) in received.topk_idx.iter().enumerate().filter(|(_, number)| **number == expert as i32) {
                map.push(place(rows[at / topk], (at % topk) as u32));
            }
            map.resize(map.len().next_multiple_of(alignment), None);
            offsets.push(map.len() as u32);
        }
    }
    LayoutMap { rows: map, offsets }
}

/// Compares map, offsets, rows and scales of a layout with what must have come.
pub fn check(
    arranged: &Arranged,
    stream: &Stream,
    config: &MoeConfig,
    received: &Received,
    ranks: usize,
    experts: usize,
    alignment: usize,
) -> Result<()> {
    let layout = arranged.layout.layout();
    let map = expected(received, ranks, experts, config.topk, layout, alignment);
    let found = arranged.layout.read(stream)?;
    if found != map {
        return Err(format!("{found:?}, not {map:?}").into());
    }
    if arranged.copy.is_none() {
        return Ok(());
    }
    // Number among all of the row of each token.
    let tokens = received.src.as_chunks::<2>().0.iter().map(|src| src.map(|number| number as u32));
    let numbers: HashMap<_, _> = tokens.enumerate().map(|(number, token)| (token, number)).collect();
    let row_bytes = config.dtype.row_bytes(config.hidden);
    let (mut x, mut scales) = (Vec::new(), Vec::new());
    for place in &map.rows {
        match place {
            None => {
                x.resize(x.len() + row_bytes, 0);
                scales.resize(scales.len() + config.scales, 0.0);
            }
            Some([source, _, _, token]) => {
                let n = numbers[&[*source, *token]];
                x.extend_from_slice(&received.x[n * row_bytes..][..row_bytes]);
                scales.extend_from_slice(&received.scales[n * config.scales..][..config.scales]);
            }
        }
    }
    let (found_x, found_scales) = arranged.read_rows(stream, config, map.rows.len())?;
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    if found_x != x || bits(&found_scales) != bits(&scales) {
        return Err(format!("{} rows of the layout are not those that came", map.rows.len()).into());
    }
    Ok(())
}

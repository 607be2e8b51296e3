//! What an exchange moves: rows from every rank to every rank, and the bytes that travel with each.

use campanile::Problem;

/// Bytes that travel with a row of dispatch, and with a result of combine.
pub fn row_bytes(problem: &Problem) -> [usize; 2] {
    let weights = if problem.weighted { 4 * problem.topk } else { 0 };
    let meta = 4 + 4 * problem.topk + weights;
    [
        problem.dtype.row_bytes(problem.hidden) + 4 * problem.scales + meta,
        problem.combine_dtype.row_bytes(problem.hidden) + weights,
    ]
}

/// Rows from every rank to every rank.
pub fn rows(problem: &Problem) -> Vec<Vec<u64>> {
    let ranks = problem.ranks.len();
    let count = |source: usize| {
        let mut rows = vec![0; ranks];
        for slots in problem.ranks[source].topk_idx.chunks_exact(problem.topk) {
            let mut owners: Vec<_> =
                slots.iter().filter(|e| **e >= 0).map(|e| problem.expert_rank[*e as usize]).collect();
            owners.sort_unstable();
            owners.dedup();
            owners.iter().for_each(|owner| rows[*owner as usize] += 1);
        }
        rows
    };
    (0..ranks).map(count).collect()
}

//! Problems that are made up.

use campanile::moe::{DType, RankInput};

use super::super::input::parse;
use super::super::{GenerateOptions, generate};
use super::contents::{assert_same, contents, in_a_file};

#[test]
fn generated_problems_are_valid_files_and_reproducible() {
    for dtype in DType::ALL {
        for weighted in [false, true] {
            // E < R, E not a multiple of R, H not a multiple of a block.
            for (ranks, tokens, hidden, experts) in [(5, 3, 300, 3), (3, 0, 1, 7), (1, 2, 128, 1)] {
                let hidden = in_a_file(dtype, hidden);
                let options = GenerateOptions {
                    ranks,
                    tokens,
                    hidden,
                    topk: 2,
                    experts,
                    dtype,
                    weighted,
                    ..GenerateOptions::default()
                };
                let problem = generate(&options);
                assert_eq!(problem, generate(&options));
                assert_eq!(problem.ranks.len(), ranks);
                assert_eq!(problem.expert_scale.is_some(), weighted);
                assert_same(&parse(&contents(&problem, false).bytes()).unwrap(), &problem);
                let other = generate(&GenerateOptions { seed: 1, ..options });
                assert!(tokens == 0 || problem.ranks[0].x != other.ranks[0].x);
            }
        }
    }
}

#[test]
fn generated_values_are_spread_over_their_range() {
    for dtype in DType::ALL {
        let options = GenerateOptions { ranks: 2, tokens: 4, hidden: 1024, dtype, ..GenerateOptions::default() };
        let problem = generate(&options);
        let value = |rank: &RankInput, at: usize| {
            let (token, h) = (at / problem.hidden, at % problem.hidden);
            let scale = if dtype.is_scaled() { rank.scales[token * problem.scales + problem.scale_of(h)] } else { 1.0 };
            campanile::moe::number::read(dtype, &rank.x, at) * scale
        };
        for rank in &problem.ranks {
            let values: Vec<_> = (0..4096).map(|at| value(rank, at)).collect();
            assert!(values.iter().all(|value| value.abs() <= 1.0));
            assert!(values.iter().sum::<f32>().abs() < 200.0, "{dtype}: about as many on both sides of 0");
            assert!(values.iter().filter(|value| value.abs() > 0.25).count() > 1000, "{dtype}");
        }
        assert_ne!(problem.ranks[0].x, problem.ranks[1].x);
        assert!(problem.expert_scale.unwrap().iter().all(|scale| (0.5..1.5).contains(scale)));
    }
}

//! Made-up routings, for tests, benchmarks and the command line.
//!
//! A [`Router`] is a pure function of its fields and the rank's place: the same on every machine and in every process,
//! and independent between ranks, so that each rank makes its own part. The patterns are those of the MoE libraries'
//! own tests (MORI: uniform, skewed, local, round_robin, spread, all_to_one).

use std::{collections::BTreeMap, fmt};

use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng, SeedableRng},
};

/// Which experts the tokens of a rank go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Routing {
    /// Any expert, with equal probability.
    #[default]
    Uniform,
    /// Few experts are popular: the n-th most popular is chosen with probability ∝ 1 / n (Zipf), the same experts on
    /// all ranks.
    Skewed,
    /// Only experts of the token's own rank: nothing crosses.
    Local,
    /// Consecutive experts, continued from token to token over all ranks: every expert gets the same load.
    RoundRobin,
    /// Only experts of the rank that owns expert 0.
    AllToOne,
    /// As many different ranks as there are slots for: the most copies that a token can make.
    Spread,
}

impl Routing {
    /// All of them, in the order in which `--help` lists them.
    pub const ALL: [Self; 6] =
        [Self::Uniform, Self::Skewed, Self::Local, Self::RoundRobin, Self::AllToOne, Self::Spread];

    /// The name that is printed and accepted.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Skewed => "skewed",
            Self::Local => "local",
            Self::RoundRobin => "round_robin",
            Self::AllToOne => "all_to_one",
            Self::Spread => "spread",
        }
    }

    /// The routing of that name, as [`name`](Self::name) prints it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|routing| routing.name() == name)
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A maker of routings.
///
/// The experts of a token are distinct. Where a pattern has fewer experts to offer than the token has slots (K > E,
/// or K above the number of local experts), the slots left over are −1, as a router's top-k of fewer would be.
///
/// ```
/// use campanile_moe::{Problem, routing::{Router, Routing}};
/// let expert_rank = Problem::block_map(256, 4);
/// let routed = Router::new(Routing::Uniform, 8, 1).route(0, 4, 128, &expert_rank);
/// assert_eq!(routed.topk_idx.len(), 128 * 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Which experts are chosen.
    pub routing: Routing,
    /// Slots of a token, K.
    pub topk: usize,
    /// Another seed, other choices.
    pub seed: u64,
    /// Probability that a slot after the first repeats an earlier expert of its token.
    pub duplicates: f64,
    /// Probability that a slot is dropped: −1. Its weight stays, since nobody may look at it.
    pub dropped: f64,
}

/// What a [`Router`] made for one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routed {
    /// `[T, K]` global expert of each slot, or −1.
    pub topk_idx: Vec<i32>,
    /// `[T, K]` positive weights; those of a token add up to 1, within rounding.
    pub topk_weights: Vec<f32>,
}

impl Router {
    /// A router without duplicates and dropped slots.
    pub fn new(routing: Routing, topk: usize, seed: u64) -> Self {
        Self { routing, topk, seed, duplicates: 0.0, dropped: 0.0 }
    }

    /// Routes the tokens of `rank`, one of `ranks`, to experts that live where `expert_rank` says.
    pub fn route(&self, rank: usize, ranks: usize, tokens: usize, expert_rank: &[u32]) -> Routed {
        let mut choice = Choice::new(self, rank, ranks, expert_rank);
        let mut random = Random::new(self.seed, 1 + rank);
        let mut routed = Routed::default();
        for token in 0..tokens {
            let first = routed.topk_idx.len();
            choice.choose(token, &mut random, &mut routed.topk_idx);
            routed.topk_idx.resize(first + self.topk, -1);
            for slot in 1..self.topk {
                if random.chance(self.duplicates) {
                    routed.topk_idx[first + slot] = routed.topk_idx[first + random.index(slot)];
                }
            }
            for slot in first..first + self.topk {
                if random.chance(self.dropped) {
                    routed.topk_idx[slot] = -1;
                }
            }
            let weights: Vec<f32> = (0..self.topk).map(|_| 0.25 + random.unit() as f32).collect();
            let sum: f32 = weights.iter().sum();
            routed.topk_weights.extend(weights.iter().map(|weight| weight / sum));
        }
        routed
    }
}

/// The experts that a rank's tokens choose from.
enum Choice {
    /// Equal probabilities: a partial shuffle.
    Uniform { topk: usize, experts: Vec<i32> },
    /// Probabilities in proportion to weights, without replacement.
    Weighted { topk: usize, experts: Vec<(i32, u64)> },
    /// One expert after the other.
    RoundRobin { topk: usize, experts: usize, rank: usize, ranks: usize },
    /// A random expert of a random rank, each rank before any again.
    Spread { topk: usize, by_rank: Vec<Vec<i32>> },
}

impl Choice {
    fn new(router: &Router, rank: usize, ranks: usize, expert_rank: &[u32]) -> Self {
        let topk = router.topk.min(expert_rank.len());
        let of = |rank: u32| {
            let experts = (0_i32..).zip(expert_rank).filter(|&(_, &owner)| owner == rank).map(|(expert, _)| expert);
            Self::Uniform { topk, experts: experts.collect() }
        };
        match router.routing {
            Routing::Uniform => Self::Uniform { topk, experts: (0..expert_rank.len() as i32).collect() },
            Routing::Local => of(rank as u32),
            Routing::AllToOne => of(expert_rank.first().copied().unwrap_or(0)),
            Routing::Skewed => {
                let mut experts: Vec<i32> = (0..expert_rank.len() as i32).collect();
                // Stream 0 belongs to no rank: all ranks agree on who is popular.
                let mut random = Random::new(router.seed, 0);
                random.shuffle(&mut experts, expert_rank.len());
                // Whole numbers, so that no platform's floating-point library has a say.
                Self::Weighted { topk, experts: experts.into_iter().zip((1..).map(|n| (1 << 40) / n)).collect() }
            }
            Routing::RoundRobin => Self::RoundRobin { topk, experts: expert_rank.len(), rank, ranks },
            Routing::Spread => {
                let mut by_rank = BTreeMap::<_, Vec<_>>::new();
                for (expert, &owner) in (0..).zip(expert_rank) {
                    by_rank.entry(owner).or_default().push(expert);
                }
                Self::Spread { topk, by_rank: by_rank.into_values().collect() }
            }
        }
    }

    /// Appends the experts of one token: distinct, at most K.
    fn choose(&mut self, token: usize, random: &mut Random, chosen: &mut Vec<i32>) {
        match self {
            Self::Uniform { topk, experts } => {
                let count = experts.len().min(*topk);
                random.shuffle(experts, count);
                chosen.extend(&experts[..count]);
            }
            Self::Weighted { topk, experts } => {
                let mut total: u64 = experts.iter().map(|&(_, weight)| weight).sum();
                for taken in 0..*topk {
                    // Those taken stand in front; look for the one in whose weight the draw falls.
                    let mut draw = random.below(total);
                    let drawn = (taken..experts.len()).find(|&at| {
                        let weight = experts[at].1;
                        let found = draw < weight;
                        draw = draw.wrapping_sub(weight);
                        found
                    });
                    let drawn = drawn.expect("the draw is below the sum of the weights");
                    total -= experts[drawn].1;
                    chosen.push(experts[drawn].0);
                    experts.swap(taken, drawn);
                }
            }
            Self::RoundRobin { topk, experts, rank, ranks } => {
                let first = (token * *ranks + *rank) * *topk;
                chosen.extend((first..first + *topk).map(|expert| (expert % *experts) as i32));
            }
            Self::Spread { topk, by_rank } => {
                let (ranks, first) = (by_rank.len(), chosen.len());
                random.shuffle(by_rank, ranks);
                for experts in by_rank.iter_mut() {
                    let count = experts.len().min(*topk);
                    random.shuffle(experts, count);
                }
                let rounds = (0..*topk).flat_map(|round| by_rank.iter().filter_map(move |experts| experts.get(round)));
                chosen.extend(rounds.take(*topk));
                debug_assert_eq!(chosen.len(), first + *topk);
            }
        }
    }
}

/// Random numbers, a stream for each rank.
struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Stream `stream` of a seed: 2^128 numbers from its neighbours.
    fn new(seed: u64, stream: usize) -> Self {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..stream).for_each(|_| generator.jump());
        Self(generator)
    }

    /// A whole number below `bound`, which is not 0; its bias is below bound · 2⁻⁶⁴.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index of a list that is not empty.
    fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Brings a random choice of `count` items, in random order, to the front.
    fn shuffle<T>(&mut self, items: &mut [T], count: usize) {
        for at in 0..count {
            let other = at + self.index(items.len() - at);
            items.swap(at, other);
        }
    }
}

//! The MoE protocol call by call: what it refuses, and how words are judged.
//!
//! What it allows, and that this is safe, is the affair of `protocol_model`.

use campanile_moe::protocol::{
    Combine, Epoch, Misuse, Phase, Protocol, Ready, Round, Seen, Set, TaggedWord, Word, WordCondition, WordMap,
    WordStore,
};
use proptest::prelude::*;

const SET: Set = Set(0);
const CAPACITY: u32 = 8;

/// Ranks that run in turn, with the words of all.
struct World {
    ranks: Vec<Protocol>,
    words: Vec<Vec<u64>>,
}

impl World {
    fn new(ranks: usize, sets: u32, capacity: u32, first: Epoch) -> Self {
        let map = WordMap { sets, ranks };
        Self {
            ranks: (0..ranks).map(|rank| Protocol::new(map, rank, capacity, first)).collect(),
            words: vec![vec![WordMap::initial(first); map.bytes() / 8]; ranks],
        }
    }

    fn all(&self) -> Vec<bool> {
        vec![true; self.ranks.len()]
    }

    fn store(&mut self, store: WordStore) {
        self.words[store.peer][store.offset / 8] = store.value;
    }

    /// Does a wait that must be over at once; the rows that it tells.
    fn wait(&mut self, rank: usize, condition: Option<WordCondition>) -> u32 {
        let Some(condition) = condition else { return 0 };
        match self.ranks[rank].observe(&condition, self.words[rank][condition.offset / 8]) {
            Ok(Seen::Ready(rows)) => rows,
            other => panic!("{condition:?} is {other:?}"),
        }
    }

    /// Sends `rows` from everybody to everybody.
    fn dispatch_send(&mut self, set: Set, rows: u32) -> Round {
        let (all, rows_to) = (self.all(), vec![rows; self.ranks.len()]);
        let mut round = None;
        for rank in 0..self.ranks.len() {
            let begun = self.ranks[rank].begin_dispatch_send(set, &all, &rows_to).unwrap();
            assert_eq!(*round.get_or_insert(begun), begun);
            for peer in 0..self.ranks.len() {
                let credit = self.ranks[rank].credit(begun, peer).unwrap();
                self.wait(rank, credit);
                let meta = self.ranks[rank].publish_meta(begun, peer).unwrap();
                self.store(meta);
                let rows = self.ranks[rank].publish_rows(begun, peer, rows).unwrap();
                self.store(rows);
            }
            self.ranks[rank].finish(begun).unwrap();
        }
        round.unwrap()
    }

    fn dispatch_receive(&mut self, round: Round, rows: u32) {
        let all = self.all();
        for rank in 0..self.ranks.len() {
            self.ranks[rank].begin_dispatch_receive(round, &all).unwrap();
            for peer in 0..self.ranks.len() {
                let meta = self.ranks[rank].meta(round, peer).unwrap();
                assert_eq!(self.wait(rank, meta), rows);
                let arrived = self.ranks[rank].rows(round, peer, rows).unwrap();
                self.wait(rank, arrived);
                let free = self.ranks[rank].outputs_free(round.set, peer).unwrap();
                self.wait(rank, free);
            }
            self.ranks[rank].finish(round).unwrap();
        }
    }

    fn dispatch(&mut self, set: Set, rows: u32) -> Round {
        let round = self.dispatch_send(set, rows);
        self.dispatch_receive(round, rows);
        round
    }

    fn combine(&mut self, round: Round, combine: Combine, rows: u32) {
        let all = self.all();
        for rank in 0..self.ranks.len() {
            self.ranks[rank].begin_combine_send(round, combine, &all).unwrap();
            for peer in 0..self.ranks.len() {
                if combine == Combine::Push {
                    let returned = self.ranks[rank].publish_returned(round, peer, rows).unwrap();
                    self.store(returned);
                }
                let ready = self.ranks[rank].publish_ready(round, peer).unwrap();
                self.store(ready);
            }
            self.ranks[rank].finish(round).unwrap();
        }
        for rank in 0..self.ranks.len() {
            self.ranks[rank].begin_combine_receive(round, &all).unwrap();
            for peer in 0..self.ranks.len() {
                let results = self.ranks[rank].results(round, peer, rows).unwrap();
                self.wait(rank, results);
                let done = self.ranks[rank].publish_done(round, peer).unwrap();
                self.store(done);
            }
            self.ranks[rank].finish(round).unwrap();
        }
    }

    fn release(&mut self, round: Round) {
        let all = self.all();
        for rank in 0..self.ranks.len() {
            self.ranks[rank].begin_release(round, &all).unwrap();
            for peer in 0..self.ranks.len() {
                let ready = self.ranks[rank].publish_ready(round, peer).unwrap();
                self.store(ready);
                let done = self.ranks[rank].publish_done(round, peer).unwrap();
                self.store(done);
            }
            self.ranks[rank].finish(round).unwrap();
        }
    }
}

#[test]
fn every_word_has_a_place_of_its_own() {
    let map = WordMap { sets: 3, ranks: 5 };
    let mut offsets = Vec::new();
    for set in (0..3).map(Set) {
        for source in 0..5 {
            let line = map.offset(set, source, Word::Meta) / WordMap::LINE;
            for word in Word::ALL {
                let offset = map.offset(set, source, word);
                assert_eq!((offset % 8, offset / WordMap::LINE), (0, line), "{word} of {set}, {source}");
                offsets.push(offset);
            }
        }
    }
    let count = offsets.len();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), count);
    assert!(*offsets.last().unwrap() < map.bytes());
    assert_eq!(map.bytes(), 3 * 5 * 64);
}

#[test]
fn fresh_words_are_zero() {
    assert_eq!(WordMap::initial(Epoch::FIRST), 0);
}

proptest! {
    /// Tagged words are ordered as their epochs, then as their counts, under signed difference and over the wrap.
    #[test]
    fn tagged_words_are_ordered(epoch: u32, ahead in 1_u32..1 << 31, counts: (u32, u32)) {
        let word = TaggedWord { epoch: Epoch(epoch), count: counts.0 };
        let later = TaggedWord { epoch: Epoch(epoch.wrapping_add(ahead)), count: counts.1 };
        prop_assert_eq!(TaggedWord::unpack(word.pack()), word);
        prop_assert_eq!(later.epoch.since(word.epoch), ahead as i32);
        // The last epoch of the range is reached exactly, not passed.
        if ahead < (1 << 31) - 1 {
            prop_assert!(later.pack().wrapping_sub(word.pack()) as i64 > 0);
        }
        let more = TaggedWord { count: counts.0.saturating_add(1), ..word };
        prop_assert!(more.pack() >= word.pack());
    }

    /// Any sequence of rounds goes through, wherever the epochs start.
    #[test]
    fn rounds_go_on_over_the_wrap(back in 0_u32..4, rounds in prop::collection::vec((0_u32..2, 0_u32..=CAPACITY, 0..3), 1..12)) {
        let mut world = World::new(2, 2, CAPACITY, Epoch(0_u32.wrapping_sub(back)));
        for (set, rows, end) in rounds {
            let round = world.dispatch(Set(set), rows);
            match end {
                0 => world.combine(round, Combine::Pull, rows),
                1 => world.combine(round, Combine::Push, rows),
                _ => world.release(round),
            }
            prop_assert_eq!(world.ranks[0].open_round(Set(set)), Ok(None));
        }
    }
}

#[test]
fn counters_wrap() {
    // They start at 0xffff_ffff_0000_0000, and pass 2^64 in the second round.
    let mut world = World::new(2, 1, u32::MAX, Epoch(0));
    for _ in 0..3 {
        let round = world.dispatch(SET, u32::MAX);
        world.combine(round, Combine::Push, u32::MAX);
    }
    let map = world.ranks[0].map();
    assert_eq!(world.words[0][map.offset(SET, 1, Word::Rows) / 8], 3 * u64::from(u32::MAX) - (1 << 32));
    assert_eq!(world.words[0][map.offset(SET, 1, Word::Returned) / 8], 3 * u64::from(u32::MAX) - (1 << 32));
}

#[test]
fn rows_arrive_in_parts() {
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let round = world.dispatch_send(SET, 5);
    let all = world.all();
    let receiver = &mut world.ranks[0];
    receiver.begin_dispatch_receive(round, &all).unwrap();
    assert_eq!(
        receiver.rows(round, 1, 1),
        Err(Misuse::TooEarly { round, peer: 1, word: Word::Rows, missing: Word::Meta })
    );
    let meta = receiver.meta(round, 1).unwrap().unwrap();
    assert_eq!(receiver.rows_from(round, 1), Ok(None));
    assert_eq!(receiver.observe(&meta, WordMap::initial(Epoch::FIRST)), Ok(Seen::Pending));
    assert_eq!(receiver.observe(&meta, TaggedWord { epoch: round.epoch, count: 5 }.pack()), Ok(Seen::Ready(5)));
    assert_eq!(receiver.rows_from(round, 1), Ok(Some(5)));
    let two = receiver.rows(round, 1, 2).unwrap().unwrap();
    assert_eq!(receiver.observe(&two, 1), Ok(Seen::Pending));
    // One more than was waited for: all of them may be used.
    assert_eq!(receiver.observe(&two, 3), Ok(Seen::Ready(3)));
    assert_eq!(receiver.rows(round, 1, 3), Ok(None));
    assert_eq!(
        receiver.rows(round, 1, 6),
        Err(Misuse::TooManyRows { round, peer: 1, word: Word::Rows, given: 6, announced: 5 })
    );
    assert_eq!(
        receiver.finish(round),
        Err(Misuse::Unfinished { round, phase: Phase::DispatchReceive, peer: 0, word: Word::Meta })
    );
}

#[test]
fn a_dispatch_is_checked() {
    let mut world = World::new(3, 2, CAPACITY, Epoch::FIRST);
    let rank = &mut world.ranks[1];
    let (all, none) = ([true; 3], [0; 3]);
    let refused = [
        (rank.begin_dispatch_send(Set(2), &all, &none), Misuse::SetOutOfRange { set: Set(2), sets: 2 }),
        (rank.begin_dispatch_send(SET, &[true; 2], &none), Misuse::Length { what: "active", given: 2, needed: 3 }),
        (rank.begin_dispatch_send(SET, &all, &[0; 4]), Misuse::Length { what: "rows_to", given: 4, needed: 3 }),
        (rank.begin_dispatch_send(SET, &[true, false, true], &none), Misuse::MaskedSelf { rank: 1 }),
        (
            rank.begin_dispatch_send(SET, &all, &[0, 0, CAPACITY + 1]),
            Misuse::Capacity { peer: 2, rows: CAPACITY + 1, capacity: CAPACITY },
        ),
        (rank.begin_dispatch_send(SET, &[true, true, false], &[0, 0, 1]), Misuse::NotActive { peer: 2, ranks: 3 }),
    ];
    for (given, expected) in refused {
        assert_eq!(given, Err(expected));
    }
    // Nothing has changed: the round that begins is the first, with all ranks.
    let round = rank.begin_dispatch_send(SET, &all, &none).unwrap();
    assert_eq!((round.epoch, rank.active()), (Epoch::FIRST, &all[..]));
    assert_eq!(rank.credit(round, 3), Err(Misuse::NotActive { peer: 3, ranks: 3 }));
}

#[test]
fn one_phase_at_a_time() {
    let mut world = World::new(2, 2, CAPACITY, Epoch::FIRST);
    let (all, none) = ([true; 2], [0; 2]);
    let rank = &mut world.ranks[0];
    let round = rank.begin_dispatch_send(SET, &all, &none).unwrap();
    let running = |wanted| Misuse::PhaseRunning { wanted, running: Phase::DispatchSend, round };
    assert_eq!(rank.begin_dispatch_send(Set(1), &all, &none), Err(running(Phase::DispatchSend)));
    assert_eq!(rank.begin_dispatch_receive(round, &all), Err(running(Phase::DispatchReceive)));
    for peer in 0..2 {
        let _store = rank.publish_meta(round, peer).unwrap();
    }
    rank.finish(round).unwrap();
    assert!(matches!(rank.finish(round), Err(Misuse::NothingRunning { .. })));
    // Between the halves of a split phase, another set may be used.
    rank.begin_dispatch_send(Set(1), &all, &none).unwrap();
}

#[test]
fn a_round_goes_its_way() {
    let mut world = World::new(2, 2, CAPACITY, Epoch::FIRST);
    let (all, none) = ([true; 2], [0; 2]);
    let out_of_order =
        |misuse: Result<(), Misuse>| assert!(matches!(misuse, Err(Misuse::OutOfOrder { .. })), "{misuse:?}");

    let round = world.dispatch_send(SET, 1);
    let rank = &mut world.ranks[0];
    out_of_order(rank.begin_combine_send(round, Combine::Pull, &all));
    out_of_order(rank.begin_release(round, &all));
    out_of_order(rank.meta(round, 0).map(|_| ()));
    world.dispatch_receive(round, 1);
    let rank = &mut world.ranks[0];
    assert_eq!(rank.begin_dispatch_send(SET, &all, &none), Err(Misuse::RoundOpen { round }));
    out_of_order(rank.begin_combine_receive(round, &all));
    out_of_order(rank.publish_ready(round, 1).map(|_| ()));
    world.combine(round, Combine::Pull, 1);
    let rank = &mut world.ranks[0];
    let stale = Misuse::StaleRound { given: round, current: round.epoch };
    assert_eq!(rank.begin_combine_send(round, Combine::Pull, &all), Err(stale.clone()));
    assert_eq!(rank.begin_release(round, &all), Err(stale));
    let round = world.dispatch(SET, 1);
    let old = Round { epoch: round.epoch.prev(), ..round };
    let stale = Misuse::StaleRound { given: old, current: round.epoch };
    assert_eq!(world.ranks[0].begin_release(old, &all), Err(stale));
}

#[test]
fn nothing_is_published_early_or_twice() {
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let all = [true; 2];
    let round = world.dispatch(SET, 2);

    let rank = &mut world.ranks[0];
    rank.begin_combine_send(round, Combine::Push, &all).unwrap();
    let early = |word, missing| Misuse::TooEarly { round, peer: 1, word, missing };
    assert_eq!(rank.publish_ready(round, 1), Err(early(Word::ReadyC, Word::Returned)));
    assert_eq!(
        rank.publish_returned(round, 1, 3),
        Err(Misuse::TooManyRows { round, peer: 1, word: Word::Returned, given: 3, announced: 2 })
    );
    for peer in 0..2 {
        let _store = rank.publish_returned(round, peer, 2).unwrap();
        let _store = rank.publish_ready(round, peer).unwrap();
        assert_eq!(rank.publish_ready(round, peer), Err(Misuse::Published { round, peer, word: Word::ReadyC }));
    }
    rank.finish(round).unwrap();
    rank.begin_combine_receive(round, &all).unwrap();
    assert_eq!(rank.publish_done(round, 1), Err(early(Word::DoneC, Word::Returned)));

    // The other rank has offered nothing: the next dispatch of a rank that got nothing from it has no credit.
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let round = world.dispatch(SET, 0);
    let rank = &mut world.ranks[0];
    rank.begin_release(round, &all).unwrap();
    for peer in 0..2 {
        let _store = rank.publish_ready(round, peer).unwrap();
        let _store = rank.publish_done(round, peer).unwrap();
    }
    rank.finish(round).unwrap();
    let round = rank.begin_dispatch_send(SET, &all, &[1; 2]).unwrap();
    let early = |word| Misuse::TooEarly { round, peer: 1, word, missing: Word::ReadyC };
    assert_eq!(rank.publish_meta(round, 1), Err(early(Word::Meta)));
    assert_eq!(rank.publish_rows(round, 1, 1), Err(early(Word::Rows)));
}

#[test]
fn a_phase_finishes_with_nothing_outstanding() {
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let round = world.dispatch(SET, 1);
    world.combine(round, Combine::Pull, 1);
    let all = world.all();
    let outstanding = |phase, word| Err(Misuse::Unfinished { round: second(round), phase, peer: 0, word });
    let published = |word| Err(Misuse::Published { round: second(round), peer: 0, word });
    fn second(round: Round) -> Round {
        Round { epoch: round.epoch.next(), ..round }
    }

    // Everything for rank 1 comes first, so that a phase hangs on its words for rank 0.
    let mut sender = world.ranks[0].clone();
    let round = sender.begin_dispatch_send(SET, &all, &[1, 1]).unwrap();
    for peer in [1, 0] {
        let _store = sender.publish_meta(round, peer).unwrap();
    }
    assert_eq!(sender.publish_meta(round, 0), published(Word::Meta));
    assert_eq!(sender.finish(round), outstanding(Phase::DispatchSend, Word::Rows));
    let mut mute = world.ranks[0].clone();
    let begun = mute.begin_dispatch_send(SET, &all, &[0, 0]).unwrap();
    assert_eq!(mute.finish(begun), outstanding(Phase::DispatchSend, Word::Meta));

    let round = world.dispatch_send(SET, 1);
    let mut receiver = world.ranks[0].clone();
    receiver.begin_dispatch_receive(round, &all).unwrap();
    let words = world.words[0].clone();
    for word in [Word::Meta, Word::Rows, Word::DoneC] {
        assert_eq!(receiver.finish(round), outstanding(Phase::DispatchReceive, word));
        for peer in [1, 0] {
            let condition = match word {
                Word::Meta => receiver.meta(round, peer),
                Word::Rows => receiver.rows(round, peer, 1),
                _ => receiver.outputs_free(SET, peer),
            };
            let condition = condition.unwrap().unwrap();
            assert!(matches!(receiver.observe(&condition, words[condition.offset / 8]), Ok(Seen::Ready(_))));
        }
    }
    receiver.finish(round).unwrap();

    world.dispatch_receive(round, 1);
    let mut releaser = world.ranks[0].clone();
    releaser.begin_release(round, &all).unwrap();
    assert_eq!(releaser.finish(round), outstanding(Phase::Release, Word::ReadyC));
    for peer in [1, 0] {
        let _store = releaser.publish_ready(round, peer).unwrap();
    }
    assert_eq!(releaser.finish(round), outstanding(Phase::Release, Word::DoneC));

    let combiner = &mut world.ranks[0];
    combiner.begin_combine_send(round, Combine::Pull, &all).unwrap();
    assert_eq!(combiner.finish(round), outstanding(Phase::CombineSend, Word::ReadyC));
    for peer in [1, 0] {
        let _store = combiner.publish_ready(round, peer).unwrap();
    }
    combiner.finish(round).unwrap();
    combiner.begin_combine_receive(round, &all).unwrap();
    assert_eq!(combiner.finish(round), outstanding(Phase::CombineReceive, Word::DoneC));
    let more = Misuse::TooManyRows { round, peer: 0, word: Word::ReadyC, given: 2, announced: 1 };
    assert_eq!(combiner.results(round, 0, 2), Err(more));
    for peer in [1, 0] {
        let results = combiner.results(round, peer, 1).unwrap().unwrap();
        let ready = TaggedWord { epoch: round.epoch, count: Ready::Pull as u32 }.pack();
        assert_eq!(combiner.observe(&results, ready), Ok(Seen::Ready(0)));
        let _store = combiner.publish_done(round, peer).unwrap();
    }
    assert_eq!(combiner.publish_done(round, 0), published(Word::DoneC));
    combiner.finish(round).unwrap();
}

#[test]
fn a_pull_pushes_nothing() {
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let round = world.dispatch(SET, 1);
    let rank = &mut world.ranks[0];
    rank.begin_combine_send(round, Combine::Pull, &[true; 2]).unwrap();
    let wrong = Misuse::WrongCombine { round, word: Word::Returned, combine: Combine::Pull };
    assert_eq!(rank.publish_returned(round, 1, 1), Err(wrong));
}

#[test]
fn a_source_that_sent_nothing_waits_for_nothing() {
    for combine in [Combine::Pull, Combine::Push] {
        let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
        let round = world.dispatch(SET, 0);
        let rank = &mut world.ranks[0];
        rank.begin_combine_send(round, combine, &[true; 2]).unwrap();
        for peer in 0..2 {
            let _store = rank.publish_ready(round, peer).unwrap();
        }
        rank.finish(round).unwrap();
        rank.begin_combine_receive(round, &[true; 2]).unwrap();
        for peer in 0..2 {
            assert_eq!(rank.results(round, peer, 0), Ok(None));
            let _store = rank.publish_done(round, peer).unwrap();
        }
        rank.finish(round).unwrap();
    }
}

/// Values that no correct peer could have written, for the words of a second round.
#[test]
fn impossible_words_are_refused() {
    let first = Epoch(u32::MAX);
    let tagged = |epoch, count| TaggedWord { epoch, count }.pack();
    let second = first.next();
    let rows = WordMap::initial(first) + 2;
    type Ask = fn(&mut Protocol, Round) -> WordCondition;
    let meta: Ask = |rank, round| rank.meta(round, 1).unwrap().unwrap();
    let arrived: Ask = |rank, round| {
        let meta = rank.meta(round, 1).unwrap().unwrap();
        rank.observe(&meta, TaggedWord { epoch: round.epoch, count: 2 }.pack()).unwrap();
        rank.rows(round, 1, 1).unwrap().unwrap()
    };
    let done: Ask = |rank, round| rank.outputs_free(round.set, 1).unwrap().unwrap();
    let cases = [
        ("a later epoch", meta, tagged(second.next(), 2)),
        ("an older epoch", meta, tagged(first.prev(), 0)),
        ("more rows than fit", meta, tagged(second, CAPACITY + 1)),
        ("more rows than announced", arrived, rows + 3),
        ("fewer rows than before", arrived, rows - 1),
        ("a later epoch", done, tagged(second.next(), 0)),
        ("a count in DONE_C", done, tagged(second, 1)),
    ];
    for (what, ask, seen) in cases {
        let mut world = World::new(2, 1, CAPACITY, first);
        let round = world.dispatch(SET, 2);
        world.combine(round, Combine::Pull, 2);
        let round = world.dispatch_send(SET, 2);
        let rank = &mut world.ranks[0];
        rank.begin_dispatch_receive(round, &[true; 2]).unwrap();
        let condition = ask(rank, round);
        let error = rank.observe(&condition, seen).expect_err(what);
        assert_eq!((error.rank, error.set, error.word, error.source_rank), (0, SET, condition.word, 1), "{what}");
        assert_eq!((error.expected, error.seen), (condition.at_least, seen), "{what}");
        let message = error.to_string();
        assert!(message.contains(condition.word.name()) && message.contains("rank 1: rows to it 2"), "{message}");
        // An error is an abort.
        assert!(rank.is_aborted());
        assert_eq!(rank.meta(round, 1), Err(Misuse::Aborted));
    }
}

#[test]
fn a_peer_that_released_has_no_results() {
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let round = world.dispatch(SET, 1);
    let all = [true; 2];
    let rank = &mut world.ranks[0];
    rank.begin_combine_send(round, Combine::Pull, &all).unwrap();
    for peer in 0..2 {
        let _store = rank.publish_ready(round, peer).unwrap();
    }
    rank.finish(round).unwrap();
    rank.begin_combine_receive(round, &all).unwrap();
    let results = rank.results(round, 1, 1).unwrap().unwrap();
    let released = TaggedWord { epoch: round.epoch, count: Ready::Released as u32 }.pack();
    assert!(rank.observe(&results, released).is_err());

    // Nor is a pull what a rank expects that has released itself.
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let round = world.dispatch(SET, 0);
    world.release(round);
    let rank = &mut world.ranks[0];
    let round = rank.begin_dispatch_send(SET, &all, &[0; 2]).unwrap();
    let credit = rank.credit(round, 1).unwrap().unwrap();
    let pulled = TaggedWord { epoch: round.epoch.prev(), count: Ready::Pull as u32 }.pack();
    assert!(rank.observe(&credit, pulled).is_err());
}

#[test]
fn masks_only_shrink() {
    let mut world = World::new(3, 1, CAPACITY, Epoch::FIRST);
    let round = world.dispatch(SET, 1);
    let rank = &mut world.ranks[0];
    let two = [true, true, false];
    rank.begin_combine_send(round, Combine::Pull, &two).unwrap();
    assert_eq!(rank.publish_ready(round, 2), Err(Misuse::NotActive { peer: 2, ranks: 3 }));
    for peer in 0..2 {
        let _store = rank.publish_ready(round, peer).unwrap();
    }
    // The masked rank is not needed.
    rank.finish(round).unwrap();
    assert_eq!(rank.begin_combine_receive(round, &[true; 3]), Err(Misuse::MaskedBefore { rank: 2 }));
    rank.begin_combine_receive(round, &two).unwrap();
}

#[test]
fn an_abort_refuses_everything() {
    let mut world = World::new(2, 1, CAPACITY, Epoch::FIRST);
    let all = [true; 2];
    let rank = &mut world.ranks[0];
    let round = rank.begin_dispatch_send(SET, &all, &[1; 2]).unwrap();
    rank.abort();
    assert_eq!(rank.credit(round, 1), Err(Misuse::Aborted));
    assert_eq!(rank.publish_meta(round, 1), Err(Misuse::Aborted));
    assert_eq!(rank.publish_rows(round, 1, 1), Err(Misuse::Aborted));
    assert_eq!(rank.publish_returned(round, 1, 1), Err(Misuse::Aborted));
    assert_eq!(rank.publish_ready(round, 1), Err(Misuse::Aborted));
    assert_eq!(rank.publish_done(round, 1), Err(Misuse::Aborted));
    assert_eq!(rank.finish(round), Err(Misuse::Aborted));
    assert_eq!(rank.outputs_free(SET, 1), Err(Misuse::Aborted));
    assert_eq!(rank.begin_dispatch_send(SET, &all, &[1; 2]), Err(Misuse::Aborted));
}

#[test]
fn a_new_generation_believes_no_old_word() {
    let mut world = World::new(2, 1, CAPACITY, Epoch(u32::MAX));
    for _ in 0..2 {
        let round = world.dispatch(SET, 3);
        world.combine(round, Combine::Push, 3);
    }
    let round = world.dispatch_send(SET, 3);
    let old: Vec<u64> = world.words[0].clone();
    let all = [true; 2];
    let first = world.ranks[0].next_generation(SET).unwrap();
    assert_eq!(first.since(round.epoch), 2);
    let early = Misuse::UsedEpoch { set: SET, given: first.prev(), needed: first };
    assert_eq!(world.ranks[0].readmit(&[first.prev()], &all), Err(early));
    let length = Misuse::Length { what: "first", given: 2, needed: 1 };
    assert_eq!(world.ranks[0].readmit(&[first; 2], &all), Err(length));
    for rank in &mut world.ranks {
        rank.abort();
        rank.readmit(&[first], &all).unwrap();
        // The lost round is over.
        assert!(matches!(rank.begin_dispatch_receive(round, &all), Err(Misuse::StaleRound { .. })));
    }
    world.words.iter_mut().for_each(|words| words.fill(WordMap::initial(first)));

    // Rounds go on.
    let round = world.dispatch(SET, 2);
    world.combine(round, Combine::Push, 2);

    // A late store of the old generation is found out, whichever word it hits.
    let round = world.dispatch_send(SET, 2);
    type Ask = fn(&mut Protocol, Round) -> WordCondition;
    let asks: [Ask; 3] = [
        |rank, round| rank.meta(round, 1).unwrap().unwrap(),
        |rank, round| {
            let meta = rank.meta(round, 1).unwrap().unwrap();
            rank.observe(&meta, TaggedWord { epoch: round.epoch, count: 2 }.pack()).unwrap();
            rank.rows(round, 1, 2).unwrap().unwrap()
        },
        |rank, round| rank.outputs_free(round.set, 1).unwrap().unwrap(),
    ];
    for ask in asks {
        let mut rank = world.ranks[0].clone();
        rank.begin_dispatch_receive(round, &all).unwrap();
        let condition = ask(&mut rank, round);
        rank.observe(&condition, old[condition.offset / 8]).expect_err("an old word");
    }
}

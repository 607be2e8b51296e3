//! What the engine refuses, what a refusal leaves as it was, and how ranks go on without one of them.

use std::sync::Arc;

use campanile::bootstrap::ThreadBootstrap;
use campanile::core::{Bootstrap, MoeCombine};
use campanile::moe::exchange::{Layout, with_experts};
use campanile::shm::ShmPlugin;
use campanile::{
    Barrier, CommError, CommOptions, Communicator, DType, ExpertLayout, FaultKind, Moe, MoeConfig, MoeError, OpenRound,
    Outputs, Path, Problem, Set, Tokens, threads,
};

const HIDDEN: usize = 8;

fn config(ranks: usize) -> MoeConfig {
    MoeConfig { weighted: false, ..MoeConfig::new(4, HIDDEN, 1, Problem::block_map(ranks, ranks)) }
}

fn tokens<'a>(x: &'a [u8], topk_idx: &'a [i32]) -> Tokens<'a> {
    Tokens {
        dtype: DType::BF16,
        count: topk_idx.len(),
        x,
        stride: HIDDEN * 2,
        scales: &[],
        topk_idx,
        topk_weights: &[],
    }
}

/// Runs `body` on each of `ranks` ranks and expects every rank to end well.
fn on<T: Send>(ranks: usize, body: impl Fn(&Arc<Communicator>) -> Result<T, MoeError> + Sync) -> Vec<T> {
    let ended = threads::<_, MoeError>(ranks, &CommOptions::default(), |comm| body(&comm));
    ended.into_iter().map(|rank| rank.expect("no rank fails")).collect()
}

fn refused<T: std::fmt::Debug>(result: Result<T, MoeError>, fragments: &[&str]) {
    let message = result.expect_err("it is refused").to_string();
    for fragment in fragments {
        assert!(message.contains(fragment), "{fragment:?} is not in {message:?}");
    }
}

/// A round that must still work after whatever was refused before it.
fn round(moe: &mut Moe) -> Result<(), MoeError> {
    let (rank, ranks) = (moe.communicator().rank(), moe.communicator().ranks());
    let x = [rank as u8 + 1; 2 * HIDDEN];
    let handle = moe.dispatch(Set(0), &tokens(&x, &[((rank + 1) % ranks) as i32]))?;
    let mut received = moe.received(&handle)?;
    assert_eq!(received.total(), 1);
    let source = (rank + ranks - 1) % ranks;
    let row = received.row(source, 0).to_vec();
    assert_eq!(row, [source as u8 + 1; 2 * HIDDEN]);
    received.output_mut(source, 0).copy_from_slice(&row);
    let mut out = [0; 2 * HIDDEN];
    moe.combine(handle, Outputs::InPlace, &mut out, None)?;
    assert_eq!(out, x);
    Ok(())
}

#[test]
fn arguments_that_do_not_fit_are_refused_and_change_nothing() {
    on(2, |comm| {
        let mut moe = Moe::new(comm, config(2))?;
        let x = [1; 5 * 2 * HIDDEN];
        refused(moe.dispatch(Set(0), &tokens(&x, &[0; 5])), &["token count is 5", "capacity is 4"]);
        refused(moe.dispatch(Set(0), &tokens(&x[..20], &[0, 0])), &["x has 20 bytes"]);
        refused(moe.dispatch(Set(0), &tokens(&x, &[0, 2])), &["topk_idx is 2", "token 1, slot 0", "0 to 1"]);
        refused(moe.dispatch(Set(0), &tokens(&x, &[-2])), &["topk_idx is -2"]);
        refused(moe.dispatch(Set(9), &tokens(&x, &[0])), &["set 9"]);
        let of = tokens(&x, &[0]);
        refused(moe.dispatch(Set(0), &Tokens { dtype: DType::F16, ..of }), &["dtype is f16", "bf16"]);
        refused(moe.dispatch(Set(0), &Tokens { stride: 3, ..of }), &["stride is 3"]);
        refused(moe.dispatch(Set(0), &Tokens { topk_weights: &[1.0], ..of }), &["topk_weights has 1", "0 are needed"]);
        refused(moe.dispatch(Set(0), &Tokens { scales: &[1.0], ..of }), &["scales has 1"]);
        refused(moe.set_active(&[true]), &["1 entries"]);
        refused(moe.set_active(&[false, false]), &["this rank"]);
        round(&mut moe)?;

        // Outputs and results of the wrong size: the round stays open and can be taken up again.
        let handle = moe.dispatch(Set(0), &of)?;
        let rows = moe.received(&handle)?.total();
        refused(moe.combine(handle, Outputs::InPlace, &mut [0; 3], None), &["bytes of out are 3", "16 are needed"]);
        let Some(OpenRound::Dispatched(handle)) = moe.open_round(Set(0))? else { panic!("the round is open") };
        refused(moe.combine_send(handle, Outputs::Compact(&x[..1])), &["bytes of outputs are 1"]);
        let Some(OpenRound::Dispatched(handle)) = moe.open_round(Set(0))? else { panic!("the round is open") };
        refused(moe.dispatch(Set(0), &of), &["open"]);
        let sent = moe.combine_send(handle, Outputs::Compact(&vec![0; rows * 2 * HIDDEN]))?;
        refused(moe.combine_receive(sent, &mut [0; 16], Some(&mut [0.0])), &["out_weights"]);
        let Some(OpenRound::Combining(sent)) = moe.open_round(Set(0))? else { panic!("the round is open") };
        moe.combine_receive(sent, &mut [0; 16], None)?;
        assert_eq!(moe.open_round(Set(0))?, None);
        round(&mut moe)
    });
}

#[test]
fn a_layout_of_other_rows_is_refused() {
    on(1, |comm| {
        let config = MoeConfig { weighted: false, ..MoeConfig::new(4, HIDDEN, 1, vec![0, 0]) };
        let mut moe = Moe::new(comm, config)?;
        let x = [1; 3 * 2 * HIDDEN];
        let handle = moe.dispatch(Set(0), &tokens(&x, &[0, 1, 1]))?;
        let layout = ExpertLayout::new(&moe.received(&handle)?, 1);
        assert_eq!((layout.counts.clone(), layout.rows), (vec![1, 2], 3));
        let other = ExpertLayout { counts: vec![2, 1], starts: vec![0, 2], rows: 3 };
        let beyond = ExpertLayout { starts: vec![0, 2], ..layout.clone() };
        for layout in [&other, &beyond] {
            let Some(OpenRound::Dispatched(handle)) = moe.open_round(Set(0))? else { panic!("the round is open") };
            let outputs = Outputs::ExpertMajor { data: &x, layout };
            refused(moe.combine(handle, outputs, &mut [0; 3 * 2 * HIDDEN], None), &["layout", "this round"]);
        }
        let mut out = [0; 3 * 2 * HIDDEN];
        moe.combine(handle, Outputs::ExpertMajor { data: &x, layout: &layout }, &mut out, None)?;
        assert_eq!(out, x);
        Ok(())
    });
}

#[test]
fn a_handle_belongs_to_its_operation() {
    on(1, |comm| {
        let (mut first, mut second) = (Moe::new(comm, config(1))?, Moe::new(comm, config(1))?);
        let x = [1; 2 * HIDDEN];
        let handle = first.dispatch(Set(0), &tokens(&x, &[0]))?;
        refused(second.received(&handle).map(|_| ()), &["another operation"]);
        refused(second.combine(handle, Outputs::InPlace, &mut [0; 16], None), &["another operation"]);
        round(&mut second)
    });
}

#[test]
fn rounds_on_two_sets_overlap_and_release_ends_one() {
    on(3, |comm| {
        let mut moe = Moe::new(comm, config(3))?;
        let x = [7; 2 * HIDDEN];
        for _ in 0..20 {
            let first = moe.dispatch_send(Set(0), &tokens(&x, &[2]))?;
            let second = moe.dispatch_send(Set(1), &tokens(&x, &[0]))?;
            let first = moe.dispatch_receive(first)?;
            let second = moe.dispatch_receive(second)?;
            assert_eq!(moe.received(&first)?.total(), if comm.rank() == 2 { 3 } else { 0 });
            moe.release(second)?;
            moe.release(first)?;
        }
        round(&mut moe)
    });
}

#[test]
fn ranks_must_be_given_the_same_config() {
    let ended = threads::<_, MoeError>(3, &CommOptions::default(), |comm| {
        Moe::new(&comm, MoeConfig { hidden: if comm.rank() == 1 { 16 } else { 8 }, ..config(3) }).map(|_| ())
    });
    for (rank, ended) in ended.into_iter().enumerate() {
        let MoeError::Comm(CommError::Mismatch { field, peer, .. }) = ended.expect_err("they differ") else {
            panic!("a mismatch");
        };
        assert_eq!(field, "hidden");
        assert_eq!(peer.index(), if rank == 1 { 0 } else { 1 });
    }
}

#[test]
fn pull_needs_load_and_store() {
    let options = CommOptions { path: Path::Queue, ..CommOptions::default() };
    let ended = threads::<_, MoeError>(2, &options, |comm| {
        refused(Moe::new(&comm, MoeConfig { combine: MoeCombine::Pull, ..config(2) }).map(|_| ()), &["push"]);
        Ok(Moe::new(&comm, config(2))?.combine_by())
    });
    for by in ended {
        assert_eq!(by.expect("auto works"), MoeCombine::Push);
    }
}

#[test]
fn the_others_go_on_without_a_masked_rank() {
    for combine in [MoeCombine::Pull, MoeCombine::Push] {
        on(4, |comm| {
            let mut moe = Moe::new(comm, MoeConfig { combine, ..config(4) })?;
            round(&mut moe)?;
            if comm.rank() == 2 {
                return Ok(());
            }
            moe.set_active(&[true, true, false, true])?;
            refused(moe.set_active(&[true; 4]), &["brings rank 2 back"]);
            for n in 0..10 {
                let x: Vec<u8> = (0..3).flat_map(|token| [comm.rank() as u8 + 10 * token + n; 2 * HIDDEN]).collect();
                // The second token's only expert lives on the masked rank.
                let handle = moe.dispatch(Set(u32::from(n % 2)), &tokens(&x, &[3, 2, 0]))?;
                let mut received = moe.received(&handle)?;
                assert_eq!(received.count(2), 0);
                for source in [0, 1, 3] {
                    for row in 0..received.count(source) {
                        let bytes = received.row(source, row).to_vec();
                        received.output_mut(source, row).copy_from_slice(&bytes);
                    }
                }
                let mut out = vec![9; x.len()];
                moe.combine(handle, Outputs::InPlace, &mut out, None)?;
                let mut expected = x.clone();
                expected[2 * HIDDEN..4 * HIDDEN].fill(0);
                assert_eq!(out, expected);
            }
            Ok(())
        });
    }
}

#[test]
fn typed_rows_and_expert_numbers() {
    on(2, |comm| {
        let config = MoeConfig {
            dtype: DType::F32,
            combine_dtype: DType::F32,
            weighted: false,
            ..MoeConfig::new(1, HIDDEN, 2, vec![1, 0, 1, 1])
        };
        let mut moe = Moe::new(comm, config)?;
        assert_eq!(moe.plan().expert(0), Some(if comm.rank() == 0 { 1 } else { 0 }));
        assert_eq!(moe.plan().expert(2), if comm.rank() == 0 { None } else { Some(3) });
        let x: Vec<u8> = (0..HIDDEN).flat_map(|h| (h as f32).to_le_bytes()).collect();
        let tokens = Tokens { dtype: DType::F32, stride: x.len(), count: 1, topk_idx: &[3, 1], ..tokens(&x, &[]) };
        let handle = moe.dispatch(Set(0), &tokens)?;
        let mut received = moe.received(&handle)?;
        for source in 0..2 {
            let numbers: Vec<f32> = received.row_as::<f32>(source, 0).iter().map(|x| 2.0 * x).collect();
            received.output_as_mut::<f32>(source, 0).copy_from_slice(&numbers);
        }
        let mut out = vec![0; x.len()];
        moe.combine(handle, Outputs::InPlace, &mut out, None)?;
        let out: Vec<f32> = out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(out, (0..HIDDEN).map(|h| 4.0 * h as f32).collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn an_empty_problem_is_one_too() {
    on(2, |comm| {
        let problem = Problem {
            dtype: DType::BF16,
            combine_dtype: DType::BF16,
            hidden: 1,
            topk: 1,
            scales: 0,
            quantize: false,
            expert_rank: vec![0],
            expert_scale: None,
            weighted: false,
            ranks: vec![campanile::moe::RankInput::default(); 2],
        };
        let mut moe = Moe::new(comm, MoeConfig { weighted: false, ..MoeConfig::new(1, 1, 1, vec![0]) })?;
        for _ in 0..5 {
            let handle = moe.dispatch(Set(1), &Tokens::of(&problem, comm.rank()))?;
            with_experts(&mut moe, &problem, Layout::ExpertMajor, handle, |moe, handle, outputs| {
                moe.combine(handle, outputs, &mut [], None)
            })?;
        }
        Ok(())
    });
}

#[test]
fn communicators_of_one_job_fail_apart() {
    let options = |name: &str| CommOptions { name: name.to_owned(), ..CommOptions::default() };
    std::thread::scope(|scope| {
        for bootstrap in ThreadBootstrap::world(3) {
            scope.spawn(move || {
                let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
                let make = |name| Communicator::new(Arc::clone(&bootstrap), &ShmPlugin, options(name)).map(Arc::new);
                let (first, second) = (make("first").expect("it connects"), make("second").expect("it connects"));
                let mut barriers = [&first, &second].map(|comm| Barrier::new(comm).expect("it is made"));
                for barrier in &mut barriers {
                    barrier.wait().expect("all are there");
                }
                let [of_first, of_second] = &mut barriers;
                if first.rank() == 1 {
                    first.abort();
                    assert!(matches!(of_first.wait(), Err(CommError::Failed(_))));
                } else {
                    let error = of_first.wait().expect_err("rank 1 aborted");
                    let fault = error.fault().expect("a fault");
                    assert_eq!((fault.culprit.index(), fault.kind), (1, FaultKind::Aborted));
                    assert!(matches!(of_first.wait(), Err(CommError::Failed(_))), "the first error is sticky");
                }
                for _ in 0..100 {
                    of_second.wait().expect("the second has no fault");
                }
                let mut moe = Moe::new(&second, config(3)).expect("it is made");
                round(&mut moe).expect("the second has no fault");
            });
        }
    });
}

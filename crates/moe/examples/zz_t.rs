//! x
use campanile_moe::{*,model::*,routing::*}; use std::time::Instant;
fn main(){ let (r,t,h,k,e)=(4,128,7168,8,256); let er=Problem::block_map(e,r);
 let p=Problem{dtype:DType::BF16,combine_dtype:DType::BF16,hidden:h,topk:k,scales:0,expert_rank:er.clone(),expert_scale:None,weighted:true,
 ranks:(0..r).map(|i|{let ro=Router::new(Routing::Uniform,k,1).route(i,r,t,&er); RankInput{tokens:t,x:(0..t*h).flat_map(|j|number::f32_to_bf16((j%97) as f32/7.-5.).to_le_bytes()).collect(),scales:vec![],topk_idx:ro.topk_idx,topk_weights:ro.topk_weights}}).collect()};
 p.validate().unwrap(); let s=Instant::now(); let a=solve(&p); println!("solve {:?}",s.elapsed()); let s=Instant::now(); let b=bound(&p,&a); println!("bound {:?} {b:?}",s.elapsed()); let s=Instant::now(); println!("{:?} {:?}",compare(&p,&a,&a.clone()),s.elapsed()); }

#!/bin/sh
# The GPU campaign: everything that only GPUs can prove or measure, on a machine that has nothing but the built binaries.
#
#   benches/gpu/campaign.sh [--bin DIR] [--out DIR] [--device gpu|emulator] [--gpus N] [--budget SECONDS] [--only LIST]
#
# --bin     folder with `campanile`, and `examples/` with `selftest`, `litmus` and `moe_gpu` [target/release]
# --out     folder for what it leaves [gpu-campaign]
# --device  emulator runs the same steps, small, on the CPU: that the campaign works; its figures mean nothing [gpu]
# --gpus    GPUs to use [all that nvidia-smi or /dev names; at least 1]
# --budget  seconds for all of it; what does not fit is not run and said so [540]
# --only    steps by name, with commas: info selftest check moe link bench moe_gpu nccl grid litmus sanitizer [all]
#
# A step that fails is recorded and the next one goes on. It leaves results.json (every step with command, status, seconds
# and what it printed as JSON), results.md (tables for docs/benchmarks/) and the whole output of each step. Exit status:
# 0 if no step failed, 1 if one did, 2 for a wrong option. Where something is missing (PyTorch, compute-sanitizer) its
# steps are skipped, which is no failure.
set -u

here=$(cd "$(dirname "$0")" && pwd)
bin=target/release out=gpu-campaign device=gpu gpus= budget=540 only=
steps="info selftest check moe link bench moe_gpu nccl grid litmus sanitizer"
while [ $# -gt 0 ]; do
  case $1 in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
  [ $# -ge 2 ] || { echo "$1 needs a value" >&2; exit 2; }
  case $1 in
    --bin) bin=$2 ;;
    --out) out=$2 ;;
    --device) device=$2 ;;
    --gpus) gpus=$2 ;;
    --budget) budget=$2 ;;
    --only) only=$2 ;;
    *) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
  esac
  shift 2
done
case $device in gpu | emulator) ;; *) echo "--device $device: gpu or emulator" >&2; exit 2 ;; esac
for given in "--budget $budget" ${gpus:+"--gpus $gpus"}; do
  case ${given#* } in "" | 0* | *[!0-9]*) echo "$given: a number, at least 1" >&2; exit 2 ;; esac
done
# A step that is misspelt would be one that does not fail.
for name in $(printf %s "$only" | tr , ' '); do
  case " $steps " in *" $name "*) ;; *) echo "--only $name: no such step; there are $steps" >&2; exit 2 ;; esac
done

start=$(date +%s)
mkdir -p "$out" || exit 2
: > "$out/steps.jsonl"
failed=0

if [ -z "$gpus" ]; then
  if [ "$device" = emulator ]; then gpus=2
  elif command -v nvidia-smi > /dev/null; then gpus=$(nvidia-smi -L | grep -c '^GPU')
  else gpus=$(ls -d /dev/nvidia[0-9]* /dev/dri/renderD* 2> /dev/null | wc -l); fi
fi
[ "$gpus" -ge 1 ] 2> /dev/null || gpus=1
# Two ranks share a single GPU.
ranks=$gpus
[ "$ranks" -ge 2 ] || ranks=2
# How the examples call the backend.
backend=emulator
if [ "$device" = gpu ]; then
  backend=cuda
  [ -e /dev/kfd ] && backend=hip
fi

# A string as JSON.
quoted() { printf '"%s"' "$(printf %s "$1" | tr '\n\t' '  ' | sed 's/[\\"]/\\&/g')"; }

# record NAME STATUS SECONDS COMMAND [REASON]: appends a step; its JSON is the last line of its output, if that is an object.
record() {
  output=null
  if [ -s "$out/$1.out" ]; then
    last=$(tail -n 1 "$out/$1.out")
    case $last in "{"*"}") output=$last ;; esac
  fi
  printf '{"step":%s,"status":%s,"seconds":%s,"command":%s,"reason":%s,"output":%s}\n' \
    "$(quoted "$1")" "$(quoted "$2")" "$3" "$(quoted "$4")" "$(quoted "${5-}")" "$output" >> "$out/steps.jsonl"
  printf '%-34s %-8s %5s s  %s\n' "$1" "$2" "$3" "${5-}"
}

# Whether a group of steps is asked for.
wanted() {
  [ -z "$only" ] && return 0
  case ",$only," in *",$1,"*) return 0 ;; esac
  return 1
}

# step LIMIT NAME COMMAND...: runs it for at most LIMIT seconds, and no longer than the budget lasts.
step() {
  limit=$1 name=$2
  shift 2
  left=$((budget - ($(date +%s) - start)))
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    record "$name" skipped 0 "$*" "the budget of $budget s is used"
    return 0
  fi
  began=$(date +%s)
  timeout -k 10 "$limit" "$@" > "$out/$name.out" 2> "$out/$name.err" < /dev/null
  status=$?
  took=$(($(date +%s) - began))
  case $status in
    0) record "$name" passed "$took" "$*"; return 0 ;;
    124 | 137) record "$name" failed "$took" "$*" "not done within $limit s" ;;
    *) record "$name" failed "$took" "$*" "status $status: $(grep -i -m 1 error "$out/$name.err" || tail -n 1 "$out/$name.err")" ;;
  esac
  failed=1
  return 1
}

campanile=$bin/campanile
examples=$bin/examples
small() { [ "$device" = emulator ]; }

echo "campaign on $gpus GPUs ($device, $backend), $ranks ranks, $budget s; results in $out"

if wanted info; then step 30 info "$campanile" info --json; fi
if wanted selftest; then step 60 selftest "$examples/selftest" "$backend"; fi

# The transport keeps the contract.
if wanted check; then step 150 check "$campanile" check --device "$device" -n "$ranks" --json; fi

# The same exchange on devices and on the host, file by file; each is also compared with the model.
if wanted moe; then
  for layout in rows compact expert-major; do
    a=$out/moe_$layout.device b=$out/moe_$layout.host
    rm -rf "$a" "$b"
    if step 60 "moe_${layout}_device" "$campanile" moe --device "$device" -n "$ranks" --layout "$layout" --output "$a" --dump-recv --json &&
      step 60 "moe_${layout}_host" "$campanile" moe --device host -n "$ranks" --layout "$layout" --output "$b" --dump-recv --json; then
      step 20 "moe_${layout}_same" diff -r "$a" "$b"
    fi
  done
fi

# Limits, then what is held against them, in the same run.
if wanted link; then
  if small; then step 60 link "$campanile" bench link --device emulator -n "$ranks" --iters 2 --warmup 1 --json
  else step 90 link "$campanile" bench link --device gpu -n "$ranks" --json; fi
fi
if wanted bench; then
  counts="4096 128 1"
  small && counts="16 1"
  for tokens in $counts; do
    for dtype in f8_e4m3 bf16; do
      for sms in table 24; do
        # Few tokens need no more.
        [ "$sms" = 24 ] && [ "$tokens" != 4096 ] && continue
        set -- --device "$device" -n "$ranks" --tokens "$tokens" --dtype "$dtype" --graph --json
        [ "$sms" = 24 ] && set -- "$@" --sms 24
        small && set -- "$@" --hidden 64 --experts 16 --iters 2 --warmup 1
        step 60 "bench_${tokens}_${dtype}_$sms" "$campanile" bench moe "$@"
      done
    done
  done
fi
if wanted moe_gpu; then step 120 moe_gpu "$examples/moe_gpu" "$backend" bench; fi

# What PyTorch users have instead.
if wanted nccl; then
  if small; then record nccl skipped 0 "" "NCCL needs GPUs"
  elif ! python3 -c 'import torch, sys; sys.exit(not torch.distributed.is_nccl_available())' 2> /dev/null; then
    record nccl skipped 0 "" "python3 has no torch with NCCL"
  elif [ "$gpus" -lt 2 ]; then record nccl skipped 0 "" "NCCL needs a GPU a rank"
  else
    # NVLink multicast needs a fabric manager that containers lack, and all-to-all does not use it.
    step 120 nccl env NCCL_NVLS_ENABLE=0 python3 "$here/nccl_all_to_all.py" "$gpus"
  fi
fi

# Every case of the grid, bit for bit, with the model; memory order; the sanitizer, whose kernels take long.
if wanted grid; then step 120 grid "$examples/moe_gpu" "$backend" check; fi
if wanted litmus; then
  if small; then step 60 litmus "$examples/litmus" "$backend" --rounds 2 --rows 100 --devices one
  else step 90 litmus "$examples/litmus" "$backend" --rounds 3000; fi
fi
if wanted sanitizer; then
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2> /dev/null | head -n 1)
  if small || [ -z "$sanitizer" ]; then record sanitizer skipped 0 "" "compute-sanitizer is not there"
  else
    for tool in memcheck racecheck; do
      set -- env CAMPANILE_TIMEOUT=120 "$sanitizer" --tool "$tool" --error-exitcode 9 --target-processes all
      step 90 "sanitizer_${tool}_moe" "$@" "$campanile" moe --device gpu -n 2 --as threads --timeout 120
      step 90 "sanitizer_${tool}_link" "$@" "$campanile" bench link -n 2 --bytes 256K --iters 1 --warmup 0 --round-trips 10
      step 90 "sanitizer_${tool}_litmus" "$@" "$examples/litmus" cuda --devices one --case "pushed, uncached" --rounds 10 --rows 1000
    done
  fi
fi

took=$(($(date +%s) - start))
{
  printf '{"date":%s,"device":%s,"gpus":%s,"ranks":%s,"seconds":%s,"failed":%s,"steps":[\n' \
    "$(quoted "$(date -u +%Y-%m-%dT%H:%M:%SZ)")" "$(quoted "$device")" "$gpus" "$ranks" "$took" \
    "$([ "$failed" = 0 ] && echo false || echo true)"
  sed '$!s/$/,/' "$out/steps.jsonl"
  printf ']}\n'
} > "$out/results.json"
rm "$out/steps.jsonl"
if command -v python3 > /dev/null; then
  python3 "$here/table.py" "$out/results.json" > "$out/results.md" || failed=1
else
  echo "no python3: results.md is not written; benches/gpu/table.py makes it of results.json anywhere"
fi
echo "$took s; $([ "$failed" = 0 ] && echo 'no step failed' || echo 'A STEP HAS FAILED'); $out/results.json"
exit "$failed"

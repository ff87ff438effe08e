#!/usr/bin/env bash
# Submits both phases, the second to start when the first has ended well:
#   PHASE1_DIR=RUN1 PHASE2_DIR=RUN2 slurm/submit_phases.sh [sbatch flags] -- [overrides of both]
# PHASE1_CONFIG and PHASE2_CONFIG are other configurations than those of the two scripts, MILLRACE_CONFIG is one of both.
set -euo pipefail
home=$(cd "$(dirname "$0")/.." && pwd)
export MILLRACE_HOME=${MILLRACE_HOME:-$home} PHASE1_DIR=${PHASE1_DIR:-} PHASE2_DIR=${PHASE2_DIR:-}
flags=()
while (($#)) && [[ $1 != -- ]]; do
  case $1 in
    -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
  esac
  flags+=("$1")
  shift
done
if [[ -z $PHASE1_DIR || -z $PHASE2_DIR || ${1:-} != -- ]]; then
  sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
shift
# Where phase 1 is, and the configurations, reach the jobs by the environment alone. A flag counts before SBATCH_EXPORT.
exported=${SBATCH_EXPORT:-ALL} previous=""
for flag in "${flags[@]}"; do
  if [[ $flag == --export=* || $previous == --export ]]; then exported=${flag#--export=}; fi
  previous=$flag
done
if [[ ,${exported^^}, != *,ALL,* ]]; then
  echo "submit_phases: the jobs need this environment, and --export or SBATCH_EXPORT is $exported: say --export=ALL, or ALL,NAME=VALUE" >&2
  exit 2
fi
one_config=${MILLRACE_CONFIG:-}
if [[ -n $one_config && (-z ${PHASE1_CONFIG:-} || -z ${PHASE2_CONFIG:-}) ]]; then
  echo "submit_phases: MILLRACE_CONFIG=$one_config is the configuration of every phase without a PHASE1_CONFIG or PHASE2_CONFIG" >&2
fi

phase1=$(MILLRACE_CONFIG=${PHASE1_CONFIG:-$one_config} sbatch --parsable "${flags[@]}" "$home/slurm/phase1_256.sbatch" "$@" run.dir="$PHASE1_DIR")
phase1=${phase1%%;*}  # a cluster's name may follow
if ! phase2=$(MILLRACE_CONFIG=${PHASE2_CONFIG:-$one_config} sbatch --parsable "${flags[@]}" --dependency="afterok:$phase1" --kill-on-invalid-dep=yes \
  "$home/slurm/phase2_512.sbatch" "$@" run.dir="$PHASE2_DIR"); then
  scancel "$phase1"
  echo "submit_phases: phase 2 was refused, so phase 1 is cancelled again" >&2
  exit 1
fi
phase2=${phase2%%;*}

cat << HINTS
phase1 $phase1
phase2 $phase2

follow     squeue -j $phase1,$phase2;  tail -F millrace-256-$phase1.log;  cat $PHASE1_DIR/STATE
save now   scancel --batch --signal=USR1 $phase1    saves, goes back to the queue and continues
stop       scancel $phase2 $phase1    both stay ended, at the last checkpoint; to keep all steps first 'save now', until $phase1 is PENDING
resubmit   the same command: each phase continues where its folder stands, and a finished phase 1 ends at once
HINTS
